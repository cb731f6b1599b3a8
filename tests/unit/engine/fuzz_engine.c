/* A fuzz target of the engine: any bytes are commands that write pages, damage them, and drive the engine.
 *
 * With clang: -fsanitize=fuzzer,address,undefined. Without, driver.c draws inputs. Each page lies in memory of
 * exactly its own size, so that AddressSanitizer reports any read outside of it. */
#include "material.h"

enum command {
    ADD_EVENT, ADD_EVENT_AGAIN, ADD_CALL, ADD_STACK,
    FEED, FEED_DAMAGED, JOIN, TAKE, RESUME, DROP, ADD_LOSS, SET_OWN, COUNT_OPEN,
    WATCH, CUT_TIMES, END_THREAD, ADD_SWITCH,
    NCOMMANDS,
};

enum { MAX_COMMANDS = 2000, NCPUS = 3, FUZZED_MAX_OPEN = 20, EXPR_NODES = 8 };

struct input {
    const uint8_t *at;
    const uint8_t *end;
};

struct state {
    struct engine_plan *plan;
    struct engine *engine;
    struct page page;
    uint64_t now;
    uint64_t added;                 /* records in the tallies of ADDED_BY_TEXT that were taken */
    uint64_t joined[NJOINS];
};

/* Pages of the last input that made no sense to the engine; tests/fuzz/engine.py reads it. */
uint32_t refused_pages;

static uint8_t byte(struct input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

static uint32_t word(struct input *input)
{
    return byte(input) | (uint32_t)byte(input) << 8 | (uint32_t)byte(input) << 16 | (uint32_t)byte(input) << 24;
}

/* Return the number of operands of an operator. */
static uint32_t noperands(uint8_t op)
{
    switch (op) {
    case EXPR_TRUE ... EXPR_MATCHES_NOT:
    case EXPR_FIELD:
    case EXPR_CONSTANT:
        return 0;
    case EXPR_NOT:
    case EXPR_NEGATE:
    case EXPR_INVERT:
        return 1;
    case EXPR_CHOOSE:
        return 3;
    default:
        return 2;
    }
}

/* Fill in a field of a record, or of a joined record. */
static void draw_field(struct field_ref *field, struct input *input, bool joined)
{
    *field = byte(input) % 2 ? NUMBER_AT_8 : SIGNED_AT_16;
    field->kind = byte(input) % 2 ? field->kind : byte(input) % 2 ? FIELD_TID : FIELD_CPU;
    field->error_form = byte(input) % 3;
    field->network = byte(input) % 4 == 0;
    field->nguards = byte(input) % 4 == 0;
    field->guards[0] = 8;
    if (byte(input) % 8 == 0)
        *field = (struct field_ref){.kind = FIELD_LOOKED_UP, .offset = byte(input)};
    if (joined) {
        field->second = byte(input) % 2;
        field->kind = byte(input) % 4 ? field->kind : byte(input) % 2 ? FIELD_STEP : FIELD_ELAPSED;
        field->offset = field->kind == FIELD_STEP ? 8 : field->offset;
    }
}

/* Give a number, a part of the record or nothing. */
static void look_values_up(
    void *caller, uint32_t number, const uint8_t *start, uint32_t length, int32_t tid, struct looked_up *found)
{
    (void)caller;
    found->kind = number % 4;
    found->number = (struct number){-(int64_t)(number % 4 == KEY_NEGATIVE), (uint64_t)(int64_t)tid + number};
    found->text = start;
    found->length = length;
}

/* Fill in an expression. The operands of a node are behind it, so that it ends. */
static void draw_expression(struct expr_node *nodes, uint32_t first, struct input *input, bool joined)
{
    for (uint32_t i = first; i < first + EXPR_NODES; i++) {
        struct expr_node *node = &nodes[i];

        node->op = byte(input) % (EXPR_LARGER + 1);
        node->first = i + 1;
        node->noperands = noperands(node->op);
        if (i + node->noperands >= first + EXPR_NODES)
            *node = (struct expr_node){.op = byte(input) % 2 ? EXPR_FIELD : EXPR_CONSTANT};
        node->is_unsigned = byte(input) % 2;
        node->number = (struct number){byte(input) % 4 ? 0 : -1, byte(input) % 4 ? byte(input) : UINT64_MAX};
        node->text = (const uint8_t *)"aaa*?[a-b!]\\";
        node->text += byte(input) % 6;
        node->length = byte(input) % 7;
        draw_field(&node->field, input, joined);
        if (node->op >= EXPR_TEXT_EQUAL && node->op <= EXPR_MATCHES_NOT && node->field.kind != FIELD_LOOKED_UP)
            node->field = TEXT_AT_20;
    }
}

/* Make a plan with drawn filters and limits. */
static struct engine_plan *draw_plan(struct input *input)
{
    struct engine_plan *plan = make_plan(FUZZED_MAX_OPEN);

    plan->look_up = look_values_up;
    plan->times.follows = byte(input) % 8;
    for (uint32_t i = 0; i < plan->types[ISSUE].role.nkeys && byte(input) % 2; i++)
        plan->types[ISSUE].role.keys[i] = plan->types[COMPLETE].role.keys[i] =
            (struct field_ref){.kind = FIELD_LOOKED_UP, .offset = byte(input)};
    if (byte(input) % 2)
        plan->groups[OF_CALL].keys[1] = (struct field_ref){.kind = FIELD_LOOKED_UP, .offset = byte(input), .second = true};
    plan->nnodes = 2 * EXPR_NODES;
    plan->nodes = array(plan, plan->nnodes, sizeof(*plan->nodes));
    draw_expression(plan->nodes, 0, input, false);
    draw_expression(plan->nodes, EXPR_NODES, input, true);
    plan->types[PLAIN].filter = plan->types[ENTER].role.only = 0;
    plan->variants[1].filter = EXPR_NODES;
    plan->exports[1].spans = byte(input) % 2;
    plan->types[SINGLE].export = plan->types[ADDED].export;
    for (uint32_t i = 0; i < plan->nexports; i++)
        plan->exports[i].limit = (struct rate_limit){byte(input) % 2, 1e7, 2, 2, 0};
    plan->together = (struct rate_limit){byte(input) % 2, 5e7, 5, 5, 0};
    return plan;
}

/* Read everything that the engine has found, so that AddressSanitizer sees it. */
static uint64_t read_found(const struct state *state)
{
    uint32_t number, size;
    const struct found *found = engine_found(state->engine, &number);
    uint64_t sum = 0;

    for (uint32_t i = 0; i < number; i++) {
        const struct event_type *type = &state->plan->types[found[i].type < 0 ? 0 : found[i].type];
        struct number value;
        const uint8_t *text;

        for (uint32_t j = 0; found[i].type >= 0 && j < type->nfields; j++) {
            if (engine_number(&type->fields[j], found[i].start, found[i].length, &value))
                sum += value.low;
            else if (engine_text(&type->fields[j], found[i].start, found[i].length, &text, &size))
                for (uint32_t k = 0; k < size; k++)
                    sum += text[k];
        }
    }
    return sum;
}

static void feed(struct state *state, struct input *input, bool damaged)
{
    size_t size = end_page(&state->page, byte(input) % 16 == 0 ? MISSED_FLAG : 0);
    int32_t cpu = byte(input) % NCPUS;
    uint8_t *exact;
    int status;

    if (damaged) {
        for (int changes = 1 + byte(input) % 4; changes > 0; changes--)
            state->page.bytes[word(input) % size] = byte(input);
        size = byte(input) % 2 ? size : word(input) % (size + 1);
    }
    exact = malloc(size ? size : 1);
    CHECK(exact != NULL);
    memcpy(exact, state->page.bytes, size);
    status = engine_feed(state->engine, exact, size, byte(input) % 8 ? cpu : cpu + THREAD_BUFFERS_CPU);
    CHECK(status == ENGINE_OK || (status == ENGINE_DAMAGED && damaged));
    refused_pages += status == ENGINE_DAMAGED;
    CHECK(damaged || engine_counts(state->engine)->time >= state->page.time || state->page.used == PAGE_DATA);
    read_found(state);
    free(exact);
    begin_page(&state->page, state->now);
}

/* Append an event of any type, with few threads and places, so that halves meet. */
static void add(struct state *state, struct input *input, enum type type)
{
    uint8_t event[EVENT_SIZE + 256] = {0}, shape = byte(input);
    uint32_t length = shape % 4 ? shape % 8 : 32 * (uint32_t)(shape % 7);

    state->now += byte(input) % 16;
    head(event, id_of(type), byte(input) % 4 - 1);
    event[2] = byte(input) % 8 ? 0 : byte(input);
    put64(event + 8, (uint64_t)0x10000 - 8 * (byte(input) % 64));
    put32(event + 16, (uint32_t)(byte(input) % 5) - 1);
    put32(event + 20, length << 16 | (shape == 255 ? word(input) & 0xFFFF : EVENT_SIZE));
    memset(event + EVENT_SIZE, 'a' + shape % 3, length);
    add_event(&state->page, state->now, event, EVENT_SIZE + length);
}

static void add_stack(struct state *state, struct input *input)
{
    uint8_t event[128] = {0};
    uint32_t length = 16 + byte(input) % 100;

    head(event, byte(input) % 2 ? STACK_ID : USER_STACK_ID, byte(input) % 4 - 1);
    for (uint32_t at = 16; at < length; at++)
        event[at] = byte(input) % 4 ? 0x81 : 0xFF;
    add_event(&state->page, state->now, event, length);
}

/* Take all sums. They agree with the counts of records. */
static void take(struct state *state)
{
    const struct loss *losses;
    uint32_t number;
    size_t at = 0;

    for (uint32_t i = 0; i < OPEN_CALLS; i++) {
        struct tally_table *table = engine_tallies(state->engine, i);
        uint64_t counted = table->unreadable + table->negative;

        for (uint32_t j = 0; j < table->ntallies; j++)
            counted += table->tallies[j].count;
        table->unreadable = table->negative = 0;
        if (i <= ADDED_LARGEST)
            CHECK(counted == state->plan->types[ADDED].passed);
        else if (i <= SINGLE_STACKS)
            CHECK(counted == state->plan->variants[NJOINS].passed);
        else
            CHECK(counted == state->plan->variants[i - OF_CALL].passed);
        engine_clear_tallies(table);
    }
    for (uint32_t i = TIMES; i < NGROUPS; i++) {
        struct tally_table *table = engine_tallies(state->engine, i);

        for (uint32_t j = 0; j < table->ntallies; j++)
            CHECK(table->tallies[j].sum.high == 0 && table->tallies[j].sum.low > 0);
        engine_clear_tallies(table);
    }
    state->plan->types[ADDED].passed = 0;
    for (uint32_t i = 0; i <= NJOINS; i++)
        state->plan->variants[i].passed = 0;
    while (engine_next_exported(state->engine, &at) != NULL)
        continue;
    engine_clear_exported(state->engine);
    CHECK(engine_take_losses(state->engine, &losses, &number));
    for (uint32_t i = 0; i < number; i++)
        engine_add_loss(state->engine, losses[i].start, losses[i].end);
    CHECK(!engine_has_losses(state->engine));
    engine_shrink(state->engine);
}

/* Count the open calls, by number or by stack. */
static void count_open(struct state *state, struct input *input)
{
    enum open_group group = byte(input) % 2 ? OPEN_NUMBER : OPEN_STACKS;
    struct tally_table *table = engine_tallies(state->engine, OPEN_CALLS + group);
    uint64_t counted = 0;

    CHECK(engine_add_open(state->engine, 0, state->now - byte(input) % 32, group));
    for (uint32_t i = 0; i < table->ntallies; i++)
        counted += table->tallies[i].count;
    CHECK(counted <= engine_open(state->engine));
    engine_clear_tallies(table);
}

/* Watch a thread, or say what it does without an event. */
static void watch(struct state *state, struct input *input)
{
    const struct watched_thread thread = {
        .tid = byte(input) % 4 - 1,
        .state = byte(input) % THREAD_STATES,
        .certain = byte(input) % 4 == 0,
        .since = state->now - byte(input) % 32,
        .seen = state->now - byte(input) % 32,
        .place = byte(input),
    };
    int32_t tids[4];

    CHECK(engine_watch(state->engine, &thread));
    CHECK(engine_watched(state->engine, tids, 4) >= 1);
}

/* Go on with another engine, without some of the joins. */
static void resume(struct state *state, struct input *input)
{
    struct engine_plan *plan = draw_plan(input);
    struct engine *engine;
    int32_t joins[NJOINS], types[NTYPES];
    uint8_t left = byte(input);

    take(state);
    plan->queues = byte(input) % 8 != 0;
    if (!plan->queues)
        plan->ntypes = 0;
    engine = engine_new(plan);
    CHECK(engine != NULL);
    for (int32_t i = 0; i < NJOINS; i++)
        joins[i] = left >> i & 1 ? i : -1;
    for (int32_t i = 0; i < NTYPES; i++)
        types[i] = i <= LEAVE && joins[i / 2] < 0 ? TYPE_REMOVED_HALF : i;
    CHECK(engine_resume(engine, state->engine, joins, types));
    engine_free(state->engine);
    plan_free(state->plan);
    state->engine = engine;
    state->plan = plan;
}

static void run(struct state *state, struct input *input)
{
    uint8_t which = byte(input);
    int32_t own[3];

    if (!page_has_room(&state->page, EVENT_SIZE + 256))
        feed(state, input, false);
    switch (which % NCOMMANDS) {
    case ADD_EVENT:
    case ADD_EVENT_AGAIN:
        add(state, input, byte(input) % NTYPES);
        break;
    case ADD_CALL:
        add(state, input, byte(input) % SINGLE);
        break;
    case ADD_STACK:
        add_stack(state, input);
        break;
    case FEED:
    case FEED_DAMAGED:
        feed(state, input, which % NCOMMANDS == FEED_DAMAGED);
        break;
    case JOIN:
        CHECK(engine_join(state->engine, byte(input) % 2 ? state->now : NEVER) == ENGINE_OK);
        CHECK(engine_open(state->engine) <= FUZZED_MAX_OPEN);
        break;
    case TAKE:
        take(state);
        break;
    case RESUME:
        if (byte(input) % 4 == 0)
            resume(state, input);
        break;
    case DROP:
        if (state->plan->queues)
            engine_drop_join(state->engine, byte(input) % NJOINS);
        break;
    case ADD_LOSS:
        engine_add_loss(state->engine, state->now - byte(input) % 32, state->now + byte(input));
        break;
    case SET_OWN:
        for (int i = 0; i < 3; i++)
            own[i] = byte(input) % 8 - 1;
        CHECK(engine_set_own_threads(state->engine, own, byte(input) % 4));
        break;
    case WATCH:
        watch(state, input);
        break;
    case CUT_TIMES:
        CHECK(engine_cut_times(state->engine, state->now - byte(input) % 32));
        break;
    case END_THREAD:
        CHECK(engine_end_thread(state->engine, byte(input) % 8 - 1, state->now));
        if (byte(input) % 8 == 0)
            engine_lose_times(state->engine, state->now);
        break;
    case ADD_SWITCH:
        add(state, input, SWITCH + byte(input) % (CREATE - SWITCH + 1));
        break;
    case COUNT_OPEN:
        if (state->plan->queues)
            count_open(state, input);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct state state;
    struct input input = {data, data + size};

    state.plan = draw_plan(&input);
    state.engine = engine_new(state.plan);
    state.now = 1000;
    refused_pages = 0;
    CHECK(state.engine != NULL);
    begin_page(&state.page, state.now);
    for (int i = 0; i < MAX_COMMANDS && input.at < input.end; i++)
        run(&state, &input);
    CHECK(engine_join(state.engine, NEVER) == ENGINE_OK);
    take(&state);
    engine_free(state.engine);
    plan_free(state.plan);
    return 0;
}
