/* Ends the open halves of threads that exit, fork or execute another program.
 *
 *   - A thread's halves end with it. They are searched for once a merge, because most threads have none: until
 *     then, a half that began after the exit, under the same id, is told apart by its time.
 *   - An exec ends the calls of the program's functions, and not those in the kernel. A thread that is not its
 *     process's leader gets the leader's id (de_thread() in fs/exec.c), and its calls in the kernel with it.
 *   - A fork copies the pending returns of the program's functions to the child (dup_utask() in
 *     kernel/events/uprobes.c). The child made none of these calls, so that its returns from them are not joined:
 *     the copies are FROM_FORK. A thread that shares its memory with its parent has a stack of its own instead,
 *     unless it is a vfork.
 *   - A new thread has no calls of its own: what is open under its id is that of a thread whose exit was not
 *     seen. */
#include <stdlib.h>

#include "open_calls.h"

enum {
    CLONE_VM = 0x100,               /* include/uapi/linux/sched.h */
    CLONE_VFORK = 0x4000,
    MAX_KEPT_ENDS = 1024,           /* thread ends for which memory is kept when none waits */
};

static inline int32_t *end_bucket(const struct open_calls *calls, int32_t tid)
{
    return &calls->ended_buckets[hash_thread(calls, tid, false) & (calls->ended_room - 1)];
}

/* Return the end of a thread that waits, NULL if none does. */
static struct thread_end *find_end(const struct open_calls *calls, int32_t tid)
{
    int32_t at = calls->nended ? *end_bucket(calls, tid) : -1;

    while (at >= 0 && calls->ended[at].tid != tid)
        at = calls->ended[at].next;
    return at < 0 ? NULL : &calls->ended[at];
}

static void chain_end(struct open_calls *calls, uint32_t at)
{
    int32_t *bucket = end_bucket(calls, calls->ended[at].tid);

    calls->ended[at].next = *bucket;
    *bucket = (int32_t)at;
}

/* Double the room for ends; false without memory. */
static bool grow_ends(struct open_calls *calls)
{
    uint32_t room = calls->ended_room ? 2 * calls->ended_room : MIN_SLOTS;
    struct thread_end *ended = realloc(calls->ended, room * sizeof(*ended));
    int32_t *buckets;

    if (ended == NULL)
        return false;
    calls->ended = ended;
    buckets = realloc(calls->ended_buckets, room * sizeof(*buckets));
    if (buckets == NULL)
        return false;
    calls->ended_buckets = buckets;
    calls->ended_room = room;
    memset(buckets, 0xFF, room * sizeof(*buckets));
    for (uint32_t i = 0; i < calls->nended; i++)
        chain_end(calls, i);
    return true;
}

/* Have the halves that a thread began before a moment end with the merge; false without memory. */
static bool note_end(struct open_calls *calls, int32_t tid, uint64_t until)
{
    struct thread_end *end = find_end(calls, tid);

    if (end != NULL) {
        end->until = until;
        return true;
    }
    if (calls->nended == calls->ended_room && !grow_ends(calls))
        return false;
    calls->ended[calls->nended] = (struct thread_end){.until = until, .tid = tid};
    chain_end(calls, calls->nended++);
    return true;
}

/* Drop the halves of a thread in the lists of a slot. */
static void end_lists(struct open_calls *calls, struct call_list *list, const struct thread_end *end)
{
    while (list != NULL) {
        struct call_list *following = list->right;

        if (list->tid == end->tid)
            drop_before(calls, list, end->until);
        list = following;
    }
}

/* End the halves of all threads that ended. */
void apply_thread_ends(struct open_calls *calls)
{
    for (uint32_t i = 0; i < calls->nended; i++) {
        const struct thread_end *end = &calls->ended[i];

        *end_bucket(calls, end->tid) = -1;
        if (calls->nlists == 0)
            continue;
        end_lists(calls, *thread_slot(calls, end->tid, false), end);
        end_lists(calls, *thread_slot(calls, end->tid, true), end);
    }
    calls->nended = 0;
    if (calls->ended_room > MAX_KEPT_ENDS) {
        free(calls->ended);
        free(calls->ended_buckets);
        calls->ended = NULL;
        calls->ended_buckets = NULL;
        calls->ended_room = 0;
    }
}

/* Give no child the calls that a thread's program made up to now. */
static void stop_inheritance(struct open_calls *calls, int32_t tid)
{
    struct call_list *list = calls->nlists ? *thread_slot(calls, tid, true) : NULL;

    for (; list != NULL; list = list->right)
        if (list->tid == tid)
            list->inheritable = false;
}

/* Return a thread's lists, the newest first, to be freed: those of its program's calls that a child inherits, or
 * all others. NULL without memory. */
static struct call_list **lists_of(
    const struct open_calls *calls, int32_t tid, bool of_program, uint32_t *number)
{
    struct call_list *first = *thread_slot(calls, tid, of_program);
    struct call_list **found;
    size_t room = 1;

    for (const struct call_list *list = first; list != NULL; list = list->right)
        room += list->tid == tid;
    found = malloc(room * sizeof(struct call_list *));
    *number = 0;
    if (found == NULL)
        return NULL;
    for (struct call_list *list = first; list != NULL; list = list->right)
        if (list->tid == tid && (list->inheritable || !of_program))
            found[(*number)++] = list;
    return found;
}

/* Copy the calls of a list for a child that was forked at this time; false without memory. */
static bool copy_list(struct open_calls *calls, const struct call_list *list, int32_t child, uint64_t time)
{
    uint8_t key[STACK_KEY_LENGTH];
    struct call_list *copy;
    struct open_half **at;

    memcpy(key, list_key(list), STACK_KEY_LENGTH);
    set_key_thread(key, child);
    copy = find_list(calls, list->join, key, STACK_KEY_LENGTH);
    if (copy != NULL)
        drop_list(calls, copy);
    copy = add_list(calls, list->join, key, STACK_KEY_LENGTH, child, 0);
    if (copy == NULL)
        return false;
    copy->inheritable = true;
    at = &copy->innermost;
    for (const struct open_half *half = list->innermost; half != NULL; half = half->outer) {
        struct open_half *copied = malloc(sizeof(*copied));

        if (copied == NULL) {
            if (copy->innermost == NULL)
                remove_list(calls, copy);
            return false;
        }
        *copied = (struct open_half){
            .stack_pointer = half->stack_pointer, .time = time, .tid = child, .variant = FROM_FORK};
        *at = copied;
        at = &copied->outer;
        calls->nhalves++;
    }
    return true;
}

/* Copy the calls of a program's functions for a forked child; false without memory. */
static bool inherit(struct open_calls *calls, int32_t parent, int32_t child, uint64_t time)
{
    struct call_list **found;
    uint32_t number;
    bool done = true;

    if (parent == child || calls->nlists == 0)
        return true;
    found = lists_of(calls, parent, true, &number);
    if (found == NULL)
        return false;
    while (number > 0 && done)      /* the oldest first */
        done = copy_list(calls, found[--number], child, time);
    free(found);
    trim(calls);
    return done;
}

/* Give a list to another thread, whose own halves have ended. `key` is room to write its key. */
static void move_to_thread(struct open_calls *calls, struct call_list *list, int32_t tid, uint8_t *key)
{
    struct call_list *other;

    memcpy(key, list_key(list), list->key_length);
    if (calls->joins[list->join].plan.by_stack)
        set_key_thread(key, tid);
    else
        write_number(key + list->thread_at, from_signed(tid));
    other = find_list(calls, list->join, key, list->key_length);
    if (other != NULL)
        drop_list(calls, other);
    unlink_list(calls, list);
    lru_remove(calls, list);
    memcpy(list_key(list), key, list->key_length);
    list->hash = hash_of(calls, list->join, key, list->key_length);
    list->tid = tid;
    link_list(calls, list);
    lru_append(calls, list);
}

/* End a program's calls, and give the others to the thread's new id; false without memory. */
static bool on_exec(struct open_calls *calls, int32_t old, int32_t tid, uint8_t *scratch)
{
    struct call_list *list = calls->nlists ? *thread_slot(calls, old, true) : NULL;
    struct call_list **found;
    uint32_t number;

    while (list != NULL) {
        struct call_list *following = list->right;

        if (list->tid == old && list->inheritable)
            drop_list(calls, list);
        list = following;
    }
    if (old == tid)
        return true;
    apply_thread_ends(calls);       /* the exit of the former leader, whose id this is */
    if (calls->nlists == 0)
        return true;
    found = lists_of(calls, old, false, &number);
    if (found == NULL)
        return false;
    while (number > 0)              /* the oldest first */
        move_to_thread(calls, found[--number], tid, scratch);
    free(found);
    return true;
}

/* Apply an event about threads; false without memory. */
bool on_thread_event(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch)
{
    struct number value, flags;
    int32_t tid;

    if (role->role == ROLE_EXITED) {
        stop_inheritance(calls, record->tid);
        return note_end(calls, record->tid, record->time + 1);
    }
    if (!read_number(&role->first, record, &value))
        return true;
    tid = (int32_t)value.low;
    if (role->role == ROLE_EXECUTED)
        return on_exec(calls, tid, record->tid, scratch);
    if (find_end(calls, tid) != NULL)
        apply_thread_ends(calls);
    if (!note_end(calls, tid, record->time)) /* what it has from its parent begins now, and stays */
        return false;
    if (!read_number(&role->second, record, &flags) || (flags.low & (CLONE_VM | CLONE_VFORK)) == CLONE_VM)
        return true;
    return inherit(calls, record->tid, tid, record->time);
}
