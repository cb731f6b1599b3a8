"""Filters and expressions: checked against the fields of an event, and as conditions that can be evaluated.

Comparisons mean what they mean in kernel/trace/trace_events_filter.c, with the patterns of lib/glob.c, but
numbers are not truncated: the agent's fields have been read by their types.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.grammar.fetch import FetchArg
from kprobe_exporter.grammar.formula import DURATION, Comparison, Name, Node, Number, Operation, Text
from kprobe_exporter.grammar.lexis import LONG_MAX
from kprobe_exporter.model.condition import SHIFTS, Condition, Pattern

Value: TypeAlias = int | float | bytes | None
Matcher: TypeAlias = Callable[[bytes], bool]


class FieldType(NamedTuple):
    """How the kernel compares a field.

    ``int`` is an integer of ``size`` bytes: 1, 2, 4 or 8. ``string`` has any length (``__data_loc char[]``).
    ``chars`` is an array of ``size`` bytes, ended by a NUL if there is room. ``cpu`` is the generic field
    ``cpu``. ``float`` is a time that the agent measures, in seconds. ``other`` cannot be compared, as an
    array of numbers. ``computed`` is a number that the agent computes.
    """

    kind: Literal["int", "string", "chars", "cpu", "float", "other", "computed"]
    size: int = 8
    signed: bool = False

    @property
    def is_string(self) -> bool:
        """Whether the field is a string by is_string_field() of kernel/trace/trace.h."""
        return self.kind in ("string", "chars")


STRING = FieldType("string")
FLOAT = FieldType("float")
OTHER = FieldType("other")
COMPUTED = FieldType("computed")
COMM = FieldType("chars", 16)
CPU = FieldType("cpu", 4, signed=True)

COMMON_FIELDS: Mapping[str, FieldType] = {
    "common_type": FieldType("int", 2),
    "common_flags": FieldType("int", 1),
    "common_preempt_count": FieldType("int", 1),
    "common_pid": FieldType("int", 4, signed=True),
    **dict.fromkeys(("CPU", "cpu", "common_cpu"), CPU),
    **dict.fromkeys(("COMM", "comm"), COMM),
}
"""Fields of every event; an event's own field of the same name hides one (kernel/trace/trace_events.c)."""


def field_type(arg: FetchArg) -> FieldType:
    """Return how the kernel compares the field of a probe's argument."""
    if arg.count:
        return OTHER
    if arg.value_kind == "str":
        return STRING
    return FieldType("int", arg.size, arg.signed)


def wrong_time(part: Comparison, known: FieldType | None) -> str:
    """Return why a field cannot be compared with a time such as ``10ms``, "" if it can, or is not."""
    if not part.time or part.name == DURATION or known in (FLOAT, COMPUTED):
        return ""
    return f"{part.name!r} is not a time, only {DURATION!r} is"


def wrong_comparison(part: Comparison, known: FieldType) -> str:
    """Return why the kernel refuses to compare a field of this type so, "" if it does not."""
    name, value = part.name, part.value
    if known.kind == "other":
        return f"{name!r} is an array, it cannot be compared"
    if isinstance(value, str):
        return "" if known.is_string else f"{name!r} is a number, take the quotes away"
    if known.is_string:
        return f"{name!r} is a string, put {part.written or value} in quotes"
    return _number_problem(part, value, known)


def _number_problem(part: Comparison, value: int | float, known: FieldType) -> str:
    """The kernel parses 64 bits with the field's signedness, then truncates them to the field's size."""
    if known.kind == "float":
        return f"{part.name!r} is not a whole number, it has no bits" if part.operator == "&" else ""
    if isinstance(value, float):
        return f"{part.name!r} is a whole number, compare it with one"
    if known.kind == "computed":
        return ""
    if known.signed and value > LONG_MAX:
        return f"{part.name!r} is signed, {part.written} is over its greatest value {LONG_MAX}"
    if not known.signed and str(part.written or value).startswith("-"):  # kstrtoull() refuses -0 too
        return f"{part.name!r} is unsigned, give it a signed type or compare it with no less than 0"
    return ""


def wrong_types(tree: Node, types: Mapping[str, FieldType | None]) -> Iterator[tuple[int, str]]:
    """Yield the mistakes that the types of the fields show: the column, and a sentence.

    The type of a field that is not in ``types``, or None there, is unknown.
    """
    match tree:
        case Comparison():
            yield from _wrong_comparison(tree, types.get(tree.name))
        case Text():
            yield tree.column, 'a string can only be compared, as in FIELD == "text"'
        case Number(is_whole=False):
            yield (
                tree.column,
                f"{tree.written} is not a whole number: only 'duration' is compared with a fraction",
            )
        case Name(name=name) if known := types.get(name):
            if known.is_string:
                yield tree.column, f"{name!r} is a string, which can only be compared with one in quotes"
            elif known.kind == "other":
                yield tree.column, f"{name!r} is an array, it cannot be computed with"
        case Operation("/" | "%", (_, Number(value=0) as literal)):
            yield literal.column, "this divides by zero"
        case Operation(sign, (_, Number() as literal)) if sign in SHIFTS and not 0 <= literal.value <= 63:
            yield literal.column, f"64 bits are shifted by 0 to 63, not by {literal.written}"
    for part in tree.parts:
        yield from wrong_types(part, types)


def _wrong_comparison(compared: Comparison, known: FieldType | None) -> Iterator[tuple[int, str]]:
    if why := wrong_time(compared, known):
        yield compared.value_column, why
    elif known and not (known is COMPUTED and compared.time) and (why := wrong_comparison(compared, known)):
        yield compared.column, why


def as_condition(tree: Node) -> Condition:
    """Return an expression as a condition; see ``in_nanoseconds`` for its durations."""
    match tree:
        case Operation("&&" | "||" as sign, operands):
            return ("all" if sign == "&&" else "any"), tuple(map(as_condition, operands))
        case Operation("!", (operand,)):
            return "not", as_condition(operand)
        case Comparison():
            return _compared(tree)
    return as_number(tree)


def as_number(tree: Node) -> Condition:
    """Return an expression as a value that is computed."""
    if isinstance(tree, Comparison) and tree.operator == "&" and not isinstance(tree.value, str):
        tree = Operation("&", (Name(tree.name), tree.literal))
    match tree:
        case Name(name=name):
            return "field", name
        case Number(value=value, time=time):
            return "constant", int(Decimal(str(value)).scaleb(9)) if time else int(value)
        case Operation("-" | "~" as sign, (operand,)):
            return "unary", sign, as_number(operand)
        case Operation("?:", (test, yes, no)):
            return "if", as_condition(test), as_number(yes), as_number(no)
        case Operation(sign, (left, right)) if sign not in ("&&", "||"):
            return "binary", sign, as_number(left), as_number(right)
    return as_condition(tree)


def in_nanoseconds(part: Comparison, times: Collection[str] = (DURATION,)) -> Comparison:
    """Return a comparison of one of ``times`` in nanoseconds, the unit of records, instead of seconds."""
    if part.name not in times or part.operator == "&" or isinstance(part.value, str):  # bits have no unit
        return part
    # Decimal keeps what is written: 1.1e-6 s is 1100 ns, which a product of floats may miss by a bit.
    return replace(part, value=float(Decimal(str(part.value)).scaleb(9)))


def _compared(part: Comparison) -> Condition:
    """Return a comparison of a field with a literal."""
    value = part.value
    if isinstance(value, str):
        if part.operator == "~":
            return "match", part.name, pattern(value)
        return "text", part.name, part.operator, value.encode()
    return "number", part.name, part.operator, value


def pattern(text: str) -> Pattern:
    """Return the pattern of a comparison with ``~``."""
    glob = text.encode()
    negated = glob.startswith(b"!")
    glob = glob[negated:]
    if _is_literal(glob):
        glob = re.sub(rb"([*?\[\\])", rb"\\\1", glob)
    return Pattern(glob, negated, matcher(text, True))


def matcher(pattern: str, is_pattern: bool) -> Matcher:
    """Return a function that matches a field's bytes against ``pattern``, literally unless ``is_pattern``.

    The bytes end before the value's NUL.
    """
    wanted = pattern.encode()
    if not is_pattern:
        return lambda value: value == wanted
    if not wanted.startswith(b"!"):
        return _pattern(wanted)
    matches = _pattern(wanted[1:])
    return lambda value: not matches(value)


def _pattern(wanted: bytes) -> Matcher:
    """The kernel has separate matchers for ``x``, ``x*``, ``*x`` and ``*x*``, with their own edge cases.

    A pattern that begins with a digit is taken literally, including its stars (MATCH_INDEX).
    """
    stars = wanted.count(b"*")
    if _is_literal(wanted):
        return lambda value: value == wanted
    leading, trailing = wanted.startswith(b"*"), len(wanted) > 1 and wanted.endswith(b"*")
    if re.search(rb"[?\[\\]", wanted) or stars > leading + trailing:
        whole = re.compile(_glob(wanted), re.DOTALL)
        return lambda value: whole.fullmatch(value) is not None
    text = wanted.strip(b"*")
    if leading and trailing:
        return lambda value: text in value
    if trailing:
        return lambda value: value.startswith(text)
    return lambda value: value.endswith(text)


def _is_literal(wanted: bytes) -> bool:
    return wanted[:1].isdigit() or not re.search(rb"[*?\[\\]", wanted)


def _glob(pattern: bytes) -> bytes:
    """Return a regular expression that matches like glob_match() of lib/glob.c.

    In kernels before 6.12, ``[!x]`` also matches the end of the string.

    Each star is followed by the first match of the text up to the next star, without backtracking. This
    bounds the time as in the kernel.
    """
    segments, at = [b""], 0
    while at < len(pattern):
        char, at = pattern[at : at + 1], at + 1
        if char == b"*":
            segments.append(b"")
            continue
        if char == b"?":
            token = b"."
        elif char == b"[":
            token, at = _class(pattern, at)
        elif char == b"\\":
            if at == len(pattern):  # it escapes the NUL, so the pattern ends here
                break
            token, at = re.escape(pattern[at : at + 1]), at + 1
        else:
            token = re.escape(char)
        segments[-1] += token
    head, *middle = segments
    if not middle:
        return head
    last = middle.pop()
    return head + b"".join(b"(?>.*?" + part + b")" for part in middle) + b".*" + last


_RANGE = rb"(?>(?:-[^\]])?)"
_CLASS = re.compile(rb"(!?+)(." + _RANGE + rb"(?>(?:[^\]]" + _RANGE + rb")*))\]", re.DOTALL)


def _class(pattern: bytes, start: int) -> tuple[bytes, int]:
    """Return the class after ``[`` and the position after it. An unclosed class is a plain ``[``."""
    found = _CLASS.match(pattern, start)
    if found is None:
        return rb"\[", start
    ranges = re.findall(rb"(.)(?:-(.))?", found[2], re.DOTALL)
    allowed = {byte for low, high in ranges for byte in range(low[0], (high or low)[0] + 1)}
    members = b"".join(b"\\x%02x" % byte for byte in sorted(allowed))
    if not members:  # a reversed range is empty
        return (b"." if found[1] else b"(?!)"), found.end()
    return b"[" + b"^" * len(found[1]) + members + b"]", found.end()
