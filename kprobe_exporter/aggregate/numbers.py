"""The numbers of probes and metrics, and how they are copied into families."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kprobe_exporter.aggregate.cells import HistogramCell, MetricNumbers
from kprobe_exporter.aggregate.series import UNKNOWN
from kprobe_exporter.model.values import Family, HistogramValue, LabelValues, ProbeMetrics

HELP = {
    "hits_total": "Firings of the probe, before its filter.",
    "misses_total": "Firings that the kernel missed.",
    "return_value": "Return values of the probed function that are no errors.",
    "return_errors_total": "Error returns of the probed function, by errno.",
    "duration_seconds": "Seconds from a call's entry to its return, or between the events of a pair.",
}


class Accumulator:
    """A counter that never falls, of a kernel counter that restarts when its probe is installed again.

    ``current`` is its part since the last ``restart``. Not thread-safe: the aggregator's lock guards it.
    """

    __slots__ = ("_last", "current", "total")

    def __init__(self) -> None:
        self.total = self.current = 0
        self._last: int | None = 0

    def update(self, raw: int) -> None:
        """Take the current raw value. If it is lower than the last one, the raw counter restarted from 0."""
        if self._last is not None:
            added = raw - self._last if raw >= self._last else raw
            self.total += added
            self.current += added
        self._last = raw

    def leave_out(self, part: int | None) -> None:
        """Continue without one of the counters whose sum the raw values are; ``part`` is its last value.

        If that is unknown, what the others count until the next value is not counted.
        """
        self._last = None if part is None or self._last is None else self._last - part

    def restart(self) -> None:
        """Expect another raw counter from now on, which begins at 0."""
        self._last = self.current = 0


@dataclass(slots=True)
class ProbeNumbers:
    """The numbers that every probe has without any configuration.

    ``hits`` and ``misses`` are the kernel's; ``kernel_hits`` and ``kernel_misses`` say whether it counts
    them. ``counted_here``: the agent counts its events as hits. ``early`` are events that were recorded while
    the kernel did not count hits yet, or no longer (see `hist_tables.HitCounter`). ``hits_before`` and
    ``events_before`` are those of layouts that are detached by now. ``lost`` are losses by reason, where the
    probe is known.
    """

    metrics: ProbeMetrics
    returned: HistogramCell
    durations: HistogramCell
    errors: dict[int, int] = field(default_factory=dict)
    hits: Accumulator = field(default_factory=Accumulator)
    misses: Accumulator = field(default_factory=Accumulator)
    kernel_hits: bool = False
    kernel_misses: bool = False
    counted_here: bool = False
    early: int = 0
    hits_before: int = 0
    events_before: int = 0
    lost: Counter[str] = field(default_factory=Counter)


class Ledger(NamedTuple):
    """Hits and delivered events by probe, and lost events by reason."""

    hits: dict[str, int]
    events: dict[str, int]
    lost: dict[str, int]


class Arrivals(NamedTuple):
    """Hits and recorded events since each layout was attached, by layout_id, where the kernel counts hits.

    ``lost`` are the losses so far for which the probe is unknown, ``waiting`` the bytes in the ring buffers.
    """

    counts: dict[int, tuple[int, int]]
    lost: int
    waiting: int


class Numbers(NamedTuple):
    """A copy of all numbers at one moment; ``hits`` and ``misses`` lack the probes without such a count.

    ``lost`` is by reason, ``lost_of`` by probe and reason, as far as the probe is known.
    """

    families: tuple[Family, ...]
    hits: dict[str, int]
    misses: dict[str, int]
    events: dict[str, int]
    lost: dict[str, int]
    overflows: dict[str, int]
    decode_failures: dict[str, int]
    buffer_bytes: int
    lost_of: Mapping[LabelValues, float] = {}


def built_in(
    namespace: str,
    probes: Mapping[str, ProbeNumbers],
    hits: Mapping[str, int],
    misses: Mapping[str, int],
    errno_name: Callable[[int], str | None],
) -> Iterator[Family]:
    """Yield the metrics that every probe has without any configuration."""
    yield _counter(namespace, "hits_total", ("probe",), {(name,): n for name, n in hits.items()})
    yield _counter(namespace, "misses_total", ("probe",), {(name,): n for name, n in misses.items()})
    returned: dict[LabelValues, float | HistogramValue] = {}
    errors: dict[LabelValues, int] = {}
    for name, probe in probes.items():
        returns = probe.metrics.returns
        if returns is None or returns.fetch is None:
            continue
        if probe.metrics.return_buckets and not returns.pointer:
            returned[name,] = probe.returned.value(probe.metrics.return_buckets)
        for number, count in probe.errors.items():
            key = (name, errno_name(number) or UNKNOWN)
            errors[key] = errors.get(key, 0) + count
    yield Family(
        f"{namespace}_return_value",
        "histogram",
        HELP["return_value"],
        ("probe",),
        returned,
    )
    yield _counter(namespace, "return_errors_total", ("probe", "errno"), errors)
    durations: dict[LabelValues, float | HistogramValue] = {
        (name,): probe.durations.value(bounds)
        for name, probe in probes.items()
        if (bounds := probe.metrics.duration_buckets)
    }
    if durations:
        name = f"{namespace}_duration_seconds"
        yield Family(name, "histogram", HELP["duration_seconds"], ("probe",), durations)


def _counter(namespace: str, name: str, labels: tuple[str, ...], samples: dict[LabelValues, int]) -> Family:
    return Family(f"{namespace}_{name}", "counter", HELP[name], labels, dict(samples))


def family(metric: MetricNumbers) -> Family:
    """Return a configured metric with a copy of all its label sets."""
    spec = metric.spec
    samples: dict[LabelValues, float | HistogramValue]
    if spec.kind == "histogram":
        samples = {k: cell.value(spec.buckets) for k, cell in metric.series.cells.items()}
    else:
        samples = {k: cell[0] for k, cell in metric.series.cells.items()}
    labels = tuple(label.name for label in spec.labels)
    return Family(spec.name, spec.kind, spec.help, labels, samples)
