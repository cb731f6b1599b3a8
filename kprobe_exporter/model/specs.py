"""The plan of a probe: how it is attached, and the metrics and labels that its events feed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.hist import HistEvent, HistTable
from kprobe_exporter.model.records import Layout, Outstanding
from kprobe_exporter.model.stacks import StackTable
from kprobe_exporter.model.values import ReturnType, Value

Plan: TypeAlias = Literal["count", "events", "kernel"]
"""How a probe is collected. ``count``: the kernel counts hits and writes no event to the ring buffer.
``events``: each event is read, since a metric or an export needs more than the number of hits.
``kernel``: hist triggers aggregate in the kernel."""


class Unsupported(NamedTuple):
    """An alternative that this kernel cannot provide, as known before any attempt to install it.

    ``waiting``: its program is in containers, of which none runs now.
    """

    target: str
    reason: str
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """One way to attach one probe, as a description: nothing is written to tracefs yet.

    ``file`` is the definitions file, None for a static tracepoint that needs no definition. ``verb`` is the
    head of the line (``p``, ``r1024``, ``e``), ``body`` the part after the name. ``system`` and ``event``
    name the static tracepoint. The kernel evaluates ``filter``, the agent ``residual_filter``. ``because``
    tells the user in one clause why this plan was chosen. ``tables`` are the hist triggers of the plan
    ``kernel``, each with the filter in its own condition; ``tables_count_hits`` if there is none, so that
    they see each hit, but for a uretprobe, whose hits are entries. ``stack_table`` is the hist trigger that
    counts its stacks, with any plan. ``role`` is the event's part in a call or a pair. Events with ``end``
    are not hits, nor are ``own`` events, which the agent itself needs. The kernel makes the event of ``sum``
    of a pair that it joins. ``inode`` is the device and inode
    number of the program for which a place in a file was planned. ``more`` are the bodies of further
    definitions of the same event, for a USDT probe at several places. ``sample`` is a further filter, which
    keeps the events of some threads only; ``residual_sample`` is it for the agent, as of a static tracepoint
    the kernel also lets the events of other probes through. ``help`` is what the alternative says of itself.
    ``note`` is the part of ``because`` that says what was found here under the name as written.
    ``hist_event`` is the part of its event that hist triggers may use, of the plan ``kernel``.
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
    residual_filter: Where | None = None
    stack: bool = False
    plan: Plan = "events"
    because: str = ""
    tables: tuple[HistTable, ...] = ()
    tables_count_hits: bool = False
    stack_table: StackTable | None = None
    role: Literal["whole", "begin", "end", "sum", "own"] = "whole"
    inode: tuple[int, int] | None = None
    more: tuple[str, ...] = ()
    sample: str | None = None
    residual_sample: Where | None = None
    help: str = ""
    note: str = ""
    hist_event: HistEvent | None = None

    @property
    def kernel_filter(self) -> str | None:
        """All that the kernel filters by."""
        if self.sample is None or self.filter is None:
            return self.sample or self.filter
        return f"({self.filter}) && {self.sample}"

    @property
    def agent_filter(self) -> Where | None:
        """All that the agent filters by."""
        if self.residual_filter is None:
            return self.residual_sample
        return self.residual_filter & self.residual_sample

    @property
    def path(self) -> str:
        """The file in which a uprobe was planned, also if its library was named by a soname."""
        return self.body.partition(" ")[0].rpartition(":")[0]

    def line(self, group: str, event: str) -> str:
        """Return the definition in the kernel's syntax, for this group and event name."""
        return f"{self.verb}:{group}/{event} {self.body}"


Decoder: TypeAlias = Callable[[Value], str | None]
"""Turns a field's value into a label's text; returns None for a value that it cannot decode."""


OF_ERROR = "errno"
"""The decoder of an error. It takes a signed number, so a field's width has to be known."""


OF_PROGRAM = "usym"
"""The decoder of an address in a program: only the process in which it is can tell what is there."""


PROCESS = "@process"
"""The key that is the process of such an address, or the thread where its process is not known yet."""


OF_THREAD = frozenset({"cgroup", "container", "pod", "namespace"})
"""Decoders of the cgroup that a thread is in: their field holds a thread's id."""


OF_EXIT = frozenset({"exit_code", "exit_signal"})
"""Facts of a thread that has begun to end."""


OF_PROCESS = OF_EXIT | {"age", "argv", "exe", "parent_comm", "ppid", "uid"}
"""Decoders of facts of a thread's process: their field holds a thread's id. Each is also the name of a field,
which stands for the decoder of ``tid``, unless an event has a field of that name."""


BY_THREAD = OF_THREAD | OF_PROCESS
"""Decoders of a thread's id. Its cgroup or fact is looked up at the event's place in the stream."""


UNBOUNDED = frozenset({"age", "argv"})
"""Facts that cannot be a metric's label: each process would have a series of its own, and arguments may hold
secrets."""


CgroupOf: TypeAlias = Callable[[int, int], bytes | None]
"""Takes a thread's id and a time in ns; returns the path of the thread's cgroup then, None if unknown."""


FactOf: TypeAlias = Callable[[str, int, int], Value]
"""Takes one of OF_PROCESS, a thread's id and a time in ns; returns the fact then, None if unknown."""


class LabelSpec(NamedTuple):
    """One label of a metric: the field it comes from, and the named decoders, applied in turn.

    ``network``: the first takes a number in network byte order, as ``ip`` and ``port`` do.
    ``named``: the first takes the layout's word for a number. If the first is in OF_THREAD, it gets the path
    of the thread's cgroup at the event's place in the stream; if it is in OF_PROCESS, that fact.
    """

    name: str
    field: str
    decoders: tuple[tuple[str, Decoder], ...] = ()
    network: bool = False
    named: bool = False

    @property
    def first(self) -> str:
        """The name of the first decoder, "" without one."""
        return self.decoders[0][0] if self.decoders else ""


class MetricSpec(NamedTuple):
    """One metric that events feed, under its full name.

    ``value`` is the field it takes, multiplied by ``scale``; None means the value 1. Events that do not pass
    ``where`` change nothing. Nor do those that do not pass ``selects``, which names labels of the metric and
    the fields ``selects_by``. A ``native`` histogram has exponential buckets beside its own.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    value: str | None
    labels: tuple[LabelSpec, ...]
    buckets: tuple[float, ...] = ()
    scale: float = 1.0
    where: Where | None = None
    selects: Where | None = None
    selects_by: tuple[str, ...] = ()
    native: bool = False

    @property
    def of_program(self) -> tuple[int, ...]:
        """The indices of the labels that are addresses in a program."""
        return tuple(index for index, label in enumerate(self.labels) if label.first == OF_PROGRAM)


class WorstSpec(NamedTuple):
    """The largest value of a probe's events that is shown for a while, with labels of its event.

    ``value`` and ``labels`` are those of a metric, as is ``scale``; no series has these labels.
    """

    value: str
    labels: tuple[LabelSpec, ...]
    scale: float
    """The factor of the value: that of a time makes seconds of nanoseconds."""
    window: float
    """For how many seconds a value counts, from the moment at which its event was read."""
    is_time: bool

    @property
    def as_metric(self) -> MetricSpec:
        """A metric with the same labels, for everything that reads them."""
        return MetricSpec("worst", "gauge", "", self.value, self.labels, scale=self.scale)


class ProbeMetrics(NamedTuple):
    """The metrics of one probe. ``return_buckets`` and ``duration_buckets``, which are in seconds, are the
    bounds of the built-in histograms; empty for none. ``native``: these have exponential buckets, too.
    ``attributes`` are those of its exported events, and ``outstanding`` says what counts as such.
    ``worst`` is the largest value that is kept."""

    probe: str
    metrics: tuple[MetricSpec, ...]
    return_buckets: tuple[float, ...]
    returns: ReturnType | None
    duration_buckets: tuple[float, ...] = ()
    native: bool = False
    attributes: tuple[LabelSpec, ...] = ()
    outstanding: Outstanding | None = None
    worst: WorstSpec | None = None
