# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The walk from ring-buffer pages to records and tallies, compiled: pages.py with the hot path in C.

The one rule of this file: whatever a page claims, nothing is read outside the bytes that were read of
it. ``_walk_page`` checks each record against the page's end, ``size`` of its shape against the record,
and ``_text`` each string against the record. Costs some 15 ns a record, 20 to 40 for each metric.
"""

import sys

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset
from posix.unistd cimport read

import os
from math import ceil, floor

from kprobe_exporter.model import Batch
from kprobe_exporter.recipe import Refused, Tally
from kprobe_exporter.source.pages import frame
from kprobe_exporter.source.values import reader

cdef enum:
    UNSIGNED, SIGNED, TEXT, DYNAMIC, RELATIVE, CPU, TID, NOTHING, COMPLEX

cdef enum:
    ALL, ANY, NOT, TRUE, FALSE, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, EQUAL, UNEQUAL, BITS
    TEXT_EQUAL, TEXT_UNEQUAL

cdef enum:
    PLAIN, WIDE, POINTER

cdef enum:
    WALKED, DAMAGED, NO_MEMORY

cdef enum:
    STACK = -1
    LOST = -2

cdef uint32_t MISSED = 1u << 31, COUNTED = 1u << 30
cdef uint64_t MAX_ERRNO = 4095
cdef bint LITTLE = sys.byteorder == "little"
cdef uint32_t MANY_CELLS = 4096
"""When ``waiting`` asks for ``take``: so many that a table stays in the cache."""
cdef size_t MANY_BYTES = 1 << 20

LARGEST = (1 << 64) - 1
SMALLEST = -(1 << 63) - 1

cdef struct Num:  # a whole number of 128 bits, two's complement: any u64 or s64, and any sum of them
    int64_t hi
    uint64_t lo

cdef struct Place:
    uint8_t kind
    uint8_t normal
    uint8_t fault
    uint32_t offset
    uint32_t size

cdef struct Rec:
    const uint8_t* start
    uint32_t length
    int32_t tid
    int32_t cpu
    uint64_t time

cdef struct Node:
    uint8_t op
    uint32_t first
    uint32_t count
    Place field
    Num number
    uint8_t* text
    uint32_t length

cdef struct Cell:
    uint64_t hash
    uint64_t key
    uint32_t length
    uint64_t count
    uint64_t time
    Num sum

cdef struct Table:
    int32_t where
    uint32_t nkeys
    Place* keys
    bint valued
    bint last
    bint positive
    Place value
    int32_t nbounds
    Num* bounds
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

cdef struct Kind:
    uint32_t size
    int32_t next
    uint32_t nfields
    Place* fields
    Place caller
    bint tallied
    int32_t only
    uint32_t first
    uint32_t tables
    uint64_t arrived
    uint64_t passed

cdef struct Pending:
    const uint8_t* start
    uint32_t length
    int32_t kind
    uint64_t time


cdef inline uint32_t _u32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t _u64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline bint _less(Num a, Num b) noexcept nogil:
    return a.hi < b.hi or (a.hi == b.hi and a.lo < b.lo)


cdef inline void _add(Num* total, Num value) noexcept nogil:
    cdef uint64_t before = total.lo
    total.lo += value.lo
    total.hi += value.hi + (total.lo < before)


cdef inline bint _number(const Place* field, const Rec* rec, Num* out) noexcept nogil:
    """Read a number; False where the field is none. The record is long enough: its shape's size says so."""
    cdef const uint8_t* at = rec.start + field.offset
    cdef int16_t half
    cdef int32_t whole
    cdef uint16_t uhalf
    out.hi = 0
    if field.kind == UNSIGNED:
        if field.size == 8:
            out.lo = _u64(at)
        elif field.size == 4:
            out.lo = _u32(at)
        elif field.size == 2:
            memcpy(&uhalf, at, 2)
            out.lo = uhalf
        else:
            out.lo = at[0]
    elif field.kind == SIGNED:
        if field.size == 8:
            out.lo = _u64(at)
        elif field.size == 4:
            memcpy(&whole, at, 4)
            out.lo = <uint64_t><int64_t>whole
        elif field.size == 2:
            memcpy(&half, at, 2)
            out.lo = <uint64_t><int64_t>half
        else:
            out.lo = <uint64_t><int64_t>(<int8_t>at[0])
        out.hi = -1 if <int64_t>out.lo < 0 else 0
    elif field.kind == TID:
        out.lo = <uint64_t><int64_t>rec.tid
        out.hi = -1 if rec.tid < 0 else 0
    elif field.kind == CPU:
        out.lo = <uint64_t>rec.cpu
    else:
        return False
    if field.normal == WIDE:  # an int's error, read too wide (aggregate/updates.py: normal_return)
        if out.hi == 0 and out.lo >= (1ull << 32) - MAX_ERRNO and out.lo < (1ull << 32):
            out.lo -= 1ull << 32
            out.hi = -1
    elif field.normal == POINTER:
        if out.hi == 0 and out.lo >= <uint64_t>0 - MAX_ERRNO:
            out.hi = -1
    return True


cdef inline bint _text(const Place* field, const Rec* rec, const uint8_t** at, uint32_t* length) noexcept nogil:
    """Find a string in its record; False where it could not be read, or leads outside."""
    cdef uint32_t place, first, size
    cdef const void* nul
    if field.kind == TEXT:
        first, size = field.offset, field.size
    elif field.kind == DYNAMIC or field.kind == RELATIVE:
        place = _u32(rec.start + field.offset)
        first, size = place & 0xFFFF, place >> 16
        if field.kind == RELATIVE:
            first += field.offset + 4
        if size == 0 and field.fault:
            return False
    else:
        return False
    if first > rec.length or size > rec.length - first:
        return False
    at[0] = rec.start + first
    nul = memchr(at[0], 0, size) if size else NULL
    length[0] = <uint32_t>(<const uint8_t*>nul - at[0]) if nul != NULL else size
    return True


cdef bint _meets(const Node* nodes, uint32_t number, const Rec* rec) noexcept nogil:
    """Whether a record meets a condition; a value that is none of its sort equals nothing."""
    cdef const Node* node = &nodes[number]
    cdef Num value
    cdef const uint8_t* text
    cdef uint32_t i, length
    cdef bint same
    if node.op == ALL or node.op == ANY:
        for i in range(node.count):
            if _meets(nodes, node.first + i, rec) == (node.op == ANY):
                return node.op == ANY
        return node.op == ALL
    if node.op == NOT:
        return not _meets(nodes, node.first, rec)
    if node.op == TRUE or node.op == FALSE:
        return node.op == TRUE
    if node.op == TEXT_EQUAL or node.op == TEXT_UNEQUAL:
        same = (
            _text(&node.field, rec, &text, &length)
            and length == node.length
            and memcmp(text, node.text, length) == 0
        )
        return same == (node.op == TEXT_EQUAL)
    if not _number(&node.field, rec, &value):
        return node.op == UNEQUAL
    if node.op == LESS:
        return _less(value, node.number)
    if node.op == LESS_EQUAL:
        return not _less(node.number, value)
    if node.op == GREATER:
        return _less(node.number, value)
    if node.op == GREATER_EQUAL:
        return not _less(value, node.number)
    if node.op == BITS:
        return (value.hi & node.number.hi) != 0 or (value.lo & node.number.lo) != 0
    same = value.hi == node.number.hi and value.lo == node.number.lo
    return same == (node.op == EQUAL)


cdef inline uint64_t _hash(const uint8_t* key, uint32_t length, uint64_t seed) noexcept nogil:
    """Mixes 8 bytes at a time; seeded, for the strings are whatever users wish."""
    cdef uint64_t value = seed ^ length, word
    cdef uint32_t at = 0
    while at + 8 <= length:
        value = (value ^ _u64(key + at)) * <uint64_t>0x9E3779B97F4A7C15
        value ^= value >> 29
        at += 8
    if at < length:
        word = 0
        memcpy(&word, key + at, length - at)
        value = (value ^ word) * <uint64_t>0x9E3779B97F4A7C15
        value ^= value >> 29
    value *= <uint64_t>0xBF58476D1CE4E5B9
    return value ^ (value >> 32)


cdef uint32_t _key(const Table* table, const Rec* rec, uint8_t* out) noexcept nogil:
    """Write the raw values of a table's keys, each behind a byte that tells its sort; how long they are."""
    cdef uint32_t at = 0, i, length
    cdef Num value
    cdef const uint8_t* text
    for i in range(table.nkeys):
        if _number(&table.keys[i], rec, &value):
            out[at] = 1 if value.hi == 0 else 2
            memcpy(out + at + 1, &value.lo, 8)
            at += 9
        elif _text(&table.keys[i], rec, &text, &length):
            out[at] = 3
            memcpy(out + at + 1, &length, 4)
            memcpy(out + at + 5, text, length)
            at += 5 + length
        else:
            out[at] = 0
            at += 1
    return at


cdef bint _grow(Table* table) noexcept nogil:
    """Twice the room for cells; False if there is no memory."""
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
    """The cell of a key, made if it is not there; NULL if there is no memory."""
    cdef uint64_t hash = _hash(key, length, seed) if length else 0
    cdef uint32_t at
    cdef Cell* cell
    cdef size_t room
    cdef uint8_t* arena
    if table.slots:
        at = hash & (table.slots - 1)
        while table.index[at]:
            cell = &table.cells[table.index[at] - 1]
            if cell.hash == hash and cell.length == length and (
                length == 0 or memcmp(table.arena + cell.key, key, length) == 0
            ):
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
    """What one record does to one metric; False if there is no memory."""
    cdef Num value
    cdef Cell* cell
    cdef int32_t low, high, middle
    if table.where >= 0 and not _meets(nodes, table.where, rec):
        return True
    if table.valued:
        if not _number(&table.value, rec, &value):
            table.unreadable += 1
            return True
        if table.positive and value.hi < 0:
            table.negative += 1
            return True
    cell = _cell(table, scratch, _key(table, rec, scratch), seed)
    if cell == NULL:
        return False
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


cdef Num _num(value):
    cdef Num number
    number.lo = value & LARGEST
    number.hi = value >> 64
    return number


cdef object _int(Num number):
    return (<object>number.hi << 64) + number.lo if number.hi else <object>number.lo


cdef class PageParser:
    """Turns pages into batches of records and tallies, as pages.PageParser does into records.

    A layout with a recipe never becomes a record: its records are added up in C, by the raw values of
    each metric's labels, and ``take`` gives the sums. ``pull`` reads and walks without the
    interpreter's lock; ``feed`` does so for a page that somebody else read. Not thread-safe.
    """

    compiled = True

    cdef Kind* _kinds
    cdef uint32_t _nkinds
    cdef int32_t* _by_id
    cdef uint32_t _ids
    cdef Table* _tables
    cdef uint32_t _ntables
    cdef Node* _nodes
    cdef uint32_t _nnodes
    cdef Pending* _pending
    cdef uint32_t _pending_room
    cdef uint32_t _npending
    cdef uint8_t* _scratch
    cdef uint8_t* _buffer
    cdef uint64_t _seed
    cdef uint64_t _unparsed
    cdef uint64_t _lost
    cdef uint32_t _commit, _commit_size, _data, _page, _low
    cdef int32_t _stack_id
    cdef uint32_t _stack_offset
    cdef readonly uint64_t time
    cdef object _shapes, _slots, _readers, _resolvers, _owners, _names, _batch, _stacked, _wants_tgid

    PAGES = 64

    def __cinit__(self, geometry, shapes, names, stacks=None, tgid=False, recipes=None):
        self._commit, self._commit_size, self._data, self._page = geometry
        self._low = self._commit if LITTLE else self._commit + self._commit_size - 4
        self._seed = int.from_bytes(os.urandom(8), "little")
        self._stack_id = stacks.id if stacks else -1
        self._stack_offset = stacks.offset if stacks else 0
        self._shapes = list(shapes)
        self._slots = [shape.layout.slot for shape in self._shapes]
        self._names, self._wants_tgid = names, tgid
        self._readers = [[reader(field, names) for field in shape.fields] for shape in self._shapes]
        self._batch, self._stacked = Batch(), {}
        self._resolvers, self._owners = [], []
        recipes = recipes or {}
        nodes, tables = [], []
        self._nkinds = len(self._shapes)
        self._kinds = <Kind*>calloc(max(1, self._nkinds), sizeof(Kind))
        self._ids = max([shape.id for shape in self._shapes], default=0) + 1
        self._by_id = <int32_t*>malloc(self._ids * 4)
        self._buffer = <uint8_t*>malloc(<size_t>self._page * self.PAGES)
        if self._kinds == NULL or self._by_id == NULL or self._buffer == NULL:
            raise MemoryError
        memset(self._by_id, 0xFF, self._ids * 4)
        cdef int32_t number
        for number, shape in reversed(list(enumerate(self._shapes))):
            self._kinds[number].size = max(8, shape.size)
            self._kinds[number].next = self._by_id[<uint32_t>shape.id]
            self._by_id[<uint32_t>shape.id] = number
            self._kinds[number].only = -1
            self._make_places(&self._kinds[number], shape)
            recipe = recipes.get(shape.layout.slot)
            if recipe is None:
                continue
            self._kinds[number].tallied = True
            if recipe.only is not None:
                self._kinds[number].only = _add_nodes(nodes, [recipe.only], shape)
            self._kinds[number].first = len(tables)
            self._kinds[number].tables = len(recipe.groups)
            for place, group in enumerate(recipe.groups):
                where = -1 if group.where is None else _add_nodes(nodes, [group.where], shape)
                tables.append((group, shape, where))
                self._owners.append((shape.layout.slot, place))
        self._make_nodes(nodes)
        self._make_tables(tables)

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self._ntables):
            free(self._tables[i].keys)
            free(self._tables[i].bounds)
            free(self._tables[i].index)
            free(self._tables[i].cells)
            free(self._tables[i].buckets)
            free(self._tables[i].arena)
        for i in range(self._nnodes):
            free(self._nodes[i].text)
        for i in range(self._nkinds):
            free(self._kinds[i].fields)
        free(self._tables)
        free(self._nodes)
        free(self._kinds)
        free(self._by_id)
        free(self._pending)
        free(self._scratch)
        free(self._buffer)

    def feed(self, page, int cpu):
        """Take in one page that was read of ``cpu``; ``time`` is its last record's then."""
        cdef Py_buffer view
        cdef int state
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
        """Read and take in up to ``pages`` (64 at the most) of a trace_pipe_raw; how many there were.

        Raises OSError. Reading and walking are one here, so that a busy interpreter cannot come
        between two pages: each time the lock is given up, getting it back may take 5 ms.
        """
        cdef int state = WALKED, got = 0, error = 0
        cdef ssize_t size = 0
        cdef uint8_t* at
        with nogil:
            while got < pages and got < 64:
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
                    break  # the page that is being written: there is hardly more, and it comes in crumbs
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
        """How many records and tallies ``take`` would give."""
        cdef uint32_t i, used = 0
        for i in range(self._ntables):
            used += self._tables[i].used
        return len(self._batch.records) + used

    def take(self):
        """What came since the last call."""
        batch, self._batch = self._batch, Batch()
        batch.unparsed, batch.lost = self._unparsed, self._lost
        self._unparsed = self._lost = 0
        cdef uint32_t i
        cdef Kind* kind
        for i in range(self._nkinds):
            kind = &self._kinds[i]
            if kind.arrived:
                slot = self._shapes[i].layout.slot
                batch.arrived[slot] = kind.arrived
                if kind.only >= 0:
                    batch.passed[slot] = kind.passed
                kind.arrived = kind.passed = 0
        for i in range(self._ntables):
            self._empty(&self._tables[i], i, batch)
        return batch

    cdef bint _many(self) noexcept nogil:
        cdef uint32_t i
        for i in range(self._ntables):
            if self._tables[i].used > MANY_CELLS or self._tables[i].arena_used > MANY_BYTES:
                return True
        return False

    cdef int _walk_page(self, const uint8_t* page, size_t length, int cpu) noexcept nogil:
        """Walk one page of ``length`` bytes, of which any may hold anything."""
        cdef uint32_t commit, word, next_word, delta, size, head
        cdef uint8_t kind
        cdef size_t at = self._data, end, start
        cdef uint64_t time, stamp
        cdef int state
        if length < self._data:
            self._unparsed += 1
            return DAMAGED
        time = _u64(page)
        commit = _u32(page + self._low)
        end = at + (commit & ~(MISSED | COUNTED))
        if end > length or end > self._page:
            self._unparsed += 1
            return DAMAGED
        if commit & MISSED:
            if not self._push(NULL, 0, LOST, 0):
                return NO_MEMORY
            if commit & COUNTED and end + self._commit_size <= length:
                self._lost += _u64(page + end) if self._commit_size == 8 else _u32(page + end)
        while at < end:
            if at + 4 > end:
                self._unparsed += 1
                return DAMAGED
            word = _u32(page + at)
            if LITTLE:
                kind, delta = word & 31, word >> 5
            else:
                kind, delta = word >> 27, word & 0x7FFFFFF
            if kind == 29 and delta == 0:
                break
            if kind == 0 or kind >= 29:
                if at + 8 > end:
                    self._unparsed += 1
                    return DAMAGED
                next_word = _u32(page + at + 4)
            if kind >= 30:
                stamp = (<uint64_t>next_word << 27) + delta
                at += 8
                if kind == 30:
                    time += stamp
                else:
                    stamp |= time >> 59 << 59
                    time = stamp if stamp >= time else stamp + (1ull << 59)
                self.time = time
                continue
            time += delta
            self.time = time
            if kind == 0 or kind == 29:
                head = 8 if kind == 0 else 4
                if kind == 0 and next_word < 4:
                    self._unparsed += 1
                    return DAMAGED
                size = next_word - 4 if kind == 0 else next_word
            else:
                head, size = 4, 4 * <uint32_t>kind
            start = at + head
            if start > end or size > end - start:
                self._unparsed += 1
                return DAMAGED
            at = start + ((<size_t>size + 3) & ~<size_t>3)
            if kind != 29:
                state = self._event(page + start, size, time, cpu)
                if state != WALKED:
                    return state
        return WALKED

    cdef inline int _event(self, const uint8_t* start, uint32_t length, uint64_t time, int cpu) noexcept nogil:
        cdef uint16_t number
        cdef int32_t at
        cdef uint32_t i
        cdef Rec rec
        cdef Kind* kind
        if length < 8:
            self._unparsed += 1
            return DAMAGED
        memcpy(&number, start, 2)
        at = self._by_id[number] if number < self._ids else -1
        if at < 0:
            if number != self._stack_id:
                self._unparsed += 1
            elif not self._push(start, length, STACK, time):
                return NO_MEMORY
            return WALKED
        rec.start, rec.length, rec.time, rec.cpu = start, length, time, cpu
        memcpy(&rec.tid, start + 4, 4)
        while at >= 0:
            kind = &self._kinds[at]
            if length < kind.size:
                self._unparsed += 1
                return DAMAGED
            if not kind.tallied:
                if not self._push(start, length, at, time):
                    return NO_MEMORY
            else:
                kind.arrived += 1
                if kind.only < 0 or _meets(self._nodes, kind.only, &rec):
                    kind.passed += 1
                    for i in range(kind.first, kind.first + kind.tables):
                        if not _tally(&self._tables[i], self._nodes, &rec, self._scratch, self._seed):
                            return NO_MEMORY
            at = kind.next
        return WALKED

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
        """Make records of what waits for it; the bytes are still there."""
        cdef uint32_t i, count = self._npending
        cdef Pending* one
        self._npending = 0
        records = self._batch.records
        for i in range(count):
            one = &self._pending[i]
            if one.kind == LOST:
                self._stacked.pop(cpu, None)
            elif one.kind == STACK:
                self._stack(one, cpu)
            else:
                record = self._record(one, cpu)
                records.append(record)
                if self._shapes[one.kind].layout.stack:
                    self._expect(record, one.time)
        return 0

    cdef object _record(self, const Pending* one, int cpu):
        cdef const Kind* kind = &self._kinds[one.kind]
        cdef Rec rec
        cdef uint32_t i
        rec.start, rec.length = one.start, one.length
        memcpy(&rec.tid, one.start + 4, 4)
        readers = self._readers[one.kind]
        cdef tuple made = PyTuple_New(6 + <Py_ssize_t>kind.nfields)
        _set(made, 0, self._slots[one.kind])
        _set(made, 1, one.time)
        _set(made, 2, cpu)
        _set(made, 3, rec.tid)
        _set(made, 4, self._names.tgid(rec.tid) if self._wants_tgid else None)
        if kind.caller.kind == UNSIGNED:
            _set(made, 5, self._names.caller(_u64(one.start + kind.caller.offset)))
        else:
            _set(made, 5, None)
        for i in range(kind.nfields):
            _set(made, 6 + i, self._value(&kind.fields[i], &rec, readers[i]))
        return made

    cdef object _value(self, const Place* place, const Rec* rec, read_it):
        cdef Num number
        cdef const uint8_t* text
        cdef uint32_t length
        if _number(place, rec, &number):
            return _int(number)
        if place.kind == COMPLEX:
            whole = PyBytes_FromStringAndSize(<const char*>rec.start, rec.length)
            return read_it(whole, 0, rec.length, rec.tid)
        if _text(place, rec, &text, &length):
            return PyBytes_FromStringAndSize(<const char*>text, length)
        return None

    cdef object _expect(self, record, uint64_t time):
        """A stack may follow: it belongs to all records of the same event."""
        _, _, cpu, tid, *_ = record
        before = self._stacked.get(cpu)
        if before is not None and before[:2] == (tid, time):
            before[2].append(record)
        else:
            self._stacked[cpu] = (tid, time, [record])

    cdef object _stack(self, const Pending* one, int cpu):
        cdef uint32_t at = self._stack_offset
        cdef uint64_t address
        cdef int32_t tid
        memcpy(&tid, one.start + 4, 4)
        expected = self._stacked.pop(cpu, None)
        if expected is None or expected[0] != tid:
            return
        frames = []
        while at + 8 <= one.length:
            address = _u64(one.start + at)
            if address == <uint64_t>0 - 1:
                break
            frames.append(frame(self._names, address))
            at += 8
        self._batch.stacks += [(record, tuple(frames)) for record in expected[2]]

    cdef object _empty(self, Table* table, uint32_t number, batch):
        """Hand a table's sums over, and start it anew."""
        cdef uint32_t i, b
        cdef Cell* cell
        slot, group = self._owners[number]
        if table.negative or table.unreadable:
            batch.refused.append(Refused(slot, group, table.negative, table.unreadable))
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
            tallies.append(Tally(slot, group, key, cell.count, _int(cell.sum), cell.time, buckets))
        table.used, table.arena_used = 0, 0
        memset(table.index, 0, <size_t>table.slots * 4)

    cdef object _raw_key(self, const uint8_t* at, const Table* table, resolvers):
        cdef uint32_t i, length
        cdef Num number
        parts = []
        for i in range(table.nkeys):
            value = None
            if at[0] == 1 or at[0] == 2:
                number.hi = 0 if at[0] == 1 else -1
                number.lo = _u64(at + 1)
                value = _int(number)
                at += 9
            elif at[0] == 3:
                length = _u32(at + 1)
                value = PyBytes_FromStringAndSize(<const char*>at + 5, length)
                at += 5 + length
            else:
                at += 1
            resolve = resolvers[i]
            parts.append(value if resolve is None else resolve(value))
        return tuple(parts)

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

    cdef int _make_nodes(self, list nodes) except -1:
        self._nodes = <Node*>calloc(max(1, len(nodes)), sizeof(Node))
        if self._nodes == NULL:
            raise MemoryError
        self._nnodes = len(nodes)
        cdef Node* node
        cdef bytes text
        for number, (op, first, count, field, value) in enumerate(nodes):
            node = &self._nodes[<uint32_t>number]
            node.op, node.first, node.count = op, first, count
            if field is not None:
                _place_named(field[0], field[1], &node.field)
            if isinstance(value, bytes):
                text = value
                node.length = len(text)
                node.text = <uint8_t*>malloc(max(1, len(text)))
                if node.text == NULL:
                    raise MemoryError
                memcpy(node.text, <const char*>text, len(text))
            elif value is not None:
                node.number = _num(value)
        return 0

    cdef int _make_tables(self, list tables) except -1:
        cdef Table* table
        cdef uint32_t i
        cdef size_t longest = 1
        self._tables = <Table*>calloc(max(1, len(tables)), sizeof(Table))
        if self._tables == NULL:
            raise MemoryError
        self._ntables = len(tables)
        for number, (group, shape, where) in enumerate(tables):
            table = &self._tables[<uint32_t>number]
            table.where, table.nbounds = where, -1
            table.last, table.positive, table.valued = group.last, group.positive, group.value is not None
            table.nkeys = len(group.keys)
            table.keys = <Place*>calloc(max(1, table.nkeys), sizeof(Place))
            if table.keys == NULL:
                raise MemoryError
            longest = max(longest, <size_t>table.nkeys * (self._page + 16))
            for i, name in enumerate(group.keys):
                _place_named(shape, name, &table.keys[i])
            self._resolvers.append([_resolver(shape, name, self._names) for name in group.keys])
            if group.value is not None:
                _place_named(shape, group.value, &table.value)
            if group.bounds is not None:
                table.nbounds = len(group.bounds)
                table.bounds = <Num*>calloc(max(1, table.nbounds), sizeof(Num))
                if table.bounds == NULL:
                    raise MemoryError
                for i, bound in enumerate(group.bounds):
                    table.bounds[i] = _num(bound)
        self._scratch = <uint8_t*>malloc(longest)
        if self._scratch == NULL:
            raise MemoryError
        return 0


cdef inline void _set(tuple made, Py_ssize_t place, object value):
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, place, value)


cdef int _place(field, Place* out) except -1:
    out.kind = {
        "unsigned": UNSIGNED, "signed": SIGNED, "text": TEXT, "dynamic": DYNAMIC, "relative": RELATIVE,
    }.get(field.kind, COMPLEX)
    out.offset, out.size, out.fault, out.normal = field.offset, field.size, field.fault, PLAIN
    return 0


cdef int _place_named(shape, str name, Place* out) except -1:
    """The place of a field by its name; NOTHING where the records do not have it."""
    memset(out, 0, sizeof(Place))
    layout = shape.layout
    if name == "cpu":
        out.kind = CPU
    elif name in ("tid", "pid"):
        out.kind = TID
    elif name == "caller" and shape.caller is not None:
        out.kind, out.offset, out.size = UNSIGNED, shape.caller.offset, shape.caller.size
    elif name in ("caller", "symbol"):
        out.kind = NOTHING
    else:
        out.kind = NOTHING
        for arg, field in zip(layout.args, shape.fields):
            if arg.name != name:
                continue
            _place(field, out)
            if field.kind == "comm":
                out.kind = TID
            elif field.kind in ("char", "symbol"):
                out.kind = UNSIGNED
            if name == "return" and layout.returns is not None:
                out.normal = WIDE if layout.returns.wide else POINTER if layout.returns.pointer else PLAIN
    return 0


def _resolver(shape, name, names):
    """What turns a raw value of the table into what a record would hold; None if nothing has to."""
    if name == "pid":
        return names.tgid
    if name == "caller":
        return None if shape.caller is None else names.caller
    if name == "symbol":
        symbol = shape.layout.symbol.encode()
        return lambda value: symbol
    for arg, field in zip(shape.layout.args, shape.fields):
        if arg.name == name:
            if field.kind == "comm":
                return names.comm
            if field.kind == "symbol":
                return names.symbol
            if field.kind == "char":
                return lambda value: bytes([value])
    return None


_COMPARE = {"<": LESS, "<=": LESS_EQUAL, ">": GREATER, ">=": GREATER_EQUAL, "==": EQUAL, "!=": UNEQUAL, "&": BITS}


def _add_nodes(nodes, conditions, shape):
    """Write conditions down side by side, their operands behind them; the number of the first."""
    first = len(nodes)
    nodes.extend([None] * len(conditions))
    for number, condition in enumerate(conditions, first):
        sort, *rest = condition
        if sort in ("all", "any"):
            (operands,) = rest
            start = _add_nodes(nodes, operands, shape)
            nodes[number] = (ALL if sort == "all" else ANY, start, len(operands), None, None)
        elif sort == "not":
            nodes[number] = (NOT, _add_nodes(nodes, rest, shape), 1, None, None)
        elif sort == "text":
            field, operator, value = rest
            nodes[number] = (TEXT_EQUAL if operator == "==" else TEXT_UNEQUAL, 0, 0, (shape, field), value)
        else:
            field, operator, value = rest
            op, value = _whole(_COMPARE[operator], value)
            nodes[number] = (op, 0, 0, (shape, field), value)
    return first


def _whole(op, value):
    """A comparison of a whole number with a fraction, as one with a whole number."""
    if op == BITS:
        return op, int(value)
    if isinstance(value, float):
        if not value.is_integer() and op in (EQUAL, UNEQUAL):
            return (FALSE if op == EQUAL else TRUE), None
        value = ceil(value) if op in (LESS, GREATER_EQUAL) else floor(value)
    return op, value
