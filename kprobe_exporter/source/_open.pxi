"""The open first halves of calls and pairs, as aggregate/open_calls.py keeps them, without Python objects.

A half is the bytes of its record; those with the same key are a list (_lists.pxi). Losses say which halves
may not be joined.
"""

cdef uint64_t MOST_OPEN = 65536
"""The most open halves of a parser, over all joins; beyond it, the oldest lists are dropped, a 64th at once."""
cdef size_t MOST_OPEN_BYTES = 64 << 20
"""The most bytes of open halves, with the same consequence: a half with a long string may have 4 KiB."""


cdef inline uint8_t* _half_bytes(OpenHalf* half) noexcept nogil:
    return <uint8_t*>half + sizeof(OpenHalf)


cdef inline OpenHalf* _take_half(Open* open, OpenList* one) noexcept nogil:
    """Remove and return the innermost half of a list, which may be empty then."""
    cdef OpenHalf* half = one.innermost
    one.innermost = half.outer
    open.number -= 1
    open.bytes -= half.length
    return half


cdef inline bint _is_lost(const OpenHalf* half) noexcept nogil:
    """Return whether a half without its second half is a loss: its thread made it, and it may pass the filter."""
    return half.way != INHERITED and not half.excluded


cdef inline void _leave(Open* open, OpenList* one, OpenHalf* half) noexcept nogil:
    """Count a half that was taken out as unpaired, if `_is_lost` and it was not counted before."""
    if _is_lost(half) and half.time >= open.told_until:
        open.slots[one.slot].unpaired += 1
    _free_half(open, half)


cdef bint _drop_below(Open* open, OpenList* one, uint64_t place) noexcept nogil:
    """Drop the halves of a list that lie below a place; return whether any is left. If not, it is freed."""
    while one.innermost != NULL and one.innermost.place < place:
        _leave(open, one, _take_half(open, one))
    if one.innermost != NULL:
        return True
    _remove_list(open, one)
    return False


cdef void _drop(Open* open, OpenList* one) noexcept nogil:
    """Drop a list."""
    while one.innermost != NULL:
        _leave(open, one, _take_half(open, one))
    _remove_list(open, one)


cdef bint _drop_to(Open* open, OpenList* one, uint64_t place) noexcept nogil:
    """Drop the halves at a place or below it; return whether any is left."""
    if place < NEVER:
        return _drop_below(open, one, place + 1)
    _drop(open, one)
    return False


cdef void _drop_before(Open* open, OpenList* one, uint64_t until) noexcept nogil:
    """Drop the halves of a list that began before a moment."""
    cdef OpenHalf** at = &one.innermost
    cdef OpenHalf* half
    while at[0] != NULL:
        half = at[0]
        if half.time >= until:
            at = &half.outer
            continue
        at[0] = half.outer
        open.number -= 1
        open.bytes -= half.length
        _leave(open, one, half)
    if one.innermost == NULL:
        _remove_list(open, one)


cdef void _trim(Open* open) noexcept nogil:
    """Drop the oldest lists, if more is open than the bounds allow."""
    if open.number > open.most:
        while open.oldest != NULL and open.number > open.most - open.most // 64:
            _drop(open, open.oldest)
    if open.bytes > MOST_OPEN_BYTES:
        while open.oldest != NULL and open.bytes > MOST_OPEN_BYTES - MOST_OPEN_BYTES // 64:
            _drop(open, open.oldest)


cdef OpenHalf* _new_half(const Rec* rec, int32_t way, uint64_t place) noexcept nogil:
    """Copy a first half and its stack; NULL if there is no memory."""
    cdef uint32_t length = rec.length + rec.stack_length
    cdef OpenHalf* half = <OpenHalf*>malloc(sizeof(OpenHalf) + length)
    if half == NULL:
        return NULL
    half.length, half.stack_length, half.enclosing = length, rec.stack_length, NULL
    half.place, half.time, half.tid, half.cpu, half.way = place, rec.time, rec.tid, rec.cpu, way
    memcpy(_half_bytes(half), rec.start, rec.length)
    if rec.stack_length:
        memcpy(_half_bytes(half) + rec.length, rec.stack, rec.stack_length)
    return half


cdef bint _put(
    Open* open, uint32_t slot, int32_t way, const Rec* rec, uint64_t place,
    const uint8_t* key, uint32_t length, int32_t thread_at, bint excluded
) noexcept nogil:
    """Open a half; False if there is no memory. Those at its place or below have ended."""
    cdef uint64_t hash = _hash(key, length, open.seed ^ slot)
    cdef const Nesting* nesting = &open.slots[slot].nesting
    cdef OpenHalf* half = _new_half(rec, way, place)
    cdef OpenList* one
    if half == NULL:
        return False
    half.excluded = excluded
    if nesting.encloses and not _enclose(open, half, nesting):
        free(half)
        return False
    one = _find(open, slot, key, length, hash)
    if one != NULL and one.innermost.place <= place and not _drop_to(open, one, place):
        one = NULL
    if one == NULL:
        one = _new_list(open, slot, key, length, hash, rec.tid, thread_at)
        if one == NULL:
            _free_half(open, half)
            return False
    half.outer, one.innermost = one.innermost, half
    one.handed_on = True
    open.number += 1
    open.bytes += half.length
    if half.time < open.told_until and _is_lost(half):
        open.slots[slot].unpaired += 1
    if open.number > open.most or open.bytes > MOST_OPEN_BYTES:
        _trim(open)
    return True


cdef OpenHalf* _pop(Open* open, OpenList* one) noexcept nogil:
    """Remove and return the innermost half of a list, and the list if it was the only one."""
    cdef OpenHalf* half = _take_half(open, one)
    if one.innermost == NULL:
        _remove_list(open, one)
    return half


cdef void _tell(Open* open, uint64_t start, uint64_t end) noexcept nogil:
    """Note a loss."""
    cdef uint32_t i
    if open.nlosses == MOST_LOSSES:
        for i in range(open.nlosses):
            start = min(start, open.losses[i].start)
            end = max(end, open.losses[i].end)
        open.nlosses = 0
    open.losses[open.nlosses] = Interval(start, end)
    open.nlosses += 1
    open.next_loss = min(open.next_loss, start)


cdef void _advance(Open* open, uint64_t now) noexcept nogil:
    """Apply the losses that began before ``now``: what began before their end is not joined any more."""
    cdef uint32_t i, left = 0
    open.next_loss = NEVER
    for i in range(open.nlosses):
        if open.losses[i].start < now:
            open.broken_until = max(open.broken_until, open.losses[i].end)
        else:
            open.next_loss = min(open.next_loss, open.losses[i].start)
            open.losses[left] = open.losses[i]
            left += 1
    open.nlosses = left


cdef void _count_broken(Open* open, uint64_t reached) noexcept nogil:
    """Count the open halves that a loss before ``reached`` broke: all that came up to then was joined."""
    cdef uint64_t before = open.told_until
    cdef OpenList* one = open.oldest
    cdef const OpenHalf* half
    if reached > open.next_loss:
        _advance(open, reached)
    if min(open.broken_until, reached) <= before:
        return
    open.told_until = min(open.broken_until, reached)
    while one != NULL:
        half = one.innermost
        while half != NULL:
            if before <= half.time < open.told_until and _is_lost(half):
                open.slots[one.slot].unpaired += 1
            half = half.outer
        one = one.newer


cdef void _free_open(Open* open) noexcept:
    """Free all, without counting."""
    if open == NULL:
        return
    while open.oldest != NULL:
        _drop(open, open.oldest)
    free(open.buckets)
    free(open.threads)
    free(open.in_calls)
    free(open.ended)
    free(open.ended_buckets)
    free(open.slots)
    free(open)


cdef Open* _new_open(uint32_t nslots, uint64_t seed, uint64_t most, uint64_t distance) noexcept:
    """Make it, empty; NULL if there is no memory."""
    cdef Open* open = <Open*>calloc(1, sizeof(Open))
    cdef uint32_t i
    if open == NULL:
        return NULL
    open.slots = <Slot*>calloc(max(1, nslots), sizeof(Slot))
    if open.slots == NULL:
        free(open)
        return NULL
    open.seed, open.most, open.next_loss, open.nslots = seed, most, NEVER, nslots
    open.random = seed | 1
    for i in range(nslots):
        open.slots[i].distance = distance
    return open
