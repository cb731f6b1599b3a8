"""The frozen values that the stages hand to each other: probes, events, batches, snapshots."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.aggregation import Condition, Refused, Tally
from kprobe_exporter.model.hist import HistReading, HistTable

Value: TypeAlias = int | bytes | None
"""A field of an event: a number, a string's raw bytes, or None where the kernel could not read it."""

ArgKind = Literal["int", "hex", "char", "bare", "str", "texts", "comm"]
"""How the kernel prints an argument: a number as C reads it, hexadecimal digits alone, one character in
quotes, text without quotes (symbols, and arrays of numbers or characters), a quoted string, an array of
quoted strings. ``comm`` is not in the event: the thread's name, looked up by its id."""


class ReturnType(NamedTuple):
    """How the return register is read.

    ``fetch`` is the kernel's fetch type, None where there is nothing to read. ``signed`` values
    below 0 may be errors; a ``pointer`` has no value histogram, but an ERR_PTR
    (include/linux/err.h) counts. ``wide`` says that the width is a guess: the upper half of the
    register is garbage for a C ``int``, so 2**32-4095 .. 2**32-1 are errors too.
    """

    name: str
    fetch: str | None
    signed: bool = False
    pointer: bool = False
    wide: bool = False


class Arg(NamedTuple):
    """One argument of an event, in the order of its definition.

    ``bits`` is set where a signed number is printed as an unsigned one of that width. ``type`` is the
    kernel's fetch type, such as ``x32[4]`` or ``symbol``, "" where the event's ``format`` tells all;
    ``field`` the name in that format where it is another one. ``pointer``: it is an address, as far as
    anybody can tell.
    """

    name: str
    kind: ArgKind
    bits: int = 0
    type: str = ""
    field: str = ""
    pointer: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """What an event of one installed probe carries, and how its text is walked.

    ``slot`` numbers the layouts of one agent; a record names its layout by it. ``pattern`` is a
    regular expression for the text of a static tracepoint, one group an argument; None for what the
    probe events of the kernel print in one form. ``stack``: the kernel's stack follows each event.
    ``user``: its addresses are a program's, so it knows no caller. ``caller``: where a return goes back
    to is wanted, for which the kernel's symbols have to be loaded.
    """

    slot: int
    probe: str
    event: str
    form: Literal["entry", "return", "eprobe", "tracepoint", "joined"]
    symbol: str
    args: tuple[Arg, ...] = ()
    returns: ReturnType | None = None
    pattern: bytes | None = None
    stack: bool = False
    user: bool = False
    caller: bool = False

    def place(self, name: str) -> int | None:
        """Where a record of this layout holds the argument ``name``, None if it does not."""
        for number, arg in enumerate(self.args, VALUES):
            if arg.name == name:
                return number
        return None


Record: TypeAlias = tuple[Any, ...]
"""One event as the sources deliver it: a flat tuple, since this is the hot path. Its places:

SLOT the layout's number · TIME nanoseconds of the instance's clock · CPU · TID in the initial pid
namespace · TGID the same, None where it was not recorded · CALLER bytes, the function that a return
goes back to, None where the kernel could not tell · from VALUES on the values of the layout's
``args``.
"""

SLOT, TIME, CPU, TID, TGID, CALLER, VALUES = range(7)


class Loss(NamedTuple):
    """Events of one CPU that were lost: between these moments, in nanoseconds of the instance's clock."""

    cpu: int
    start: int
    end: int


@dataclass(slots=True)
class Batch:
    """What one read gave: records in the order in which the kernel printed them, and what was not one.

    ``lost`` sums the kernel's LOST lines; per-CPU ``overrun`` tells the same loss, so it is shown,
    never added. ``stacks`` are frames, innermost first, as printed, each with the record that they
    belong to: that one may be of an earlier batch, for the kernel writes an event before its stack,
    and no event waits for it. In the same way the last frames may come with the next batch.

    ``tallies`` are what the records of layouts with a recipe came to; then ``arrived`` counts them by
    slot, and ``passed`` those that their filter let through, where it is ours.

    ``losses`` say when events went missing; of pages, before any record of a later moment than their
    start is delivered (text tells only where the next event of that CPU is printed). ``unpaired``
    counts the events that belong to a pair of which the other half is missing.
    """

    records: list[Record] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    arrived: dict[int, int] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)
    unparsed: int = 0
    lost: int = 0
    stacks: list[tuple[Record, tuple[bytes, ...]]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    unpaired: int = 0


STACK_POINTER = "stack_pointer"
"""The argument of both halves of a call that holds ``$stack``, by which they are paired."""


class Join(NamedTuple):
    """How two events become one record: an event of ``begins``, and then one of ``end``.

    ``layout`` is the joined record's: TIME, CPU, TID and TGID are the first event's, CALLER the second's;
    an argument is the first event's, of those that it has not the second's, and ``duration`` the
    nanoseconds between the two. ``by`` says which belong together: ``stack``, a function's entry and
    return, by thread and STACK_POINTER; ``depth``, the same where there is no stack pointer, by
    thread and nesting; ``key``, by equal values of the fields ``key``, the latest first event each.
    """

    layout: Layout
    begins: tuple[Layout, ...]
    end: Layout
    by: Literal["stack", "depth", "key"]
    key: tuple[str, ...] = ()


class Where(NamedTuple):
    """A filter that is evaluated in the agent: the fields it reads, and the test of their values.

    ``condition`` is the same test as plain values; None where it has patterns of strings in it.
    """

    fields: tuple[str, ...]
    test: Callable[[Mapping[str, Value]], bool]
    condition: Condition | None = None


Plan: TypeAlias = Literal["count", "events", "kernel"]
"""How a probe is collected: counted by the kernel, without a single event in the ring buffer; event by
event, because something wants to know more than how many; or aggregated in the kernel, by hist triggers."""


class Unfit(NamedTuple):
    """An alternative that this kernel cannot do, known before anything was tried."""

    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """One way to attach one probe, pure: what would be written to tracefs, without having been written.

    ``file`` is the definitions file, None for a static tracepoint that needs no definition;
    ``verb`` the head of the line (``p``, ``r1024``, ``e``), ``body`` what follows the name;
    ``system`` and ``event`` name the static tracepoint. ``filter`` is the kernel's to evaluate, ``only``
    the agent's. ``because`` says in one clause why the plan is this one, for a person. ``tables`` are
    the hist triggers of the plan ``kernel``, each with the filter in its own condition. ``role`` is
    its part in a call or a pair: what ends it is no hit of its own, nor is what the agent needs itself.
    """

    probe: str
    kind: str
    target: str
    symbol: str
    file: str | None
    verb: str
    body: str
    filter: str | None
    layout: Layout
    system: str = ""
    event: str = ""
    only: Where | None = None
    stack: bool = False
    plan: Plan = "events"
    because: str = ""
    tables: tuple[HistTable, ...] = ()
    role: Literal["whole", "begin", "end", "own"] = "whole"

    def line(self, group: str, event: str) -> str:
        """The definition as the kernel wants it, for this group and event name."""
        return f"{self.verb}:{group}/{event} {self.body}"


Decoder: TypeAlias = Callable[[Value], str | None]
"""Turns a field's value into a label's text; None where it cannot."""


OF_THREAD = frozenset({"cgroup", "container", "pod", "namespace"})
"""Decoders of the cgroup that a thread is in: what they take is a thread's id."""

CgroupOf: TypeAlias = Callable[[int, int], bytes | None]
"""The path of the cgroup that a thread, by its id, was in at a time in nanoseconds; None: unknown."""


class LabelSpec(NamedTuple):
    """One label of a metric: the field it comes from, and the decoders by name, applied in turn.

    With one of OF_THREAD they take the path of the cgroup, found at the event's place in the stream.
    """

    name: str
    field: str
    decoders: tuple[tuple[str, Decoder], ...] = ()

    @property
    def of_thread(self) -> bool:
        """Whether the field is a thread's id, by which its cgroup is found."""
        return bool(self.decoders) and self.decoders[0][0] in OF_THREAD


class MetricSpec(NamedTuple):
    """One metric that events feed, under its full name.

    ``value`` is the field it takes, multiplied by ``scale``; None for 1. Events that do not pass
    ``where`` change nothing.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    value: str | None
    labels: tuple[LabelSpec, ...]
    buckets: tuple[float, ...] = ()
    scale: float = 1.0
    where: Where | None = None


class Emission(NamedTuple):
    """One event that is to be exported: small, for it may wait in a queue and be dropped there.

    ``record`` is of the layout with the slot ``record[SLOT]``. ``trace`` and ``span`` are the ids of a
    span, 0 for a log record, which belongs to the span ``parent`` of ``trace`` if that is not 0.
    ``stack`` are frames, innermost first; ``attributes`` tell of the container and the pod that its
    thread was in, None where nobody asked or it was in none.
    """

    record: Record
    trace: int = 0
    span: int = 0
    parent: int = 0
    stack: tuple[bytes, ...] = ()
    attributes: Mapping[str, str] | None = None


class ProbeMetrics(NamedTuple):
    """What the events of one probe are turned into; ``duration_buckets`` in seconds, empty where
    nothing takes time."""

    probe: str
    metrics: tuple[MetricSpec, ...]
    return_buckets: tuple[float, ...]
    returns: ReturnType | None
    duration_buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """What the kernel counted, read at one moment; raw, so it restarts when a probe is made again.

    ``hits`` and ``misses`` by probe; what the kernel does not count is not there. ``lost`` by
    reason, over all CPUs of our instance and all hist tables; ``buffer_bytes`` waiting in its ring
    buffers. ``tables`` by the slot of the probe's layout, in the order of its specification. ``epoch`` is
    the aggregator's when what to read was looked up.
    """

    hits: Mapping[str, int] = field(default_factory=dict)
    misses: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    buffer_bytes: int = 0
    tables: Mapping[int, tuple[HistReading, ...]] = field(default_factory=dict)
    epoch: int = 0


class Exemplar(NamedTuple):
    """One call of a histogram that was exported as a span: its ids, seconds, and its end in Unix time."""

    trace: int
    span: int
    value: float
    time: float


class HistogramValue(NamedTuple):
    """A histogram: ``counts`` per bucket, not cumulative, one more than ``bounds`` (the last is +Inf).

    ``exemplars`` are the last ones, by the number of their bucket.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    exemplars: Mapping[int, Exemplar] = {}


LabelValues: TypeAlias = tuple[str, ...]


class Family(NamedTuple):
    """One metric with all its label sets, as it is exposed. A counter's ``name`` has its ``_total``."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    samples: Mapping[LabelValues, float | HistogramValue]


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """A probe as the status page shows it. ``hits`` and ``misses`` are None where nobody counts them.

    ``because`` says in one clause why the plan is this one; ``rates`` are the last hits a second, the oldest
    first. ``lost`` is how many of its events were lost at most, None where nobody can tell or none is made.
    """

    name: str
    state: Literal["up", "failed", "disabled", "tripped", "contested"]
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


class Snapshot(NamedTuple):
    """All that is shown at one moment: copied under the lock, formatted without it."""

    families: tuple[Family, ...]
    probes: tuple[ProbeStatus, ...]
