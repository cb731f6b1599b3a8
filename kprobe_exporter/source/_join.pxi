"""Joins two halves as aggregate/matching.py does.

The classes there explain the rules; tests hold both to the same results.
"""

cdef enum:  # what an event is for the joins
    NO_PART, BEGIN, END, SINGLE, STARTED, EXECUTED, EXITED, PLACED, MOVED

cdef enum:
    STACK_KEY = 16

cdef struct Chooser:  # which records are exported, though they are added up
    bint chooses
    int32_t where  # -1 for all
    uint64_t share  # of 2 ** 64 - 1
    uint32_t export

cdef struct Part:
    uint8_t role
    uint32_t slot  # of a single record, the number of its way
    int32_t way
    Place first  # the stack pointer, the child's id, or the thread's id before an exec; NOTHING of a move
    Place second  # the flags of clone()
    uint32_t nkeys
    Place* keys
    int32_t thread_key  # which key is the thread's id, or -1
    int32_t only  # the condition of a first half without which it is no loss, or -1
    uint8_t stacks  # which stacks that come after it are counted with it


cdef struct Kind:
    uint32_t size
    int32_t next
    uint32_t nfields
    Place* fields
    Place caller
    bint tallied
    bint of_all_threads  # those of this process's own threads are needed, too
    bint of_threads  # those of the buffers of events about threads, and no others
    uint64_t own  # events of this process's own threads, which were discarded
    uint8_t stacks  # which stacks come after it
    int32_t residual_filter
    uint32_t first
    uint32_t tables
    uint64_t arrived
    uint64_t passed
    Chooser chooser
    Part part

cdef struct Way:  # the records of a join that begin with one sort of event, or single ones that are queued
    int32_t residual_filter
    uint32_t first
    uint32_t tables
    uint64_t arrived
    uint64_t passed
    bint filtered  # by residual_filter, or a single record before it was queued
    uint32_t slot
    Chooser chooser
    int32_t[2] kinds  # of the halves of a joined record


cdef inline void _set_thread(uint8_t* key, int32_t tid) noexcept nogil:
    """Set the first word of a key by stack."""
    _set_word(key, <uint32_t>tid)


cdef inline void _stack_key(uint8_t* key, int32_t tid, uint64_t place) noexcept nogil:
    _set_thread(key, tid)
    _set_word(key + 8, place >> REGION)


cdef uint32_t _values_key(const Part* part, const Rec* rec, uint8_t* out, int32_t* thread_at) noexcept nogil:
    """Write the values by which a half is paired; return their length, 0 if one is missing."""
    cdef uint8_t* end = out
    cdef uint32_t i
    thread_at[0] = -1
    for i in range(part.nkeys):
        if part.thread_key == <int32_t>i:
            thread_at[0] = end - out
        end = _write_value(end, &part.keys[i], rec)
        if end == NULL:
            return 0
    return <uint32_t>(end - out)


cdef bint _begin_half(Open* open, const Part* part, const Rec* rec, uint8_t* scratch) noexcept nogil:
    """Open a first half; False if there is no memory."""
    cdef Slot* slot = &open.slots[part.slot]
    cdef Num place
    cdef uint32_t length
    cdef int32_t thread_at = 0
    cdef bint excluded = part.only >= 0 and _meets(<const Node*>rec.nodes, part.only, rec) != YES
    slot.begun += 1
    if slot.by_stack:
        if not _number(&part.first, rec, &place):
            slot.unpaired += not excluded
            return True
        _stack_key(scratch, rec.tid, place.lo)
        return _put(open, part.slot, part.way, rec, place.lo, scratch, STACK_KEY, 0, excluded)
    length = _values_key(part, rec, scratch, &thread_at)
    if length == 0:
        slot.unpaired += not excluded
        return True
    return _put(open, part.slot, part.way, rec, 0, scratch, length, thread_at, excluded)


cdef OpenHalf* _end_half(Open* open, const Part* part, const Rec* rec, uint8_t* scratch) noexcept nogil:
    """Return the first half of a second one, which is no longer open; NULL if it is missing or in doubt."""
    cdef OpenHalf* half
    cdef Slot* slot = &open.slots[part.slot]
    cdef OpenList* one
    cdef uint32_t length
    cdef int32_t thread_at = 0
    if slot.by_stack:
        half = _end_call(open, part, rec, scratch)
    else:
        length = _values_key(part, rec, scratch, &thread_at)
        if length == 0:
            return NULL
        one = _find(open, part.slot, scratch, length, _hash(scratch, length, open.seed ^ part.slot))
        half = NULL if one == NULL else _pop(open, one)
    if half == NULL:
        return NULL
    if half.way == INHERITED:
        _free_half(open, half)
        return NULL
    if rec.time > open.next_loss:
        _advance(open, rec.time)
    if half.time >= open.broken_until and half.time <= rec.time:
        return half
    if not half.excluded:
        slot.unpaired += 1 + (half.time >= open.told_until)
    _free_half(open, half)
    return NULL


cdef OpenHalf* _end_call(Open* open, const Part* part, const Rec* rec, uint8_t* scratch) noexcept nogil:
    """Return the entry of a return, which is no longer open; NULL if it is missing."""
    cdef Slot* slot = &open.slots[part.slot]
    cdef Num read
    cdef OpenList* one = NULL
    cdef uint64_t place
    if _number(&part.first, rec, &read) and read.lo >= slot.distance:
        place = read.lo - slot.distance
        _stack_key(scratch, rec.tid, place)
        one = _find(open, part.slot, scratch, STACK_KEY, _hash(scratch, STACK_KEY, open.seed ^ part.slot))
        if one != NULL and one.innermost.place != place and not _uncover(open, slot, one, read.lo, rec.time):
            one = NULL
    if one == NULL:
        slot.unpaired += 1
        return NULL
    if one.innermost.outer != NULL and one.innermost.outer.place < read.lo:
        # The enclosing call lies below the stack pointer too, so it has returned: the distance is wrong.
        slot.unpaired += 1
        _drop_below(open, one, read.lo)
        return NULL
    slot.matched += 1
    return _pop(open, one)


cdef bint _uncover(Open* open, Slot* slot, OpenList* one, uint64_t read, uint64_t now) noexcept nogil:
    """Drop ended calls from the end of a list; return whether its last one is the returning call then.

    If not, the list may have been freed.
    """
    cdef uint64_t place = read - slot.distance
    cdef OpenHalf* half = one.innermost
    while half != NULL and half.place < place:
        half = half.outer
    if half != NULL and half.place == place:
        return _drop_below(open, one, place)
    half = one.innermost
    if half.way != INHERITED and _outvoted(open, slot, half, read, now):
        return True
    _drop_to(open, one, read)
    return False


cdef bint _outvoted(Open* open, Slot* slot, const OpenHalf* half, uint64_t read, uint64_t now) noexcept nogil:
    """Take a vote; return whether it is the one by which its distance takes over."""
    cdef uint64_t distance = read - half.place
    _advance(open, now)
    if read < half.place or distance > 8 * (DISTANCES - 1) or distance % 8:
        return False
    if half.time < open.broken_until or half.time > now:
        return False
    slot.votes[distance // 8] += 1
    if slot.votes[distance // 8] <= slot.matched:
        return False
    slot.distance = distance
    memset(slot.votes, 0, sizeof(slot.votes))
    return True
