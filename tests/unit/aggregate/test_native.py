"""Native histograms: each value is in its bucket, and coarser buckets hold what finer ones did."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.logarithm_mapping import (
    LogarithmMapping,
)

from kprobe_exporter.aggregate.native import COARSEST, MAX_BUCKETS, SCHEMA, NativeCell, code, exponential
from kprobe_exporter.aggregate.numbers import HistogramCell
from kprobe_exporter.model.aggregation import ExponentialBucket, Tally
from kprobe_exporter.model.values import LARGEST, SMALLEST

NUMBERS = st.integers(SMALLEST, LARGEST) | st.integers(-1000, 1000)
SCALES = st.sampled_from([1.0, 1e-9, 1e-3, 0.5, 512.0, 3.7, 1e200])


@given(NUMBERS, SCALES)
def test_a_bucket_is_where_the_sdk_of_opentelemetry_puts_the_value(number: int, scale: float) -> None:
    """It computes logarithms of floats, which near a bound may lie on its other side."""
    bucket = exponential(scale).bucket(code(exponential(scale), number))
    value = abs(number) * scale
    assert bucket.sign == (number > 0) - (number < 0)
    if number:
        theirs = {LogarithmMapping(SCHEMA).map_to_index(value * (1 + by)) + 1 for by in (-1e-12, 0, 1e-12)}
        assert bucket.step in theirs


@pytest.mark.parametrize("power", range(64))
def test_a_power_of_two_is_the_last_of_its_bucket(power: int) -> None:
    found = [exponential(1).bucket(code(exponential(1), number)).step for number in (2**power, 2**power + 1)]
    assert found[0] == power * 8
    assert found[1] > power * 8


@pytest.mark.parametrize("number", [LARGEST, SMALLEST])
def test_the_limits_have_a_bucket(number: int) -> None:
    assert exponential(1).bucket(code(exponential(1), number)).step == (512 if number > 0 else 504)


def test_a_decimal_bound_is_exact() -> None:
    """One second is 2^0, though 1e9 nanoseconds times 1e-9 need not be."""
    nanoseconds = exponential(1e-9)
    assert nanoseconds.bucket(code(nanoseconds, 10**9)) == ExponentialBucket(1, 0, SCHEMA)
    assert nanoseconds.bucket(code(nanoseconds, 10**9 + 1)) == ExponentialBucket(1, 1, SCHEMA)


def cell(numbers: list[int]) -> NativeCell:
    made = NativeCell()
    for number in numbers:
        made.add(exponential(1).bucket(code(exponential(1), number)), 1)
    return made


@given(st.lists(NUMBERS, max_size=400))
def test_no_value_is_lost_however_coarse_the_buckets_become(numbers: list[int]) -> None:
    value = cell(numbers).value()
    assert len(value.positive) + len(value.negative) <= MAX_BUCKETS
    base = 2.0 ** (2.0**-value.schema)
    for sign, counts in ((1, value.positive), (-1, value.negative)):
        ours = [sign * number for number in numbers if sign * number > 0]
        expected = Counter(math.ceil(math.log(number, base) * (1 - 1e-13)) for number in ours)
        assert sum(counts.values()) == len(ours)
        if all(abs(math.log(n, base) - round(math.log(n, base))) > 1e-6 for n in ours):
            assert counts == expected
    assert value.zero == numbers.count(0)


def test_many_buckets_become_fewer_ones() -> None:
    made = cell([2**power + more for power in range(20, 60) for more in (0, 2 ** (power - 1))])
    assert made.schema == SCHEMA
    made = cell([2**power + step * 2 ** (power - 3) for power in range(20, 60) for step in range(8)])
    assert (made.schema, len(made.positive)) == (1, 81)


def test_a_coarse_bucket_makes_the_others_coarse() -> None:
    made = cell([100, 1000])
    made.add(ExponentialBucket(1, 10, 0), 5)
    assert made.value().positive == {7: 1, 10: 6}
    made.add(ExponentialBucket(-1, 3, COARSEST), 1)
    assert made.value() == (COARSEST, 0, {1: 7}, {3: 1})


def test_the_histogram_of_a_label_set_has_both_kinds_of_buckets() -> None:
    histogram = HistogramCell((10.0,), native=True)
    for bucket, events in ((ExponentialBucket(1, 8, 3), 3), (ExponentialBucket(0, 7, 3), 2)):
        histogram.add(Tally(1, 0, (), events, 6, buckets=(events, 0), exponential=bucket), 1)
    value = histogram.value()
    assert value.counts == (5, 0)
    assert value.native == (SCHEMA, 2, {8: 3}, {})
