/* Keys: values of a record as bytes, by which records are counted and halves are joined.
 *
 * A key is a row of parts (enum key_kind), each made of whole words of 8 bytes:
 *
 *     KEY_POSITIVE | number          KEY_TEXT + 256 × length | text, filled up with zeros          KEY_ABSENT
 *
 * Two keys with the same values have the same bytes, so that a key is hashed and compared a word at a time, and
 * is written a word at a time: a word that is read while parts of it are still on their way to memory stalls
 * the CPU. */
#ifndef ENGINE_KEY_H
#define ENGINE_KEY_H

#include "record.h"

static inline void store_word(uint8_t *at, uint64_t word)
{
    memcpy(at, &word, sizeof(word));
}

/* Write a number as a part of a key; return the place behind it. */
static inline uint8_t *write_number(uint8_t *out, struct number value)
{
    store_word(out, value.high == 0 ? KEY_POSITIVE : KEY_NEGATIVE);
    store_word(out + 8, value.low);
    return out + 16;
}

/* Write a field's value as a part of a key; return the place behind it, NULL if the record lacks the value. */
static inline uint8_t *write_value(uint8_t *out, const struct field_ref *field, const struct record *record)
{
    struct looked_up looked_up;
    struct number value;
    const uint8_t *text;
    uint32_t length;

    if (field->kind == FIELD_LOOKED_UP) { /* once, and not as a number and then as a text */
        look_up(field, field->second ? record->second : record, &looked_up);
        if (looked_up.kind == KEY_ABSENT)
            return NULL;
        if (looked_up.kind != KEY_TEXT)
            return write_number(out, looked_up.number);
        text = looked_up.text;
        length = looked_up.length;
    } else if (read_number(field, record, &value)) {
        return write_number(out, value);
    } else if (!find_text(field, record, &text, &length)) {
        return NULL;
    }
    store_word(out, KEY_TEXT | (uint64_t)length << 8);
    out += 8;
    if (length) {
        store_word(out + padded(length) - 8, 0);
        memcpy(out, text, length);
    }
    return out + padded(length);
}

/* Hash a key of whole words.
 *
 * Each word is mixed in by a multiplication with 2^64 divided by the golden ratio (Knuth, The Art of Computer
 * Programming 3, 6.4: Fibonacci hashing) and a shift that brings the high bits, which depend on all bits, down
 * to those that choose a slot. The last multiplier is one of splitmix64's finalizer. The seed keeps
 * users, who choose strings, from choosing colliding ones. */
static inline uint64_t hash_key(const uint8_t *key, uint32_t length, uint64_t seed)
{
    uint64_t value = seed ^ length;

    for (uint32_t at = 0; at < length; at += 8) {
        value = (value ^ load64(key + at)) * UINT64_C(0x9E3779B97F4A7C15);
        value ^= value >> 29;
    }
    value *= UINT64_C(0xBF58476D1CE4E5B9);
    return value ^ (value >> 32);
}

static inline bool is_same_key(const uint8_t *a, const uint8_t *b, uint32_t length)
{
    for (uint32_t at = 0; at < length; at += 8)
        if (load64(a + at) != load64(b + at))
            return false;
    return true;
}

#endif
