"""The open calls that a thread is in, and the traces of those that become spans.

They are found as aggregate/open_calls.py (NestedCalls) and export/otlp/traces.py (Traces) do, which explain the
rules; tests hold both to the same results. Ids are random here: a call keeps its own until it has ended.
"""

cdef enum:
    DEEPEST = 256  # the most open calls that are examined, the innermost first
    MARGIN = 64  # bytes of stack; an open call farther below a new one has ended
    THREADS = 4096  # buckets of threads

cdef enum:
    UNDECIDED = -1


cdef inline int64_t _thread_of(int32_t tid, int32_t cpu) noexcept nogil:
    """Return the thread's id; for thread 0, which each CPU has, ~CPU."""
    return tid if tid else ~cpu


cdef inline uint64_t _next_random(uint64_t* state) noexcept nogil:
    """Return a random number that is not 0, by xorshift64."""
    state[0] ^= state[0] << 13
    state[0] ^= state[0] >> 7
    state[0] ^= state[0] << 17
    return state[0]


cdef CallInTrace* _new_call(Open* open, const Nesting* nesting, CallInTrace* parent) noexcept nogil:
    """Make a call in its parent's trace, or in one of its own; NULL if there is no memory."""
    cdef CallInTrace* call = <CallInTrace*>calloc(1, sizeof(CallInTrace))
    if call == NULL:
        return NULL
    call.users, call.parent, call.span = 1, parent, _next_random(&open.random)
    if parent != NULL:
        parent.users += 1
        call.outermost = parent.outermost
        return call
    call.outermost, call.admitted, call.layout_id = call, UNDECIDED, nesting.layout_id
    call.trace[0], call.trace[1] = _next_random(&open.random), _next_random(&open.random)
    call.sampled = call.trace[1] <= nesting.share
    return call


cdef void _release_call(CallInTrace* call) noexcept nogil:
    """Free a call that nothing uses any more, and those around it."""
    cdef CallInTrace* parent
    while call != NULL:
        call.users -= 1
        if call.users:
            return
        parent = call.parent
        free(call)
        call = parent


cdef inline ThreadCalls** _calls_bucket(const Open* open, int64_t id) noexcept nogil:
    """Return where the threads begin that share a bucket with this one."""
    return &open.in_calls[_thread_hash(open, <int32_t>id, False) % THREADS]


cdef ThreadCalls* _find_thread(const Open* open, int64_t id) noexcept nogil:
    cdef ThreadCalls* one = NULL
    if open.in_calls != NULL:
        one = _calls_bucket(open, id)[0]
    while one != NULL and one.id != id:
        one = one.chained
    return one


cdef ThreadCalls* _add_thread(Open* open, int64_t id) noexcept nogil:
    """Return a thread's open calls; NULL if there is no memory."""
    cdef ThreadCalls* one = _find_thread(open, id)
    cdef ThreadCalls** bucket
    if one != NULL:
        return one
    if open.in_calls == NULL:
        open.in_calls = <ThreadCalls**>calloc(THREADS, sizeof(ThreadCalls*))
    one = <ThreadCalls*>calloc(1, sizeof(ThreadCalls))
    if open.in_calls == NULL or one == NULL:
        free(one)
        return NULL
    bucket = _calls_bucket(open, id)
    one.id, one.chained = id, bucket[0]
    bucket[0] = one
    return one


cdef void _remove_thread(Open* open, ThreadCalls* thread) noexcept nogil:
    cdef ThreadCalls** at = _calls_bucket(open, thread.id)
    while at[0] != thread:
        at = &at[0].chained
    at[0] = thread.chained
    free(thread)


cdef inline void _step_out_of(Enclosing* one) noexcept nogil:
    """Take a call out of its thread's open calls."""
    if one.inner != NULL:
        one.inner.outer = one.outer
    else:
        one.thread.innermost = one.outer
    if one.outer != NULL:
        one.outer.inner = one.inner
    one.thread = NULL


cdef inline void _bury(ThreadCalls* thread, uint64_t place) noexcept nogil:
    """Forget the innermost calls below a new call on the same stack: they ended without a return event."""
    cdef Enclosing* one = thread.innermost
    while one != NULL:
        if not one.nesting.by_stack or one.place >> REGION != place >> REGION:
            return
        if place < MARGIN or one.place >= place - MARGIN:
            return
        _step_out_of(one)
        one = thread.innermost


cdef bint _enclose(Open* open, OpenHalf* half, const Nesting* nesting) noexcept nogil:
    """Let an open half enclose what its thread does from now on; False if there is no memory."""
    cdef ThreadCalls* thread = _add_thread(open, _thread_of(half.tid, half.cpu))
    cdef Enclosing* one
    if thread == NULL:
        return False
    if nesting.system_call:
        thread.entered = half.time
    elif nesting.by_stack:
        _bury(thread, half.place)
    one = <Enclosing*>calloc(1, sizeof(Enclosing))
    if one == NULL:
        if thread.innermost == NULL:
            _remove_thread(open, thread)
        return False
    one.nesting, one.thread, one.time, one.place = nesting[0], thread, half.time, half.place
    one.outer = thread.innermost
    if one.outer != NULL:
        one.outer.inner = one
    thread.innermost = half.enclosing = one
    return True


cdef void _no_longer_enclose(Open* open, OpenHalf* half) noexcept nogil:
    """Take a half that is no longer open out of its thread's open calls; its call in a trace stays."""
    cdef ThreadCalls* thread
    if half.enclosing == NULL or half.enclosing.thread == NULL:
        return
    thread = half.enclosing.thread
    _step_out_of(half.enclosing)
    if thread.innermost == NULL:
        _remove_thread(open, thread)


cdef void _free_half(Open* open, OpenHalf* half) noexcept nogil:
    """Free a half that is no longer open."""
    if half.enclosing != NULL:
        _no_longer_enclose(open, half)
        _release_call(half.enclosing.call)
        free(half.enclosing)
    free(half)


cdef bint _around(Open* open, int64_t id, uint64_t now, CallInTrace** found) noexcept nogil:
    """Find the innermost open call of a thread that becomes a span and began no later than ``now``; NULL without.

    It stays its half's. False if there is no memory.
    """
    cdef Enclosing* unknown[DEEPEST]
    cdef ThreadCalls* thread = _find_thread(open, id)
    cdef Enclosing* one
    cdef uint32_t examined = 0, number = 0
    cdef uint64_t entered
    found[0] = NULL
    if thread == NULL:
        return True
    if now > open.next_loss:
        _advance(open, now)
    entered = max(open.broken_until, thread.entered)
    one = thread.innermost
    while one != NULL and examined < DEEPEST:
        examined += 1
        if (
            one.nesting.spans and one.time <= now
            and one.time >= (entered if one.nesting.in_kernel else open.broken_until)
        ):
            if one.call != NULL:
                found[0] = one.call
                break
            unknown[number] = one
            number += 1
        one = one.outer
    while number:
        number -= 1
        one = unknown[number]
        one.call = _new_call(open, &one.nesting, found[0])
        if one.call == NULL:
            return False
        found[0] = one.call
    return True
