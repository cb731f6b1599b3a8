"""switch_losses: firings of a probe that is being switched off count as lost: none twice, none invented."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from kprobe_exporter.agent.switch_losses import REASON, SAMPLED, SwitchLosses
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.values import Batch, KernelCounts
from kprobe_exporter.probing.attach import Attached
from tests.support.aggregated import OPEN, aggregator, record

NAME = "open"


class Switched:
    """A recording probe, with the counts and the events that the kernel delivers for it."""

    def __init__(self, **spec: object) -> None:
        residual_filter = spec.pop("residual_filter", None)
        default = {"probe": NAME, "plan": "events", "filter": None, "sample": None}
        values = SimpleNamespace(**{**default, **spec})
        self.attached = cast(
            "Attached",
            SimpleNamespace(
                spec=values,
                joined=None,
                residual_filter=residual_filter,
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
    [{"filter": "a == 1"}, {"plan": "count"}, {"plan": "kernel"}, {"residual_filter": Where((), bool, None)}],
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
