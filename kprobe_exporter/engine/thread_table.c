/* Threads by their ids: a hash table of lists (thread_times.c). */
#include <stdlib.h>

#include "engine.h"
#include "thread_table.h"

enum { MAX_THREADS = 1 << 17 };     /* beyond it, new threads are not watched: an end that was lost leaves one */

bool make_thread_table(struct thread_table *table)
{
    table->nslots = 1 << 10;
    table->slots = calloc(table->nslots, sizeof(*table->slots));
    return table->slots != NULL;
}

static void free_thread(struct thread_time *thread)
{
    free(thread->stack);
    free(thread);
}

void free_thread_table(struct thread_table *table)
{
    for (uint32_t i = 0; table->slots != NULL && i < table->nslots; i++) {
        while (table->slots[i] != NULL) {
            struct thread_time *thread = table->slots[i];

            table->slots[i] = thread->next;
            free_thread(thread);
        }
    }
    free(table->slots);
}

bool is_full(const struct thread_table *table)
{
    return table->nthreads == MAX_THREADS;
}

/* Return the link to a thread, at the end of its list if it is unknown. Ids are consecutive, so they need no hash. */
struct thread_time **find_thread(const struct thread_table *table, int32_t tid)
{
    struct thread_time **link = &table->slots[(uint32_t)tid & (table->nslots - 1)];

    while (*link != NULL && (*link)->tid != tid)
        link = &(*link)->next;
    return link;
}

/* Double the number of slots; false without memory. */
static bool grow(struct thread_table *table)
{
    struct thread_time **before = table->slots;
    uint32_t nbefore = table->nslots;
    struct thread_time **slots = calloc(2 * (size_t)nbefore, sizeof(*slots));

    if (slots == NULL)
        return false;
    table->slots = slots;
    table->nslots = 2 * nbefore;
    for (uint32_t i = 0; i < nbefore; i++) {
        struct thread_time *thread = before[i];

        while (thread != NULL) {
            struct thread_time *next = thread->next, **link = find_thread(table, thread->tid);

            thread->next = NULL;
            *link = thread;
            thread = next;
        }
    }
    free(before);
    return true;
}

/* Find a thread, or add it; NULL without memory, or if there are too many. */
struct thread_time *add_thread(struct thread_table *table, int32_t tid, uint64_t since)
{
    struct thread_time **link = find_thread(table, tid), *thread = *link;

    if (thread != NULL || table->nthreads == MAX_THREADS)
        return thread;
    if (table->nthreads == table->nslots) {
        if (!grow(table))
            return NULL;
        link = find_thread(table, tid);
    }
    thread = calloc(1, sizeof(*thread));
    if (thread == NULL)
        return NULL;
    thread->tid = tid;
    thread->cpu = -1;
    thread->state = THREAD_UNKNOWN;
    thread->since = since;
    *link = thread;
    table->nthreads++;
    return thread;
}

void remove_thread(struct thread_table *table, int32_t tid)
{
    struct thread_time **link = find_thread(table, tid), *thread = *link;

    if (thread == NULL)
        return;
    *link = thread->next;
    table->nthreads--;
    free_thread(thread);
}
