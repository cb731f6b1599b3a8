"""Limits hold on a real kernel: a probe that fires too often is off for a while, others are unaffected."""

import os
import re
import signal
from pathlib import Path

import pytest

from kprobe_exporter.agent import overhead, rate_limit
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.forked_child import in_a_child
from tests.support.patience import eventually, patience
from tests.support.provoked_calls import flood

pytestmark = pytest.mark.needs("kprobe_events")

LIMIT = 500
TIMES = 2003

HITS, EVENTS, LOST = "kprobe_hits_total", "kprobe_exporter_events_total", "kprobe_exporter_events_lost_total"
TRIPPED, OVERHEAD = "kprobe_exporter_probe_tripped", "kprobe_exporter_probe_overhead_seconds_total"

LIMITED = f"limit: {{hits_per_second: {LIMIT}}}"
GETPPID = 'attach: "kprobe:sys_getppid"'
BESIDE = '{name: beside, attach: "kprobe:sys_getsid", metrics: [{counter: beside_total}]}'

TRIP = re.compile(r"the probe '(\w+)' is tripped: (.*)")
AGAIN = re.compile(r"the probe '(\w+)' is tried again")


@pytest.fixture
def short_pause(monkeypatch: pytest.MonkeyPatch) -> int:
    """Seconds in which this machine answers a few scrapes. The patch works, since the agent is forked."""
    pause = round(patience(1))
    monkeypatch.setattr(rate_limit, "FIRST_PAUSE", pause)
    return pause


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that is off stays off until the test has ended."""
    monkeypatch.setattr(rate_limit, "FIRST_PAUSE", 3600)


def probes(*wanted: str, settings: str = "") -> str:
    return f"global: {{{settings}}}\nprobes: [{', '.join(wanted)}]\n"


def tripped(agent: AgentProcess) -> list[str]:
    """The names of the probes that were tripped, from the log, so that no scrape is needed."""
    return [found[1] for found in TRIP.finditer(agent.output())]


def tried(agent: AgentProcess) -> list[str]:
    return AGAIN.findall(agent.output())


def once_down(agent: AgentProcess, probe: str) -> Metrics:
    """A scrape when the probe is off. The log reports that before the kernel is told."""
    return agent.scrape_until(lambda metrics: metrics.value("kprobe_up", probe=probe) == 0)


def within_a_pause(agent: AgentProcess) -> tuple[int, Metrics, str, Metrics]:
    """Return how often the probe 'loud' was tripped, and what the agent showed within its last pause: a
    scrape, the status page and another scrape.

    A machine under load may take longer than a pause for these. The next pause is twice as long.
    """
    while True:
        eventually(lambda: len(tripped(agent)) > len(tried(agent)))  # without a scrape
        turns = len(tripped(agent))
        seen = once_down(agent, "loud"), agent.get("/"), agent.scrape()
        if turns == len(tripped(agent)) > len(tried(agent)):
            return turns, *seen


def fallen(before: Metrics, after: Metrics) -> list[str]:
    """The counters that fell."""
    return [
        f"{key}: {value} to {after.get(key)}"
        for key, value in before.items()
        if key[0].endswith(("_total", "_count", "_bucket")) and after.get(key, -1) < value
    ]


@pytest.mark.parametrize(
    "loud",
    [
        pytest.param(GETPPID, id="counted"),
        pytest.param(f"{GETPPID}, metrics: [{{counter: loud_total, labels: [comm]}}]", id="events"),
    ],
)
def test_too_loud_a_probe_is_off_for_a_while(start_agent: StartAgent, short_pause: int, loud: str) -> None:
    agent = start_agent(probes(f"{{name: loud, {loud}, {LIMITED}}}", BESIDE))
    begun = agent.scrape()
    assert (begun.value("kprobe_up", probe="loud"), begun.value(TRIPPED, probe="loud")) == (1, 0)
    with flood():
        for _ in range(TIMES):
            os.getsid(0)
        turns, off, page, still = within_a_pause(agent)
        assert [off.value("kprobe_up", probe=name) for name in ("loud", "beside")] == [0, 1]
        assert [off.value(TRIPPED, probe=name) for name in ("loud", "beside")] == [1, 0]
        said = TRIP.findall(agent.output())[turns - 1][1]
        assert f"and its limit is {LIMIT}" in said
        assert f"off for {short_pause * 2 ** (turns - 1)} s" in said
        assert said in page
        assert off.value(HITS, probe="loud") > LIMIT * rate_limit.BURST
        assert still.value(HITS, probe="loud") == off.value(HITS, probe="loud")
        assert fallen(begun, off) == []
    eventually(lambda: tried(agent) == tripped(agent))
    turns = len(tripped(agent))
    eventually(lambda: agent.scrape().value("kprobe_up", probe="loud") == 1)
    before = agent.scrape()
    assert before.value(TRIPPED, probe="loud") == 0
    assert fallen(off, before) == []
    for _ in range(23):
        os.getppid()
    expected = before.value(HITS, probe="loud") + 23
    eventually(lambda: agent.scrape().value(HITS, probe="loud") == expected)
    eventually(lambda: agent.scrape().value(HITS, probe="beside") == TIMES)
    after = agent.scrape()
    assert after.value(EVENTS, probe="beside") == after.value("kprobe_beside_total") == TIMES
    assert fallen(before, after) == []
    if "metrics" in loud:
        told = {labels["reason"]: after.value(LOST, **labels) for labels in after.labels(LOST)}
        untold = after.value(HITS, probe="loud") - after.value(EVENTS, probe="loud") - sum(told.values())
        # If the ring buffer lost events as well, fewer may be reported than were lost.
        assert 0 <= untold <= sum(count for reason, count in told.items() if reason != "disabled"), told
        assert after.value(EVENTS, probe="loud") == before.value(EVENTS, probe="loud") + 23
    assert tripped(agent) == ["loud"] * turns  # no more, and the probe stays up
    assert after.value("kprobe_up", probe="loud") == 1


@pytest.mark.usefixtures("long_pause")
def test_a_probe_that_takes_more_than_its_share_of_the_time_trips(start_agent: StartAgent) -> None:
    """What a firing costs is measured at the start, so the limit is known only within bounds."""
    share = "limit: {cpu: 0.05%}"
    agent = start_agent(
        probes(
            f"{{name: loud, {GETPPID}, {share}}}",
            f'{{name: beside, attach: "kprobe:sys_getsid", {share}}}',
        )
    )
    with flood():
        eventually(lambda: tripped(agent) == ["loud"])
    off = once_down(agent, "loud")
    ((_, said),) = TRIP.findall(agent.output())
    found = re.search(
        r"it fired ([\d,]+) times a second, and its limit is ([\d,]+), which is 0.05 % of", said
    )
    assert found, said
    rate, limit = (int(number.replace(",", "")) for number in found.groups())
    cpus, seconds = os.cpu_count() or 1, overhead.COUNTED
    fewest, most = (0.0005 * cpus / (seconds * each) for each in (overhead.SLOWEST, overhead.FASTEST))
    assert fewest - 1 <= limit <= most + 1
    assert rate > limit
    assert off.value("kprobe_up", probe="beside") == 1


SAMPLED = re.compile(r"the probe 'loud' is sampled: .* only the events of one thread in (\d+) are recorded")
RATIO = "kprobe_exporter_probe_sampling_ratio"


def visits(number: int) -> list[int]:
    """Start this many processes one after the other, each of which calls getppid once; return their ids."""
    return [in_a_child(os.getppid) for _ in range(number)]


@pytest.mark.parametrize("kind", ["kprobe", "call"])
def test_a_critical_probe_is_sampled_by_threads(
    start_agent: StartAgent, long_pause: None, tmp_path: Path, kind: str
) -> None:
    """A flood hides at most those threads that are not drawn, and everything is told."""
    attach = f"attach: '{kind}:sys_getppid', metrics: [{{counter: loud_total, labels: [tid]}}]"
    config = probes(f"{{name: loud, {attach}, critical: true, LIMIT}}", BESIDE, settings="max_series: 20000")
    agent = start_agent(config.replace("LIMIT", "limit: {hits_per_second: 2000}"))
    begun = agent.scrape()
    assert (begun.value(RATIO, probe="loud"), begun.labels(RATIO)) == (1, [{"probe": "loud"}])
    with flood():
        eventually(lambda: agent.scrape().value(RATIO, probe="loud") < 1)
        first = agent.scrape()
        [one_in] = [int(found) for found in SAMPLED.findall(agent.output())]
        assert first.value(RATIO, probe="loud") == 1 / one_in
        visitors = visits(4 * one_in)
        eventually(lambda: agent.scrape().value(HITS, probe="loud") > first.value(HITS, probe="loud"))
        during = agent.scrape()
        assert [during.value(name, probe="loud") for name in ("kprobe_up", TRIPPED)] == [1, 0]
        assert fallen(begun, during) == []
    recorded = {int(labels["tid"]) for labels in during.labels("kprobe_loud_total")} & set(visitors)
    [remainder] = {tid % one_in for tid in recorded}
    assert recorded == {tid for tid in visitors if tid % one_in == remainder}
    # A reload that raises the limit ends the pause.
    (tmp_path / "config0.yaml").write_text(config.replace("LIMIT", "limit: none"))
    agent.signal(signal.SIGHUP)
    eventually(lambda: agent.scrape().value(RATIO, probe="loud") == 1)
    assert "the probe 'loud' is recorded whole again" in agent.output()
    whole = visits(23)
    eventually(lambda: agent.scrape().value("kprobe_loud_total", tid=str(whole[-1])) == 1)
    assert {int(labels["tid"]) for labels in agent.scrape().labels("kprobe_loud_total")} >= set(whole)
    if kind != "call":
        assert agent.scrape().value(LOST, reason="sampled") > 0
        eventually(lambda: all_told(agent.scrape()))


def all_told(metrics: Metrics) -> bool:
    """Whether the hits are the events and the losses. If the ring buffer lost some too, fewer may be told."""
    told = {labels["reason"]: metrics.value(LOST, **labels) for labels in metrics.labels(LOST)}
    untold = metrics.value(HITS, probe="loud") - metrics.value(EVENTS, probe="loud") - sum(told.values())
    return abs(untold) <= sum(told[reason] for reason in ("overrun", "commit_overrun", "dropped"))


def test_the_pause_grows_while_the_flood_lasts(start_agent: StartAgent, short_pause: int) -> None:
    agent = start_agent(probes(f"{{name: loud, {GETPPID}, {LIMITED}}}"))
    with flood():
        eventually(lambda: tripped(agent) == ["loud", "loud"])
    pauses = [re.sub(r".*off for (\d+) s", r"\1", said) for _, said in TRIP.findall(agent.output())]
    assert pauses == [str(short_pause), str(2 * short_pause)]


@pytest.mark.usefixtures("long_pause")
def test_all_together_trip_the_loudest(start_agent: StartAgent) -> None:
    """The probe that fires most trips. ``limit: none`` lifts a probe's own limit, not the common one."""
    agent = start_agent(
        probes(
            '{name: quiet, attach: "kprobe:sys_getsid", limit: {hits_per_second: 100000}}',
            f"{{name: loud, {GETPPID}, limit: none}}",
            settings="limit: {hits_per_second: 2000}",
        )
    )
    with flood():
        for _ in range(23):
            os.getsid(0)
        eventually(lambda: tripped(agent) == ["loud"])
        ((_, said),) = TRIP.findall(agent.output())
        assert "all probes together fired" in said
        assert "their limit is 2,000; this one fired most" in said
        assert once_down(agent, "loud").value("kprobe_up", probe="quiet") == 1
    eventually(lambda: agent.scrape().value(HITS, probe="quiet") == 23)


@pytest.mark.usefixtures("long_pause")
def test_none_is_no_limit(start_agent: StartAgent) -> None:
    """The probe's estimated overhead rises with its hits, beside a limited probe on the same function."""
    free = f"{{name: free, {GETPPID}, limit: none}}"
    agent = start_agent(probes(free, f"{{name: kept, {GETPPID}, {LIMITED}}}", settings="limit: none"))
    with flood():
        eventually(lambda: tripped(agent) == ["kept"])
        at_trip = agent.scrape()
        more = at_trip.value(HITS, probe="free") + 10 * LIMIT
        eventually(lambda: agent.scrape().value(HITS, probe="free") > more)
        eventually(
            lambda: agent.scrape().value(OVERHEAD, probe="free") > at_trip.value(OVERHEAD, probe="free")
        )
    after = agent.scrape()
    assert after.value("kprobe_up", probe="free") == 1
    assert after.value(OVERHEAD, probe="kept") > 0
    assert fallen(at_trip, after) == []
    assert tripped(agent) == ["kept"]
