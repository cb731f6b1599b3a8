/* Adds up the time of threads by their state, from the events of the scheduler.
 *
 * The time of a thread is cut at its events, and each piece has one state, so the pieces add up to that time:
 *
 *     event                                  the piece before it        the thread is then
 *     sched_switch away, in state R          THREAD_RUNNING             THREAD_WAITING
 *     sched_switch away, in another state    THREAD_RUNNING             THREAD_ASLEEP, with the stack of the event
 *     sched_waking, or sched_wakeup          THREAD_ASLEEP              THREAD_WAITING
 *     sched_switch to it                     THREAD_WAITING             THREAD_RUNNING
 *     mm_vmscan_…_reclaim_begin              THREAD_RUNNING             THREAD_RUNNING, as THREAD_RECLAIMING
 *     mm_vmscan_…_reclaim_end                THREAD_RECLAIMING          THREAD_RUNNING
 *     sched_migrate_task                     the state that it has      unchanged, for another CPU
 *     engine_cut_times()                     the state that it has      unchanged
 *
 * A piece whose two ends contradict each other is THREAD_UNKNOWN, and so is the time from a loss to the first event
 * after it. A thread that is watched has had no event: its first one tells what it did. One that leaves a CPU was
 * running, and one that gets a CPU was waiting, unless it was seen asleep before.
 *
 * A wait for a CPU on which a cgroup was throttled is also a piece of THREAD_THROTTLED for this cgroup, which may be
 * that of the thread (throttles.h).
 *
 * Each piece is a record for the group of its state (engine_plan.times): it has the thread, nanoseconds, and
 * the stack of a sleep. */
#include <stdlib.h>

#include "state.h"
#include "thread_table.h"
#include "throttles.h"

enum {
    ENDED = 0x10 | 0x20,            /* EXIT_DEAD, EXIT_ZOMBIE (include/linux/sched.h): it has left its CPU for good */
    ASLEEP = 0xFF,                  /* all states but R, which is 0; one that was preempted has 0x100 */
    CLONE_THREAD = 0x10000,         /* include/uapi/linux/sched.h */
};

struct thread_times {
    struct thread_table table;
    struct throttles *throttles;
    uint64_t reached;               /* all events up to then were processed */
    uint64_t loss_start;            /* of the losses that were not applied yet; NEVER without */
    uint64_t loss_end;
    uint64_t broken_until;          /* events up to then leave the state unknown */
};

struct thread_times *new_thread_times(void)
{
    struct thread_times *times = calloc(1, sizeof(*times));

    if (times == NULL)
        return NULL;
    times->loss_start = NEVER;
    times->throttles = new_throttles();
    if (make_thread_table(&times->table) && times->throttles != NULL)
        return times;
    free_thread_times(times);
    return NULL;
}

void free_thread_times(struct thread_times *times)
{
    if (times == NULL)
        return;
    free_thread_table(&times->table);
    free_throttles(times->throttles);
    free(times);
}

/* Keep the stack in which a thread sleeps; false without memory. */
static bool keep_stack(struct thread_time *thread, const uint8_t *stack, uint32_t length)
{
    if (length > thread->stack_room) {
        uint8_t *made = realloc(thread->stack, length);

        if (made == NULL)
            return false;
        thread->stack = made;
        thread->stack_room = length;
    }
    if (length)
        memcpy(thread->stack, stack, length);
    thread->stack_length = length;
    return true;
}

/* Add a record of a piece of a thread's time to the group of a state; false without memory. */
static bool add_record(
    struct engine *engine, const struct thread_time *thread, uint64_t until, enum thread_state state,
    uint64_t elapsed, const uint8_t *stack, uint32_t stack_length)
{
    static const uint8_t nothing[16];
    const struct record end = {.start = nothing, .length = sizeof(nothing), .tid = thread->tid, .time = until};
    const struct record piece = {
        .start = nothing,
        .length = sizeof(nothing),
        .tid = thread->tid,
        .time = thread->since,
        .plan = engine->plan,
        .second = &end,
        .elapsed = elapsed,
        .stack = stack_length ? stack : NULL,
        .stack_length = stack_length,
    };

    return add_to_groups(engine, engine->plan->times.first_group + state, 1, &piece);
}

/* Add the parts of a wait in which cgroups were throttled on its CPU; false without memory. */
static bool add_throttled(struct engine *engine, const struct thread_time *thread, uint64_t until)
{
    const struct throttle *one = first_throttle(engine->times->throttles, thread->cpu);

    for (; one != NULL; one = next_throttle(one)) {
        uint64_t elapsed = throttled_within(one, thread->since, until);
        uint32_t length;
        const uint8_t *name = throttle_name(one, &length);

        if (elapsed && !add_record(engine, thread, until, THREAD_THROTTLED, elapsed, name, length))
            return false;
    }
    return true;
}

/* Add a piece of a thread's time, from the end of the last one; false without memory. */
static bool add_piece(struct engine *engine, struct thread_time *thread, uint64_t until, enum thread_state state)
{
    bool done;

    if (until <= thread->since)
        return true;
    if (state == THREAD_RUNNING && thread->reclaims)
        state = THREAD_RECLAIMING;
    done = state != THREAD_WAITING || add_throttled(engine, thread, until);
    done = done && add_record(
        engine, thread, until, state, until - thread->since, thread->stack,
        state == THREAD_ASLEEP ? thread->stack_length : 0);
    thread->since = until;
    return done;
}

/* End the piece before an event. */
static bool end_piece(struct engine *engine, struct thread_time *thread, uint64_t time, enum thread_state state)
{
    thread->watched = false;
    return add_piece(engine, thread, time, state);
}

/* Add the time of all threads until a moment, which the state that they have now covers. */
static bool cut(struct engine *engine, uint64_t until)
{
    struct thread_times *times = engine->times;

    for (uint32_t i = 0; i < times->table.nslots; i++)
        for (struct thread_time *thread = times->table.slots[i]; thread != NULL; thread = thread->next) {
            enum thread_state state = thread->state;

            if (state == THREAD_ASLEEP)
                thread->watched = false;
            if (!add_piece(engine, thread, until, thread->watched ? THREAD_UNKNOWN : state))
                return false;
        }
    expire_throttles(times->throttles, until);
    return true;
}

void add_time_loss(struct thread_times *times, uint64_t start, uint64_t end)
{
    if (start < times->loss_start)
        times->loss_start = start;
    if (end > times->loss_end)
        times->loss_end = end;
}

/* Apply the losses that began before a moment: no state is known from then on. */
static bool apply_time_losses(struct engine *engine, uint64_t now)
{
    struct thread_times *times = engine->times;

    if (now <= times->loss_start)
        return true;
    if (!cut(engine, times->loss_start))
        return false;
    for (uint32_t i = 0; i < times->table.nslots; i++)
        for (struct thread_time *thread = times->table.slots[i]; thread != NULL; thread = thread->next) {
            thread->state = THREAD_UNKNOWN;
            thread->watched = false;
            thread->reclaims = false;
        }
    forget_throttles(times->throttles);
    if (times->loss_end > times->broken_until)
        times->broken_until = times->loss_end;
    times->loss_start = NEVER;
    times->loss_end = 0;
    return true;
}

/* Whether a thread was seen asleep before a moment, and has had no event. */
static bool was_seen_asleep(const struct thread_time *thread, uint64_t time)
{
    return thread->watched && thread->state == THREAD_ASLEEP && thread->seen <= time;
}

/* End the piece of a thread that has a CPU until now, if its events agree; false without memory. */
static bool end_run(struct engine *engine, struct thread_time *thread, uint64_t time)
{
    bool ran = thread->watched ? !was_seen_asleep(thread, time) : thread->state == THREAD_RUNNING;

    return end_piece(engine, thread, time, ran ? THREAD_RUNNING : THREAD_UNKNOWN);
}

/* Take a thread off its CPU, which becomes NULL if it has ended; false without memory. */
static bool switch_away(
    struct engine *engine, struct thread_time **of, uint64_t state, const struct record *record)
{
    struct thread_time *thread = *of;

    if (!end_run(engine, thread, record->time))
        return false;
    if (state & ENDED) {
        remove_thread(&engine->times->table, thread->tid);
        *of = NULL;
        return true;
    }
    if (!(state & ASLEEP)) {
        thread->state = THREAD_WAITING;
        thread->cpu = record->cpu;
        return true;
    }
    thread->state = THREAD_ASLEEP;
    return keep_stack(thread, record->stack, record->stack_length);
}

/* Give a thread a CPU.
 *
 * One that left its CPU in a state of sleep and was not woken has stayed runnable, because a signal was pending
 * (try_to_block_task() in kernel/sched/core.c; the event has the state of before). */
static bool switch_to(struct engine *engine, struct thread_time *thread, uint64_t time)
{
    bool waited = thread->watched ? !was_seen_asleep(thread, time)
        : thread->state == THREAD_WAITING || thread->state == THREAD_ASLEEP;
    bool done = end_piece(engine, thread, time, waited ? THREAD_WAITING : THREAD_UNKNOWN);

    thread->state = THREAD_RUNNING;
    return done;
}

/* Wake a thread. One that has a CPU, or waits for one, is not affected. */
static bool wake(struct engine *engine, struct thread_time *thread, uint64_t time)
{
    enum thread_state state = thread->state;
    bool done;

    if (!thread->watched && (state == THREAD_RUNNING || state == THREAD_WAITING))
        return true;
    if (thread->watched && thread->seen <= time && state == THREAD_WAITING)
        return true;                /* it was runnable: it wakes itself before it has left its CPU */
    if (thread->watched && !was_seen_asleep(thread, time))
        state = THREAD_UNKNOWN;
    done = end_piece(engine, thread, time, state);
    thread->state = THREAD_WAITING;
    return done;
}

/* Note for which CPU a thread waits. If cgroups are throttled, its wait is cut there; false without memory. */
static bool set_cpu(
    struct engine *engine, struct thread_time *thread, const struct join_role *role, const struct record *record)
{
    const struct throttles *throttles = engine->times->throttles;
    struct number cpu;
    bool done = true;

    if (thread->state == THREAD_RUNNING || !read_number(&role->second, record, &cpu) || cpu.high != 0)
        return true;
    if (thread->state == THREAD_WAITING && !thread->watched && thread->cpu != (int32_t)cpu.low
        && (first_throttle(throttles, thread->cpu) || first_throttle(throttles, (int32_t)cpu.low)))
        done = add_piece(engine, thread, record->time, THREAD_WAITING);
    thread->cpu = (int32_t)cpu.low;
    return done;
}

/* A thread begins or ends to make room in memory; false without memory. */
static bool reclaim(struct engine *engine, struct thread_time *thread, uint64_t time, bool begins)
{
    bool done = end_run(engine, thread, time);

    thread->state = THREAD_RUNNING;
    thread->reclaims = begins;
    return done;
}

/* A cgroup loses, or gets back, the quota for a CPU; false without memory. */
static bool throttle(struct engine *engine, const struct join_role *role, const struct record *record)
{
    struct throttles *throttles = engine->times->throttles;
    struct number group, cpu, level;
    const uint8_t *name;
    uint32_t length;

    if (!read_number(&role->first, record, &group) || !read_number(&role->second, record, &cpu))
        return true;
    if (role->role == ROLE_UNTHROTTLED) {
        end_throttle(throttles, (int32_t)cpu.low, group.low, record->time);
        return true;
    }
    return role->nkeys < 2 || !read_number(&role->keys[0], record, &level)
        || !find_text(&role->keys[1], record, &name, &length)
        || begin_throttle(
            throttles, (int32_t)cpu.low, group.low, (uint32_t)level.low, name, length, record->time);
}

/* Read the thread that a field names; false if it names none, or the idle one. */
static bool read_thread(const struct field_ref *field, const struct record *record, int32_t *tid)
{
    struct number number;

    if (!read_number(field, record, &number) || number.high != 0)
        return false;
    *tid = (int32_t)number.low;
    return *tid != 0;
}

/* A thread was made: watch it from its first wake-up on, if it is to be followed; false without memory. */
static bool create(struct engine *engine, const struct join_role *role, const struct record *record)
{
    struct thread_times *times = engine->times;
    uint8_t kind = FOLLOW_PROCESSES;
    struct number flags;
    int32_t child;

    if (*find_thread(&times->table, record->tid) == NULL || !read_thread(&role->first, record, &child))
        return true;
    if (read_number(&role->second, record, &flags) && flags.low & CLONE_THREAD)
        kind = FOLLOW_THREADS;
    if (!(engine->plan->times.follows & kind))
        return true;
    remove_thread(&times->table, child);
    return add_thread(&times->table, child, NEVER) != NULL || is_full(&times->table);
}

/* A thread waits for its first CPU. */
static void bear(struct thread_time *thread, uint64_t time)
{
    thread->state = THREAD_WAITING;
    thread->watched = false;
    thread->since = time;
}

/* Return the thread that a field names, NULL if it is not watched. `*done` becomes false without memory. */
static struct thread_time *thread_of(
    struct engine *engine, const struct field_ref *field, const struct record *record, bool *done)
{
    struct thread_time *thread;
    int32_t tid;

    if (!*done || !read_thread(field, record, &tid))
        return NULL;
    thread = *find_thread(&engine->times->table, tid);
    if (thread != NULL || !(engine->plan->times.follows & FOLLOW_ALL))
        return thread;
    thread = add_thread(&engine->times->table, tid, record->time);
    *done = thread != NULL || is_full(&engine->times->table);
    return thread;
}

/* Take an event about the threads that it names, which are returned; false without memory. */
static bool take_event(
    struct engine *engine, const struct join_role *role, const struct record *record, struct thread_time **thread,
    struct thread_time **after)
{
    struct number state = {0, 0};
    bool done = true;

    *thread = thread_of(engine, &role->first, record, &done);
    if (role->role == ROLE_SWITCHED) {
        read_number(&role->keys[0], record, &state);
        done = done && (*thread == NULL || switch_away(engine, thread, state.low, record));
        *after = thread_of(engine, &role->second, record, &done);
        return done && (*after == NULL || switch_to(engine, *after, record->time));
    }
    if (*thread == NULL)
        return done;
    switch (role->role) {
    case ROLE_BORN:
        bear(*thread, record->time);
        return set_cpu(engine, *thread, role, record);
    case ROLE_WOKEN:
        return wake(engine, *thread, record->time) && set_cpu(engine, *thread, role, record);
    case ROLE_MIGRATED:
        return set_cpu(engine, *thread, role, record);
    default:
        return reclaim(engine, *thread, record->time, role->role == ROLE_ENTERED);
    }
}

bool on_scheduler_event(struct engine *engine, const struct join_role *role, const struct record *record)
{
    struct thread_time *thread = NULL, *after = NULL;
    bool done = apply_time_losses(engine, record->time);

    if (role->role == ROLE_CREATED)
        return done && create(engine, role, record);
    if (role->role == ROLE_THROTTLED || role->role == ROLE_UNTHROTTLED)
        return done && throttle(engine, role, record);
    done = done && take_event(engine, role, record, &thread, &after);
    if (record->time < engine->times->broken_until) {
        if (thread != NULL)
            thread->state = THREAD_UNKNOWN;
        if (after != NULL)
            after->state = THREAD_UNKNOWN;
    }
    return done;
}

void set_time_reached(struct thread_times *times, uint64_t reached)
{
    times->reached = reached;
}

void engine_lose_times(struct engine *engine, uint64_t until)
{
    add_time_loss(engine->times, engine->counts.time, until);
}

bool engine_cut_times(struct engine *engine, uint64_t now)
{
    uint64_t until = engine->times->reached < now ? engine->times->reached : now;

    return apply_time_losses(engine, until) && cut(engine, until);
}

bool engine_watch(struct engine *engine, const struct watched_thread *wanted)
{
    struct thread_time *thread = add_thread(&engine->times->table, wanted->tid, wanted->since);
    uint64_t stack[2] = {(uint64_t)0, wanted->place};

    if (thread == NULL)
        return is_full(&engine->times->table);
    if (thread->state != THREAD_UNKNOWN && !(thread->watched && thread->state == THREAD_WAITING))
        return true;                /* its events have told more */
    thread->watched = wanted->state != THREAD_UNKNOWN && !wanted->certain;
    thread->seen = wanted->seen;
    thread->state = wanted->state;
    return wanted->state != THREAD_ASLEEP || keep_stack(thread, (const uint8_t *)stack, sizeof(stack));
}

uint32_t engine_watched(const struct engine *engine, int32_t *tids, uint32_t room)
{
    const struct thread_times *times = engine->times;
    uint32_t number = 0;

    for (uint32_t i = 0; i < times->table.nslots; i++)
        for (const struct thread_time *thread = times->table.slots[i]; thread != NULL; thread = thread->next)
            if (number++ < room)
                tids[number - 1] = thread->tid;
    return number;
}

bool engine_end_thread(struct engine *engine, int32_t tid, uint64_t time)
{
    struct thread_time *thread = *find_thread(&engine->times->table, tid);
    bool done = thread == NULL || add_piece(engine, thread, time, THREAD_UNKNOWN);

    remove_thread(&engine->times->table, tid);
    return done;
}
