"""Measuring durations: what an agent is configured to do, and the sums that its metrics come to."""

import pytest

from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.model.snapshot import Family, HistogramValue, Snapshot
from tests.bench import load, work
from tests.bench.latency_guest import AGENT, CALL_PROBE, PAIR_PROBE, total
from tests.bench.probes import configured


@pytest.mark.parametrize("plan", ["events", "kernel"])
@pytest.mark.parametrize(("attach", "kind"), [(CALL_PROBE, Kind.CALL), (PAIR_PROBE, Kind.PAIR)])
def test_what_the_agents_of_bursts_are_told(attach: str, kind: Kind, plan: str) -> None:
    config = configured(AGENT % (attach, plan))
    [probe] = config.probes
    assert config.settings.limit is probe.limit is None
    assert [way.target.kind for way in probe.attach] == [kind]
    assert probe.duration_buckets
    assert probe.aggregate == plan


@pytest.mark.parametrize(
    ("attach", "metric", "kind"),
    [(load.RETURNS, work.METRIC, Kind.TRACEPOINT), (load.TIMED, work.TIMED_METRIC, Kind.SYSCALL)],
)
def test_what_the_agents_at_work_are_told(attach: str, metric: str, kind: Kind) -> None:
    config = configured(load.config([3, 4], metric, attach, source="binary", max_series=5))
    [probe] = config.probes
    [way] = probe.attach
    assert way.target.kind is kind
    assert [first.filter for first in way.begins or [way]] == ["common_pid == 3 || common_pid == 4"]
    assert (config.settings.source, config.settings.max_series) == ("binary", 5)
    assert config.settings.limit is probe.limit is None


def test_totals() -> None:
    families = (
        Family("a", "counter", "", ("x",), {("1",): 3.0, ("2",): 4.0}),
        Family("b", "histogram", "", ("x",), {("1",): HistogramValue((1.0,), (2, 5), 9.0)}),
    )
    snapshot = Snapshot(families, ())
    assert [total(snapshot, name) for name in ("a", "b", "c")] == [7, 7, 0]


def test_calls_without_a_duration() -> None:
    calls: dict[int | None, work.Measured] = {
        rate: work.Measured("binary", 8, made, made, made - 2, 0, 2.0, 50.0)
        for rate, made in ((10_000, 80_000), (None, 4_000_000))
    }
    assert work.without_duration(calls).endswith(
        "*missing* are calls without one: 2 of 80,000 at 10,000 calls/s, 2 of 4,000,000 at 500,000 calls/s."
    )
