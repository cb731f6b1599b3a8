/* Finds lists of open first halves: by their key, by their thread, and the one that began longest ago.
 *
 * Two hash tables of the same size have chained lists; both double together when there are as many lists as
 * slots. The key's table serves joins. The thread's serves what happens to a thread: it exits, forks or executes
 * a program; only lists whose key has a thread are in it, and those of a program's functions are under a hash of
 * their own. The third order is a doubly linked list by age: when too much is open, the oldest lists go. */
#include <stdlib.h>

#include "open_calls.h"

struct call_list *find_list(
    const struct open_calls *calls, uint32_t join, const uint8_t *key, uint32_t length)
{
    uint64_t hash = hash_of(calls, join, key, length);
    struct call_list *list;

    if (calls->nslots == 0)
        return NULL;
    for (list = calls->by_key[hash & (calls->nslots - 1)]; list != NULL; list = list->next)
        if (list->hash == hash && list->join == join && list->key_length == length
            && is_same_key(list_key(list), key, length))
            return list;
    return NULL;
}

/* Enter a list into both tables. */
void link_list(struct open_calls *calls, struct call_list *list)
{
    struct call_list **slot = &calls->by_key[list->hash & (calls->nslots - 1)];

    list->next = *slot;
    *slot = list;
    if (!list->of_thread)
        return;
    slot = thread_slot(calls, list->tid, list->of_program);
    list->left = NULL;
    list->right = *slot;
    if (list->right != NULL)
        list->right->left = list;
    *slot = list;
}

/* Remove a list from both tables. */
void unlink_list(struct open_calls *calls, struct call_list *list)
{
    struct call_list **at = &calls->by_key[list->hash & (calls->nslots - 1)];

    while (*at != list)
        at = &(*at)->next;
    *at = list->next;
    if (!list->of_thread)
        return;
    if (list->left != NULL)
        list->left->right = list->right;
    else
        *thread_slot(calls, list->tid, list->of_program) = list->right;
    if (list->right != NULL)
        list->right->left = list->left;
}

/* Make a list the newest one. */
void lru_append(struct open_calls *calls, struct call_list *list)
{
    list->older = calls->newest;
    list->newer = NULL;
    if (calls->newest != NULL)
        calls->newest->newer = list;
    else
        calls->oldest = list;
    calls->newest = list;
}

void lru_remove(struct open_calls *calls, struct call_list *list)
{
    if (list->older != NULL)
        list->older->newer = list->newer;
    else
        calls->oldest = list->newer;
    if (list->newer != NULL)
        list->newer->older = list->older;
    else
        calls->newest = list->older;
}

/* Double both tables; false without memory. */
static bool double_slots(struct open_calls *calls)
{
    uint32_t nslots = calls->nslots ? 2 * calls->nslots : MIN_SLOTS;
    struct call_list **by_key = calloc(nslots, sizeof(*by_key));
    struct call_list **by_thread = calloc(nslots, sizeof(*by_thread));

    if (by_key == NULL || by_thread == NULL) {
        free(by_key);
        free(by_thread);
        return false;
    }
    free(calls->by_key);
    free(calls->by_thread);
    calls->by_key = by_key;
    calls->by_thread = by_thread;
    calls->nslots = nslots;
    for (struct call_list *list = calls->oldest; list != NULL; list = list->newer)
        link_list(calls, list);
    return true;
}

/* Add an empty list; NULL without memory. `thread_at` is where the thread is in the key, or -1. */
struct call_list *add_list(
    struct open_calls *calls, uint32_t join, const uint8_t *key, uint32_t length, int32_t tid, int32_t thread_at)
{
    const struct join_plan *plan = &calls->joins[join].plan;
    struct call_list *list;

    if (calls->nlists >= calls->nslots && !double_slots(calls))
        return NULL;
    list = malloc(sizeof(*list) + length);
    if (list == NULL)
        return NULL;
    *list = (struct call_list){
        .hash = hash_of(calls, join, key, length),
        .join = join,
        .key_length = length,
        .tid = tid,
        .of_program = plan->user && plan->by_stack,
        .of_thread = thread_at >= 0,
        .thread_at = thread_at >= 0 ? (uint32_t)thread_at : 0,
    };
    memcpy(list_key(list), key, length);
    link_list(calls, list);
    lru_append(calls, list);
    calls->nlists++;
    return list;
}

/* Remove a list that is empty. */
void remove_list(struct open_calls *calls, struct call_list *list)
{
    unlink_list(calls, list);
    lru_remove(calls, list);
    calls->nlists--;
    free(list);
}
