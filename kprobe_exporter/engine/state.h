/* What an engine holds, for the files that make up its steps: walk.c, join.c, export.c and engine.c. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "expr.h"
#include "open_calls.h"
#include "queue.h"
#include "tally.h"

enum { OWN_THREAD_WORDS = 16 };     /* of 64 bits: a set of threads by the lowest bits of their ids */

struct engine {
    struct engine_plan *plan;
    struct engine_counts counts;
    /* walk.c */
    int32_t *by_id;                 /* the first type of each event id, or -1 */
    uint32_t nids;
    uint32_t length_at;             /* the half of a page's commit word with the length and the flags */
    int32_t *own_threads;           /* the ids of this process's threads */
    uint32_t nown_threads;
    uint64_t own_bits[OWN_THREAD_WORDS];
    struct cpu_queue *cpu;          /* that of the page that is walked */
    struct found *found;
    uint32_t nfound;
    uint32_t found_room;
    uint8_t *pages;                 /* what engine_read() reads */
    /* losses */
    struct loss *losses;
    uint32_t losses_room;
    /* tally.c */
    struct tally_table *tables;     /* one for each group of the plan */
    struct tally_context tally;
    struct epochs epochs;
    /* join.c */
    struct open_calls *calls;       /* NULL if the plan queues nothing */
    struct thread_times *times;     /* NULL if the time of threads is not added up */
    struct cpu_queue *cpus;         /* by the number of the CPU */
    uint32_t ncpus;
    uint32_t *heap;                 /* of CPUs by their first events, while they are merged */
    uint64_t narrivals;             /* events that were ever queued */
    /* export.c */
    uint64_t random;                /* the state of next_random(), for shares of records */
    struct rate_limit together;
    uint8_t *exported;              /* exported_record, and its bytes up to a multiple of 8, one by one */
    size_t exported_used;
    size_t exported_room;
};

/* walk.c */

#define EVENTS_MISSED (UINT32_C(1) << 31)  /* in a page's commit: events before it were lost … */
#define MISSED_COUNTED (UINT32_C(1) << 30) /* … and their number is behind the last record */

/* Walk a page of the CPU `engine->cpu`; return an enum engine_status. */
int walk(struct engine *engine, const uint8_t *page, size_t length);

/* engine.c */

/* Find the queue of a CPU, or add it; NULL without memory. */
struct cpu_queue *find_cpu(struct engine *engine, int32_t cpu);
bool push_loss(struct engine *engine, const struct cpu_queue *cpu, uint64_t end);

/* join.c */

/* Queue a half, a single record, or an event about threads; false without memory. */
bool queue_event(struct engine *engine, const struct record *record, int32_t type);

/* Add a record to the tallies of `ngroups` groups; false without memory. */
static inline bool add_to_groups(
    struct engine *engine, uint32_t first_group, uint32_t ngroups, const struct record *record)
{
    for (uint32_t i = first_group; i < first_group + ngroups; i++)
        if (!add_to_tallies(&engine->tables[i], &engine->plan->groups[i], &engine->tally, record))
            return false;
    return true;
}

/* thread_times.c */

struct thread_times;

struct thread_times *new_thread_times(void);    /* NULL without memory */
void free_thread_times(struct thread_times *times);

/* Take an event of the scheduler, in the order of time; false without memory. */
bool on_scheduler_event(struct engine *engine, const struct join_role *role, const struct record *record);
void add_time_loss(struct thread_times *times, uint64_t start, uint64_t end);

/* All events up to a moment were processed. */
void set_time_reached(struct thread_times *times, uint64_t reached);

/* export.c */

/* Whether a record is exported by its rule's filter and share. */
bool should_export(struct engine *engine, const struct export_rule *rule, const struct record *record);
bool export_single(struct engine *engine, int32_t type, const struct record *record);

/* Export a joined record if it is chosen; false without memory. `passed`: it passed the join's filter. */
bool export_joined(
    struct engine *engine, const struct join_variant *variant, struct open_half *half,
    const struct record *record, bool passed);

#endif
