"""A source over its budget is refused for a while, counted and logged once, and only so many are known."""

import pytest

from kprobe_exporter.util import overruns
from kprobe_exporter.util.overruns import REFUSED_S, Overruns


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_source_is_refused_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    known = Overruns(clock)
    for _ in range(3):
        known.add("file", 7, "file 7 is too large")
    assert known.refused("file", 7)
    assert not known.refused("process", 7)
    assert known.counts() == {"file": 1, "process": 0, "container": 0, "path": 0}
    assert caplog.messages == ["file 7 is too large"]
    clock.now += REFUSED_S
    assert not known.refused("file", 7)
    known.add("file", 7, "file 7 is too large")
    assert known.counts()["file"] == 2


def test_sources_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overruns, "MOST_SOURCES", 3)
    known = Overruns(Clock())
    for number in range(10):
        known.add("file", number, "too large")
    assert [number for number in range(10) if known.refused("file", number)] == [7, 8, 9]
