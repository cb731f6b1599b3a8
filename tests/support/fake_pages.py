"""The binary side of the fake tracefs: formats of dynamic events, and their records in pages."""

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from kprobe_exporter.grammar.definition import Definition, ProbeKind
from kprobe_exporter.grammar.fetch import FetchArg
from tests.support.ring_buffer import Page, event, located

FIXTURES = Path(__file__).parents[1] / "fixtures/6.12"
HEADERS = {name: (FIXTURES / name).read_text() for name in ("header_page", "header_event")}
"""events/header_page and events/header_event, by name: the same on every kernel so far."""

COMMON = (
    ("unsigned short common_type", 0, 2, 0),
    ("unsigned char common_flags", 2, 1, 0),
    ("unsigned char common_preempt_count", 3, 1, 0),
    ("int common_pid", 4, 4, 1),
)
VALUE = re.compile(r'(\w+)=("[^"]*"|\S+)')
PRINT_ID = 5
"""The id of ftrace/print, the event of trace_marker (kernel/trace/trace.h)."""


def fields(definition: Definition) -> list[tuple[str, int, int, FetchArg | None]]:
    """Return the name, the offset and the size of each field behind the common ones, and its argument.

    These are the places of kernel/trace/trace_kprobe.c: the address, on a return two, then the arguments.
    """
    addresses = ["__probe_func", "__probe_ret_ip"] if definition.returns else ["__probe_ip"]
    if definition.kind is ProbeKind.EPROBE:
        addresses = []
    found: list[tuple[str, int, int, FetchArg | None]] = [
        (name, 8 + 8 * number, 8, None) for number, name in enumerate(addresses)
    ]
    at = 8 + 8 * len(addresses)
    for arg in definition.args:
        found.append((arg.name, at, arg.size, arg))
        at += arg.size
    return found


def event_format(name: str, number: int, definition: Definition) -> str:
    """Return the text of the event's ``format``."""
    lines = [f"field:{name};\toffset:{at};\tsize:{size};\tsigned:{sign};" for name, at, size, sign in COMMON]
    lines.append("")
    for field, at, size, arg in fields(definition):
        kind = "unsigned long" if arg is None else _type(arg)
        signed = int(arg is not None and (arg.signed or arg.value_kind == "str"))
        lines.append(f"field:{kind} {field};\toffset:{at};\tsize:{size};\tsigned:{signed};")
    body = "".join(f"\t{line}\n" if line else "\n" for line in lines)
    return f'name: {name}\nID: {number}\nformat:\n{body}\nprint fmt: "(%lx)", REC->__probe_ip\n'


def _type(arg: FetchArg) -> str:
    if arg.value_kind == "str":
        return "__data_loc char[]"
    return f"{'s' if arg.signed else 'u'}{8 * arg.size}"


def record(number: int, definition: Definition, tid: int, body: str) -> bytes:
    """Return the event's record; ``body`` has the values as the kernel prints them, others are 0."""
    values = dict(VALUE.findall(body))
    known = fields(definition)
    end = max((at + size for _, at, size, _ in known), default=8)
    fixed, strings = bytearray(end - 8), b""
    for name, at, size, arg in known:
        written = values.get(name, "0")
        if arg is not None and arg.value_kind == "str":
            text = written.strip('"').encode() + b"\0"
            fixed[at - 8 : at - 4] = located(end + len(strings), text)
            strings += text
        else:
            fixed[at - 8 : at - 8 + size] = (int(written, 0) % (1 << 8 * size)).to_bytes(size, "little")
    return event(number, tid, bytes(fixed), strings)


def marker(tid: int, text: str) -> bytes:
    """Return the record of a line that was written to trace_marker."""
    return event(PRINT_ID, tid, struct.pack("=Q", 0), text.encode() + b"\0")


def pages(records: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield pages that hold these records, each with its time."""
    page: Page | None = None
    for time, payload in records:
        if page is None or not page.room(len(payload) + 16):
            if page is not None:
                yield page.render()
            page = Page(time)
        page.add(time, payload)
    if page is not None:
        yield page.render()
