/* Opens first halves and drops them, and applies losses.
 *
 * A half ends in one of three ways: it is joined (pop_half), dropped as unpaired, or dropped without being
 * counted, because its thread never made it (FROM_FORK) or its join's filter excludes it.
 *
 * Calls on one stack are nested, and the stack grows down: in a list, stack pointers rise from the innermost
 * half outwards. So a new call drops those at its stack pointer or below it, which have ended.
 *
 * A loss is an interval in which events are missing. The end of each half that was open may be among them, and
 * the half may be joined wrongly with the end of a later call. So a half that began before a loss ended is not
 * joined with an end after the loss began. The caller tells about a loss before the merge reaches its start; it
 * is kept until then (apply_losses). At the end of a merge the halves that it broke are counted as unpaired;
 * they stay open until their end comes, or until something else drops them. */
#include <stdlib.h>

#include "open_calls.h"

#define MAX_OPEN_BYTES ((size_t)64 << 20) /* a half with a long string may have 4 KiB */

struct open_calls *new_open_calls(const struct engine_plan *plan)
{
    struct open_calls *calls = calloc(1, sizeof(*calls));

    if (calls == NULL)
        return NULL;
    calls->joins = calloc(plan->njoins ? plan->njoins : 1, sizeof(*calls->joins));
    if (calls->joins == NULL) {
        free(calls);
        return NULL;
    }
    calls->seed = plan->hash_seed;
    calls->random = plan->id_seed | 1;
    calls->max_halves = plan->max_open;
    calls->next_loss = NEVER;
    calls->njoins = plan->njoins;
    for (uint32_t i = 0; i < plan->njoins; i++) {
        calls->joins[i].plan = plan->joins[i];
        calls->joins[i].distance = plan->initial_distance;
    }
    return calls;
}

void free_open_calls(struct open_calls *calls)
{
    if (calls == NULL)
        return;
    while (calls->oldest != NULL)
        drop_list(calls, calls->oldest);
    free(calls->by_key);
    free(calls->by_thread);
    free(calls->nested);
    free(calls->ended);
    free(calls->ended_buckets);
    free(calls->joins);
    free(calls);
}

/* Whether a half without its second half is a loss: its thread made it, and it may pass the filter. */
static inline bool is_loss(const struct open_half *half)
{
    return half->variant != FROM_FORK && !half->excluded;
}

void free_half(struct open_calls *calls, struct open_half *half)
{
    if (half->enclosing != NULL) {
        detach_enclosing(calls, half);
        release_traced_call(half->enclosing->call);
        free(half->enclosing);
    }
    free(half);
}

/* Free a half that was taken out, and count it as unpaired if that was not done before. */
static inline void discard_half(struct open_calls *calls, const struct call_list *list, struct open_half *half)
{
    if (is_loss(half) && half->time >= calls->counted_until)
        calls->joins[list->join].unpaired++;
    free_half(calls, half);
}

/* Take a half out of its list. `at` points to it. */
static inline struct open_half *take_half(struct open_calls *calls, struct open_half **at)
{
    struct open_half *half = *at;

    *at = half->outer;
    calls->nhalves--;
    calls->bytes -= half->length;
    return half;
}

/* Remove and return the innermost half of a list, and the list if it was the only one. */
struct open_half *pop_half(struct open_calls *calls, struct call_list *list)
{
    struct open_half *half = take_half(calls, &list->innermost);

    if (list->innermost == NULL)
        remove_list(calls, list);
    return half;
}

/* Drop the halves of a list that lie below a stack pointer; return whether any is left. If not, the list is
 * freed. */
bool drop_below(struct open_calls *calls, struct call_list *list, uint64_t stack_pointer)
{
    while (list->innermost != NULL && list->innermost->stack_pointer < stack_pointer)
        discard_half(calls, list, take_half(calls, &list->innermost));
    if (list->innermost != NULL)
        return true;
    remove_list(calls, list);
    return false;
}

void drop_list(struct open_calls *calls, struct call_list *list)
{
    while (list->innermost != NULL)
        discard_half(calls, list, take_half(calls, &list->innermost));
    remove_list(calls, list);
}

/* Drop the halves at a stack pointer or below it; return whether any is left. If not, the list is freed. */
bool drop_up_to(struct open_calls *calls, struct call_list *list, uint64_t stack_pointer)
{
    if (stack_pointer < UINT64_MAX)
        return drop_below(calls, list, stack_pointer + 1);
    drop_list(calls, list);
    return false;
}

/* Drop the halves of a list that began before a moment. If none is left, the list is freed. */
void drop_before(struct open_calls *calls, struct call_list *list, uint64_t until)
{
    struct open_half **at = &list->innermost;

    while (*at != NULL) {
        if ((*at)->time < until)
            discard_half(calls, list, take_half(calls, at));
        else
            at = &(*at)->outer;
    }
    if (list->innermost == NULL)
        remove_list(calls, list);
}

/* Drop the oldest list, and count its halves as evicted. */
static void evict_oldest(struct open_calls *calls)
{
    struct join_state *join = &calls->joins[calls->oldest->join];
    uint64_t before = join->unpaired;

    drop_list(calls, calls->oldest);
    join->evicted += join->unpaired - before;
}

/* Drop the oldest lists, a 64th at once, if more is open than the bounds allow. */
void trim(struct open_calls *calls)
{
    if (calls->nhalves > calls->max_halves)
        while (calls->oldest != NULL && calls->nhalves > calls->max_halves - calls->max_halves / 64)
            evict_oldest(calls);
    if (calls->bytes > MAX_OPEN_BYTES)
        while (calls->oldest != NULL && calls->bytes > MAX_OPEN_BYTES - MAX_OPEN_BYTES / 64)
            evict_oldest(calls);
}

/* Copy a record and its stacks, with room for the times of steps; NULL without memory. */
static struct open_half *copy_half(
    const struct record *record, int32_t variant, uint64_t stack_pointer, uint32_t nsteps)
{
    uint32_t behind = record->length + 8 * nsteps, length = behind + record->stack_length;
    struct open_half *half = malloc(sizeof(*half) + length);

    if (half == NULL)
        return NULL;
    *half = (struct open_half){
        .stack_pointer = stack_pointer,
        .time = record->time,
        .tid = record->tid,
        .cpu = record->cpu,
        .variant = variant,
        .length = length,
        .stack_length = record->stack_length,
    };
    memcpy(half_bytes(half), record->start, record->length);
    if (nsteps)
        memset(half_bytes(half) + record->length, 0xFF, 8 * nsteps); /* NEVER */
    if (record->stack_length)
        memcpy(half_bytes(half) + behind, record->stack, record->stack_length);
    return half;
}

/* Open a half under a key; false without memory. `thread_at`: where the thread is in the key, or -1. */
bool open_half(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint64_t stack_pointer,
    const uint8_t *key, uint32_t length, int32_t thread_at, bool excluded)
{
    struct join_state *join = &calls->joins[role->join];
    struct open_half *half = copy_half(record, role->variant, stack_pointer, join->plan.nsteps);
    struct call_list *list;

    if (half == NULL)
        return false;
    half->excluded = excluded;
    if (join->plan.nesting.encloses && !enclose(calls, half, &join->plan.nesting)) {
        free(half);
        return false;
    }
    list = find_list(calls, role->join, key, length);
    if (list != NULL && list->innermost->stack_pointer <= stack_pointer
        && !drop_up_to(calls, list, stack_pointer))
        list = NULL;
    if (list == NULL)
        list = add_list(calls, role->join, key, length, record->tid, thread_at);
    if (list == NULL) {
        free_half(calls, half);
        return false;
    }
    half->outer = list->innermost;
    list->innermost = half;
    list->inheritable = true;
    calls->nhalves++;
    calls->bytes += half->length;
    if (half->time < calls->counted_until && is_loss(half))
        join->unpaired++;
    trim(calls);
    return true;
}

static inline uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Note a loss. */
void add_loss(struct open_calls *calls, uint64_t start, uint64_t end)
{
    if (calls->nlosses == MAX_LOSSES) {
        for (uint32_t i = 0; i < calls->nlosses; i++) {
            start = min64(start, calls->losses[i].start);
            end = max64(end, calls->losses[i].end);
        }
        calls->nlosses = 0;
    }
    calls->losses[calls->nlosses++] = (struct interval){start, end};
    calls->next_loss = min64(calls->next_loss, start);
}

/* Apply the losses that began before a moment: what began before their end is not joined any more. */
void apply_losses(struct open_calls *calls, uint64_t now)
{
    uint32_t nleft = 0;

    calls->next_loss = NEVER;
    for (uint32_t i = 0; i < calls->nlosses; i++) {
        struct interval loss = calls->losses[i];

        if (loss.start < now) {
            calls->broken_until = max64(calls->broken_until, loss.end);
        } else {
            calls->next_loss = min64(calls->next_loss, loss.start);
            calls->losses[nleft++] = loss;
        }
    }
    calls->nlosses = nleft;
}

/* Count the open halves that a loss before `reached` broke: all that came up to then was joined. */
void count_broken(struct open_calls *calls, uint64_t reached)
{
    uint64_t before = calls->counted_until;

    if (reached > calls->next_loss)
        apply_losses(calls, reached);
    if (min64(calls->broken_until, reached) <= before)
        return;
    calls->counted_until = min64(calls->broken_until, reached);
    for (struct call_list *list = calls->oldest; list != NULL; list = list->newer)
        for (const struct open_half *half = list->innermost; half != NULL; half = half->outer)
            if (half->time >= before && half->time < calls->counted_until && is_loss(half))
                calls->joins[list->join].unpaired++;
}

