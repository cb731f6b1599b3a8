"""What was read and waits for earlier events of other CPUs: a queue for each CPU, merged by time.

These are the halves of calls and pairs, single records by cgroup or by their stack, and events about threads.

A stack comes after its event, from the same CPU and thread, and is kept behind the event's bytes: the
process's id, the length of the program's stack, that stack, and the kernel's. An event for which no stack has
come yet may still get one from the next pages of its CPU, and holds back what is later.
"""

cdef enum:  # instead of a kind, where the layout was removed meanwhile
    REMOVED_HALF = -1
    REMOVED = -2

cdef enum:  # which stacks an event waits for
    OF_KERNEL = 1
    OF_PROGRAM = 2

cdef enum:  # how an event is kept that waits for its stacks
    AS_RECORD = 1
    QUEUED = 2

cdef enum:
    STACK_HEAD = 8  # bytes before the addresses of a stack that is kept
    PATIENCE = 2  # times that a CPU is read after an event, until its stack is given up

cdef struct Queued:  # the bytes of its record follow, and those of its stack, each up to a multiple of 8
    uint64_t time
    uint64_t number  # of its arrival: at equal times, what was read first comes first
    int32_t kind
    int32_t tid
    uint32_t length
    uint32_t stack_length
    uint8_t wanted  # which stacks it waits for
    bint complete  # whether its stack has come

cdef struct Queue:
    int32_t cpu
    uint8_t* bytes
    size_t room
    size_t head
    size_t tail
    uint8_t wanted  # which stacks the latest event that has one waits for; 0 if it has all
    uint8_t owners  # who gets the kernel's next stack: the last event that has one was kept as what
    uint8_t followed  # who gets a program's next stack: the last event was kept as what
    uint32_t turns  # how often the CPU was read since
    size_t waiting  # where that event is: once for each probe at it that counts stacks, up to `waiting_end`
    size_t waiting_end

cdef size_t KEPT_ROOM = 1 << 16
"""Bytes that an empty queue keeps."""


cdef inline uint8_t _stacks_of(layout):
    """Return which stacks come after the events of a layout."""
    return (OF_KERNEL if layout.stack else 0) | (OF_PROGRAM if layout.user_stack else 0)


cdef inline uint8_t _awaited(recipe, layout):
    """Return for which stacks the events of a layout wait: those that are counted, or exported with it."""
    if recipe.by_stack:
        return _stacks_of(layout)
    return OF_KERNEL if recipe.choice is not None and layout.stack else 0


cdef inline uint32_t _program_bytes(const uint8_t* stack) noexcept nogil:
    """Return how many bytes of a stack are the program's."""
    return _u32(stack + 4)


cdef inline Queued* _head(const Queue* queue) noexcept nogil:
    return <Queued*>(queue.bytes + queue.head)


cdef inline size_t _queued_size(const Queued* one) noexcept nogil:
    return sizeof(Queued) + _padded(one.length) + _padded(one.stack_length)


cdef inline uint8_t* _stack_bytes(Queued* one) noexcept nogil:
    return <uint8_t*>one + sizeof(Queued) + _padded(one.length)


cdef inline uint32_t _end_of_stack(
    const uint8_t* start, uint32_t first, uint32_t length, uint8_t of
) noexcept nogil:
    """Return where the addresses of a stack's record end that begin at ``first``.

    They end at the first number that is no address: ULONG_MAX in the kernel's (kernel/trace/trace_output.c:
    trace_stack_print), 0 in a program's (trace_user_stack_print).
    """
    cdef uint64_t end = 0 if of == OF_PROGRAM else <uint64_t>0 - 1
    while first + 8 <= length and _u64(start + first) != end:
        first += 8
    return first


cdef bint _make_room(Queue* queue, size_t size) noexcept nogil:
    """Make room for so many bytes behind the last half; False if there is no memory."""
    cdef size_t room
    cdef uint8_t* bytes
    if queue.tail + size <= queue.room:
        return True
    if queue.head >= queue.room // 2 and queue.head >= size:
        memmove(queue.bytes, queue.bytes + queue.head, queue.tail - queue.head)
        queue.tail -= queue.head
        queue.waiting -= queue.head
        queue.waiting_end -= queue.head
        queue.head = 0
        return True
    room = 2 * queue.room + size + 4096
    bytes = <uint8_t*>realloc(queue.bytes, room)
    if bytes == NULL:
        return False
    queue.bytes, queue.room = bytes, room
    return True


cdef inline bint _enqueue(
    Queue* queue, const Rec* rec, int32_t kind, uint64_t number, uint8_t wanted
) noexcept nogil:
    """Append a half, which waits for these stacks; False if there is no memory.

    All that wait since `_await_no_stack` are one event, at which there are several probes.
    """
    cdef size_t size = sizeof(Queued) + _padded(rec.length)
    cdef Queued* one
    if queue.tail + size > queue.room and not _make_room(queue, size):
        return False
    one = <Queued*>(queue.bytes + queue.tail)
    one.time, one.number, one.kind, one.tid, one.length = rec.time, number, kind, rec.tid, rec.length
    one.stack_length, one.wanted, one.complete = 0, wanted, False
    memcpy(<uint8_t*>one + sizeof(Queued), rec.start, rec.length)
    if wanted and not queue.wanted:
        queue.turns, queue.waiting = 0, queue.tail
    queue.tail += size
    if wanted:
        queue.wanted |= wanted
        queue.waiting_end = queue.tail
    return True


cdef inline void _await_no_stack(Queue* queue) noexcept nogil:
    """Give up the stack that may still come: the next one is another event's."""
    queue.wanted = 0


cdef bint _extend(Queue* queue, size_t behind, const uint8_t* bytes, uint32_t length) noexcept nogil:
    """Append bytes to the stack of the half so far behind the first waiting one, before what follows it.

    False if there is no memory.
    """
    cdef Queued* one
    cdef uint8_t* end
    cdef size_t grown
    if not _make_room(queue, <size_t>length + 8):
        return False
    one = <Queued*>(queue.bytes + queue.waiting + behind)
    grown = _padded(<size_t>one.stack_length + length) - _padded(one.stack_length)
    end = <uint8_t*>one + _queued_size(one)
    memmove(end + grown, end, queue.bytes + queue.tail - end)
    memcpy(_stack_bytes(one) + one.stack_length, bytes, length)
    one.stack_length += length
    queue.tail += grown
    queue.waiting_end += grown
    return True


cdef bint _give_stack(
    Queue* queue, size_t behind, uint8_t of, uint32_t process, const uint8_t* bytes, uint32_t length
) noexcept nogil:
    """Give a stack to the half so far behind the first waiting one; False if there is no memory."""
    cdef Queued* one = <Queued*>(queue.bytes + queue.waiting + behind)
    cdef uint32_t[2] head
    if one.stack_length == 0:
        head[0], head[1] = process, length if of == OF_PROGRAM else 0
        if not _extend(queue, behind, <const uint8_t*>head, STACK_HEAD):
            return False
    if not _extend(queue, behind, bytes, length):
        return False
    one = <Queued*>(queue.bytes + queue.waiting + behind)
    one.wanted &= ~of
    one.complete = not one.wanted & OF_KERNEL
    return True


cdef bint _add_stack(
    Queue* queue, uint8_t of, int32_t tid, uint32_t process, const uint8_t* bytes, uint32_t length
) noexcept nogil:
    """Give a stack of this sort to the halves that wait for it, if any does; False if there is no memory."""
    cdef size_t behind = 0
    cdef const Queued* one
    if not queue.wanted & of:
        return True
    one = <const Queued*>(queue.bytes + queue.waiting)
    if one.tid != tid:  # with the kernel's it is over: it would have come by now
        queue.wanted = queue.wanted & ~OF_PROGRAM if of == OF_PROGRAM else 0
        return True
    while queue.waiting + behind < queue.waiting_end:
        one = <const Queued*>(queue.bytes + queue.waiting + behind)
        if one.wanted & of and not _give_stack(queue, behind, of, process, bytes, length):
            return False
        behind += _queued_size(<const Queued*>(queue.bytes + queue.waiting + behind))
    queue.wanted &= ~of
    if not queue.wanted & OF_KERNEL:
        queue.wanted = 0
    return True


cdef inline bint _may_be_completed(const Queue* queue) noexcept nogil:
    """Whether the first half waits for a stack that may still come."""
    return queue.wanted != 0 and queue.waiting == queue.head and queue.turns < PATIENCE


cdef inline void _dequeue(Queue* queue) noexcept nogil:
    """Remove the first half."""
    if queue.waiting == queue.head:
        queue.wanted = 0
    queue.head += _queued_size(_head(queue))
    if queue.head == queue.tail:
        queue.head = queue.tail = 0


cdef inline bint _earlier(const Queue* a, const Queue* b) noexcept nogil:
    """Whether the first half of a queue comes before that of another."""
    cdef const Queued* one = _head(a)
    cdef const Queued* other = _head(b)
    return one.time < other.time or (one.time == other.time and one.number < other.number)


cdef void _sift(Queue* queues, uint32_t* heap, uint32_t number, uint32_t at) noexcept nogil:
    """Move the queue at this place of the heap down to where it belongs."""
    cdef uint32_t child, moved = heap[at]
    while True:
        child = 2 * at + 1
        if child >= number:
            break
        if child + 1 < number and _earlier(&queues[heap[child + 1]], &queues[heap[child]]):
            child += 1
        if not _earlier(&queues[heap[child]], &queues[moved]):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = moved


cdef uint32_t _heapify(Queue* queues, uint32_t nqueues, uint32_t* heap) noexcept nogil:
    """Make a heap of the queues that are not empty; return their number."""
    cdef uint32_t i, number = 0
    for i in range(nqueues):
        if queues[i].head < queues[i].tail:
            heap[number] = i
            number += 1
    for i in range(number // 2, 0, -1):
        _sift(queues, heap, number, i - 1)
    return number


cdef void _shrink(Queue* queues, uint32_t nqueues) noexcept nogil:
    """Give back the memory of queues that are empty and were long."""
    cdef uint32_t i
    for i in range(nqueues):
        if queues[i].tail == 0 and queues[i].room > KEPT_ROOM:
            free(queues[i].bytes)
            queues[i].bytes, queues[i].room = NULL, 0
