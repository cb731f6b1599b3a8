"""supervisor: the actions that follow a look."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kprobe_exporter.agent import overhead as costs
from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.agent.rate_limit import Trip
from kprobe_exporter.agent.supervisor import INTERVAL, LATE, STALE, History, Observation, Supervisor
from kprobe_exporter.config.model import CpuShare, Threshold
from tests.support.machine import OPEN, Machine
from tests.support.patience import patience


class Agent:
    """The callbacks of a watch over one probe, which fires as often as the test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.hits = 0
        self.age = 0.0
        self.limit: Threshold = 200_000
        self.machine = costs.Machine(4, 2.0)
        self.done: list[str] = []
        self.configured = SimpleNamespace(limit=1000.0, critical=False)
        self.probe = SimpleNamespace(name="a", plan=SimpleNamespace(probe=self.configured), sample=None)
        self.probe.records, self.probe.records_events, self.probe.cost = True, True, 0.5e-6
        self.watch = Supervisor(self.look, self.trip, self.enable, lambda: self.now)

    def look(self) -> Observation:
        probes = [cast("ProbeState", self.probe)]
        return Observation({"a": self.hits}, probes, self.limit, self.age, self.machine)

    def trip(self, trip: Trip) -> None:
        self.probe.records = False
        self.done.append(f"{'sample' if trip.one_in else 'disable'} {trip.probe}")

    def enable(self, name: str) -> None:
        self.probe.records = True
        self.done.append(f"enable {name}")

    def second(self, hits: int, times: int = 1) -> None:
        for _ in range(times):
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
    agent.second(0, times=10)
    assert agent.done == ["disable a", "enable a"]


def test_a_critical_probe_is_sampled_while_it_fires_on(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    agent.configured.critical = True
    agent.second(50_000, times=11)
    assert agent.done == ["sample a", "enable a"]
    assert "the probe 'a' is sampled: it fired 50,000 times a second" in caplog.text
    assert "the probe 'a' is recorded whole again" in caplog.text
    agent.second(50_000)
    assert agent.done == ["sample a", "enable a", "sample a"]


def test_a_limit_of_time_is_kept_while_the_probe_is_off(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """1 % of 4 CPUs is 40 ms a second: 40,000 firings of 1 µs, which 0.5 µs are on this machine."""
    agent.configured.limit = CpuShare(0.01)
    agent.second(39_000, times=5)
    assert agent.done == []
    agent.second(200_000)
    assert agent.done == ["disable a"]
    assert (
        "the probe 'a' is tripped: it fired 200,000 times a second, and its limit is 40,000,"
        " which is 1 % of the CPUs' time: it is off for 10 s"
    ) in caplog.text
    agent.probe.cost = 0.0  # since it is not attached
    agent.second(0, times=9)
    assert agent.done == ["disable a"]
    agent.second(0)
    assert agent.done == ["disable a", "enable a"]


def test_all_together_have_a_limit_of_time(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    agent.configured.limit, agent.limit = None, CpuShare(0.02)
    agent.second(79_000, times=5)
    assert agent.done == []
    agent.second(400_000)
    assert agent.done == ["disable a"]
    assert (
        "all probes together took an estimated 10 % of the CPUs' time, and their limit is 2 %" in caplog.text
    )


def test_an_unlimited_probe_is_left_alone_and_its_cost_is_told(agent: Agent) -> None:
    agent.configured.critical, agent.probe.records_events = True, False
    agent.second(1_000_000, times=20)
    assert agent.done == []
    assert agent.watch.overhead.family(["a"]).samples == {("a",): pytest.approx(20.0)}


def test_what_it_costs_and_how_it_went(agent: Agent) -> None:
    agent.second(500, times=10)
    assert list(agent.watch.overhead.family(["a"]).samples.values()) == [pytest.approx(5e-3)]
    assert agent.watch.history.rates("a") == (500.0, 500.0)
    assert agent.done == []


@pytest.mark.parametrize("growing", [True, False])
def test_counts_that_stood_still_and_then_come_in_one(agent: Agent, growing: bool) -> None:
    """Delayed counts trip no probe, with their age known or unknown: 60 hits/s are within the limit."""
    for second in range(1, 121):
        agent.age = second if growing else float("inf")
        agent.second(0)
    agent.age = 0.1
    for _ in range(10):
        agent.second(60 if agent.hits else 60 * 121)
    assert agent.done == []
    assert max(agent.watch.history.rates("a")) == pytest.approx(60, rel=0.1)


def test_the_first_reading_after_a_while_may_be_an_old_one(agent: Agent) -> None:
    """A reading may have begun before the kernel delayed it; later hits come with the next one, 1 s later."""
    agent.age = float("inf")
    agent.second(0, times=120)
    agent.age = 0.0
    agent.second(0)
    agent.second(60 * 122)
    agent.second(60, times=10)
    assert agent.done == []
    assert set(agent.watch.history.rates("a")) == {60.0}


def test_too_often_while_the_counts_could_not_be_read(agent: Agent) -> None:
    agent.age = float("inf")
    agent.second(0)
    agent.age = 0.0
    agent.second(50_000)
    assert agent.done == ["disable a"]


def test_where_every_reading_takes_long_the_limit_is_kept(agent: Agent) -> None:
    for _ in range(3):
        agent.now += LATE
        agent.second(50_000)
    assert agent.done == ["disable a"]


def test_a_reading_that_was_seen_already_tells_nothing(agent: Agent) -> None:
    """A scrape had the counts read just before, so a look sees them at another age. 1000 hits/s for 5 s."""
    for age, hits in ((0.0, 1000), (0.9, 0), (0.0, 2000), (0.99, 0), (0.0, 2000)):
        agent.age = age
        agent.second(hits)
    assert agent.done == []
    assert agent.watch.history.rates("a") == (1000.0,)


def test_while_counts_are_unreadable_no_probe_is_tried_again(agent: Agent) -> None:
    agent.second(50_000)
    agent.age = float("inf")
    agent.second(0, times=60)
    assert agent.done == ["disable a"]
    agent.age = 0.0
    agent.second(0, times=2)
    assert agent.done == ["disable a", "enable a"]


def test_it_goes_on_after_an_error(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.agent.supervisor.INTERVAL", 0.001)
    looks, seen = [], threading.Event()

    def look() -> Observation:
        looks.append(1)
        if len(looks) < 5:
            raise OSError("gone")
        seen.set()
        return Observation()

    watch = Supervisor(look, lambda trip: None, lambda name: None)
    watch.start()
    assert seen.wait(patience(10))
    watch.close()
    watch.close()
    assert caplog.text.count("the probes cannot be watched: gone") == 1
    assert INTERVAL == 1.0


def test_the_agent_tells_how_old_the_counts_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While probes change, counts are dropped, however new they are, so their age is infinite."""
    monkeypatch.setattr("kprobe_exporter.agent.supervisor.INTERVAL", 3600.0)
    machine = Machine(tmp_path)
    machine.start(OPEN)
    try:
        with machine.agent._changing:
            assert machine.agent._look().age == float("inf")
        assert machine.agent._look().age < 60
        machine.agent._probe_set.poller.close()
        machine.agent._probe_set.poller._read_at -= 100
        assert machine.agent._look().age >= 100
    finally:
        machine.agent.__exit__()


def test_counts_that_are_old_are_told_once_and_when_that_is_over(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for age in (1.0, float("inf"), STALE - 1, STALE, STALE + 1, float("inf"), 0.5, 0.6):
        agent.age = age
        agent.second(0)
    on_record = [record.message for record in caplog.records if "counts" in record.message]
    assert on_record == [
        "the kernel's counts are 10 s old: something holds up all reads of tracefs",
        "the kernel's counts are read again",
    ]


@pytest.mark.parametrize(
    ("readings", "rates"),
    [
        ([(1000, 100), (1005, 100), (1010, 150), (1015, 1150)], (0.0, 10.0, 200.0)),
        ([(0, 0), (1, 99), (4.9, 99), (20, 100)], (5.0,)),  # too often and too seldom
        ([(second, second) for second in range(0, 350, 5)], (1.0,) * 60),  # the last minutes only
    ],
)
def test_rates_in_hits_a_second(readings: list[tuple[float, int]], rates: tuple[float, ...]) -> None:
    history = History()
    for now, hits in readings:
        history.update(now, {"a": hits})
    assert history.rates("a") == rates


def test_probes_come_and_go() -> None:
    history = History()
    history.update(0, {"a": 0})
    history.update(5, {"a": 5, "b": 50})
    history.update(10, {"b": 55})
    assert (history.rates("a"), history.rates("b")) == ((), (1.0,))
    history.update(15, {"a": 5, "b": 55})
    assert (history.rates("a"), history.rates("b")) == ((), (1.0, 0.0))
