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
