"""Hits that are neither events nor lost are told, at quiet moments only."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from kprobe_exporter.agent.audit import Audit, audited
from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.aggregate.numbers import Arrivals

PROBES = [("open", 1)]
Look = Callable[..., dict[str, float]]


@pytest.fixture
def audit() -> Audit:
    return Audit()


@pytest.fixture
def look(audit: Audit) -> Look:
    def look(hits: int, recorded: int, lost: int = 0, waiting: int = 0, times: int = 1) -> dict[str, float]:
        for _ in range(times):
            audit.look(Arrivals({1: (hits, recorded)}, lost, waiting), PROBES)
        return {labels[0]: cast("float", value) for labels, value in audit.family().samples.items()}

    return look


def test_a_difference_that_stays(look: Look, caplog: pytest.LogCaptureFixture) -> None:
    look(0, 0)
    assert look(10, 7) == {"open": 0}
    with caplog.at_level(logging.WARNING):
        assert look(10, 7, times=3) == {"open": 3}
    assert [record.args for record in caplog.records] == [("open", 3)]
    assert look(12, 9) == {"open": 3}
    assert look(12, 12, times=2) == {"open": 0}


def test_events_that_wait_are_not_missing(look: Look) -> None:
    look(0, 0)
    assert look(10, 7, waiting=100, times=3) == {"open": 0}
    assert look(10, 10, times=2) == {"open": 0}


def test_losses_explain_what_is_missing(look: Look) -> None:
    look(0, 0)
    assert look(10, 7, lost=3, times=2) == {"open": 0}
    assert look(11, 7, lost=3, times=2) == {"open": 1}


def test_losses_before_the_probe_was_attached_explain_nothing(audit: Audit) -> None:
    audit.look(Arrivals({}, 100, 0), [])
    for _ in range(2):
        audit.look(Arrivals({1: (10, 7)}, 101, 0), PROBES)
    assert audit.family().samples == {("open",): 2}


def test_an_interruption_excuses_what_is_missing_then(audit: Audit, look: Look) -> None:
    look(0, 0)
    audit.excuse()
    assert look(10, 7, times=2) == {"open": 0}
    assert look(20, 17, times=2) == {"open": 0}
    assert look(21, 17, times=2) == {"open": 1}
    audit.excuse()
    assert look(21, 17, times=2) == {"open": 0}


def test_an_interruption_before_the_first_look(audit: Audit, look: Look) -> None:
    audit.excuse()
    before = audit.excuses
    assert look(23, 0, times=3) == {"open": 0}
    assert (before, audit.excuses) == (True, False)
    assert look(24, 0, times=2) == {"open": 1}


def test_a_probe_that_is_gone(audit: Audit, look: Look) -> None:
    look(10, 7, times=2)
    audit.look(Arrivals({}, 0, 0), PROBES)
    assert audit.family().samples == {}


def state(kind: str = "up", plan: str = "events", **parts: object) -> ProbeState:
    part = SimpleNamespace(
        hits=parts.get("hits", object()),
        spec=SimpleNamespace(role="whole", kernel_filter=parts.get("filter")),
    )
    end = SimpleNamespace(hits=None, spec=SimpleNamespace(role="end", kernel_filter=None))
    attached = SimpleNamespace(
        spec=SimpleNamespace(plan=plan), parts=(part, end), layout=SimpleNamespace(layout_id=7)
    )
    found = SimpleNamespace(state=kind, attached=attached, name="open")
    return cast("ProbeState", found)


def test_which_probes_are_audited() -> None:
    assert list(audited([state()])) == [("open", 7)]
    others = [state("tripped"), state(plan="kernel"), state(plan="count"), state(filter="a == 1")]
    profiled = state(hits=None)
    profiled.attached.parts[0].hits = None  # type: ignore[union-attr]
    down = cast("ProbeState", SimpleNamespace(state="up", attached=None, name="open"))
    assert list(audited([*others, profiled, down])) == []
