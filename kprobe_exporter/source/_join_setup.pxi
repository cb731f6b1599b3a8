"""The part of the page parser that knows which events are halves of what, and what is added up of the joined."""


cdef uint64_t _share(share) except? 0:
    return min(LARGEST, round(share * LARGEST))


cdef int _fill_nesting(Slot* slot, join, choice) except -1:
    """Fill in how the calls of a join enclose others."""
    cdef Nesting* nesting = &slot.nesting
    if choice is None:
        return 0
    nesting.encloses, nesting.by_stack, nesting.layout_id = choice.nested, slot.by_stack, join.layout.layout_id
    nesting.system_call, nesting.spans = choice.system_call, choice.signal == "span"
    nesting.in_kernel = choice.system_call or (slot.by_stack and not slot.user)
    nesting.share = _share(choice.share)
    return 0


cdef class JoinSetup(Recording):
    """Holds the joins: their open halves, the queues of events, and what becomes of a joined record."""

    cdef uint64_t _unparsed
    cdef object _shapes, _batch, _gaps
    cdef Open* _open  # NULL without joins, events about threads, and single records that are queued
    cdef Way* _ways
    cdef uint32_t* _first_ways
    cdef uint32_t _nsingle
    cdef Queue* _queues
    cdef uint32_t* _heap
    cdef uint32_t _nqueues, _queue_at
    cdef uint64_t _queued, _joined_queued, _arrivals
    cdef uint64_t _random
    cdef object _queue_of, _join_ids, _join_identities, _way_ids, _makes, _orphans, _exported
    cdef int32_t _stack_id, _user_id
    cdef uint32_t _stack_offset, _user_offset, _user_process

    cdef int _find_queue(self, int cpu) except -1:
        """Find the queue of a CPU, or make it."""
        cdef void* more
        if cpu not in self._queue_of:
            more = realloc(self._queues, (self._nqueues + 1) * sizeof(Queue))
            if more == NULL:
                raise MemoryError
            self._queues = <Queue*>more
            more = realloc(self._heap, (self._nqueues + 1) * sizeof(uint32_t))
            if more == NULL:
                raise MemoryError
            self._heap = <uint32_t*>more
            memset(&self._queues[self._nqueues], 0, sizeof(Queue))
            self._queues[self._nqueues].cpu, self._queues[self._nqueues].owners = cpu, AS_RECORD
            self._queue_of[cpu] = self._nqueues
            self._nqueues += 1
        self._queue_at = self._queue_of[cpu]
        return 0

    cdef int _make_chooser(self, nodes, recipe, shape, Chooser* out) except -1:
        """Fill in which records of a recipe are exported. Of spans, whole traces are sampled instead."""
        choice = recipe.choice
        out.chooses, out.where = choice is not None, -1
        if choice is not None:
            if choice.where is not None:
                out.where = _add_nodes(nodes, [choice.where.condition], shape)
            out.share = _share(1 if choice.signal == "span" else choice.share)
            out.export = self._exported.index(shape.layout.layout_id)
        return 0

    cdef inline bint _chosen(self, const Chooser* chooser, const Rec* rec) noexcept nogil:
        """Whether a record is exported by its filter and its share, which is drawn from a secret seed."""
        if chooser.where >= 0 and _meets(self._nodes, chooser.where, rec) != YES:
            return False
        return chooser.share == <uint64_t>0 - 1 or _next_random(&self._random) <= chooser.share

    cdef int _add_ways(self, nodes, tables, joins, queued, most) except -1:
        """Append the tables and conditions of joined records, one set for each sort of first half.

        ``queued`` are the recipes of single records that wait for those of other CPUs, by the kind's number.
        """
        cdef uint32_t slot, at = 0
        cdef Way* way
        shapes = {shape.layout.layout_id: shape for shape in self._shapes}
        self._queue_of, self._orphans = {}, Counter()
        self._join_ids, self._join_identities, self._way_ids, self._makes = [], [], [], []
        if not joins.recipes and not joins.threads and not queued and not self._exported:
            return 0
        self._open = _new_open(len(joins.recipes), int.from_bytes(os.urandom(8), "little"), most, DISTANCE)
        self._first_ways = <uint32_t*>calloc(max(1, len(joins.recipes)), sizeof(uint32_t))
        ways = len(queued) + sum([len(one.join.begins) for one in joins.recipes.values()])
        self._ways = <Way*>calloc(max(1, ways), sizeof(Way))
        if self._open == NULL or self._first_ways == NULL or self._ways == NULL:
            raise MemoryError
        for slot, (join, recipe, make) in enumerate(joins.recipes.values()):
            self._first_ways[slot] = at
            halves = [shapes.get(layout.layout_id) for layout in (*join.begins, join.end)]
            self._join_ids.append(join.layout.layout_id)
            self._join_identities.append((join, [half and half._replace(id=0) for half in halves]))
            end = halves.pop()
            for first in halves:
                way = &self._ways[at]
                way.residual_filter, way.first, way.slot = -1, len(tables), slot
                self._way_ids.append(join.layout.layout_id)
                self._makes.append(make)
                at += 1
                if first is not None:
                    self._kinds[<uint32_t>self._numbers[first.layout.layout_id]].part.only = (
                        -1 if join.only is None else _add_nodes(nodes, [join.only.condition], first)
                    )
                if first is None or end is None:
                    continue  # such a record does not come
                shape = Halves(join.layout, first, end)
                if recipe.residual_filter is not None:
                    way.residual_filter = _add_nodes(nodes, [recipe.residual_filter.condition], shape)
                    way.filtered = True
                way.kinds = [self._numbers[one.layout.layout_id] for one in (first, end)]
                self._make_chooser(nodes, recipe, shape, &way.chooser)
                way.tables = len(recipe.groups)
                self._add_tables(nodes, tables, recipe, shape)
        for number, recipe in queued.items():
            way = &self._ways[at]
            way.residual_filter, way.first, way.tables = -1, len(tables), len(recipe.groups)
            way.filtered = recipe.residual_filter is not None
            self._kinds[<uint32_t>number].part.role, self._kinds[<uint32_t>number].part.slot = SINGLE, at
            self._kinds[<uint32_t>number].part.stacks = _awaited(recipe, self._shapes[number].layout)
            self._way_ids.append(self._layout_ids[number])
            self._add_tables(nodes, tables, recipe, self._shapes[number])
            at += 1
        return 0

    cdef int _make_parts(self, joins) except -1:
        """Fill in what each shape is for the joins."""
        cdef int32_t number
        cdef uint32_t slot
        cdef Part* part
        for slot, wanted in enumerate(joins.recipes.values()):
            join = wanted.join
            self._open.slots[slot].by_stack = join.by == "stack"
            self._open.slots[slot].user = join.begins[0].user
            _fill_nesting(&self._open.slots[slot], join, wanted.recipe.choice)
            own = any([begin.place("tid") is not None for begin in join.begins])
            for way, layout in enumerate((*join.begins, join.end)):
                if layout.layout_id in self._numbers:
                    number = self._numbers[layout.layout_id]
                    part = &self._kinds[number].part
                    part.role, part.slot, part.way = (END if layout is join.end else BEGIN), slot, way
                    if part.role == BEGIN:
                        part.stacks = _awaited(wanted.recipe, layout)
                    part.thread_key = join.key.index("tid") if "tid" in join.key and not own else -1
                    self._make_keys(part, join, self._shapes[number])
        for layout_id, event in joins.threads.items():
            if layout_id in self._numbers:
                number = self._numbers[layout_id]
                part = &self._kinds[number].part
                part.role = {
                    "started": STARTED, "executed": EXECUTED, "exited": EXITED,
                    "placed": PLACED, "moved": MOVED,
                }[event.kind]
                part.first.kind = NOTHING
                for name, at in zip(event.fields, range(2)):
                    _place_named(self._shapes[number], name, &part.second if at else &part.first)
        return 0

    cdef int _make_keys(self, Part* part, join, shape) except -1:
        """Fill in the places by which a half is paired."""
        cdef uint32_t i
        if join.by == "stack":
            return _place_named(shape, STACK_POINTER, &part.first)
        part.nkeys = len(join.key)
        part.keys = <Place*>calloc(max(1, part.nkeys), sizeof(Place))
        if part.keys == NULL:
            raise MemoryError
        for i, name in enumerate(join.key):
            own = shape.layout.place(name) is not None
            if own:
                _place_own(shape, name, &part.keys[i])
            else:
                _place_named(shape, name, &part.keys[i])
        return 0
