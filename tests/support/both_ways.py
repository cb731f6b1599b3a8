"""Reads a recording with the Python model and with the compiled walk, and compares the results."""

from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st

from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.model.snapshot import HistogramValue
from kprobe_exporter.source import binary
from tests.model import pages
from tests.support.joined_pages import Reading, Recording
from tests.support.page_material import compiled

RANDOM = st.randoms(use_true_random=True)
STEPS = st.integers(0, 200)


def nothing(one: Reading, number: int) -> None:
    """Do nothing between two rounds."""


def both_ways(
    recording: Recording, between: Callable[[Reading, int], None] = nothing, **more: Any
) -> list[Reading]:
    """Read a recording with the Python model and with the compiled walk; ``between`` runs after a round."""
    readings = [Reading(pages.PageParser, **more), Reading(compiled.PageParser, **more)]
    for one in readings:
        for number, (now, found) in enumerate(recording.rounds):
            one.read(now, found)
            between(one, number)
        one.read(now + 1000, {}, last=True)
    return readings


def shown(numbers: Numbers) -> Any:
    """Return all numbers, with what differs only by rounding made equal."""
    families = {
        family.name: {
            key: (value.counts, pytest.approx(value.sum)) if isinstance(value, HistogramValue) else value
            for key, value in family.samples.items()
        }
        for family in numbers.families
    }
    worst = {name: one._replace(time=0.0) for name, one in numbers.worst.items()}
    return families, numbers._replace(families=(), worst=worst)


def compare(
    random: Random,
    recording: Recording,
    between: Callable[[Reading, int], None] = nothing,
    **more: Any,
) -> list[Reading]:
    """Read both ways, with batches that are handed over very often or at the end of a round; compare."""
    with patch.object(binary, "MANY", random.choice([1, 3, 8192])):
        model, walk = both_ways(recording, between, **more)
    assert not walk.halves, "the walk delivered a half instead of joining it"
    assert shown(walk.numbers.copy()) == shown(model.numbers.copy())
    assert walk.exported.traces() == model.exported.traces()
    assert walk.exported.dropped == model.exported.dropped
    assert walk.open == model.open
    assert walk.evicted == model.evicted
    return [model, walk]
