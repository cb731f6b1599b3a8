"""Adds up records: the table of each metric."""

cdef uint32_t MANY_CELLS = 4096
"""Cells, and bytes of keys, after which reading stops for ``take``, so that a table stays in the cache."""
cdef size_t MANY_BYTES = 1 << 20

cdef struct Cell:
    uint64_t hash
    uint64_t key
    uint32_t length
    uint64_t count
    uint64_t time
    uint64_t moment  # of the first record, if threads' cgroups are keys
    Num sum

cdef enum:
    GENERATIONS = 4096  # a power of 2

cdef struct Epochs:  # how often the cgroups of threads may have changed
    uint64_t moves
    uint64_t[GENERATIONS] placed  # by the lowest bits of the id; two threads may share one

cdef struct Table:
    int32_t where
    uint32_t nkeys
    Place* keys
    uint32_t nthreads  # the keys that name a thread whose cgroup is meant
    uint32_t* threads
    const Epochs* epochs  # NULL if there are none
    bint valued
    bint last
    bint positive
    Place value
    int32_t nbounds
    Num* bounds
    uint64_t* finer  # the bounds of exponential buckets, for a native histogram
    uint32_t nfiner
    uint32_t[66] starts  # of the first that holds a number with so many bits
    uint32_t* index
    uint32_t slots
    Cell* cells
    uint64_t* buckets
    uint32_t room
    uint32_t used
    uint8_t* arena
    size_t arena_room
    size_t arena_used
    uint64_t negative
    uint64_t unreadable


cdef uint32_t _key(const Table* table, const Rec* rec, uint8_t* out) noexcept nogil:
    """Write the raw values of a table's keys; return their length."""
    cdef uint8_t* end = out
    cdef uint8_t* after
    cdef uint32_t i
    for i in range(table.nkeys):
        after = _write_value(end, &table.keys[i], rec)
        if after == NULL:
            _set_word(end, ABSENT)
            after = end + 8
        end = after
    return <uint32_t>(end - out)


cdef inline uint64_t _epoch(const Epochs* epochs, uint64_t tid) noexcept nogil:
    """Return a number that has grown if the thread may have changed its cgroup, or may be another one."""
    return epochs.moves + epochs.placed[tid & (GENERATIONS - 1)]


cdef uint32_t _epoch_key(const Table* table, const Rec* rec, uint8_t* out) noexcept nogil:
    """Write the epochs of a record's threads as one more key; return its length."""
    cdef uint32_t i
    cdef Num tid, epoch = Num(0, 0)
    for i in range(table.nthreads):
        if _number(&table.keys[table.threads[i]], rec, &tid):
            epoch.lo += _epoch(table.epochs, tid.lo)
    return <uint32_t>(_write_number(out, epoch) - out)


cdef uint32_t _code(const Table* table, Num value, uint8_t* out) noexcept nogil:
    """Write the code of a value's exponential bucket as one more key; return its length."""
    cdef uint64_t magnitude = value.lo if value.hi >= 0 else 0 - value.lo
    cdef int64_t code = 0
    cdef uint32_t bits, low, high, middle
    if magnitude:
        bits = 64 - __builtin_clzll(magnitude)
        low, high = table.starts[bits], table.starts[bits + 1]
        while low < high:
            middle = (low + high) >> 1
            if table.finer[middle] < magnitude:
                low = middle + 1
            else:
                high = middle
        code = <int64_t>low + 1 if value.hi >= 0 else -1 - <int64_t>low
    return <uint32_t>(_write_number(out, Num(-1 if code < 0 else 0, <uint64_t>code)) - out)


cdef bint _grow(Table* table) noexcept nogil:
    """Double the room for cells; False if there is no memory."""
    cdef uint32_t room = 2 * table.room if table.room else 16, slots = 4 * room, i, at
    cdef Cell* cells = <Cell*>realloc(table.cells, room * sizeof(Cell))
    if cells == NULL:
        return False
    table.cells = cells
    cdef uint64_t* buckets
    if table.nbounds >= 0:
        buckets = <uint64_t*>realloc(table.buckets, <size_t>room * (table.nbounds + 1) * 8)
        if buckets == NULL:
            return False
        table.buckets = buckets
    cdef uint32_t* index = <uint32_t*>calloc(slots, 4)
    if index == NULL:
        return False
    for i in range(table.used):
        at = cells[i].hash & (slots - 1)
        while index[at]:
            at = (at + 1) & (slots - 1)
        index[at] = i + 1
    free(table.index)
    table.index, table.slots, table.room = index, slots, room
    return True


cdef Cell* _cell(Table* table, const uint8_t* key, uint32_t length, uint64_t seed) noexcept nogil:
    """Return the cell of a key, a new one for a new key; NULL if there is no memory."""
    cdef uint64_t hash = _hash(key, length, seed) if length else 0
    cdef uint32_t at
    cdef Cell* cell
    cdef size_t room
    cdef uint8_t* arena
    if table.slots:
        at = hash & (table.slots - 1)
        while table.index[at]:
            cell = &table.cells[table.index[at] - 1]
            if cell.hash == hash and cell.length == length and _same(table.arena + cell.key, key, length):
                return cell
            at = (at + 1) & (table.slots - 1)
    if table.used == table.room:
        if not _grow(table):
            return NULL
        at = hash & (table.slots - 1)
        while table.index[at]:
            at = (at + 1) & (table.slots - 1)
    if table.arena_used + length > table.arena_room:
        room = 2 * (table.arena_used + length) + 256
        arena = <uint8_t*>realloc(table.arena, room)
        if arena == NULL:
            return NULL
        table.arena, table.arena_room = arena, room
    cell = &table.cells[table.used]
    memset(cell, 0, sizeof(Cell))
    cell.hash, cell.key, cell.length = hash, table.arena_used, length
    if length:
        memcpy(table.arena + table.arena_used, key, length)
    table.arena_used += length
    if table.nbounds >= 0:
        memset(&table.buckets[<size_t>table.used * (table.nbounds + 1)], 0, (table.nbounds + 1) * 8)
    table.used += 1
    table.index[at] = table.used
    return cell


cdef bint _tally(
    Table* table, const Node* nodes, const Rec* rec, uint8_t* scratch, uint64_t seed
) noexcept nogil:
    """Add one record to one table; False if there is no memory."""
    cdef Num value
    cdef Cell* cell
    cdef int32_t low, high, middle
    cdef uint32_t length
    cdef int met
    if table.where >= 0:
        met = _meets(nodes, table.where, rec)
        if met != YES:
            table.unreadable += met == MISSING
            return True
    if table.valued:
        if not _number(&table.value, rec, &value):
            table.unreadable += 1
            return True
        if table.positive and value.hi < 0:
            table.negative += 1
            return True
    length = _key(table, rec, scratch)
    if table.nthreads:
        length += _epoch_key(table, rec, scratch + length)
    if table.finer != NULL:
        length += _code(table, value, scratch + length)
    cell = _cell(table, scratch, length, seed)
    if cell == NULL:
        return False
    if table.nthreads and cell.count == 0:
        cell.moment = (<const Rec*>rec.second).time if rec.second != NULL else rec.time
    cell.count += 1
    if table.valued:
        if not table.last:
            _add(&cell.sum, value)
        elif rec.time >= cell.time:
            cell.sum, cell.time = value, rec.time
    if table.nbounds >= 0:
        low, high = 0, table.nbounds
        while low < high:
            middle = (low + high) >> 1
            if _less(table.bounds[middle], value):
                low = middle + 1
            else:
                high = middle
        table.buckets[<size_t>(cell - table.cells) * (table.nbounds + 1) + low] += 1
    return True


cdef int _fill_table(Table* table, group, shape, int where, roots, const Epochs* epochs) except -1:
    """Fill in a table for a group, with the places of its fields in these records.

    ``roots`` are the numbers of the nodes of computed fields.
    """
    cdef uint32_t i
    table.where, table.nbounds = where, -1
    table.last, table.positive, table.valued = group.last, group.positive, group.value is not None
    table.nkeys = len(group.keys)
    table.keys = <Place*>calloc(max(1, table.nkeys), sizeof(Place))
    if table.keys == NULL:
        raise MemoryError
    for i, name in enumerate(group.keys):
        _place_used(shape, name, roots, &table.keys[i])
    table.nthreads, table.epochs = len(group.cgroups), epochs
    table.threads = <uint32_t*>calloc(max(1, table.nthreads), sizeof(uint32_t))
    if table.threads == NULL:
        raise MemoryError
    for i, index in enumerate(group.cgroups):
        table.threads[i] = index
    if group.value is not None:
        _place_used(shape, group.value, roots, &table.value)
    if group.bounds is not None:
        table.nbounds = len(group.bounds)
        table.bounds = <Num*>calloc(max(1, table.nbounds), sizeof(Num))
        if table.bounds == NULL:
            raise MemoryError
        for i, bound in enumerate(group.bounds):
            table.bounds[i] = _num(bound)
    if group.exponential is not None:
        finer = group.exponential.bounds
        table.nfiner = len(finer)
        table.finer = <uint64_t*>calloc(max(1, table.nfiner), 8)
        if table.finer == NULL:
            raise MemoryError
        for i, bound in enumerate(finer):
            table.finer[i] = bound
        for i in range(1, 65):
            table.starts[i] = bisect_left(finer, <uint64_t>1 << (i - 1))
        table.starts[65] = table.nfiner - 1
    return 0


cdef int _place_used(shape, str name, roots, Place* out) except -1:
    """Fill in the place of a field, which may be a computed one."""
    if name not in roots:
        return _place_named(shape, name, out)
    memset(out, 0, sizeof(Place))
    out.kind, out.offset = COMPUTED, roots[name]
    return 0


cdef void _free_table(Table* table) noexcept:
    free(table.keys)
    free(table.threads)
    free(table.bounds)
    free(table.finer)
    free(table.index)
    free(table.cells)
    free(table.buckets)
    free(table.arena)


def _resolver(shape, name, names):
    """Return the function that turns a raw key into what a record would hold, None if both are the same."""
    field = None if isinstance(shape, Halves) else _field(shape, name)
    if field is None and name == "symbol":
        symbol = shape.layout.symbol.encode()
        return lambda value: symbol
    if isinstance(shape, Halves):
        holder = shape.holder(name)
        return None if holder is None or name == "duration" else _resolver(holder, name, names)
    if field is None and name in ("pid", "common_tgid"):
        return names.tgid
    if name == PROCESS:
        return lambda tid: names.tgid(tid) or tid
    if field is None:
        return names.caller if name == "caller" and shape.caller is not None else None
    if field.kind == "comm":
        return names.comm
    if field.kind == "program":
        return program_name
    if field.kind == "symbol":
        return names.symbol
    if field.kind == "char":
        return lambda value: bytes([value])
    return None
