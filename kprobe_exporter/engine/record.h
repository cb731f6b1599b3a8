/* Reads the values of a record, and nothing outside it.
 *
 * A record is the bytes of an event behind the ring buffer's own header. A number lies at a fixed offset below
 * the size of its type, which `on_event` (walk.c) has checked against the record. A string may begin anywhere:
 * its place is read from the record, so that it is checked here. */
#ifndef ENGINE_RECORD_H
#define ENGINE_RECORD_H

#include <string.h>

#include "engine.h"

struct record {                     /* of a joined record, the first half */
    const uint8_t *start;
    uint32_t length;                /* bytes */
    int32_t tid;
    int32_t cpu;
    uint64_t time;                  /* nanoseconds of the instance's clock */
    const struct engine_plan *plan; /* for computed fields, and those that are looked up */
    const struct record *second;    /* the second half of a joined record */
    uint64_t elapsed;               /* nanoseconds from the first half to the second */
    const uint8_t *stack;           /* STACK_HEAD and the stacks; NULL without */
    uint32_t stack_length;          /* bytes */
};

void look_up(const struct field_ref *field, const struct record *record, struct looked_up *out);
bool compute(const struct expr_node *nodes, uint32_t at, const struct record *record, struct number *out);

static inline uint32_t load32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

static inline uint64_t load64(const uint8_t *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

static inline size_t padded(size_t length)
{
    return (length + 7) & ~(size_t)7;
}

static inline bool is_less(struct number a, struct number b)
{
    return a.high < b.high || (a.high == b.high && a.low < b.low);
}

static inline void add_number(struct number *total, struct number value)
{
    uint64_t before = total->low;

    total->low += value.low;
    total->high = (int64_t)((uint64_t)total->high + (uint64_t)value.high + (total->low < before));
}

static inline struct number from_signed(int64_t value)
{
    return (struct number){value < 0 ? -1 : 0, (uint64_t)value};
}

/* Whether a pointer through which the field was read can be followed nowhere: null, or an ERR_PTR. */
static inline bool is_guarded_off(const struct field_ref *field, const struct record *record)
{
    for (uint32_t i = 0; i < field->nguards; i++) {
        uint64_t pointer = load64(record->start + field->guards[i]);

        if (pointer < LOWEST_ADDRESS || pointer >= 0 - (uint64_t)MAX_ERRNO)
            return true;
    }
    return false;
}

static inline uint64_t swap_bytes(uint64_t value, uint32_t size)
{
    return size == 8 ? __builtin_bswap64(value)
        : size == 4 ? __builtin_bswap32((uint32_t)value)
        : size == 2 ? __builtin_bswap16((uint16_t)value)
        : value;
}

static inline uint64_t load_unsigned(const uint8_t *at, uint32_t size)
{
    uint16_t half;

    switch (size) {
    case 8:
        return load64(at);
    case 4:
        return load32(at);
    case 2:
        memcpy(&half, at, sizeof(half));
        return half;
    default:
        return *at;
    }
}

static inline int64_t load_signed(const uint8_t *at, uint32_t size)
{
    switch (size) {
    case 8:
        return (int64_t)load64(at);
    case 4:
        return (int32_t)load32(at);
    case 2:
        return (int16_t)load_unsigned(at, 2);
    default:
        return (int8_t)*at;
    }
}

/* Make the error in a return value negative (model/values.py: ReturnType.wrap). */
static inline void normalize_error(struct number *value, enum error_form form)
{
    const uint64_t int_end = (uint64_t)1 << 32;

    if (value->high != 0)
        return;
    if (form == ERROR_OF_32_BITS && value->low >= int_end - MAX_ERRNO && value->low < int_end) {
        value->low -= int_end;
        value->high = -1;
    } else if (form == ERROR_AS_POINTER && value->low >= 0 - (uint64_t)MAX_ERRNO) {
        value->high = -1;
    }
}

/* Read a number; false if the field holds none. */
static inline bool read_number(const struct field_ref *field, const struct record *record, struct number *out)
{
    struct looked_up looked_up;
    const uint8_t *at;

    if (field->second)
        record = record->second;
    at = record->start + field->offset;
    if (field->nguards && is_guarded_off(field, record))
        return false;
    out->high = 0;
    switch (field->kind) {
    case FIELD_UNSIGNED:
        out->low = load_unsigned(at, field->size);
        if (field->network)
            out->low = swap_bytes(out->low, field->size);
        break;
    case FIELD_SIGNED:
        *out = from_signed(load_signed(at, field->size));
        break;
    case FIELD_TID:
        *out = from_signed(record->tid);
        break;
    case FIELD_CPU:
        out->low = (uint64_t)record->cpu;
        break;
    case FIELD_COMPUTED:
        return compute(record->plan->nodes, field->offset, record, out);
    case FIELD_LOOKED_UP:
        look_up(field, record, &looked_up);
        *out = looked_up.number;
        return looked_up.kind == KEY_POSITIVE || looked_up.kind == KEY_NEGATIVE;
    case FIELD_ELAPSED:
        out->low = record->elapsed;
        break;
    case FIELD_STEP:
        out->low = load64(record->start + record->length - field->offset);
        return out->low != NEVER;
    default:
        return false;
    }
    if (field->error_form != ERROR_AS_READ)
        normalize_error(out, field->error_form);
    return true;
}

/* Find a string or an array in its record; false if the kernel could not read it, or if it leads outside. */
static inline bool find_text(
    const struct field_ref *field, const struct record *record, const uint8_t **text, uint32_t *length)
{
    struct looked_up looked_up;
    uint32_t first, size, location;
    const void *nul;

    if (field->kind == FIELD_STACK) {
        *text = record->stack;
        *length = record->stack_length;
        return record->stack != NULL;
    }
    if (field->second)
        record = record->second;
    if (field->nguards && is_guarded_off(field, record))
        return false;
    switch (field->kind) {
    case FIELD_TEXT:
    case FIELD_BYTES:
        first = field->offset;
        size = field->size;
        break;
    case FIELD_DYNAMIC:
    case FIELD_RELATIVE:
        location = load32(record->start + field->offset);
        first = location & 0xFFFF;
        size = location >> 16;
        if (field->kind == FIELD_RELATIVE)
            first += field->offset + 4;
        if (size == 0 && field->unreadable_if_empty)
            return false;
        if (field->next && (load32(record->start + field->next) & 0xFFFF) < first + size)
            return false;  /* not stored: see Field of model/record_layout.py */
        break;
    case FIELD_LOOKED_UP:
        look_up(field, record, &looked_up);
        *text = looked_up.text;
        *length = looked_up.length;
        return looked_up.kind == KEY_TEXT;
    default:
        return false;
    }
    if (first > record->length || size > record->length - first)
        return false;
    *text = record->start + first;
    nul = size && field->kind != FIELD_BYTES ? memchr(*text, 0, size) : NULL;
    *length = nul == NULL ? size : (uint32_t)((const uint8_t *)nul - *text);
    return true;
}

#endif
