"""The open first halves of calls and pairs, as aggregate/open_calls.py keeps them, without Python objects.

A half is the bytes of its record. The halves with the same key are a list, the innermost first. The lists
are found by their key in one hash table, and by their thread in another; all of them stand in the order
in which they were begun.
"""

cdef enum:
    INHERITED = -1  # the way of a call that a forked child has from its parent: the child never made it
    DISTANCES = 9  # a return is 0, 8, ... 64 bytes above its entry (matching.py: FARTHEST)
    REGION = 14  # kernel stacks are aligned to their size (matching.py: REGION)
    MOST_LOSSES = 1024  # losses that are not applied yet; more are merged into one that spans them all
    FEWEST_BUCKETS = 256

cdef uint64_t MOST_OPEN = 65536
"""The most open halves of a parser, over all joins; beyond it, the oldest lists are dropped, a 64th at once."""
cdef size_t MOST_OPEN_BYTES = 64 << 20
"""The most bytes of open halves, with the same consequence: a half with a long string may have 4 KiB."""
cdef uint64_t NEVER = <uint64_t>0 - 1

cdef struct Slot:  # what a join knows, which outlives its parser
    bint by_stack
    bint user
    uint64_t begun
    uint64_t unpaired
    uint64_t distance
    uint64_t matched
    uint64_t[DISTANCES] votes

cdef struct OpenHalf:  # the bytes of its record follow
    OpenHalf* outer
    uint64_t place
    uint64_t time
    int32_t tid
    int32_t cpu
    int32_t way
    uint32_t length

cdef struct OpenList:  # the bytes of its key follow
    OpenList* chained  # the next one in its bucket
    OpenList* older
    OpenList* newer
    OpenList* left  # its neighbours among the lists of the same thread
    OpenList* right
    OpenHalf* innermost
    uint64_t hash
    uint32_t slot
    uint32_t length
    bint of_thread
    uint32_t thread_at
    int32_t tid

cdef struct Interval:
    uint64_t start
    uint64_t end

cdef struct Open:
    uint64_t seed
    Slot* slots
    uint32_t nslots
    OpenList** buckets
    OpenList** threads
    uint32_t nbuckets
    uint32_t nlists
    OpenList* oldest
    OpenList* newest
    uint64_t number
    uint64_t most
    size_t bytes
    Interval[MOST_LOSSES] losses
    uint32_t nlosses
    uint64_t next_loss
    uint64_t broken_until


cdef inline uint8_t* _half_bytes(OpenHalf* half) noexcept nogil:
    return <uint8_t*>half + sizeof(OpenHalf)


cdef inline uint8_t* _list_key(OpenList* one) noexcept nogil:
    return <uint8_t*>one + sizeof(OpenList)


cdef inline uint32_t _thread_bucket(const Open* open, int32_t tid) noexcept nogil:
    cdef uint64_t value = (<uint64_t><uint32_t>tid ^ open.seed) * <uint64_t>0x9E3779B97F4A7C15
    return <uint32_t>(value >> 32) & (open.nbuckets - 1)


cdef inline OpenList* _find(Open* open, uint32_t slot, const uint8_t* key, uint32_t length, uint64_t hash) noexcept nogil:
    """Return the list of a key, NULL if none of its halves is open."""
    cdef OpenList* one
    if open.nbuckets == 0:
        return NULL
    one = open.buckets[hash & (open.nbuckets - 1)]
    while one != NULL:
        if one.hash == hash and one.slot == slot and one.length == length and memcmp(_list_key(one), key, length) == 0:
            return one
        one = one.chained
    return NULL


cdef void _link(Open* open, OpenList* one) noexcept nogil:
    """Enter a list into both tables."""
    cdef uint32_t at = one.hash & (open.nbuckets - 1)
    one.chained = open.buckets[at]
    open.buckets[at] = one
    if one.of_thread:
        at = _thread_bucket(open, one.tid)
        one.left, one.right = NULL, open.threads[at]
        if one.right != NULL:
            one.right.left = one
        open.threads[at] = one


cdef void _unlink(Open* open, OpenList* one) noexcept nogil:
    """Undo _link."""
    cdef OpenList** at = &open.buckets[one.hash & (open.nbuckets - 1)]
    while at[0] != one:
        at = &at[0].chained
    at[0] = one.chained
    if one.of_thread:
        if one.left != NULL:
            one.left.right = one.right
        else:
            open.threads[_thread_bucket(open, one.tid)] = one.right
        if one.right != NULL:
            one.right.left = one.left


cdef void _line_up(Open* open, OpenList* one) noexcept nogil:
    """Make a list the newest one."""
    one.older, one.newer = open.newest, NULL
    if open.newest != NULL:
        open.newest.newer = one
    else:
        open.oldest = one
    open.newest = one


cdef void _step_out(Open* open, OpenList* one) noexcept nogil:
    """Undo _line_up."""
    if one.older != NULL:
        one.older.newer = one.newer
    else:
        open.oldest = one.newer
    if one.newer != NULL:
        one.newer.older = one.older
    else:
        open.newest = one.older


cdef bint _more_buckets(Open* open) noexcept nogil:
    """Double both tables; False if there is no memory."""
    cdef uint32_t room = 2 * open.nbuckets if open.nbuckets else FEWEST_BUCKETS
    cdef OpenList** buckets = <OpenList**>calloc(room, sizeof(OpenList*))
    cdef OpenList** threads = <OpenList**>calloc(room, sizeof(OpenList*))
    cdef OpenList* one
    if buckets == NULL or threads == NULL:
        free(buckets)
        free(threads)
        return False
    free(open.buckets)
    free(open.threads)
    open.buckets, open.threads, open.nbuckets = buckets, threads, room
    one = open.oldest
    while one != NULL:
        _link(open, one)
        one = one.newer
    return True


cdef OpenList* _new_list(
    Open* open, uint32_t slot, const uint8_t* key, uint32_t length, uint64_t hash, int32_t tid, int32_t thread_at
) noexcept nogil:
    """Add an empty list; NULL if there is no memory. ``thread_at``: where the thread is in the key, or -1."""
    cdef OpenList* one
    if open.nlists >= open.nbuckets and not _more_buckets(open):
        return NULL
    one = <OpenList*>malloc(sizeof(OpenList) + length)
    if one == NULL:
        return NULL
    memset(one, 0, sizeof(OpenList))
    one.hash, one.slot, one.length, one.tid = hash, slot, length, tid
    one.of_thread, one.thread_at = thread_at >= 0, thread_at if thread_at >= 0 else 0
    memcpy(_list_key(one), key, length)
    _link(open, one)
    _line_up(open, one)
    open.nlists += 1
    return one


cdef void _remove_list(Open* open, OpenList* one) noexcept nogil:
    """Remove a list that is empty."""
    _unlink(open, one)
    _step_out(open, one)
    open.nlists -= 1
    free(one)


cdef inline OpenHalf* _take_half(Open* open, OpenList* one) noexcept nogil:
    """Remove and return the innermost half of a list, which may be empty then."""
    cdef OpenHalf* half = one.innermost
    one.innermost = half.outer
    open.number -= 1
    open.bytes -= half.length
    return half


cdef inline void _leave(Open* open, OpenList* one, OpenHalf* half) noexcept nogil:
    """Count a half that was taken out as unpaired, if its thread made it."""
    if half.way != INHERITED:
        open.slots[one.slot].unpaired += 1
    free(half)


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


cdef void _drop_until(Open* open, OpenList* one, uint64_t time) noexcept nogil:
    """Drop the halves of a list that began at this time or earlier."""
    cdef OpenHalf** at = &one.innermost
    cdef OpenHalf* half
    while at[0] != NULL:
        half = at[0]
        if half.time > time:
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


cdef OpenHalf* _add_half(Open* open, OpenList* one, uint32_t length) noexcept nogil:
    """Add a half as the innermost one of a list, to be filled in; NULL if there is no memory."""
    cdef OpenHalf* half = <OpenHalf*>malloc(sizeof(OpenHalf) + length)
    if half == NULL:
        return NULL
    half.outer, half.length = one.innermost, length
    one.innermost = half
    open.number += 1
    open.bytes += length
    return half


cdef bint _put(
    Open* open, uint32_t slot, int32_t way, const Rec* rec, uint64_t place,
    const uint8_t* key, uint32_t length, int32_t thread_at
) noexcept nogil:
    """Open a half; False if there is no memory. Those at its place or below have ended."""
    cdef uint64_t hash = _hash(key, length, open.seed ^ slot)
    cdef OpenList* one = _find(open, slot, key, length, hash)
    cdef OpenHalf* half
    if one != NULL and one.innermost.place <= place and not _drop_to(open, one, place):
        one = NULL
    if one == NULL:
        one = _new_list(open, slot, key, length, hash, rec.tid, thread_at)
        if one == NULL:
            return False
    half = _add_half(open, one, rec.length)
    if half == NULL:
        if one.innermost == NULL:
            _remove_list(open, one)
        return False
    half.place, half.time, half.tid, half.cpu, half.way = place, rec.time, rec.tid, rec.cpu, way
    memcpy(_half_bytes(half), rec.start, rec.length)
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


cdef void _free_open(Open* open) noexcept:
    """Free all, without counting."""
    if open == NULL:
        return
    while open.oldest != NULL:
        _drop(open, open.oldest)
    free(open.buckets)
    free(open.threads)
    free(open.slots)
    free(open)


cdef Open* _new_open(uint32_t nslots, uint64_t seed, uint64_t most) noexcept:
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
    for i in range(nslots):
        open.slots[i].distance = 8
    return open
