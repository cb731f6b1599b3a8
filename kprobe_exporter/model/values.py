"""The frozen values that the stages hand to each other: probes, events, batches, snapshots."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard

from kprobe_exporter.model.aggregation import RecordFilter, Refused, Tally, Where
from kprobe_exporter.model.condition import Computed
from kprobe_exporter.model.hist import HistReading, HistTable
from kprobe_exporter.model.stacks import Addresses, Stack, StackTable, StackTally

Value: TypeAlias = int | bytes | None
"""A field of an event: a number, a string's raw bytes, or None where the kernel could not read it."""

ArgKind = Literal["int", "hex", "char", "bare", "str", "texts", "comm", "program"]
"""How the kernel prints an argument: a number in C syntax, hexadecimal digits without 0x, one character in
quotes, text without quotes (symbols, and arrays of numbers or characters), a quoted string, an array of
quoted strings. ``comm`` is the thread's name: it is not in the event, but looked up by the thread's id.
``program`` is the name that a thread takes from the path of the program that it executes."""

ABSENT = b"\0"
"""Stands in a label for a field that the alternative in use lacks. No string of a record holds a NUL."""

COMM_BYTES = 15
"""The longest name of a thread (TASK_COMM_LEN of include/linux/sched.h, without the NUL)."""

MAX_ERRNO = 4095
"""include/linux/err.h: a return value from -MAX_ERRNO to -1 is an error."""


def is_error(value: object) -> TypeGuard[int]:
    """Return whether this return value is an error, if it was read with its own width and sign."""
    return isinstance(value, int) and -MAX_ERRNO <= value < 0


SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
"""The limits of the numbers that a field can hold, signed or not."""


def decimal(number: float) -> Fraction:
    """Return the shortest decimal number that is this float, which is what a configuration says."""
    return Fraction(repr(float(number)))


class ReturnType(NamedTuple):
    """How the return register is read.

    ``fetch`` is the kernel's fetch type, None where there is nothing to read. ``signed`` values below 0 may
    be errors. A ``pointer`` has no value histogram, but an ERR_PTR (include/linux/err.h) counts as an error.
    ``wide`` says that the width is a guess: the upper half of the register is garbage for a C ``int``.
    """

    name: str
    fetch: str | None
    signed: bool = False
    pointer: bool = False
    wide: bool = False

    @property
    def wrap(self) -> int:
        """The number N for which N-MAX_ERRNO .. N-1 are errors too, 0 if there is none.

        An ``int`` that was read as 64 bits has its errors below 2**32, and an ERR_PTR is one of the last
        addresses.
        """
        return 1 << 32 if self.wide else 1 << 64 if self.pointer else 0


class Arg(NamedTuple):
    """One argument of an event, in the order of its definition.

    ``bits`` is the width of a signed number that is printed as an unsigned one; below 0 it is that of an
    unsigned number that is printed with further bits. ``type`` is the kernel's fetch type, such as ``x32[4]``
    or ``symbol``; "" where the event's ``format`` is sufficient. ``field`` is the argument's name in that
    format, "" if it equals ``name``. ``pointer``: the plan takes the argument for an address.
    ``unsigned``: it is an unsigned number of 64 bits, which computes unlike all others.

    ``network`` is the width in bytes of a number that is recorded in network byte order, 0 for others;
    sources deliver it in the host's. ``guards`` are the arguments with the pointers through which this one
    was read: it is missing where one of them is no address.
    """

    name: str
    kind: ArgKind
    bits: int = 0
    type: str = ""
    field: str = ""
    pointer: bool = False
    network: int = 0
    guards: tuple[str, ...] = ()
    unsigned: bool = False


LOWEST_ADDRESS = 4096
"""The kernel maps nothing in the first page, so that a null pointer and small offsets from it fault."""

HIGHEST_ADDRESS = (1 << 64) - MAX_ERRNO - 1
"""Above are the pointers that stand for errors: IS_ERR() of include/linux/err.h."""


def is_address(value: object) -> bool:
    """Return whether a pointer can be followed: it is neither null nor an ERR_PTR (include/linux/err.h)."""
    return isinstance(value, int) and LOWEST_ADDRESS <= value <= HIGHEST_ADDRESS


def swapped(value: int, size: int) -> int:
    """Return an unsigned number of ``size`` bytes with its bytes in the opposite order."""
    return int.from_bytes(value.to_bytes(size, "little"), "big")


def enumerator(names: Mapping[int, str], value: int) -> str | None:
    """Return the name of an enum's value, also of a negative one of which one side has lost the sign."""
    found = names.get(value)
    for whole in (1 << 32, 1 << 64):
        if found is None and -whole // 2 <= value < whole:
            found = names.get(value - whole if value >= whole // 2 else value + whole if value < 0 else value)
    return found


Words: TypeAlias = Callable[[int], str | None]
"""Returns what the kernel calls a number, None if it has no word for it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What an event of one installed probe carries, and how its text is parsed.

    ``layout_id`` is the layout's number in its agent; records refer to their layout by it. ``pattern`` is a
    regular expression for the text of a static tracepoint, with one group per argument; None for probe
    events, which the kernel prints in one form. ``stack``: the kernel's stack follows each event, and with
    ``user_stack`` the program's.
    ``user``: the addresses are a program's, so the caller is unknown. ``caller``: the configuration uses
    the function that a return goes back to, for which the kernel's symbols have to be loaded. ``absent`` are
    the fields that the configuration uses and this event lacks: their labels are empty. ``computed`` are
    fields that the agent computes of those that a record holds. ``names`` are fields with words for numbers.
    """

    layout_id: int
    probe: str
    event: str
    form: Literal["entry", "return", "eprobe", "tracepoint", "joined"]
    symbol: str
    args: tuple[Arg, ...] = ()
    returns: ReturnType | None = None
    pattern: bytes | None = None
    stack: bool = False
    user_stack: bool = False
    user: bool = False
    caller: bool = False
    absent: frozenset[str] = frozenset()
    computed: tuple[Computed, ...] = ()
    names: tuple[tuple[str, Words], ...] = ()

    @property
    def hidden(self) -> frozenset[str]:
        """The arguments that the agent itself needs, and nothing shows."""
        return frozenset((STACK_POINTER, *(guard for arg in self.args for guard in arg.guards)))

    @property
    def unsigned(self) -> frozenset[str]:
        """The arguments that are unsigned 64-bit numbers. An error in a return value is made negative."""
        wraps = self.returns is not None and self.returns.wrap
        return frozenset(
            arg.name for arg in self.args if arg.unsigned and not (wraps and arg.name == "return")
        )

    def place(self, name: str) -> int | None:
        """Return the index of the argument ``name`` in a record of this layout, None if it has none."""
        for number, arg in enumerate(self.args, VALUES):
            if arg.name == name:
                return number
        return None


Record: TypeAlias = tuple[Any, ...]
"""One event as the sources deliver it: a flat tuple, since this is the hot path. Its indexes:

LAYOUT_ID the layout's number · TIME nanoseconds of the instance's clock · CPU · TID in the initial pid
namespace · TGID in the same namespace, None where it was not recorded · CALLER the name, in bytes, of the
function that a return goes back to, None where it is unknown · from VALUES on the layout's ``args``.
"""

LAYOUT_ID, TIME, CPU, TID, TGID, CALLER, VALUES = range(7)


class Loss(NamedTuple):
    """An interval in which events of one CPU were lost, in nanoseconds of the instance's clock."""

    cpu: int
    start: int
    end: int


@dataclass(slots=True)
class Batch:
    """What one read gave: records in the order in which the kernel printed them, sums, stacks and losses.

    ``lost`` is the sum of the kernel's LOST lines. Per-CPU ``overrun`` counts the same events, so the two
    are never added. ``stacks`` pair frames, innermost first, as printed, with the record that they belong
    to. The kernel writes an event before its stack, and events do not wait for their stacks: the record
    may be from an earlier batch, and the last frames may come with the next batch. ``user_stacks`` are those
    of programs, with the process' id, or in text the thread's, and come before the kernel's.

    ``repeated`` are records of layouts with a recipe, each with the number of those that it stands for: they
    are equal in all that the recipe uses.

    ``tallies`` are the sums over the records of layouts with a recipe. Those in ``by_thread`` hold a thread's
    id where its cgroup is the key, each with the moment of its first record: that was its cgroup for all of
    the sum. ``arrived`` counts these records by
    layout_id, and those of layouts whose records the source filters; ``passed`` counts those that passed the
    filter, where the agent evaluates it. ``begun`` counts
    the first halves of calls and pairs, by the joined layout's id.

    ``losses`` say when events went missing. A reader of pages delivers a loss before any record later than
    its start; a reader of text, only where the next event of that CPU is printed. ``unpaired`` counts
    the events that belong to a pair whose other half is missing, by the joined layout's id; ``table_full``
    those that found no room in a hist table, by layout_id.

    ``stack_tallies`` are the stacks of layouts whose recipe counts them; ``without_stack`` is the number of
    records that have none, or no value to weigh it by, by layout_id.
    """

    records: list[Record] = field(default_factory=list)
    repeated: list[tuple[Record, int]] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)
    by_thread: list[tuple[int, Tally]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    arrived: dict[int, int] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    unparsed: int = 0
    lost: int = 0
    stacks: list[tuple[Record, Stack]] = field(default_factory=list)
    user_stacks: list[tuple[Record, int, Addresses]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    unpaired: Counter[int] = field(default_factory=Counter)
    table_full: Counter[int] = field(default_factory=Counter)
    stack_tallies: list[StackTally] = field(default_factory=list)
    without_stack: Counter[int] = field(default_factory=Counter)

    def passes(self, record: Record, filters: Mapping[int, RecordFilter]) -> bool:
        """Return whether a record passes the filter of its layout, if it has one, and count it then."""
        layout_id = record[LAYOUT_ID]
        if (only := filters.get(layout_id)) is None:
            return True
        passed = only.test(record)
        self.arrived[layout_id] = self.arrived.get(layout_id, 0) + 1
        self.passed[layout_id] = self.passed.get(layout_id, 0) + passed
        return passed


STACK_POINTER = "stack_pointer"
"""The argument that holds ``$stack`` in both halves of a call; the halves are paired by it."""

CALLER_ADDRESS = "caller_address"
"""The field of a probe in a program from which its label ``caller`` is made."""


class Join(NamedTuple):
    """How two events become one record: an event of ``begins``, and then one of ``end``.

    ``layout`` is the joined record's: TIME, CPU, TID and TGID are the first event's, CALLER the second's.
    An argument is the first event's if that has it, else the second's; ``duration`` is the nanoseconds
    between the two. ``by`` says how events are paired: ``stack`` pairs a function's entry and return by
    thread and STACK_POINTER; ``key`` pairs an end with the latest first event that has equal values of the
    fields ``key``.
    """

    layout: Layout
    begins: tuple[Layout, ...]
    end: Layout
    by: Literal["stack", "key"]
    key: tuple[str, ...] = ()


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
    counts its stacks, with any plan. ``role`` is the event's part in a call or
    a pair; events with ``end`` are no hits, nor are ``own`` events, which the agent itself needs. ``inode``
    is the device and inode number of the program for which a place in a file was planned. ``more`` are the
    bodies of further definitions of the same event, for a USDT probe at several places. ``sample`` is a
    further filter, which keeps the events of some threads only; ``residual_sample`` is it for the agent, as
    of a static tracepoint the kernel also lets the events of other probes through. ``help`` is what the
    alternative says of itself. ``note`` is the part of ``because`` that says what was found here under the
    name as written.
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
    role: Literal["whole", "begin", "end", "own"] = "whole"
    inode: tuple[int, int] | None = None
    more: tuple[str, ...] = ()
    sample: str | None = None
    residual_sample: Where | None = None
    help: str = ""
    note: str = ""

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

    def line(self, group: str, event: str) -> str:
        """Return the definition in the kernel's syntax, for this group and event name."""
        return f"{self.verb}:{group}/{event} {self.body}"


Decoder: TypeAlias = Callable[[Value], str | None]
"""Turns a field's value into a label's text; returns None for a value that it cannot decode."""


OF_PROGRAM = "usym"
"""The decoder of an address in a program: only the process in which it is can tell what is there."""

PROCESS = "@process"
"""The key that is the process of such an address, or the thread where its process is not known yet."""

OF_THREAD = frozenset({"cgroup", "container", "pod", "namespace"})
"""Decoders of the cgroup that a thread is in: their field holds a thread's id."""

CgroupOf: TypeAlias = Callable[[int, int], bytes | None]
"""Takes a thread's id and a time in ns; returns the path of the thread's cgroup then, None if unknown."""


class LabelSpec(NamedTuple):
    """One label of a metric: the field it comes from, and the named decoders, applied in turn.

    ``network``: the first takes a number in network byte order, as ``ip`` and ``port`` do.
    ``named``: the first takes the layout's word for a number. If the first is in OF_THREAD, it gets the path
    of the thread's cgroup at the event's place in the stream.
    """

    name: str
    field: str
    decoders: tuple[tuple[str, Decoder], ...] = ()
    network: bool = False
    named: bool = False


class MetricSpec(NamedTuple):
    """One metric that events feed, under its full name.

    ``value`` is the field it takes, multiplied by ``scale``; None means the value 1. Events that do not
    pass ``where`` change nothing, nor do those that do not pass ``selects``, which names labels of the metric
    and the fields ``selects_by``. A ``native`` histogram has exponential buckets beside its own.
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
        first = (label.decoders[0][0] if label.decoders else "" for label in self.labels)
        return tuple(index for index, name in enumerate(first) if name == OF_PROGRAM)


class Emission(NamedTuple):
    """One event to export. It is kept small, since it may wait in a queue and be dropped there.

    ``record`` has the layout whose id is ``record[LAYOUT_ID]``. ``trace`` and ``span`` are the ids of a span;
    a log record has the ``span`` 0. ``parent`` is the span of ``trace`` that it belongs to, 0 for none.
    ``stack`` holds frames, innermost first. ``attributes`` describe the container and the pod of the
    thread; None where they were not recorded or the thread was in none.
    """

    record: Record
    trace: int = 0
    span: int = 0
    parent: int = 0
    stack: tuple[bytes, ...] = ()
    attributes: Mapping[str, str] | None = None


class ProbeMetrics(NamedTuple):
    """The metrics of one probe. ``return_buckets`` and ``duration_buckets``, which are in seconds, are the
    bounds of the built-in histograms; empty for none. ``native``: these have exponential buckets, too."""

    probe: str
    metrics: tuple[MetricSpec, ...]
    return_buckets: tuple[float, ...]
    returns: ReturnType | None
    duration_buckets: tuple[float, ...] = ()
    native: bool = False


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """The kernel's counts, read at one moment; raw, so they restart when a probe is installed again.

    ``hits`` and ``misses`` are by probe, without those that the kernel does not count. ``lost`` is by
    reason, summed over all CPUs of our instance. ``buffer_bytes`` wait in the ring buffers. ``tables`` are
    by the id of the probe's layout, in the order of its specification. ``epoch`` is the aggregator's epoch
    at the time when the list of events to read was made. ``recorded`` are the recorded events that had been
    read before ``hits`` were, of the probes that a hist trigger counts: these have no fewer hits.
    """

    hits: Mapping[str, int] = field(default_factory=dict)
    misses: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    buffer_bytes: int = 0
    tables: Mapping[int, tuple[HistReading, ...]] = field(default_factory=dict)
    epoch: int = 0
    recorded: Mapping[str, int] = field(default_factory=dict)


class Exemplar(NamedTuple):
    """One call that was exported as a span: its ids, its duration in seconds, and its end in Unix time."""

    trace: int
    span: int
    value: float
    time: float


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
"""What users see of a probe, in the log, on the status page, in systemd and in ``check --live``.

``absent``: it is optional, and this kernel cannot have it. ``unsure``: only an attempt would tell.
"""

WANTED: tuple[ShownState, ...] = ("up", "down", "tripped", "unsure")
NOT_UP: tuple[ShownState, ...] = ("down", "tripped", "unsure", "absent", "disabled")
MOST_NAMED = 20


class Spread(NamedTuple):
    """The bounds of a built-in histogram, and its counts so far, one more than bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]


class HeatMap(NamedTuple):
    """What a built-in histogram, ``kind`` by its name, gained in each of the last ``columns``, oldest first.

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
    ``sampling`` is the share of threads whose events are recorded, None if the probe is not critical.
    ``optional``: it may be ``absent``. ``metrics`` are those that it feeds, without the namespace.
    ``stacks``: they are counted. ``returns``: its return values are read. ``heat`` are its last minutes.
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
    sampling: float | None = None
    optional: bool = False
    metrics: tuple[str, ...] = ()
    stacks: bool = False
    returns: bool = False
    heat: tuple[HeatMap, ...] = ()


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

    ``namespace`` begins the names of the probes' metrics.
    """

    families: tuple[Family, ...]
    probes: tuple[ProbeStatus, ...]
    namespace: str = "kprobe"
