"""Evaluates conditions and computed values on records, as aggregate/interpret.py does in Python.

A condition is a tree of nodes in one array, the operands of a node beside each other. The parser of
expressions bounds how deep it is.
"""

cdef enum:  # the first give NO, YES or MISSING, those from FIELD on a number of 64 bits
    ALL, ANY, NOT, TRUE, FALSE, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, EQUAL, UNEQUAL, HAS_BITS
    TEXT_EQUAL, TEXT_UNEQUAL
    IS_LESS, IS_LESS_EQUAL, IS_GREATER, IS_GREATER_EQUAL, IS_EQUAL, IS_UNEQUAL
    FIELD, CONSTANT, NEGATE, INVERT, CHOOSE
    ADD, SUBTRACT, MULTIPLY, DIVIDE, REMAINDER, AND_BITS, OR_BITS, XOR_BITS, SHIFT_LEFT, SHIFT_RIGHT
    SMALLER, LARGER

cdef enum:
    NO, YES, MISSING

cdef struct Node:
    uint8_t op
    bint is_unsigned
    uint32_t first
    uint32_t count
    Place field
    Num number
    uint8_t* text
    uint32_t length


cdef int _meets(const Node* nodes, uint32_t number, const Rec* rec) noexcept nogil:
    """Whether a record meets a condition: YES, NO or MISSING."""
    cdef const Node* node = &nodes[number]
    cdef Num value
    cdef const uint8_t* text
    cdef uint32_t i, length
    cdef int part, found
    cdef bint same
    if node.op == ALL or node.op == ANY:
        found = YES if node.op == ALL else NO
        for i in range(node.count):
            part = _meets(nodes, node.first + i, rec)
            if part == MISSING:
                found = MISSING
            elif part == (node.op == ANY):
                return part
        return found
    if node.op == NOT:
        part = _meets(nodes, node.first, rec)
        return MISSING if part == MISSING else not part
    if node.op == TRUE or node.op == FALSE:
        return node.op == TRUE
    if node.op == TEXT_EQUAL or node.op == TEXT_UNEQUAL:
        same = (
            _text(&node.field, rec, &text, &length)
            and length == node.length
            and memcmp(text, node.text, length) == 0
        )
        return same == (node.op == TEXT_EQUAL)
    if node.op >= FIELD:
        return MISSING if not _compute(nodes, number, rec, &value) else value.lo != 0 or value.hi != 0
    if node.op >= IS_LESS:
        return _compare(nodes, node, rec)
    if not _number(&node.field, rec, &value):
        return node.op == UNEQUAL
    if node.op == LESS:
        return _less(value, node.number)
    if node.op == LESS_EQUAL:
        return not _less(node.number, value)
    if node.op == GREATER:
        return _less(node.number, value)
    if node.op == GREATER_EQUAL:
        return not _less(value, node.number)
    if node.op == HAS_BITS:
        return (value.hi & node.number.hi) != 0 or (value.lo & node.number.lo) != 0
    same = value.hi == node.number.hi and value.lo == node.number.lo
    return same == (node.op == EQUAL)


cdef inline int _compare(const Node* nodes, const Node* node, const Rec* rec) noexcept nogil:
    """Compare two computed values, as unsigned ones if one is."""
    cdef Num left, right
    if not _compute(nodes, node.first, rec, &left) or not _compute(nodes, node.first + 1, rec, &right):
        return MISSING
    if node.op == IS_EQUAL:
        return left.lo == right.lo
    if node.op == IS_UNEQUAL:
        return left.lo != right.lo
    _convert(&left, node.is_unsigned)
    _convert(&right, node.is_unsigned)
    if node.op == IS_LESS:
        return _less(left, right)
    if node.op == IS_LESS_EQUAL:
        return not _less(right, left)
    if node.op == IS_GREATER:
        return _less(right, left)
    return not _less(left, right)


cdef inline void _convert(Num* value, bint is_unsigned) noexcept nogil:
    """Convert a number to 64 bits, which keeps the lowest ones."""
    value.hi = -1 if not is_unsigned and <int64_t>value.lo < 0 else 0


cdef bint _compute(const Node* nodes, uint32_t number, const Rec* rec, Num* out) noexcept nogil:
    """Compute a value; False if it is missing."""
    cdef const Node* node = &nodes[number]
    cdef Num right
    cdef int met
    if node.op == FIELD:
        return _number(&node.field, rec, out)
    if node.op == CONSTANT:
        out[0] = node.number
        return True
    if node.op < FIELD:
        met = _meets(nodes, number, rec)
        out.hi, out.lo = 0, met
        return met != MISSING
    if node.op == CHOOSE:
        met = _meets(nodes, node.first, rec)
        if met == MISSING or not _compute(nodes, node.first + (1 if met == YES else 2), rec, out):
            return False
        _convert(out, node.is_unsigned)
        return True
    if not _operand(nodes, node.first, rec, out):
        return False
    if node.op == NEGATE:
        out.lo = 0 - out.lo
    elif node.op == INVERT:
        out.lo = ~out.lo
    elif not _operand(nodes, node.first + 1, rec, &right) or not _operate(node, out, &right):
        return False
    _convert(out, node.is_unsigned)
    return True


cdef inline bint _operand(const Node* nodes, uint32_t number, const Rec* rec, Num* out) noexcept nogil:
    """Compute an operand; a field, which most are, without a call."""
    if nodes[number].op == FIELD:
        return _number(&nodes[number].field, rec, out)
    return _compute(nodes, number, rec, out)


cdef inline bint _operate(const Node* node, Num* out, Num* right) noexcept nogil:
    """Let a binary operator of C change ``out``; False where C does not define the result."""
    cdef uint64_t a = out.lo, b = right.lo
    cdef bint left_less
    if node.op == ADD:
        out.lo = a + b
    elif node.op == SUBTRACT:
        out.lo = a - b
    elif node.op == MULTIPLY:
        out.lo = a * b
    elif node.op == AND_BITS:
        out.lo = a & b
    elif node.op == OR_BITS:
        out.lo = a | b
    elif node.op == XOR_BITS:
        out.lo = a ^ b
    elif node.op == DIVIDE or node.op == REMAINDER:
        if b == 0:
            return False
        if node.is_unsigned:
            out.lo = a // b if node.op == DIVIDE else a % b
        elif b == <uint64_t>0 - 1:  # the least number divided by -1 is a trap of the processor
            out.lo = 0 - a if node.op == DIVIDE else 0
        elif node.op == DIVIDE:
            out.lo = <uint64_t>(<int64_t>a // <int64_t>b)
        else:
            out.lo = <uint64_t>(<int64_t>a % <int64_t>b)
    elif node.op == SHIFT_LEFT or node.op == SHIFT_RIGHT:
        if right.hi != 0 or b > 63:
            return False
        if node.op == SHIFT_LEFT:
            out.lo = a << b
        else:
            out.lo = a >> b if node.is_unsigned or <int64_t>a >= 0 else ~(~a >> b)
    else:
        _convert(out, node.is_unsigned)
        _convert(right, node.is_unsigned)
        left_less = _less(out[0], right[0])
        if left_less != (node.op == SMALLER):
            out.lo = b
    return True


cdef int _fill_node(Node* node, entry) except -1:
    """Fill in a node of a condition; ``entry`` is one of _add_nodes."""
    op, is_unsigned, first, count, field, value = entry
    cdef bytes text
    node.op, node.is_unsigned, node.first, node.count = op, is_unsigned, first, count
    if field is not None:
        _place_named(field[0], field[1], &node.field)
    if isinstance(value, bytes):
        text = value
        node.length = len(text)
        node.text = <uint8_t*>malloc(max(1, len(text)))
        if node.text == NULL:
            raise MemoryError
        memcpy(node.text, <const char*>text, len(text))
    elif value is not None:
        node.number = _num(value)
    return 0


_LITERAL = {
    "<": LESS, "<=": LESS_EQUAL, ">": GREATER, ">=": GREATER_EQUAL, "==": EQUAL, "!=": UNEQUAL, "&": HAS_BITS,
}
_UNARY = {"-": NEGATE, "~": INVERT}
_BINARY = {
    "<": IS_LESS, "<=": IS_LESS_EQUAL, ">": IS_GREATER, ">=": IS_GREATER_EQUAL, "==": IS_EQUAL, "!=": IS_UNEQUAL,
    "+": ADD, "-": SUBTRACT, "*": MULTIPLY, "/": DIVIDE, "%": REMAINDER, "&": AND_BITS, "|": OR_BITS,
    "^": XOR_BITS, "<<": SHIFT_LEFT, ">>": SHIFT_RIGHT, "min": SMALLER, "max": LARGER,
}


def _add_nodes(nodes, conditions, shape):
    """Append the nodes of conditions, and behind them their operands; return the number of the first."""
    first = len(nodes)
    nodes.extend([None] * len(conditions))
    unsigned = shape.layout.unsigned
    for number, condition in enumerate(conditions, first):
        sort, *rest = condition
        op, operands, field, value = NOT, (), None, None
        # C converts both operands of a comparison as those of a sum, and a shift's right one not at all.
        wide = is_unsigned(condition, unsigned)
        if sort in ("all", "any"):
            op, (operands,) = (ALL if sort == "all" else ANY), rest
        elif sort == "not":
            operands = rest
        elif sort == "text":
            name, operator, value = rest
            op, field = (TEXT_EQUAL if operator == "==" else TEXT_UNEQUAL), (shape, name)
        elif sort == "number":
            name, operator, literal = rest
            (op, value), field = _whole(_LITERAL[operator], literal), (shape, name)
        elif sort == "field":
            op, field = FIELD, (shape, rest[0])
        elif sort == "constant":
            op, value = CONSTANT, rest[0]
        elif sort == "if":
            op, operands = CHOOSE, rest
        elif sort == "unary":
            op, operands = _UNARY[rest[0]], rest[1:]
        else:
            op, operands = _BINARY[rest[0]], rest[1:]
            if op < FIELD:
                wide = any([is_unsigned(operand, unsigned) for operand in operands])
        start = _add_nodes(nodes, operands, shape) if operands else 0
        nodes[number] = (op, wide, start, len(operands), field, value)
    return first


def _whole(op, value):
    """Return a comparison of a whole number with a fraction as one with a whole number."""
    if op == HAS_BITS:
        return op, int(value)
    if isinstance(value, float):
        if not value.is_integer() and op in (EQUAL, UNEQUAL):
            return (FALSE if op == EQUAL else TRUE), None
        value = ceil(value) if op in (LESS, GREATER_EQUAL) else floor(value)
    return op, value
