"""The part of the page parser that makes records of bytes."""

cdef struct Pending:
    const uint8_t* start
    uint32_t length
    int32_t kind
    uint64_t time


cdef class Recording(Summing):
    """Makes the records to deliver: those of layouts without a recipe, and those that a recipe chooses."""

    cdef Kind* _kinds
    cdef uint32_t _nkinds
    cdef object _layout_ids, _numbers, _readers, _wants_tgid
    cdef int32_t _thread  # of the last record since the last ``take``, and its process
    cdef object _process

    cdef object _record(self, const Pending* one, int cpu):
        """Return the record of these bytes, which have its layout's size at least."""
        cdef const Kind* kind = &self._kinds[one.kind]
        cdef Rec rec
        cdef uint32_t i
        rec.start, rec.length, rec.nodes, rec.second = one.start, one.length, NULL, NULL
        memcpy(&rec.tid, one.start + 4, 4)
        readers = self._readers[one.kind]
        cdef tuple made = PyTuple_New(6 + <Py_ssize_t>kind.nfields)
        _set(made, 0, self._layout_ids[one.kind])
        _set(made, 1, one.time)
        _set(made, 2, cpu)
        _set(made, 3, rec.tid)
        _set(made, 4, self._process_of(rec.tid) if self._wants_tgid else None)
        if kind.caller.kind == UNSIGNED:
            _set(made, 5, self._names.caller(_u64(one.start + kind.caller.offset)))
        else:
            _set(made, 5, None)
        for i in range(kind.nfields):
            _set(made, 6 + i, self._value(&kind.fields[i], &rec, readers[i]))
        return made

    cdef object _process_of(self, int32_t tid):
        """Return a thread's process, asked for once for all of its records in a row."""
        if self._process is None or tid != self._thread:
            self._thread, self._process = tid, self._names.tgid(tid)
        return self._process

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


cdef inline void _set(tuple made, Py_ssize_t place, object value):
    Py_INCREF(value)
    PyTuple_SetItem(made, place, value)
