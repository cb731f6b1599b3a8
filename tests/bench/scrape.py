"""What a scrape takes, by the number of samples, and whether events are lost meanwhile."""

import gzip
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kprobe_exporter.export.prometheus import CONTENT_TYPES
from tests.bench.checks import require_all_told
from tests.bench.load import DELIVERED, LOST, RETURNS, Agent, Workload, agent, config, workloads
from tests.bench.progress import say
from tests.bench.table import Table, reached
from tests.support.client_model import read

TITLE = "Scrape"
SIZES = (100, 1_000, 10_000, 20_000)
LIMITS = {"max_series": 25_000, "max_series_total": 50_000}
METRIC = "{counter: offsets_total, help: Calls by offset., labels: {offset: return}}"
RATE = 100_000
SCRAPES = 9
PAUSE = 0.5
EVERY_SECOND = 10

PROTOBUF = {"Accept": CONTENT_TYPES["protobuf"]}
FORMS: Mapping[str, Mapping[str, str]] = {
    "OpenMetrics": {"Accept": "application/openmetrics-text;version=1.0.0"},
    "protobuf": PROTOBUF,
    "text, gzip": {"Accept-Encoding": "gzip"},
}
"""What a client may ask for instead of text, by its headers."""

HISTOGRAMS = 20_000
FOLDED = f"{RETURNS}\n    let: {{folded: return % {HISTOGRAMS}}}"
HISTOGRAM = "{histogram: offsets, help: Offsets., value: return, labels: {folded: folded}}"
OFFSETS = 20 * HISTOGRAMS
"""Each label set gets so many different values that they fall into about 20 buckets of a native histogram."""

COLUMNS = "samples of the metric, all samples, body, median, longest, memory, made, missing, lost"

IDLE_GOAL = 0.04
LOADED_GOAL = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Some scrapes of one agent."""

    samples: int
    body: int
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
        body = f"{self.body / 1000:,.0f} kB"
        return (f"{size:,}, {load}", f"{self.samples:,}", body, *times, f"{self.resident:.0f} MB", *lost)


def table() -> Table:
    rows = []
    for size in SIZES:
        with workloads() as [workload], agent(config([workload.tid], METRIC, **LIMITS)) as running:
            workload.start(RATE, 1.5 * size / RATE + 0.1, size)
            workload.made()
            running.settled(DELIVERED)
            say(f"{size:,} samples, idle")
            idle = scrapes(running, SCRAPES, PAUSE)
            forms = {
                name: scrapes(running, SCRAPES, PAUSE, of) for name, of in FORMS.items() if size == max(SIZES)
            }
            say(f"{size:,} samples, {RATE:,} events/s")
            loaded = under_load(running, workload, size, SCRAPES, PAUSE)
            rows += [
                idle.row("idle", size),
                *(of.row(f"idle, {name}", size) for name, of in forms.items()),
                loaded.row(f"{RATE:,} events/s", size),
            ]
            if size == max(SIZES):
                say(f"{size:,} samples every second")
                steady = under_load(running, workload, size, EVERY_SECOND, 1)
                rows.append(steady.row(f"{RATE:,} events/s, every second", size))
    rows += [*_histograms()]
    return Table(
        TITLE,
        "A counter with a label of so many values; its probe is `syscalls:sys_exit_lseek` with a filter on"
        " one thread, the buffer 1 MiB per CPU. A scrape is a connection of its own, as text, without gzip"
        f" unless a row says otherwise, read to its end; {SCRAPES} of them, {PAUSE} s apart, or"
        f" {EVERY_SECOND}, one every second. Memory is VmRSS after them. *missing* of the made events were"
        " not delivered, *lost* is what the agent counts as lost. The last rows have"
        f" {HISTOGRAMS:,} label sets with 20 values each, as a classic histogram with the buckets of return"
        " values and a native one. Protobuf has both, and Prometheus stores one series of the native one"
        " for each label"
        " set.",
        tuple(COLUMNS.split(", ")),
        tuple(rows),
        (
            reached(
                f"{max(SIZES):,} samples within {1000 * IDLE_GOAL:.0f} ms",
                f"{1000 * idle.median:.0f} ms in the median",
                ok=idle.median <= IDLE_GOAL,
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


def _histograms() -> Iterator[tuple[str, ...]]:
    """Yield the rows of histograms with classic buckets, and with native ones, too."""
    for native in (False, True):
        more: dict[str, str | int] = {**LIMITS, "native_histograms": str(native).lower()}
        with workloads() as [workload], agent(config([workload.tid], HISTOGRAM, FOLDED, **more)) as running:
            workload.start(RATE, 1.5 * OFFSETS / RATE, OFFSETS)
            workload.made()
            running.settled(DELIVERED)
            forms: Mapping[str, Mapping[str, str]] = {"text": {}, "protobuf": PROTOBUF}
            for name, headers in forms.items():
                say(f"{HISTOGRAMS:,} histograms, {name}")
                measured = scrapes(running, SCRAPES, PAUSE, headers)
                kind = "native and classic" if native else "classic"
                yield measured.row(f"{kind} histograms, idle, {name}", HISTOGRAMS)


def scrapes(running: Agent, count: int, pause: float, headers: Mapping[str, str] = {}) -> Measured:
    """One after the other, beginning every ``pause`` seconds or as soon as the one before is over."""
    times, body = [], b""
    for _ in range(count):
        began = time.monotonic()
        body = running.scrape(headers=headers)
        times.append(time.monotonic() - began)
        time.sleep(max(0.0, pause - times[-1]))
    return Measured(_samples(body, headers), len(body), tuple(times), running.resident())


def _samples(body: bytes, headers: Mapping[str, str]) -> int:
    """Return the number of samples in a body, as the text format has them."""
    if headers is PROTOBUF:
        metrics = [metric for family in read(body) for metric in family.metric]
        return sum(len(metric.histogram.bucket) + 2 if metric.histogram.bucket else 1 for metric in metrics)
    text = gzip.decompress(body) if "Accept-Encoding" in headers else body
    return sum(not line.startswith(b"#") for line in text.splitlines())


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
    return replace(measured, made=made, missing=made - delivered, lost=lost)
