/* Pages of the ring buffer and a plan, for the tests of the engine that need no Python. */
#ifndef TESTS_ENGINE_MATERIAL_H
#define TESTS_ENGINE_MATERIAL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

enum { PAGE_SIZE = 4096, PAGE_DATA = 16, MISSED_FLAG = 1u << 31 };

/* A page as the kernel writes it on a little-endian machine. */
struct page {
    uint64_t time;
    size_t used;
    uint8_t bytes[PAGE_SIZE];
};

static inline void put32(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof(value));
}

static inline void put64(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof(value));
}

static inline void begin_page(struct page *page, uint64_t time)
{
    memset(page->bytes, 0, sizeof(page->bytes));
    page->time = time;
    page->used = PAGE_DATA;
    put64(page->bytes, time);
}

static inline bool page_has_room(const struct page *page, size_t length)
{
    return page->used + length + 24 <= PAGE_SIZE;
}

/* Append an event of a whole number of words, with a time extend before it. */
static inline void add_event(struct page *page, uint64_t time, const uint8_t *event, uint32_t length)
{
    uint64_t delta = time - page->time;

    CHECK(page_has_room(page, length));
    put32(page->bytes + page->used, 30 | (uint32_t)(delta & 0x7FFFFFF) << 5);
    put32(page->bytes + page->used + 4, (uint32_t)(delta >> 27));
    put32(page->bytes + page->used + 8, 0);
    put32(page->bytes + page->used + 12, length + 4);
    memcpy(page->bytes + page->used + 16, event, length);
    page->time = time;
    page->used += 16 + ((length + 3) & ~3u);
}

/* State the length of the page; return how many bytes it has. */
static inline size_t end_page(struct page *page, uint32_t flags)
{
    put32(page->bytes + 8, (uint32_t)(page->used - PAGE_DATA) | flags);
    return page->used;
}

/* Write the head of an event: its id and its thread. */
static inline void head(uint8_t *event, uint16_t id, int32_t tid)
{
    memcpy(event, &id, sizeof(id));
    event[2] = event[3] = 0;
    put32(event + 4, (uint32_t)tid);
}

/* The types of the plan, in its order; their event ids are these plus FIRST_ID.
 *
 * All have the fields of CALL: a number of 64 bits at 8, one of 32 bits at 16, a string by __data_loc at 20. */
enum type {
    CALL, BACK,                     /* a join by the stack pointer, which is the number at 8 */
    ISSUE, COMPLETE,                /* a join by the number at 16 and the string */
    ENTER, LEAVE,                   /* a join by the thread */
    SINGLE,                         /* a single record by cgroup and with its stacks */
    ADDED,                          /* added up as it is read, and exported */
    PLAIN,                          /* delivered, with both stacks */
    MERGE, START,                   /* steps between ISSUE and COMPLETE */
    TICK,                           /* a join of each with the next one, by the number at 16 */
    SWITCH, WAKE, BEAR, MIGRATE,    /* of the time of threads: from the one at 16 to that at 8, in the state at 22; */
    RECLAIM, RECLAIMED,             /* the others have a CPU at 8 */
    THROTTLE, UNTHROTTLE,           /* a cgroup's number and level at 16, a CPU at 8, and its name */
    CREATE,
    STARTED, EXECUTED, EXITED, PLACED, MOVED,
    NTYPES,
};

enum { FIRST_ID = 5, STACK_ID = 40, USER_STACK_ID = 41, EVENT_SIZE = 24, NJOINS = 4 };

static inline uint16_t id_of(enum type type)
{
    return (uint16_t)(FIRST_ID + type);
}

enum group_number { ADDED_BY_TEXT, ADDED_SPREAD, ADDED_LARGEST, OF_SINGLE, SINGLE_STACKS, OF_CALL, OF_ISSUE, OF_ENTER, OF_TICK, OPEN_CALLS, OPEN_STACKS_OF_CALLS, TIMES, NGROUPS = TIMES + THREAD_STATES };

static const struct field_ref NUMBER_AT_8 = {.kind = FIELD_UNSIGNED, .offset = 8, .size = 8};
static const struct field_ref SIGNED_AT_16 = {.kind = FIELD_SIGNED, .offset = 16, .size = 4};
static const struct field_ref TEXT_AT_20 = {.kind = FIELD_DYNAMIC, .offset = 20, .size = 4, .unreadable_if_empty = true};
static const struct field_ref STATE_AT_22 = {.kind = FIELD_UNSIGNED, .offset = 22, .size = 1};
static const struct field_ref THREAD = {.kind = FIELD_TID};

static inline void *array(struct engine_plan *plan, size_t count, size_t size)
{
    void *made = plan_alloc(plan, count, size);

    CHECK(made != NULL);
    return made;
}

static inline struct field_ref *refs(struct engine_plan *plan, const struct field_ref *some, uint32_t number)
{
    struct field_ref *made = array(plan, number, sizeof(*made));

    if (number)
        memcpy(made, some, number * sizeof(*made));
    return made;
}

static inline void fill_group(
    struct engine_plan *plan, enum group_number number, const struct field_ref *keys, uint32_t nkeys,
    const struct field_ref *value)
{
    struct group *group = &plan->groups[number];

    group->where = NO_NODE;
    group->nbounds = -1;
    group->nkeys = nkeys;
    group->keys = refs(plan, keys, nkeys);
    group->has_value = value != NULL;
    if (value != NULL)
        group->value = *value;
}

static inline void fill_groups(struct engine_plan *plan)
{
    const struct field_ref elapsed = {.kind = FIELD_ELAPSED}, stack = {.kind = FIELD_STACK};
    const struct field_ref by_call[] = {SIGNED_AT_16, TEXT_AT_20, THREAD};
    const struct field_ref by_step[] = {
        {.kind = FIELD_STEP, .offset = 16}, {.kind = FIELD_STEP, .offset = 8}, SIGNED_AT_16, TEXT_AT_20};
    const struct field_ref of_thread[] = {THREAD, stack};
    const struct field_ref by_tick[] = {
        NUMBER_AT_8, {.kind = FIELD_UNSIGNED, .offset = 8, .size = 8, .second = true}};
    struct group *group;

    plan->ngroups = NGROUPS;
    plan->nsingle = OF_SINGLE;
    plan->groups = array(plan, NGROUPS, sizeof(*plan->groups));
    fill_group(plan, ADDED_BY_TEXT, &TEXT_AT_20, 1, NULL);
    fill_group(plan, ADDED_SPREAD, NULL, 0, &SIGNED_AT_16);
    group = &plan->groups[ADDED_SPREAD];
    group->nbounds = 2;
    group->bounds = array(plan, 2, sizeof(*group->bounds));
    group->bounds[0] = (struct number){-1, (uint64_t)-5};
    group->bounds[1] = (struct number){0, 100};
    group->nfine = 64;
    group->fine_bounds = array(plan, 64, sizeof(*group->fine_bounds));
    for (uint32_t i = 0; i < 64; i++) {
        group->fine_bounds[i] = UINT64_MAX >> (63 - i);
        group->fine_starts[i + 1] = i;
    }
    group->fine_starts[65] = 63;
    fill_group(plan, ADDED_LARGEST, by_call + 1, 2, &SIGNED_AT_16);
    plan->groups[ADDED_LARGEST].keeps_largest = true;
    fill_group(plan, OF_SINGLE, &THREAD, 1, &SIGNED_AT_16);
    plan->groups[OF_SINGLE].nthreads = 1;
    plan->groups[OF_SINGLE].threads = array(plan, 1, sizeof(uint32_t));
    plan->groups[OF_SINGLE].keeps_last = true;
    fill_group(plan, SINGLE_STACKS, &stack, 1, NULL);
    fill_group(plan, OF_CALL, by_call, 3, &elapsed);
    fill_group(plan, OF_ISSUE, by_step, 4, &elapsed);
    fill_group(plan, OF_ENTER, by_call, 1, &elapsed);
    fill_group(plan, OF_TICK, by_tick, 2, &elapsed);
    fill_group(plan, OPEN_CALLS, NULL, 0, &SIGNED_AT_16);
    fill_group(plan, OPEN_STACKS_OF_CALLS, &stack, 1, NULL);
    for (int state = 0; state < THREAD_STATES; state++)
        fill_group(plan, (enum group_number)(TIMES + state), of_thread, 2, &elapsed);
}

static inline void fill_types(struct engine_plan *plan)
{
    const struct field_ref fields[] = {NUMBER_AT_8, SIGNED_AT_16, TEXT_AT_20};
    static const enum type by_values[] = {ISSUE, COMPLETE, MERGE, START};

    plan->ntypes = NTYPES;
    plan->types = array(plan, NTYPES, sizeof(*plan->types));
    for (int number = 0; number < NTYPES; number++) {
        struct event_type *type = &plan->types[number];

        *type = (struct event_type){
            .id = id_of((enum type)number), .size = EVENT_SIZE, .filter = NO_NODE, .nfields = 3};
        type->fields = refs(plan, fields, 3);
        type->export.where = type->role.only = NO_NODE;
        type->role.thread_key = -1;
        if (number <= LEAVE) {
            type->role.role = number % 2 ? ROLE_END : ROLE_BEGIN;
            type->role.join = (uint32_t)number / 2;
        }
    }
    for (int number = CALL; number <= BACK; number++)
        plan->types[number].role.first = NUMBER_AT_8;
    for (int number = MERGE; number <= START; number++)
        plan->types[number].role = (struct join_role){
            .role = ROLE_STEP, .join = 1, .variant = number - MERGE, .only = NO_NODE, .thread_key = -1};
    plan->types[TICK].role = (struct join_role){
        .role = ROLE_AGAIN, .join = 3, .only = NO_NODE, .thread_key = -1, .nkeys = 1};
    plan->types[TICK].role.keys = refs(plan, &SIGNED_AT_16, 1);
    for (size_t i = 0; i < sizeof(by_values) / sizeof(*by_values); i++) {
        plan->types[by_values[i]].role.nkeys = 2;
        plan->types[by_values[i]].role.keys = refs(plan, fields + 1, 2);
    }
    for (int number = ENTER; number <= LEAVE; number++) {
        plan->types[number].role.nkeys = 1;
        plan->types[number].role.keys = refs(plan, &THREAD, 1);
        plan->types[number].role.thread_key = 0;
    }
    plan->types[SINGLE].stacks = plan->types[PLAIN].stacks = KERNEL_STACK | USER_STACK;
    plan->types[SINGLE].role.role = ROLE_SINGLE;
    plan->types[SINGLE].role.awaited_stacks = KERNEL_STACK | USER_STACK;
    plan->types[SINGLE].role.join = NJOINS;
    plan->types[ADDED].tallied = true;
    plan->types[ADDED].first_group = ADDED_BY_TEXT;
    plan->types[ADDED].ngroups = 3;
    for (int number = SWITCH; number <= CREATE; number++) {
        plan->types[number].role.role = (uint8_t)(ROLE_SWITCHED + number - SWITCH);
        plan->types[number].role.first = SIGNED_AT_16;
        plan->types[number].role.second = NUMBER_AT_8;
        plan->types[number].of_all_threads = true;
    }
    plan->types[SWITCH].stacks = plan->types[SWITCH].role.awaited_stacks = KERNEL_STACK;
    plan->types[SWITCH].role.nkeys = 1;
    plan->types[SWITCH].role.keys = refs(plan, &STATE_AT_22, 1);
    plan->types[THROTTLE].role.nkeys = 2;
    plan->types[THROTTLE].role.keys = refs(plan, fields + 1, 2);
    plan->times = (struct times_plan){.wanted = true, .follows = FOLLOW_THREADS, .first_group = TIMES};
    for (int number = STARTED; number <= MOVED; number++) {
        plan->types[number].role.role = (uint8_t)(ROLE_STARTED + number - STARTED);
        plan->types[number].role.first = SIGNED_AT_16;
        plan->types[number].role.second = NUMBER_AT_8;
        plan->types[number].of_all_threads = true;
    }
}

/* Export all joins as spans that enclose each other, and what is added up as logs. */
static inline void fill_exports(struct engine_plan *plan)
{
    plan->nexports = NJOINS + 1;
    plan->exports = array(plan, plan->nexports, sizeof(*plan->exports));
    for (uint32_t i = 0; i < plan->nexports; i++) {
        plan->exports[i].layout_id = i;
        plan->exports[i].spans = i < NJOINS;
    }
    for (uint32_t i = 0; i < NJOINS; i++)
        plan->variants[i].export =
            (struct export_rule){.exports = true, .where = NO_NODE, .share = ENTIRE_SHARE, .export = i};
    plan->types[ADDED].export =
        (struct export_rule){.exports = true, .where = NO_NODE, .share = ENTIRE_SHARE / 2, .export = NJOINS};
}

/* Make a plan with every kind of event. */
static inline struct engine_plan *make_plan(uint64_t max_open)
{
    struct engine_plan *plan = plan_new();

    CHECK(plan != NULL);
    plan->commit_at = 8;
    plan->commit_size = 8;
    plan->data_at = PAGE_DATA;
    plan->page_size = PAGE_SIZE;
    plan->stack_id = STACK_ID;
    plan->user_stack_id = USER_STACK_ID;
    plan->stack_at = plan->user_stack_at = 16;
    plan->user_process_at = 8;
    plan->max_open = max_open;
    plan->initial_distance = 8;
    plan->queues = true;
    plan->hash_seed = plan->id_seed = plan->share_seed = 0x123456789ABCDEF1;
    fill_types(plan);
    fill_groups(plan);
    plan->njoins = NJOINS;
    plan->joins = array(plan, NJOINS, sizeof(*plan->joins));
    plan->nvariants = NJOINS + 1;
    plan->variants = array(plan, plan->nvariants, sizeof(*plan->variants));
    for (uint32_t i = 0; i < plan->nvariants; i++)
        plan->variants[i] = (struct join_variant){
            .filter = NO_NODE,
            .join = i,
            .first_group = i < NJOINS ? OF_CALL + i : OF_SINGLE,
            .ngroups = i < NJOINS ? 1 : 2,
            .types = {2 * (int32_t)i, 2 * (int32_t)i + 1},
            .export = {.where = NO_NODE},
        };
    plan->variants[0].first_open = OPEN_CALLS;
    plan->variants[0].nopen = 2;
    plan->variants[3].types[0] = plan->variants[3].types[1] = TICK;
    for (uint32_t i = 0; i < NJOINS; i++) {
        plan->joins[i].first_variant = i;
        plan->joins[i].by_stack = plan->joins[i].user = i == 0;
        plan->joins[i].nesting = (struct nesting){
            .encloses = true,
            .by_stack = i == 0,
            .system_call = i == 2,
            .in_kernel = i == 2,
            .spans = true,
            .share = ENTIRE_SHARE,
            .layout_id = i,
        };
    }
    plan->joins[1].nsteps = 2;
    fill_exports(plan);
    return plan;
}

#endif
