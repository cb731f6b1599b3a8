"""Fetch arguments, ``NAME=EXPRESSION:TYPE[COUNT]``: their parser, and how their values are printed."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from kprobe_exporter.grammar.expression import ANYWHERE, MOST_STEPS, FetchSite, Need, Op, Scan, scan
from kprobe_exporter.grammar.lexis import NAME, closest, fail, kernel_number, part_of, refuse_forbidden
from kprobe_exporter.grammar.members import LONGEST_PATH, is_path, split_type

# Limits of kernel/trace/trace_probe.h.
LONGEST = 63  # bytes of an argument without its name: MAX_ARGSTR_LEN
LONGEST_NAME = 32  # MAX_ARG_NAME_LEN
LARGEST_ARRAY = 64  # MAX_ARRAY_LEN
MOST_ARGS = 128  # MAX_TRACE_ARGS; Linux 6.1 drops further arguments without an error
MOST_BYTES = 3072  # bytes of all values of one event: MAX_PROBE_EVENT_SIZE

RESERVED = frozenset(
    "common_type common_flags common_preempt_count common_pid common_tgid __probe_ip __probe_ret_ip"
    " __probe_func".split()
)
"""Fields that every event has: reserved_field_names of kernel/trace/trace_probe.c."""

ValueKind = Literal["int", "str", "bare", "char", "array"]
"""How a value is printed: a number, a string in quotes, text without quotes, ``'c'``, or ``{a,b}``."""


class _Type(NamedTuple):
    size: int
    signed: bool = False
    kind: Literal["int", "str", "bare", "char"] = "int"
    need: Need | None = None


INTEGERS = {f"{sign}{bits}": (bits // 8, sign == "s") for sign in "us" for bits in (8, 16, 32, 64)}
"""The types of plain numbers: bytes, and whether they are signed."""

_TYPES = {name: _Type(*read) for name, read in INTEGERS.items()}
_TYPES |= {f"x{bits}": _Type(bits // 8) for bits in (8, 16, 32, 64)}
_TYPES |= {
    "char": _Type(1, kind="char", need=Need.CHAR),
    "symbol": _Type(8, kind="bare"),
    # The record holds 4 bytes, which locate the string.
    **dict.fromkeys(("string", "ustring"), _Type(4, kind="str")),
    **dict.fromkeys(("%pd", "%pD"), _Type(4, kind="str", need=Need.DENTRY)),
    "symstr": _Type(4, kind="str", need=Need.SYMSTR),
}
_BITFIELD = re.compile(r"b(\w+)@(\w+)/(\w+)")


@dataclass(frozen=True, slots=True)
class FetchArg:
    """One argument of a probe, created by ``parse_fetch``.

    ``name`` is empty for ``$arg*``, which stands for several arguments, and for an argument outside a
    definition; ``dataclasses.replace`` can set another. ``type`` is None where the kernel chooses it: x64, or
    the type in BTF. ``count`` is the length of an array. ``warning`` describes what was translated.
    """

    name: str
    expression: str
    type: str | None = None
    count: int | None = None
    needs: frozenset[Need] = field(default=frozenset(), compare=False)
    warning: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.name:
            check_name(self.name)

    @property
    def is_path(self) -> bool:
        """Whether the expression leads into a structure, so that the agent has to resolve it from BTF."""
        return is_path(inner_path(self.expression)[1])

    @property
    def element_kind(self) -> Literal["int", "str", "bare", "char"]:
        """How the value, or each element of an array, is printed."""
        if self.type is None and (self.expression.lower() == "$comm" or self.is_text):
            return "str"
        return _properties(self.type).kind

    @property
    def value_kind(self) -> ValueKind:
        """How the whole value is printed."""
        return "array" if self.count else self.element_kind

    @property
    def is_text(self) -> bool:
        """Whether the expression is an immediate string."""
        return self.expression.startswith('\\"')

    @property
    def size(self) -> int:
        """Bytes of the value, or of one element, in the event's record."""
        return 4 if self.element_kind == "str" else _properties(self.type).size

    @property
    def signed(self) -> bool:
        """Whether the value is a signed number."""
        return _properties(self.type).signed

    @property
    def body(self) -> str:
        """The argument without its name."""
        kind = f":{self.type}" if self.type else ""
        count = f"[{self.count}]" if self.count else ""
        return f"{self.expression}{kind}{count}"

    def render(self) -> str:
        """The argument as the kernel takes it."""
        return f"{self.name}={self.body}" if self.name else self.body


def _properties(name: str | None) -> _Type:
    if name is None:
        return _TYPES["x64"]
    found = _BITFIELD.fullmatch(name)
    return _TYPES[f"u{kernel_number(found[3])}"] if found else _TYPES[name]


def check_name(name: str) -> None:
    """Refuse a name that the kernel does not accept for an argument."""
    if not NAME.fullmatch(name):
        fail(f"{name!r} is not an argument name, use letters, digits and _, with no digit first", name)
    if len(name) > LONGEST_NAME:
        fail(f"an argument's name can have {LONGEST_NAME} characters", name, LONGEST_NAME)
    if name in RESERVED:
        fail(f"every event has a field {name!r} of its own, take another name", name)


_READS = re.compile(r"(?:[+-]u?\w+\()*", re.ASCII)


def inner_path(expression: str) -> tuple[str, str, str]:
    """Split ``+8(x->y)`` into ``+8(``, ``x->y`` and ``)``: the memory reads around a value."""
    found = _READS.match(expression)
    before = found[0] if found else ""
    depth = before.count("(")
    if not expression.endswith(")" * depth):
        return "", expression, ""
    return before, expression[len(before) : len(expression) - depth], ")" * depth


def parse_fetch(text: str, site: FetchSite = ANYWHERE, *, name: str = "") -> FetchArg:
    """Parse an argument that is written without its name; raises GrammarError.

    ``site`` describes the probe's location. An expression that cannot be fetched there is refused.
    """
    is_long = is_path(inner_path(split_type(text)[0])[1])
    refuse_forbidden(text, LONGEST_PATH if is_long else LONGEST)
    if not text:
        fail("the argument is empty, write what to fetch, such as $arg1", text)
    if blank := re.search(r"\s", text):
        fail("an argument cannot have blanks in it", text, blank.start())
    expression, colon, suffix = split_type(text)
    with part_of(text, 0):
        scanned = scan(expression, site)
    with part_of(text, len(expression) + 1):
        type_name, count = _parse_type(suffix) if colon else (None, None)
    _check_type(scanned, type_name, count, site, text)
    needs = scanned.needs
    if type_name and (need := _properties(type_name).need):
        needs |= {need}
    return FetchArg(name, scanned.text, type_name, count, needs, scanned.warning)


def _parse_type(text: str) -> tuple[str, int | None]:
    name, bracket, rest = text.partition("[")
    if name not in _TYPES and not _is_bitfield(name):
        near = closest(name, _TYPES) or ", there are u8-u64, s8-s64, x8-x64, string and others"
        fail(f"{name!r} is not a type{near}", text)
    if not bracket:
        return name, None
    number, close, more = rest.partition("]")
    start = len(name) + 1
    if not close or more:
        fail("an array is written as TYPE[COUNT]", text, len(text) - len(more))
    count = kernel_number(number, 1, LARGEST_ARRAY)
    if count is None:
        fail(f"an array has 1 to {LARGEST_ARRAY} elements, not {number!r}", text, start)
    if name.startswith("%p"):
        fail(f"{name} cannot be an array", text, start)
    return name, count


def _is_bitfield(name: str) -> bool:
    found = _BITFIELD.fullmatch(name)
    if not found:
        return False
    width, offset, container = (kernel_number(number) for number in found.groups())
    if container not in (8, 16, 32, 64) or not width or offset is None or width + offset > container:
        fail("a bit field is bWIDTH@OFFSET/SIZE, within a SIZE of 8, 16, 32 or 64 bits", name)
    return True


_VALUES = frozenset({Op.REGISTER, Op.STACK, Op.STACK_POINTER, Op.RETURN, Op.ARGUMENT})
_SYMBOLIC = frozenset({Op.REGISTER, Op.STACK, Op.RETURN, Op.ARGUMENT, Op.PARAMETER, Op.FIELD, Op.MEMORY})


def _check_type(scanned: Scan, name: str | None, count: int | None, site: FetchSite, text: str) -> None:
    """Refuse what finalize_fetch_insn() and parse_probe_arg_type() of kernel/trace/trace_probe.c refuse.

    Linux 6.12 accepts ``$arg1:string`` where BTF says ``char *``. Older kernels do not, so it is refused too.
    """
    last, start = scanned.last, text.find(":") + 1
    if last is Op.ALL_ARGUMENTS and name:
        fail("$arg* takes no type, the kernel knows the types", text, start)
    if site.kind == "user" and name in ("symbol", "symstr"):
        fail(f"{name} is a type of kernel probes only", text, start)
    if last in (Op.COMM, Op.TEXT):
        if site.kind == "event" and not name:
            fail(f"on an event {scanned.text} is an address, write {scanned.text}:string", text)
        if count or name not in (None, "string"):
            fail(f"{scanned.text} is a string, it takes no other type", text, start)
    if name in ("string", "ustring") and last in _VALUES:
        read = "+u0" if name == "ustring" else "+0"
        fail(f"a {name} is read from an address, write {read}({scanned.text}):{name}", text, start)
    kept = Need.ENTRY_ARGUMENTS in scanned.needs and last is not Op.MEMORY
    if name == "symstr" and (kept or last not in _SYMBOLIC):
        fail("symstr does not go with this, take the type symbol", text, start)
    repeats = name in ("string", "ustring") or (last is Op.MEMORY and name != "symstr")
    if count and not repeats:
        fail("only memory can be an array, read it through +0(…)", text, start)
    _check_steps(scanned, name, count, text)


def _check_steps(scanned: Scan, name: str | None, count: int | None, text: str) -> None:
    """Refuse too many steps. Storing the value, taking its bits and repeating it are steps too.

    The kernel expands ``%pd`` to ``+0x0(+0x20(ARG)):string`` before it checks the length
    (traceprobe_expand_dentry_args()).
    """
    if name in ("%pd", "%pD"):
        longest = LONGEST - len("+0x0(+0x20()):string") - len("+0x40()") * (name == "%pD")
        if len(scanned.text) > longest:
            fail(f"with {name} an argument can have {longest} characters", text, longest)
        return
    is_string = name in ("string", "ustring")
    in_place = scanned.last in (Op.MEMORY, Op.USER_MEMORY) and name != "symstr" and not (is_string and count)
    steps = scanned.steps + (not in_place) + (count is not None) + (name or "").startswith("b")
    if steps > MOST_STEPS:
        fail("this reads memory through too many addresses", text)


class Word(NamedTuple):
    """One word of a line, with the column where it begins."""

    text: str
    column: int


def parse_arguments(
    words: list[Word], site: FetchSite, text: str
) -> tuple[tuple[FetchArg, ...], tuple[str, ...]]:
    """Return the arguments and the warnings about translated ones; raises GrammarError for ``text``."""
    args: list[FetchArg] = []
    warnings: list[str] = []
    for number, word in enumerate(words, 1):
        with part_of(text, word.column):
            if site.returns and word.text.rpartition("=")[2] == "ra":
                warnings.append("ra is ignored, each return shows its caller")
                continue
            arg = _parse_argument(word.text, number, site)
            args.append(arg)
            check_arguments(args)
        if arg.warning:
            warnings.append(arg.warning)
    return tuple(args), tuple(warnings)


def _parse_argument(word: str, number: int, site: FetchSite) -> FetchArg:
    name, equals, body = word.partition("=")
    if not equals:
        arg = parse_fetch(word, site)
        return arg if arg.expression == "$arg*" else replace(arg, name=_name(word.partition(":")[0], number))
    if not name:
        fail("the argument's name is missing before '='", word)
    check_name(name)
    with part_of(word, len(name) + 1):
        if body.startswith("$arg*"):
            fail("$arg* is many arguments, it takes no name", body)
        return parse_fetch(body, site, name=name)


def _name(written: str, number: int) -> str:
    """Name an unnamed argument as generate_probe_arg_name() of kernel/trace/trace_probe.c does."""
    own = NAME.fullmatch(written) and len(written) <= LONGEST_NAME and written not in RESERVED
    return written if own else f"arg{number}"


def check_arguments(args: Sequence[FetchArg]) -> None:
    """Raise GrammarError if one event cannot hold all these arguments."""
    if len(args) > MOST_ARGS:
        fail(f"a probe can have {MOST_ARGS} arguments", "")
    name, times = Counter(arg.name for arg in args).most_common(1)[0] if args else ("", 0)
    if times > 1:
        fail(f"two arguments are called {name or '$arg*'!r}, rename one", name)
    if sum(arg.size * (arg.count or 1) for arg in args) > MOST_BYTES:
        fail(f"the arguments together take more than {MOST_BYTES} bytes, shorten an array", "")
