"""Parser of a tracepoint's ``format`` file: its fields, and the pattern of the text that it prints."""

import re
import sys
from collections.abc import Collection, Iterator
from typing import NamedTuple

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.model.values import Arg

FIELD = re.compile(
    r"^[ \t]*+field:(?P<type>[^;\n]{0,200}?)(?P<name>[A-Za-z_]\w{0,99})(?P<array>\[[^\]\n]{0,99}\])?;"
    r"[ \t]*+offset:(?P<offset>\d{1,9});[ \t]*+size:(?P<size>\d{1,9});(?:[ \t]*+signed:(?P<signed>[01]);)?",
    re.MULTILINE,
)
ID = re.compile(r"^ID: (\d{1,9})$", re.MULTILINE)
PRINT = re.compile(r'^print fmt: "(?P<text>(?>(?:[^"\\]|\\.)*))"(?P<rest>.*)$', re.MULTILINE)
CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?(?:hh?|ll?|[zjtL])?"
    r"(?P<kind>p\w*|[a-zA-Z%])"
)
CAST = re.compile(r"^\((?:unsigned |signed |const )*(?:long|int|short|char|u\d\d?|s\d\d?|size_t)[ *\w]*\)")
TOKEN = re.compile(r'"(?>(?:[^"\\]|\\.)*)(?:"|\\?$)|\\.|[(){}\[\],]')
FIELD_USE = re.compile(r"^(?:REC->|__get_str\()([A-Za-z_]\w*)\)?$")

LONGEST_USE = 300  # characters of a print fmt argument that may be a field with casts and parentheses
ESCAPES = {"n": "\n", "t": "\t"}
ANYTHING = rb"[^\n]*?"
PADDING = rb" {0,32}"
NUMBER = {**dict.fromkeys("diu", rb"-?\d{1,20}"), **dict.fromkeys("xX", rb"(?:0x)?[0-9a-fA-F]{1,16}")}
"""The pattern of a printed number, by conversion. One bounded run of digits bounds the matching time."""

REGISTER = 8
ARGUMENT_TYPES = {
    **dict.fromkeys(("long", "off_t", "loff_t"), (8, True)),
    **dict.fromkeys(("int", "pid_t", "key_t", "key_serial_t", "clockid_t", "timer_t"), (4, True)),
    **dict.fromkeys(("mqd_t", "rwf_t", "s32", "__s32"), (4, True)),
    **dict.fromkeys(("unsigned int", "unsigned", "uid_t", "gid_t", "qid_t", "u32", "__u32"), (4, False)),
    "enum landlock_rule_type": (4, False),
    **dict.fromkeys(("umode_t", "old_uid_t", "old_gid_t"), (2, False)),
}
"""C types of a system call's arguments: bytes, and whether they are signed. The event holds each argument's
whole register and calls it unsigned (kernel/trace/trace_syscalls.c); programs set only the type's bytes."""


class FormatField(NamedTuple):
    """One field of an event's record. ``offset`` and ``size`` are in bytes; ``text`` marks a string in it.

    ``length`` is the length of an array; 0 if the field is not an array or if each record holds the length.
    ``retyped``: it is read by its C type, of which the kernel's filters and tables know nothing.
    """

    name: str
    type: str
    offset: int
    size: int
    signed: bool
    text: bool
    array: bool
    length: int = 0
    retyped: bool = False

    @property
    def unsigned(self) -> int:
        """The width in bits of an unsigned number, 0 for another field."""
        return 0 if self.signed or self.text or self.array else self.size * 8

    @property
    def fetch_type(self) -> str | None:
        """The kernel's fetch type that reads this field on an eprobe; None if there is none."""
        if self.text:
            return "string"
        if self.array or self.size not in (1, 2, 4, 8):
            return None
        return f"{'s' if self.signed else 'u'}{self.size * 8}"


class EventFormat(NamedTuple):
    """The content of ``events/SYSTEM/EVENT/format``; ``common`` holds the fields that all events have."""

    name: str
    id: int
    common: dict[str, FormatField]
    fields: dict[str, FormatField]
    print_text: str
    print_args: tuple[str, ...]


def parse_format(text: str) -> EventFormat:
    """Parse a ``format`` file (kernel/trace/trace_events.c, f_show). Raises GrammarError for other text."""
    name = re.match(r"name: (\S+)", text)
    if name is None:
        raise GrammarError("this is not an event's format: it does not start with 'name:'", text)
    number = ID.search(text)
    common: dict[str, FormatField] = {}
    fields: dict[str, FormatField] = {}
    for found in FIELD.finditer(text):
        kind, array = found["type"].strip(), found["array"] is not None or "[" in found["type"]
        kept = common if found["name"].startswith("common_") else fields
        offset, size = int(found["offset"]), int(found["size"])
        is_text = array and re.search(r"\bchar\b", kind) is not None and "unsigned" not in kind
        sized = re.search(r"\[(\d{1,9})\]$", found["array"] or kind)
        length = int(sized[1]) if sized else 0
        field = FormatField(found["name"], kind, offset, size, found["signed"] == "1", is_text, array, length)
        declared = ARGUMENT_TYPES.get(kind.removeprefix("const "))
        if declared and size == REGISTER and name[1].startswith("sys_enter_"):
            field = read_as(field, *declared)
        kept[field.name] = field
    printed = PRINT.search(text)
    shown, rest = printed.groups() if printed else ("", "")
    shown = re.sub(r"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]), shown)
    return EventFormat(name[1], int(number[1]) if number else 0, common, fields, shown, tuple(_split(rest)))


def read_as(field: FormatField, size: int, signed: bool) -> FormatField:
    """Return a number's field as read by a C type of ``size`` bytes, which are at most the field's own."""
    offset = field.offset + (0 if sys.byteorder == "little" else field.size - size)
    return field._replace(offset=offset, size=size, signed=signed, retyped=True)


def text_pattern(form: EventFormat, wanted: Collection[str]) -> tuple[bytes, tuple[Arg, ...]]:
    """Return a regular expression for the event's text after its name, and the arguments of its groups.

    Raises GrammarError for a wanted field whose plain value the text does not show: decoded flags, hashed
    pointers, arrays.
    """
    for name in wanted:
        if name not in form.fields:
            raise GrammarError(f"the tracepoint {form.name} has no field '{name}'", name)
    pattern: bytes = ANYTHING
    args: list[Arg] = []
    if form.name.startswith("sys_enter_"):
        # Linux 7.2 prints openat its own way: flags as words, mode only if it is used, and decimal numbers.
        if not any("__print_flags" in one for one in form.print_args):
            pattern, args = _call_pattern(form, wanted)
    elif form.name.startswith("sys_exit_") and "ret" in form.fields:
        if "ret" in wanted:
            pattern, args = b"(" + NUMBER["x"] + b")", [_arg(form.fields["ret"], "x")]
    elif wanted:
        pattern, args = _print_pattern(form, wanted)
    missing = sorted(set(wanted) - {arg.name for arg in args})
    if missing:
        lacks = f"the text of the tracepoint {form.name} does not show the field '{missing[0]}'"
        raise GrammarError(f"{lacks} as a plain number or string", missing[0])
    return pattern, tuple(args)


def _call_pattern(form: EventFormat, wanted: Collection[str]) -> tuple[bytes, list[Arg]]:
    """A system call's entry prints every argument in hexadecimal, regardless of its print fmt.

    Newer kernels print the string behind a pointer, in quotes after it. Any process can choose this string.
    """
    # __syscall_nr is not printed. The strings that newer kernels copy are separate fields, also with __.
    shown = [field for field in form.fields.values() if not field.name.startswith("__")]
    end = "|".join(f", {field.name}: " for field in shown[1:]).encode() or b"$."
    quoted = rb'(?>(?: "[^"\n]*+(?>(?:"(?!' + end + rb'|\)\n)[^"\n]*+)*)")?)'
    parts = []
    for field in shown:
        number = NUMBER["x"]
        value = b"(" + number + b")" if field.name in wanted else number
        parts.append(field.name.encode() + b": " + value + (quoted if "*" in field.type else b""))
    args = [_arg(field, "x") for field in shown if field.name in wanted]
    return _or_unread(b", ".join(parts) + rb"\)"), args


class _Part(NamedTuple):
    """One conversion of a print fmt: the text before it, its pattern (None for any text), its argument."""

    before: bytes
    pattern: bytes | None
    arg: Arg | None


def _print_pattern(form: EventFormat, wanted: Collection[str]) -> tuple[bytes, list[Arg]]:
    """Return the pattern of a print fmt. A string can hold any text: it ends where the text after it begins.

    If the text between two strings occurs more than once, the line is left unparsed rather than guessed.
    """
    parts, follows = _parts(form, wanted)
    pattern, strings = follows, 0
    for part in reversed(parts):
        value = part.pattern or ANYTHING
        if part.pattern is None and strings:
            value = rb"(?>(?:(?!" + follows + rb")[^\n])*)(?![^\n]+?" + follows + b")"
        pattern = part.before + (b"(" + value + b")" if part.arg else value) + pattern
        if part.pattern is None:
            follows, strings = part.before, strings + 1
        else:
            follows = part.before + value + follows
    return _or_unread(pattern) if strings > 1 else pattern, [part.arg for part in parts if part.arg]


def _parts(form: EventFormat, wanted: Collection[str]) -> tuple[list[_Part], bytes]:
    """Return the conversions of a print fmt, and the pattern of the text after the last one."""
    parts: list[_Part] = []
    seen: set[str] = set()
    before, at = b"", 0
    values = iter(form.print_args)
    for found in CONVERSION.finditer(form.print_text):
        before += re.escape(form.print_text[at : found.start()].encode())
        at = found.end()
        kind = found["kind"]
        if kind == "%":
            before += b"%"
            continue
        for extra in ("width", "precision"):
            if found[extra] == "*":
                next(values, "")
        field = _plain_field(form, next(values, ""))
        arg = None
        if field is not None and field.name in wanted and field.name not in seen:
            arg = _shown(field, kind)
        pattern = NUMBER.get(kind)
        padding = PADDING if pattern and found["width"] else b""
        if pattern is None and not before and parts and parts[-1].pattern is None:
            arg, before = None, parts.pop().before  # adjacent strings cannot be told apart
        parts.append(_Part(before + padding, pattern, arg))
        before = padding
        seen |= {arg.name} if arg else set()
    return parts, before + re.escape(form.print_text[at:].encode())


def _shown(field: FormatField, kind: str) -> Arg | None:
    """Return the argument of a field, or None if the conversion does not print the field's plain value."""
    if kind == "s":
        return Arg(field.name, "bare") if field.text else None
    return _arg(field, kind) if kind in NUMBER and not field.array else None


def _or_unread(certain: bytes) -> bytes:
    return b"(?:" + certain + rb"|[^\n]*+)"


def _arg(field: FormatField, kind: str) -> Arg:
    if kind in "xX":
        bits = field.size * 8
        return Arg(field.name, "hex", bits if field.signed else -bits if field.retyped else 0)
    return Arg(field.name, "int")


def _plain_field(form: EventFormat, expression: str) -> FormatField | None:
    """Return the field that an argument of the print fmt consists of; None for any other expression."""
    text = expression.strip()
    while len(text) <= LONGEST_USE:
        inner = CAST.sub("", text).strip()
        if inner.startswith("(") and inner.endswith(")") and _balanced(inner[1:-1]):
            inner = inner[1:-1].strip()
        if inner == text:
            found = FIELD_USE.match(text)
            return form.fields.get(found[1]) if found else None
        text = inner
    return None


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def _split(text: str) -> Iterator[str]:
    """Yield the arguments after the print fmt's string, split at the commas outside brackets and strings."""
    depth, start = 0, None
    for found in TOKEN.finditer(text):
        depth += (found[0] in "({[") - (found[0] in ")}]")
        if found[0] == "," and depth == 0:
            if start is not None:
                yield text[start : found.start()]
            start = found.end()
    if start is not None:
        yield text[start:]
