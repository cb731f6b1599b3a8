"""What an agent costs, doing nothing and reading events, and at which rate it loses some."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.checks import require_all_told
from tests.bench.load import DELIVERED, HITS, LOST, TIMED, Agent, Workload, agent, config, workloads
from tests.bench.progress import say
from tests.bench.table import Table, reached

TITLE = "The agent at rest and at work"
SOURCES = ("binary", "text")
PACES = (0, 1_000, 10_000, 100_000)
STEPS = (200_000, 400_000, 800_000)
SECONDS = 8
STEP_SECONDS = 3
MANY = 36_000_000
FEW = 1_000_000
ATTEMPTS = 3
OFFSETS = 80
METRIC = (
    "{histogram: seeks, help: Offsets., value: return, labels: {offset: return, cpu: cpu}, "
    "buckets: {linear: {start: 0, width: 10, count: 10}}}"
)
"""For each of the offsets ten buckets, +Inf, sum and count: a thousand samples."""

TIMED_PACES = (10_000, 100_000, None)
TIMED_METRIC = (
    "{histogram: seek_seconds, help: Durations., value: duration, labels: {cpu: cpu}, "
    "buckets: [1.0e-6, 4.0e-6, 16.0e-6, 64.0e-6, 256.0e-6, 1.0e-3, 4.0e-3, 16.0e-3]}"
)

TIMED_BY_CGROUP = TIMED_METRIC.replace("{cpu: cpu}", "{cpu: cpu, cgroup: {field: tid, decode: cgroup}}")

CPU_GOAL = 2.0
RESIDENT_GOAL = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One agent over some seconds: what the workload made of events, what became of them, at what cost."""

    source: str
    seconds: float
    made: int
    arrived: int
    delivered: int
    lost: int
    cpu: float
    resident: float

    @property
    def others(self) -> int:
        """The events of other processes: delivered, or lost before anybody knew whose they were."""
        return max(0, self.arrived + self.lost - self.made)

    @property
    def missing(self) -> int:
        """What the workload made and no metric has."""
        return self.made - self.delivered

    def row(self, load: str) -> tuple[str, ...]:
        rates = (f"{round(count / self.seconds):,}" for count in (self.made, self.arrived))
        shown = (f"{self.missing:,}", f"{self.lost:,}", f"{self.cpu:.1f} %", f"{self.resident:.1f} MB")
        return (f"{self.source}, {load}", *rates, *shown)


def table() -> Table:
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    others = 0
    for source in SOURCES:
        with workloads() as [workload], agent(config([workload.tid], METRIC, source=source)) as running:
            measured = {}
            for rate in (*PACES, *STEPS, None):
                load = "as many as one process makes" if rate is None else f"{rate:,} events/s"
                say(f"{source}, {load}")
                measured[rate] = quietly(running, workload, source, rate)
                rows.append(measured[rate].row(load))
        notes += goals(source, measured[10_000], measured[1_000])
        notes.append(losses(source, list(measured.values())))
        others = max(others, *(round(each.others / each.seconds) for each in measured.values()))
    say(f"memory over {MANY:,} events")
    few, many = flat(SOURCES[0])
    rows += [few.row(f"after {FEW:,}"), many.row(f"after {MANY:,}")]
    calls = timed(SOURCES[0], TIMED_METRIC, TIMED_PACES)
    rows += [each.row(f"{_paced(rate)}, with their duration") for rate, each in calls.items()]
    by_cgroup = timed(SOURCES[0], TIMED_BY_CGROUP, TIMED_PACES[1:])
    rows += [each.row(f"{_paced(rate)}, by the thread's cgroup, too") for rate, each in by_cgroup.items()]
    notes += [
        f"Over {MANY // 10**6} million events the memory changes by {many.resident - few.resident:+.1f} MB,"
        f" and {many.missing:,} of them are missing.",
        "This kernel has no hist triggers, so the agent reads every lseek(2) of the machine and filters them"
        f" itself: other processes added {others:,} a second at the most.",
        without_duration(calls),
    ]
    return Table(
        TITLE,
        "A running agent, whose one probe is on `syscalls:sys_exit_lseek` with a filter on one thread. Its"
        " metrics are return values and a histogram with two labels: a thousand samples. The buffer"
        " is the default of 1 MiB per CPU, and there are no scrapes meanwhile. A process on a CPU of its"
        " own calls lseek(2) in bursts, one every"
        " millisecond. *made* is what it says that it called, *arrived* is `kprobe_hits_total`, both per"
        " second; *missing* of the made were not delivered, *lost* is what the agent counts as lost. CPU is"
        f" user and system time, of one core, over {SECONDS} s ({STEP_SECONDS} s from {STEPS[0]:,} on);"
        " memory is VmRSS.",
        ("source, load", "made/s", "arrived/s", "missing", "lost", "CPU", "memory"),
        tuple(rows),
        tuple(notes),
    )


def quietly(running: Agent, workload: Workload, source: str, rate: int | None) -> Measured:
    """Measured again while others on this machine disturb it, by their lseek(2) or their share of CPU."""
    for _ in range(ATTEMPTS):
        measured = measure(running, workload, source, rate, SECONDS if rate in PACES else STEP_SECONDS)
        kept = measured.made >= 0.9 * (rate or 0) * measured.seconds
        if kept and measured.others < 100 * measured.seconds + 0.05 * measured.made:
            break
    return measured


def measure(running: Agent, maker: Workload, source: str, rate: int | None, seconds: float) -> Measured:
    """``rate`` 0 is nothing at all, None all that can be made."""
    maker.start(100_000, 0.02, OFFSETS)  # so that every label set is there
    maker.made()
    before = [running.settled(name) for name in (DELIVERED, HITS, LOST)]
    cpu, began = running.cpu(), time.monotonic()
    made = 0
    if rate == 0:
        time.sleep(seconds)
    else:
        maker.start(rate or 0, seconds, OFFSETS)
        made = maker.made()
    taken, cpu = time.monotonic() - began, running.cpu() - cpu
    after = [running.settled(name) for name in (DELIVERED, HITS, LOST)]
    delivered, hits, lost = (now - then for now, then in zip(after, before, strict=True))
    require_all_told(made, delivered, lost)
    running.require_up()
    return Measured(source, taken, made, hits, delivered, lost, 100 * cpu / taken, running.resident())


def flat(source: str) -> tuple[Measured, Measured]:
    """The memory after few events and after many."""
    with workloads() as [workload], agent(config([workload.tid], METRIC, source=source)) as running:
        few = measure(running, workload, source, 500_000, FEW / 500_000)
        many = measure(running, workload, source, 1_300_000, (MANY - FEW) / 1_300_000)
    return few, many


def timed(source: str, metric: str, paces: Sequence[int | None]) -> dict[int | None, Measured]:
    """Calls with their duration: two events each, joined by the agent, by how many there are a second."""
    with (
        workloads() as [workload],
        agent(config([workload.tid], metric, TIMED, source=source)) as running,
    ):
        measured = {}
        for rate in paces:
            say(f"{source}, {_paced(rate)}, {'by cgroup' if metric is TIMED_BY_CGROUP else 'in all'}")
            measured[rate] = quietly(running, workload, source, rate)
        return measured


def _paced(rate: int | None) -> str:
    return "as many calls as one process makes" if rate is None else f"{rate:,} calls/s"


def without_duration(calls: Mapping[int | None, Measured]) -> str:
    """What is to be said of the rows of calls."""
    shares = (
        f"{each.missing:,} of {each.made:,} at {round(each.made / each.seconds):,} calls/s"
        for each in calls.values()
    )
    return (
        "*with their duration*: `syscall:lseek` instead, two events a call that the agent joins, and a"
        f" histogram of durations; *missing* are calls without one: {', '.join(shares)}."
    )


def goals(source: str, busy: Measured, calm: Measured) -> list[str]:
    return [
        reached(
            f"{source}: 10,000 events/s at {CPU_GOAL:.0f} % of a core or less",
            f"{busy.cpu:.1f} %",
            ok=busy.cpu <= CPU_GOAL,
        ),
        reached(
            f"{source}: {RESIDENT_GOAL:.0f} MB or less with a thousand samples",
            f"{calm.resident:.1f} MB",
            ok=calm.resident <= RESIDENT_GOAL,
        ),
    ]


def losses(source: str, measured: Sequence[Measured]) -> str:
    """At which rate it loses events first."""
    rates = {round(each.made / each.seconds): each for each in measured}
    first = next((rate for rate, each in sorted(rates.items()) if each.missing), None)
    if first is None:
        return f"{source}: no event is lost up to {max(rates):,}/s."
    safe = max((rate for rate in rates if rate < first), default=0)
    return f"{source}: no event is lost at {safe:,}/s; some are at {first:,}/s."
