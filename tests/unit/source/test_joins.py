"""Calls and pairs that the compiled walk joins come to the same numbers as those that `Pairing` joins."""

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.model.values import HistogramValue
from kprobe_exporter.source import binary
from tests.support.joined_pages import ALL, CALL, FIRST_TOO, JOINS, Reading, both_ways, condition, record

RANDOM = st.randoms(use_true_random=True)
DISTANCE = st.sampled_from([0, 8, 16])
DRAWN = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None
)


def shown(numbers: Numbers) -> Any:
    """Return all numbers, with what differs only by rounding made equal."""
    families = {
        family.name: {
            key: (value.counts, pytest.approx(value.sum)) if isinstance(value, HistogramValue) else value
            for key, value in family.samples.items()
        }
        for family in numbers.families
    }
    return families, numbers._replace(families=())


def check_equal(model: Reading, walk: Reading) -> None:
    assert not walk.halves, "the walk delivered a half instead of joining it"
    assert shown(walk.numbers.copy()) == shown(model.numbers.copy())
    assert walk.open == model.open


@pytest.fixture(autouse=True, params=[2, 8192])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand over very often, or only at the end of a round."""
    monkeypatch.setattr(binary, "MANY", request.param)


@given(RANDOM, st.integers(0, 200), DISTANCE, st.sampled_from([0, 0.1, 0.4]))
@DRAWN
def test_the_walk_joins_as_the_model_does(random: Random, steps: int, distance: int, losing: float) -> None:
    recording = record(random, steps, distance, losing)
    check_equal(*both_ways(recording, lambda one, number: None))


@given(RANDOM, st.integers(0, 200), st.integers(1, 12))
@DRAWN
def test_the_bound_of_open_halves(random: Random, steps: int, most: int) -> None:
    """Without forks: the model copies the calls of a parent in no order, so which are the oldest is open."""
    recording = record(random, steps, 8, 0.05, forks=False)
    check_equal(*both_ways(recording, lambda one, number: None, most=most))


@given(RANDOM, st.integers(0, 200))
@DRAWN
def test_filters_of_halves_and_of_joined_records(random: Random, steps: int) -> None:
    filters = {CALL.layout: condition('size >= 1 && name != "bb"'), FIRST_TOO.layout: condition("dev == 1")}
    residual = condition("duration > 0.000000003 && cpu != 1")
    made = both_ways(
        record(random, steps, 8, 0.05), lambda one, number: None, filters=filters, residual=residual
    )
    check_equal(*made)


@given(RANDOM, st.integers(0, 300), st.lists(st.sets(st.sampled_from(sorted(ALL))), min_size=4, max_size=4))
@DRAWN
def test_joins_that_stay_keep_their_open_halves_at_a_reload(
    random: Random, steps: int, joins: list[set[int]]
) -> None:
    recording = record(random, steps, 8, 0.05)
    check_equal(*both_ways(recording, lambda one, number: one.switch(frozenset(joins[number]))))


@given(RANDOM, st.integers(0, 200), st.sampled_from(sorted(JOINS)))
@DRAWN
def test_a_reset_drops_what_is_open(random: Random, steps: int, join: int) -> None:
    check_equal(*both_ways(record(random, steps, 8, 0), lambda one, number: one.reset(join)))
