# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Counts the lines of trace_pipe whose text was read before, compiled: what lines.py does with each again.

Most events differ from an earlier one only in what stands before the event's name: thread, CPU and time. The
text from the name on is looked up here; repeated_lines.py says what is to be counted apart. A line
that is not in the kernel's usual form, or whose text is not known, is left to lines.py. It costs about 100 ns
a line. Nothing outside of the text is read.
"""

import os

from cpython.bytes cimport PyBytes_AsString
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

cdef enum:
    NAME_COLUMNS = 16
    LONGEST = 65536  # lines.py has the same bounds
    MOST_CPUS = 8192
    MOST_TEXTS = 16384
    TEXT_SLOTS = 65536
    MOST_ROWS = 16384
    ROW_SLOTS = 65536
    ARENA = 4194304

cdef struct Text:
    uint64_t hash
    uint64_t count
    uint32_t at
    uint32_t length
    bint by_cpu
    bint by_tid

cdef struct Row:  # the lines of one text that are of one CPU or thread
    uint64_t count
    uint32_t text
    uint32_t cpu
    uint32_t tid

cdef struct Line:
    uint64_t time
    uint32_t cpu
    uint32_t tid
    const uint8_t* text
    uint32_t length
    size_t after


cdef inline bint _digit(uint8_t byte) noexcept nogil:
    return byte >= 48 and byte <= 57


cdef inline bint _blank(uint8_t byte) noexcept nogil:
    return byte == 32 or (byte >= 9 and byte <= 13)


cdef inline bint _decimal(const uint8_t** at, const uint8_t* end, uint32_t most, uint64_t* out) noexcept nogil:
    """Read up to ``most`` digits, and no more; False if there is none, or one more."""
    cdef const uint8_t* p = at[0]
    cdef uint64_t value = 0
    cdef uint32_t count = 0
    while p < end and _digit(p[0]):
        if count == most:
            return False
        value = value * 10 + (p[0] - 48)
        count += 1
        p += 1
    at[0], out[0] = p, value
    return count > 0


cdef bint _line(const uint8_t* data, size_t at, size_t end, Line* out) noexcept nogil:
    """Read what stands before an event's name (PREFIX of lines.py); False for anything else."""
    cdef const uint8_t* start = data + at
    cdef const uint8_t* stop = data + end
    cdef const uint8_t* p
    cdef const uint8_t* flags
    cdef const uint8_t* newline
    cdef uint64_t tid, tgid, cpu, seconds, micros
    if stop - start < NAME_COLUMNS + 2 or start[NAME_COLUMNS] != 45:
        return False
    p = start + NAME_COLUMNS + 1
    if not _decimal(&p, stop, 10, &tid) or tid >> 32 or p == stop or p[0] != 32:
        return False
    while p < stop and p[0] == 32:
        p += 1
    if p < stop and p[0] == 40:  # the thread group, with option record-tgid
        p += 1
        while p < stop and p[0] == 32:
            p += 1
        if p < stop and p[0] == 45:
            while p < stop and p[0] == 45:
                p += 1
        elif not _decimal(&p, stop, 10, &tgid):
            return False
        if stop - p < 2 or p[0] != 41 or p[1] != 32:
            return False
        p += 2
    if p == stop or p[0] != 91:
        return False
    p += 1
    if not _decimal(&p, stop, 10, &cpu) or cpu >= MOST_CPUS or stop - p < 3 or p[0] != 93 or p[1] != 32:
        return False
    p += 2
    if not _digit(p[0]) and not _blank(p[0]):  # irqs-off, need-resched, …
        flags = p
        while p < stop and not _blank(p[0]):
            p += 1
        if p == stop or p[0] != 32 or p - flags < 4 or p - flags > 5:
            return False
        p += 1
    while p < stop and p[0] == 32:
        p += 1
    if not _decimal(&p, stop, 12, &seconds) or p == stop or p[0] != 46:
        return False
    p += 1
    flags = p
    if not _decimal(&p, stop, 6, &micros) or p - flags != 6 or stop - p < 2 or p[0] != 58 or p[1] != 32:
        return False
    p += 2
    newline = <const uint8_t*>memchr(p, 10, stop - p)
    if newline == NULL or newline + 1 - start > LONGEST:
        return False
    out.time = (seconds * 1000000 + micros) * 1000
    out.cpu, out.tid = <uint32_t>cpu, <uint32_t>tid
    out.text, out.length = p, <uint32_t>(newline - p)
    out.after = newline + 1 - data
    return True


cdef inline uint64_t _hash(const uint8_t* text, uint32_t length, uint64_t seed) noexcept nogil:
    """Hash a text, 8 bytes at a time. The seed is secret, because users choose the strings in it."""
    cdef uint64_t value = seed ^ length, word
    cdef uint32_t at = 0
    while at < length:
        word = 0
        memcpy(&word, text + at, 8 if length - at > 8 else length - at)
        value = (value ^ word) * <uint64_t>0x9E3779B97F4A7C15
        value ^= value >> 29
        at += 8
    value *= <uint64_t>0xBF58476D1CE4E5B9
    return value ^ (value >> 32)


cdef class LineCounter:
    """The texts that were learnt, by the number that ``learn`` gave them, and how often they came again.

    ``scan`` counts the lines from a position on, up to the first one that it leaves to others. ``first`` is
    the time of the first line that it counted last, and ``counted`` is how many it has counted since
    ``clear``. Not thread-safe.
    """

    cdef Text* _texts
    cdef uint32_t* _by_hash
    cdef uint32_t _ntexts
    cdef Row* _rows
    cdef uint32_t* _rows_by_hash
    cdef uint32_t _nrows
    cdef uint8_t* _arena
    cdef uint32_t _used
    cdef uint64_t* _lasts
    cdef uint16_t* _touched
    cdef uint32_t _ntouched
    cdef uint64_t _seed
    cdef readonly uint64_t first
    cdef readonly uint64_t counted

    def __cinit__(self):
        self._seed = int.from_bytes(os.urandom(8), "little")
        self._texts = <Text*>malloc(MOST_TEXTS * sizeof(Text))
        self._by_hash = <uint32_t*>calloc(TEXT_SLOTS, 4)
        self._rows = <Row*>malloc(MOST_ROWS * sizeof(Row))
        self._rows_by_hash = <uint32_t*>calloc(ROW_SLOTS, 4)
        self._arena = <uint8_t*>malloc(ARENA)
        self._lasts = <uint64_t*>calloc(MOST_CPUS, 8)
        self._touched = <uint16_t*>malloc(MOST_CPUS * 2)
        if (
            self._texts == NULL or self._by_hash == NULL or self._rows == NULL or self._rows_by_hash == NULL
            or self._arena == NULL or self._lasts == NULL or self._touched == NULL
        ):
            raise MemoryError

    def __dealloc__(self):
        free(self._texts)
        free(self._by_hash)
        free(self._rows)
        free(self._rows_by_hash)
        free(self._arena)
        free(self._lasts)
        free(self._touched)

    def learn(self, bytes data, size_t start, size_t end, bint by_cpu, bint by_tid):
        """Count the lines with this text from now on, apart for each CPU or thread as said.

        Return the text's number, the next one each time, or None if there is no more room.
        """
        if start > end or end > <size_t>len(data):
            raise ValueError("this text is outside of the data")
        cdef uint32_t length = <uint32_t>(end - start), slot
        cdef const uint8_t* text = <const uint8_t*>PyBytes_AsString(data) + start
        cdef uint64_t hash = _hash(text, length, self._seed)
        cdef Text* new
        if self._ntexts == MOST_TEXTS or length > ARENA - self._used:
            return None
        slot = hash & (TEXT_SLOTS - 1)
        while self._by_hash[slot]:
            slot = (slot + 1) & (TEXT_SLOTS - 1)
        memcpy(self._arena + self._used, text, length)
        new = &self._texts[self._ntexts]
        new.hash, new.count, new.at, new.length = hash, 0, self._used, length
        new.by_cpu, new.by_tid = by_cpu, by_tid
        self._used += length
        self._ntexts += 1
        self._by_hash[slot] = self._ntexts
        return self._ntexts - 1

    def scan(self, bytes data, size_t at, size_t end):
        """Count the lines from ``at`` on; return where the first one begins that was not counted."""
        if end > <size_t>len(data):
            raise ValueError("this end is outside of the data")
        cdef const uint8_t* text = <const uint8_t*>PyBytes_AsString(data)
        cdef Line line
        cdef uint64_t before = self.counted
        with nogil:
            while at < end and _line(text, at, end, &line) and self._count(&line):
                if self.counted == before:
                    self.first = line.time
                self.counted += 1
                if self._lasts[line.cpu] == 0:
                    self._touched[self._ntouched] = <uint16_t>line.cpu
                    self._ntouched += 1
                self._lasts[line.cpu] = line.time + 1
                at = line.after
        return at

    def lasts(self):
        """Return the time of the last counted line of each CPU since the last call."""
        cdef uint32_t i
        found = {}
        for i in range(self._ntouched):
            found[self._touched[i]] = self._lasts[self._touched[i]] - 1
            self._lasts[self._touched[i]] = 0
        self._ntouched = 0
        return found

    def take(self):
        """Return (number of the text, CPU, thread, lines) for all that was counted since the last call.

        The CPU and the thread are None where they are not told apart.
        """
        cdef uint32_t i
        cdef Text* text
        cdef Row* row
        found = []
        for i in range(self._ntexts):
            text = &self._texts[i]
            if text.count:
                found.append((i, None, None, text.count))
                text.count = 0
        for i in range(self._nrows):
            row = &self._rows[i]
            text = &self._texts[row.text]
            cpu, tid = row.cpu if text.by_cpu else None, row.tid if text.by_tid else None
            found.append((row.text, cpu, tid, row.count))
        if self._nrows:
            memset(self._rows_by_hash, 0, ROW_SLOTS * 4)
            self._nrows = 0
        return found

    def clear(self):
        """Forget all texts. What was counted and not taken is lost."""
        memset(self._by_hash, 0, TEXT_SLOTS * 4)
        memset(self._rows_by_hash, 0, ROW_SLOTS * 4)
        self._ntexts = self._nrows = self._used = 0
        self.counted = 0

    cdef bint _count(self, const Line* line) noexcept nogil:
        """Count one line; False if its text is not known, or if there is no room to tell it apart."""
        cdef uint64_t hash = _hash(line.text, line.length, self._seed)
        cdef uint32_t slot = hash & (TEXT_SLOTS - 1)
        cdef Text* text
        while self._by_hash[slot]:
            text = &self._texts[self._by_hash[slot] - 1]
            if text.hash == hash and text.length == line.length and (
                memcmp(self._arena + text.at, line.text, line.length) == 0
            ):
                if text.by_cpu or text.by_tid:
                    return self._count_apart(text, self._by_hash[slot] - 1, line)
                text.count += 1
                return True
            slot = (slot + 1) & (TEXT_SLOTS - 1)
        return False

    cdef bint _count_apart(self, const Text* text, uint32_t number, const Line* line) noexcept nogil:
        cdef uint32_t cpu = line.cpu if text.by_cpu else 0, tid = line.tid if text.by_tid else 0
        cdef uint64_t hash = (<uint64_t>tid << 32 | cpu) * <uint64_t>0x9E3779B97F4A7C15 ^ text.hash
        cdef uint32_t slot
        cdef Row* row
        hash = (hash ^ (hash >> 29)) * <uint64_t>0xBF58476D1CE4E5B9
        slot = (hash >> 32) & (ROW_SLOTS - 1)
        while self._rows_by_hash[slot]:
            row = &self._rows[self._rows_by_hash[slot] - 1]
            if row.text == number and row.cpu == cpu and row.tid == tid:
                row.count += 1
                return True
            slot = (slot + 1) & (ROW_SLOTS - 1)
        if self._nrows == MOST_ROWS:
            return False
        row = &self._rows[self._nrows]
        row.count, row.text, row.cpu, row.tid = 1, number, cpu, tid
        self._nrows += 1
        self._rows_by_hash[slot] = self._nrows
        return True
