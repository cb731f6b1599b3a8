"""Bounds and scales are the decimals that a configuration has, whatever floats make of their products."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.recipes import LARGEST, SMALLEST, thresholds
from kprobe_exporter.model.values import decimal

SCALES = [1.0, 512.0, 0.1, 0.3, 1.1, 0.07, 2.5, 1e-3, 1e-6, 1e-9, 1.1e-9]


@given(st.integers(-(10**6), 10**6), st.sampled_from(SCALES))
def test_a_value_on_a_bound_is_within_it(number: int, scale: float) -> None:
    bound = float(number * decimal(scale))
    assert thresholds((bound,), scale) == (number,)


@given(st.floats(-1e6, 1e6), st.sampled_from(SCALES))
def test_the_greatest_number_whose_product_is_within_the_bound(bound: float, scale: float) -> None:
    (found,) = thresholds((bound,), scale)
    assert found * Fraction(repr(scale)) <= Fraction(repr(bound)) < (found + 1) * Fraction(repr(scale))


@pytest.mark.parametrize(
    ("bound", "scale", "found"),
    [
        (3.3, 1.1, 3),  # 3 * 1.1 is 3.3000000000000003
        (0.8, 0.1, 8),
        (1e-06, 1e-9, 1000),
        (1e300, 1.0, LARGEST),
        (-1e300, 1.0, SMALLEST - 1),
        (1.0, 5e-324, LARGEST),
    ],
)
def test_bounds_that_floats_or_64_bits_would_miss(bound: float, scale: float, found: int) -> None:
    assert thresholds((bound,), scale) == (found,)
