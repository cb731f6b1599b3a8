"""The state of all probes at one moment: counts of the kernel, families of samples, and states."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.hist import HistReading
from kprobe_exporter.model.pairs import PairLoss

MAX_EXEMPLAR = 128
"""Characters of an exemplar's labels, names and values together (the specification of OpenMetrics 1.0)."""


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """The kernel's counts, read at one moment; raw, so they restart when a probe is installed again.

    ``hits`` and ``misses`` are by probe, without those that the kernel does not count. ``lost`` is by
    reason, summed over all CPUs of our instance. ``buffer_bytes`` wait in the ring buffers. ``tables`` are
    by the id of the probe's layout, in the order of its specification. ``epoch`` is the aggregator's epoch
    at the time when the list of events to read was made. ``recorded`` are the recorded events that had been
    read before ``hits`` were, of the probes that a hist trigger counts: these have no fewer hits. ``pairs``
    are the losses of pairs that the kernel joins, by the joined layout's id.
    """

    hits: Mapping[str, int] = field(default_factory=dict)
    misses: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    buffer_bytes: int = 0
    tables: Mapping[int, tuple[HistReading, ...]] = field(default_factory=dict)
    epoch: int = 0
    recorded: Mapping[str, int] = field(default_factory=dict)
    pairs: Mapping[int, PairLoss] = field(default_factory=dict)


class Exemplar(NamedTuple):
    """One observation of a histogram: its labels, its value, and its time in Unix time."""

    labels: tuple[tuple[str, str], ...]
    value: float
    time: float


def exemplar_of_span(trace: int, span: int, value: float, time: float) -> Exemplar:
    """Return the exemplar of a call that was exported as a span: its duration in seconds, and its end.

    Grafana and Prometheus expect the ids under these names, in hexadecimal digits.
    """
    return Exemplar((("span_id", f"{span:016x}"), ("trace_id", f"{trace:032x}")), value, time)


class WorstEvent(NamedTuple):
    """The largest value of a probe: in seconds if it is a time, with labels of its event.

    ``time`` is the Unix time at which the event was read.
    """

    value: float
    labels: tuple[tuple[str, str], ...]
    time: float

    @property
    def exemplar(self) -> Exemplar:
        """The value as an exemplar, whose labels are cut to the length that OpenMetrics allows."""
        room, labels = MAX_EXEMPLAR, []
        for name, text in self.labels:
            room -= len(name)
            if room <= 0:
                break
            cut = text if len(text) <= room else f"{text[: room - 1]}…"
            labels.append((name, cut))
            room -= len(cut)
        return Exemplar(tuple(labels), self.value, self.time)


class NativeValue(NamedTuple):
    """The exponential buckets of a native histogram: ``zero`` values of 0, and the others by their index.

    The bucket of an index holds values above 2^((index - 1) / 2^schema), up to 2^(index / 2^schema), that of
    ``negative`` their opposites.
    """

    schema: int
    zero: int
    positive: Mapping[int, int]
    negative: Mapping[int, int]


class HistogramValue(NamedTuple):
    """A histogram: ``counts`` per bucket, not cumulative, one more than ``bounds`` (the last is +Inf).

    ``exemplars`` are the latest ones, by the index of their bucket. ``native`` has the same values again.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    exemplars: Mapping[int, Exemplar] = {}
    native: NativeValue | None = None


LabelValues: TypeAlias = tuple[str, ...]


class Family(NamedTuple):
    """One metric with all its label sets, as it is exposed. A counter's ``name`` includes ``_total``.

    ``created`` is the Unix time since which a label set is counted, as far as it is known.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    samples: Mapping[LabelValues, float | HistogramValue]
    created: Mapping[LabelValues, float] = {}


ShownState: TypeAlias = Literal["up", "down", "tripped", "unsure", "absent", "disabled"]
"""The state of a probe that users see in the log, on the status page, in systemd and in ``check --live``.

``absent``: it is optional, and this kernel cannot have it. ``unsure``: only an attempt would tell.
"""


WANTED: tuple[ShownState, ...] = ("up", "down", "tripped", "unsure")


NOT_UP: tuple[ShownState, ...] = ("down", "tripped", "unsure", "absent", "disabled")


MOST_NAMED = 20


class Spread(NamedTuple):
    """The bounds of a histogram, and its counts so far, one more than bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]


class HeatMap(NamedTuple):
    """The growth of a histogram, ``kind`` by its name, in each of the last ``columns``, oldest first.

    A column has a number for each bucket, or none at all if nothing happened in its ``seconds``.
    """

    kind: str
    bounds: tuple[float, ...]
    columns: tuple[tuple[int, ...], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """A probe as the status page shows it. ``hits`` and ``misses`` are None where they are not counted.

    ``because`` says in one clause why this plan was chosen. ``rates`` are the last hits per second, oldest
    first. ``lost`` is an upper bound of its lost events, None if that is unknown or the probe has no events.
    ``unpaired`` are its events without the other event of a call or a pair.
    ``sampling`` is the share of threads whose events are recorded, None if the probe is not critical.
    ``optional``: it may be ``absent``. ``metrics`` are those that it feeds, without the namespace.
    ``stacks``: they are counted. ``returns``: its return values are read. ``heat`` are its last minutes.
    ``worst`` is its largest value, of the field ``worst_of``, None without one in the window of
    ``worst_window`` seconds.
    """

    name: str
    state: ShownState
    kind: str
    target: str
    plan: str
    reason: str
    hits: int | None
    misses: int | None
    events: int
    because: str = ""
    help: str = ""
    rates: tuple[float, ...] = ()
    lost: int | None = None
    unpaired: int = 0
    sampling: float | None = None
    optional: bool = False
    metrics: tuple[str, ...] = ()
    stacks: bool = False
    returns: bool = False
    heat: tuple[HeatMap, ...] = ()
    worst: WorstEvent | None = None
    worst_of: str = ""
    worst_window: float = 0.0


def summary(probes: Iterable[tuple[str, ShownState]], are_up: str = "are up") -> str:
    """Return in one line how many probes are up, and which are not; ``probes`` are names with states.

    Probes that are off on purpose, absent or disabled, are named and not counted.
    """
    found: defaultdict[ShownState, list[str]] = defaultdict(list)
    for name, state in probes:
        found[state].append(name)
    parts = [f"{len(found['up'])} of {sum(len(found[state]) for state in WANTED)} probes {are_up}"]
    for state in NOT_UP:
        if names := found[state]:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            parts.append(f"{state}: {', '.join(names[:MOST_NAMED])}{more}")
    return "; ".join(parts)


class Snapshot(NamedTuple):
    """Everything that is shown at one moment. It is copied under the lock and formatted without it.

    ``namespace`` begins the names of the probes' metrics. ``notice`` is a sentence about the whole agent.
    """

    families: tuple[Family, ...]
    probes: tuple[ProbeStatus, ...]
    namespace: str = "kprobe"
    notice: str = ""
