"""Keys: values of a record as bytes, by which records are counted and halves are joined.

A key is made of words of 8 bytes, each written at once: a word that is read while parts of it are still on
their way to memory stalls the CPU.
"""

cdef enum:  # the lowest byte of a value's first word; above it stands the length of a text
    ABSENT = 0
    POSITIVE = 1
    NEGATIVE = 2
    IS_TEXT = 3


cdef inline void _set_word(uint8_t* at, uint64_t word) noexcept nogil:
    memcpy(at, &word, 8)


cdef inline size_t _padded(size_t length) noexcept nogil:
    """Return the next multiple of 8."""
    return (length + 7) & ~<size_t>7


cdef inline uint8_t* _write_number(uint8_t* out, Num value) noexcept nogil:
    """Write a number as a part of a key; return the place behind it."""
    _set_word(out, POSITIVE if value.hi == 0 else NEGATIVE)
    _set_word(out + 8, value.lo)
    return out + 16


cdef inline uint8_t* _write_value(uint8_t* out, const Place* field, const Rec* rec) noexcept nogil:
    """Write a field's value as a part of a key; return the place behind it, NULL if the record lacks it."""
    cdef Num value
    cdef const uint8_t* text
    cdef uint32_t length
    if _number(field, rec, &value):
        return _write_number(out, value)
    if not _text(field, rec, &text, &length):
        return NULL
    _set_word(out, IS_TEXT | <uint64_t>length << 8)
    out += 8
    if length:
        _set_word(out + _padded(length) - 8, 0)
        memcpy(out, text, length)
    return out + _padded(length)


cdef inline uint8_t _kind_of(const uint8_t* part) noexcept nogil:
    """Return what a part of a key is."""
    return <uint8_t>_u64(part)


cdef inline uint32_t _text_length(const uint8_t* part) noexcept nogil:
    """Return the length of a part that is a text; it follows, up to a whole word."""
    return <uint32_t>(_u64(part) >> 8)


cdef inline uint64_t _hash(const uint8_t* key, uint32_t length, uint64_t seed) noexcept nogil:
    """Hash a key, a word at a time. The seed is secret, because users choose the strings."""
    cdef uint64_t value = seed ^ length
    cdef uint32_t at
    for at in range(0, length, 8):
        value = (value ^ _u64(key + at)) * <uint64_t>0x9E3779B97F4A7C15
        value ^= value >> 29
    value *= <uint64_t>0xBF58476D1CE4E5B9
    return value ^ (value >> 32)


cdef inline bint _same(const uint8_t* a, const uint8_t* b, uint32_t length) noexcept nogil:
    """Whether two keys of this length are equal."""
    cdef uint32_t at
    for at in range(0, length, 8):
        if _u64(a + at) != _u64(b + at):
            return False
    return True
