/* Finds the first half of a second half.
 *
 * Pairs are joined by values that both halves have: an end belongs to the latest open first half of its key. So
 * does a step, an event in between, whose time is kept with that half; the latest one of each step counts.
 *
 * Calls are proved by the stack pointer. At a function's return it is a fixed distance above the one at its
 * entry: on x86-64 by the 8 bytes of the return address, which the return has popped; on other kernels and
 * processors by another number, which the engine learns. A return whose entry is not where the distance says
 * votes for the distance to the innermost open call, if nothing was lost in between. A distance with more votes
 * than matched returns takes over. A program that sets its stack pointer at will may win a vote; then its calls
 * are unpaired until others outvote it.
 *
 *     entry of f       sp = 0x1000        list: [0x1000]
 *     entry of g       sp = 0x0f80        list: [0x0f80, 0x1000]
 *     return of f      sp = 0x1008        0x1008 - 8 = 0x1000: g has ended without an event and is dropped;
 *                                         f is joined
 *
 * A list has the calls of one thread in one region of 2^STACK_REGION_BITS bytes, because an interrupt has a
 * stack of its own. Where stacks are larger, calls that ended without an event are noticed later. */
#include "expr.h"
#include "open_calls.h"

static void write_stack_key(uint8_t *key, int32_t tid, uint64_t stack_pointer)
{
    set_key_thread(key, tid);
    store_word(key + 8, stack_pointer >> STACK_REGION_BITS);
}

/* Write the values by which a half is paired; return their length, 0 if one is missing. */
static uint32_t write_pair_key(
    const struct join_role *role, const struct record *record, uint8_t *out, int32_t *thread_at)
{
    uint8_t *end = out;

    *thread_at = -1;
    for (uint32_t i = 0; i < role->nkeys; i++) {
        if (role->thread_key == (int32_t)i)
            *thread_at = (int32_t)(end - out);
        end = write_value(end, &role->keys[i], record);
        if (end == NULL)
            return 0;
    }
    return (uint32_t)(end - out);
}

/* Open a first half; false without memory. */
bool begin_half(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch)
{
    struct join_state *join = &calls->joins[role->join];
    bool excluded = !passes(record->plan->nodes, role->only, record);
    struct number stack_pointer = {0, 0};
    uint32_t length = 0;
    int32_t thread_at = 0;

    join->begun++;
    if (!join->plan.by_stack) {
        length = write_pair_key(role, record, scratch, &thread_at);
    } else if (read_number(&role->first, record, &stack_pointer)) {
        write_stack_key(scratch, record->tid, stack_pointer.low);
        length = STACK_KEY_LENGTH;
    }
    if (length == 0) {
        join->unpaired += !excluded;
        return true;
    }
    return open_half(calls, role, record, stack_pointer.low, scratch, length, thread_at, excluded);
}

/* Take a vote on the distance; return whether this one takes over by it. */
static bool vote_for_distance(
    struct open_calls *calls, struct join_state *join, const struct open_half *half, uint64_t read, uint64_t now)
{
    uint64_t distance = read - half->stack_pointer;

    apply_losses(calls, now);
    if (read < half->stack_pointer || distance > 8 * (NDISTANCES - 1) || distance % 8)
        return false;
    if (half->time < calls->broken_until || half->time > now)
        return false;
    if (++join->votes[distance / 8] <= join->matched)
        return false;
    join->distance = distance;
    memset(join->votes, 0, sizeof(join->votes));
    return true;
}

/* Drop ended calls from the inner end of a list; return whether its innermost one is the returning call then.
 * If not, the list may have been freed. */
static bool pop_returned_calls(
    struct open_calls *calls, struct join_state *join, struct call_list *list, uint64_t read, uint64_t now)
{
    uint64_t stack_pointer = read - join->distance;
    const struct open_half *half = list->innermost;

    while (half != NULL && half->stack_pointer < stack_pointer)
        half = half->outer;
    if (half != NULL && half->stack_pointer == stack_pointer)
        return drop_below(calls, list, stack_pointer);
    half = list->innermost;
    if (half->variant != FROM_FORK && vote_for_distance(calls, join, half, read, now))
        return true;
    drop_up_to(calls, list, read);
    return false;
}

/* Return the entry of a return, which is no longer open; NULL if it is missing. */
static struct open_half *end_call(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch)
{
    struct join_state *join = &calls->joins[role->join];
    struct call_list *list = NULL;
    struct number read;

    if (read_number(&role->first, record, &read) && read.low >= join->distance) {
        uint64_t stack_pointer = read.low - join->distance;

        write_stack_key(scratch, record->tid, stack_pointer);
        list = find_list(calls, role->join, scratch, STACK_KEY_LENGTH);
        if (list != NULL && list->innermost->stack_pointer != stack_pointer
            && !pop_returned_calls(calls, join, list, read.low, record->time))
            list = NULL;
    }
    if (list == NULL) {
        join->unpaired++;
        return NULL;
    }
    if (list->innermost->outer != NULL && list->innermost->outer->stack_pointer < read.low) {
        /* The enclosing call lies below the stack pointer too, so it has returned: the distance is wrong. */
        join->unpaired++;
        drop_below(calls, list, read.low);
        return NULL;
    }
    join->matched++;
    return pop_half(calls, list);
}

static struct open_half *end_pair(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch)
{
    int32_t thread_at;
    uint32_t length = write_pair_key(role, record, scratch, &thread_at);
    struct call_list *list = length ? find_list(calls, role->join, scratch, length) : NULL;

    return list == NULL ? NULL : pop_half(calls, list);
}

/* Return the first half of a second one, which is no longer open; NULL if it is missing or in doubt. */
struct open_half *end_half(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch)
{
    struct join_state *join = &calls->joins[role->join];
    struct open_half *half = (join->plan.by_stack ? end_call : end_pair)(calls, role, record, scratch);

    if (half == NULL)
        return NULL;
    if (half->variant == FROM_FORK) {
        free_half(calls, half);
        return NULL;
    }
    if (record->time > calls->next_loss)
        apply_losses(calls, record->time);
    if (half->time >= calls->broken_until && half->time <= record->time)
        return half;
    if (!half->excluded)
        join->unpaired += 1 + (half->time >= calls->counted_until);
    free_half(calls, half);
    return NULL;
}

/* Keep the time of an event between the halves of a pair, in the half to which it belongs, if one is open. */
void note_step(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch)
{
    uint32_t nsteps = calls->joins[role->join].plan.nsteps;
    int32_t thread_at;
    uint32_t length = write_pair_key(role, record, scratch, &thread_at);
    struct call_list *list = length ? find_list(calls, role->join, scratch, length) : NULL;
    struct open_half *half = list == NULL ? NULL : list->innermost;

    if (half == NULL || record->time < half->time)
        return;
    store_word(
        half_bytes(half) + half->length - half->stack_length - 8 * (nsteps - (uint32_t)role->variant),
        record->time - half->time);
}
