"""Bounds and scales are the decimals of a configuration; fields of records; what the source joins itself."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.recipes import (
    getter,
    join_recipe,
    passes,
    recipe,
    thresholds,
)
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.model.joins import JoinRecipe
from kprobe_exporter.model.records import Join, Layout
from kprobe_exporter.model.specs import LabelSpec, MetricSpec, ProbeMetrics
from kprobe_exporter.model.values import LARGEST, MAX_ERRNO, SMALLEST, Arg, ReturnType, decimal
from kprobe_exporter.plan.metric import where
from tests.support.return_records import INT, LONG, PTR, U64, layout, record

SCALES = [1.0, 512.0, 0.1, 0.3, 1.1, 0.07, 2.5, 1e-3, 1e-6, 1e-9, 1.1e-9]

WIDTHS = [
    (LONG, -2, -2),
    (LONG, 2**32 - 1, -1),
    (LONG, 2**32 - MAX_ERRNO, -MAX_ERRNO),
    (LONG, 2**32 - MAX_ERRNO - 1, 2**32 - MAX_ERRNO - 1),
    (LONG, 2**32, 2**32),
    (INT, 2**31 - 1, 2**31 - 1),
    (INT, -2, -2),
    (U64, 2**32 - 2, 2**32 - 2),
    (U64, 2**64 - 2, 2**64 - 2),
    (PTR, 2**64 - 2, -2),
    (PTR, 2**64 - MAX_ERRNO, -MAX_ERRNO),
    (PTR, 2**64 - MAX_ERRNO - 1, 2**64 - MAX_ERRNO - 1),
    (PTR, 2**32 - 2, 2**32 - 2),
    (PTR, 0, 0),
    (None, 2**32 - 2, 2**32 - 2),
    (LONG, None, None),
]


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
        (2.0**63, 1.0, 2**63),  # is written as 9.223372036854776e+18
        (-(2.0**63), 1.0, SMALLEST),
        (2.0**56 / 1000, 1e-3, 2**56),
        (9.9e18, 1.0, 99 * 10**17),
    ],
)
def test_bounds_that_floats_or_64_bits_would_miss(bound: float, scale: float, found: int) -> None:
    assert thresholds((bound,), scale) == (found,)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu", 2),
        ("tid", 77),
        ("pid", 66),
        ("caller", b"ksys_read"),
        ("symbol", b"vfs_read"),
        ("return", 5),
        ("count", 23),
        ("comm", b"bash"),
        ("absent", None),
        ("", None),
    ],
)
def test_a_field_of_a_record(field: str, value: object) -> None:
    assert getter(layout(), field)(record(5, 23)) == value


@pytest.mark.parametrize(("returns", "raw", "value"), WIDTHS)
def test_the_width_of_a_return_value(returns: ReturnType | None, raw: object, value: object) -> None:
    assert getter(layout(returns), "return")(record(raw)) == value


def test_a_filter_on_records() -> None:
    test = passes(layout(LONG), where(parse_formula('return < 0 && comm == "bash" && cpu != 3')))
    records = [record(-2), record(-2, comm=b"zsh"), record(2), record(None), record(2**32 - 22)]
    # The last record is the error -22, without its sign.
    assert [each for each in records if test(each)] == [records[0], records[4]]


FIRST = Layout(
    1, "p", "first", "tracepoint", "f", (Arg("dev", "int"), Arg("name", "str"), Arg("letter", "char"))
)
LAST = replace(FIRST, layout_id=2, event="last")
BOTH = Layout(3, "p", "p", "joined", "f", (*FIRST.args, Arg("duration", "int")))
BY_DEV = Join(BOTH, (FIRST,), LAST, "key", ("dev",))
PLAIN = MetricSpec("a_total", "counter", "h", None, (LabelSpec("name", "name"),))


def joined(join: Join = BY_DEV, metric: MetricSpec = PLAIN) -> JoinRecipe | None:
    return join_recipe(join, ProbeMetrics("p", (metric,), (), None), None)


@pytest.mark.parametrize("key", [("dev",), ("tid",), ("name", "cpu"), ("pid", "letter")])
def test_pairs_are_joined_by_the_source(key: tuple[str, ...]) -> None:
    join = BY_DEV._replace(key=key)
    assert joined(join) == JoinRecipe(join, recipe(BOTH, ProbeMetrics("p", (PLAIN,), (), None)))


def test_source_delivers_halves_that_need_their_stacks() -> None:
    assert joined(BY_DEV._replace(begins=(replace(FIRST, stack=True),))) is None
