/* The queue of a CPU (queue.c): events that wait for earlier events of other CPUs, or for their stacks. */
#ifndef ENGINE_QUEUE_H
#define ENGINE_QUEUE_H

#include "record.h"

/* The bytes of its record follow, and those of its stacks, each up to a multiple of 8. */
struct queued_event {
    uint64_t time;
    uint64_t number;                /* of its arrival: at equal times, what was read first comes first */
    int32_t type;                   /* the index of its type, or TYPE_REMOVED… */
    int32_t tid;
    uint32_t length;                /* of the record, in bytes */
    uint32_t stack_length;          /* of STACK_HEAD and the stacks, in bytes */
    uint8_t missing_stacks;         /* enum stack_kind: those it waits for */
    bool has_kernel_stack;
};

/* Who gets a stack: bits. */
enum stack_dest {
    TO_CALLER = 1,                  /* a found record was before it */
    TO_QUEUE = 2,                   /* a queued event was before it */
};

struct cpu_queue {
    int32_t cpu;
    uint64_t last_time;             /* of the last event that was read; 0 without */
    bool gap;                       /* events are missing after it */
    uint8_t kernel_stack_dest;      /* enum stack_dest: who gets the next stack of the kernel */
    uint8_t user_stack_dest;        /* enum stack_dest: who gets the next stack of a program */
    uint8_t missing_stacks;         /* those that the latest event with stacks waits for; 0 if it has all */
    uint32_t nreads;                /* how often the CPU was read since that event */
    size_t pending_start;           /* where that event is, in `bytes`: once for each type that waits */
    size_t pending_end;
    uint8_t *bytes;
    size_t room;
    size_t head;                    /* where the first event is */
    size_t tail;                    /* behind the last event */
};

static inline struct queued_event *first_event(const struct cpu_queue *queue)
{
    return (struct queued_event *)(queue->bytes + queue->head);
}

static inline uint8_t *event_bytes(struct queued_event *event)
{
    return (uint8_t *)event + sizeof(*event);
}

static inline uint8_t *event_stacks(struct queued_event *event)
{
    return event_bytes(event) + padded(event->length);
}

static inline size_t queued_size(const struct queued_event *event)
{
    return sizeof(*event) + padded(event->length) + padded(event->stack_length);
}

/* Expect no stack any more: the next one is another event's. */
static inline void await_no_stack(struct cpu_queue *queue)
{
    queue->missing_stacks = 0;
}

bool enqueue(
    struct cpu_queue *queue, const struct record *record, int32_t type, uint64_t number, uint8_t missing_stacks);
bool add_stack(
    struct cpu_queue *queue, enum stack_kind kind, int32_t tid, uint32_t process, const uint8_t *bytes,
    uint32_t length);
bool may_get_stack(const struct cpu_queue *queue);
void dequeue(struct cpu_queue *queue);
void shrink_queue(struct cpu_queue *queue);

/* A heap of the queues that are not empty; the first one has the earliest event. */
uint32_t make_heap(const struct cpu_queue *queues, uint32_t nqueues, uint32_t *heap);
void sift_down(const struct cpu_queue *queues, uint32_t *heap, uint32_t number, uint32_t at);

#endif
