"""What the compiled walk chooses to export is what `Selector` selects: items, their traces and parents."""

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.model.aggregation import Group, Recipe, RecordChoice
from tests.model.pages import NO_STACKS
from tests.support.both_ways import RANDOM, STEPS, both_ways, compare
from tests.support.joined_pages import (
    ALL,
    IN_NO_CALL,
    JOINS,
    SINGLE,
    SOME_LARGE,
    Recording,
    call,
    choices,
    condition,
    first,
    record,
)
from tests.support.page_material import Names, compiled
from tests.support.ring_buffer import GEOMETRY, Page

DRAWN = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=30)


@given(
    RANDOM, STEPS, st.sampled_from([0, 0.05]), st.sampled_from([None, "duration > 0.00000001"]), st.booleans()
)
@DRAWN
def test_calls_lie_in_each_other(
    random: Random, steps: int, losing: float, only: str | None, moving: bool
) -> None:
    recording = record(random, steps, 8, losing, ending=6, moving=1)
    residual = None if only is None else condition(only)
    compare(random, recording, exports=choices(random), residual=residual, moving=moving)


@given(RANDOM, STEPS)
@DRAWN
def test_limits_stop_whole_traces(random: Random, steps: int) -> None:
    compare(random, record(random, steps, 8, 0, ending=6, moving=1), exports=choices(random, limits=True))


@given(RANDOM, STEPS, st.lists(st.sets(st.sampled_from(sorted(ALL))), min_size=4, max_size=4))
@DRAWN
def test_open_calls_keep_their_place_at_a_reload(random: Random, steps: int, joins: list[set[int]]) -> None:
    compare(
        random,
        record(random, steps, 8, 0, ending=6),
        exports=choices(random),
        between=lambda one, number: one.switch(frozenset(joins[number])),
    )


@given(RANDOM, STEPS, st.integers(1, 12))
@DRAWN
def test_the_bound_of_open_halves(random: Random, steps: int, most: int) -> None:
    recording = record(random, steps, 8, 0.05, forks=False, ending=6, moving=1)
    compare(random, recording, exports=choices(random), most=most)


def test_what_is_drawn_is_exported_in_every_way() -> None:
    """The tests above compare something: spans in spans, logs in spans, and what was needed for them only."""
    exports = {number: RecordChoice("span", SOME_LARGE, nested=number not in IN_NO_CALL) for number in JOINS}
    exports[SINGLE.id] = RecordChoice("log", SOME_LARGE)
    recording = record(Random(1), 4000, 8, 0.01, moving=1)
    _, walk = compare(Random(1), recording, exports=exports)
    items = walk.exported.items
    inner = Counter((signal, one.parent != 0) for signal, one in items)
    assert min(inner["span", True], inner["span", False], inner["log", True], inner["log", False]) > 20
    deep = Counter(one.trace for signal, one in items if signal == "span")
    assert max(deep.values()) > 5


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_trace_is_sampled_as_a_whole(share: float) -> None:
    exports = {number: RecordChoice("span", SOME_LARGE, nested=number not in IN_NO_CALL) for number in JOINS}
    recording = record(Random(2), 6000, 8, 0)
    whole, _ = both_ways(recording, exports=exports)
    sampled = {number: one._replace(share=share) for number, one in exports.items()}
    _, walk = both_ways(recording, exports=sampled)
    every, some = whole.exported.traces(), walk.exported.traces()
    assert some <= every
    number = every.total()
    assert number > 300
    assert some.total() == pytest.approx(number * share, abs=5 * (number * share * (1 - share)) ** 0.5)


@pytest.mark.parametrize("share", [0.001, 0.25, 1.0])
def test_a_share_of_log_records(share: float) -> None:
    number = 20_000
    choice = RecordChoice("log", condition("size == 1"), share)
    recipe = Recipe((Group(0, ("size",)),), None, choice)
    parser = compiled.PageParser(GEOMETRY, [SINGLE], Names(), NO_STACKS, False, {SINGLE.id: recipe})
    for _ in range(number // 100):
        page = Page(1)
        for time in range(100):
            page.add(time + 1, first(45, 7, 1, b"a", time % 2))
        parser.feed(page.render(), 0)
    batch = parser.take()
    parser.join(batch)
    assert sum(tally.events for tally in batch.tallies) == number
    assert not batch.records
    assert len(batch.emissions) == pytest.approx(
        number / 2 * share, abs=5 * (number * share * (1 - share)) ** 0.5
    )


def test_limits_go_by_the_time_of_the_events() -> None:
    """10 a second for 20 seconds, of which the first second's are there at once; the rest is told."""
    second = 1_000_000_000
    page = Page(second)
    rounds = []
    for number in range(2000):
        page.add(second + number * 10_000_000, first(45, 7, 1, b"a", 1))
        if number % 50 == 49:
            rounds.append((page.time, {0: [page.render()]}))
            page = Page(second + (number + 1) * 10_000_000)
    for one in both_ways(Recording(rounds), exports={SINGLE.id: RecordChoice("log", None, 1.0, 10.0)}):
        assert len(one.exported.items) == pytest.approx(210, abs=2)
        assert one.exported.dropped.total() == 2000 - len(one.exported.items)


def test_recursion_deeper_than_is_examined() -> None:
    """A call looks at no more than 256 open ones around it."""
    page = Page(1)
    time, rounds = 1, []
    for depth in range(600):
        if not page.room(80):
            rounds.append((time, {0: [page.render()]}))
            page = Page(time)
        time += 1
        page.add(time, call(10, 7, (1 << 20) - 16 * depth, 1, b"a"))
    rounds.append((time, {0: [page.render()]}))
    exports = {60: RecordChoice("span", nested=True), SINGLE.id: RecordChoice("log")}
    more = Page(time)
    more.add(time + 1, first(45, 7, 1, b"a", 1))
    rounds.append((time + 1, {0: [more.render()]}))
    compare(Random(3), Recording(rounds), exports=exports)
