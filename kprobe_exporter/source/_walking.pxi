"""The part of the page parser that walks a page: from its bytes to each event, and what becomes of it."""

cdef enum:  # ring_buffer_type of include/linux/ring_buffer.h; pages.py has the same names
    LONG = 0
    PADDING = 29
    TIME_EXTEND = 30
    TIME_STAMP = 31
    STAMP_BITS = 59

cdef uint32_t MISSED = 1u << 31, COUNTED = 1u << 30

cdef enum:  # trace_flag_type of include/linux/trace_events.h
    FLAG_HARDIRQ = 0x08
    FLAG_SOFTIRQ = 0x10
    FLAG_NMI = 0x40

cdef enum:
    TID_WORDS = 16  # of 64 bits


cdef inline bint _in_interrupt(uint8_t flags) noexcept nogil:
    """Return whether an event is of an interrupt, by its ``common_flags``, as pages.in_interrupt does."""
    return flags & FLAG_SOFTIRQ or flags & (FLAG_HARDIRQ | FLAG_NMI) == FLAG_HARDIRQ


cdef class Walking(Building):
    """Walks pages, and adds up, queues or keeps each event by its kind."""

    cdef int32_t* _by_id
    cdef uint32_t _ids
    cdef uint64_t _lost
    cdef uint32_t _commit, _commit_size, _data, _page, _low
    cdef readonly uint64_t time
    cdef int32_t* _own_threads  # the ids of this process's threads
    cdef uint32_t _nown_threads
    cdef uint64_t[TID_WORDS] _own_bits  # the bit of each of these ids, by its lowest bits

    def set_own_threads(self, tids):
        """Discard from now on what these threads do; what interrupts do while such a thread runs is kept."""
        cdef int32_t* made = <int32_t*>realloc(self._own_threads, max(1, len(tids)) * sizeof(int32_t))
        cdef int32_t tid
        if made == NULL:
            raise MemoryError
        self._own_threads, self._nown_threads = made, 0
        memset(self._own_bits, 0, sizeof(self._own_bits))
        for tid in tids:
            self._own_threads[self._nown_threads] = tid
            self._nown_threads += 1
            self._own_bits[<uint32_t>tid // 64 % TID_WORDS] |= 1ull << (<uint32_t>tid % 64)

    cdef inline bint _is_own(self, const uint8_t* start, int32_t tid) noexcept nogil:
        """Return whether an event is the activity of a thread of this process."""
        cdef uint32_t i
        if not self._own_bits[<uint32_t>tid // 64 % TID_WORDS] >> (<uint32_t>tid % 64) & 1:
            return False
        for i in range(self._nown_threads):
            if self._own_threads[i] == tid:
                return not _in_interrupt(start[2])
        return False

    cdef int _begin(self, int cpu) except -1:
        """Prepare for pages of this CPU."""
        self._last = self._lasts.get(cpu, 0)
        self._gap = cpu in self._gaps
        self._followed_as = AS_RECORD if cpu in self._followed else 0
        self._nlosses = 0
        if self._open != NULL:
            self._find_queue(cpu)
            self._followed_as |= self._queues[self._queue_at].followed
            self._queues[self._queue_at].turns += 1
        return 0

    cdef bint _many(self) noexcept nogil:
        cdef uint32_t i
        for i in range(self._nsingle):
            if self._tables[i].used > MANY_CELLS or self._tables[i].arena_used > MANY_BYTES:
                return True
        return False

    cdef int _walk_page(self, const uint8_t* page, size_t length, int cpu) noexcept nogil:
        """Walk one page of ``length`` bytes; behind a damage, the rest of its events is missing."""
        cdef int state = self._walk(page, length, cpu)
        if state == DAMAGED:
            self._unparsed += 1
            self._gap = True
        return state

    cdef inline int _walk(self, const uint8_t* page, size_t length, int cpu) noexcept nogil:
        """Walk one page. Any byte of it may have any value."""
        cdef uint32_t commit, word, next_word, delta, size, head
        cdef uint8_t kind
        cdef size_t at = self._data, end, start
        cdef uint64_t time, stamp
        cdef int state
        if length < self._data:
            return DAMAGED
        time = _u64(page)
        commit = _u32(page + self._low)
        end = at + (commit & ~(MISSED | COUNTED))
        if end > length or end > self._page:
            return DAMAGED
        if commit & MISSED:
            if not self._push(NULL, 0, LOST, 0):
                return NO_MEMORY
            self._gap, self._followed_as = True, 0
            if self._open != NULL:
                self._queues[self._queue_at].wanted = 0
            if commit & COUNTED and end + self._commit_size <= length:
                self._lost += _u64(page + end) if self._commit_size == 8 else _u32(page + end)
        while at < end:
            if at + 4 > end:
                return DAMAGED
            word = _u32(page + at)
            if LITTLE:
                kind, delta = word & 31, word >> 5
            else:
                kind, delta = word >> 27, word & 0x7FFFFFF
            if kind == PADDING and delta == 0:
                break
            if kind == LONG or kind >= PADDING:
                if at + 8 > end:
                    return DAMAGED
                next_word = _u32(page + at + 4)
            if kind >= TIME_EXTEND:
                stamp = (<uint64_t>next_word << 27) + delta
                at += 8
                if kind == TIME_EXTEND:
                    time += stamp
                else:
                    stamp |= time >> STAMP_BITS << STAMP_BITS
                    time = stamp if stamp >= time else stamp + (1ull << STAMP_BITS)
                self.time = time
                continue
            time += delta
            self.time = time
            if kind == LONG or kind == PADDING:
                head = 8 if kind == LONG else 4
                if kind == LONG and next_word < 4:
                    return DAMAGED
                size = next_word - 4 if kind == LONG else next_word
            else:
                head, size = 4, 4 * <uint32_t>kind
            start = at + head
            if start > end or size > end - start:
                return DAMAGED
            at = start + ((<size_t>size + 3) & ~<size_t>3)
            if kind != PADDING:
                state = self._event(page + start, size, time, cpu)
                if state != WALKED:
                    return state
                if self._gap:  # at most once a page: a gap is at its beginning, or the page before was damaged
                    self._gap = False
                    self._losses[self._nlosses] = Between(self._last, time)
                    self._nlosses += 1
                self._last = time
        return WALKED

    cdef inline int _event(self, const uint8_t* start, uint32_t length, uint64_t time, int cpu) noexcept nogil:
        cdef uint16_t number
        cdef int32_t at
        cdef uint32_t i
        cdef Rec rec
        cdef Kind* kind
        cdef uint8_t followed = self._followed_as, follows = 0, owners = 0
        cdef bint own
        if length < 8:
            return DAMAGED
        memcpy(&number, start, 2)
        at = self._by_id[number] if number < self._ids else -1
        if at < 0 and number == self._stack_id:
            owners = AS_RECORD if self._open == NULL else self._queues[self._queue_at].owners
            if owners & QUEUED and not self._queue_stack(OF_KERNEL, start, length):
                return NO_MEMORY
            if owners & AS_RECORD and not self._push(start, length, STACK, time):
                return NO_MEMORY
            return WALKED
        self._followed_as = 0
        if at < 0:
            if number != self._user_id:
                self._unparsed += 1
            elif followed:
                if length < self._user_process + 4:
                    return DAMAGED
                if followed & QUEUED and not self._queue_stack(OF_PROGRAM, start, length):
                    return NO_MEMORY
                if followed & AS_RECORD and not self._push(start, length, USER_STACK, time):
                    return NO_MEMORY
            return WALKED
        rec.start, rec.length, rec.time, rec.cpu, rec.nodes = start, length, time, cpu, self._nodes
        rec.second, rec.elapsed, rec.stack, rec.stack_length = NULL, 0, NULL, 0
        memcpy(&rec.tid, start + 4, 4)
        own = self._is_own(start, rec.tid)
        while at >= 0:
            kind = &self._kinds[at]
            if length < kind.size:
                return DAMAGED
            if kind.of_threads != (cpu >= OF_THREADS):
                at = kind.next
                continue
            if kind.part.stacks:  # they come also if it does not pass
                if not (owners | follows) & QUEUED:
                    _await_no_stack(&self._queues[self._queue_at])
                owners |= QUEUED if kind.part.stacks & OF_KERNEL else 0
                follows |= QUEUED if kind.part.stacks & OF_PROGRAM else 0
            if own and not kind.of_all_threads:
                if kind.part.role == BEGIN:  # it is a hit too
                    self._open.slots[kind.part.slot].begun += 1
                else:
                    kind.own += 1
            elif kind.part.role:
                if kind.residual_filter >= 0 and _meets(self._nodes, kind.residual_filter, &rec) != YES:
                    if kind.part.role == BEGIN:  # it is a hit too
                        self._open.slots[kind.part.slot].begun += 1
                    elif kind.part.role == SINGLE:
                        self._ways[kind.part.slot].arrived += 1
                elif not self._enqueue_half(&rec, at):
                    return NO_MEMORY
                elif kind.part.role >= STARTED and not self._push(start, length, at, time):
                    return NO_MEMORY
            elif not kind.tallied:
                if kind.residual_filter >= 0:
                    kind.arrived += 1
                    if _meets(self._nodes, kind.residual_filter, &rec) != YES:
                        at = kind.next
                        continue
                    kind.passed += 1
                if not self._push(start, length, at, time):
                    return NO_MEMORY
                if kind.stacks:
                    owners |= AS_RECORD if kind.stacks & OF_KERNEL else 0
                    follows |= AS_RECORD if kind.stacks & OF_PROGRAM else 0
            else:
                kind.arrived += 1
                if kind.residual_filter < 0 or _meets(self._nodes, kind.residual_filter, &rec) == YES:
                    kind.passed += 1
                    for i in range(kind.first, kind.first + kind.tables):
                        if not _tally(&self._tables[i], self._nodes, &rec, self._scratch, self._seed):
                            return NO_MEMORY
                    if kind.chooser.chooses and self._chosen(&kind.chooser, &rec):
                        if not self._enqueue_half(&rec, at):
                            return NO_MEMORY
            at = kind.next
        self._followed_as = follows
        if owners and self._open != NULL:
            self._queues[self._queue_at].owners = owners
            if not owners & QUEUED:
                _await_no_stack(&self._queues[self._queue_at])
        return WALKED
