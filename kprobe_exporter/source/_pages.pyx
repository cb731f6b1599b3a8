# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Turns ring-buffer pages into records and tallies, compiled: pages.py with the hot path in C.

The one rule of this file: whatever a page holds, nothing outside of it is read. ``_walk_page`` (_walking.pxi)
checks each record against the page's end, ``size`` of its shape against the record, and ``_text`` (_record.pxi)
each string against the record. A half that waits to be joined is a copy of its whole record. The walk costs
about 10 ns a record, and 15 ns for each metric.
"""

import sys

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SetItem
from libc.errno cimport EAGAIN, EINTR, ENODEV, errno
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
from kprobe_exporter.model.records import OF_THREADS as _OF_THREADS, STACK_POINTER, VALUES, Batch, Emission
from kprobe_exporter.model.specs import PROCESS
from kprobe_exporter.model.condition import is_unsigned
from kprobe_exporter.model.aggregation import RECORDED_STACK, STACKS, Refused, Tally
from kprobe_exporter.model.joins import DISTANCE, Joins
from kprobe_exporter.model.stacks import StackTally, Weight
from kprobe_exporter.source.pages import NEVER_ONLINE, frame, loss, close_gaps
from kprobe_exporter.source.values import program_name, reader

cdef enum:
    WALKED, DAMAGED, NO_MEMORY

cdef enum:
    MOST_PAGES = 64

cdef extern from *:
    int __builtin_clzll(unsigned long long) nogil

cdef enum:
    STACK = -1
    LOST = -2
    USER_STACK = -3

cdef bint LITTLE = sys.byteorder == "little"
cdef int OF_THREADS = _OF_THREADS
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
include "_walking.pxi"


cdef class PageParser(Walking):
    """Turns pages into batches of records and tallies, as pages.PageParser does into records.

    A layout with a recipe never becomes a record: its records are added up in C, by the raw values of
    each metric's labels, and ``take`` gives the sums. The halves of ``joins`` are queued: ``join`` joins them
    without the interpreter's lock, as aggregate/pairing.py joins records, and adds up what they become. At
    most ``most_open`` first halves are open. ``pull`` reads and walks without the interpreter's lock;
    ``feed`` does so for a page that the caller has read. Not thread-safe.
    """

    compiled = True

    cdef uint32_t _nnodes
    cdef uint8_t* _buffer

    def __cinit__(
        self, geometry, shapes, names, stacks=StackLayouts(), tgid=False, recipes=None, filters=None, joins=None,
        of_all_threads=frozenset(), most_open=None
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
            self._kinds[number].of_all_threads = shape.layout.layout_id in of_all_threads
            self._kinds[number].of_threads = shape.of_threads
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
        free(self._own_threads)

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

        Return NEVER_ONLINE if the CPU has no buffer yet. Raises OSError. Reading and walking are one here, so that a busy interpreter cannot come
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
        if error == ENODEV:
            return NEVER_ONLINE
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
            if kind.own:
                batch.own[self._shapes[i].layout.layout_id] = kind.own
                kind.own = 0
        for i in range(self._nsingle):
            self._empty(&self._tables[i], i, batch)
        return batch

    def resume_from(self, PageParser before):
        """Continue after the last ``take`` of another parser, perhaps between an event and its stack."""
        self._stacked, self._lasts, self._gaps = before._stacked, before._lasts, before._gaps
        self._followed = before._followed
        self.time = before.time
        self._continue_joins(before)

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
