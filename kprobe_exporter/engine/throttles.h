/* The cgroups that are throttled on each CPU, and when (throttles.c). */
#ifndef ENGINE_THROTTLES_H
#define ENGINE_THROTTLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct throttle;
struct throttles;

struct throttles *new_throttles(void);          /* NULL without memory */
void free_throttles(struct throttles *throttles);

/* A cgroup has no quota on a CPU any more; `group` is its number, `level` its depth below the root. A cgroup may be
 * throttled several times over, by its own quota and by those of cgroups above it. false without memory. */
bool begin_throttle(
    struct throttles *throttles, int32_t cpu, uint64_t group, uint32_t level, const uint8_t *name, size_t length,
    uint64_t time);

/* One of its throttles is over. */
void end_throttle(struct throttles *throttles, int32_t cpu, uint64_t group, uint64_t time);

/* Forget all, as events are missing. */
void forget_throttles(struct throttles *throttles);

/* Forget what ended by a moment. */
void expire_throttles(struct throttles *throttles, uint64_t until);

/* Return the first, or the next, cgroup that was throttled on a CPU since the last expire_throttles(); NULL at the
 * end. */
const struct throttle *first_throttle(const struct throttles *throttles, int32_t cpu);
const struct throttle *next_throttle(const struct throttle *one);

/* Return for how many nanoseconds of an interval it was throttled. */
uint64_t throttled_within(const struct throttle *one, uint64_t start, uint64_t end);

/* Return STACK_HEAD bytes and its "LEVEL:NAME", and their number. */
const uint8_t *throttle_name(const struct throttle *one, uint32_t *length);

#endif
