/* Evaluates conditions and computed values on records.
 *
 * An expression is a tree of nodes in one array. The operands of a node begin at the node `first`:
 *
 *     size > 10 && name == "sh"         0: ALL first=1 noperands=2
 *                                       1: GREATER field=size number=10
 *                                       2: TEXT_EQUAL field=name text="sh"
 *
 * There are three values: true, false and missing. An operand that decides ALL or ANY decides it whatever the
 * others are; otherwise one that is missing makes the result missing, as in SQL. What compares a field with a
 * constant follows the kernel's filters instead: a missing field differs from every constant, and fails all
 * other comparisons, those with patterns included.
 *
 * Arithmetic is C's on 64 bits. Where C defines no result (division by 0, shifts by more than 63 bits), the
 * value is missing. The parser of expressions bounds the depth of the tree, and with it this recursion. */
#include "expr.h"

/* Convert a number to 64 bits, which keeps the lowest ones. */
static inline void truncate_number(struct number *value, bool is_unsigned)
{
    value->high = !is_unsigned && (int64_t)value->low < 0 ? -1 : 0;
}

/* Compare two computed values. */
static enum verdict compare(
    const struct expr_node *nodes, const struct expr_node *node, const struct record *record)
{
    struct number left, right;

    if (!compute(nodes, node->first, record, &left) || !compute(nodes, node->first + 1, record, &right))
        return IS_MISSING;
    truncate_number(&left, node->is_unsigned);
    truncate_number(&right, node->is_unsigned);
    switch (node->op) {
    case EXPR_IS_EQUAL:
        return left.low == right.low;
    case EXPR_IS_UNEQUAL:
        return left.low != right.low;
    case EXPR_IS_LESS:
        return is_less(left, right);
    case EXPR_IS_LESS_EQUAL:
        return !is_less(right, left);
    case EXPR_IS_GREATER:
        return is_less(right, left);
    default:
        return !is_less(left, right);
    }
}

/* Combine the operands of ALL and ANY. */
static enum verdict combine(
    const struct expr_node *nodes, const struct expr_node *node, const struct record *record)
{
    const enum verdict deciding = node->op == EXPR_ALL ? FAILS : PASSES;
    enum verdict found = node->op == EXPR_ALL ? PASSES : FAILS;

    for (uint32_t i = 0; i < node->noperands; i++) {
        enum verdict part = evaluate(nodes, node->first + i, record);

        if (part == deciding)
            return part;
        if (part == IS_MISSING)
            found = IS_MISSING;
    }
    return found;
}

/* Compare a field with a constant, as the kernel's filters do. */
static enum verdict compare_field(const struct expr_node *node, const struct record *record)
{
    const struct number *constant = &node->number;
    struct number value;
    bool same;

    if (!read_number(&node->field, record, &value))
        return node->op == EXPR_UNEQUAL;
    switch (node->op) {
    case EXPR_LESS:
        return is_less(value, *constant);
    case EXPR_LESS_EQUAL:
        return !is_less(*constant, value);
    case EXPR_GREATER:
        return is_less(*constant, value);
    case EXPR_GREATER_EQUAL:
        return !is_less(value, *constant);
    case EXPR_HAS_BITS:
        return (value.high & constant->high) != 0 || (value.low & constant->low) != 0;
    default:
        same = value.high == constant->high && value.low == constant->low;
        return same == (node->op == EXPR_EQUAL);
    }
}

enum verdict evaluate(const struct expr_node *nodes, uint32_t at, const struct record *record)
{
    const struct expr_node *node = &nodes[at];
    struct number value;
    const uint8_t *text;
    uint32_t length;
    enum verdict part;
    bool same;

    switch (node->op) {
    case EXPR_ALL:
    case EXPR_ANY:
        return combine(nodes, node, record);
    case EXPR_NOT:
        part = evaluate(nodes, node->first, record);
        return part == IS_MISSING ? IS_MISSING : part == FAILS ? PASSES : FAILS;
    case EXPR_TRUE:
    case EXPR_FALSE:
        return node->op == EXPR_TRUE;
    case EXPR_TEXT_EQUAL:
    case EXPR_TEXT_UNEQUAL:
        same = find_text(&node->field, record, &text, &length) && length == node->length
            && (length == 0 || memcmp(text, node->text, length) == 0);
        return same == (node->op == EXPR_TEXT_EQUAL);
    case EXPR_MATCHES:
    case EXPR_MATCHES_NOT:
        if (!find_text(&node->field, record, &text, &length))
            return FAILS;
        same = matches_glob(node->text, node->length, text, length);
        return same == (node->op == EXPR_MATCHES);
    }
    if (node->op >= EXPR_FIELD)
        return compute(nodes, at, record, &value) ? value.low != 0 || value.high != 0 : IS_MISSING;
    if (node->op >= EXPR_IS_LESS)
        return compare(nodes, node, record);
    return compare_field(node, record);
}

static inline bool divide(const struct expr_node *node, struct number *out, uint64_t divisor)
{
    uint64_t a = out->low;
    bool quotient = node->op == EXPR_DIVIDE;

    if (divisor == 0)
        return false;
    if (node->is_unsigned)
        out->low = quotient ? a / divisor : a % divisor;
    else if (divisor == UINT64_MAX) /* the least number divided by -1 is a trap of the processor */
        out->low = quotient ? 0 - a : 0;
    else
        out->low = (uint64_t)(quotient ? (int64_t)a / (int64_t)divisor : (int64_t)a % (int64_t)divisor);
    return true;
}

static inline bool shift(const struct expr_node *node, struct number *out, struct number bits)
{
    uint64_t a = out->low;

    if (bits.high != 0 || bits.low > 63)
        return false;
    if (node->op == EXPR_SHIFT_LEFT)
        out->low = a << bits.low;
    else
        out->low = node->is_unsigned || (int64_t)a >= 0 ? a >> bits.low : ~(~a >> bits.low);
    return true;
}

/* Let a binary operator change `out`; false where C does not define the result. */
static inline bool operate(const struct expr_node *node, struct number *out, struct number right)
{
    uint64_t b = right.low;

    switch (node->op) {
    case EXPR_ADD:
        out->low += b;
        return true;
    case EXPR_SUBTRACT:
        out->low -= b;
        return true;
    case EXPR_MULTIPLY:
        out->low *= b;
        return true;
    case EXPR_AND_BITS:
        out->low &= b;
        return true;
    case EXPR_OR_BITS:
        out->low |= b;
        return true;
    case EXPR_XOR_BITS:
        out->low ^= b;
        return true;
    case EXPR_DIVIDE:
    case EXPR_REMAINDER:
        return divide(node, out, b);
    case EXPR_SHIFT_LEFT:
    case EXPR_SHIFT_RIGHT:
        return shift(node, out, right);
    default:
        truncate_number(out, node->is_unsigned);
        truncate_number(&right, node->is_unsigned);
        if (is_less(*out, right) != (node->op == EXPR_SMALLER))
            out->low = b;
        return true;
    }
}

/* Compute an operand; a field, which most are, without a call. */
static inline bool operand(
    const struct expr_node *nodes, uint32_t at, const struct record *record, struct number *out)
{
    if (nodes[at].op == EXPR_FIELD)
        return read_number(&nodes[at].field, record, out);
    return compute(nodes, at, record, out);
}

bool compute(const struct expr_node *nodes, uint32_t at, const struct record *record, struct number *out)
{
    const struct expr_node *node = &nodes[at];
    struct number right;
    enum verdict met;

    if (node->op < EXPR_FIELD) {
        met = evaluate(nodes, at, record);
        *out = (struct number){0, met};
        return met != IS_MISSING;
    }
    switch (node->op) {
    case EXPR_FIELD:
        return read_number(&node->field, record, out);
    case EXPR_CONSTANT:
        *out = node->number;
        return true;
    case EXPR_CHOOSE:
        met = evaluate(nodes, node->first, record);
        if (met == IS_MISSING || !compute(nodes, node->first + (met == PASSES ? 1 : 2), record, out))
            return false;
        break;
    case EXPR_NEGATE:
    case EXPR_INVERT:
        if (!operand(nodes, node->first, record, out))
            return false;
        out->low = node->op == EXPR_NEGATE ? 0 - out->low : ~out->low;
        break;
    default:
        if (!operand(nodes, node->first, record, out) || !operand(nodes, node->first + 1, record, &right)
            || !operate(node, out, right))
            return false;
    }
    truncate_number(out, node->is_unsigned);
    return true;
}
