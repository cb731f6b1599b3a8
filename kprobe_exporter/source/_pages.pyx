# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Turns ring-buffer pages into records and tallies, compiled: pages.py with the hot path in C.

The one rule of this file: whatever a page holds, nothing outside of it is read. ``_walk_page`` checks each
record against the page's end, ``size`` of its shape against the record, and ``_text`` (_record.pxi) each
string against the record. A half that waits to be joined is a copy of its whole record. The walk costs about
10 ns a record, and 15 ns for each metric.
"""

import sys

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SetItem
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset
from posix.unistd cimport read

import os
from bisect import bisect_left
from collections import Counter
from math import ceil, floor

from kprobe_exporter.model.values import LOWEST_ADDRESS as _LOWEST_ADDRESS, MAX_ERRNO as _MAX_ERRNO
from kprobe_exporter.model.record_layout import StackLayouts
from kprobe_exporter.model.records import STACK_POINTER, Batch, Emission
from kprobe_exporter.model.specs import PROCESS
from kprobe_exporter.model.condition import is_unsigned
from kprobe_exporter.model.aggregation import RECORDED_STACK, STACKS, Refused, Tally
from kprobe_exporter.model.joins import DISTANCE, Joins
from kprobe_exporter.model.stacks import StackTally, Weight
from kprobe_exporter.source.pages import frame, loss, close_gaps
from kprobe_exporter.source.values import program_name, reader

cdef enum:
    WALKED, DAMAGED, NO_MEMORY

cdef enum:
    MOST_PAGES = 64

cdef enum:  # ring_buffer_type of include/linux/ring_buffer.h; pages.py has the same names
    LONG = 0
    PADDING = 29
    TIME_EXTEND = 30
    TIME_STAMP = 31
    STAMP_BITS = 59

cdef extern from *:
    int __builtin_clzll(unsigned long long) nogil

cdef enum:
    STACK = -1
    LOST = -2
    USER_STACK = -3

cdef uint32_t MISSED = 1u << 31, COUNTED = 1u << 30
cdef bint LITTLE = sys.byteorder == "little"
include "_record.pxi"
include "_condition.pxi"
include "_keys.pxi"
include "_tally.pxi"
include "_lists.pxi"
include "_open.pxi"
include "_nested.pxi"
include "_join.pxi"
include "_ended.pxi"
include "_queue.pxi"
include "_summing.pxi"
include "_recording.pxi"
include "_join_setup.pxi"
include "_exporting.pxi"
include "_joining.pxi"
include "_building.pxi"


cdef class PageParser(Building):
    """Turns pages into batches of records and tallies, as pages.PageParser does into records.

    A layout with a recipe never becomes a record: its records are added up in C, by the raw values of
    each metric's labels, and ``take`` gives the sums. The halves of ``joins`` are queued: ``join`` joins them
    without the interpreter's lock, as aggregate/pairing.py joins records, and adds up what they become. At
    most ``most_open`` first halves are open. ``pull`` reads and walks without the interpreter's lock;
    ``feed`` does so for a page that the caller has read. Not thread-safe.
    """

    compiled = True

    cdef int32_t* _by_id
    cdef uint32_t _ids
    cdef uint32_t _nnodes
    cdef uint8_t* _buffer
    cdef uint64_t _lost
    cdef uint32_t _commit, _commit_size, _data, _page, _low
    cdef readonly uint64_t time

    def __cinit__(
        self, geometry, shapes, names, stacks=StackLayouts(), tgid=False, recipes=None, filters=None, joins=None, most_open=None
    ):
        self._commit, self._commit_size, self._data, self._page = geometry
        self._low = self._commit if LITTLE else self._commit + self._commit_size - 4
        self._seed = int.from_bytes(os.urandom(8), "little")
        self._random = int.from_bytes(os.urandom(8), "little") | 1
        kernel, user = stacks
        self._stack_id, self._stack_offset = kernel[:2] if kernel else (-1, 0)
        self._user_id, self._user_offset, self._user_process = user if user else (-1, 0, 0)
        self._shapes = list(shapes)
        self._layout_ids = [shape.layout.layout_id for shape in self._shapes]
        self._numbers = {layout_id: number for number, layout_id in enumerate(self._layout_ids)}
        self._names, self._wants_tgid = names, tgid
        self._readers = [[reader(field, names) for field in shape.fields] for shape in self._shapes]
        self._batch, self._stacked, self._followed = Batch(), {}, {}
        self._frames = {}
        self._lasts, self._gaps = {}, set()
        self._resolvers, self._owners = [], []
        recipes, filters, queued = recipes or {}, filters or {}, {}
        joins = Joins() if joins is None else joins
        self._make_exports(recipes, joins)
        self._tests = [None] * len(self._shapes)  # filters that only Python can evaluate
        nodes, tables = [], []
        self._nkinds = len(self._shapes)
        self._kinds = <Kind*>calloc(max(1, self._nkinds), sizeof(Kind))
        self._ids = max([shape.id for shape in self._shapes], default=0) + 1
        self._by_id = <int32_t*>malloc(self._ids * 4)
        self._buffer = <uint8_t*>malloc(<size_t>self._page * MOST_PAGES)
        if self._kinds == NULL or self._by_id == NULL or self._buffer == NULL:
            raise MemoryError
        memset(self._by_id, 0xFF, self._ids * 4)
        cdef int32_t number
        for number, shape in reversed(list(enumerate(self._shapes))):
            self._kinds[number].size = max(8, shape.size)
            self._kinds[number].next = self._by_id[<uint32_t>shape.id]
            self._by_id[<uint32_t>shape.id] = number
            self._kinds[number].residual_filter = -1
            self._kinds[number].stacks = _stacks_of(shape.layout)
            self._make_places(&self._kinds[number], shape)
            only = filters.get(shape.layout.layout_id)
            if only is not None and only.condition is not None:
                self._kinds[number].residual_filter = _add_nodes(nodes, [only.condition], shape)
            elif only is not None:
                self._tests[number] = only.test
            recipe = recipes.get(shape.layout.layout_id)
            if recipe is None:
                continue
            if recipe.residual_filter is not None:
                self._kinds[number].residual_filter = _add_nodes(nodes, [recipe.residual_filter.condition], shape)
            self._make_chooser(nodes, recipe, shape, &self._kinds[number].chooser)
            if recipe.by_cgroup or recipe.by_stack:
                queued[number] = recipe
                continue
            self._kinds[number].tallied = True
            self._kinds[number].part.stacks = _awaited(recipe, shape.layout)
            self._kinds[number].first = len(tables)
            self._kinds[number].tables = len(recipe.groups)
            self._add_tables(nodes, tables, recipe, shape)
        self._nsingle = len(tables)
        self._add_ways(nodes, tables, joins, queued, most_open or MOST_OPEN)
        self._nodes = <Node*>calloc(max(1, len(nodes)), sizeof(Node))
        self._tables = <Table*>calloc(max(1, len(tables)), sizeof(Table))
        keys = max([len(group.keys) for group, *_ in tables], default=1)
        keys = max(keys, max([len(one.join.key) for one in joins.recipes.values()], default=0))
        # Two more than the keys: the epochs of threads, and the code of an exponential bucket. A stack is the
        # only key of its table, and two pages long at most.
        self._scratch = <uint8_t*>malloc(<size_t>(keys + 2) * (self._page + 16))
        if self._nodes == NULL or self._tables == NULL or self._scratch == NULL:
            raise MemoryError
        self._nnodes, self._ntables = len(nodes), len(tables)
        for i, entry in enumerate(nodes):
            _fill_node(&self._nodes[<uint32_t>i], entry)
        for i, (group, shape, where, roots) in enumerate(tables):
            _fill_table(&self._tables[<uint32_t>i], group, shape, where, roots, &self._epochs)
            resolvers = [_resolver(shape, name, names) for name in group.keys]
            more = bool(group.cgroups) + (group.exponential is not None)
            self._resolvers.append([*resolvers, *[None] * more])
        self._make_parts(joins)

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self._ntables):
            _free_table(&self._tables[i])
        for i in range(self._nnodes):
            free(self._nodes[i].text)
        for i in range(self._nkinds):
            free(self._kinds[i].fields)
            free(self._kinds[i].part.keys)
        for i in range(self._nqueues):
            free(self._queues[i].bytes)
        _free_open(self._open)
        free(self._queues)
        free(self._chosen_bytes)
        free(self._exports)
        free(self._heap)
        free(self._ways)
        free(self._first_ways)
        free(self._tables)
        free(self._nodes)
        free(self._kinds)
        free(self._by_id)
        free(self._pending)
        free(self._scratch)
        free(self._buffer)

    def feed(self, page, int cpu):
        """Take in one page that was read from ``cpu``; ``time`` is then that of its last record."""
        cdef Py_buffer view
        cdef int state
        self._begin(cpu)
        PyObject_GetBuffer(page, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                state = self._walk_page(<const uint8_t*>view.buf, view.len, cpu)
            self._build(cpu)
        finally:
            PyBuffer_Release(&view)
        if state == NO_MEMORY:
            raise MemoryError

    def pull(self, int fd, int cpu, int pages=64):
        """Read and take in up to ``pages`` (at most 64) of a trace_pipe_raw; return their number.

        Raises OSError. Reading and walking are one here, so that a busy interpreter cannot come
        between two pages: each time the lock is given up, getting it back may take 5 ms.
        """
        cdef int state = WALKED, got = 0, error = 0
        cdef ssize_t size = 0
        cdef uint8_t* at
        self._begin(cpu)
        with nogil:
            while got < pages and got < MOST_PAGES:
                at = self._buffer + <size_t>got * self._page
                size = read(fd, at, self._page)
                if size < 0 and errno == EINTR:
                    continue
                if size <= 0:
                    break
                got += 1
                state = self._walk_page(at, size, cpu)
                if state == NO_MEMORY or self._many():
                    break
                if size >= self._data and (_u32(at + self._low) & ~(MISSED | COUNTED)) < self._page // 2:
                    break  # the kernel still writes this page: hardly anything follows, and in small pieces
            if size < 0 and errno != EAGAIN:
                error = errno
        self._build(cpu)
        if state == NO_MEMORY:
            raise MemoryError
        if error:
            raise OSError(error, os.strerror(error))
        return got

    @property
    def waiting(self):
        """The number of records, losses and tallies that ``take`` would return."""
        cdef uint32_t i, used = 0
        for i in range(self._ntables):
            used += self._tables[i].used
        return len(self._batch.records) + len(self._batch.losses) + used + self._nchosen

    def take(self):
        """Return what arrived since the last call."""
        batch, self._batch = self._batch, Batch()
        self._frames.clear()  # a module may come, and its names with it
        self._process = None
        batch.unparsed, batch.lost = self._unparsed, self._lost
        self._unparsed = self._lost = 0
        batch.losses += close_gaps(self._gaps, self._lasts)
        cdef uint32_t i
        cdef Kind* kind
        for i in range(self._nkinds):
            kind = &self._kinds[i]
            if kind.arrived:
                layout_id = self._shapes[i].layout.layout_id
                batch.arrived[layout_id] = kind.arrived
                if kind.residual_filter >= 0 or self._tests[i] is not None:
                    batch.passed[layout_id] = kind.passed
                kind.arrived = kind.passed = 0
        for i in range(self._nsingle):
            self._empty(&self._tables[i], i, batch)
        return batch

    def resume_from(self, PageParser before):
        """Continue after the last ``take`` of another parser, perhaps between an event and its stack."""
        self._stacked, self._lasts, self._gaps = before._stacked, before._lasts, before._gaps
        self._followed = before._followed
        self.time = before.time
        self._continue_joins(before)

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
        while at >= 0:
            kind = &self._kinds[at]
            if length < kind.size:
                return DAMAGED
            if kind.part.stacks:  # they come also if it does not pass
                if not (owners | follows) & QUEUED:
                    _await_no_stack(&self._queues[self._queue_at])
                owners |= QUEUED if kind.part.stacks & OF_KERNEL else 0
                follows |= QUEUED if kind.part.stacks & OF_PROGRAM else 0
            if kind.part.role:
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

    cdef int _make_places(self, Kind* kind, shape) except -1:
        kind.caller.kind = NOTHING
        if shape.caller is not None:
            kind.caller.kind, kind.caller.offset, kind.caller.size = UNSIGNED, shape.caller.offset, 8
        kind.fields = <Place*>calloc(max(1, len(shape.fields)), sizeof(Place))
        if kind.fields == NULL:
            raise MemoryError
        kind.nfields = len(shape.fields)
        cdef uint32_t i
        for i, field in enumerate(shape.fields):
            _place(field, &kind.fields[i])
        return 0
