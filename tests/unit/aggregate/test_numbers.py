"""Sums that never decrease, even where the kernel's counter does."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.numbers import Accumulator


@pytest.mark.parametrize(
    ("raw", "total"),
    [
        ([], 0),
        ([5], 5),
        ([5, 5, 7], 7),
        ([5, 2], 7),
        ([5, 0, 3], 8),
        ([2**64 - 1, 1], 2**64),
    ],
)
def test_what_it_sums(raw: list[int], total: int) -> None:
    accumulator = Accumulator()
    for number in raw:
        accumulator.update(number)
    assert accumulator.total == total


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_it_never_goes_down(raw: list[int]) -> None:
    accumulator, totals = Accumulator(), [0]
    for number in raw:
        accumulator.update(number)
        totals.append(accumulator.total)
    assert all(earlier <= later for earlier, later in pairwise(totals))


@given(st.lists(st.lists(st.integers(0, 100)), max_size=5))
def test_restarts_that_can_be_seen_lose_nothing(lives: list[list[int]]) -> None:
    """A counter that restarts below its last value is seen to restart, so no count is lost."""
    accumulator, last, total = Accumulator(), 0, 0
    for life in lives:
        counts = sorted(life)
        if not counts or counts[0] >= last:
            continue
        for count in counts:
            accumulator.update(count)
        last = counts[-1]
        total += last
    assert accumulator.total == total


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=9),
    st.integers(0, 9),
    st.lists(st.integers(0, 9), max_size=9),
)
def test_one_of_two_counters_is_left_out(
    steps: list[tuple[int, int, bool]], last: int, alone: list[int]
) -> None:
    """It does not matter when the sum was read last: every hit of both counts, and none twice."""
    accumulator, first, second = Accumulator(), 0, 0
    for more, other, read in steps:
        first, second = first + more, second + other
        if read:
            accumulator.update(first + second)
    first += last
    accumulator.leave_out(first)
    for other in alone:
        second += other
        accumulator.update(second)
    if alone:
        assert accumulator.total == first + second


def test_a_part_that_is_unknown_is_never_counted_twice() -> None:
    accumulator = Accumulator()
    accumulator.update(100 + 7)
    accumulator.leave_out(None)
    accumulator.leave_out(None)
    for second in (9, 12):
        accumulator.update(second)
    assert accumulator.total == 107 + 3
