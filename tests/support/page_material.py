"""Pages of a ring buffer to parse: layouts, probes, and events as the kernel writes them."""

import struct
from typing import Any

import pytest

from kprobe_exporter.config.model import GUESSED_RETURN
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.record_layout import Field, Shape, StackLayout, StackLayouts
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import LabelSpec, MetricSpec, ProbeMetrics, WorstSpec
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import where
from tests.support.ring_buffer import event, located

compiled: Any = pytest.importorskip("kprobe_exporter.source._pages")

TID = Field("signed", 4, 4)


class Names:
    """Derives the names of threads and functions from their numbers."""

    def tgid(self, tid: int) -> int | None:
        return None if tid == 13 else tid // 2

    def comm(self, tid: int) -> bytes | None:
        return None if tid == 13 else b"thread %d" % tid

    def function(self, address: int) -> bytes | None:
        return None if address == 0 else b"function_%x" % (address // 16)

    caller = function

    def symbol(self, address: int) -> bytes | None:
        return b"symbol+0x%x/0x10" % address


CELLS = (
    (Arg("u8", "int"), Field("unsigned", 8, 1)),
    (Arg("s8", "int"), Field("signed", 9, 1)),
    (Arg("s16", "int"), Field("signed", 10, 2)),
    (Arg("u16", "int"), Field("unsigned", 12, 2)),
    (Arg("s32", "int"), Field("signed", 16, 4)),
    (Arg("u32", "int"), Field("unsigned", 20, 4)),
    (Arg("s64", "int"), Field("signed", 24, 8)),
    (Arg("u64", "int"), Field("unsigned", 32, 8)),
    (Arg("sym", "bare", type="symbol"), Field("symbol", 40, 8)),
    (Arg("letter", "char", type="char"), Field("char", 48, 1)),
    (Arg("numbers", "bare", type="x16[3]"), Field("array", 50, 6, "x16", 3)),
    (Arg("words", "texts", type="string[2]"), Field("texts", 56, 8, length=2, fault=True)),
    (Arg("fixed", "str"), Field("text", 64, 8)),
    (Arg("path", "str"), Field("dynamic", 72, 4, fault=True)),
    (Arg("comm", "comm"), Field("comm")),
    (Arg("program", "program"), Field("program", 72, 4)),
)
ARGS, FIELDS = tuple([arg for arg, _ in CELLS]), tuple([field for _, field in CELLS])
ENTRY = Shape(7, Layout(0, "entry", "entry", "entry", "f", ARGS), FIELDS, TID, None, 76)

LONG = GUESSED_RETURN
BACK = (Arg("return", "int"), Arg("name", "str"), Arg("program", "program"))
RETURN = Shape(
    9,
    Layout(1, "back", "back", "return", "g", BACK, LONG),
    (Field("signed", 24, 8), Field("dynamic", 32, 4, fault=True), Field("program", 32, 4)),
    TID,
    Field("symbol", 16, 8),
    36,
)

STACKED = Shape(11, Layout(2, "deep", "deep", "entry", "h", stack=True), (), TID, None, 8)
SHAPES = [ENTRY, RETURN, STACKED]
FOLLOWED = Shape(13, Layout(3, "above", "above", "entry", "k", user_stack=True), (), TID, None, 8)
BOTH = Shape(15, Layout(4, "whole", "whole", "entry", "l", stack=True, user_stack=True), (), TID, None, 8)
"""Events with the stack of the program, and with both."""

STACKS = StackLayouts(StackLayout(4, 16), StackLayout(12, 16, 8))


def entry(tid: int, path: bytes | None = b"/etc/passwd\0", **wrong: int) -> bytes:
    integers = 200, -3, -300, 65000, -70000, 4000000000, -(2**40), 2**63 + 5
    numbers = struct.pack("=BbhHxxiIqQQcxHHH", *integers, 0xFFF0, b"x", 1, 2, 3)
    words = located(76, b"one\0") + struct.pack("=I", 80)
    strings = b"one\0" + (path or b"")
    place = struct.pack("=I", len(path or b"") << 16 | wrong.get("at", 80))
    return event(7, tid, numbers, words, b"fixed\0zz", place, strings)


def back(value: int, tid: int = 5, name: bytes | None = b"bash", ip: int = 0x1234) -> bytes:
    text = b"" if name is None else name + b"\0"
    return event(9, tid, struct.pack("=QQq", 0, ip, value), located(36, text), text)


def label(name: str) -> LabelSpec:
    return LabelSpec(name, name)


def condition(text: str) -> Where:
    return where(parse_formula(text))


NEGATIVE = condition("return < 0.5")
NAMED = condition('name == "bash" || !(return & 3) && cpu != 1')
MISSING = condition('missing != 3 && name != "sh" && return >= -7')
METRICS = (
    MetricSpec("a_total", "counter", "h", None, (label("name"), label("return"))),
    MetricSpec("b_total", "counter", "h", "return", (label("cpu"),)),
    MetricSpec(
        "c", "histogram", "h", "return", (label("tid"),), (-10.0, 0.0, 5.5, 100.0, 1e18), 0.5, native=True
    ),
    MetricSpec("d", "gauge", "h", "return", (label("caller"),), scale=3.0),
    MetricSpec("e_total", "counter", "h", None, (label("pid"), label("symbol")), where=NEGATIVE),
    MetricSpec("f_total", "counter", "h", "tid", (), where=NAMED),
    MetricSpec("g_total", "counter", "h", "missing", (label("nothing"),)),
    MetricSpec("h_total", "counter", "h", None, (), where=MISSING),
    MetricSpec("i_total", "counter", "h", "name", (label("name"),)),
    MetricSpec("j_total", "counter", "h", None, (label("program"), label("cpu"))),
)


WORST = WorstSpec("return", (label("name"), label("caller"), label("cpu")), 1.0, 60.0, is_time=False)


PROBES = {
    shape.layout.layout_id: ProbeMetrics(
        shape.layout.probe,
        METRICS if shape is RETURN else (),
        (1.0, 4.0, 16.0, 1e19),
        shape.layout.returns,
        worst=WORST if shape is RETURN else None,
    )
    for shape in SHAPES
}
