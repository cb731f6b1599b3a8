/* Adds up records: a hash table of sums for each group.
 *
 *     slots:    [ 0 | 2 | 0 | 1 | … ]          the number of a tally plus 1; 0 is free
 *     tallies:  [ hash, key_at, count, sum, … | hash, … ]       in the order of their first records
 *     buckets:  [ nbounds + 1 counts          | nbounds + 1 counts ]
 *     keys:     [ bytes of the first key      | bytes of the second ]
 *
 * A key is searched from the slot of its hash onwards (linear probing). There are at least 4 slots for each
 * tally, so that a search ends after one or two. A group that keeps the largest value has one tally, whose key
 * begins at 0 and is replaced. Tallies, buckets and keys grow at their ends and are never
 * removed one by one: the caller reads all of them and clears the table. Tables are small, so that they stay in
 * the CPU's cache: engine_read() stops for the caller when one grows beyond a bound. */
#include <stdlib.h>

#include "key.h"
#include "expr.h"
#include "tally.h"

/* Write the raw values of a group's keys; return their length. */
static inline uint32_t write_key(const struct group *group, const struct record *record, uint8_t *out)
{
    uint8_t *end = out;

    for (uint32_t i = 0; i < group->nkeys; i++) {
        uint8_t *after = write_value(end, &group->keys[i], record);

        if (after == NULL) {
            store_word(end, KEY_ABSENT);
            after = end + 8;
        }
        end = after;
    }
    return (uint32_t)(end - out);
}

/* Write the sum of the epochs of a record's threads as one more part of the key; return its length. */
static uint32_t write_epoch(
    const struct group *group, const struct epochs *epochs, const struct record *record, uint8_t *out)
{
    struct number tid, epoch = {0, 0};

    for (uint32_t i = 0; i < group->nthreads; i++)
        if (read_number(&group->keys[group->threads[i]], record, &tid))
            epoch.low += epochs->moves + epochs->placed[tid.low & (NEPOCHS - 1)];
    return (uint32_t)(write_number(out, epoch) - out);
}

/* Write the code of a value's exponential bucket as one more part of the key; return its length.
 *
 * The code is the bucket's index from 1 with the value's sign; 0 is that of 0. A binary search is short, since
 * `fine_starts` has the first bucket of each number of bits. */
static uint32_t write_fine_bucket(const struct group *group, struct number value, uint8_t *out)
{
    uint64_t magnitude = value.high >= 0 ? value.low : 0 - value.low;
    int64_t code = 0;

    if (magnitude) {
        uint32_t bits = 64 - (uint32_t)__builtin_clzll(magnitude);
        uint32_t low = group->fine_starts[bits], high = group->fine_starts[bits + 1];

        while (low < high) {
            uint32_t middle = (low + high) >> 1;

            if (group->fine_bounds[middle] < magnitude)
                low = middle + 1;
            else
                high = middle;
        }
        code = value.high >= 0 ? (int64_t)low + 1 : -1 - (int64_t)low;
    }
    return (uint32_t)(write_number(out, from_signed(code)) - out);
}

static inline size_t nbuckets(const struct group *group)
{
    return (size_t)(group->nbounds + 1);
}

/* Double the room for tallies; false without memory. */
static bool grow(struct tally_table *table, const struct group *group)
{
    uint32_t room = table->room ? 2 * table->room : 16, nslots = 4 * room;
    struct tally *tallies = realloc(table->tallies, room * sizeof(*tallies));
    uint32_t *slots;

    if (tallies == NULL)
        return false;
    table->tallies = tallies;
    if (group->nbounds >= 0) {
        uint64_t *buckets = realloc(table->buckets, room * nbuckets(group) * sizeof(*buckets));

        if (buckets == NULL)
            return false;
        table->buckets = buckets;
    }
    slots = calloc(nslots, sizeof(*slots));
    if (slots == NULL)
        return false;
    for (uint32_t i = 0; i < table->ntallies; i++) {
        uint32_t at = tallies[i].hash & (nslots - 1);

        while (slots[at])
            at = (at + 1) & (nslots - 1);
        slots[at] = i + 1;
    }
    free(table->slots);
    table->slots = slots;
    table->nslots = nslots;
    table->room = room;
    return true;
}

/* Make room for a key behind the others; false without memory. */
static bool make_key_room(struct tally_table *table, uint32_t length)
{
    size_t room = 2 * (table->keys_used + length) + 256;
    uint8_t *key_bytes;

    if (table->keys_used + length <= table->keys_room)
        return true;
    key_bytes = realloc(table->key_bytes, room);
    if (key_bytes == NULL)
        return false;
    table->key_bytes = key_bytes;
    table->keys_room = room;
    return true;
}

/* Return the tally of a key, a new one for a new key; NULL without memory. */
static struct tally *find_tally(
    struct tally_table *table, const struct group *group, const uint8_t *key, uint32_t length, uint64_t seed)
{
    uint64_t hash = length ? hash_key(key, length, seed) : 0;
    struct tally *tally;
    uint32_t at = 0;

    if (table->nslots) {
        for (at = hash & (table->nslots - 1); table->slots[at]; at = (at + 1) & (table->nslots - 1)) {
            tally = &table->tallies[table->slots[at] - 1];
            if (tally->hash == hash && tally->key_length == length
                && is_same_key(table->key_bytes + tally->key_at, key, length))
                return tally;
        }
    }
    if (table->ntallies == table->room) {
        if (!grow(table, group))
            return NULL;
        for (at = hash & (table->nslots - 1); table->slots[at];)
            at = (at + 1) & (table->nslots - 1);
    }
    if (!make_key_room(table, length))
        return NULL;
    tally = &table->tallies[table->ntallies];
    *tally = (struct tally){.hash = hash, .key_at = table->keys_used, .key_length = length};
    if (length)
        memcpy(table->key_bytes + table->keys_used, key, length);
    table->keys_used += length;
    if (group->nbounds >= 0)
        memset(&table->buckets[table->ntallies * nbuckets(group)], 0, nbuckets(group) * sizeof(uint64_t));
    table->slots[at] = ++table->ntallies;
    return tally;
}

/* Return the index of a value's bucket. */
static inline uint32_t find_bucket(const struct group *group, struct number value)
{
    uint32_t low = 0, high = (uint32_t)group->nbounds;

    while (low < high) {
        uint32_t middle = (low + high) >> 1;

        if (is_less(group->bounds[middle], value))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Return when a record was complete: a thread's cgroup is looked up for this moment. */
static inline uint64_t moment_of(const struct record *record)
{
    return record->second != NULL ? record->second->time : record->time;
}

/* Keep the value and the key of a record if its value is the largest so far, of equal ones the latest; false
 * without memory.
 *
 * Nearly every record costs a comparison: a key is written only for a new largest value, of which a random order
 * of n records has about ln n. */
static bool keep_largest(
    struct tally_table *table, const struct group *group, const struct tally_context *context,
    const struct record *record, struct number value)
{
    struct tally *tally = table->ntallies ? &table->tallies[0] : NULL;
    uint32_t length;

    if (tally != NULL) {
        tally->count++;
        if (is_less(value, tally->sum) || (!is_less(tally->sum, value) && record->time < tally->time))
            return true;
    }
    length = write_key(group, record, context->scratch);
    if (tally != NULL)
        table->keys_used = 0; /* the earlier key makes room */
    if (!make_key_room(table, length))
        return false;
    if (tally == NULL) {
        tally = find_tally(table, group, NULL, 0, context->seed);
        if (tally == NULL)
            return false;
        tally->count = 1;
    }
    tally->sum = value;
    tally->time = record->time;
    tally->first_time = moment_of(record);
    if (length)
        memcpy(table->key_bytes, context->scratch, length);
    tally->key_length = length;
    table->keys_used = length;
    return true;
}

bool add_to_tallies(
    struct tally_table *table, const struct group *group, const struct tally_context *context,
    const struct record *record)
{
    struct number value = {0, 0};
    struct tally *tally;
    uint32_t length;

    if (group->where >= 0) {
        enum verdict met = evaluate(context->nodes, (uint32_t)group->where, record);

        table->unreadable += met == IS_MISSING;
        if (met != PASSES)
            return true;
    }
    if (group->has_value) {
        if (!read_number(&group->value, record, &value)) {
            table->unreadable++;
            return true;
        }
        if (group->positive && value.high < 0) {
            table->negative++;
            return true;
        }
    }
    if (group->keeps_largest)
        return keep_largest(table, group, context, record, value);
    length = write_key(group, record, context->scratch);
    if (group->nthreads)
        length += write_epoch(group, context->epochs, record, context->scratch + length);
    if (group->fine_bounds != NULL)
        length += write_fine_bucket(group, value, context->scratch + length);
    tally = find_tally(table, group, context->scratch, length, context->seed);
    if (tally == NULL)
        return false;
    if (group->nthreads && tally->count == 0)
        tally->first_time = moment_of(record);
    tally->count++;
    if (group->has_value && !group->keeps_last) {
        add_number(&tally->sum, value);
    } else if (group->has_value && record->time >= tally->time) {
        tally->sum = value;
        tally->time = record->time;
    }
    if (group->nbounds >= 0)
        table->buckets[(size_t)(tally - table->tallies) * nbuckets(group) + find_bucket(group, value)]++;
    return true;
}

void engine_clear_tallies(struct tally_table *table)
{
    table->ntallies = 0;
    table->keys_used = 0;
    if (table->nslots)
        memset(table->slots, 0, table->nslots * sizeof(*table->slots));
}

void free_tallies(struct tally_table *table)
{
    free(table->tallies);
    free(table->buckets);
    free(table->slots);
    free(table->key_bytes);
}
