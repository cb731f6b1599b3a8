/* Conditions on records (expr.c). Computed values are `compute` of record.h. */
#ifndef ENGINE_EXPR_H
#define ENGINE_EXPR_H

#include "record.h"

enum verdict { FAILS, PASSES, IS_MISSING };

/* Whether a record meets the condition at this node. */
enum verdict evaluate(const struct expr_node *nodes, uint32_t at, const struct record *record);

/* Whether a text matches a pattern of the kernel's filters (glob.c). */
bool matches_glob(const uint8_t *glob, uint32_t glob_length, const uint8_t *text, uint32_t length);

/* Whether a record passes a filter, which may be NO_NODE. */
static inline bool passes(const struct expr_node *nodes, int32_t filter, const struct record *record)
{
    return filter < 0 || evaluate(nodes, (uint32_t)filter, record) == PASSES;
}

#endif
