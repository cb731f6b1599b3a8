/* Queues the events of each CPU, and merges the CPUs by time.
 *
 * The kernel has a buffer for each CPU, each in the order of time. A call may begin on one CPU and end on another,
 * so that its events are joined in the order of all CPUs: they wait here until every CPU was read up to their
 * time. In the queue are the halves of joins, single records with a thread's cgroup or a stack as a label, and
 * events about threads. A heap of the queues gives the earliest event (D. Knuth, The Art of Computer Programming
 * 3, 5.4.1: multiway merging).
 *
 *   bytes:  ……|queued_event, record, stacks|queued_event, record|queued_event, record|……
 *             ▲ head                        ▲ pending_start      pending_end = tail ▲
 *
 * The kernel writes a stack as an event of its own, after the event to which it belongs, on the same CPU and from
 * the same thread. There may be several probes at one place: then one event is queued several times, from
 * `pending_start` to `pending_end`, and each copy gets the stack. The stack may come with the next page. Until then
 * the event holds back later ones; after MAX_READS_PER_STACK further reads of its CPU no stack is expected. */
#include <stdlib.h>

#include "queue.h"

#define KEPT_ROOM ((size_t)1 << 16)  /* bytes that an empty queue keeps */

enum { MAX_READS_PER_STACK = 2 };

/* Make room for so many bytes behind the last event; false without memory. */
static bool make_room(struct cpu_queue *queue, size_t size)
{
    size_t room = 2 * queue->room + size + 4096;
    uint8_t *bytes;

    if (queue->tail + size <= queue->room)
        return true;
    if (queue->head >= queue->room / 2 && queue->head >= size) {
        memmove(queue->bytes, queue->bytes + queue->head, queue->tail - queue->head);
        queue->tail -= queue->head;
        queue->pending_start -= queue->head;
        queue->pending_end -= queue->head;
        queue->head = 0;
        return true;
    }
    bytes = realloc(queue->bytes, room);
    if (bytes == NULL)
        return false;
    queue->bytes = bytes;
    queue->room = room;
    return true;
}

/* Append an event that waits for these stacks; false without memory.
 *
 * All that wait since `await_no_stack` are one event, at which there are several probes. */
bool enqueue(
    struct cpu_queue *queue, const struct record *record, int32_t type, uint64_t number, uint8_t missing_stacks)
{
    size_t size = sizeof(struct queued_event) + padded(record->length);
    struct queued_event *event;

    if (!make_room(queue, size))
        return false;
    event = (struct queued_event *)(queue->bytes + queue->tail);
    *event = (struct queued_event){
        .time = record->time,
        .number = number,
        .type = type,
        .tid = record->tid,
        .length = record->length,
        .missing_stacks = missing_stacks,
    };
    memcpy(event_bytes(event), record->start, record->length);
    if (missing_stacks && !queue->missing_stacks) {
        queue->nreads = 0;
        queue->pending_start = queue->tail;
    }
    queue->tail += size;
    if (missing_stacks) {
        queue->missing_stacks |= missing_stacks;
        queue->pending_end = queue->tail;
    }
    return true;
}

/* Return the event so far behind the first one that waits for its stacks. */
static inline struct queued_event *pending_event(const struct cpu_queue *queue, size_t behind)
{
    return (struct queued_event *)(queue->bytes + queue->pending_start + behind);
}

/* Append bytes to the stacks of a pending event, before what follows it; false without memory. */
static bool append_bytes(struct cpu_queue *queue, size_t behind, const uint8_t *bytes, uint32_t length)
{
    struct queued_event *event;
    uint8_t *end;
    size_t growth;

    if (!make_room(queue, (size_t)length + 8))
        return false;
    event = pending_event(queue, behind);
    growth = padded((size_t)event->stack_length + length) - padded(event->stack_length);
    end = (uint8_t *)event + queued_size(event);
    memmove(end + growth, end, (size_t)(queue->bytes + queue->tail - end));
    memcpy(event_stacks(event) + event->stack_length, bytes, length);
    event->stack_length += length;
    queue->tail += growth;
    queue->pending_end += growth;
    return true;
}

/* Append a stack to a pending event; false without memory. */
static bool append_stack(
    struct cpu_queue *queue, size_t behind, enum stack_kind kind, uint32_t process, const uint8_t *bytes,
    uint32_t length)
{
    struct queued_event *event = pending_event(queue, behind);
    uint32_t head[2] = {process, kind == USER_STACK ? length : 0};

    _Static_assert(sizeof(head) == STACK_HEAD, "the process and the length of its stack");
    if (event->stack_length == 0 && !append_bytes(queue, behind, (const uint8_t *)head, sizeof(head)))
        return false;
    if (!append_bytes(queue, behind, bytes, length))
        return false;
    event = pending_event(queue, behind);
    event->missing_stacks &= (uint8_t)~kind;
    event->has_kernel_stack = !(event->missing_stacks & KERNEL_STACK);
    return true;
}

/* Give a stack to the events that wait for it, if any does; false without memory. */
bool add_stack(
    struct cpu_queue *queue, enum stack_kind kind, int32_t tid, uint32_t process, const uint8_t *bytes,
    uint32_t length)
{
    size_t behind = 0;

    if (!(queue->missing_stacks & kind))
        return true;
    if (pending_event(queue, 0)->tid != tid) { /* with the kernel's it is over: it would have come by now */
        queue->missing_stacks &= kind == USER_STACK ? (uint8_t)~USER_STACK : 0;
        return true;
    }
    while (queue->pending_start + behind < queue->pending_end) {
        if (pending_event(queue, behind)->missing_stacks & kind
            && !append_stack(queue, behind, kind, process, bytes, length))
            return false;
        behind += queued_size(pending_event(queue, behind));
    }
    queue->missing_stacks &= (uint8_t)~kind;
    if (!(queue->missing_stacks & KERNEL_STACK))
        queue->missing_stacks = 0;
    return true;
}

/* Whether the first event waits for a stack that may still come. */
bool may_get_stack(const struct cpu_queue *queue)
{
    return queue->missing_stacks != 0 && queue->pending_start == queue->head
        && queue->nreads < MAX_READS_PER_STACK;
}

/* Remove the first event. Its bytes stay where they are until the next event is queued. */
void dequeue(struct cpu_queue *queue)
{
    if (queue->pending_start == queue->head)
        queue->missing_stacks = 0;
    queue->head += queued_size(first_event(queue));
    if (queue->head == queue->tail)
        queue->head = queue->tail = 0;
}

/* Give back the memory of a queue that is empty and was long. */
void shrink_queue(struct cpu_queue *queue)
{
    if (queue->tail != 0 || queue->room <= KEPT_ROOM)
        return;
    free(queue->bytes);
    queue->bytes = NULL;
    queue->room = 0;
}

static inline bool is_earlier(const struct cpu_queue *a, const struct cpu_queue *b)
{
    const struct queued_event *one = first_event(a), *other = first_event(b);

    return one->time < other->time || (one->time == other->time && one->number < other->number);
}

/* Move the queue at this place of the heap down to where it belongs. */
void sift_down(const struct cpu_queue *queues, uint32_t *heap, uint32_t number, uint32_t at)
{
    uint32_t moved = heap[at];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= number)
            break;
        if (child + 1 < number && is_earlier(&queues[heap[child + 1]], &queues[heap[child]]))
            child++;
        if (!is_earlier(&queues[heap[child]], &queues[moved]))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Make a heap of the queues that are not empty; return their number. */
uint32_t make_heap(const struct cpu_queue *queues, uint32_t nqueues, uint32_t *heap)
{
    uint32_t number = 0;

    for (uint32_t i = 0; i < nqueues; i++)
        if (queues[i].head < queues[i].tail)
            heap[number++] = i;
    for (uint32_t i = number / 2; i > 0; i--)
        sift_down(queues, heap, number, i - 1);
    return number;
}
