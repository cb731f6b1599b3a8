"""watch: what one look leads to."""

import threading

import pytest

from kprobe_exporter.budget import Trip
from kprobe_exporter.watch import INTERVAL, Look, Watch


class Agent:
    """What the watch is given: one probe that fires as told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.hits = 0
        self.up = True
        self.done: list[str] = []
        self.watch = Watch(self.look, self.disable, self.enable, lambda: self.now)

    def look(self) -> Look:
        up = frozenset({"a"} if self.up else ())
        return Look({"a": self.hits}, {"a": 1000.0}, up, {"a": 1e-6}, limit=200_000)

    def disable(self, trip: Trip) -> None:
        self.up = False
        self.done.append(f"disable {trip.probe}")

    def enable(self, name: str) -> None:
        self.up = True
        self.done.append(f"enable {name}")

    def second(self, hits: int) -> None:
        self.now += 1
        self.hits += hits
        self.watch.look()


@pytest.fixture
def agent() -> Agent:
    made = Agent()
    made.watch.look()
    return made


def test_too_often_and_again(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    agent.second(50_000)
    assert agent.done == ["disable a"]
    assert "the probe 'a' is tripped: it fired 50,000 times a second, and its limit is 1,000" in caplog.text
    for _ in range(10):
        agent.second(0)
    assert agent.done == ["disable a", "enable a"]


def test_what_it_costs_and_how_it_went(agent: Agent) -> None:
    for _ in range(10):
        agent.second(500)
    assert list(agent.watch.overhead.family().samples.values()) == [pytest.approx(5e-3)]
    assert agent.watch.history.rates("a") == (500.0, 500.0)
    assert agent.done == []


def test_it_goes_on_after_an_error(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.watch.INTERVAL", 0.001)
    looks, seen = [], threading.Event()

    def look() -> Look:
        looks.append(1)
        if len(looks) < 5:
            raise OSError("gone")
        seen.set()
        return Look()

    watch = Watch(look, lambda trip: None, lambda name: None)
    watch.start()
    assert seen.wait(10)
    watch.close()
    watch.close()
    assert caplog.text.count("the probes cannot be watched: gone") == 1
    assert INTERVAL == 1.0
