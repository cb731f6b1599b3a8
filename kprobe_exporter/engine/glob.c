/* Matches strings with the patterns of the kernel's filters: glob_match() of lib/glob.c, on a text with a length.
 *
 *   *       any text
 *   ?       one byte
 *   [a-z]   one byte of a class; [!a-z] one byte of none; ']' may be the first of a class
 *   \x      the byte x
 *
 * The text behind a star is searched for at each place in turn. When a later star is reached, the earlier one is
 * forgotten: its first match is as good as any other, so that the time is bounded by the product of the two
 * lengths. Patterns that the kernel matches in another way (a literal, "x*", "*x", "*x*") give the same here. In
 * kernels before 6.12, "[!x]" also matches the end of the string; here it does not. */
#include "expr.h"

struct text {
    const uint8_t *bytes;
    uint32_t length;
};

/* Return the byte at an index; 0 at the end and behind it. */
static inline uint8_t at(struct text text, uint32_t index)
{
    return index < text.length ? text.bytes[index] : 0;
}

/* Match a byte with the class that begins at `*index`, behind its bracket, and advance `*index` behind the class.
 * False without a change if the class is not closed: then the bracket is a byte like any other. */
static bool read_class(struct text glob, uint32_t *index, uint8_t byte, bool *matches)
{
    bool inverted = at(glob, *index) == '!', found = false;
    uint32_t next = *index + inverted;
    uint8_t low = at(glob, next++);

    do {
        uint8_t high = low;

        if (low == 0)
            return false;
        if (at(glob, next) == '-' && at(glob, next + 1) != ']') {
            high = at(glob, next + 1);
            if (high == 0)
                return false;
            next += 2;
        }
        found |= low <= byte && byte <= high;
        low = at(glob, next++);
    } while (low != ']');
    *index = next;
    *matches = found != inverted;
    return true;
}

bool matches_glob(const uint8_t *glob_bytes, uint32_t glob_length, const uint8_t *bytes, uint32_t length)
{
    struct text glob = {glob_bytes, glob_length}, text = {bytes, length};
    uint32_t glob_at = 0, text_at = 0;
    uint32_t star = 0, tried = 0;   /* behind the last star, and where the text behind it was tried last */
    bool has_star = false;

    for (;;) {
        bool is_end = text_at >= text.length, matches;
        uint8_t byte = at(text, text_at), wanted = at(glob, glob_at++);

        if (wanted == '*') {
            if (glob_at >= glob.length)
                return true;
            has_star = true;
            star = glob_at;
            tried = text_at;
            continue;
        }
        if (wanted == '?') {
            matches = !is_end;
        } else if (wanted != '[' || !read_class(glob, &glob_at, byte, &matches)) {
            if (wanted == '\\')
                wanted = at(glob, glob_at++);
            matches = byte == wanted;
            if (matches && wanted == 0)
                return true;
        } else {
            matches = matches && !is_end;
        }
        if (matches) {
            text_at++;
            continue;
        }
        if (is_end || !has_star)
            return false;
        glob_at = star;
        text_at = ++tried;
    }
}
