"""The offsets of a layout's values in a binary record, from the kernel's ``format`` of the event."""

import re

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import EventFormat, FormatField, parse_format, read_as
from kprobe_exporter.grammar.fetch import INTEGERS
from kprobe_exporter.model.record_layout import Field, FieldKind, Geometry, Shape, StackLayout, StackLayouts
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.values import Arg

ARRAY_TYPE = re.compile(r"(\w+)\[(\d+)\]")
HEADER = re.compile(r"field: (\w+) (\w+);\s*offset:(\d{1,9});\s*size:(\d{1,9});")
EVENT_HEADER = {
    "type_len": r"type_len\s*:\s*5 bits",
    "time_delta": r"time_delta\s*:\s*27 bits",
    "padding": r"padding\s*: type == 29",
    "time_extend": r"time_extend\s*: type == 30",
    "time_stamp": r"time_stamp\s*: type == 31",
    "data": r"data max type_len\s*== 28",
}
"""The parts of a record's header in include/linux/ring_buffer.h, the same on every kernel so far."""


def geometry(header_page: str, header_event: str) -> Geometry:
    """Parse events/header_page, and check that events/header_event is as expected. Raises GrammarError."""
    for name, pattern in EVENT_HEADER.items():
        if not re.search(pattern, header_event):
            raise GrammarError(f"events/header_event tells of another '{name}' than is known", header_event)
    places = {found[2]: (int(found[3]), int(found[4])) for found in HEADER.finditer(header_page)}
    try:
        (stamp, stamp_size), (commit, commit_size), (data, size) = (
            places[name] for name in ("timestamp", "commit", "data")
        )
    except KeyError as error:
        raise GrammarError(f"events/header_page has no field {error}", header_page) from None
    if (stamp, stamp_size) != (0, 8) or commit_size not in (4, 8) or not 0 < commit < data:
        raise GrammarError("events/header_page tells of a page that is not known", header_page)
    return Geometry(commit, commit_size, data, data + size)


def stacks(kernel: str | None, user: str | None) -> StackLayouts:
    """Parse the formats of ftrace:kernel_stack and user_stack, None if missing. Raises GrammarError."""
    return StackLayouts(
        None if kernel is None else _stacks(kernel, "kernel_stack"),
        None if user is None else _stacks(user, "user_stack"),
    )


def _stacks(text: str, event: str) -> StackLayout:
    form = parse_format(text)
    wanted = ("caller", "tgid") if event == "user_stack" else ("caller",)
    if missing := [name for name in wanted if name not in form.fields]:
        raise GrammarError(f"the format of ftrace:{event} has no field '{missing[0]}'", text)
    process = form.fields["tgid"].offset if event == "user_stack" else 0
    return StackLayout(form.id, form.fields["caller"].offset, process)


def shape(layout: Layout, text: str) -> Shape:
    """Return where the records of ``layout`` hold its values; ``text`` is the event's ``format``.

    Raises GrammarError if a field is not in the format, or has a form that is not known.
    """
    form = parse_format(text)
    for name, place in {"common_type": (0, 2), "common_pid": (4, 4)}.items():
        found = form.common.get(name)
        if found is None or (found.offset, found.size) != place:
            raise GrammarError(f"the format of {form.name} has its {name} at another place than is known")
    probe = layout.form != "tracepoint"
    fields = tuple(
        _field(arg, form.fields, form.name, probe)._replace(
            network=arg.network > 0,
            guards=tuple(form.fields[guard].offset for guard in arg.guards),
            next=_next_string(form, arg.shown) if probe else 0,
        )
        for arg in layout.args
    )
    returns = layout.form == "return" and layout.caller and not layout.user
    back = form.fields.get("__probe_ret_ip") if returns else None
    caller = Field("symbol", back.offset, back.size) if back else None
    tid = Field("signed", form.common["common_pid"].offset, 4)
    size = max(
        max(field.offset + field.size, field.next + 4)
        for field in (tid, *fields, *([caller] if caller else ()))
    )
    return Shape(form.id, layout, fields, tid, caller, size)


def _next_string(form: EventFormat, name: str) -> int:
    """Return the offset of the dynamic string after one of this name, 0 without one."""
    strings = [one for one in form.fields.values() if one.type.startswith("__data_loc")]
    found = form.fields.get(name)
    return min((one.offset for one in strings if found in strings and found.offset < one.offset), default=0)


def _field(arg: Arg, known: dict[str, FormatField], event: str, probe: bool) -> Field:
    if arg.kind == "comm":
        return Field("comm")
    found = known.get(arg.shown)
    if found is None:
        raise GrammarError(f"the format of {event} has no field '{arg.shown}'")
    if arg.kind == "program":
        if not found.type.startswith("__data_loc"):
            raise GrammarError(f"the field '{found.name}' of {event} is not the text that is expected")
        return Field("program", found.offset, found.size)
    if arg.kind in ("texts", "vector"):
        return Field(arg.kind, found.offset, found.size, length=found.size // 4, fault=True)
    if found.text:
        copied = found.name.startswith("__")  # from a program's memory, as __filename_val
        return Field(_string_kind(found), found.offset, found.size, fault=probe or copied)
    if found.array or "[" in arg.type:
        return _array(arg, found, event)
    if not probe and (typed := INTEGERS.get(arg.type)):
        found = read_as(found, *typed)
    return Field(_number_kind(arg, found, event), found.offset, found.size)


def _string_kind(found: FormatField) -> FieldKind:
    if not found.size:
        return "rest"
    if found.type.startswith("__data_loc"):
        return "dynamic"
    return "relative" if found.type.startswith("__rel_loc") else "text"


def _array(arg: Arg, found: FormatField, event: str) -> Field:
    typed = ARRAY_TYPE.fullmatch(arg.type)
    count = int(typed[2]) if typed else found.length
    elsewhere = found.type.startswith(("__data_loc", "__rel_loc"))
    if elsewhere or not count or found.size // count not in (1, 2, 4, 8):
        raise GrammarError(f"the field '{found.name}' of {event} is an array that is not known")
    element = typed[1] if typed else f"{'s' if found.signed else 'u'}{found.size // count * 8}"
    return Field("array", found.offset, found.size, element, count)


def _number_kind(arg: Arg, found: FormatField, event: str) -> FieldKind:
    if found.size not in (1, 2, 4, 8):
        raise GrammarError(
            f"the field '{found.name}' of {event} has {found.size} bytes, so it is not a number"
        )
    if arg.type == "char":
        return "char"
    if arg.type == "symbol":
        return "symbol"
    return "signed" if found.signed else "unsigned"
