/* Finds the open call in which something lies, and gives calls their traces.
 *
 *   thread 7 ─► innermost: read() ─► outer: handle() ─► outer: sys_read          (enclosing_call)
 *                            │                │
 *                            └─ traced_call   └─ traced_call, the outermost of the trace
 *
 * Each thread has its open calls in the order in which they began. A call gets its traced_call (an id and a
 * parent) only when something in it is exported, or when it is exported itself; then all calls around it get one
 * as well, so that a child can name its parent before the parent has ended. A traced_call lives until its own
 * half and all calls in it are gone: they count as its users.
 *
 * A call may have ended without an event: its return was lost, or the program left it by longjmp() or an
 * exception. The system call in which a call in the kernel lies bounds it; a new call farther up the same stack
 * removes those below it. */
#include <stdlib.h>

#include "open_calls.h"

enum {
    MAX_DEPTH = 256,                /* open calls that are examined, the innermost first */
    JUMP_MARGIN = 64,               /* bytes of stack: a call farther below a new one has ended */
    NBUCKETS = 4096,                /* of threads */
};

/* Make a call in its parent's trace, or in one of its own; NULL without memory. */
struct traced_call *new_traced_call(
    struct open_calls *calls, const struct nesting *nesting, struct traced_call *parent)
{
    struct traced_call *call = calloc(1, sizeof(*call));

    if (call == NULL)
        return NULL;
    call->nusers = 1;
    call->parent = parent;
    call->span = next_random(&calls->random);
    if (parent != NULL) {
        parent->nusers++;
        call->outermost = parent->outermost;
        return call;
    }
    call->outermost = call;
    call->admitted = UNDECIDED;
    call->layout_id = nesting->layout_id;
    call->trace[0] = next_random(&calls->random);
    call->trace[1] = next_random(&calls->random);
    call->sampled = call->trace[1] <= nesting->share;
    return call;
}

/* Free a call that nothing uses any more, and those around it. */
void release_traced_call(struct traced_call *call)
{
    while (call != NULL && --call->nusers == 0) {
        struct traced_call *parent = call->parent;

        free(call);
        call = parent;
    }
}

static inline struct thread_calls **nested_bucket(const struct open_calls *calls, int64_t id)
{
    return &calls->nested[hash_thread(calls, (int32_t)id, false) % NBUCKETS];
}

static struct thread_calls *find_thread(const struct open_calls *calls, int64_t id)
{
    struct thread_calls *thread = calls->nested != NULL ? *nested_bucket(calls, id) : NULL;

    while (thread != NULL && thread->id != id)
        thread = thread->next;
    return thread;
}

/* Return a thread's open calls; NULL without memory. */
static struct thread_calls *add_thread(struct open_calls *calls, int64_t id)
{
    struct thread_calls *thread = find_thread(calls, id);
    struct thread_calls **bucket;

    if (thread != NULL)
        return thread;
    if (calls->nested == NULL)
        calls->nested = calloc(NBUCKETS, sizeof(*calls->nested));
    thread = calls->nested != NULL ? calloc(1, sizeof(*thread)) : NULL;
    if (thread == NULL)
        return NULL;
    bucket = nested_bucket(calls, id);
    thread->id = id;
    thread->next = *bucket;
    *bucket = thread;
    return thread;
}

/* Free a thread without open calls. */
static void remove_if_empty(struct open_calls *calls, struct thread_calls *thread)
{
    struct thread_calls **at;

    if (thread->innermost != NULL)
        return;
    for (at = nested_bucket(calls, thread->id); *at != thread;)
        at = &(*at)->next;
    *at = thread->next;
    free(thread);
}

/* Take a call out of its thread's open calls. */
static void remove_enclosing(struct enclosing_call *call)
{
    if (call->inner != NULL)
        call->inner->outer = call->outer;
    else
        call->thread->innermost = call->outer;
    if (call->outer != NULL)
        call->outer->inner = call->inner;
    call->thread = NULL;
}

/* Remove the innermost calls below a new call on the same stack: they ended without a return event. */
static void drop_returned_calls(struct thread_calls *thread, uint64_t stack_pointer)
{
    struct enclosing_call *call;

    while ((call = thread->innermost) != NULL) {
        if (!call->nesting.by_stack
            || call->stack_pointer >> STACK_REGION_BITS != stack_pointer >> STACK_REGION_BITS)
            return;
        if (stack_pointer < JUMP_MARGIN || call->stack_pointer >= stack_pointer - JUMP_MARGIN)
            return;
        remove_enclosing(call);
    }
}

/* Let an open half enclose what its thread does from now on; false without memory. */
bool enclose(struct open_calls *calls, struct open_half *half, const struct nesting *nesting)
{
    struct thread_calls *thread = add_thread(calls, thread_id(half->tid, half->cpu));
    struct enclosing_call *call;

    if (thread == NULL)
        return false;
    if (nesting->system_call)
        thread->entered = half->time;
    else if (nesting->by_stack)
        drop_returned_calls(thread, half->stack_pointer);
    call = malloc(sizeof(*call));
    if (call == NULL) {
        remove_if_empty(calls, thread);
        return false;
    }
    *call = (struct enclosing_call){
        .thread = thread,
        .outer = thread->innermost,
        .time = half->time,
        .stack_pointer = half->stack_pointer,
        .nesting = *nesting,
    };
    if (call->outer != NULL)
        call->outer->inner = call;
    thread->innermost = call;
    half->enclosing = call;
    return true;
}

/* Take a half that is no longer open out of its thread's open calls; its traced call stays. */
void detach_enclosing(struct open_calls *calls, struct open_half *half)
{
    struct thread_calls *thread;

    if (half->enclosing == NULL || half->enclosing->thread == NULL)
        return;
    thread = half->enclosing->thread;
    remove_enclosing(half->enclosing);
    remove_if_empty(calls, thread);
}

/* Whether a call becomes a span, began no later than `now`, and is still open as far as is known. */
static bool is_around(
    const struct open_calls *calls, const struct thread_calls *thread, const struct enclosing_call *call,
    uint64_t now)
{
    if (!call->nesting.spans || call->time > now || call->time < calls->broken_until)
        return false;
    return !call->nesting.in_kernel || call->time >= thread->entered;
}

/* Find the innermost open call of a thread that is around a moment; NULL without. It stays its half's. False if
 * there is no memory. */
bool find_call_around(struct open_calls *calls, int64_t id, uint64_t now, struct traced_call **found)
{
    struct enclosing_call *untraced[MAX_DEPTH];
    struct thread_calls *thread = find_thread(calls, id);
    struct enclosing_call *call;
    uint32_t nexamined = 0, nuntraced = 0;

    *found = NULL;
    if (thread == NULL)
        return true;
    if (now > calls->next_loss)
        apply_losses(calls, now);
    for (call = thread->innermost; call != NULL && nexamined < MAX_DEPTH; call = call->outer) {
        nexamined++;
        if (!is_around(calls, thread, call, now))
            continue;
        if (call->call != NULL) {
            *found = call->call;
            break;
        }
        untraced[nuntraced++] = call;
    }
    while (nuntraced > 0) {
        call = untraced[--nuntraced];
        call->call = new_traced_call(calls, &call->nesting, *found);
        if (call->call == NULL)
            return false;
        *found = call->call;
    }
    return true;
}
