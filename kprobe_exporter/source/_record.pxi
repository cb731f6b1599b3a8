"""Reads a record's values, without reading outside the record."""

cdef enum:
    UNSIGNED, SIGNED, TEXT, DYNAMIC, RELATIVE, CPU, TID, COMPUTED, ELAPSED, STACKED, NOTHING, COMPLEX

cdef enum:
    PLAIN, WIDE, POINTER

cdef uint64_t MAX_ERRNO = _MAX_ERRNO
cdef uint64_t LOWEST_ADDRESS = _LOWEST_ADDRESS

LARGEST = (1 << 64) - 1

OF_THREAD = frozenset({"tid", "pid", "common_pid", "common_tgid", PROCESS})
"""Fields that are the thread's id in a record, or are looked up by it."""

cdef struct Num:  # a whole number of 128 bits, two's complement: any u64 or s64, and any sum of them
    int64_t hi
    uint64_t lo

cdef enum:
    MOST_GUARDS = 16  # a fetch argument has 15 steps at most (FETCH_INSN_MAX of kernel/trace/trace_probe.h)

cdef struct Place:
    uint8_t kind
    uint8_t normal
    uint8_t fault
    uint8_t network
    uint8_t second  # it is in the second half of a joined record
    uint8_t guarded
    uint32_t guards[MOST_GUARDS]
    uint32_t offset
    uint32_t size

cdef struct Rec:  # of a joined record, the first half
    const uint8_t* start
    uint32_t length
    int32_t tid
    int32_t cpu
    uint64_t time
    const void* nodes  # of computed fields, whose offset is the number of a node
    const void* second  # the second half of a joined record, which is a Rec too
    uint64_t elapsed  # nanoseconds from the first half to the second
    const uint8_t* stack  # as _queue.pxi keeps it; NULL if it is missing, or not wanted
    uint32_t stack_length


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


cdef inline bint _is_null(const Place* field, const Rec* rec) noexcept nogil:
    """Whether a pointer through which the field was read is no address (model/values.py: is_address)."""
    cdef uint64_t pointer
    cdef uint32_t i
    for i in range(field.guarded):
        pointer = _u64(rec.start + field.guards[i])
        if pointer < LOWEST_ADDRESS or pointer >= <uint64_t>0 - MAX_ERRNO:
            return True
    return False


cdef inline uint64_t _swapped(uint64_t value, uint32_t size) noexcept nogil:
    """Return the number with its bytes in the opposite order."""
    cdef uint64_t out = 0
    cdef uint32_t i
    for i in range(size):
        out = out << 8 | (value & 0xFF)
        value >>= 8
    return out


cdef inline bint _number(const Place* field, const Rec* rec, Num* out) noexcept nogil:
    """Read a number; False if the field is none. `_event` has checked that the record is long enough."""
    cdef const uint8_t* at
    cdef int16_t half
    cdef int32_t whole
    cdef uint16_t uhalf
    if field.second:
        rec = <const Rec*>rec.second
    at = rec.start + field.offset
    if field.guarded and _is_null(field, rec):
        return False
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
        if field.network:
            out.lo = _swapped(out.lo, field.size)
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
    elif field.kind == COMPUTED:
        return _compute(<const Node*>rec.nodes, field.offset, rec, out)
    elif field.kind == ELAPSED:
        out.lo = rec.elapsed
    else:
        return False
    if field.normal == WIDE:  # an int's error that was read as 64 bits (model/values.py: ReturnType.wrap)
        if out.hi == 0 and out.lo >= (1ull << 32) - MAX_ERRNO and out.lo < (1ull << 32):
            out.lo -= 1ull << 32
            out.hi = -1
    elif field.normal == POINTER:
        if out.hi == 0 and out.lo >= <uint64_t>0 - MAX_ERRNO:
            out.hi = -1
    return True


cdef inline bint _text(const Place* field, const Rec* rec, const uint8_t** at, uint32_t* length) noexcept nogil:
    """Find a string in its record; False if the kernel could not read it, or if it leads outside."""
    cdef uint32_t place, first, size
    cdef const void* nul
    if field.kind == STACKED:
        at[0], length[0] = rec.stack, rec.stack_length
        return rec.stack != NULL
    if field.second:
        rec = <const Rec*>rec.second
    if field.guarded and _is_null(field, rec):
        return False
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


cdef Num _num(value):
    cdef Num number
    number.lo = value & LARGEST
    number.hi = value >> 64
    return number


cdef object _int(Num number):
    return (<object>number.hi << 64) + number.lo if number.hi else <object>number.lo


cdef int _place(field, Place* out) except -1:
    out.kind = {
        "unsigned": UNSIGNED, "signed": SIGNED, "text": TEXT, "dynamic": DYNAMIC, "relative": RELATIVE,
    }.get(field.kind, COMPLEX)
    out.offset, out.size, out.fault, out.normal = field.offset, field.size, field.fault, PLAIN
    out.second = False
    if len(field.guards) > MOST_GUARDS:
        raise ValueError("a field was read through too many pointers")
    out.network, out.guarded = field.network and sys.byteorder == "little", len(field.guards)
    for i, guard in enumerate(field.guards):
        out.guards[i] = guard
    return 0


cdef int _place_named(shape, str name, Place* out) except -1:
    """Fill in the place of a field by its name; NOTHING if the records do not have it."""
    memset(out, 0, sizeof(Place))
    if name == RECORDED_STACK:
        out.kind = STACKED
        return 0
    if isinstance(shape, Halves):
        return _place_joined(shape, name, out)
    if shape.layout.place(name) is not None:
        _place_own(shape, name, out)
        if name == "return":
            out.normal = _normal(shape.layout)
    elif name in ("cpu", "common_cpu"):
        out.kind = CPU
    elif name in OF_THREAD:
        out.kind = TID
    elif name == "caller" and shape.caller is not None:
        out.kind, out.offset, out.size = UNSIGNED, shape.caller.offset, shape.caller.size
    else:
        out.kind = NOTHING
    return 0


cdef int _place_own(shape, str name, Place* out) except -1:
    """Fill in the place of an argument as it was recorded; NOTHING if the records do not have it."""
    out.kind = NOTHING
    field = _field(shape, name)
    if field is None:
        return 0
    _place(field, out)
    if field.kind == "comm":
        out.kind = TID
    elif field.kind == "program":
        out.kind = DYNAMIC
    elif field.kind in ("char", "symbol"):
        out.kind = UNSIGNED
    return 0


def _field(shape, name):
    """Return where the records hold an argument, None if they do not have it."""
    place = shape.layout.place(name)
    return None if place is None else shape.fields[place - VALUES]


cdef int _normal(layout) except -1:
    """Return how an error in a return value of this layout is made negative."""
    if layout.returns is None:
        return PLAIN
    return WIDE if layout.returns.wide else POINTER if layout.returns.pointer else PLAIN


class Halves:
    """The shapes of both halves of a joined record, and its layout.

    A joined record has its thread and its CPU from the first half, its caller from the second, and each
    argument from the first half that has it.
    """

    def __init__(self, layout, first, second):
        self.layout, self.first, self.second = layout, first, second

    def holder(self, name):
        """Return the half with this field, None if the joined record has it of neither."""
        if name == "caller":
            return self.second
        if name in ("cpu", "common_cpu") or name in OF_THREAD:
            return self.first
        if self.layout.place(name) is None:
            return None
        return self.second if self.first.layout.place(name) is None else self.first


cdef int _place_joined(halves, str name, Place* out) except -1:
    """Fill in the place of a field of a joined record by its name; NOTHING if it does not have it."""
    out.kind = NOTHING
    holder = halves.holder(name)
    if holder is None:
        return 0
    if name == "duration":
        out.kind = ELAPSED
        return 0
    _place_named(holder, name, out)
    out.second = holder is halves.second
    out.normal = _normal(halves.layout) if name == "return" else PLAIN
    return 0
