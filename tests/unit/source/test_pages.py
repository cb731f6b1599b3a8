"""Pages of the ring buffer: the compiled walk and the Python walk must agree.

The pages that `tests.support.ring_buffer` builds define the records. An aggregator that gets the records
one by one defines the sums.
"""

import fcntl
import importlib
import os
import struct
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.native import code, exponential
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.recipes import record_filters, source_recipe
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.model.aggregation import ExponentialBucket, Group, Recipe, Where
from kprobe_exporter.model.record_layout import Geometry, Shape
from kprobe_exporter.model.records import OF_THREADS, Batch, Layout, Loss
from kprobe_exporter.model.snapshot import Family, HistogramValue
from kprobe_exporter.model.values import LOWEST_ADDRESS, MAX_ERRNO, Arg
from kprobe_exporter.source.engine_fields import MAX_GUARDS
from kprobe_exporter.source.engine_plan import KERNEL_STACK, USER_STACK
from kprobe_exporter.source.pages import UNKNOWN
from tests.model import pages
from tests.support.page_material import (
    ENTRY,
    LONG,
    PROBES,
    RETURN,
    SHAPES,
    STACKED,
    STACKS,
    Names,
    back,
    compiled,
    condition,
    entry,
)
from tests.support.ring_buffer import GEOMETRY, MISSED, Page, event

if os.environ.get("CI"):
    importlib.import_module("kprobe_exporter.source._pages")

PARSERS = [pages.PageParser, compiled.PageParser]
RECIPES = {1: source_recipe(RETURN.layout, PROBES[1], None)}


def test_constants_of_engine() -> None:
    assert compiled.CONSTANTS == {
        "MAX_ERRNO": MAX_ERRNO,
        "LOWEST_ADDRESS": LOWEST_ADDRESS,
        "OF_THREADS": OF_THREADS,
        "MAX_GUARDS": MAX_GUARDS,
        "KERNEL_STACK": KERNEL_STACK,
        "USER_STACK": USER_STACK,
    }


def parser(kind: Any, shapes: list[Shape] = SHAPES, **more: Any) -> Any:
    return kind(more.pop("geometry", GEOMETRY), shapes, Names(), STACKS, more.pop("tgid", True), **more)


def parsed(kind: Any, *rendered: bytes, cpu: int = 3, **more: Any) -> Batch:
    one = parser(kind, **more)
    for page in rendered:
        one.feed(page, cpu)
    batch: Batch = one.take()
    return batch


def stack(tid: int, *frames: int) -> bytes:
    return event(4, tid, struct.pack(f"=ixxxx{len(frames)}Q", len(frames), *frames))


both = pytest.mark.parametrize("kind", PARSERS, ids=["python", "compiled"])


@both
def test_every_kind_of_value(kind: Any) -> None:
    (record,) = parsed(kind, Page(1000).add(1234, entry(40)).render()).records
    assert record == (
        *(0, 1234, 3, 40, 20, None),
        *(200, -3, -300, 65000, -70000, 4000000000, -(2**40), 2**63 + 5),
        *(b"symbol+0xfff0/0x10", b"x", b"{0x1,0x2,0x3}", b'{"one",(fault)}', b"fixed", b"/etc/passwd"),
        *(b"thread 40", b"passwd"),
    )


@both
@pytest.mark.parametrize(
    ("path", "at", "expected"),
    [
        (None, 80, [None, b""]),
        (b'a\nb" x=1\0', 80, [b'a\nb" x=1'] * 2),
        (b"no end", 80, [b"no end"] * 2),
        (b"/usr/bin/a-name-of-sixteen\0", 80, [b"/usr/bin/a-name-of-sixteen", b"a-name-of-sixte"]),
        (b"/\0", 80, [b"/", b""]),
        (b"/\0", 4000, [None, None]),
    ],
)
def test_a_string_that_cannot_be_read_is_none(kind: Any, path: bytes | None, at: int, expected: Any) -> None:
    """A string, and the name of the thread that executed the program at that path."""
    (record,) = parsed(kind, Page().add(1, entry(40, path, at=at)).render()).records
    assert [record[-3], record[-1]] == expected


@both
def test_a_return_has_its_caller(kind: Any) -> None:
    batch = parsed(kind, Page().add(1, back(-2)).add(2, back(7, name=None, ip=0)).render())
    assert batch.records == [
        (1, 1, 3, 5, 2, b"function_123", -2, b"bash", b"bash"),
        (1, 2, 3, 5, 2, None, 7, None, b""),
    ]


@both
@pytest.mark.parametrize("recipes", [{}, RECIPES], ids=["records", "sums"])
@pytest.mark.parametrize(
    ("flags", "kept"),
    [(0, 0), (0x01, 0), (0x48, 0), (0x08, 1), (0x10, 1), (0x18, 1), (0x58, 1)],
    ids=["thread", "no interrupts", "breakpoint", "hardirq", "softirq", "both", "breakpoint in a softirq"],
)
def test_own_threads_leave_hits_alone(kind: Any, recipes: Any, flags: int, kept: int) -> None:
    """Their records are counted; a thread whose id has the same lowest bits is another one."""
    one = parser(kind, recipes=recipes)
    one.set_own_threads({5, 6})
    page = Page(1000)
    for time, tid in ((1001, 5), (1002, 5 + 1024), (1003, 6)):
        made = bytearray(back(7, tid=tid))
        made[2] = flags
        page.add(time, bytes(made))
    one.feed(page.render(), 3)
    batch = one.take()
    counted = len(batch.records) + batch.arrived.get(1, 0)
    assert (counted, batch.own[1], batch.unparsed) == (1 + 2 * kept, 2 - 2 * kept, 0)


@both
def test_some_layouts_are_of_all_threads(kind: Any) -> None:
    one = parser(kind, of_all_threads={1})
    one.set_own_threads([5, 40])
    one.feed(Page(1000).add(1001, back(7)).add(1002, entry(40)).render(), 3)
    batch = one.take()
    assert ([record[0] for record in batch.records], batch.own) == ([1], {0: 1})


@both
@pytest.mark.parametrize("recipes", [{}, RECIPES], ids=["records", "sums"])
def test_an_event_of_two_instances_is_one_of_each(kind: Any, recipes: Any) -> None:
    """A probe and the agent itself have the same tracepoint, each in its own buffers."""
    layout = replace(SHAPES[1].layout, layout_id=9)
    own = SHAPES[1]._replace(layout=layout, of_threads=True)
    one = parser(kind, shapes=[*SHAPES, own], recipes=recipes)
    for cpu in (3, 3 + OF_THREADS, 3 + OF_THREADS):
        one.feed(Page(1000).add(1001, back(7)).render(), cpu)
    batch = one.take()
    found = Counter({1: batch.arrived.get(1, 0)}) + Counter(record[0] for record in batch.records)
    assert (found, batch.unparsed) == ({1: 1, 9: 2}, 0)


@both
def test_the_stack_of_an_own_thread_belongs_to_no_record(kind: Any) -> None:
    one = parser(kind)
    one.set_own_threads([5])
    page = Page(1000).add(1001, event(11, 7)).add(1002, event(11, 5)).add(1003, stack(5, 0x10))
    one.feed(page.render(), 3)
    batch = one.take()
    assert (len(batch.records), batch.stacks, batch.own) == (1, [], {2: 1})


@both
@pytest.mark.parametrize("gap", [0, 1, (1 << 27) - 1, 1 << 27, 1 << 50])
def test_times(kind: Any, gap: int) -> None:
    page = Page(1000).add(1000 + gap, back(1)).add(1001 + gap, back(2), long=True)
    page.discard(12).stamp(2**40 + gap).add(2**40 + gap + 3, back(3))
    batch = parsed(kind, page.render())
    assert [record[1] for record in batch.records] == [1000 + gap, 1001 + gap, 2**40 + gap + 3]
    assert batch.unparsed == 0


@both
def test_an_absolute_time_keeps_the_upper_bits_of_the_one_before(kind: Any) -> None:
    start = (5 << 59) - 10
    page = Page(start).stamp(start + 20).add(start + 21, back(1))
    assert [record[1] for record in parsed(kind, page.render()).records] == [start + 21]


@both
def test_what_was_lost_is_told(kind: Any) -> None:
    batch = parsed(kind, Page(lost=77).add(1, back(1)).render(), Page(flags=MISSED).add(2, back(1)).render())
    assert (batch.lost, len(batch.records), batch.unparsed) == (77, 2, 0)


def told(*losses: tuple[int, int]) -> list[Loss]:
    return [Loss(3, start, end) for start, end in losses]


@both
def test_a_loss_lies_between_the_events_around_it(kind: Any) -> None:
    """The events around a loss may be of any kind: unknown events and stacks bound it as well."""
    found = parsed(
        kind,
        Page(90, flags=MISSED).add(100, back(1)).add(150, event(5, 1, b"unknown")).render(),
        Page(199, flags=MISSED).add(200, event(4, 1, bytes(8))).add(250, back(2)).discard(8).render(),
        Page(300).add(300, back(3)).render(),
        Page(400, lost=7).add(400, back(4)).render(),
    )
    assert found.losses == told((0, 100), (150, 200), (300, 400))


@both
def test_each_cpu_has_its_own_losses(kind: Any) -> None:
    one = parser(kind)
    first, missed = Page(100).add(100, back(1)), Page(200, flags=MISSED).add(200, back(2))
    for cpu, page in [(0, first), (2**31 - 1, missed), (0, missed), (1, first)]:
        one.feed(page.render(), cpu)
    assert one.take().losses == [Loss(2**31 - 1, 0, 200), Loss(0, 100, 200)]


@both
def test_the_rest_of_a_damaged_page_is_a_loss(kind: Any) -> None:
    good = Page(100).add(100, back(1)).add(200, back(2)).render()
    broken = Page(300).add(300, back(3)).add(400, event(7, 1)).add(500, back(5)).render()
    empty = Page(600, flags=MISSED).render()
    after = Page(700).add(700, back(7)).render()
    assert parsed(kind, good, broken, empty, after).losses == told((300, 700))
    assert parsed(kind, good[:12], good[:12], good).losses == told((0, 100))


@both
def test_a_loss_without_an_end_is_told_at_once(kind: Any) -> None:
    one = parser(kind)
    broken = Page(100).add(100, back(1)).render()[:12]
    for cpu, page in [(7, Page(100).add(100, back(1)).render()), (7, broken), (2, broken)]:
        one.feed(page, cpu)
    assert one.take().losses == [Loss(2, 0, UNKNOWN), Loss(7, 100, UNKNOWN)]
    one.feed(Page(200).add(200, back(2)).render(), 7)
    assert one.take().losses == []


@both
def test_where_times_fall_the_loss_is_all_before(kind: Any) -> None:
    first, second = Page(500).add(500, back(1)), Page(200, flags=MISSED).add(200, back(2))
    assert parsed(kind, first.render(), second.render()).losses == told((0, 500))


@both
@pytest.mark.parametrize("recipes", [False, True])
def test_as_many_losses_as_pages_at_once(kind: Any, recipes: bool) -> None:
    """One pull takes at most 64 of the 200 pages; a walk that adds up records reports losses as well."""
    one = parser(kind, recipes=RECIPES if recipes else None)
    rendered = []
    for number in range(1, 201):
        page = Page(number, flags=MISSED)
        while page.room(GEOMETRY.page // 2):
            page.add(number, back(1))
        rendered.append(page.render())
    read, write = os.pipe2(os.O_NONBLOCK)
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(write, b"".join(rendered))
    pulled = []
    while got := one.pull(read, 3, 64):
        pulled.append(got)
    os.close(read)
    os.close(write)
    assert sum(pulled) == 200
    waiting, batch = one.waiting, one.take()
    assert waiting == len(batch.records) + len(batch.tallies) + 200
    assert batch.losses == told(*((number - 1, number) for number in range(1, 201)))
    assert bool(batch.records) is not (recipes and kind.compiled)


@both
def test_two_layouts_of_one_event(kind: Any) -> None:
    twin = RETURN._replace(layout=Layout(8, "twin", "back", "return", "g", (Arg("return", "int"),), LONG))
    twin = twin._replace(fields=RETURN.fields[:1])
    batch = parsed(kind, Page().add(1, back(-2)).render(), shapes=[*SHAPES, twin])
    assert sorted(batch.records) == [
        (1, 1, 3, 5, 2, b"function_123", -2, b"bash", b"bash"),
        (8, 1, 3, 5, 2, b"function_123", -2),
    ]


@both
def test_a_stack_belongs_to_the_event_before_it(kind: Any) -> None:
    page = Page().add(1, event(11, 5)).add(2, stack(5, 0x10, 0x20, 2**64 - 1, 0x30))
    page.add(3, event(11, 6)).add(4, stack(7, 0x10)).add(5, stack(6, 0x10))
    batch = parsed(kind, page.render())
    assert batch.stacks == [((2, 1, 3, 5, 2, None), (b"function_1", b"function_2"))]
    assert batch.unparsed == 0


@both
@pytest.mark.parametrize(
    "shapes", [[STACKED], [STACKED, STACKED._replace(layout=replace(STACKED.layout, layout_id=5))]]
)
def test_a_stack_belongs_to_no_other_event_of_the_same_time(kind: Any, shapes: list[Shape]) -> None:
    page = Page().add(1, event(11, 5)).add(1, event(11, 5)).add(1, stack(5, 0x10, 0x20))
    batch = parsed(kind, page.render(), shapes=shapes)
    assert len(batch.records) == 2 * len(shapes)
    assert sorted(record[0] for record, _ in batch.stacks) == [shape.layout.layout_id for shape in shapes]


@both
def test_a_successor_goes_on_where_the_other_stopped(kind: Any) -> None:
    """It takes over between an event and its stack, and before a loss has ended; only its layouts differ."""
    first = parser(kind)
    first.feed(Page().add(7, event(11, 5)).render(), 3)
    (waiting,) = first.take().records
    second = parser(kind, SHAPES[:1])
    second.resume_from(first)
    assert second.time == 7
    second.feed(Page(8, flags=MISSED).add(9, event(7, 1, bytes(0))).render(), 2)
    second.feed(Page(8).add(9, stack(5, 0x10, 0x20)).render(), 3)
    second.feed(Page(20, flags=MISSED).add(20, back(1)).render(), 3)
    batch = second.take()
    assert batch.stacks == [(waiting, (b"function_1", b"function_2"))]
    assert Loss(3, 9, 20) in batch.losses
    assert batch.unparsed == 2  # a damaged event, and one without a layout in the successor


@both
def test_unknown_events_are_unparsed(kind: Any) -> None:
    batch = parsed(kind, Page().add(1, event(5, 1, b"hello\0\0\0")).add(2, back(1)).render())
    assert (batch.unparsed, len(batch.records)) == (1, 1)


@both
def test_sub_buffers_of_other_sizes(kind: Any) -> None:
    large = Geometry(8, 8, 16, 65536)
    page = Page(geometry=large)
    for time in range(1200):
        page.add(time, back(time))
    batch = parsed(kind, page.render(), geometry=large)
    assert [record[6] for record in batch.records] == [*range(1200)]


@both
def test_a_damaged_page_is_counted_once_and_what_came_before_it_stays(kind: Any) -> None:
    whole = Page().add(1, back(1)).add(2, back(2)).render()
    too_large, too_small = (struct.pack("=QQ", 0, size) + whole[16:] for size in (5000, 9))
    for broken in (whole[:12], too_large, too_small):
        batch = parsed(kind, broken)
        assert batch.unparsed == 1
        assert len(batch.records) < 2


values = st.integers(-5000, 100) | st.integers(2**32 - 4100, 2**32) | st.integers(-(2**63), 2**63 - 1)


@st.composite
def real_pages(draw: st.DrawFn) -> list[bytes]:
    random = Random(draw(st.integers(0, 2**32)))
    made = []
    now = draw(st.integers(0, 2**58))
    for _ in range(draw(st.integers(1, 3))):
        flags = draw(st.sampled_from([0, 0, MISSED]))
        page = Page(now, lost=draw(st.sampled_from([None, 3])), flags=flags)
        for _ in range(draw(st.integers(0, 20))):
            now += random.choice([0, 1, 1000, 1 << 27, 1 << 40])
            tid = random.choice([1, 2, 13, 70000])
            name = random.choice([b"bash", b"sh", b"", None, b'we"ird\n', b"x" * 40])
            returned = back(draw(values), tid, name, random.choice([0, 16, 99]))
            body = random.choice([entry(tid), returned, event(11, tid)])
            if page.room(len(body) + 16):
                page.add(now, body, long=random.random() < 0.1)
            if random.random() < 0.1 and page.room(20):
                page.discard(8)
                now += 1
        made.append(page.render())
    return made


HOLES = st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=12)


@given(real_pages(), HOLES, st.integers(0, 4096))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=200)
def test_both_parsers_agree_on_damage(rendered: list[bytes], holes: list[tuple[int, int]], cut: int) -> None:
    damaged = []
    for page in rendered:
        data = bytearray(page)
        for at, byte in holes:
            data[at] = byte
        damaged.append(bytes(data[:cut]) if cut % 3 == 0 else bytes(data))
    assert parsed(compiled.PageParser, *damaged) == parsed(pages.PageParser, *damaged)


@st.composite
def torn(draw: st.DrawFn) -> tuple[list[tuple[int, bytes | None]], dict[int, list[int]]]:
    """Generate pages of some CPUs, None for each call of take(), and the times of events in none of them."""
    read: list[tuple[int, bytes | None]] = []
    missing: dict[int, list[int]] = {}
    overwritten = set()
    now = 0
    for _ in range(draw(st.integers(1, 12))):
        cpu = draw(st.sampled_from([0, 3, 70_000]))
        page = Page(now, flags=MISSED if cpu in overwritten else 0)
        times = []
        for step in draw(st.lists(st.sampled_from([0, 1, 1000, 1 << 40]), min_size=1, max_size=4)):
            now += step
            times.append(now)
            page.add(now, draw(st.sampled_from([back(1), event(11, 5), event(5, 1)])))
        match draw(st.sampled_from(["whole", "whole", "lost", "cut", "take"])):
            case "lost":
                overwritten.add(cpu)
                missing.setdefault(cpu, []).extend(times)
                continue
            case "cut":
                page.add(now, event(9, 1))
                missing.setdefault(cpu, []).append(now)
            case "take":
                read.append((cpu, None))
        overwritten.discard(cpu)
        read.append((cpu, page.render()))
    for cpu in overwritten:
        now += 1
        read.append((cpu, Page(now, flags=MISSED).add(now, back(1)).render()))
    return read, missing


@both
@pytest.mark.parametrize("recipes", [False, True])
@given(torn=torn())
def test_every_event_that_is_missing_lies_in_a_loss(
    kind: Any, recipes: bool, torn: tuple[list[tuple[int, bytes | None]], dict[int, list[int]]]
) -> None:
    read, missing = torn
    one = parser(kind, recipes=RECIPES if recipes else None)
    losses: list[Loss] = []
    for cpu, page in read:
        if page is None:
            losses += one.take().losses
        else:
            one.feed(page, cpu)
    losses += one.take().losses
    for cpu, times in missing.items():
        for time in times:
            assert any(loss.cpu == cpu and loss.start <= time <= loss.end for loss in losses)
    assert {loss.cpu for loss in losses} <= set(missing)


@given(st.lists(st.tuples(st.integers(0, 2), real_pages(), st.integers(0, 4096), st.booleans()), max_size=6))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_both_parsers_tell_the_same_losses(read: list[tuple[int, list[bytes], int, bool]]) -> None:
    batches: list[list[Batch]] = []
    for kind in PARSERS:
        one = parser(kind)
        batches.append([])
        for cpu, rendered, cut, take in read:
            for page in rendered:
                one.feed(page[:cut] if cut % 4 == 0 else page, cpu)
            if take:
                batches[-1].append(one.take())
        batches[-1].append(one.take())
    assert batches[0] == batches[1]


def numbers(rendered: list[bytes], kind: Any, filtered: Where | None, *, recipes: bool) -> Numbers:
    """Return what an aggregator shows after these pages."""
    aggregator = Aggregator("ns", SeriesLimits(6, 40), lambda number: f"E{number}")
    made = {}
    for shape in SHAPES[:2]:
        aggregator.declare(PROBES[shape.layout.layout_id])
        mine = filtered if shape is RETURN else None
        aggregator.attach(shape.layout, count_hits=True, residual_filter=mine)
        written = source_recipe(shape.layout, PROBES[shape.layout.layout_id], mine)
        assert written is not None
        if recipes:
            made[shape.layout.layout_id] = written
    one = parser(kind, SHAPES[:2], recipes=made)
    for number, page in enumerate(rendered):
        one.feed(page, number)
        batch = one.take()
        assert not [record for record in batch.records if record[0] in made]
        aggregator.consume(batch)
    copied = aggregator.copy()
    return copied._replace(worst={name: one._replace(time=0.0) for name, one in copied.worst.items()})


@given(real_pages(), st.sampled_from([None, condition("return > 0"), condition('name == "bash"')]))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_adding_up_in_the_walk_comes_to_what_single_records_do(
    rendered: list[bytes], filtered: Where | None
) -> None:
    expected = numbers(rendered, pages.PageParser, filtered, recipes=False)
    found = numbers(rendered, compiled.PageParser, filtered, recipes=True)
    assert found._replace(families=()) == expected._replace(families=())
    assert [*map(plain, found.families)] == [*map(plain, expected.families)]


ROUNDED = 1024
"""Rounding of a float near 2**63: summing records loses up to this at each of them, summing tallies none."""


def plain(family: Family) -> object:
    """Return a family's name and samples, with a tolerance for sums of fractions."""
    samples = {
        key: (value.counts, pytest.approx(value.sum, abs=ROUNDED * sum(value.counts)))
        if isinstance(value, HistogramValue)
        else value
        for key, value in family.samples.items()
    }
    return family.name, samples


FILTERS = [
    None,
    "return > 0",
    'name == "bash" || return == -2',
    'name ~ "b*" && cpu != 1',
    "missing != 3 && tid < 7",
]


@given(real_pages(), st.lists(st.sampled_from(FILTERS), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_probes_that_share_a_tracepoint_have_their_own_records(
    rendered: list[bytes], texts: list[str | None]
) -> None:
    """Each layout gets the records that pass its filter, and the number of all; the others go on as ever."""
    layouts = [replace(RETURN.layout, layout_id=number) for number in range(20, 20 + len(texts))]
    wheres = {layout: condition(text) for layout, text in zip(layouts, texts, strict=True) if text}
    filters = record_filters([wheres])
    shapes = [ENTRY, *(RETURN._replace(layout=layout) for layout in layouts)]
    whole = parsed(pages.PageParser, *rendered, shapes=shapes)
    passing = [one for one in whole.records if one[0] not in filters or filters[one[0]].test(one)]
    arrived = Counter(one[0] for one in whole.records if one[0] in filters)
    passed = Counter(one[0] for one in passing if one[0] in filters)
    for kind in PARSERS:
        found = parsed(kind, *rendered, shapes=shapes, filters=filters)
        assert found.records == passing
        assert found.arrived == arrived
        assert found.passed == {layout_id: passed[layout_id] for layout_id in arrived}
        assert (found.losses, found.unparsed) == (whole.losses, whole.unparsed)


def test_a_layout_that_is_added_up_beside_one_that_is_filtered() -> None:
    half = replace(RETURN.layout, layout_id=20)
    filters = record_filters([{half: condition("return > 0")}])
    shapes = [RETURN, RETURN._replace(layout=half)]
    page = Page().add(1, back(-2)).add(2, back(7)).add(3, back(9)).render()
    batch = parsed(compiled.PageParser, page, shapes=shapes, filters=filters, recipes=RECIPES)
    assert [record[:2] for record in batch.records] == [(20, 2), (20, 3)]
    assert (batch.arrived, batch.passed) == ({1: 3, 20: 3}, {20: 2})


LIMITS = [near for power in range(63) for near in (2**power - 1, 2**power, 2**power + 1)]
LIMITS.remove(2**32 - 1)  # as a return value it is the error -1


@pytest.mark.parametrize("sign", [1, -1])
def test_the_exponential_bucket_of_large_and_small_values(sign: int) -> None:
    """There is a test with numbers drawn at random, too, which are seldom large ones."""
    buckets = exponential(0.5)
    rendered = []
    for at in range(0, len(LIMITS), 50):
        page = Page()
        for number in LIMITS[at : at + 50]:
            page.add(1, back(sign * number, tid=5, name=None))
        rendered.append(page.render())
    found = Counter[ExponentialBucket | None]()
    for tally in parsed(compiled.PageParser, *rendered, recipes=RECIPES).tallies:
        if tally.feeds == 2:
            assert tally.key == (5,)
            found[tally.exponential] += tally.events
    assert found == Counter(buckets.bucket(code(buckets, sign * number)) for number in LIMITS)


def test_the_exponential_bucket_of_an_unsigned_number() -> None:
    group = Group(0, value="u64", exponential=exponential(1))
    batch = parsed(compiled.PageParser, Page().add(1, entry(40)).render(), recipes={0: Recipe((group,))})
    assert [tally.exponential for tally in batch.tallies] == [ExponentialBucket(1, 63 * 8 + 1, 3)]
