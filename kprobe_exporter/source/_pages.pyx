# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Binds the event engine (kprobe_exporter/engine) to Python: the reader of pages, its hot path in C.

A plan of Python values (engine_plan.py) is copied into the engine's structs; what the engine has found and added
up becomes records, tallies and stacks. What happens between is in the engine. Records cost about 1 µs each.
"""

import os
from collections import Counter

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SetItem
from libc.errno cimport ENODEV
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kprobe_exporter.model.aggregation import STACKS, TIMES, Refused, Tally
from kprobe_exporter.model.joins import DISTANCE, Joins
from kprobe_exporter.model.record_layout import StackLayouts
from kprobe_exporter.model.records import Batch, Emission
from kprobe_exporter.model.stacks import StackTally, Weight
from kprobe_exporter.model.thread_times import ThreadState, ThreadTime
from kprobe_exporter.source.engine_plan import EnginePlan, share_of
from kprobe_exporter.source.pages import NEVER_ONLINE, frame, loss
from kprobe_exporter.source.values import reader

SECOND = 10**9  # nanoseconds

CONSTANTS = {
    "MAX_ERRNO": MAX_ERRNO, "LOWEST_ADDRESS": LOWEST_ADDRESS, "OF_THREADS": THREAD_BUFFERS_CPU,
    "MAX_GUARDS": MAX_GUARDS, "KERNEL_STACK": KERNEL_STACK, "USER_STACK": USER_STACK,
}
"""Values that engine.h and Python both have, which a test compares."""


cdef inline uint32_t _u32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t _u64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef object _int(number value):
    return (<object>value.high << 64) + value.low if value.high else <object>value.low


cdef object _addresses(const uint8_t* at, uint32_t length):
    """Return the addresses in so many bytes."""
    cdef uint32_t i
    return tuple([_u64(at + 8 * i) for i in range(length // 8)])


cdef list _steps(const uint8_t* at, uint32_t number):
    """Return the times of the steps of a pair, None for one that did not occur."""
    cdef uint32_t i
    return [None if _u64(at + 8 * i) == NEVER else _u64(at + 8 * i) for i in range(number)]


cdef inline void _set(tuple made, Py_ssize_t place, object value):
    Py_INCREF(value)
    PyTuple_SetItem(made, place, value)


include "_plan.pxi"


cdef class PageParser:
    """Turns pages into batches of records and tallies.

    A layout with a recipe never becomes a record: its records are added up in C, by the raw values of
    each metric's labels, and ``take`` gives the sums. The halves of ``joins`` are queued: ``join`` joins them
    without the interpreter's lock, as aggregate/pairing.py joins records, and adds up what they become. At
    most ``most_open`` first halves are open. ``pull`` reads and walks without the interpreter's lock;
    ``feed`` does so for a page that the caller has read. They keep the lock if the engine needs values that are
    looked up. Not thread-safe.
    """

    compiled = True

    cdef engine_plan* _plan
    cdef engine* _engine
    cdef object _wanted, _names, _wants_tgid, _readers
    cdef object _batch
    cdef object _stacked, _followed  # by CPU: the thread and the records that wait for a stack
    cdef object _orphans  # unpaired halves of joins that are gone, by layout_id
    cdef dict _frames  # of the stacks since the last ``take``, by their addresses
    cdef int32_t _thread  # of the last record since the last ``take``, and its process
    cdef object _process
    cdef uint64_t _open_counted  # when open halves were counted last
    cdef uint64_t _times_cut  # when the time of threads was added up last
    cdef list _reasons  # of sleeps that were seen, not recorded; the engine has their places, from 1
    cdef list _look_ups
    cdef object _looked_up  # the last value, whose text the engine may be reading
    cdef object _error  # of a look-up

    def __cinit__(
        self, geometry, shapes, names, stacks=StackLayouts(), tgid=False, recipes=None, filters=None, joins=None,
        of_all_threads=frozenset(), most_open=None
    ):
        cdef engine_plan* plan = plan_new()
        if plan == NULL:
            raise MemoryError
        self._plan = plan
        joins = Joins() if joins is None else joins
        self._wanted = EnginePlan(list(shapes), names, recipes or {}, filters or {}, joins, of_all_threads)
        self._names, self._wants_tgid = names, tgid
        self._readers = [[reader(field, names) for field in shape.fields] for shape in self._wanted.shapes]
        self._batch, self._stacked, self._followed = Batch(), {}, {}
        self._orphans, self._frames = Counter(), {}
        self._reasons = []
        self._look_ups = self._wanted.look_ups
        plan.look_up, plan.caller = _look_up, <void*>self
        plan.commit_at, plan.commit_size, plan.data_at, plan.page_size = geometry
        kernel, user = stacks
        plan.stack_id, plan.stack_at = kernel[:2] if kernel else (-1, 0)
        plan.user_stack_id, plan.user_stack_at, plan.user_process_at = user if user else (-1, 0, 0)
        plan.max_open, plan.initial_distance = most_open or MAX_OPEN, DISTANCE
        seeds = [int.from_bytes(os.urandom(8), "little") for _ in range(3)]
        plan.hash_seed, plan.id_seed, plan.share_seed = seeds
        _fill_plan(plan, self._wanted)
        self._engine = engine_new(plan)
        if self._engine == NULL:
            raise MemoryError

    def __dealloc__(self):
        engine_free(self._engine)
        plan_free(self._plan)

    def set_own_threads(self, tids):
        """Discard from now on what these threads do; what interrupts do while such a thread runs is kept."""
        cdef int32_t* made = <int32_t*>malloc(max(1, len(tids)) * sizeof(int32_t))
        cdef uint32_t number = 0
        cdef bint done
        if made == NULL:
            raise MemoryError
        try:
            for tid in tids:
                made[number] = tid
                number += 1
            done = engine_set_own_threads(self._engine, made, number)
        finally:
            free(made)
        if not done:
            raise MemoryError

    def feed(self, page, int cpu):
        """Take in one page that was read from ``cpu``; ``time`` is then that of its last record."""
        cdef Py_buffer view
        cdef int status
        PyObject_GetBuffer(page, &view, PyBUF_SIMPLE)
        try:
            if self._look_ups:
                status = engine_feed(self._engine, <const uint8_t*>view.buf, view.len, cpu)
            else:
                with nogil:
                    status = engine_feed(self._engine, <const uint8_t*>view.buf, view.len, cpu)
            self._make_found(cpu)
        finally:
            PyBuffer_Release(&view)
        if status == ENGINE_NO_MEMORY:
            raise MemoryError

    def pull(self, int fd, int cpu, int pages=64):
        """Read and take in up to ``pages`` (at most 64) of a trace_pipe_raw; return their number.

        Return NEVER_ONLINE if the CPU has no buffer yet. Raises OSError.
        """
        cdef int status, npages, error
        if self._look_ups:
            status = engine_read(self._engine, fd, cpu, pages, &npages, &error)
        else:
            with nogil:
                status = engine_read(self._engine, fd, cpu, pages, &npages, &error)
        self._make_found(cpu)
        if status == ENGINE_NO_MEMORY:
            raise MemoryError
        if error == ENODEV:
            return NEVER_ONLINE
        if error:
            raise OSError(error, os.strerror(error))
        return npages

    def join(self, batch, until=None):
        """Join the halves that were read, up to the moment ``until``; all of them if it is None.

        Nothing that spans a loss of ``batch`` is joined from now on, and the sums go into it. Without a batch,
        halves are joined and the sums stay: the caller knows that no event was lost.
        """
        cdef uint64_t limit = NEVER if until is None else until
        cdef int status
        if batch is not None:
            for lost in batch.losses:
                engine_add_loss(self._engine, lost.start, lost.end)
        if self._look_ups:
            status = engine_join(self._engine, limit)
        else:
            with nogil:
                status = engine_join(self._engine, limit)
        self._raise_failure()
        if status == ENGINE_NO_MEMORY:
            raise MemoryError
        if batch is not None:
            engine_shrink(self._engine)
            if until is not None and until >= self._times_cut + SECOND:
                self.cut_times(until)
            self._take_joined(batch)
            if until is not None and until >= self._open_counted + SECOND:
                self._open_counted = until
                batch.outstanding = self.outstanding(until)

    def cut_times(self, uint64_t now):
        """Add up the time of all watched threads until now, for the next batch."""
        if self._plan.times.wanted:
            self._times_cut = now
            if not engine_cut_times(self._engine, now):
                raise MemoryError

    def lose_times(self, uint64_t until):
        """No state of a thread is known from the last event until a moment: events may be missing."""
        if self._plan.times.wanted:
            engine_lose_times(self._engine, until)

    def watch(self, threads):
        """Add up the time of these threads from now on, see `Watched`. What their events have told is kept."""
        cdef watched_thread one
        for thread in threads if self._plan.times.wanted else ():
            one.tid, one.since, one.state, one.seen, reason, one.certain = thread
            if reason and reason not in self._reasons:
                self._reasons.append(reason)
            one.place = self._reasons.index(reason) + 1 if reason else 0
            if not engine_watch(self._engine, &one):
                raise MemoryError

    def watched(self):
        """Return the ids of the threads whose time is added up."""
        cdef uint32_t i, number
        cdef int32_t* tids
        if not self._plan.times.wanted:
            return set()
        number = engine_watched(self._engine, NULL, 0)
        tids = <int32_t*>malloc(max(1, number) * sizeof(int32_t))
        if tids == NULL:
            raise MemoryError
        engine_watched(self._engine, tids, number)
        found = {tids[i] for i in range(number)}
        free(tids)
        return found

    def end_thread(self, int32_t tid, uint64_t now):
        """Add up the time of this thread no more, of which it was not told that it has ended."""
        if self._plan.times.wanted and not engine_end_thread(self._engine, tid, now):
            raise MemoryError

    def drop(self, layout_id):
        """Count the open first halves of the join with this joined layout as unpaired."""
        for number, one in enumerate(self._wanted.join_plans):
            if one.join.layout.layout_id == layout_id:
                engine_drop_join(self._engine, number)

    @property
    def time(self):
        """The time of the last event."""
        return engine_counts(self._engine).time

    @property
    def open(self):
        """The number of first halves that wait for their second half."""
        return engine_open(self._engine)

    @property
    def queued(self):
        """The number of halves that were read since the last call of ``join``."""
        cdef const engine_counts_of* counts = engine_counts(self._engine)
        return counts.queued - counts.left

    @property
    def has_losses(self):
        """Whether ``take`` would return losses."""
        return engine_has_losses(self._engine)

    @property
    def waiting(self):
        """The number of records, losses and tallies that ``take`` would return."""
        cdef const engine_counts_of* counts = engine_counts(self._engine)
        cdef uint64_t number = counts.exported + counts.losses
        cdef uint32_t i
        for i in range(self._plan.ngroups):
            number += engine_tallies(self._engine, i).ntallies
        return len(self._batch.records) + number

    def take(self):
        """Return what arrived since the last call."""
        cdef engine_counts_of* counts = engine_counts(self._engine)
        cdef const loss_interval* losses
        cdef event_type* one
        cdef uint32_t i, number
        batch, self._batch = self._batch, Batch()
        self._frames.clear()  # a module may come, and its names with it
        self._process = None
        batch.unparsed, batch.lost = counts.unparsed, counts.lost
        counts.unparsed = counts.lost = 0
        if not engine_take_losses(self._engine, &losses, &number):
            raise MemoryError
        for i in range(number):
            batch.losses.append(loss(losses[i].cpu, losses[i].start, losses[i].end))
        for i in range(self._plan.ntypes):
            one = &self._plan.types[i]
            layout_id = self._wanted.shapes[i].layout.layout_id
            if one.arrived:
                batch.arrived[layout_id] = one.arrived
                if one.filter >= 0 or i in self._wanted.tests:
                    batch.passed[layout_id] = one.passed
            if one.own:
                batch.own[layout_id] = one.own
            one.arrived = one.passed = one.own = 0
        for i in range(self._plan.nsingle):
            self._empty(i, batch)
        return batch

    def resume_from(self, PageParser before):
        """Continue after the last ``take`` of another parser, perhaps between an event and its stack."""
        cdef int32_t* numbers
        cdef join_counts counts
        cdef bint done
        self._stacked, self._followed = before._stacked, before._followed
        self._orphans = before._orphans
        self._times_cut, self._reasons = before._times_cut, before._reasons
        identities = [one.identity for one in self._wanted.join_plans]
        joins = []
        for number, one in enumerate(before._wanted.join_plans):
            joins.append(identities.index(one.identity) if one.identity in identities else -1)
            if joins[number] < 0:
                engine_drop_join(before._engine, number)
                counts = engine_take_join_counts(before._engine, number)
                if counts.unpaired:
                    self._orphans[one.join.layout.layout_id] += counts.unpaired
        types = [self._number_here(before, number) for number in range(before._plan.ntypes)]
        numbers = <int32_t*>malloc((len(joins) + len(types) + 1) * sizeof(int32_t))
        if numbers == NULL:
            raise MemoryError
        for number, one in enumerate([*joins, *types]):
            numbers[<uint32_t>number] = one
        done = engine_resume(self._engine, before._engine, numbers, numbers + len(joins))
        free(numbers)
        if not done:
            raise MemoryError

    cdef object _number_here(self, PageParser before, uint32_t number):
        """Return the number of another parser's type here, or whether it was a half of a join."""
        cdef uint8_t role = before._plan.types[number].role.role
        shape = before._wanted.shapes[number]
        found = self._wanted.numbers.get(shape.layout.layout_id)
        if (
            found is not None
            and self._wanted.shapes[found]._replace(id=0) == shape._replace(id=0)
            and self._plan.types[<uint32_t>found].role.role == role
        ):
            return found
        return TYPE_REMOVED_HALF if role < ROLE_STARTED else TYPE_REMOVED

    # Values that the engine asks for.

    cdef int _find(
        self, uint32_t number, const uint8_t* start, uint32_t length, int32_t tid, looked_up* out
    ) except -1:
        """Give the engine a value that it does not read from a record."""
        find = self._look_ups[number]
        value = self._looked_up = find(PyBytes_FromStringAndSize(<const char*>start, length), 0, length, tid)
        if isinstance(value, bytes):
            out.text, out.length, out.kind = <const uint8_t*>PyBytes_AsString(value), len(value), KEY_TEXT
        elif value is not None:
            out.number, out.kind = _number(value), KEY_NEGATIVE if value < 0 else KEY_POSITIVE
        return 0

    cdef int _raise_failure(self) except -1:
        """Raise the first error of a look-up since the last call."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return 0

    # Records of what was found.

    cdef int _make_found(self, int cpu) except -1:
        """Make records and stacks of what was found in the last pages, which are still in memory."""
        self._raise_failure()
        cdef uint32_t i, number
        cdef const found* some = engine_found(self._engine, &number)
        cdef const found* one
        cdef event_type* kind
        cdef const uint8_t* before = NULL
        cdef const uint8_t* begun = NULL
        records = self._batch.records
        for i in range(number):
            one = &some[i]
            if one.type == FOUND_LOSS:
                self._stacked.pop(cpu, None)
                self._followed.pop(cpu, None)
            elif one.type == FOUND_KERNEL_STACK:
                self._add_kernel_stack(one, cpu)
            elif one.type == FOUND_USER_STACK:
                self._add_user_stack(one, cpu)
            else:
                kind = &self._plan.types[one.type]
                if kind.stacks & USER_STACK and one.start != begun:
                    self._followed.pop(cpu, None)
                    begun = one.start
                record = self._record(one.start, one.length, one.type, one.time, cpu)
                test = self._wanted.tests.get(one.type)
                if test is not None:
                    kind.arrived += 1
                    if not test(record):
                        continue
                    kind.passed += 1
                records.append(record)
                if kind.stacks & KERNEL_STACK:
                    self._expect(self._stacked, record, one.start == before)
                    before = one.start
                if kind.stacks & USER_STACK:
                    self._expect(self._followed, record, cpu in self._followed)
        return 0

    cdef object _record(self, const uint8_t* start, uint32_t length, int32_t number, uint64_t time, int cpu):
        """Return the record of these bytes, which have its type's size at least."""
        cdef const event_type* kind = &self._plan.types[number]
        cdef int32_t tid = <int32_t>_u32(start + 4)
        cdef uint32_t i
        cdef tuple made = PyTuple_New(6 + <Py_ssize_t>kind.nfields)
        readers = self._readers[number]
        _set(made, 0, self._wanted.shapes[number].layout.layout_id)
        _set(made, 1, time)
        _set(made, 2, cpu)
        _set(made, 3, tid)
        _set(made, 4, self._process_of(tid) if self._wants_tgid else None)
        if kind.caller.kind == FIELD_UNSIGNED:
            _set(made, 5, self._names.caller(_u64(start + kind.caller.offset)))
        else:
            _set(made, 5, None)
        for i in range(kind.nfields):
            _set(made, 6 + i, self._value(&kind.fields[i], start, length, tid, readers[i]))
        return made

    cdef object _process_of(self, int32_t tid):
        """Return a thread's process, asked for once for all of its records in a row."""
        if self._process is None or tid != self._thread:
            self._thread, self._process = tid, self._names.tgid(tid)
        return self._process

    cdef object _value(self, const field_ref* ref, const uint8_t* start, uint32_t length, int32_t tid, read_it):
        cdef number value
        cdef const uint8_t* text
        cdef uint32_t size
        if ref.kind == FIELD_COMPLEX:
            return read_it(PyBytes_FromStringAndSize(<const char*>start, length), 0, length, tid)
        if engine_number(ref, start, length, &value):
            return _int(value)
        if engine_text(ref, start, length, &text, &size):
            return PyBytes_FromStringAndSize(<const char*>text, size)
        return None

    cdef object _expect(self, waiting, record, bint same):
        """Note that a stack may follow, for all records of this event. Two events may have the same time."""
        _, _, cpu, tid, *_ = record
        if same:
            waiting[cpu][1].append(record)
        else:
            waiting[cpu] = (tid, [record])

    cdef object _owners_of(self, waiting, const found* one, int cpu):
        """Return the records that wait for this stack on its CPU, None if they are another thread's."""
        expected = waiting.pop(cpu, None)
        return expected[1] if expected is not None and expected[0] == <int32_t>_u32(one.start + 4) else None

    cdef object _add_user_stack(self, const found* one, int cpu):
        """Give a program's stack to the records right before it: every event of the instance has one."""
        owners = self._owners_of(self._followed, one, cpu)
        if owners is not None:
            process = _u32(one.start + self._plan.user_process_at)
            addresses = self._addresses_of(one, self._plan.user_stack_at, USER_STACK)
            self._batch.user_stacks += [(record, process, addresses) for record in owners]

    cdef object _add_kernel_stack(self, const found* one, int cpu):
        """Give the kernel's stack to the latest records that have one."""
        owners = self._owners_of(self._stacked, one, cpu)
        if owners is not None:
            addresses = self._addresses_of(one, self._plan.stack_at, KERNEL_STACK)
            frames = tuple([self._frame(address) for address in addresses])
            self._batch.stacks += [(record, frames) for record in owners]

    cdef object _addresses_of(self, const found* one, uint32_t first, stack_kind kind):
        """Return the addresses of a stack's event."""
        first = min(first, one.length)
        return _addresses(one.start + first, engine_stack_end(one.start, first, one.length, kind) - first)

    cdef object _frame(self, uint64_t address):
        """Return the name of a function in a stack, which many stacks share."""
        name = self._frames.get(address)
        if name is None:
            name = self._frames[address] = frame(self._names, address)
        return name

    cdef tuple _kernel_frames(self, const uint8_t* stacks, uint32_t length):
        """Return the names of the kernel's functions in the stacks of a record."""
        cdef uint32_t first
        if length == 0:
            return ()
        first = STACK_HEAD + _u32(stacks + 4)
        return tuple([self._frame(address) for address in _addresses(stacks + first, length - first)])

    # Sums and exported records.

    cdef int _take_joined(self, batch) except -1:
        """Move the sums of the joins to the batch, and the exported records."""
        cdef uint32_t i
        cdef join_counts counts
        cdef join_variant* variant
        for i, one in enumerate(self._wanted.join_plans):
            counts = engine_take_join_counts(self._engine, i)
            layout_id = one.join.layout.layout_id
            if counts.begun:
                batch.begun[layout_id] = batch.begun.get(layout_id, 0) + counts.begun
            if counts.unpaired:
                batch.unpaired[layout_id] += counts.unpaired
            if counts.evicted:
                batch.evicted[layout_id] += counts.evicted
        batch.unpaired.update(self._orphans)
        self._orphans.clear()
        for i, one in enumerate(self._wanted.variants):
            variant = &self._plan.variants[i]
            if variant.arrived:
                batch.arrived[one.layout_id] = batch.arrived.get(one.layout_id, 0) + variant.arrived
                if variant.filtered:
                    batch.passed[one.layout_id] = batch.passed.get(one.layout_id, 0) + variant.passed
            variant.arrived = variant.passed = 0
        for i in range(self._plan.nsingle, self._plan.ngroups):
            self._empty(i, batch)
        return self._take_exported(batch)

    def outstanding(self, uint64_t now):
        """Return, for each join that asks for it, the number of its outstanding first halves and their weight."""
        cdef uint32_t i, first
        cdef tally_table* table
        found = {}
        for i, one in enumerate(self._wanted.join_plans):
            wanted = one.join.outstanding
            if wanted is None:
                continue
            if not engine_add_open(self._engine, i, max(0, now - wanted.older_than), OPEN_NUMBER):
                raise MemoryError
            number = weight = 0
            for first in range(one.first_variant, one.first_variant + len(one.join.begins)):
                if self._plan.variants[first].nopen:
                    table = engine_tallies(self._engine, self._plan.variants[first].first_open)
                    number += table.unreadable
                    if table.ntallies:
                        number += table.tallies[0].count
                        weight += _int(table.tallies[0].sum)
                    table.unreadable = 0
                    engine_clear_tallies(table)
            found[one.join.layout.layout_id] = number, None if wanted.weigh is None else weight
        return found

    def open_stacks(self, layout_id, uint64_t now):
        """Return the stacks of a join's outstanding first halves, and the number of those without one."""
        cdef uint32_t i, first
        batch = Batch()
        for i, one in enumerate(self._wanted.join_plans):
            wanted = one.join.outstanding
            if wanted is None or one.join.layout.layout_id != layout_id:
                continue
            if not engine_add_open(self._engine, i, max(0, now - wanted.older_than), OPEN_STACKS):
                raise MemoryError
            for first in range(one.first_variant, one.first_variant + len(one.join.begins)):
                if self._plan.variants[first].nopen:
                    i = self._plan.variants[first].first_open + OPEN_STACKS
                    self._empty_stacks(engine_tallies(self._engine, i), layout_id, batch)
        return batch.stack_tallies, batch.without_stack[layout_id]

    cdef int _take_exported(self, batch) except -1:
        """Move the exported records to the batch."""
        cdef size_t at = 0
        cdef uint32_t i, nsteps
        cdef const uint8_t* second
        cdef const exported_record* one = engine_next_exported(self._engine, &at)
        while one != NULL:
            second = <const uint8_t*>(one + 1) + one.lengths[0]
            record = self._record(
                <const uint8_t*>(one + 1), one.lengths[0], one.types[0], one.times[0], one.cpus[0]
            )
            if one.variant >= 0:
                nsteps = self._plan.joins[self._plan.variants[one.variant].join].nsteps
                record = self._wanted.variants[one.variant].make(
                    record,
                    self._record(second, one.lengths[1], one.types[1], one.times[1], one.cpus[1]),
                    _steps(second - 8 * nsteps, nsteps),
                )
            trace = <object>one.trace[0] << 64 | one.trace[1]
            frames = self._kernel_frames(second + one.lengths[1], one.stack_length)
            batch.emissions.append(Emission(record, trace, one.span, one.parent, frames))
            one = engine_next_exported(self._engine, &at)
        engine_clear_exported(self._engine)
        for i in range(self._plan.nexports):
            if self._plan.exports[i].dropped:
                batch.limited[self._plan.exports[i].layout_id] += self._plan.exports[i].dropped
                self._plan.exports[i].dropped = 0
        return 0

    cdef int _empty(self, uint32_t number, batch) except -1:
        """Move the sums of a group to the batch."""
        cdef tally_table* table = engine_tallies(self._engine, number)
        cdef uint32_t nbuckets = self._plan.groups[number].nbounds + 1
        cdef uint32_t i, b
        cdef const tally* one
        sums = self._wanted.sums[number]
        if sums.group.feeds == STACKS:
            return self._empty_stacks(table, sums.layout_id, batch)
        if sums.group.feeds == TIMES:
            return self._empty_times(table, ThreadState(number - self._plan.times.first_group), batch)
        if table.negative or table.unreadable:
            batch.refused.append(Refused(sums.layout_id, sums.group.feeds, table.negative, table.unreadable))
            table.negative = table.unreadable = 0
        if table.ntallies == 0:
            return 0
        layout_id, feeds, finer = sums.layout_id, sums.group.feeds, sums.group.exponential
        nkeys, by_thread = len(sums.keys), bool(sums.group.cgroups)
        for i in range(table.ntallies):
            one = &table.tallies[i]
            buckets = bucket = None
            if nbuckets:
                buckets = tuple([table.buckets[<size_t>i * nbuckets + b] for b in range(nbuckets)])
            key = _raw_key(table.key_bytes + one.key_at, sums.resolvers)
            if finer is not None:
                bucket = finer.bucket(key[len(key) - 1])
            made = Tally(layout_id, feeds, key[:nkeys], one.count, _int(one.sum), one.time, buckets, bucket)
            if by_thread:
                batch.by_thread.append((one.first_time, made))
            else:
                batch.tallies.append(made)
        engine_clear_tallies(table)
        return 0

    cdef int _empty_times(self, tally_table* table, state, batch) except -1:
        """Move the time of threads in a state to the batch. A key is a thread, and a stack, a cgroup or none."""
        cdef uint32_t i, length
        cdef const uint8_t* at
        cdef const tally* one
        for i in range(table.ntallies):
            one = &table.tallies[i]
            at = table.key_bytes + one.key_at + 16
            stack, reason, cgroup = None, "", b""
            if <uint8_t>_u64(at) == KEY_TEXT:
                length = <uint32_t>(_u64(at) >> 8)
                if state == ThreadState.THROTTLED:
                    cgroup = PyBytes_FromStringAndSize(<const char*>at + 8 + STACK_HEAD, length - STACK_HEAD)
                elif length == STACK_HEAD + 8 and _u64(at + 8 + STACK_HEAD) < LOWEST_ADDRESS:
                    place = _u64(at + 8 + STACK_HEAD)
                    reason = self._reasons[place - 1] if place else ""
                else:
                    stack = self._kernel_frames(at + 8, length)
            tid = <int32_t>_u64(table.key_bytes + one.key_at + 8)
            batch.thread_times.append(
                ThreadTime(tid, state, _int(one.sum), one.first_time, stack, reason, cgroup)
            )
        engine_clear_tallies(table)
        return 0

    cdef int _empty_stacks(self, tally_table* table, layout_id, batch) except -1:
        """Move the stacks of a group to the batch."""
        cdef uint32_t i, length
        cdef const uint8_t* at
        cdef const tally* one
        if table.unreadable:
            batch.without_stack[layout_id] += table.unreadable
        for i in range(table.ntallies):
            one = &table.tallies[i]
            at = table.key_bytes + one.key_at
            if <uint8_t>_u64(at) == KEY_ABSENT:
                batch.without_stack[layout_id] += one.count
                continue
            length, at = <uint32_t>(_u64(at) >> 8), at + 8
            addresses = _addresses(at + STACK_HEAD, _u32(at + 4))
            kernel = self._kernel_frames(at, length)
            weight = Weight(one.count, _int(one.sum))
            batch.stack_tallies.append(StackTally(layout_id, kernel, _u32(at), addresses, weight))
        table.negative = table.unreadable = 0  # an error has no weight, and is not lost
        engine_clear_tallies(table)
        return 0


cdef void _look_up(
    void* caller, uint32_t number, const uint8_t* start, uint32_t length, int32_t tid, looked_up* out
) noexcept with gil:
    """Look a value up for the engine, which then runs with the lock: getting it back may take 5 ms each time."""
    parser = <PageParser>caller
    try:
        parser._find(number, start, length, tid, out)
    except Exception as error:
        parser._error = parser._error or error


cdef object _raw_key(const uint8_t* at, resolvers):
    """Return what a record would hold for each part of a key."""
    cdef uint32_t length
    cdef uint8_t kind
    cdef number value
    parts = []
    for resolve in resolvers:
        part = None
        kind = <uint8_t>_u64(at)
        if kind == KEY_POSITIVE or kind == KEY_NEGATIVE:
            value.high, value.low = (0 if kind == KEY_POSITIVE else -1), _u64(at + 8)
            part = _int(value)
            at += 16
        elif kind == KEY_TEXT:
            length = <uint32_t>(_u64(at) >> 8)
            part = PyBytes_FromStringAndSize(<const char*>at + 8, length)
            at += 8 + ((length + 7) & ~<uint32_t>7)
        else:
            at += 8
        parts.append(part if resolve is None else resolve(part))
    return tuple(parts)
