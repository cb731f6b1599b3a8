"""The stacks of programs: every event of the instance has one, and only some of them are wanted."""

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.model.record_layout import Shape
from kprobe_exporter.model.records import LAYOUT_ID, VALUES, Batch, Layout
from kprobe_exporter.model.values import Arg
from kprobe_exporter.source.line_stacks import WAITING, UserStackAssembler
from kprobe_exporter.source.lines import LineParser
from tests.model import pages
from tests.support.page_material import BOTH, FOLLOWED, SHAPES, STACKS, Names, back, compiled
from tests.support.ring_buffer import GEOMETRY, MISSED, Page, event

ALL = [*SHAPES, FOLLOWED, BOTH]
KINDS = pytest.mark.parametrize("kind", [pages.PageParser, compiled.PageParser], ids=["python", "compiled"])

ABOVE, WHOLE = FOLLOWED.layout.layout_id, BOTH.layout.layout_id


def user(tid: int, *addresses: int, process: int = 70) -> bytes:
    padded = (*addresses, *[0] * (8 - len(addresses)))
    return event(12, tid, struct.pack("=Ixxxx8Q", process, *padded))


def kernel(tid: int, *addresses: int) -> bytes:
    return event(4, tid, struct.pack(f"=ixxxx{len(addresses)}Q", len(addresses), *addresses))


def parsed(kind: Any, *events: bytes, shapes: list[Shape] = ALL, **more: Any) -> Batch:
    page = Page()
    for time, one in enumerate(events, 1):
        page.add(time, one)
    parser = kind(GEOMETRY, shapes, Names(), STACKS, False, **more)
    parser.feed(page.render(), 3)
    batch: Batch = parser.take()
    return batch


def found(batch: Batch) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """Return the stacks of programs, each with its event's layout and time."""
    return [(record[LAYOUT_ID], record[1], process, stack) for record, process, stack in batch.user_stacks]


@KINDS
def test_it_belongs_to_the_event_right_before_it(kind: Any) -> None:
    batch = parsed(
        kind,
        *(event(13, 5), user(5, 0x10, 0x20)),
        *(back(1), user(5, 0x30)),  # not wanted
        *(event(5, 5), user(5, 0x40)),  # an event of no layout
        *(event(13, 5), user(6, 0x50)),  # of another thread
        *(event(13, 5), event(11, 5), user(5, 0x60), kernel(5, 0x10)),
        *(event(13, 5), user(5), user(5, 0x70)),
    )
    assert found(batch) == [(ABOVE, 1, 70, (0x10, 0x20)), (ABOVE, 13, 70, ())]
    assert batch.unparsed == 1


@KINDS
def test_the_kernels_stack_comes_after_it(kind: Any) -> None:
    batch = parsed(kind, event(15, 5), user(5, 0x10), kernel(5, 0x20), event(15, 6), kernel(6, 0x30))
    assert found(batch) == [(WHOLE, 1, 70, (0x10,))]
    assert [(record[1], frames) for record, frames in batch.stacks] == [
        (1, (b"function_2",)),
        (4, (b"function_3",)),
    ]


@KINDS
def test_all_layouts_of_an_event_have_it(kind: Any) -> None:
    twin = FOLLOWED._replace(layout=Layout(9, "twin", "above", "entry", "k", user_stack=True))
    batch = parsed(kind, event(13, 5), user(5, 0x10), shapes=[*ALL, twin])
    assert sorted(found(batch)) == [(ABOVE, 1, 70, (0x10,)), (9, 1, 70, (0x10,))]


@KINDS
def test_it_may_come_with_the_next_page(kind: Any) -> None:
    parser = kind(GEOMETRY, ALL, Names(), STACKS, False)
    parser.feed(Page().add(1, event(13, 5)).render(), 3)
    parser.feed(Page().add(1, back(1)).render(), 2)
    (record, _) = parser.take().records
    after = kind(GEOMETRY, ALL, Names(), STACKS, False)
    after.resume_from(parser)
    after.feed(Page().add(2, user(5, 0x10)).render(), 3)
    assert after.take().user_stacks == [(record, 70, (0x10,))]
    after.feed(Page().add(3, event(13, 5)).render(), 3)
    after.feed(Page(4, flags=MISSED).add(5, user(5, 0x10)).render(), 3)
    assert after.take().user_stacks == []


@KINDS
def test_a_kernel_without_them(kind: Any) -> None:
    parser = kind(GEOMETRY, ALL, Names())
    parser.feed(Page().add(1, event(13, 5)).add(2, user(5, 1)).add(3, kernel(5, 1)).render(), 3)
    batch = parser.take()
    assert (batch.user_stacks, batch.stacks, batch.unparsed) == ([], [], 2)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Generate pages of events, with stacks that belong to them or not."""
    tids = st.sampled_from([1, 2])
    addresses = st.lists(st.integers(0, 3), max_size=8)
    pieces = st.one_of(
        st.builds(event, st.sampled_from([5, 11, 13, 15]), tids),
        st.builds(back, st.just(1), tids),
        st.builds(lambda tid, some: user(tid, *some), tids, addresses),
        st.builds(lambda tid, some: kernel(tid, *some), tids, addresses),
        st.builds(lambda tid: user(tid, 1)[:10], tids),
    )
    made, now = [], 0
    for some in draw(st.lists(st.lists(pieces, max_size=12), max_size=3)):
        page = Page(now, flags=draw(st.sampled_from([0, 0, MISSED])))
        for piece in some:
            now += 1
            page.add(now, piece)
        made.append(page.render())
    return made


@given(streams(), st.booleans())
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=300)
def test_both_parsers_agree(rendered: list[bytes], at_once: bool) -> None:
    batches = []
    for kind in (pages.PageParser, compiled.PageParser):
        parser: Any = kind(GEOMETRY, ALL, Names(), STACKS, False)
        several = []
        for page in rendered:
            parser.feed(page, 3)
            if not at_once:
                several.append(parser.take())
        batches.append([*several, parser.take()])
    assert batches[0] == batches[1]


TEXT = Layout(0, "p", "p", "entry", "f", (Arg("n", "int"),), user_stack=True)
DEEP = Layout(1, "r", "r", "entry", "h", (Arg("n", "int"),), stack=True, user_stack=True)
PLAIN = Layout(2, "q", "q", "entry", "g", (Arg("n", "int"),))


def line(name: str, number: int, cpu: int = 1, tid: int = 7) -> str:
    return f"            bash-{tid:<7d} [{cpu:03d}] .....    12.345678: {name}: (f+0x0/0x1) n={number}\n"


def printed(*addresses: int, cpu: int = 1, tid: int = 7, kind: str = "user stack trace") -> str:
    head = f"            bash-{tid:<7d} [{cpu:03d}] .....    12.345678: <{kind}>\n"
    return head + "".join(f" =>  <{one:016x}>\n" for one in addresses)


def read(text: str, *cuts: int) -> Batch:
    parser, whole, data = LineParser([TEXT, DEEP, PLAIN]), Batch(), text.encode()
    edges = sorted({0, len(data), *cuts})
    for start, end in pairwise(edges):
        batch = parser.feed(data[start:end])
        whole.records += batch.records
        whole.unparsed += batch.unparsed
        whole.stacks += batch.stacks
        whole.user_stacks += batch.user_stacks
    return whole


def test_text() -> None:
    batch = read(
        line("p", 1)
        + printed(0x7F19055C94F7, 0x10)
        + line("q", 2)
        + printed(0x20)
        + line("r", 3)
        + line("p", 4, cpu=0, tid=8)
        + printed(0x30)
        + printed(kind="stack trace")
        + " => vfs_read\n"
        + printed(cpu=0, tid=8)
        + line("unknown", 5)
        + printed(0x40)
    )
    stacks = [(record[VALUES], process, stack) for record, process, stack in batch.user_stacks]
    assert stacks == [(1, 7, (0x7F19055C94F7, 0x10)), (3, 7, (0x30,))]
    assert [(record[VALUES], frames) for record, frames in batch.stacks] == [(3, (b"vfs_read",))]
    assert batch.unparsed == 1


@given(st.integers(0, 400))
def test_text_that_is_cut(at: int) -> None:
    """Both parts of a stack are delivered, with the same record."""
    text = line("p", 1) + printed(0x10, 0x20, 0x30) + line("q", 2)
    batch = read(text, at)
    assert batch.unparsed == 0
    assert sum((stack for _, _, stack in batch.user_stacks), ()) == (0x10, 0x20, 0x30)
    assert {id(record) for record, _, _ in batch.user_stacks} == {id(batch.records[0])}


def test_what_waits_is_bounded() -> None:
    stacks = UserStackAssembler()
    for cpu in range(3 * WAITING):
        stacks.expect(cpu, 7, [(cpu,)])
    assert len(stacks._before) <= WAITING
