/* Threads by their ids (thread_table.c), and what is known of each (thread_times.c). */
#ifndef ENGINE_THREAD_TABLE_H
#define ENGINE_THREAD_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct thread_time {
    struct thread_time *next;       /* in its slot */
    int32_t tid;
    uint8_t state;                  /* enum thread_state */
    bool watched;                   /* it has had no event; `state` is the one in which it was seen */
    bool reclaims;                  /* it makes room in memory when it runs */
    int32_t cpu;                    /* for which it waits, or -1 */
    uint64_t seen;                  /* when it was, if it is watched */
    uint64_t since;                 /* the end of its last piece */
    uint8_t *stack;                 /* of a thread that is asleep: STACK_HEAD and the stack */
    uint32_t stack_length;          /* bytes; 0 without */
    uint32_t stack_room;
};

struct thread_table {
    struct thread_time **slots;
    uint32_t nslots;                /* a power of two */
    uint32_t nthreads;
};

bool make_thread_table(struct thread_table *table);     /* false without memory */
void free_thread_table(struct thread_table *table);

/* Return the link to a thread, at the end of its list if it is unknown. */
struct thread_time **find_thread(const struct thread_table *table, int32_t tid);

/* Find a thread, or add it, whose time begins at `since`; NULL without memory, or if there are too many. */
struct thread_time *add_thread(struct thread_table *table, int32_t tid, uint64_t since);
void remove_thread(struct thread_table *table, int32_t tid);

/* Whether no further thread can be added. */
bool is_full(const struct thread_table *table);

#endif
