"""Calls and pairs that the compiled walk joins come to the same numbers as those that `Pairing` joins."""

import struct
from random import Random
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.both_ways import RANDOM, STEPS, both_ways, compare
from tests.support.joined_pages import (
    ALL,
    ASKED,
    CALL,
    FIRST_TOO,
    JOINS,
    SENT,
    Reading,
    Recording,
    call,
    condition,
    exited,
    first,
    record,
    started,
)
from tests.support.page_material import compiled
from tests.support.ring_buffer import MISSED, Page

DRAWN = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=25)


@given(
    RANDOM,
    STEPS,
    st.sampled_from([0, 8, 16]),
    st.sampled_from([0, 0.1, 0.4]),
    st.sampled_from([0, 0.3, 0.8]),
    st.sampled_from([2, 20]),
)
@DRAWN
@example(Random(172468391), 95, 0, 0.1, 0.8, 2)  # a loss at the end of the last round that has events
def test_the_walk_joins_as_the_model_does(
    random: Random, steps: int, distance: int, losing: float, ties: float, ending: int
) -> None:
    compare(random, record(random, steps, distance, losing, ties=ties, ending=ending))


@given(RANDOM, STEPS, st.integers(1, 12))
@DRAWN
def test_the_bound_of_open_halves(random: Random, steps: int, most: int) -> None:
    """Without forks: the model copies the calls of a parent in no order, so which are the oldest is open."""
    compare(random, record(random, steps, 8, 0.05, ties=0.2, forks=False, ending=6), most=most)


@given(RANDOM, STEPS, st.sets(st.sampled_from([0, 1, 7, 8, 9, -3]), min_size=1))
@DRAWN
def test_own_threads_begin_nothing(random: Random, steps: int, own: set[int]) -> None:
    """What a thread of the agent begins is discarded; it may end what another thread began."""
    recording = record(random, steps, 8, 0.05, ties=0.2, ending=6)
    compare(random, recording, own_threads=frozenset(own))


@given(RANDOM, STEPS)
@DRAWN
def test_filters_of_halves_and_of_joined_records(random: Random, steps: int) -> None:
    filters = {
        CALL.layout: condition('size >= 1 && name != "bb"'),
        FIRST_TOO.layout: condition("dev == 1"),
        SENT.layout: condition("size < 2"),
        ASKED.layout: condition('pid != 4 && !(words ~ "*cc*")'),
    }
    residual = condition("duration > 0.000000003 && cpu != 1 && sent != 5 && !(merged > 20) && pid < 5")
    compare(random, record(random, steps, 8, 0.05, ties=0.2, ending=6), filters=filters, residual=residual)


@given(RANDOM, STEPS, st.lists(st.sets(st.sampled_from(sorted(ALL))), min_size=4, max_size=4))
@DRAWN
def test_joins_that_stay_keep_their_open_halves_at_a_reload(
    random: Random, steps: int, joins: list[set[int]]
) -> None:
    recording = record(random, steps, 8, 0.05, ties=0.2, ending=6)
    compare(random, recording, lambda one, number: one.switch(frozenset(joins[number])))


@given(RANDOM, STEPS, st.sampled_from(sorted(JOINS)))
@DRAWN
def test_a_reset_drops_what_is_open(random: Random, steps: int, join: int) -> None:
    compare(random, record(random, steps, 8, 0, ties=0.2, ending=6), lambda one, number: one.reset(join))


@given(RANDOM, STEPS, st.sampled_from([0, 0.1]), st.integers(1, 5))
@DRAWN
def test_the_cgroups_of_threads_are_those_of_the_moment(
    random: Random, steps: int, losing: float, moving: int
) -> None:
    """Without ties: of two events at the same time on different CPUs, either may be the first."""
    compare(random, record(random, steps, 8, losing, ending=6, moving=moving), moving=True)


@given(RANDOM, STEPS, st.lists(st.sets(st.sampled_from(sorted(ALL))), min_size=4, max_size=4))
@DRAWN
def test_single_events_that_wait_stay_at_a_reload(random: Random, steps: int, joins: list[set[int]]) -> None:
    recording = record(random, steps, 8, 0.05, ending=6, moving=3)
    compare(random, recording, lambda one, number: one.switch(frozenset(joins[number])), moving=True)


@given(RANDOM, STEPS, st.sampled_from([0, 0.1]), st.sampled_from([2, 20]))
@DRAWN
def test_what_is_outstanding_is_counted_as_the_model_does(
    random: Random, steps: int, losing: float, ending: int
) -> None:
    counts: dict[bool, list[Any]] = {True: [], False: []}

    def note(one: Reading, number: int) -> None:
        by_model = {number: some.count(one.now) for number, some in one.pairing._outstanding.items()}
        compiled = one.kind.compiled
        counts[compiled].append(one.parser.outstanding(one.now) if compiled else by_model)

    compare(random, record(random, steps, 8, losing, ending=ending), note)
    assert counts[True] == counts[False]


def test_evicted_halves_are_unpaired() -> None:
    walk = compare(Random(3), record(Random(3), 2000, 8, 0, forks=False), most=5)[1]
    unpaired = walk.numbers.copy().lost_of
    assert walk.evicted.total() > 100
    assert all(number <= unpaired[f"probe{join}", "unpaired"] for join, number in walk.evicted.items())


def test_what_is_drawn_is_joined_in_every_way() -> None:
    """The tests above compare something: calls, pairs by a key and by thread, unpaired and open halves."""
    model, walk = both_ways(record(Random(1), 2000, 8, 0.02))
    numbers = walk.numbers.copy()
    assert min(numbers.events[f"probe{number}"] for number in JOINS) > 20
    assert min(numbers.lost_of[f"probe{number}", "unpaired"] for number in JOINS) > 20
    assert walk.open == model.open > 0
    for name in ("p62_merged_total", "p62_sent_total", "p65_previous_size_total"):
        [seen] = [one.samples for one in numbers.families if one.name == name]
        assert len(seen) > 4


def both_of(*events: tuple[int, bytes], **more: Any) -> list[Reading]:
    """Read these events of one CPU, each with its time, both ways."""
    page = Page(1)
    for time, payload in events:
        page.add(time, payload)
    return both_ways(Recording([(1000, {0: [page.render()]})]), **more)


def test_call_that_a_loss_broke_is_told_at_once() -> None:
    """It stays open: its return may still come, and is told then."""
    before, after = Page(1), Page(20, flags=MISSED)
    before.add(2, call(10, 7, 1 << 20, 1, b"a"))
    after.add(21, call(10, 8, 1 << 20, 1, b"a"))
    rounds = [(10, {0: [before.render()]}), (30, {0: [after.render()]})]
    for one in both_ways(Recording(rounds)):
        assert (one.numbers.copy().lost_of["probe60", "unpaired"], one.open) == (1, 2)


def test_a_pair_may_end_with_the_event_that_ends_its_thread() -> None:
    for one in both_of((2, first(42, 7, 1, b"a", 1)), (5, exited(7))):
        numbers = one.numbers.copy()
        assert (numbers.events["probe64"], numbers.lost_of["probe64", "unpaired"], one.open) == (1, 0, 0)


def test_a_call_at_the_time_of_its_threads_exit_ends_with_it() -> None:
    events = (2, exited(7)), (2, call(10, 7, 1 << 20, 1, b"a")), (2, first(40, 7, 1, b"a", 1))
    for one in both_of(*events, (3, first(40, 7, 1, b"a", 1))):
        lost = one.numbers.copy().lost_of
        assert (lost["probe60", "unpaired"], lost["probe63", "unpaired"], one.open) == (1, 1, 2)


def test_forks_do_not_exceed_the_bound_of_open_halves() -> None:
    calls = [(2, call(20, 7, (1 << 20) - 16 * depth, 1, b"a")) for depth in range(3)]
    for one in both_of(*calls, *((3, started(7, child, 0)) for child in range(10, 60)), most=20):
        assert 0 < one.open <= 20
        assert one.numbers.copy().lost_of["probe61", "unpaired"] == 3, (
            "the calls of the parent are the oldest"
        )


def test_the_bound_of_the_bytes_of_open_halves() -> None:
    """Halves with long strings take no more than 64 MiB; the oldest are unpaired."""
    number, payload = 17_000, call(10, 5, 1 << 20, 1, b"x" * 4000)
    size = len(payload)
    reading = Reading(compiled.PageParser)
    page = Page(1).add(1, payload).render()
    at = page.index(struct.pack("=i", 5), 20)
    for tid in range(number):
        reading.parser.feed(page[:at] + struct.pack("=i", tid) + page[at + 4 :], 0)
    reading.read(1000, {}, last=True)
    unpaired = reading.numbers.copy().lost["unpaired"]
    assert reading.open + unpaired == number
    assert (1 << 26) * 63 // 64 - 2 * size < reading.open * size < 1 << 26
