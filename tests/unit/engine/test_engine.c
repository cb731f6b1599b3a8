/* Tests of the engine by hand-written pages. Each test is a function; a check that fails aborts. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "material.h"

/* An engine, the page that is being written, and what one read has given. */
struct bench {
    struct engine_plan *plan;
    struct engine *engine;
    struct page page;
    uint64_t now;
};

static void set_up(struct bench *bench)
{
    bench->plan = make_plan(MAX_OPEN);
    bench->engine = engine_new(bench->plan);
    bench->now = 1000;
    CHECK(bench->engine != NULL);
    begin_page(&bench->page, bench->now);
}

static void tear_down(struct bench *bench)
{
    engine_free(bench->engine);
    plan_free(bench->plan);
}

/* Append an event 10 ns after the last one. `text` is without its NUL; NULL is an unreadable string. */
static void add(struct bench *bench, enum type type, int32_t tid, uint64_t number, int32_t small, const char *text)
{
    uint8_t event[128] = {0};
    uint32_t length = text == NULL ? 0 : (uint32_t)strlen(text) + 1;

    head(event, id_of(type), tid);
    put64(event + 8, number);
    put32(event + 16, (uint32_t)small);
    put32(event + 20, length << 16 | EVENT_SIZE);
    if (length)
        memcpy(event + EVENT_SIZE, text, length);
    bench->now += 10;
    add_event(&bench->page, bench->now, event, (EVENT_SIZE + length + 3) & ~3u);
}

static int32_t load_tid(const uint8_t *event)
{
    int32_t tid;

    memcpy(&tid, event + 4, sizeof(tid));
    return tid;
}

static void add_stack(struct bench *bench, uint16_t id, int32_t tid, const uint64_t *addresses, uint32_t number)
{
    uint8_t event[128] = {0};

    head(event, id, tid);
    put32(event + 8, 77);
    memcpy(event + 16, addresses, number * 8);
    add_event(&bench->page, bench->now, event, 16 + 8 * number);
}

/* Give the page to the engine as one of this CPU, and begin another. */
static int feed(struct bench *bench, int32_t cpu)
{
    int status = engine_feed(bench->engine, bench->page.bytes, end_page(&bench->page, 0), cpu);

    begin_page(&bench->page, bench->now);
    return status;
}

/* Feed what was added, and join all of it. */
static void feed_and_join(struct bench *bench)
{
    feed(bench, 0);
    engine_join(bench->engine, NEVER);
}

static uint16_t load16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static void check_counts(struct bench *bench, uint32_t join, uint64_t begun, uint64_t unpaired, uint64_t joined)
{
    struct join_counts counts = engine_take_join_counts(bench->engine, join);

    CHECK(counts.begun == begun);
    CHECK(counts.unpaired == unpaired);
    CHECK(bench->plan->variants[join].arrived == joined);
}

static void test_sums_and_buckets(struct bench *bench)
{
    const struct tally_table *by_text, *spread;

    add(bench, ADDED, 7, 0, -7, "cat");
    add(bench, ADDED, 7, 0, 100, "cat");
    add(bench, ADDED, 8, 0, 101, "");
    add(bench, ADDED, 8, 0, 0, NULL);
    CHECK(feed(bench, 0) == ENGINE_OK);
    by_text = engine_tallies(bench->engine, ADDED_BY_TEXT);
    CHECK(by_text->ntallies == 3);
    CHECK(by_text->tallies[0].count == 2 && by_text->tallies[1].count == 1);
    CHECK(memcmp(by_text->key_bytes + by_text->tallies[0].key_at + 8, "cat\0\0\0\0", 8) == 0);
    CHECK(by_text->key_bytes[by_text->tallies[2].key_at] == KEY_ABSENT);
    spread = engine_tallies(bench->engine, ADDED_SPREAD);
    CHECK(spread->ntallies == 3);   /* the exponential buckets of 7, of 100 and 101, and of 0 */
    CHECK(spread->tallies[1].sum.low == 201);
    CHECK(spread->buckets[0] == 1 && spread->buckets[4] == 1 && spread->buckets[5] == 1);
    CHECK(bench->plan->types[ADDED].arrived == 4);
}

static void test_largest_value_keeps_its_key(struct bench *bench)
{
    struct tally_table *table = engine_tallies(bench->engine, ADDED_LARGEST);
    const uint8_t *key;

    add(bench, ADDED, 7, 0, -9, "small");
    add(bench, ADDED, 9, 0, 70, "earlier");
    add(bench, ADDED, 8, 0, 70, "a longer name than before");
    add(bench, ADDED, 10, 0, 3, "cat");
    CHECK(feed(bench, 0) == ENGINE_OK);
    CHECK(table->ntallies == 1 && table->tallies[0].count == 4);
    CHECK(table->tallies[0].sum.high == 0 && table->tallies[0].sum.low == 70);
    key = table->key_bytes + table->tallies[0].key_at;
    CHECK(memcmp(key + 8, "a longer name than before\0\0\0\0\0\0", 32) == 0);
    CHECK(table->tallies[0].key_length == 8 + 32 + 16 && key[8 + 32 + 8] == 8);
    engine_clear_tallies(table);
    add(bench, ADDED, 11, 0, -1, "x");
    CHECK(feed(bench, 0) == ENGINE_OK);
    CHECK(table->ntallies == 1 && table->tallies[0].count == 1);
    CHECK(table->tallies[0].sum.high == -1 && table->key_bytes[table->tallies[0].key_at + 8] == 'x');
}

static void test_call_of_two_cpus(struct bench *bench)
{
    const struct tally_table *table = engine_tallies(bench->engine, OF_CALL);

    add(bench, CALL, 7, 0x1000, 3, "x");
    CHECK(feed(bench, 0) == ENGINE_OK);
    add(bench, BACK, 7, 0x1008, 3, "y");
    CHECK(feed(bench, 1) == ENGINE_OK);
    CHECK(engine_join(bench->engine, bench->now - 1) == ENGINE_OK);
    CHECK(engine_open(bench->engine) == 1);
    CHECK(engine_join(bench->engine, NEVER) == ENGINE_OK);
    CHECK(engine_open(bench->engine) == 0);
    check_counts(bench, 0, 1, 0, 1);
    CHECK(table->ntallies == 1 && table->tallies[0].sum.low == 10);
}

static void test_calls_that_ended_without_event(struct bench *bench)
{
    add(bench, CALL, 7, 0x1000, 0, "outer");
    add(bench, CALL, 7, 0x0f80, 0, "left by longjmp");
    add(bench, BACK, 7, 0x1008, 0, "outer");
    feed_and_join(bench);
    check_counts(bench, 0, 2, 1, 1);
}

static void test_distance_is_learnt(struct bench *bench)
{
    add(bench, CALL, 7, 0x1000, 0, "a");
    add(bench, BACK, 7, 0x1000, 0, "a");   /* distance 0 instead of 8: the first vote wins */
    add(bench, CALL, 7, 0x1000, 0, "b");
    add(bench, BACK, 7, 0x1000, 0, "b");
    feed_and_join(bench);
    CHECK(bench->plan->variants[0].arrived == 2);
    CHECK(engine_open(bench->engine) == 0);
}

static void test_pair_by_values(struct bench *bench)
{
    add(bench, ISSUE, 7, 0, 5, "sda");
    add(bench, ISSUE, 7, 0, 5, "sdb");
    add(bench, COMPLETE, 9, 0, 5, "sda");
    add(bench, COMPLETE, 9, 0, 6, "sdb");
    feed_and_join(bench);
    check_counts(bench, 1, 2, 0, 1);
    CHECK(engine_open(bench->engine) == 1);
    engine_drop_join(bench->engine, 1);
    check_counts(bench, 1, 0, 1, 1);
}

/* The latest of each step counts, from the beginning that is open then; one that did not occur is missing. */
static void test_steps_of_pair(struct bench *bench)
{
    const struct tally_table *table = engine_tallies(bench->engine, OF_ISSUE);
    const struct exported_record *exported;
    const uint8_t *key;
    size_t at = 0;

    add(bench, START, 7, 0, 5, "sda");      /* before any beginning */
    add(bench, ISSUE, 7, 0, 5, "sda");
    add(bench, START, 8, 0, 5, "sda");
    add(bench, START, 8, 0, 5, "sdb");      /* of another key */
    add(bench, START, 8, 0, 5, "sda");
    add(bench, COMPLETE, 9, 0, 5, "sda");
    add(bench, ISSUE, 7, 0, 5, "sda");
    add(bench, MERGE, 7, 0, 5, "sda");
    add(bench, COMPLETE, 9, 0, 5, "sda");
    feed_and_join(bench);
    check_counts(bench, 1, 2, 0, 2);
    CHECK(table->ntallies == 2);
    key = table->key_bytes + table->tallies[0].key_at;
    CHECK(key[0] == KEY_ABSENT && key[8] == KEY_POSITIVE && key[16] == 30);
    CHECK(table->tallies[0].sum.low == 40);
    key = table->key_bytes + table->tallies[1].key_at;
    CHECK(key[0] == KEY_POSITIVE && key[8] == 10 && key[16] == KEY_ABSENT);
    exported = engine_next_exported(bench->engine, &at);
    CHECK(exported != NULL && exported->lengths[0] == EVENT_SIZE + 4 + 16);
    CHECK(((const uint8_t *)(exported + 1))[EVENT_SIZE + 4 + 8] == 30);
}

/* Each event ends the pair that the one before it began. */
static void test_pair_of_event_with_next(struct bench *bench)
{
    const struct tally_table *table = engine_tallies(bench->engine, OF_TICK);
    const uint8_t *key;

    add(bench, TICK, 7, 100, 5, "");
    add(bench, TICK, 8, 200, 6, "");
    add(bench, TICK, 9, 300, 5, "");
    add(bench, TICK, 9, 400, 5, "");
    feed_and_join(bench);
    check_counts(bench, 3, 4, 0, 2);
    CHECK(engine_open(bench->engine) == 2);
    CHECK(table->ntallies == 2 && table->tallies[0].sum.low == 20 && table->tallies[1].sum.low == 10);
    key = table->key_bytes + table->tallies[0].key_at;
    CHECK(load16(key + 8) == 100 && load16(key + 24) == 300);
    key = table->key_bytes + table->tallies[1].key_at;
    CHECK(load16(key + 8) == 300 && load16(key + 24) == 400);
}

static void test_loss_breaks_pair(struct bench *bench)
{
    add(bench, ENTER, 7, 0, 0, "");
    feed(bench, 0);
    engine_add_loss(bench->engine, bench->now + 1, bench->now + 5);
    add(bench, LEAVE, 7, 0, 0, "");
    feed_and_join(bench);
    CHECK(bench->plan->variants[2].arrived == 0);
    CHECK(engine_take_join_counts(bench->engine, 2).unpaired == 2);
}

static void test_exit_ends_calls(struct bench *bench)
{
    add(bench, ENTER, 7, 0, 0, "");
    add(bench, ENTER, 8, 0, 0, "");
    add(bench, EXITED, 7, 0, 0, "");
    feed_and_join(bench);
    check_counts(bench, 2, 2, 1, 0);
    CHECK(engine_open(bench->engine) == 1);
    add(bench, EXITED, 8, 0, 0, "");
    add(bench, ENTER, 8, 0, 0, "");        /* another thread with this id */
    feed_and_join(bench);
    check_counts(bench, 2, 1, 1, 0);
    CHECK(engine_open(bench->engine) == 1);
}

/* A forked child has made no call, and a loss leaves it open whether a call has ended. */
static void test_open_calls_are_counted(struct bench *bench)
{
    struct tally_table *number = engine_tallies(bench->engine, OPEN_CALLS);

    add(bench, CALL, 7, 0x1000, 300, "outer");
    add(bench, CALL, 7, 0x0f80, 40, "inner");
    add(bench, STARTED, 7, 0, 8, "");
    add(bench, CALL, 9, 0x1000, 5, "new");
    add(bench, ENTER, 9, 0, 5, "of another join");
    feed_and_join(bench);
    CHECK(engine_add_open(bench->engine, 0, 1021, OPEN_NUMBER));
    CHECK(number->ntallies == 1 && number->tallies[0].count == 2 && number->tallies[0].sum.low == 340);
    engine_clear_tallies(number);
    CHECK(engine_add_open(bench->engine, 0, 1020, OPEN_NUMBER) && number->tallies[0].sum.low == 300);
    engine_clear_tallies(number);
    CHECK(engine_add_open(bench->engine, 2, NEVER, OPEN_NUMBER) && number->ntallies == 0);
    engine_add_loss(bench->engine, 1012, 1015);
    CHECK(engine_join(bench->engine, NEVER) == ENGINE_OK);
    CHECK(engine_add_open(bench->engine, 0, NEVER, OPEN_NUMBER) && number->tallies[0].sum.low == 45);
}

static void test_fork_inherits_calls(struct bench *bench)
{
    add(bench, CALL, 7, 0x1000, 0, "parent");
    add(bench, STARTED, 7, 0, 8, "");
    add(bench, BACK, 8, 0x1008, 0, "child");
    add(bench, BACK, 7, 0x1008, 0, "parent");
    feed_and_join(bench);
    check_counts(bench, 0, 1, 0, 1);
}

static void test_exec_gives_calls_to_leader(struct bench *bench)
{
    add(bench, ENTER, 8, 0, 0, "execve");
    add(bench, EXECUTED, 7, 0, 8, "");
    add(bench, LEAVE, 7, 0, 0, "execve");
    feed_and_join(bench);
    check_counts(bench, 2, 1, 0, 1);
}

static void test_stacks_of_single_record(struct bench *bench)
{
    const uint64_t user[] = {0x401000, 0}, kernel[] = {UINT64_C(0xffffffff81000000), UINT64_MAX};
    const struct tally_table *table = engine_tallies(bench->engine, SINGLE_STACKS);
    const uint8_t *key;

    add(bench, SINGLE, 7, 0, 0, "");
    feed(bench, 0);
    CHECK(engine_join(bench->engine, bench->now) == ENGINE_OK);
    CHECK(engine_counts(bench->engine)->left == 1); /* it waits for its stacks */
    add_stack(bench, USER_STACK_ID, 7, user, 2);
    add_stack(bench, STACK_ID, 7, kernel, 2);
    feed(bench, 0);
    CHECK(engine_join(bench->engine, bench->now) == ENGINE_OK);
    CHECK(table->ntallies == 1);
    key = table->key_bytes + table->tallies[0].key_at;
    CHECK(key[0] == KEY_TEXT && key[1] == STACK_HEAD + 16);
    CHECK(key[8] == 77 && key[12] == 8);
    CHECK(memcmp(key + 16, user, 8) == 0 && memcmp(key + 24, kernel, 8) == 0);
}

static void test_epochs_tell_cgroups_apart(struct bench *bench)
{
    add(bench, SINGLE, 7, 0, 1, "");
    add(bench, MOVED, 1, 0, 7, "");
    add(bench, SINGLE, 7, 0, 2, "");
    feed_and_join(bench);
    CHECK(engine_tallies(bench->engine, OF_SINGLE)->ntallies == 2);
}

static void test_span_names_parent(struct bench *bench)
{
    const struct exported_record *inner, *outer;
    size_t at = 0;

    add(bench, ENTER, 7, 0, 0, "read");
    add(bench, CALL, 7, 0x1000, 0, "inner");
    add(bench, BACK, 7, 0x1008, 0, "inner");
    add(bench, LEAVE, 7, 0, 0, "read");
    feed_and_join(bench);
    inner = engine_next_exported(bench->engine, &at);
    outer = engine_next_exported(bench->engine, &at);
    CHECK(inner != NULL && outer != NULL && engine_next_exported(bench->engine, &at) == NULL);
    CHECK(inner->variant == 0 && outer->variant == 2);
    CHECK(inner->parent == outer->span && outer->parent == 0);
    CHECK(memcmp(inner->trace, outer->trace, sizeof(inner->trace)) == 0);
}

static void test_own_threads_are_discarded(struct bench *bench)
{
    const int32_t own[] = {7, 1031};        /* both have the same bit */
    uint32_t number;

    CHECK(engine_set_own_threads(bench->engine, own, 2));
    add(bench, PLAIN, 7, 0, 0, "");
    add(bench, PLAIN, 8, 0, 0, "");
    add(bench, PLAIN, 1031 + 1024, 0, 0, "");
    feed(bench, 0);
    engine_found(bench->engine, &number);
    CHECK(number == 2);
    CHECK(bench->plan->types[PLAIN].own == 1);
}

static void test_cut_page_is_loss(struct bench *bench)
{
    const struct loss *losses;
    uint32_t number;

    add(bench, PLAIN, 7, 0, 0, "seen");
    feed(bench, 3);
    add(bench, PLAIN, 7, 0, 0, "cut");
    CHECK(engine_feed(bench->engine, bench->page.bytes, end_page(&bench->page, 0) - 1, 3) == ENGINE_DAMAGED);
    CHECK(engine_has_losses(bench->engine));
    CHECK(engine_take_losses(bench->engine, &losses, &number));
    CHECK(number == 1 && losses[0].cpu == 3 && losses[0].start == 1010 && losses[0].end == NEVER);
    CHECK(engine_counts(bench->engine)->unparsed == 1);
}

static void test_pages_of_pipe(struct bench *bench)
{
    int ends[2], npages, error;

    CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    add(bench, ADDED, 7, 0, 1, "x");
    end_page(&bench->page, 0);
    CHECK(write(ends[1], bench->page.bytes, PAGE_SIZE) == PAGE_SIZE);
    CHECK(engine_read(bench->engine, ends[0], 2, MAX_READ_PAGES, &npages, &error) == ENGINE_OK);
    CHECK(npages == 1 && error == 0);
    CHECK(engine_tallies(bench->engine, ADDED_BY_TEXT)->ntallies == 1);
    CHECK(engine_read(bench->engine, ends[0], 2, MAX_READ_PAGES, &npages, &error) == ENGINE_OK);
    CHECK(npages == 0 && error == 0);
    CHECK(engine_read(bench->engine, -1, 2, MAX_READ_PAGES, &npages, &error) == ENGINE_OK);
    CHECK(npages == 0 && error == EBADF);
    close(ends[0]);
    close(ends[1]);
}

/* A string that the kernel did not store begins where the next one does, and the next one's place is `small`. */
static void test_string_that_was_not_stored(struct bench *bench)
{
    struct field_ref text = TEXT_AT_20;
    struct expr_node *node;
    uint32_t number;

    tear_down(bench);
    bench->plan = make_plan(MAX_OPEN);
    text.next = 16;
    node = array(bench->plan, 1, sizeof(*node));
    *node = (struct expr_node){.op = EXPR_TEXT_EQUAL, .field = text, .text = (const uint8_t *)"x", .length = 1};
    bench->plan->nnodes = 1;
    bench->plan->nodes = node;
    bench->plan->types[PLAIN].filter = 0;
    bench->engine = engine_new(bench->plan);
    add(bench, PLAIN, 7, 9, 2 << 16 | EVENT_SIZE, "x");
    add(bench, PLAIN, 7, 9, 2 << 16 | (EVENT_SIZE + 2), "x");
    feed(bench, 0);
    engine_found(bench->engine, &number);
    CHECK(number == 1);
    CHECK(bench->plan->types[PLAIN].arrived == 2 && bench->plan->types[PLAIN].passed == 1);
}

/* name == "x" && (number - 10) * 2 > small */
static void test_filter(struct bench *bench)
{
    const struct expr_node nodes[] = {
        {.op = EXPR_ALL, .first = 1, .noperands = 2},
        {.op = EXPR_TEXT_EQUAL, .field = TEXT_AT_20, .text = (const uint8_t *)"x", .length = 1},
        {.op = EXPR_IS_GREATER, .first = 3, .noperands = 2},
        {.op = EXPR_MULTIPLY, .first = 5, .noperands = 2},
        {.op = EXPR_FIELD, .field = SIGNED_AT_16},
        {.op = EXPR_SUBTRACT, .first = 7, .noperands = 2},
        {.op = EXPR_CONSTANT, .number = {0, 2}},
        {.op = EXPR_FIELD, .field = NUMBER_AT_8},
        {.op = EXPR_CONSTANT, .number = {0, 10}},
    };
    uint32_t number;

    tear_down(bench);
    bench->plan = make_plan(MAX_OPEN);
    bench->plan->nnodes = sizeof(nodes) / sizeof(*nodes);
    bench->plan->nodes = array(bench->plan, 1, sizeof(nodes));
    memcpy(bench->plan->nodes, nodes, sizeof(nodes));
    bench->plan->types[PLAIN].filter = 0;
    bench->engine = engine_new(bench->plan);
    add(bench, PLAIN, 7, 9, -3, "x");
    add(bench, PLAIN, 7, 9, -2, "x");
    add(bench, PLAIN, 7, 9, -3, "y");
    add(bench, PLAIN, 7, 9, -3, NULL);
    feed(bench, 0);
    engine_found(bench->engine, &number);
    CHECK(number == 1);
    CHECK(bench->plan->types[PLAIN].arrived == 4 && bench->plan->types[PLAIN].passed == 1);
}

/* The thread's number as number 0; a text of more than a page as number 1; nothing as number 2. */
static void look_values_up(
    void *caller, uint32_t number, const uint8_t *start, uint32_t length, int32_t tid, struct looked_up *found)
{
    CHECK(length >= EVENT_SIZE && load_tid(start) == tid);
    if (number == 0) {
        found->kind = KEY_POSITIVE;
        found->number.low = (uint64_t)tid;
    } else if (number == 1) {
        found->kind = KEY_TEXT;
        found->text = caller;
        found->length = PAGE_SIZE + 1;
    }
}

static void test_looked_up_values(struct bench *bench)
{
    static uint8_t text[PAGE_SIZE + 1];
    struct expr_node above_7 = {.op = EXPR_GREATER, .field = {.kind = FIELD_LOOKED_UP}, .number = {0, 7}};
    struct tally_table *tallies;

    tear_down(bench);
    bench->plan = make_plan(MAX_OPEN);
    bench->plan->look_up = look_values_up;
    bench->plan->caller = text;
    bench->plan->nnodes = 1;
    bench->plan->nodes = array(bench->plan, 1, sizeof(above_7));
    bench->plan->nodes[0] = above_7;
    bench->plan->types[ADDED].filter = 0;
    bench->plan->groups[ADDED_BY_TEXT].keys[0] = (struct field_ref){.kind = FIELD_LOOKED_UP, .offset = 1};
    bench->plan->groups[ADDED_SPREAD].value = (struct field_ref){.kind = FIELD_LOOKED_UP, .offset = 2};
    bench->engine = engine_new(bench->plan);
    add(bench, ADDED, 7, 0, 0, "");
    add(bench, ADDED, 8, 0, 0, "");
    feed(bench, 0);
    CHECK(bench->plan->types[ADDED].passed == 1);
    tallies = engine_tallies(bench->engine, ADDED_BY_TEXT);
    CHECK(tallies->ntallies == 1 && tallies->tallies[0].key_length == 8 + PAGE_SIZE);
    CHECK(engine_tallies(bench->engine, ADDED_SPREAD)->unreadable == 1);
}

static void test_resume_keeps_open_calls(struct bench *bench)
{
    const int32_t joins[NJOINS] = {0, -1, 2, 3};
    int32_t types[NTYPES];
    struct engine_plan *plan = make_plan(MAX_OPEN);
    struct engine *next = engine_new(plan);

    for (int32_t i = 0; i < NTYPES; i++)
        types[i] = i == ISSUE || i == COMPLETE ? TYPE_REMOVED_HALF : i;
    add(bench, CALL, 7, 0x1000, 0, "");
    add(bench, ISSUE, 7, 0, 0, "gone");
    feed_and_join(bench);
    add(bench, BACK, 7, 0x1008, 0, "");
    add(bench, COMPLETE, 7, 0, 0, "gone");
    feed(bench, 0);
    CHECK(engine_resume(next, bench->engine, joins, types));
    tear_down(bench);
    bench->plan = plan;
    bench->engine = next;
    CHECK(engine_open(next) == 1);
    engine_join(next, NEVER);
    check_counts(bench, 0, 1, 0, 1);
    CHECK(engine_counts(next)->unparsed == 1);
}

static void test_oldest_are_dropped(struct bench *bench)
{
    tear_down(bench);
    bench->plan = make_plan(64);
    bench->engine = engine_new(bench->plan);
    for (int32_t tid = 1; tid <= 65; tid++) {
        add(bench, ENTER, tid, 0, 0, "");
        if (!page_has_room(&bench->page, 128))
            feed(bench, 0);
    }
    feed_and_join(bench);
    CHECK(engine_open(bench->engine) == 63);
    check_counts(bench, 2, 65, 2, 0);
}

/* Return the sum of the first tally of a thread's state, 0 without one. */
static uint64_t time_in(struct bench *bench, enum thread_state state)
{
    struct tally_table *table = engine_tallies(bench->engine, TIMES + state);

    return table->ntallies ? table->tallies[0].sum.low : 0;
}

static void test_time_of_threads(struct bench *bench)
{
    static const uint64_t stack[] = {0xFFFFFFFF81000010};
    const struct watched_thread watched = {.tid = 7, .state = THREAD_WAITING, .since = 1000, .seen = 1000};
    const struct watched_thread other = {.tid = 8, .state = THREAD_RUNNING, .certain = true, .since = 1040};
    int32_t tids[2] = {0, 0};

    CHECK(engine_watch(bench->engine, &watched));
    add(bench, SWITCH, 3, 7, 3, NULL);          /* at 1010: it waited for 10 ns */
    add(bench, SWITCH, 7, 3, 7, "");            /* and ran for 10; the string's length is its state */
    add_stack(bench, STACK_ID, 7, stack, 1);
    add(bench, WAKE, 3, 0, 7, "");              /* slept 10 */
    add(bench, WAKE, 3, 0, 7, "");
    add(bench, CREATE, 7, 0x10000, 9, "");      /* a thread of its process */
    add(bench, BEAR, 7, 0, 9, "");
    feed_and_join(bench);
    CHECK(time_in(bench, THREAD_WAITING) == 10 && time_in(bench, THREAD_RUNNING) == 10);
    CHECK(time_in(bench, THREAD_ASLEEP) == 10);
    CHECK(engine_watched(bench->engine, tids, 2) == 2 && tids[0] + tids[1] == 7 + 9);
    CHECK(engine_cut_times(bench->engine, bench->now + 100));
    CHECK(engine_tallies(bench->engine, TIMES + THREAD_WAITING)->ntallies == 2);
    CHECK(engine_watch(bench->engine, &other) && engine_end_thread(bench->engine, 7, bench->now));
    engine_lose_times(bench->engine, bench->now);
    engine_clear_tallies(engine_tallies(bench->engine, TIMES + THREAD_UNKNOWN));
    add(bench, SWITCH, 8, 3, 8, "");
    feed_and_join(bench);
    CHECK(time_in(bench, THREAD_UNKNOWN) == 10);
    CHECK(bench->plan->types[SWITCH].arrived == 3 && bench->plan->types[CREATE].arrived == 1);
}

static void test_throttled_and_reclaiming_time(struct bench *bench)
{
    const struct watched_thread watched = {.tid = 7, .state = THREAD_WAITING, .since = 1000, .seen = 1000};
    static const char name[] = "6:a cgroup";
    struct tally_table *table = engine_tallies(bench->engine, TIMES + THREAD_THROTTLED);

    CHECK(engine_watch(bench->engine, &watched));
    add(bench, SWITCH, 3, 7, 3, NULL);          /* at 1010 */
    add(bench, RECLAIM, 7, 0, 7, "");
    add(bench, RECLAIMED, 7, 0, 7, "");
    add(bench, SWITCH, 7, 3, 7, NULL);          /* at 1040: it waits for CPU 0 */
    add(bench, THROTTLE, 3, 0, 6, "a cgroup");
    add(bench, THROTTLE, 3, 1, 6, "a cgroup");  /* of another CPU */
    add(bench, THROTTLE, 3, 1 << 20, 6, "a cgroup");
    add(bench, UNTHROTTLE, 3, 0, 6, "");        /* at 1080: after 30 */
    add(bench, MIGRATE, 3, 1, 7, "");           /* at 1090 */
    feed_and_join(bench);
    CHECK(time_in(bench, THREAD_RECLAIMING) == 10 && time_in(bench, THREAD_RUNNING) == 20);
    CHECK(table->ntallies == 1 && table->tallies[0].sum.low == 30);
    CHECK(memcmp(table->key_bytes + table->tallies[0].key_at + 24 + STACK_HEAD, name, strlen(name)) == 0);
    CHECK(engine_cut_times(bench->engine, bench->now));
    CHECK(time_in(bench, THREAD_WAITING) == 10 + 50);
}

#define TEST(name) {#name, name}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(struct bench *bench);
    } tests[] = {
        TEST(test_sums_and_buckets),
        TEST(test_largest_value_keeps_its_key),
        TEST(test_call_of_two_cpus),
        TEST(test_calls_that_ended_without_event),
        TEST(test_distance_is_learnt),
        TEST(test_pair_by_values),
        TEST(test_steps_of_pair),
        TEST(test_pair_of_event_with_next),
        TEST(test_loss_breaks_pair),
        TEST(test_exit_ends_calls),
        TEST(test_open_calls_are_counted),
        TEST(test_fork_inherits_calls),
        TEST(test_exec_gives_calls_to_leader),
        TEST(test_stacks_of_single_record),
        TEST(test_epochs_tell_cgroups_apart),
        TEST(test_span_names_parent),
        TEST(test_own_threads_are_discarded),
        TEST(test_cut_page_is_loss),
        TEST(test_pages_of_pipe),
        TEST(test_filter),
        TEST(test_string_that_was_not_stored),
        TEST(test_looked_up_values),
        TEST(test_resume_keeps_open_calls),
        TEST(test_oldest_are_dropped),
        TEST(test_time_of_threads),
        TEST(test_throttled_and_reclaiming_time),
    };
    static struct bench bench;

    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
        fprintf(stderr, "%s\n", tests[i].name);
        set_up(&bench);
        tests[i].run(&bench);
        tear_down(&bench);
    }
    return 0;
}
