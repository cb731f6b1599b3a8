"""What was read and waits for earlier events of other CPUs: a queue for each CPU, merged by time.

These are the halves of calls and pairs, single records by cgroup, and events about threads.
"""

cdef enum:  # instead of a kind, where the layout was removed meanwhile
    REMOVED_HALF = -1
    REMOVED = -2

cdef struct Queued:  # the bytes of its record follow, up to a multiple of 8
    uint64_t time
    uint64_t number  # of its arrival: at equal times, what was read first comes first
    int32_t kind
    int32_t tid
    uint32_t length

cdef struct Queue:
    int32_t cpu
    uint8_t* bytes
    size_t room
    size_t head
    size_t tail

cdef size_t KEPT_ROOM = 1 << 16
"""Bytes that an empty queue keeps."""


cdef inline Queued* _head(const Queue* queue) noexcept nogil:
    return <Queued*>(queue.bytes + queue.head)


cdef inline size_t _padded(size_t length) noexcept nogil:
    """Return the next multiple of 8."""
    return (length + 7) & ~<size_t>7


cdef inline size_t _queued_size(uint32_t length) noexcept nogil:
    return sizeof(Queued) + _padded(length)


cdef inline bint _enqueue(
    Queue* queue, const Rec* rec, int32_t kind, uint64_t number
) noexcept nogil:
    """Append a half; False if there is no memory."""
    cdef size_t size = _queued_size(rec.length), room
    cdef uint8_t* bytes
    cdef Queued* one
    if queue.tail + size > queue.room:
        if queue.head >= queue.room // 2 and queue.head >= size:
            memmove(queue.bytes, queue.bytes + queue.head, queue.tail - queue.head)
            queue.tail -= queue.head
            queue.head = 0
        else:
            room = 2 * queue.room + size + 4096
            bytes = <uint8_t*>realloc(queue.bytes, room)
            if bytes == NULL:
                return False
            queue.bytes, queue.room = bytes, room
    one = <Queued*>(queue.bytes + queue.tail)
    one.time, one.number, one.kind, one.tid, one.length = rec.time, number, kind, rec.tid, rec.length
    memcpy(<uint8_t*>one + sizeof(Queued), rec.start, rec.length)
    queue.tail += size
    return True


cdef inline void _dequeue(Queue* queue) noexcept nogil:
    """Remove the first half."""
    queue.head += _queued_size(_head(queue).length)
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
