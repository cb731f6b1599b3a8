"""A tracepoint's ``format`` file, parsed: its fields, and the pattern of the text that it prints."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.model import Arg

FIELD = re.compile(
    r"^\s*field:(?P<type>.*?)(?P<name>[A-Za-z_]\w*)(?P<array>\[[^\]]*\])?;"
    r"\s*offset:(?P<offset>\d+);\s*size:(?P<size>\d+);(?:\s*signed:(?P<signed>[01]);)?",
    re.MULTILINE,
)
PRINT = re.compile(r'^print fmt: "(?P<text>(?:[^"\\]|\\.)*)"(?P<rest>.*)$', re.MULTILINE)
CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?(?:hh?|ll?|[zjtL])?"
    r"(?P<kind>p\w*|[a-zA-Z%])"
)
CAST = re.compile(
    r"^\((?:unsigned |signed |const )*(?:long|int|short|char|u\d\d?|s\d\d?|size_t)[ *\w]*\)"
)
FIELD_USE = re.compile(r"^(?:REC->|__get_str\()([A-Za-z_]\w*)\)?$")

ESCAPES = {"n": "\n", "t": "\t"}
ANYTHING = rb"[^\n]*?"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an event's record. ``size`` in bytes; ``text`` for a string held in the record."""

    name: str
    type: str
    size: int
    signed: bool
    text: bool
    array: bool

    @property
    def fetch_type(self) -> str | None:
        """The kernel's fetch type that reads this field on an eprobe; None if there is none."""
        if self.text:
            return "string"
        if self.array or self.size not in (1, 2, 4, 8):
            return None
        return f"{'s' if self.signed else 'u'}{self.size * 8}"


@dataclass(frozen=True, slots=True)
class EventFormat:
    """What ``events/SYSTEM/EVENT/format`` says of an event; the fields common to all are left out."""

    name: str
    fields: dict[str, Field]
    print_text: str
    print_args: tuple[str, ...]


def parse_format(text: str) -> EventFormat:
    """Parse a ``format`` file (kernel/trace/trace_events.c, f_show). Raises GrammarError if it is none."""
    name = re.match(r"name: (\S+)", text)
    if name is None:
        raise GrammarError("this is not an event's format: it does not start with 'name:'", text)
    fields = {}
    for found in FIELD.finditer(text):
        kind, array = found["type"].strip(), found["array"] is not None or "[]" in found["type"]
        if not found["name"].startswith("common_"):
            fields[found["name"]] = Field(
                found["name"],
                kind,
                int(found["size"]),
                found["signed"] == "1",
                array and re.search(r"\bchar\b", kind) is not None and "unsigned" not in kind,
                array,
            )
    printed = PRINT.search(text)
    return EventFormat(
        name[1],
        fields,
        _unescape(printed["text"]) if printed else "",
        tuple(_split(printed["rest"])) if printed else (),
    )


def text_pattern(form: EventFormat, wanted: Collection[str]) -> tuple[bytes, tuple[Arg, ...]]:
    """A regular expression for the event's text after its name, and what its groups are.

    Raises GrammarError for a wanted field that the text does not show as it is: decoded flags,
    hashed pointers, arrays.
    """
    for name in wanted:
        if name not in form.fields:
            raise GrammarError(f"the tracepoint {form.name} has no field '{name}'", name)
    if form.name.startswith("sys_enter_"):
        pattern, args = _call_pattern(form, wanted)
    elif form.name.startswith("sys_exit_"):
        pattern, args = _number_group("x"), [_arg(form.fields["ret"], "x")]
        if "ret" not in wanted:
            pattern, args = ANYTHING, []
    elif wanted:
        pattern, args = _print_pattern(form, wanted)
    else:
        pattern, args = ANYTHING, []
    missing = sorted(set(wanted) - {arg.name for arg in args})
    if missing:
        raise GrammarError(
            f"the text of the tracepoint {form.name} does not show the field '{missing[0]}' "
            "as a plain number or string",
            missing[0],
        )
    return pattern, tuple(args)


def _call_pattern(form: EventFormat, wanted: Collection[str]) -> tuple[bytes, list[Arg]]:
    """A system call's entry prints every argument in hexadecimal, whatever its print fmt says."""
    parts, args = [], []
    for field in form.fields.values():
        if field.name.startswith("__"):  # __syscall_nr, and strings that newer kernels copy
            continue
        shown = field.name in wanted
        value = _number_group("x") if shown else rb"[^\n]*?"
        parts.append(re.escape(field.name).encode() + b": " + value + rb"(?: \"[^\n]*?\")?")
        if shown:
            args.append(_arg(field, "x"))
    return b", ".join(parts) + rb"\)", args


def _print_pattern(form: EventFormat, wanted: Collection[str]) -> tuple[bytes, list[Arg]]:
    args: list[Arg] = []
    pattern, at = b"", 0
    values = iter(form.print_args)
    for found in CONVERSION.finditer(form.print_text):
        pattern += re.escape(form.print_text[at : found.start()].encode())
        at = found.end()
        if found["kind"] == "%":
            pattern += b"%"
            continue
        for extra in ("width", "precision"):
            if found[extra] == "*":
                next(values, "")
        field = _plain_field(form, next(values, ""))
        kind = found["kind"]
        if field is None or field.name not in wanted or any(a.name == field.name for a in args):
            pattern += ANYTHING
        elif kind in "diux" and not field.array:
            pattern += rb" *" + _number_group(kind) + rb" *"
            args.append(_arg(field, kind))
        elif kind == "s" and field.text:
            pattern += rb"([^\n]*)"
            args.append(Arg(field.name, "bare"))
        else:
            pattern += ANYTHING
    return pattern + re.escape(form.print_text[at:].encode()), args


def _number_group(kind: str) -> bytes:
    return rb"(?:0x)?([0-9a-f]+)" if kind == "x" else rb"(-?\d+)"


def _arg(field: Field, kind: str) -> Arg:
    if kind == "x":
        return Arg(field.name, "hex", field.size * 8 if field.signed else 0)
    return Arg(field.name, "int")


def _plain_field(form: EventFormat, expression: str) -> Field | None:
    """The field that an argument of the print fmt is, if it is one and nothing else."""
    text = expression.strip()
    while True:
        inner = CAST.sub("", text).strip()
        if inner.startswith("(") and inner.endswith(")") and _balanced(inner[1:-1]):
            inner = inner[1:-1].strip()
        if inner == text:
            break
        text = inner
    found = FIELD_USE.match(text)
    return form.fields.get(found[1]) if found else None


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def _split(text: str) -> Iterator[str]:
    """The arguments after the print fmt's string, cut at the commas outside brackets and strings."""
    depth, quoted, start = 0, False, None
    at = 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character in "({[") - (character in ")}]")
            if character == "," and depth == 0:
                if start is not None:
                    yield text[start:at]
                start = at + 1
        at += 1
    if start is not None:
        yield text[start:]


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text)
