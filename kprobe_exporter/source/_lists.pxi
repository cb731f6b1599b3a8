"""The lists of open first halves: found by their key and by their thread, in the order of their beginning.

A list holds the halves with the same key, the innermost first; it is never empty for long.
"""

cdef enum:
    INHERITED = -1  # the way of a call that a forked child has from its parent: the child never made it
    DISTANCES = 9  # a return is 0, 8, ... 64 bytes above its entry (matching.py: FARTHEST)
    REGION = 14  # kernel stacks are aligned to their size (matching.py: REGION)
    MOST_LOSSES = 1024  # losses that are not applied yet; more are merged into one that spans them all
    FEWEST_BUCKETS = 256

cdef uint64_t NEVER = <uint64_t>0 - 1

cdef struct Nesting:  # how the calls of a join enclose others, and which of their traces are sampled
    bint encloses
    bint by_stack
    bint system_call
    bint in_kernel
    bint spans
    uint64_t share  # of 2 ** 64 - 1
    int64_t layout_id

cdef struct CallInTrace:  # a call that is a span if its trace and its filter let it through
    uint32_t users
    CallInTrace* parent
    CallInTrace* outermost
    uint64_t span
    uint64_t[2] trace  # of an outermost call, as all below
    int64_t layout_id
    bint sampled
    int8_t admitted
    bint needed  # an exported item lies in it

cdef struct Enclosing:  # an open half among those of its thread
    ThreadCalls* thread  # NULL if it has ended without a return event
    Enclosing* outer
    Enclosing* inner
    CallInTrace* call  # NULL until something needs it
    uint64_t time
    uint64_t place
    Nesting nesting

cdef struct ThreadCalls:
    ThreadCalls* chained
    Enclosing* innermost
    int64_t id
    uint64_t entered  # when its last system call began

cdef struct Slot:  # what a join knows, which outlives its parser
    Nesting nesting
    bint by_stack
    bint user
    uint64_t begun
    uint64_t unpaired
    uint64_t distance
    uint64_t matched
    uint64_t[DISTANCES] votes

cdef struct OpenHalf:  # the bytes of its record follow, and those of its stack
    OpenHalf* outer
    uint64_t place
    uint64_t time
    int32_t tid
    int32_t cpu
    int32_t way
    bint excluded  # by its join's filter, so that it is no loss
    uint32_t length  # of both
    uint32_t stack_length
    Enclosing* enclosing  # NULL if its join encloses nothing

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
    bint of_program  # calls of a program's functions
    bint handed_on  # a forked child gets them: the thread was not seen to end since the last call
    bint of_thread
    uint32_t thread_at
    int32_t tid

cdef struct Interval:
    uint64_t start
    uint64_t end

cdef struct Ended:  # a thread that ended
    uint64_t until  # what it began before this moment ends with it
    int32_t tid
    int32_t chained  # the next one in its bucket, or -1

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
    uint64_t told_until  # halves that began before this moment are counted as unpaired, though they are open
    ThreadCalls** in_calls  # NULL until a call encloses others
    uint64_t random
    Ended* ended  # those whose halves were not searched for yet, one of a thread
    int32_t* ended_buckets
    uint32_t nended
    uint32_t ended_room


cdef inline uint8_t* _list_key(const OpenList* one) noexcept nogil:
    return <uint8_t*>one + sizeof(OpenList)


cdef inline uint32_t _thread_hash(const Open* open, int32_t tid, bint of_program) noexcept nogil:
    cdef uint64_t value = <uint64_t><uint32_t>tid | <uint64_t>of_program << 32
    return <uint32_t>((value ^ open.seed) * <uint64_t>0x9E3779B97F4A7C15 >> 32)


cdef inline OpenList** _thread_bucket(const Open* open, int32_t tid, bint of_program) noexcept nogil:
    """Return where the lists of a thread begin. The calls of its program are apart: forks search for them."""
    return &open.threads[_thread_hash(open, tid, of_program) & (open.nbuckets - 1)]


cdef inline OpenList* _find(
    Open* open, uint32_t slot, const uint8_t* key, uint32_t length, uint64_t hash
) noexcept nogil:
    """Return the list of a key, NULL if none of its halves is open."""
    cdef OpenList* one
    if open.nbuckets == 0:
        return NULL
    one = open.buckets[hash & (open.nbuckets - 1)]
    while one != NULL:
        if (
            one.hash == hash and one.slot == slot and one.length == length
            and _same(_list_key(one), key, length)
        ):
            return one
        one = one.chained
    return NULL


cdef void _link(Open* open, OpenList* one) noexcept nogil:
    """Enter a list into both tables."""
    cdef OpenList** at = &open.buckets[one.hash & (open.nbuckets - 1)]
    one.chained = at[0]
    at[0] = one
    if one.of_thread:
        at = _thread_bucket(open, one.tid, one.of_program)
        one.left, one.right = NULL, at[0]
        if one.right != NULL:
            one.right.left = one
        at[0] = one


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
            _thread_bucket(open, one.tid, one.of_program)[0] = one.right
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
    one.of_program = open.slots[slot].user and open.slots[slot].by_stack
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
