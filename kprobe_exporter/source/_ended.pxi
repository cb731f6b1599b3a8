"""Ends the halves of threads that exit or execute another program, as aggregate/ended_threads.py does.

The class there explains the rules; tests hold both to the same results.
"""

cdef enum:
    CLONE_VM = 0x100
    CLONE_VFORK = 0x4000
    MOST_KEPT_ENDED = 1024  # threads whose memory is kept when none of them waits


cdef bint _thread_event(Open* open, const Part* part, const Rec* rec, uint8_t* scratch) noexcept nogil:
    """Apply an event about threads; False if there is no memory."""
    cdef Num value, flags
    if part.role == EXITED:
        _hand_on_none(open, rec.tid)
        return _note_end(open, rec.tid, rec.time + 1)
    if not _number(&part.first, rec, &value):
        return True
    if part.role == EXECUTED:
        return _executed(open, <int32_t>value.lo, rec.tid, scratch)
    if _is_noted(open, <int32_t>value.lo):
        _apply_ends(open)
    if not _note_end(open, <int32_t>value.lo, rec.time):  # what it has from its parent begins now, and stays
        return False
    if not _number(&part.second, rec, &flags) or flags.lo & (CLONE_VM | CLONE_VFORK) == CLONE_VM:
        return True
    return _inherit(open, rec.tid, <int32_t>value.lo, rec.time)


cdef bint _note_end(Open* open, int32_t tid, uint64_t until) noexcept nogil:
    """Have the halves that a thread began before a moment end with the others; False if there is no memory."""
    cdef Ended* one = _noted(open, tid)
    cdef int32_t* bucket
    if one != NULL:
        one.until = until
        return True
    if open.nended == open.ended_room and not _more_ended(open):
        return False
    bucket = _ended_bucket(open, tid)
    one = &open.ended[open.nended]
    one.tid, one.until, one.chained = tid, until, bucket[0]
    bucket[0] = open.nended
    open.nended += 1
    return True


cdef inline bint _is_noted(const Open* open, int32_t tid) noexcept nogil:
    return _noted(open, tid) != NULL


cdef inline int32_t* _ended_bucket(const Open* open, int32_t tid) noexcept nogil:
    return &open.ended_buckets[_thread_hash(open, tid, False) & (open.ended_room - 1)]


cdef inline Ended* _noted(const Open* open, int32_t tid) noexcept nogil:
    """Return the end of a thread that waits, NULL if none does."""
    cdef int32_t at = _ended_bucket(open, tid)[0] if open.nended else -1
    while at >= 0 and open.ended[at].tid != tid:
        at = open.ended[at].chained
    return NULL if at < 0 else &open.ended[at]


cdef bint _more_ended(Open* open) noexcept nogil:
    """Double the room for ends; False if there is no memory."""
    cdef uint32_t i, room = 2 * open.ended_room if open.ended_room else FEWEST_BUCKETS
    cdef int32_t* bucket
    cdef Ended* ended = <Ended*>realloc(open.ended, room * sizeof(Ended))
    if ended == NULL:
        return False
    open.ended = ended
    bucket = <int32_t*>realloc(open.ended_buckets, room * sizeof(int32_t))
    if bucket == NULL:
        return False
    open.ended_buckets, open.ended_room = bucket, room
    memset(open.ended_buckets, 0xFF, room * sizeof(int32_t))
    for i in range(open.nended):
        bucket = _ended_bucket(open, open.ended[i].tid)
        open.ended[i].chained = bucket[0]
        bucket[0] = i
    return True


cdef void _apply_ends(Open* open) noexcept nogil:
    """End the halves of all threads that ended."""
    cdef uint32_t i
    cdef Ended* ended
    for i in range(open.nended):
        ended = &open.ended[i]
        _ended_bucket(open, ended.tid)[0] = -1
        if open.nlists:
            _end_lists(open, _thread_bucket(open, ended.tid, False)[0], ended)
            _end_lists(open, _thread_bucket(open, ended.tid, True)[0], ended)
    open.nended = 0
    if open.ended_room > MOST_KEPT_ENDED:
        free(open.ended)
        free(open.ended_buckets)
        open.ended, open.ended_buckets, open.ended_room = NULL, NULL, 0


cdef void _end_lists(Open* open, OpenList* one, const Ended* ended) noexcept nogil:
    """End the halves of a thread in the lists of a bucket that begins with this one."""
    cdef OpenList* following
    while one != NULL:
        following = one.right
        if one.tid == ended.tid:
            _drop_before(open, one, ended.until)
        one = following


cdef void _hand_on_none(Open* open, int32_t tid) noexcept nogil:
    """Give no child the calls that a thread's program made up to now."""
    cdef OpenList* one = _thread_bucket(open, tid, True)[0] if open.nlists else NULL
    while one != NULL:
        if one.tid == tid:
            one.handed_on = False
        one = one.right


cdef OpenList** _lists_of(Open* open, int32_t tid, bint of_program, uint32_t* number) noexcept nogil:
    """Return a thread's lists, the newest first, to be freed: those of its program's calls that are handed on,
    or all others. NULL if there is no memory."""
    cdef OpenList* first = _thread_bucket(open, tid, of_program)[0]
    cdef OpenList* one = first
    cdef OpenList** found
    cdef size_t room = 1
    while one != NULL:
        room += one.tid == tid
        one = one.right
    number[0] = 0
    found = <OpenList**>malloc(room * sizeof(OpenList*))
    one = first
    while found != NULL and one != NULL:
        if one.tid == tid and (one.handed_on or not of_program):
            found[number[0]] = one
            number[0] += 1
        one = one.right
    return found


cdef bint _inherit(Open* open, int32_t parent, int32_t child, uint64_t time) noexcept nogil:
    """Copy the calls of a program's functions for a forked child; False if there is no memory."""
    cdef uint32_t i, number
    cdef bint done = True
    cdef OpenList** found
    if parent == child or open.nlists == 0:
        return True
    found = _lists_of(open, parent, True, &number)
    if found == NULL:
        return False
    for i in range(number, 0, -1):  # the oldest first
        done = done and _copy_list(open, found[i - 1], child, time)
    free(found)
    _trim(open)
    return done


cdef bint _copy_list(Open* open, const OpenList* list, int32_t child, uint64_t time) noexcept nogil:
    """Copy the calls of a list for a child that was forked at this time; False if there is no memory."""
    cdef uint8_t[STACK_KEY] key
    cdef uint64_t hash
    cdef OpenList* one
    cdef OpenHalf* copied
    cdef OpenHalf* half = list.innermost
    cdef OpenHalf** at
    memcpy(key, _list_key(list), STACK_KEY)
    _set_thread(key, child)
    hash = _hash(key, STACK_KEY, open.seed ^ list.slot)
    one = _find(open, list.slot, key, STACK_KEY, hash)
    if one != NULL:
        _drop(open, one)
    one = _new_list(open, list.slot, key, STACK_KEY, hash, child, 0)
    if one == NULL:
        return False
    one.handed_on = True
    at = &one.innermost
    while half != NULL:
        copied = <OpenHalf*>calloc(1, sizeof(OpenHalf))
        if copied == NULL:
            break
        copied.place, copied.time, copied.tid, copied.way = half.place, time, child, INHERITED
        at[0] = copied
        at = &copied.outer
        open.number += 1
        half = half.outer
    if one.innermost == NULL:
        _remove_list(open, one)
    return half == NULL


cdef bint _executed(Open* open, int32_t old, int32_t tid, uint8_t* scratch) noexcept nogil:
    """End a program's calls, and give the others to the new id; False if there is no memory."""
    cdef uint32_t i, number
    cdef OpenList* one
    cdef OpenList* following
    cdef OpenList** found
    one = _thread_bucket(open, old, True)[0] if open.nlists else NULL
    while one != NULL:
        following = one.right
        if one.tid == old and one.handed_on:
            _drop(open, one)
        one = following
    if old == tid:
        return True
    _apply_ends(open)  # the exit of the former leader, whose id this is
    if open.nlists == 0:
        return True
    found = _lists_of(open, old, False, &number)
    if found == NULL:
        return False
    for i in range(number, 0, -1):  # the oldest first
        _give(open, found[i - 1], tid, scratch)
    free(found)
    return True


cdef void _give(Open* open, OpenList* one, int32_t tid, uint8_t* key) noexcept nogil:
    """Give a list to another thread, whose own halves have ended. ``key``: room to write its key."""
    cdef OpenList* other
    memcpy(key, _list_key(one), one.length)
    if open.slots[one.slot].by_stack:
        _set_thread(key, tid)
    else:
        _write_number(key + one.thread_at, Num(-1 if tid < 0 else 0, <uint64_t><int64_t>tid))
    other = _find(open, one.slot, key, one.length, _hash(key, one.length, open.seed ^ one.slot))
    if other != NULL:
        _drop(open, other)
    _unlink(open, one)
    _step_out(open, one)
    memcpy(_list_key(one), key, one.length)
    one.hash, one.tid = _hash(key, one.length, open.seed ^ one.slot), tid
    _link(open, one)
    _line_up(open, one)
