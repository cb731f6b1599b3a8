/* Makes and frees engines and their plans, reads the pages of each CPU, and keeps its losses. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "state.h"

enum {
    MANY_TALLIES = 4096,            /* after which reading stops, so that a table stays in the cache */
    MANY_KEY_BYTES = 1 << 20,
};

/* The memory of a plan's arrays is a list of allocations, each before its array. */
struct allocation {
    struct allocation *next;
    max_align_t array[];
};

struct engine_plan *plan_new(void)
{
    return calloc(1, sizeof(struct engine_plan));
}

void *plan_alloc(struct engine_plan *plan, size_t count, size_t size)
{
    struct allocation *made;

    if (size && count > (SIZE_MAX - sizeof(*made)) / size)
        return NULL;
    made = calloc(1, sizeof(*made) + count * size);
    if (made == NULL)
        return NULL;
    made->next = plan->allocations;
    plan->allocations = made;
    return made->array;
}

void plan_free(struct engine_plan *plan)
{
    if (plan == NULL)
        return;
    while (plan->allocations != NULL) {
        struct allocation *next = plan->allocations->next;

        free(plan->allocations);
        plan->allocations = next;
    }
    free(plan);
}

/* Enter the types by their event ids, in the order of the plan; false without memory. */
static bool index_types(struct engine *engine)
{
    struct engine_plan *plan = engine->plan;

    for (uint32_t i = 0; i < plan->ntypes; i++)
        if (plan->types[i].id >= engine->nids)
            engine->nids = plan->types[i].id + 1;
    engine->by_id = malloc((engine->nids ? engine->nids : 1) * sizeof(*engine->by_id));
    if (engine->by_id == NULL)
        return false;
    memset(engine->by_id, 0xFF, engine->nids * sizeof(*engine->by_id));
    for (uint32_t i = plan->ntypes; i > 0; i--) {
        struct event_type *type = &plan->types[i - 1];

        type->next = engine->by_id[type->id];
        engine->by_id[type->id] = (int32_t)(i - 1);
    }
    return true;
}

/* Return the bytes of the longest key.
 *
 * A text is not longer than a page. There are two more parts than keys: the epochs of threads, and the exponential
 * bucket. A stack is the only key of its group, and two pages long at most. */
static size_t longest_key(const struct engine_plan *plan)
{
    size_t nkeys = 1;

    for (uint32_t i = 0; i < plan->ngroups; i++)
        if (plan->groups[i].nkeys > nkeys)
            nkeys = plan->groups[i].nkeys;
    for (uint32_t i = 0; i < plan->ntypes; i++)
        if (plan->types[i].role.nkeys > nkeys)
            nkeys = plan->types[i].role.nkeys;
    return (nkeys + 2) * ((size_t)plan->page_size + 16);
}

struct engine *engine_new(struct engine_plan *plan)
{
    struct engine *engine = calloc(1, sizeof(*engine));

    if (engine == NULL)
        return NULL;
    engine->plan = plan;
    engine->together = plan->together;
    engine->random = plan->share_seed | 1;
    engine->length_at = plan->commit_at;
    if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
        engine->length_at += plan->commit_size - 4;
    engine->pages = malloc((size_t)plan->page_size * MAX_READ_PAGES);
    engine->tables = calloc(plan->ngroups ? plan->ngroups : 1, sizeof(*engine->tables));
    engine->tally = (struct tally_context){
        .nodes = plan->nodes,
        .epochs = &engine->epochs,
        .scratch = malloc(longest_key(plan)),
        .seed = plan->hash_seed,
    };
    if (plan->queues)
        engine->calls = new_open_calls(plan);
    if (plan->times.wanted)
        engine->times = new_thread_times();
    if (!index_types(engine) || engine->pages == NULL || engine->tables == NULL || engine->tally.scratch == NULL
        || (plan->queues && engine->calls == NULL) || (plan->times.wanted && engine->times == NULL)) {
        engine_free(engine);
        return NULL;
    }
    return engine;
}

void engine_free(struct engine *engine)
{
    if (engine == NULL)
        return;
    for (uint32_t i = 0; engine->tables != NULL && i < engine->plan->ngroups; i++)
        free_tallies(&engine->tables[i]);
    for (uint32_t i = 0; i < engine->ncpus; i++)
        free(engine->cpus[i].bytes);
    free_open_calls(engine->calls);
    free_thread_times(engine->times);
    free(engine->by_id);
    free(engine->own_threads);
    free(engine->found);
    free(engine->pages);
    free(engine->losses);
    free(engine->tables);
    free(engine->tally.scratch);
    free(engine->cpus);
    free(engine->heap);
    free(engine->exported);
    free(engine);
}

struct cpu_queue *find_cpu(struct engine *engine, int32_t cpu)
{
    struct cpu_queue *cpus;
    uint32_t *heap, at = 0;

    while (at < engine->ncpus && engine->cpus[at].cpu < cpu)
        at++;
    if (at < engine->ncpus && engine->cpus[at].cpu == cpu)
        return &engine->cpus[at];
    cpus = realloc(engine->cpus, (engine->ncpus + 1) * sizeof(*cpus));
    if (cpus == NULL)
        return NULL;
    engine->cpus = cpus;
    heap = realloc(engine->heap, (engine->ncpus + 1) * sizeof(*heap));
    if (heap == NULL)
        return NULL;
    engine->heap = heap;
    memmove(&cpus[at + 1], &cpus[at], (engine->ncpus - at) * sizeof(*cpus));
    cpus[at] = (struct cpu_queue){.cpu = cpu, .kernel_stack_dest = TO_CALLER};
    engine->ncpus++;
    return &cpus[at];
}

/* Prepare for pages of a CPU; false without memory. */
static bool begin_cpu(struct engine *engine, int32_t cpu)
{
    engine->nfound = 0;
    engine->cpu = find_cpu(engine, cpu);
    if (engine->cpu == NULL)
        return false;
    engine->cpu->nreads++;
    return true;
}

static int walk_page(struct engine *engine, const uint8_t *page, size_t length)
{
    int status = walk(engine, page, length);

    if (status == ENGINE_DAMAGED) {
        engine->counts.unparsed++;
        engine->cpu->gap = true;
    }
    return status;
}

int engine_feed(struct engine *engine, const uint8_t *page, size_t length, int32_t cpu)
{
    if (!begin_cpu(engine, cpu))
        return ENGINE_NO_MEMORY;
    return walk_page(engine, page, length);
}

/* Whether a table has grown so much that the caller had better empty it. */
static bool has_many_tallies(const struct engine *engine)
{
    for (uint32_t i = 0; i < engine->plan->nsingle; i++)
        if (engine->tables[i].ntallies > MANY_TALLIES || engine->tables[i].keys_used > MANY_KEY_BYTES)
            return true;
    return false;
}

/* Whether the kernel still writes this page: hardly anything follows it, and in small pieces. */
static bool is_being_written(const struct engine *engine, const uint8_t *page, size_t length)
{
    const struct engine_plan *plan = engine->plan;

    return length >= plan->data_at
        && (load32(page + engine->length_at) & ~(EVENTS_MISSED | MISSED_COUNTED)) < plan->page_size / 2;
}

int engine_read(struct engine *engine, int fd, int32_t cpu, int max_pages, int *npages, int *error)
{
    int status = ENGINE_OK;

    *npages = *error = 0;
    if (!begin_cpu(engine, cpu))
        return ENGINE_NO_MEMORY;
    while (*npages < max_pages && *npages < MAX_READ_PAGES) {
        uint8_t *page = engine->pages + (size_t)*npages * engine->plan->page_size;
        ssize_t size = read(fd, page, engine->plan->page_size);

        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && errno != EAGAIN)
            *error = errno;
        if (size <= 0)
            break;
        ++*npages;
        status = walk_page(engine, page, (size_t)size);
        if (status == ENGINE_NO_MEMORY || has_many_tallies(engine)
            || is_being_written(engine, page, (size_t)size))
            break;
    }
    return status;
}

bool push_loss(struct engine *engine, const struct cpu_queue *cpu, uint64_t end)
{
    if (engine->counts.losses == engine->losses_room) {
        uint32_t room = 2 * engine->losses_room + 16;
        struct loss *losses = realloc(engine->losses, room * sizeof(*losses));

        if (losses == NULL)
            return false;
        engine->losses = losses;
        engine->losses_room = room;
    }
    engine->losses[engine->counts.losses++] = (struct loss){cpu->cpu, cpu->last_time, end};
    return true;
}

bool engine_has_losses(const struct engine *engine)
{
    for (uint32_t i = 0; i < engine->ncpus; i++)
        if (engine->cpus[i].gap)
            return true;
    return engine->counts.losses > 0;
}

bool engine_take_losses(struct engine *engine, const struct loss **losses, uint32_t *number)
{
    for (uint32_t i = 0; i < engine->ncpus; i++) {
        struct cpu_queue *cpu = &engine->cpus[i];

        if (cpu->gap && !push_loss(engine, cpu, NEVER))
            return false;
        cpu->gap = false;
    }
    *losses = engine->losses;
    *number = engine->counts.losses;
    engine->counts.losses = 0;
    return true;
}

struct engine_counts *engine_counts(struct engine *engine)
{
    return &engine->counts;
}

struct tally_table *engine_tallies(struct engine *engine, uint32_t group)
{
    return &engine->tables[group];
}

/* Have a value of a record looked up, of the half in which the field is. */
void look_up(const struct field_ref *field, const struct record *record, struct looked_up *out)
{
    const struct engine_plan *plan = record->plan;

    *out = (struct looked_up){.kind = KEY_ABSENT};
    plan->look_up(plan->caller, field->offset, record->start, record->length, record->tid, out);
    if (out->length > plan->page_size)
        out->length = plan->page_size;
}

bool engine_number(const struct field_ref *field, const uint8_t *start, uint32_t length, struct number *out)
{
    struct record record = {.start = start, .length = length, .tid = (int32_t)load32(start + 4)};

    return read_number(field, &record, out);
}

bool engine_text(
    const struct field_ref *field, const uint8_t *start, uint32_t length, const uint8_t **text, uint32_t *size)
{
    struct record record = {.start = start, .length = length};

    return find_text(field, &record, text, size);
}
