"""What a change of the probes reads before it forgets those that go."""

from types import SimpleNamespace
from typing import Any

import pytest

from kprobe_exporter.agent.probe_set import LAST_TIME, ProbeSet


@pytest.mark.parametrize("in_time", [True, False])
def test_the_last_counts_are_read_even_if_the_last_events_are_late(
    in_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the hits of a probe that goes would stay behind its events for ever."""
    waited: list[str] = []

    def drain(seconds: float) -> bool:
        waited.append(f"events {seconds}")
        return in_time

    def refresh(seconds: float, *, fresh: bool) -> bool:
        waited.append(f"counts {seconds} {fresh}")
        return True

    nothing: Any = SimpleNamespace(update_kernel=None)
    source: Any = SimpleNamespace(drain=drain)
    probes = ProbeSet(nothing, nothing, nothing, source, nothing, nothing, nothing)
    monkeypatch.setattr(probes.poller, "refresh", refresh)
    probes._read_out()
    assert waited == [f"events {LAST_TIME}", f"counts {LAST_TIME} True"]
