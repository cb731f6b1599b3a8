"""Values in network byte order, and values behind null pointers, as pages and text give them."""

import struct
from typing import Any

import pytest

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.recipes import source_recipe
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.model import Decode, Label, Metric
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.record_layout import Shape
from kprobe_exporter.model.records import VALUES, Layout
from kprobe_exporter.model.specs import ProbeMetrics
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import metric_spec
from kprobe_exporter.plan.shape import shape
from kprobe_exporter.source.lines import LineParser
from tests.model import pages
from tests.support.captured_text import line
from tests.support.page_material import Names, compiled
from tests.support.ring_buffer import GEOMETRY, Page, event, located

BEHIND = ("pointer_1", "pointer_2")
ARGS = (
    Arg("port", "int", network=2, guards=("pointer_1",)),
    Arg("address", "int", network=4, guards=("pointer_1",)),
    Arg("cookie", "int", network=8, guards=("pointer_1",)),
    Arg("pointer_1", "int"),
    Arg("pointer_2", "int"),
    Arg("number", "int", guards=BEHIND),
    Arg("bytes", "bare", type="u8[4]", guards=BEHIND),
    Arg("words", "bare", type="u16[2]", network=2, guards=("pointer_1",)),
    Arg("name", "str", guards=BEHIND),
)
LAYOUT = Layout(0, "connect", "connect", "entry", "f", ARGS)
FORMAT = """name: connect
ID: 7
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;
\tfield:u16 port;\toffset:16;\tsize:2;\tsigned:0;
\tfield:u32 address;\toffset:18;\tsize:4;\tsigned:0;
\tfield:u64 cookie;\toffset:22;\tsize:8;\tsigned:0;
\tfield:u64 pointer_1;\toffset:30;\tsize:8;\tsigned:0;
\tfield:u64 pointer_2;\toffset:38;\tsize:8;\tsigned:0;
\tfield:s32 number;\toffset:46;\tsize:4;\tsigned:1;
\tfield:u8 bytes[4];\toffset:50;\tsize:4;\tsigned:0;
\tfield:u16 words[2];\toffset:54;\tsize:4;\tsigned:0;
\tfield:__data_loc char[] name;\toffset:58;\tsize:4;\tsigned:1;

print fmt: "(%lx)", REC->__probe_ip
"""
SHAPE: Shape = shape(LAYOUT, FORMAT)
ADDRESS = 0xFFFF_8880_0000_1000
NO_ADDRESSES = [0, 1, 4095, 2**64 - 1, 2**64 - 4095]
WHOLE = (443, 0x7F000001, 2**40 + 3)
REST = (-5, b"{1,2,3,4}", b"{443,8193}", b"lo")

PARSERS = [pages.PageParser, compiled.PageParser]
both = pytest.mark.parametrize("kind", PARSERS, ids=["python", "compiled"])


def record(first: int = ADDRESS, second: int = ADDRESS, port: int = 443) -> bytes:
    network = struct.pack(">HIQ", port, *WHOLE[1:])
    plain = struct.pack("=QQi4B", first, second, -5, 1, 2, 3, 4)
    words = struct.pack(">2H", 443, 8193)
    return event(7, 5, bytes(8), network, plain, words, located(62, b"lo\0"), b"lo\0")


def values(kind: Any, *records: bytes) -> list[Any]:
    parser = kind(GEOMETRY, [SHAPE], Names())
    page = Page()
    for one in records:
        page.add(1, one)
    parser.feed(page.render(), 0)
    return [made[VALUES:] for made in parser.take().records]


@both
def test_numbers_in_network_order_are_read_in_the_hosts(kind: Any) -> None:
    assert values(kind, record()) == [(*WHOLE, ADDRESS, ADDRESS, *REST)]


@both
@pytest.mark.parametrize("pointer", NO_ADDRESSES)
def test_what_is_behind_no_address_is_missing(kind: Any, pointer: int) -> None:
    first, second = values(kind, record(first=pointer), record(second=pointer))
    assert first == (None, None, None, pointer, ADDRESS, None, None, None, None)
    assert second == (*WHOLE, ADDRESS, pointer, None, None, b"{443,8193}", None)


@pytest.mark.parametrize(("pointer", "there"), [(ADDRESS, True), (0, False), (2**64 - 2, False)])
def test_text_gives_the_same(pointer: int, there: bool) -> None:
    raw = (0xBB01, 0x0100007F, int.from_bytes(WHOLE[2].to_bytes(8, "big"), "little"))
    shown = "port={} address={} cookie={} pointer_1=0x{:x} pointer_2=0x{:x} number=-5 bytes={{1,2,3,4}} "
    text = shown.format(*raw, ADDRESS, pointer) + 'words={47873,288} name="lo"'
    parser = LineParser([LAYOUT])
    batch = parser.feed(line(b"connect: (f+0x0/0x10) " + text.encode()))
    rest = REST if there else (None, None, b"{443,8193}", None)
    assert [made[VALUES:] for made in batch.records] == [(*WHOLE, ADDRESS, pointer, *rest)]


def metrics() -> ProbeMetrics:
    labels = (
        Label("port", "port"),
        Label("decoded", "port", (Decode("port"),)),
        Label("to", "address", (Decode("ip"),)),
        Label("host", "address", (Decode("ip", "host"),)),
    )
    several = (
        Metric("counter", "a_total", "", labels=labels),
        Metric("counter", "b_total", "", where="port == 443", labels=labels[:1]),
        Metric("counter", "c_total", "", value="number"),
        Metric("counter", "d_total", "", labels=(Label("bytes", "bytes"), Label("words", "words"))),
    )
    return ProbeMetrics("connect", tuple(metric_spec(one, "ns", DECODERS) for one in several), (), None)


@both
@pytest.mark.parametrize("summed", [False, True])
def test_decoders_of_network_order_and_conditions_both_fit(kind: Any, summed: bool) -> None:
    fed = metrics()
    recipe = source_recipe(LAYOUT, fed, None)
    assert recipe
    parser = kind(
        GEOMETRY, [SHAPE], Names(), recipes={0: recipe} if summed and kind is compiled.PageParser else {}
    )
    page = Page()
    for one in (record(), record(port=80), record(second=0), record(first=0)):
        page.add(1, one)
    parser.feed(page.render(), 0)
    aggregator = Aggregator("ns", SeriesLimits(10, 100), lambda number: f"E{number}")
    aggregator.declare(fed)
    aggregator.attach(LAYOUT, count_hits=True)
    aggregator.consume(parser.take())
    numbers = aggregator.copy()
    found = {family.name: family.samples for family in numbers.families}
    local = "127.0.0.1"
    assert found["ns_a_total"] == {
        ("443", "443", local, local): 2,
        ("80", "80", local, local): 1,
        ("unknown", "unknown", "unknown", "unknown"): 1,
    }
    assert found["ns_b_total"] == {("443",): 2}
    assert found["ns_d_total"] == {
        ("{1,2,3,4}", "{443,8193}"): 2,
        ("unknown", "{443,8193}"): 1,
        ("unknown", "unknown"): 1,
    }
    assert numbers.lost["unreadable"] == 2
    assert numbers.lost["negative"] == 2


def test_pointers_on_the_way_are_hidden() -> None:
    assert LAYOUT.hidden == {"stack_pointer", "pointer_1", "pointer_2"}
