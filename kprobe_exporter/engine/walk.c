/* Walks a page of the ring buffer: from its bytes to each event, and what becomes of it.
 *
 * The kernel writes a page as a header and records (kernel/trace/ring_buffer.c, include/linux/ring_buffer.h;
 * tools/lib/traceevent/kbuffer-parse.c reads the same):
 *
 *   header:  time of the page (8 bytes) | commit: length of the records and two flags | …
 *   record:  word of 32 bits: kind (5 bits) | delta of time (27 bits), then by its kind
 *
 *     1 … 28        an event of 4 × kind bytes
 *     0             an event; its length and 4 are in the next word
 *     PADDING       a discarded event, of the length in the next word; with delta 0, the rest of the page
 *     TIME_EXTEND   no event; the next word has the higher bits of delta
 *     TIME_STAMP    no event; both words are an absolute time without its 5 highest bits
 *
 * On big-endian machines the kind is in the highest bits. An event begins with its id (16 bits), flags, a count,
 * and the thread's id (32 bits); the rest is as its format says.
 *
 * Any byte may have any value. Each step compares what it is about to read with the end of the page, as the page
 * states it, and that with the page's size. Where the page makes no sense, the rest of it is abandoned, and
 * becomes a loss up to the next event of the CPU. */
#include <stdlib.h>

#include "state.h"

enum record_kind {                  /* ring_buffer_type of include/linux/ring_buffer.h */
    LONG_EVENT = 0,
    PADDING = 29,
    TIME_EXTEND = 30,
    TIME_STAMP = 31,
};

enum event_flags {                  /* trace_flag_type of include/linux/trace_events.h */
    IN_HARDIRQ = 0x08,
    IN_SOFTIRQ = 0x10,
    IN_NMI = 0x40,
};

enum {
    EVENT_HEAD = 8,                 /* bytes: id, flags, count and thread */
    STAMP_BITS = 59,                /* of an absolute time; the others are those of the last time */
};

static const bool LITTLE_ENDIAN_CPU = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

/* Whether an event is of an interrupt, by its common_flags.
 *
 * A kprobe that the kernel makes by a breakpoint handles it as an NMI (irqentry_nmi_enter, kernel/entry/common.c,
 * since 5.8), which sets HARDIRQ as well: there only SOFTIRQ tells of the interrupted code. */
static inline bool in_interrupt(uint8_t flags)
{
    return flags & IN_SOFTIRQ || (flags & (IN_HARDIRQ | IN_NMI)) == IN_HARDIRQ;
}

bool engine_set_own_threads(struct engine *engine, const int32_t *tids, uint32_t ntids)
{
    int32_t *own = realloc(engine->own_threads, (ntids ? ntids : 1) * sizeof(*own));

    if (own == NULL)
        return false;
    engine->own_threads = own;
    engine->nown_threads = ntids;
    memset(engine->own_bits, 0, sizeof(engine->own_bits));
    for (uint32_t i = 0; i < ntids; i++) {
        uint32_t tid = (uint32_t)tids[i];

        own[i] = tids[i];
        engine->own_bits[tid / 64 % OWN_THREAD_WORDS] |= UINT64_C(1) << (tid % 64);
    }
    return true;
}

/* Whether an event is the activity of a thread of this process. */
static inline bool is_own(const struct engine *engine, const uint8_t *start, int32_t tid)
{
    if (!(engine->own_bits[(uint32_t)tid / 64 % OWN_THREAD_WORDS] >> ((uint32_t)tid % 64) & 1))
        return false;
    for (uint32_t i = 0; i < engine->nown_threads; i++)
        if (engine->own_threads[i] == tid)
            return !in_interrupt(start[2]);
    return false;
}

/* Leave something to the caller; false without memory. */
static inline bool push_found(
    struct engine *engine, const uint8_t *start, uint32_t length, int32_t type, uint64_t time)
{
    if (engine->nfound == engine->found_room) {
        uint32_t room = 2 * engine->found_room + 256;
        struct found *found = realloc(engine->found, room * sizeof(*found));

        if (found == NULL)
            return false;
        engine->found = found;
        engine->found_room = room;
    }
    engine->found[engine->nfound++] = (struct found){start, length, type, time};
    return true;
}

const struct found *engine_found(const struct engine *engine, uint32_t *number)
{
    *number = engine->nfound;
    return engine->found;
}

uint32_t engine_stack_end(const uint8_t *start, uint32_t first, uint32_t length, enum stack_kind kind)
{
    /* kernel/trace/trace_output.c: trace_stack_print() ends at ULONG_MAX, trace_user_stack_print() at 0. */
    const uint64_t end = kind == USER_STACK ? 0 : UINT64_MAX;

    while (first + 8 <= length && load64(start + first) != end)
        first += 8;
    return first;
}

/* Give a stack to the queued event that waits for it; false without memory. */
static bool queue_stack(struct engine *engine, enum stack_kind kind, const uint8_t *start, uint32_t length)
{
    const struct engine_plan *plan = engine->plan;
    uint32_t first = kind == USER_STACK ? plan->user_stack_at : plan->stack_at;
    uint32_t process = kind == USER_STACK ? load32(start + plan->user_process_at) : 0;

    if (first > length)
        first = length;
    return add_stack(
        engine->cpu, kind, (int32_t)load32(start + 4), process, start + first,
        engine_stack_end(start, first, length, kind) - first);
}

/* Process a stack, or an event of an unknown type. */
static int on_other_event(
    struct engine *engine, uint32_t id, const uint8_t *start, uint32_t length, uint64_t time)
{
    const struct engine_plan *plan = engine->plan;
    struct cpu_queue *cpu = engine->cpu;
    uint8_t dest = cpu->kernel_stack_dest;
    enum stack_kind kind = KERNEL_STACK;

    if ((int32_t)id != plan->stack_id) {
        dest = cpu->user_stack_dest;
        kind = USER_STACK;
        cpu->user_stack_dest = 0;
        if ((int32_t)id != plan->user_stack_id) {
            engine->counts.unparsed++;
            return ENGINE_OK;
        }
        if (dest && length < plan->user_process_at + 4)
            return ENGINE_DAMAGED;
    }
    if (dest & TO_QUEUE && !queue_stack(engine, kind, start, length))
        return ENGINE_NO_MEMORY;
    if (dest & TO_CALLER
        && !push_found(engine, start, length, kind == KERNEL_STACK ? FOUND_KERNEL_STACK : FOUND_USER_STACK, time))
        return ENGINE_NO_MEMORY;
    return ENGINE_OK;
}

static inline bool begins_join(const struct event_type *type)
{
    return type->role.role == ROLE_BEGIN || type->role.role == ROLE_AGAIN;
}

/* Count what is not delivered of an event of a join: a first half is a hit in any case. */
static inline void count_undelivered(struct engine *engine, const struct event_type *type)
{
    if (begins_join(type))
        engine->calls->joins[type->role.join].begun++;
    else if (type->role.role == ROLE_SINGLE)
        engine->plan->variants[type->role.join].arrived++;
}

/* Queue an event with a role; false without memory. */
static inline bool on_role(struct engine *engine, int32_t at, const struct record *record)
{
    struct event_type *type = &engine->plan->types[at];
    bool of_times = type->role.role >= ROLE_SWITCHED && type->role.role <= ROLE_CREATED;

    type->arrived += of_times;
    if (!passes(engine->plan->nodes, type->filter, record)) {
        count_undelivered(engine, type);
        return true;
    }
    type->passed += of_times;
    return queue_event(engine, record, at)
        && (type->role.role < ROLE_CREATED || push_found(engine, record->start, record->length, at, record->time));
}

/* Add an event up, and queue it if it is exported; false without memory. */
static inline bool on_tallied(struct engine *engine, int32_t at, const struct record *record)
{
    struct event_type *type = &engine->plan->types[at];

    type->arrived++;
    if (!passes(engine->plan->nodes, type->filter, record))
        return true;
    type->passed++;
    if (!add_to_groups(engine, type->first_group, type->ngroups, record))
        return false;
    return !type->export.exports || !should_export(engine, &type->export, record)
        || queue_event(engine, record, at);
}

/* Return the bits of `dest` for the kernel's stack, and above them those for a program's. */
enum { USER_DEST_SHIFT = 4 };

static inline unsigned int dests_of(uint8_t stacks, enum stack_dest dest)
{
    return (stacks & KERNEL_STACK ? (unsigned int)dest : 0)
        | (stacks & USER_STACK ? (unsigned int)dest << USER_DEST_SHIFT : 0);
}

/* Deliver an event to the caller if it passes its filter, and add the destinations of its stacks. */
static inline bool on_delivered(
    struct engine *engine, int32_t at, const struct record *record, unsigned int *dests)
{
    struct event_type *type = &engine->plan->types[at];

    if (type->filter >= 0) {
        type->arrived++;
        if (!passes(engine->plan->nodes, type->filter, record))
            return true;
        type->passed++;
    }
    *dests |= dests_of(type->stacks, TO_CALLER);
    return push_found(engine, record->start, record->length, at, record->time);
}

static inline int on_event(
    struct engine *engine, const uint8_t *start, uint32_t length, uint64_t time, struct cpu_queue *cpu)
{
    struct event_type *types = engine->plan->types;
    struct record record = {
        .start = start, .length = length, .cpu = cpu->cpu, .time = time, .plan = engine->plan};
    unsigned int dests = 0;         /* of the stacks that come after this event */
    uint16_t id;
    int32_t at;
    bool own;

    if (length < EVENT_HEAD)
        return ENGINE_DAMAGED;
    memcpy(&id, start, sizeof(id));
    at = id < engine->nids ? engine->by_id[id] : -1;
    if (at < 0)
        return on_other_event(engine, id, start, length, time);
    cpu->user_stack_dest = 0;
    record.tid = (int32_t)load32(start + 4);
    own = is_own(engine, start, record.tid);
    for (; at >= 0; at = types[at].next) {
        struct event_type *type = &types[at];
        bool done = true;

        if (length < type->size)
            return ENGINE_DAMAGED;
        if (type->of_threads != (cpu->cpu >= THREAD_BUFFERS_CPU))
            continue;
        if (type->role.awaited_stacks) { /* they come also if it does not pass */
            if (!(dests & (TO_QUEUE | TO_QUEUE << USER_DEST_SHIFT)))
                await_no_stack(cpu);
            dests |= dests_of(type->role.awaited_stacks, TO_QUEUE);
        }
        if (own && !type->of_all_threads) {
            if (begins_join(type))
                count_undelivered(engine, type);
            else
                type->own++;
        } else if (type->role.role) {
            done = on_role(engine, at, &record);
        } else if (type->tallied) {
            done = on_tallied(engine, at, &record);
        } else {
            done = on_delivered(engine, at, &record, &dests);
        }
        if (!done)
            return ENGINE_NO_MEMORY;
    }
    cpu->user_stack_dest = (uint8_t)(dests >> USER_DEST_SHIFT);
    dests &= (1 << USER_DEST_SHIFT) - 1;
    if (dests) {
        cpu->kernel_stack_dest = (uint8_t)dests;
        if (!(dests & TO_QUEUE))
            await_no_stack(cpu);
    }
    return ENGINE_OK;
}

/* Process what is before the records of a page: its time, and a loss before it. */
static int begin_page(struct engine *engine, const uint8_t *page, size_t length, uint32_t commit, size_t end)
{
    const struct engine_plan *plan = engine->plan;
    struct cpu_queue *cpu = engine->cpu;

    if (!(commit & EVENTS_MISSED))
        return ENGINE_OK;
    if (!push_found(engine, NULL, 0, FOUND_LOSS, 0))
        return ENGINE_NO_MEMORY;
    cpu->gap = true;
    cpu->user_stack_dest = 0;
    await_no_stack(cpu);
    if (commit & MISSED_COUNTED && end + plan->commit_size <= length)
        engine->counts.lost += plan->commit_size == 8 ? load64(page + end) : load32(page + end);
    return ENGINE_OK;
}

int walk(struct engine *engine, const uint8_t *page, size_t length)
{
    struct cpu_queue *cpu = engine->cpu;
    size_t at = engine->plan->data_at, end, start;
    uint32_t commit;
    uint64_t time;
    int status;

    if (length < at)
        return ENGINE_DAMAGED;
    time = load64(page);
    commit = load32(page + engine->length_at);
    end = at + (commit & ~(EVENTS_MISSED | MISSED_COUNTED));
    if (end > length || end > engine->plan->page_size)
        return ENGINE_DAMAGED;
    status = begin_page(engine, page, length, commit, end);
    if (status != ENGINE_OK)
        return status;
    while (at < end) {
        uint32_t word, next_word = 0, delta, size, head = 4;
        uint8_t kind;

        if (at + 4 > end)
            return ENGINE_DAMAGED;
        word = load32(page + at);
        kind = LITTLE_ENDIAN_CPU ? word & 31 : word >> 27;
        delta = LITTLE_ENDIAN_CPU ? word >> 5 : word & 0x7FFFFFF;
        if (kind == PADDING && delta == 0)
            break;
        if (kind == LONG_EVENT || kind >= PADDING) {
            if (at + 8 > end)
                return ENGINE_DAMAGED;
            next_word = load32(page + at + 4);
        }
        if (kind >= TIME_EXTEND) {
            uint64_t stamp = ((uint64_t)next_word << 27) + delta;

            at += 8;
            if (kind == TIME_EXTEND) {
                time += stamp;
            } else {
                stamp |= time >> STAMP_BITS << STAMP_BITS;
                time = stamp >= time ? stamp : stamp + (UINT64_C(1) << STAMP_BITS);
            }
            engine->counts.time = time;
            continue;
        }
        time += delta;
        engine->counts.time = time;
        size = 4 * (uint32_t)kind;
        if (kind == LONG_EVENT) {
            if (next_word < 4)
                return ENGINE_DAMAGED;
            head = 8;
            size = next_word - 4;
        } else if (kind == PADDING) {
            size = next_word;
        }
        start = at + head;
        if (start > end || size > end - start)
            return ENGINE_DAMAGED;
        at = start + (((size_t)size + 3) & ~(size_t)3);
        if (kind == PADDING)
            continue;
        status = on_event(engine, page + start, size, time, cpu);
        if (status != ENGINE_OK)
            return status;
        if (cpu->gap) {
            if (!push_loss(engine, cpu, time))
                return ENGINE_NO_MEMORY;
            cpu->gap = false;
        }
        cpu->last_time = time;
    }
    return ENGINE_OK;
}
