/* Keeps when the quotas of cgroups were used up, by CPU: what the waits of threads are compared with.
 *
 * The scheduler throttles a cgroup on one CPU at a time (tg_throttle_down() in kernel/sched/fair.c), with all cgroups
 * below it. Until tg_unthrottle_up() none of its threads gets that CPU. Each time is kept until the pieces of all
 * threads were cut behind it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "throttles.h"

enum {
    MAX_CPUS = 1 << 13,             /* CONFIG_NR_CPUS has this maximum */
    MAX_GROUPS = 1 << 10,           /* of one CPU; others count as not throttled */
    MAX_SPANS = 1 << 12,            /* of one cgroup between two cuts: a period is a millisecond at least */
    MAX_HELD_S = 10,                /* a period is a second at most; what holds for longer has had an end unseen */
    NAME_ROOM = 300,                /* a level, a colon, and a name of NAME_MAX bytes */
};

struct span {
    uint64_t start;
    uint64_t end;
};

struct throttle {
    struct throttle *next;
    uint64_t group;
    uint32_t depth;                 /* how many throttles hold; 0 if it may run */
    uint64_t since;                 /* of the first of them */
    struct span *spans;             /* those that are over */
    uint32_t nspans;
    uint32_t room;
    uint32_t length;                /* of `text` */
    uint8_t text[STACK_HEAD + NAME_ROOM];
};

struct throttles {
    struct throttle **cpus;
    uint32_t ncpus;
};

struct throttles *new_throttles(void)
{
    return calloc(1, sizeof(struct throttles));
}

static void free_throttle(struct throttle *one)
{
    free(one->spans);
    free(one);
}

void forget_throttles(struct throttles *throttles)
{
    for (uint32_t cpu = 0; cpu < throttles->ncpus; cpu++)
        while (throttles->cpus[cpu] != NULL) {
            struct throttle *one = throttles->cpus[cpu];

            throttles->cpus[cpu] = one->next;
            free_throttle(one);
        }
}

void free_throttles(struct throttles *throttles)
{
    if (throttles == NULL)
        return;
    forget_throttles(throttles);
    free(throttles->cpus);
    free(throttles);
}

/* Have a list for a CPU; false without memory. */
static bool reach_cpu(struct throttles *throttles, uint32_t cpu)
{
    struct throttle **made;

    if (cpu < throttles->ncpus)
        return true;
    made = realloc(throttles->cpus, (cpu + 1) * sizeof(*made));
    if (made == NULL)
        return false;
    memset(made + throttles->ncpus, 0, (cpu + 1 - throttles->ncpus) * sizeof(*made));
    throttles->cpus = made;
    throttles->ncpus = cpu + 1;
    return true;
}

static struct throttle *find_throttle(const struct throttles *throttles, int32_t cpu, uint64_t group, uint32_t *number)
{
    struct throttle *one;

    *number = 0;
    if ((uint32_t)cpu >= throttles->ncpus)
        return NULL;
    for (one = throttles->cpus[cpu]; one != NULL && one->group != group; one = one->next)
        ++*number;
    return one;
}

bool begin_throttle(
    struct throttles *throttles, int32_t cpu, uint64_t group, uint32_t level, const uint8_t *name, size_t length,
    uint64_t time)
{
    uint32_t number;
    struct throttle *one;

    if (cpu < 0 || cpu >= MAX_CPUS || length >= NAME_ROOM - 12)
        return true;
    one = find_throttle(throttles, cpu, group, &number);
    if (one == NULL) {
        if (number == MAX_GROUPS)
            return true;
        if (!reach_cpu(throttles, (uint32_t)cpu))
            return false;
        one = calloc(1, sizeof(*one));
        if (one == NULL)
            return false;
        one->group = group;
        one->length = STACK_HEAD + (uint32_t)snprintf(
            (char *)one->text + STACK_HEAD, NAME_ROOM, "%u:%.*s", level, (int)length, (const char *)name);
        one->next = throttles->cpus[cpu];
        throttles->cpus[cpu] = one;
    }
    if (one->depth++ == 0)
        one->since = time;
    return true;
}

void end_throttle(struct throttles *throttles, int32_t cpu, uint64_t group, uint64_t time)
{
    uint32_t number;
    struct throttle *one = find_throttle(throttles, cpu, group, &number);

    if (one == NULL || one->depth == 0 || --one->depth > 0 || one->nspans == MAX_SPANS)
        return;
    if (one->nspans == one->room) {
        uint32_t room = one->room ? 2 * one->room : 16;
        struct span *made = realloc(one->spans, room * sizeof(*made));

        if (made == NULL)
            return;                 /* this time counts as a wait for a CPU */
        one->spans = made;
        one->room = room;
    }
    one->spans[one->nspans++] = (struct span){one->since, time};
}

/* Whether a throttle holds that may be believed. */
static bool holds(const struct throttle *one, uint64_t now)
{
    return one->depth && (now < one->since || now - one->since < MAX_HELD_S * UINT64_C(1000000000));
}

void expire_throttles(struct throttles *throttles, uint64_t until)
{
    for (uint32_t cpu = 0; cpu < throttles->ncpus; cpu++) {
        struct throttle **link = &throttles->cpus[cpu];

        while (*link != NULL) {
            struct throttle *one = *link;
            uint32_t kept = 0;

            for (uint32_t i = 0; i < one->nspans; i++)
                if (one->spans[i].end > until)
                    one->spans[kept++] = one->spans[i];
            one->nspans = kept;
            if (holds(one, until) || (kept && !one->depth)) {
                link = &one->next;
                continue;
            }
            *link = one->next;
            free_throttle(one);
        }
    }
}

const struct throttle *first_throttle(const struct throttles *throttles, int32_t cpu)
{
    return (uint32_t)cpu < throttles->ncpus ? throttles->cpus[cpu] : NULL;
}

const struct throttle *next_throttle(const struct throttle *one)
{
    return one->next;
}

/* Return how many nanoseconds two intervals have in common. */
static uint64_t common(uint64_t start, uint64_t end, struct span other)
{
    if (other.start > start)
        start = other.start;
    if (other.end < end)
        end = other.end;
    return start < end ? end - start : 0;
}

uint64_t throttled_within(const struct throttle *one, uint64_t start, uint64_t end)
{
    uint64_t total = one->depth ? common(start, end, (struct span){one->since, end}) : 0;

    for (uint32_t i = 0; i < one->nspans; i++)
        total += common(start, end, one->spans[i]);
    return total;
}

const uint8_t *throttle_name(const struct throttle *one, uint32_t *length)
{
    *length = one->length;
    return one->text;
}
