"""The part of the page parser that joins halves, and takes single records in the order of time."""

cdef uint64_t MOST_QUEUED = 1 << 18
"""Halves that may wait for those of other CPUs. Beyond it, halves may be joined out of order."""


cdef class Joining(Exporting):
    """Joins the halves of calls and pairs that the parser queues, and adds up what they become.

    Single records with the cgroup of a thread as a label are queued too: where the thread was then is known
    only in the order of time. So are those whose stacks are counted, until their stack has come.
    """

    def join(self, batch, until=None):
        """Join the halves that were read, up to the moment ``until``; all of them if it is None.

        Nothing that spans a loss of ``batch`` is joined from now on, and the sums go into it. Without a batch,
        halves are joined and the sums stay: the caller knows that no event was lost.
        """
        cdef uint64_t limit = NEVER
        cdef int state
        if self._open == NULL:
            if batch is not None:
                self._joined_sums(batch)
            return
        if batch is not None:
            for lost in batch.losses:
                _tell(self._open, lost.start, lost.end)
        if until is not None and self._queued <= MOST_QUEUED:
            limit = until
        with nogil:
            state = self._merge(limit)
        self._joined_queued = self._queued
        if state == NO_MEMORY:
            raise MemoryError
        if batch is not None:
            _shrink(self._queues, self._nqueues)
            self._joined_sums(batch)

    def drop(self, layout_id):
        """Count the open first halves of the join with this joined layout as unpaired."""
        if layout_id not in self._join_ids:
            return
        cdef uint32_t slot = self._join_ids.index(layout_id)
        cdef OpenList* one = self._open.oldest
        cdef OpenList* following
        while one != NULL:
            following = one.newer
            if one.slot == slot:
                _drop(self._open, one)
            one = following

    @property
    def open(self):
        """The number of first halves that wait for their second half."""
        return 0 if self._open == NULL else self._open.number

    @property
    def queued(self):
        """The number of halves that were read since the last call of ``join``."""
        return self._queued - self._joined_queued

    @property
    def has_losses(self):
        """Whether ``take`` would return losses."""
        return bool(self._batch.losses or self._gaps)

    cdef bint _enqueue_half(self, const Rec* rec, int32_t kind) noexcept nogil:
        """Queue a half, or an event about threads; False if there is no memory."""
        if not _enqueue(
            &self._queues[self._queue_at], rec, kind, self._arrivals, self._kinds[kind].part.stacks
        ):
            return False
        self._arrivals += 1
        self._queued += 1
        return True

    cdef int _merge(self, uint64_t limit) noexcept nogil:
        """Join the queued halves that are not later than ``limit``; then end those of threads that ended.

        It stops at one whose stack may still come, unless there is no limit.
        """
        cdef uint32_t number = _heapify(self._queues, self._nqueues, self._heap)
        cdef uint64_t reached = limit
        cdef Queue* queue
        cdef const Queued* one
        while number:
            queue = &self._queues[self._heap[0]]
            one = _head(queue)
            if one.time > limit or (limit != NEVER and _may_be_completed(queue)):
                reached = min(limit, one.time)
                break
            _dequeue(queue)  # the bytes stay where they are until the next half is queued
            self._queued -= 1
            if not self._settle(one, queue.cpu):
                return NO_MEMORY
            if queue.tail == 0:
                number -= 1
                self._heap[0] = self._heap[number]
            if number > 1:
                _sift(self._queues, self._heap, number, 0)
        _apply_ends(self._open)
        _count_broken(self._open, reached)
        return WALKED

    cdef inline bint _settle(self, const Queued* one, int32_t cpu) noexcept nogil:
        """Join a half, or apply an event about threads; False if there is no memory."""
        cdef const Kind* kind
        cdef const Part* part
        cdef OpenHalf* half
        cdef Rec rec
        if one.kind < 0:  # its layout was removed meanwhile
            self._unparsed += one.kind == REMOVED_HALF
            return True
        kind = &self._kinds[one.kind]
        part = &kind.part
        rec.start, rec.length, rec.time = <const uint8_t*>one + sizeof(Queued), one.length, one.time
        rec.cpu, rec.tid, rec.nodes, rec.second, rec.elapsed = cpu, one.tid, self._nodes, NULL, 0
        rec.stack, rec.stack_length = NULL, 0
        if one.complete:
            rec.stack, rec.stack_length = _stack_bytes(<Queued*>one), one.stack_length
        if part.role == BEGIN:
            return _begin_half(self._open, part, &rec, self._scratch)
        if part.role == SINGLE:
            self._ways[part.slot].arrived += 1
            if not self._count(&self._ways[part.slot], &rec):
                return False
            if kind.chooser.chooses and self._chosen(&kind.chooser, &rec):
                return self._export_single(kind, one.kind, &rec)
            return True
        if part.role == NO_PART:  # it was counted and chosen before it was queued
            return not kind.chooser.chooses or self._export_single(kind, one.kind, &rec)
        if part.role >= PLACED:
            self._change_cgroup(part, &rec)
            return True
        if part.role != END:
            return _thread_event(self._open, part, &rec, self._scratch)
        half = _end_half(self._open, part, &rec, self._scratch)
        if half == NULL:
            return True
        return self._joined(&self._ways[self._first_ways[part.slot] + half.way], half, &rec)

    cdef inline bint _joined(self, Way* way, OpenHalf* half, const Rec* second) noexcept nogil:
        """Add up and export a joined record, and free its first half; False if there is no memory."""
        cdef bint done = True, passed
        cdef Rec rec
        rec.start, rec.length, rec.time = _half_bytes(half), half.length - half.stack_length, half.time
        rec.cpu, rec.tid, rec.nodes = half.cpu, half.tid, self._nodes
        rec.stack_length = half.stack_length
        rec.stack = rec.start + rec.length if half.stack_length else NULL
        rec.second, rec.elapsed = second, second.time - half.time
        way.arrived += 1
        passed = way.residual_filter < 0 or _meets(self._nodes, way.residual_filter, &rec) == YES
        if passed:
            done = self._count(way, &rec)
        if way.chooser.chooses:
            done = done and self._export_joined(way, half, &rec, passed)
        _free_half(self._open, half)
        return done

    cdef inline bint _count(self, Way* way, const Rec* rec) noexcept nogil:
        """Add up a record that passes; False if there is no memory."""
        cdef uint32_t i
        way.passed += 1
        for i in range(way.first, way.first + way.tables):
            if not _tally(&self._tables[i], self._nodes, rec, self._scratch, self._seed):
                return False
        return True

    cdef inline void _change_cgroup(self, const Part* part, const Rec* rec) noexcept nogil:
        """Keep apart what comes before and after an event about cgroups."""
        cdef Num tid
        if part.role == MOVED:
            # An exec is a move if the thread takes over the id of its process's first thread.
            if not _number(&part.first, rec, &tid) or tid.lo != <uint64_t><int64_t>rec.tid:
                self._epochs.moves += 1
        elif _number(&part.first, rec, &tid):
            self._epochs.placed[tid.lo & (GENERATIONS - 1)] += 1

    cdef int _joined_sums(self, batch) except -1:
        """Move the sums of the joins to the batch."""
        cdef uint32_t i
        cdef Slot* slot
        cdef Way* way
        for i, layout_id in enumerate(self._join_ids):
            slot = &self._open.slots[i]
            if slot.begun:
                batch.begun[layout_id] = batch.begun.get(layout_id, 0) + slot.begun
            if slot.unpaired:
                batch.unpaired[layout_id] += slot.unpaired
            slot.begun = slot.unpaired = 0
        batch.unpaired.update(self._orphans)
        self._orphans.clear()
        for i, layout_id in enumerate(self._way_ids):
            way = &self._ways[i]
            if way.arrived:
                batch.arrived[layout_id] = batch.arrived.get(layout_id, 0) + way.arrived
                if way.filtered:
                    batch.passed[layout_id] = batch.passed.get(layout_id, 0) + way.passed
            way.arrived = way.passed = 0
        for i in range(self._nsingle, self._ntables):
            self._empty(&self._tables[i], i, batch)
        self._deliver_chosen(batch)
        return 0

    cdef int _continue_joins(self, Joining before) except -1:
        """Take over the halves of another parser; those of joins that are gone or differ are unpaired."""
        cdef uint32_t i, slot
        cdef OpenList* one
        cdef OpenList* following
        cdef Slot* slots
        cdef Nesting nesting
        self._orphans = before._orphans
        self._continue_exports(before)
        if before._open == NULL:
            return 0
        kept = {}
        for i, identity in enumerate(before._join_identities):
            if identity in self._join_identities:
                kept[i] = self._join_identities.index(identity)
        one = before._open.oldest
        while one != NULL:
            following = one.newer
            if one.slot not in kept:
                _drop(before._open, one)
            one = following
        for i, layout_id in enumerate(before._join_ids):
            if i not in kept and before._open.slots[i].unpaired:
                self._orphans[layout_id] += before._open.slots[i].unpaired
        if self._open == NULL:
            self._unparsed += before._queued_halves()
            return 0
        for i, slot in kept.items():
            nesting = self._open.slots[slot].nesting
            self._open.slots[slot] = before._open.slots[i]
            self._open.slots[slot].nesting = nesting
        slots = before._open.slots
        before._open.slots, before._open.nslots = self._open.slots, self._open.nslots
        self._open.slots, self._open.nslots = slots, len(before._join_ids)
        self._open, before._open = before._open, self._open
        if self._open.nbuckets:
            memset(self._open.buckets, 0, self._open.nbuckets * sizeof(OpenList*))
            memset(self._open.threads, 0, self._open.nbuckets * sizeof(OpenList*))
        one = self._open.oldest
        while one != NULL:
            one.slot = kept[one.slot]
            one.hash = _hash(_list_key(one), one.length, self._open.seed ^ one.slot)
            _link(self._open, one)
            one = one.newer
        self._queues, before._queues = before._queues, self._queues
        self._heap, before._heap = before._heap, self._heap
        self._nqueues, before._nqueues = before._nqueues, self._nqueues
        self._queued, before._queued = before._queued, self._queued
        self._queue_of, before._queue_of = before._queue_of, self._queue_of
        self._arrivals, self._joined_queued = before._arrivals, before._joined_queued
        self._rename_queued(before)
        return 0

    cdef bint _queue_stack(self, uint8_t of, const uint8_t* start, uint32_t length) noexcept nogil:
        """Give a stack to the half that waits for it; False if there is no memory."""
        cdef uint32_t first = min(length, self._user_offset if of == OF_PROGRAM else self._stack_offset)
        cdef uint32_t process = _u32(start + self._user_process) if of == OF_PROGRAM else 0
        cdef int32_t tid
        memcpy(&tid, start + 4, 4)
        return _add_stack(
            &self._queues[self._queue_at], of, tid, process,
            start + first, _end_of_stack(start, first, length, of) - first,
        )

    cdef uint64_t _queued_halves(self) noexcept:
        """Return how many halves are queued, without the events about threads."""
        cdef uint64_t number = 0
        cdef uint32_t i
        cdef size_t at
        cdef const Queued* one
        for i in range(self._nqueues):
            at = self._queues[i].head
            while at < self._queues[i].tail:
                one = <const Queued*>(self._queues[i].bytes + at)
                number += one.kind == REMOVED_HALF or (one.kind >= 0 and self._kinds[one.kind].part.role < STARTED)
                at += _queued_size(one)
        return number

    cdef int _rename_queued(self, Joining before) except -1:
        """Give the queued halves of another parser the numbers that their kinds have here."""
        cdef uint32_t i
        cdef int32_t number
        cdef size_t at
        cdef Queued* one
        numbers = []
        for i in range(before._nkinds):
            number = self._numbers.get(before._layout_ids[i], -1)
            if (
                number < 0
                or self._shapes[number]._replace(id=0) != before._shapes[i]._replace(id=0)
                or self._kinds[number].part.role != before._kinds[i].part.role
            ):
                number = REMOVED_HALF if before._kinds[i].part.role < STARTED else REMOVED
            numbers.append(number)
        for i in range(self._nqueues):
            at = self._queues[i].head
            while at < self._queues[i].tail:
                one = <Queued*>(self._queues[i].bytes + at)
                if one.kind >= 0:
                    one.kind = numbers[one.kind]
                at += _queued_size(one)
        return 0
