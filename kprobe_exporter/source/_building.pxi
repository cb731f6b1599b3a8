"""The part of the page parser that makes records and stacks of what the walk has found in some pages."""

cdef struct Between:
    uint64_t start
    uint64_t end


cdef class Building(Joining):
    """Keeps what the walk finds to deliver, and makes records, stacks and losses of it, while the pages are
    still in the buffer."""

    cdef Pending* _pending
    cdef uint32_t _pending_room
    cdef uint32_t _npending
    cdef uint64_t _last
    cdef bint _gap
    cdef Between[MOST_PAGES] _losses
    cdef uint32_t _nlosses
    cdef uint8_t _followed_as  # who gets a program's next stack, as in a queue
    cdef object _stacked, _followed, _lasts, _tests

    cdef inline bint _push(self, const uint8_t* start, uint32_t length, int32_t kind, uint64_t time) noexcept nogil:
        cdef Pending* more
        if self._npending == self._pending_room:
            more = <Pending*>realloc(self._pending, (2 * self._pending_room + 256) * sizeof(Pending))
            if more == NULL:
                return False
            self._pending = more
            self._pending_room = 2 * self._pending_room + 256
        more = &self._pending[self._npending]
        more.start, more.length, more.kind, more.time = start, length, kind, time
        self._npending += 1
        return True

    cdef int _build(self, int cpu) except -1:
        """Make the losses and records of the last pages, whose bytes are still in the buffer."""
        cdef uint32_t i, count = self._npending
        cdef Pending* one
        cdef const uint8_t* before = NULL
        cdef const uint8_t* begun = NULL
        self._npending = 0
        self._lasts[cpu] = self._last
        if self._gap:
            self._gaps.add(cpu)
        else:
            self._gaps.discard(cpu)
        for i in range(self._nlosses):
            self._batch.losses.append(loss(cpu, self._losses[i].start, self._losses[i].end))
        records = self._batch.records
        for i in range(count):
            one = &self._pending[i]
            if one.kind == LOST:
                self._stacked.pop(cpu, None)
                self._followed.pop(cpu, None)
            elif one.kind == STACK:
                self._stack(one, cpu)
            elif one.kind == USER_STACK:
                self._user_stack(one, cpu)
            else:
                if self._kinds[one.kind].stacks & OF_PROGRAM and one.start != begun:
                    self._followed.pop(cpu, None)
                    begun = one.start
                record = self._record(one, cpu)
                test = self._tests[one.kind]
                if test is not None:
                    self._kinds[one.kind].arrived += 1
                    if not test(record):
                        continue
                    self._kinds[one.kind].passed += 1
                records.append(record)
                if self._kinds[one.kind].stacks & OF_KERNEL:
                    self._expect(self._stacked, record, one.start == before)
                    before = one.start
                if self._kinds[one.kind].stacks & OF_PROGRAM:
                    self._expect(self._followed, record, cpu in self._followed)
        if not self._followed_as & AS_RECORD:
            self._followed.pop(cpu, None)
        if self._open != NULL:
            self._queues[self._queue_at].followed = self._followed_as & QUEUED
        return 0

    cdef object _expect(self, waiting, record, bint same):
        """Note that a stack may follow, for all records of this event. Two events may have the same time."""
        _, _, cpu, tid, *_ = record
        if same:
            waiting[cpu][1].append(record)
        else:
            waiting[cpu] = (tid, [record])

    cdef object _owners_of(self, waiting, const Pending* one, int cpu):
        """Return the records that wait for this stack on its CPU, None if they are another thread's."""
        cdef int32_t tid
        memcpy(&tid, one.start + 4, 4)
        expected = waiting.pop(cpu, None)
        return expected[1] if expected is not None and expected[0] == tid else None

    cdef object _user_stack(self, const Pending* one, int cpu):
        """Give a program's stack to the records right before it: every event of the instance has one."""
        owners = self._owners_of(self._followed, one, cpu)
        if owners is not None:
            process = _u32(one.start + self._user_process)
            addresses = _addresses_of(one, self._user_offset, OF_PROGRAM)
            self._batch.user_stacks += [(record, process, addresses) for record in owners]

    cdef object _stack(self, const Pending* one, int cpu):
        """Give the kernel's stack to the latest records that have one."""
        owners = self._owners_of(self._stacked, one, cpu)
        if owners is not None:
            addresses = _addresses_of(one, self._stack_offset, OF_KERNEL)
            frames = tuple([self._frame(address) for address in addresses])
            self._batch.stacks += [(record, frames) for record in owners]


cdef object _addresses_of(const Pending* one, uint32_t first, uint8_t of):
    """Return the addresses of a stack's record."""
    first = min(first, one.length)
    return _addresses(one.start + first, _end_of_stack(one.start, first, one.length, of) - first)
