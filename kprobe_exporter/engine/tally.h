/* Adds up records (tally.c): the sums of one group, and how often the cgroups of threads may have changed. */
#ifndef ENGINE_TALLY_H
#define ENGINE_TALLY_H

#include "record.h"

enum { NEPOCHS = 4096 };            /* a power of two */

/* A thread's cgroup is looked up by the caller, for the moment of a tally's first record. So records of a thread
 * before and after a change need two tallies: the epoch of a thread grows with each change that may concern it,
 * and is a part of the key. */
struct epochs {
    uint64_t moves;                 /* any thread may have moved */
    uint64_t placed[NEPOCHS];       /* by the lowest bits of a thread's id; two threads may share one */
};

struct tally_context {
    const struct expr_node *nodes;
    const struct epochs *epochs;
    uint8_t *scratch;               /* room for the longest key */
    uint64_t seed;
};

/* Add a record to the tallies of a group; false without memory. */
bool add_to_tallies(
    struct tally_table *table, const struct group *group, const struct tally_context *context,
    const struct record *record);

void free_tallies(struct tally_table *table);

#endif
