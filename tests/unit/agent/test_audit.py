"""Hits that are neither events nor lost are told at quiet moments; a probe switched off loses none twice."""

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from kprobe_exporter.agent.audit import REASON, SAMPLED, Audit, SwitchLosses, audited
from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.aggregate.numbers import Arrivals
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import Batch
from kprobe_exporter.model.snapshot import KernelCounts
from kprobe_exporter.probing.attach import Attached
from tests.support.aggregated import OPEN, aggregator, record

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


NAME = "open"


class Switched:
    """A recording probe, with the counts and the events that the kernel delivers for it."""

    def __init__(self, **spec: object) -> None:
        default = {"probe": NAME, "plan": "events", "filter": None, "residual_filter": None, "sample": None}
        values = SimpleNamespace(**{**default, **spec})
        self.attached = cast(
            "Attached",
            SimpleNamespace(
                spec=values,
                joined=None,
                parts=(SimpleNamespace(spec=values),),
            ),
        )
        self.aggregator = aggregator()
        self.balance = SwitchLosses(self.aggregator)
        self.kernel = KernelCounts({NAME: 0}, {}, {}, 0)
        self.balance.begin([self.attached])

    def fire(self, hits: int, events: int, overrun: int = 0) -> None:
        """Add hits, events that are delivered, and overruns of the ring buffer that all probes share."""
        self.aggregator.consume(Batch([record(0)] * events))
        lost = self.kernel.lost.get("overrun", 0) + overrun
        self.kernel = replace(self.kernel, hits={NAME: self.kernel.hits[NAME] + hits}, lost={"overrun": lost})
        self.aggregator.update_kernel(self.kernel)

    def switch(self, hits: int = 0, events: int = 0, overrun: int = 0) -> None:
        """Switch the probe off while it fires, and on again for its successor."""
        before = self.aggregator.hits()
        self.balance.look([self.attached], before)
        self.fire(hits, events, overrun)
        self.balance.end([self.attached], before)
        self.aggregator.detach(OPEN)
        self.aggregator.attach(OPEN, count_hits=False)
        self.kernel = replace(self.kernel, hits={NAME: 0}, epoch=self.aggregator.epoch)
        self.balance.begin([self.attached])

    @property
    def on_record(self) -> int:
        return self.aggregator.copy().lost.get(REASON, 0)


def test_what_is_no_longer_recorded_is_lost() -> None:
    probe = Switched()
    probe.fire(100, 100)
    probe.switch(hits=60, events=10)
    assert probe.on_record == 50


def test_of_a_sampled_probe_every_hit_without_an_event_is_lost() -> None:
    probe = Switched(sample="common_pid & 1")
    probe.fire(800, 100)
    probe.fire(100, 40, overrun=10)
    probe.switch(hits=60, events=10)
    numbers = probe.aggregator.copy()
    assert (numbers.lost[SAMPLED], numbers.lost.get(REASON, 0)) == (800, 0)
    assert numbers.hits[NAME] == numbers.events[NAME] + sum(numbers.lost.values())


def test_it_is_told_anew_each_time_and_never_twice() -> None:
    probe = Switched()
    for hits, events, on_record in ((8, 3, 5), (8, 3, 10), (4, 4, 10), (0, 0, 10), (5, 0, 15)):
        probe.fire(7, 7)
        probe.switch(hits, events)
        assert probe.on_record == on_record
    numbers = probe.aggregator.copy()
    assert numbers.hits[NAME] == numbers.events[NAME] + sum(numbers.lost.values())


def test_what_the_ring_buffer_lost_is_not_told_again() -> None:
    probe = Switched()
    probe.fire(100, 70, overrun=30)
    probe.switch(hits=50, events=40, overrun=10)
    assert probe.on_record == 0
    probe.fire(100, 100)
    probe.switch(hits=9)
    assert probe.on_record == 9


def test_what_others_lost_makes_it_tell_less_and_only_until_it_is_changed() -> None:
    probe = Switched()
    probe.fire(10, 10, overrun=1000)
    probe.switch(hits=9)
    assert probe.on_record == 0
    probe.switch(hits=9)
    assert probe.on_record == 9


def test_what_was_missing_before_is_not_told() -> None:
    """Events missing before are the agent's own, or a fault of its own: another process stopped recording."""
    probe = Switched()
    probe.fire(500, 100)
    probe.switch(hits=53, events=50)
    assert probe.on_record == 3


@pytest.mark.parametrize(
    "spec",
    [
        {"filter": "a == 1"},
        {"plan": "count"},
        {"plan": "kernel"},
        {"residual_filter": Where((), ("all", ()))},
    ],
)
def test_where_not_each_hit_is_to_be_an_event_nothing_is_told(spec: dict[str, object]) -> None:
    probe = Switched(**spec)
    probe.fire(10, 0)
    probe.switch(hits=50)
    assert probe.on_record == 0


def test_who_has_no_count_has_no_balance() -> None:
    probe = Switched()
    probe.balance.end([probe.attached], {})
    assert probe.on_record == 0
