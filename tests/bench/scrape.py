"""What a scrape takes, by the number of samples, and whether events are lost meanwhile."""

import statistics
import time
from dataclasses import dataclass

from tests.bench.checks import require_all_told
from tests.bench.load import DELIVERED, LOST, Agent, Workload, agent, config, workloads
from tests.bench.progress import say
from tests.bench.table import Table, reached

TITLE = "Scrape"
SIZES = (100, 1_000, 10_000, 20_000)
LIMITS = {"max_series": 25_000, "max_series_total": 50_000}
METRIC = "{counter: offsets_total, help: Calls by offset., labels: {offset: return}}"
RATE = 100_000
SCRAPES = 9
PAUSE = 0.5
EVERY_SECOND = 10

IDLE_GOAL = 0.25
LOADED_GOAL = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Some scrapes of one agent."""

    samples: int
    times: tuple[float, ...]
    resident: float
    made: int = 0
    missing: int = 0
    lost: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    def row(self, load: str, size: int) -> tuple[str, ...]:
        times = (f"{1000 * seconds:.0f} ms" for seconds in (self.median, max(self.times)))
        lost = (f"{self.made:,}", f"{self.missing:,}", f"{self.lost:,}") if self.made else ("",) * 3
        return (f"{size:,}, {load}", f"{self.samples:,}", *times, f"{self.resident:.0f} MB", *lost)


def table() -> Table:
    rows = []
    for size in SIZES:
        with workloads() as [workload], agent(config([workload.tid], METRIC, **LIMITS)) as running:
            workload.start(RATE, 1.5 * size / RATE + 0.1, size)
            workload.made()
            running.settled(DELIVERED)
            say(f"{size:,} samples, idle")
            idle = scrapes(running, SCRAPES, PAUSE)
            say(f"{size:,} samples, {RATE:,} events/s")
            loaded = under_load(running, workload, size, SCRAPES, PAUSE)
            rows += [idle.row("idle", size), loaded.row(f"{RATE:,} events/s", size)]
            if size == max(SIZES):
                say(f"{size:,} samples every second")
                steady = under_load(running, workload, size, EVERY_SECOND, 1)
                rows.append(steady.row(f"{RATE:,} events/s, every second", size))
    return Table(
        TITLE,
        "A counter with a label of so many values; its probe is `syscalls:sys_exit_lseek` with a filter on"
        " one thread, the buffer 1 MiB per CPU. A scrape is a connection of its own, as text, without gzip,"
        f" read to its end; {SCRAPES} of them, {PAUSE} s apart, or {EVERY_SECOND}, one every second. Memory"
        " is VmRSS after them. *missing* of the made events were not delivered, *lost* is what the agent"
        " told of that.",
        ("samples of the metric", "all samples", "median", "longest", "memory", "made", "missing", "lost"),
        tuple(rows),
        (
            reached(
                f"{max(SIZES):,} samples within {1000 * IDLE_GOAL:.0f} ms",
                f"{1000 * max(idle.times):.0f} ms at the longest",
                ok=max(idle.times) <= IDLE_GOAL,
            ),
            reached(
                f"the same in less than {LOADED_GOAL:.0f} s beside {RATE:,} events/s",
                f"{1000 * max(loaded.times):.0f} ms at the longest",
                ok=max(loaded.times) < LOADED_GOAL,
            ),
            reached(
                f"no event is lost beside a scrape of {max(SIZES):,} samples every second",
                f"{steady.missing:,} of {steady.made:,} are missing",
                ok=not steady.missing,
            ),
        ),
    )


def scrapes(running: Agent, count: int, pause: float) -> Measured:
    """One after the other, beginning every ``pause`` seconds or as soon as the one before is over."""
    times, samples = [], 0
    for _ in range(count):
        began = time.monotonic()
        text = running.scrape()
        times.append(time.monotonic() - began)
        samples = sum(not line.startswith(b"#") for line in text.splitlines())
        time.sleep(max(0.0, pause - times[-1]))
    return Measured(samples, tuple(times), running.resident())


def under_load(running: Agent, workload: Workload, size: int, count: int, pause: float) -> Measured:
    """The same while events come in."""
    before = [running.settled(name) for name in (DELIVERED, LOST)]
    workload.start(RATE, count * pause + 0.5, size)
    time.sleep(0.3)
    measured = scrapes(running, count, pause)
    made = workload.made()
    after = [running.settled(name) for name in (DELIVERED, LOST)]
    delivered, lost = (now - then for now, then in zip(after, before, strict=True))
    require_all_told(made, delivered, lost)
    running.require_up()
    return Measured(measured.samples, measured.times, measured.resident, made, made - delivered, lost)
