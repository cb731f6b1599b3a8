/* Chooses the records that are exported as logs and spans, and keeps them until the caller reads them.
 *
 * A log record is chosen by its filter and by chance. Spans are chosen by whole traces: the outermost call of a
 * trace is sampled by the last 64 bits of the trace's id, and all calls in it follow. In a sampled trace a call is
 * exported if it passes its filter, or if something in it was exported, so that no span lacks its parent.
 *
 * Limits are token buckets that are filled by the events' own time. Each record takes a token of its layout and
 * one of all layouts together. A trace is let through as a whole: if there was a token when its first span ended,
 * its later spans are exported even without a token, and the tokens become a debt of at most one second's. */
#include <stdlib.h>

#include "state.h"

enum { KEPT_ROOM = 1 << 16 };       /* bytes that are kept without a record */

static const int64_t NO_THREAD = (int64_t)1 << 32; /* of what lies in no call: no thread has this id */

bool should_export(struct engine *engine, const struct export_rule *rule, const struct record *record)
{
    if (!passes(engine->plan->nodes, rule->where, record))
        return false;
    return rule->share == ENTIRE_SHARE || next_random(&engine->random) <= rule->share;
}

static inline double min_double(double a, double b)
{
    return a < b ? a : b;
}

/* Add the tokens since the last call; return whether one is left. */
static bool has_token(struct rate_limit *limit, uint64_t now)
{
    if (!limit->limits)
        return true;
    if (now > limit->at) {
        double added = (double)(now - limit->at) * 1e-9 * limit->per_second;

        limit->level = min_double(limit->burst, limit->level + added);
        limit->at = now;
    }
    return limit->level >= 1;
}

/* Take a token, even if none is left. */
static void take_token(struct rate_limit *limit)
{
    limit->level = limit->level - 1 > -limit->burst ? limit->level - 1 : -limit->burst;
}

static struct export_plan *find_export(const struct engine *engine, int64_t layout_id)
{
    struct engine_plan *plan = engine->plan;

    for (uint32_t i = 0; i < plan->nexports; i++)
        if (plan->exports[i].layout_id == layout_id)
            return &plan->exports[i];
    return NULL;
}

/* Whether each limit has a token. `export` is NULL for an open call whose probe is gone. */
static bool limits_allow(struct engine *engine, struct export_plan *export, uint64_t now)
{
    return has_token(&engine->together, now) && (export == NULL || has_token(&export->limit, now));
}

static void take_tokens(struct engine *engine, struct export_plan *export)
{
    take_token(&engine->together);
    take_token(&export->limit);
}

/* Whether the limits let a trace through, as they were when this was asked for the first time. */
static bool admits_trace(struct engine *engine, struct traced_call *outermost, uint64_t now)
{
    if (outermost->admitted == UNDECIDED)
        outermost->admitted = limits_allow(engine, find_export(engine, outermost->layout_id), now);
    return outermost->admitted;
}

/* Keep a record: of a variant, or a single one of a type. False without memory. */
static bool keep_record(
    struct engine *engine, const struct join_variant *variant, int32_t type, const struct record *record,
    const uint64_t *trace, uint64_t span, uint64_t parent)
{
    const struct record *second = record->second;
    uint32_t behind = second == NULL ? 0 : second->length;
    size_t size = sizeof(struct exported_record) + padded((size_t)record->length + behind + record->stack_length);
    struct exported_record *kept;
    uint8_t *bytes;

    if (engine->exported_used + size > engine->exported_room) {
        size_t room = 2 * engine->exported_room + size + 4096;

        bytes = realloc(engine->exported, room);
        if (bytes == NULL)
            return false;
        engine->exported = bytes;
        engine->exported_room = room;
    }
    kept = (struct exported_record *)(engine->exported + engine->exported_used);
    *kept = (struct exported_record){
        .variant = -1,
        .types = {type},
        .cpus = {record->cpu},
        .lengths = {record->length},
        .stack_length = record->stack_length,
        .times = {record->time},
        .trace = {trace[0], trace[1]},
        .span = span,
        .parent = parent,
    };
    bytes = (uint8_t *)(kept + 1);
    memcpy(bytes, record->start, record->length);
    if (second != NULL) {
        kept->variant = (int32_t)(variant - engine->plan->variants);
        memcpy(kept->types, variant->types, sizeof(kept->types));
        kept->cpus[1] = second->cpu;
        kept->lengths[1] = second->length;
        kept->times[1] = second->time;
        memcpy(bytes + record->length, second->start, second->length);
    }
    if (record->stack_length)
        memcpy(bytes + record->length + behind, record->stack, record->stack_length);
    engine->exported_used += size;
    engine->counts.exported++;
    return true;
}

/* Export a record as a log; false without memory. */
static bool export_log(
    struct engine *engine, struct export_plan *export, const struct join_variant *variant, int32_t type,
    const struct record *record, int64_t thread, uint64_t now)
{
    static const uint64_t no_trace[2] = {0, 0};
    struct traced_call *call = NULL;

    if (!limits_allow(engine, export, now)) {
        export->dropped++;
        return true;
    }
    take_tokens(engine, export);
    if (thread != NO_THREAD && !find_call_around(engine->calls, thread, record->time, &call))
        return false;
    if (call == NULL || !call->outermost->sampled || !admits_trace(engine, call->outermost, now))
        return keep_record(engine, variant, type, record, no_trace, 0, 0);
    call->needed = true;
    return keep_record(engine, variant, type, record, call->outermost->trace, 0, call->span);
}

/* Return the traced call of a half that ended, which its half gives up, or a new one; NULL without memory. */
static struct traced_call *take_traced_call(
    struct engine *engine, const struct join_variant *variant, struct open_half *half, int64_t thread)
{
    struct traced_call *call, *parent = NULL;

    if (half->enclosing != NULL && half->enclosing->call != NULL) {
        call = half->enclosing->call;
        half->enclosing->call = NULL;
        return call;
    }
    if (thread != NO_THREAD && !find_call_around(engine->calls, thread, half->time, &parent))
        return NULL;
    return new_traced_call(engine->calls, &engine->calls->joins[variant->join].plan.nesting, parent);
}

/* Export a call as a span, or one whose filter rejects it for what lies in it; false without memory. */
static bool export_span(
    struct engine *engine, const struct join_variant *variant, struct open_half *half,
    const struct record *record, int64_t thread, bool passed, uint64_t now)
{
    struct export_plan *export = &engine->plan->exports[variant->export.export];
    struct traced_call *call = take_traced_call(engine, variant, half, thread);
    bool done = true;

    if (call == NULL)
        return false;
    if (call->outermost->sampled
        && (call->needed || (passed && should_export(engine, &variant->export, record)))) {
        if (call->parent != NULL)
            call->parent->needed = true;
        if (admits_trace(engine, call->outermost, now)) {
            take_tokens(engine, export);
            done = keep_record(
                engine, variant, -1, record, call->outermost->trace, call->span,
                call->parent == NULL ? 0 : call->parent->span);
        } else {
            export->dropped++;
        }
    }
    release_traced_call(call);
    return done;
}

bool export_joined(
    struct engine *engine, const struct join_variant *variant, struct open_half *half,
    const struct record *record, bool passed)
{
    struct export_plan *export = &engine->plan->exports[variant->export.export];
    int64_t thread = half->enclosing == NULL ? NO_THREAD : thread_id(half->tid, half->cpu);
    uint64_t now = record->second->time;

    detach_enclosing(engine->calls, half);
    if (export->spans)
        return export_span(engine, variant, half, record, thread, passed, now);
    if (!passed || !should_export(engine, &variant->export, record))
        return true;
    return export_log(engine, export, variant, -1, record, thread, now);
}

/* Export a single record that was chosen; false without memory. */
bool export_single(struct engine *engine, int32_t type, const struct record *record)
{
    const struct export_rule *rule = &engine->plan->types[type].export;
    int64_t thread = thread_id(record->tid, record->cpu);

    return export_log(engine, &engine->plan->exports[rule->export], NULL, type, record, thread, record->time);
}

const struct exported_record *engine_next_exported(const struct engine *engine, size_t *at)
{
    const struct exported_record *kept;

    if (*at == engine->exported_used)
        return NULL;
    kept = (const struct exported_record *)(engine->exported + *at);
    *at += sizeof(*kept) + padded((size_t)kept->lengths[0] + kept->lengths[1] + kept->stack_length);
    return kept;
}

void engine_clear_exported(struct engine *engine)
{
    engine->exported_used = engine->counts.exported = 0;
    if (engine->exported_room <= KEPT_ROOM)
        return;
    free(engine->exported);
    engine->exported = NULL;
    engine->exported_room = 0;
}
