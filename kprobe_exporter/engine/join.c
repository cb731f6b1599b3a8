/* Joins the halves of calls and pairs in the order of time, and adds up what they become.
 *
 *   queues of all CPUs ─► merge ─► ROLE_BEGIN: open the half                             (matching.c)
 *                                  ROLE_STEP: keep its time with the open half
 *                                  ROLE_END: find its first half ─► filter ─► tallies ─► export
 *                                  ROLE_AGAIN: as ROLE_END, and then as ROLE_BEGIN
 *                                  ROLE_SINGLE: tallies ─► export
 *                                  ROLE_STARTED, EXECUTED, EXITED: end halves            (thread_ends.c)
 *                                  ROLE_SWITCHED to CREATED: the time of threads         (thread_times.c)
 *                                  ROLE_PLACED, MOVED: a new epoch of a thread's cgroup  (tally.h)
 *                                  ROLE_NONE: export what was added up when it was read
 *
 * Single records wait for the merge if the cgroup of a thread is a label, because where the thread was then is
 * known only in the order of time, if their stacks are counted, and if they are exported, because the calls around
 * them are. */
#include <stdlib.h>

#include "state.h"

enum { MAX_QUEUED = 1 << 18 };      /* beyond it, events are merged without waiting for other CPUs */

bool queue_event(struct engine *engine, const struct record *record, int32_t type)
{
    uint8_t awaited = engine->plan->types[type].role.awaited_stacks;

    if (!enqueue(engine->cpu, record, type, engine->narrivals, awaited))
        return false;
    engine->narrivals++;
    engine->counts.queued++;
    return true;
}

/* Keep apart the records before and after an event about cgroups. */
static void change_cgroup(struct engine *engine, const struct join_role *role, const struct record *record)
{
    struct number tid;
    bool known = read_number(&role->first, record, &tid);

    if (role->role == ROLE_PLACED) {
        if (known)
            engine->epochs.placed[tid.low & (NEPOCHS - 1)]++;
    } else if (!known || tid.low != (uint64_t)(int64_t)record->tid) {
        /* An exec is a move if the thread takes over the id of its process's first thread. */
        engine->epochs.moves++;
    }
}

/* Add up and export a joined record, and free its first half; false without memory. */
static bool join_halves(
    struct engine *engine, struct join_variant *variant, struct open_half *half, const struct record *second)
{
    struct record record = {
        .start = half_bytes(half),
        .length = half->length - half->stack_length,
        .tid = half->tid,
        .cpu = half->cpu,
        .time = half->time,
        .plan = second->plan,
        .second = second,
        .elapsed = second->time - half->time,
        .stack = half->stack_length ? half_bytes(half) + half->length - half->stack_length : NULL,
        .stack_length = half->stack_length,
    };
    bool passed = passes(engine->plan->nodes, variant->filter, &record), done = true;

    variant->arrived++;
    if (passed) {
        variant->passed++;
        done = add_to_groups(engine, variant->first_group, variant->ngroups, &record);
    }
    if (variant->export.exports)
        done = done && export_joined(engine, variant, half, &record, passed);
    free_half(engine->calls, half);
    return done;
}

/* Add up and export a single record that waited; false without memory. */
static bool add_single(struct engine *engine, int32_t type, const struct record *record)
{
    const struct event_type *event_type = &engine->plan->types[type];
    struct join_variant *variant = &engine->plan->variants[event_type->role.join];

    variant->arrived++;
    variant->passed++;
    if (!add_to_groups(engine, variant->first_group, variant->ngroups, record))
        return false;
    if (!event_type->export.exports || !should_export(engine, &event_type->export, record))
        return true;
    return export_single(engine, type, record);
}

/* Process a queued event; false without memory. */
static bool process_event(struct engine *engine, struct queued_event *event, int32_t cpu)
{
    const struct event_type *type;
    const struct join_role *role;
    struct join_variant *variant;
    struct open_half *half;
    struct record record = {
        .start = event_bytes(event),
        .length = event->length,
        .tid = event->tid,
        .cpu = cpu,
        .time = event->time,
        .plan = engine->plan,
        .stack = event->has_kernel_stack ? event_stacks(event) : NULL,
        .stack_length = event->has_kernel_stack ? event->stack_length : 0,
    };

    if (event->type < 0) {          /* its layout was removed meanwhile */
        engine->counts.unparsed += event->type == TYPE_REMOVED_HALF;
        return true;
    }
    type = &engine->plan->types[event->type];
    role = &type->role;
    switch (role->role) {
    case ROLE_NONE:                 /* it was counted and chosen before it was queued */
        return !type->export.exports || export_single(engine, event->type, &record);
    case ROLE_BEGIN:
        return begin_half(engine->calls, role, &record, engine->tally.scratch);
    case ROLE_STEP:
        note_step(engine->calls, role, &record, engine->tally.scratch);
        return true;
    case ROLE_END:
    case ROLE_AGAIN:
        half = end_half(engine->calls, role, &record, engine->tally.scratch);
        variant = &engine->plan->variants[engine->plan->joins[role->join].first_variant];
        if (half != NULL && !join_halves(engine, variant + half->variant, half, &record))
            return false;
        return role->role == ROLE_END || begin_half(engine->calls, role, &record, engine->tally.scratch);
    case ROLE_SINGLE:
        return add_single(engine, event->type, &record);
    case ROLE_SWITCHED:
    case ROLE_WOKEN:
    case ROLE_BORN:
    case ROLE_MIGRATED:
    case ROLE_ENTERED:
    case ROLE_LEFT:
    case ROLE_THROTTLED:
    case ROLE_UNTHROTTLED:
    case ROLE_CREATED:
        return engine->times == NULL || on_scheduler_event(engine, role, &record);
    case ROLE_PLACED:
    case ROLE_MOVED:
        change_cgroup(engine, role, &record);
        return true;
    default:
        return on_thread_event(engine->calls, role, &record, engine->tally.scratch);
    }
}

/* Process the queued events in the order of time; then end the halves of threads that ended. */
static int merge(struct engine *engine, uint64_t limit)
{
    uint32_t number = make_heap(engine->cpus, engine->ncpus, engine->heap);
    uint64_t reached = limit;

    while (number > 0) {
        struct cpu_queue *queue = &engine->cpus[engine->heap[0]];
        struct queued_event *event = first_event(queue);

        if (event->time > limit || (limit != NEVER && may_get_stack(queue))) {
            reached = event->time < limit ? event->time : limit;
            break;
        }
        dequeue(queue);
        engine->counts.queued--;
        if (!process_event(engine, event, queue->cpu))
            return ENGINE_NO_MEMORY;
        if (queue->tail == 0)
            engine->heap[0] = engine->heap[--number];
        if (number > 1)
            sift_down(engine->cpus, engine->heap, number, 0);
    }
    apply_thread_ends(engine->calls);
    count_broken(engine->calls, reached);
    if (engine->times != NULL)
        set_time_reached(engine->times, reached);
    return ENGINE_OK;
}

int engine_join(struct engine *engine, uint64_t until)
{
    int status;

    if (engine->calls == NULL)
        return ENGINE_OK;
    status = merge(engine, engine->counts.queued > MAX_QUEUED ? NEVER : until);
    engine->counts.left = engine->counts.queued;
    return status;
}

void engine_shrink(struct engine *engine)
{
    for (uint32_t i = 0; i < engine->ncpus; i++)
        shrink_queue(&engine->cpus[i]);
}

void engine_add_loss(struct engine *engine, uint64_t start, uint64_t end)
{
    if (engine->calls != NULL)
        add_loss(engine->calls, start, end);
    if (engine->times != NULL)
        add_time_loss(engine->times, start, end);
}

void engine_drop_join(struct engine *engine, uint32_t join)
{
    struct call_list *list = engine->calls->oldest;

    while (list != NULL) {
        struct call_list *following = list->newer;

        if (list->join == join)
            drop_list(engine->calls, list);
        list = following;
    }
}

uint64_t engine_open(const struct engine *engine)
{
    return engine->calls == NULL ? 0 : engine->calls->nhalves;
}

/* Add an open half to a group of its variant; false without memory. */
static bool add_open_half(
    struct engine *engine, const struct join_plan *join, struct open_half *half, enum open_group group)
{
    const struct join_variant *variant = &engine->plan->variants[join->first_variant + (uint32_t)half->variant];
    const struct record record = {
        .start = half_bytes(half),
        .length = half->length - half->stack_length,
        .tid = half->tid,
        .cpu = half->cpu,
        .time = half->time,
        .plan = engine->plan,
        .stack = half->stack_length ? half_bytes(half) + half->length - half->stack_length : NULL,
        .stack_length = half->stack_length,
    };

    return variant->nopen <= group || add_to_groups(engine, variant->first_open + group, 1, &record);
}

bool engine_add_open(struct engine *engine, uint32_t join, uint64_t before, enum open_group group)
{
    const struct open_calls *calls = engine->calls;

    for (const struct call_list *list = calls->oldest; list != NULL; list = list->newer) {
        if (list->join != join)
            continue;
        for (struct open_half *half = list->innermost; half != NULL; half = half->outer)
            if (half->time < before && half->time >= calls->broken_until && half->variant != FROM_FORK
                && !half->excluded && !add_open_half(engine, &engine->plan->joins[join], half, group))
                return false;
    }
    return true;
}

struct join_counts engine_take_join_counts(struct engine *engine, uint32_t join)
{
    struct join_state *state = &engine->calls->joins[join];
    struct join_counts counts = {state->begun, state->unpaired, state->evicted};

    state->begun = state->unpaired = state->evicted = 0;
    return counts;
}

/* Call `visit` for each queued event of all CPUs. */
static void for_each_queued(
    const struct engine *engine, void (*visit)(struct queued_event *event, const void *data, uint64_t *number),
    const void *data, uint64_t *number)
{
    for (uint32_t i = 0; i < engine->ncpus; i++) {
        const struct cpu_queue *queue = &engine->cpus[i];

        for (size_t at = queue->head; at < queue->tail;) {
            struct queued_event *event = (struct queued_event *)(queue->bytes + at);

            visit(event, data, number);
            at += queued_size(event);
        }
    }
}

static void count_half(struct queued_event *event, const void *types, uint64_t *number)
{
    const struct event_type *type = types;

    *number += event->type == TYPE_REMOVED_HALF || (event->type >= 0 && type[event->type].role.role < ROLE_STARTED);
}

uint64_t engine_queued_halves(const struct engine *engine)
{
    uint64_t number = 0;

    for_each_queued(engine, count_half, engine->plan->types, &number);
    return number;
}

static void renumber(struct queued_event *event, const void *types, uint64_t *number)
{
    (void)number;
    if (event->type >= 0)
        event->type = ((const int32_t *)types)[event->type];
}

/* Continue with the tokens of an earlier limit. */
static void keep_level(struct rate_limit *limit, const struct rate_limit *before)
{
    limit->level = limit->burst < before->level ? limit->burst : before->level;
    limit->at = before->at;
}

static void resume_limits(struct engine *engine, const struct engine *before)
{
    keep_level(&engine->together, &before->together);
    for (uint32_t i = 0; i < engine->plan->nexports; i++)
        for (uint32_t j = 0; j < before->plan->nexports; j++)
            if (engine->plan->exports[i].layout_id == before->plan->exports[j].layout_id)
                keep_level(&engine->plan->exports[i].limit, &before->plan->exports[j].limit);
}

/* Continue with the gaps of each CPU, and with the stacks that the caller waits for. */
static bool resume_cpus(struct engine *engine, const struct engine *before)
{
    for (uint32_t i = 0; i < before->ncpus; i++) {
        const struct cpu_queue *earlier = &before->cpus[i];
        struct cpu_queue *cpu = find_cpu(engine, earlier->cpu);

        if (cpu == NULL)
            return false;
        cpu->last_time = earlier->last_time;
        cpu->gap = earlier->gap;
        cpu->user_stack_dest = earlier->user_stack_dest & TO_CALLER;
    }
    return true;
}

/* Take over the open halves of another engine, with what its joins have learnt. */
static void resume_calls(struct engine *engine, struct engine *before, const int32_t *joins)
{
    struct open_calls *own = engine->calls, *calls = before->calls;
    struct join_state *states = own->joins;
    uint32_t njoins = own->njoins;

    for (uint32_t i = 0; i < calls->njoins; i++) {
        struct join_plan plan;

        if (joins[i] < 0)
            continue;
        plan = states[joins[i]].plan;
        states[joins[i]] = calls->joins[i];
        states[joins[i]].plan = plan;
    }
    own->joins = calls->joins;
    own->njoins = calls->njoins;
    calls->joins = states;
    calls->njoins = njoins;
    engine->calls = calls;
    before->calls = own;
    if (calls->nslots) {
        memset(calls->by_key, 0, calls->nslots * sizeof(struct call_list *));
        memset(calls->by_thread, 0, calls->nslots * sizeof(struct call_list *));
    }
    for (struct call_list *list = calls->oldest; list != NULL; list = list->newer) {
        list->join = (uint32_t)joins[list->join];
        list->hash = hash_of(calls, list->join, list_key(list), list->key_length);
        link_list(calls, list);
    }
}

/* Take over the queued events of another engine. */
static void resume_queues(struct engine *engine, struct engine *before, const int32_t *types)
{
    struct cpu_queue *cpus = engine->cpus;
    uint32_t *heap = engine->heap, ncpus = engine->ncpus;

    engine->cpus = before->cpus;
    engine->heap = before->heap;
    engine->ncpus = before->ncpus;
    engine->narrivals = before->narrivals;
    engine->counts.queued = before->counts.queued;
    engine->counts.left = before->counts.left;
    before->cpus = cpus;
    before->heap = heap;
    before->ncpus = ncpus;
    before->counts.queued = before->counts.left = 0;
    for_each_queued(engine, renumber, types, NULL);
}

bool engine_resume(struct engine *engine, struct engine *before, const int32_t *joins, const int32_t *types)
{
    engine->counts.time = before->counts.time;
    resume_limits(engine, before);
    if (before->calls == NULL)
        return resume_cpus(engine, before);
    for (uint32_t i = 0; i < before->calls->njoins; i++)
        if (joins[i] < 0)
            engine_drop_join(before, i);
    if (engine->calls == NULL) {
        engine->counts.unparsed += engine_queued_halves(before);
        return resume_cpus(engine, before);
    }
    resume_calls(engine, before, joins);
    if (engine->times != NULL && before->times != NULL) {
        struct thread_times *times = engine->times;

        engine->times = before->times;
        before->times = times;
    }
    resume_queues(engine, before, types);
    return true;
}
