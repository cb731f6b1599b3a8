"""The part of the page parser that owns the tables, and hands out their sums."""


cdef inline void _clear(Table* table) noexcept:
    table.used, table.arena_used = 0, 0
    if table.slots:
        memset(table.index, 0, <size_t>table.slots * 4)


cdef object _addresses(const uint8_t* at, uint32_t length):
    """Return the addresses in so many bytes."""
    cdef uint32_t i
    return tuple([_u64(at + 8 * i) for i in range(length // 8)])


cdef class Summing:
    """Holds the tables of all metrics, and the conditions and computed fields of their records."""

    cdef Table* _tables  # first those of single records, then those of joined and queued ones
    cdef uint32_t _ntables
    cdef Node* _nodes
    cdef uint8_t* _scratch
    cdef uint64_t _seed
    cdef Epochs _epochs
    cdef object _resolvers, _owners, _names
    cdef dict _frames  # of the stacks since the last ``take``, by their addresses

    cdef int _add_tables(self, nodes, tables, recipe, shape) except -1:
        """Append the tables of a recipe, and the nodes of their conditions."""
        used = {name for group in recipe.groups for name in (*group.keys, group.value)}
        roots = {
            one.name: _add_nodes(nodes, [one.condition], shape)
            for one in shape.layout.computed
            if one.name in used
        }
        for group in recipe.groups:
            where = -1 if group.where is None else _add_nodes(nodes, [group.where.condition], shape)
            tables.append((group, shape, where, roots))
            self._owners.append((shape.layout.layout_id, group.feeds, group.exponential))
        return 0

    cdef object _empty(self, Table* table, uint32_t number, batch):
        """Move a table's sums to the batch, and empty the table."""
        cdef uint32_t i, b
        cdef Cell* cell
        layout_id, feeds, finer = self._owners[number]
        if feeds == STACKS:
            return self._empty_stacks(table, layout_id, batch)
        if table.negative or table.unreadable:
            batch.refused.append(Refused(layout_id, feeds, table.negative, table.unreadable))
            table.negative = table.unreadable = 0
        if table.used == 0:
            return
        tallies = batch.tallies
        for i in range(table.used):
            cell = &table.cells[i]
            buckets = None
            if table.nbounds >= 0:
                buckets = tuple(
                    [table.buckets[<size_t>i * (table.nbounds + 1) + b] for b in range(table.nbounds + 1)]
                )
            key = self._raw_key(table.arena + cell.key, table, self._resolvers[number])
            bucket = None if finer is None else finer.bucket(key[len(key) - 1])
            key = key[: table.nkeys]
            tally = Tally(layout_id, feeds, key, cell.count, _int(cell.sum), cell.time, buckets, bucket)
            if table.nthreads:
                batch.by_thread.append((cell.moment, tally))
            else:
                tallies.append(tally)
        _clear(table)

    cdef object _empty_stacks(self, Table* table, layout_id, batch):
        """Move the stacks of a table to the batch, and empty the table."""
        cdef uint32_t i, length
        cdef const uint8_t* at
        cdef const Cell* cell
        if table.unreadable:
            batch.without_stack[layout_id] += table.unreadable
        for i in range(table.used):
            cell = &table.cells[i]
            at = table.arena + cell.key
            if _kind_of(at) == ABSENT:
                batch.without_stack[layout_id] += cell.count
                continue
            length, at = _text_length(at), at + 8
            addresses = _addresses(at + STACK_HEAD, _program_bytes(at))
            kernel = self._kernel_frames(at, length)
            weight = Weight(cell.count, _int(cell.sum))
            batch.stack_tallies.append(StackTally(layout_id, kernel, _u32(at), addresses, weight))
        table.negative = table.unreadable = 0  # an error has no weight, and is not lost
        _clear(table)

    cdef tuple _kernel_frames(self, const uint8_t* stack, uint32_t length):
        """Return the names of the kernel's functions in a stack that was kept."""
        cdef uint32_t first
        if length == 0:
            return ()
        first = STACK_HEAD + _program_bytes(stack)
        return tuple([self._frame(address) for address in _addresses(stack + first, length - first)])

    cdef object _frame(self, uint64_t address):
        """Return the name of a function in a stack, which many stacks share."""
        name = self._frames.get(address)
        if name is None:
            name = self._frames[address] = frame(self._names, address)
        return name

    cdef object _raw_key(self, const uint8_t* at, const Table* table, resolvers):
        """Return what a record would hold for each part of a key."""
        cdef uint32_t i, length
        cdef Num number
        parts = []
        for i in range(len(resolvers)):
            value = None
            if _kind_of(at) in (POSITIVE, NEGATIVE):
                number.hi = 0 if _kind_of(at) == POSITIVE else -1
                number.lo = _u64(at + 8)
                value = _int(number)
                at += 16
            elif _kind_of(at) == IS_TEXT:
                length = _text_length(at)
                value = PyBytes_FromStringAndSize(<const char*>at + 8, length)
                at += 8 + _padded(length)
            else:
                at += 8
            resolve = resolvers[i]
            parts.append(value if resolve is None else resolve(value))
        return tuple(parts)
