"""The checked configuration as frozen values, with defaults filled in and short forms expanded."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, TypeAlias, get_args

from kprobe_exporter.config.recordings import RecordSettings
from kprobe_exporter.grammar.formula import DURATION, Node, split
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.grammar.target import Target
from kprobe_exporter.model.records import Outstanding
from kprobe_exporter.model.values import SHORT_ID, ReturnType

MetricKind: TypeAlias = Literal["counter", "histogram", "gauge"]
METRIC_KINDS: tuple[MetricKind, ...] = get_args(MetricKind)

# The bounds of the built-in histogram of return values are the powers of 4 from 1 to 4^10.
RETURN_BUCKETS = tuple(float(4**k) for k in range(11))

# Those of the built-in histogram of durations are the powers of 4 from 1 µs to 4^12 µs (17 s), in seconds.
DURATION_BUCKETS = tuple(4**k / 1_000_000 for k in range(13))

# Where the kernel aggregates, they are the powers of 4 from 2^10 to 2^34 ns: 1.024 µs to 17.2 s.
KERNEL_DURATION_BUCKETS = tuple(4**k * 1024 / 1_000_000_000 for k in range(13))

# These share the namespace of the probes' metrics, which therefore may not use their names. The kind
# determines which further names, such as those with _bucket, each of them takes.
BUILT_IN_METRICS: Mapping[str, MetricKind] = {
    "hits_total": "counter",
    "misses_total": "counter",
    "up": "gauge",
    "info": "gauge",
    "return_value": "histogram",
    "return_errors_total": "counter",
    "duration_seconds": "histogram",
    "outstanding": "gauge",
    "outstanding_weight": "gauge",
    "worst_seconds": "gauge",
    "worst_value": "gauge",
}

Aggregate: TypeAlias = Literal["auto", "events", "kernel"]
SourceName: TypeAlias = Literal["auto", "binary", "text"]

MAXACTIVE = 1024


class Decode(NamedTuple):
    """One step of a label's decoding: the decoder's name, and its options or None."""

    name: str
    options: object = None


NAMED = Decode("name")
"""The decoder that takes the words for a field from where the probe is attached."""


class Label(NamedTuple):
    """A label of a metric: its name, the field that it shows, and the decoders applied in turn."""

    name: str
    field: str
    decode: tuple[Decode, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a probe. ``name`` is as configured, without the namespace.

    ``value`` is the field that is added, observed or set, multiplied by ``scale``; None adds 1.
    ``buckets`` are a histogram's ascending upper bounds without +Inf; None for the other kinds.
    ``where`` is a filter that the agent evaluates: events that do not pass it do not change the metric.
    ``selecting`` are the names in it that mean labels of the metric, and no fields.
    ``native``: a histogram has exponential buckets, too.
    """

    kind: MetricKind
    name: str
    help: str
    value: str | None = None
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] | None = None
    where: str | None = None
    scale: float = 1.0
    selecting: frozenset[str] = frozenset()
    native: bool = False

    @property
    def where_parts(self) -> tuple[Node | None, Node | None]:
        """The parts of ``where`` that fields alone decide, and those that labels do."""
        return (
            (None, None)
            if self.where is None
            else split(parse_formula(self.where), lambda part: part.fields.isdisjoint(self.selecting))
        )


@dataclass(frozen=True, slots=True)
class WrittenPath:
    """A fetch argument that leads into a structure, and the file, line and column where it is written."""

    text: str
    place: tuple[str, int, int] | None = field(default=None, compare=False)

    def at(self, column: int) -> str:
        """Return ``FILE:LINE:COLUMN: `` of a character in it, nothing where the place is not known."""
        if self.place is None:
            return ""
        file, line, start = self.place
        return f"{file}:{line}:{start + column}: "


class Reading(NamedTuple):
    """How the value behind a path is read: see ``Arg`` of model/values.py. ``type`` is its C type."""

    network: int
    guards: tuple[str, ...]
    type: str = ""


@dataclass(frozen=True, slots=True)
class Attach:
    """One alternative of a probe, merged with the keys that the probe sets for all alternatives.

    ``fetch`` maps NAME to a fetch argument, on a tracepoint to a field, in the configured order.
    ``returns`` is None if there is no return value to read: on entry, and on a tracepoint that does not
    fetch a ``return``. ``guessed``: the return type is not configured, and the kernel's BTF may know it.
    ``absent`` are the fetch arguments that are null: this alternative has no such field. ``paths`` are the
    fetch arguments that lead into structures, each with all its alternatives, of which the first that the
    kernel's types have counts; ``fetch`` has the first one. ``read`` is what planning makes of them.
    ``vectors`` are those of ``fetch`` that are arrays of strings up to a null pointer, as argv: blanks join
    their strings to one text.

    A call or a pair starts with one of ``begins`` and ends with ``end``; these hold what is fetched and
    what the kernel filters. ``filter`` is then the rest, which the agent evaluates, with the agent's
    field names. The events of a pair are matched by equal values of the fields ``key``. ``through`` are the
    events between them, by the names of the fields that are the times of these. A pair of an event and the
    next one of it has the event twice. ``of_time``: these are the scheduler's events, of which the time of
    threads is made. ``help`` is the alternative's own.
    """

    target: Target
    fetch: Mapping[str, str]
    filter: str | None
    returns: ReturnType | None
    guessed: bool = False
    begins: tuple["Attach", ...] = ()
    end: "Attach | None" = None
    key: tuple[str, ...] = ()
    through: Mapping[str, "Attach"] = field(default_factory=dict)
    help: str = ""
    absent: frozenset[str] = frozenset()
    paths: Mapping[str, tuple[WrittenPath, ...]] = field(default_factory=dict)
    read: Mapping[str, Reading] = field(default_factory=dict)
    vectors: frozenset[str] = frozenset()
    of_time: bool = False

    @property
    def again(self) -> bool:
        """Whether it is a pair of an event and the next one of it."""
        return self.begins == (self.end,)

    @property
    def single(self) -> tuple["Attach", ...]:
        """The single events: this one, or those of a call or a pair, in order."""
        if self.again:
            return self.begins
        return (self,) if self.end is None else (*self.begins, *self.through.values(), self.end)


class Export(NamedTuple):
    """The export of a probe's single events, which the fields of ``ExportModel`` describe.

    ``sample`` is above 0 and up to 1. ``max_per_second`` is None for no limit for this probe. ``attributes``
    are fetched pointers that are sent, and ``labels`` what is sent decoded.
    """

    signal: Literal["log", "span", "line"]
    sample: float = 1.0
    max_per_second: float | None = None
    where: str | None = None
    attributes: tuple[str, ...] = ()
    labels: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True)
class Otlp:
    """The destination of OpenTelemetry's signals. A setting that is None uses the OTEL_EXPORTER_OTLP_*
    environment.

    The fields of ``OtlpModel`` describe them. ``timeout``, ``retry`` and ``metrics`` are in seconds; the last
    is the interval at which they are pushed, None for never. ``repr()`` omits strings that may be secrets.
    """

    endpoint: str | None = field(default=None, repr=False)
    protocol: Literal["http/protobuf", "grpc"] | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    timeout: float | None = None
    compression: Literal["gzip", "none"] | None = None
    certificate: str | None = field(default=None, repr=False)
    client_certificate: str | None = field(default=None, repr=False)
    client_key: str | None = field(default=None, repr=False)
    retry: float = 300.0
    queue: int = 10_000
    max_per_second: float = 2000.0
    metrics: float | None = None


class LinesExport(NamedTuple):
    """The destination of lines of JSON; the fields of ``LinesModel`` describe them."""

    to: str
    max_size: int
    files: int


class CpuShare(NamedTuple):
    """A limit as a share of the time of all CPUs: 0.01 is 1 %."""

    share: float


Threshold: TypeAlias = float | CpuShare | None
"""A limit: firings per second, or a share of the CPUs' time. None means no limit."""

PROBE_LIMIT, LIMIT_OF_ALL = CpuShare(0.01), CpuShare(0.02)


NO_STACK = "the kernel has no stack behind a program's code: stacks: {user: true} counts the program's"


class Stacks(NamedTuple):
    """``most`` counted stacks. ``weigh`` is a field to add up. ``user``: the program's is added.

    ``interrupted``: the frames of the interrupt are cut. ``rooted``: each stack ends in the process' name.
    """

    weigh: str | None = None
    most: int = 1000
    user: bool = False
    interrupted: bool = False
    rooted: bool = False


class Worst(NamedTuple):
    """The largest value of the field ``by`` in the last ``window`` seconds is shown, with ``labels``."""

    by: str
    labels: tuple[Label, ...]
    window: float


class Within(NamedTuple):
    """Which containers a probe's program is in, by patterns with ``*``, ``?`` and ``[a-z]``.

    ``container`` is of the container's name in its pod, or of its id, the whole one of 64 digits or the short
    one. ``pod`` is of the pod's name, or of NAMESPACE/NAME if it has a ``/``.
    """

    container: str | None = None
    pod: str | None = None

    def __str__(self) -> str:
        given = [f"{key}: {value}" for key, value in self._asdict().items() if value is not None]
        return f"'{', '.join(given)}'"

    def selects(self, container_id: str, name: str | None, pod: str | None) -> bool:
        """Return whether it selects a container, ``name`` in the ``pod`` NAMESPACE/NAME; None if in none."""
        short = pod if pod is None or "/" in (self.pod or "") else pod.partition("/")[2]
        return _fits(self.container, name, container_id, container_id[:SHORT_ID]) and _fits(self.pod, short)


def _fits(pattern: str | None, *names: str | None) -> bool:
    return pattern is None or any(fnmatchcase(name, pattern) for name in names if name is not None)


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe, which uses the first alternative of ``attach`` that the kernel supports.

    The fields of ``ProbeModel`` describe the others. Without bounds there is no built-in histogram.
    ``native``: the built-in histograms have exponential buckets, too. ``user_stack``: as planned, each event
    has the program's stack. ``within`` selects the containers in which its program is, None for this machine.
    """

    name: str
    help: str
    attach: tuple[Attach, ...]
    metrics: tuple[Metric, ...] = ()
    maxactive: int = MAXACTIVE
    return_buckets: tuple[float, ...] = RETURN_BUCKETS
    duration_buckets: tuple[float, ...] = DURATION_BUCKETS
    enabled: bool = True
    optional: bool = False
    stack: bool = False
    stacks: Stacks | None = None
    outstanding: Outstanding | None = None
    worst: Worst | None = None
    user_stack: bool = False
    aggregate: Aggregate = "auto"
    limit: Threshold = PROBE_LIMIT
    critical: bool = False
    let: Mapping[str, str] = field(default_factory=dict)
    export: Export | None = None
    native: bool = False
    within: Within | None = None

    @property
    def times(self) -> frozenset[str]:
        """The fields that are times: seconds in a comparison and in a metric, nanoseconds in a record."""
        return frozenset({DURATION}.union(*(attach.through for attach in self.attach)))

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels of its metrics, of its exported events and of its largest value."""
        exported = self.export.labels if self.export is not None else ()
        kept = self.worst.labels if self.worst is not None else ()
        return (*(label for metric in self.metrics for label in metric.labels), *exported, *kept)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``global:``, which the fields of ``GlobalModel`` describe.

    Buffer sizes are in bytes. ``series_ttl`` is in seconds; 0 keeps all label sets, None removes idle ones to
    make room. ``limit`` is that of all probes together.
    """

    namespace: str = "kprobe"
    tracefs_instance: str = "kprobe_exporter"
    source: SourceName = "auto"
    buffer_size: int = 1 << 20
    buffer_total: int = 64 << 20
    max_series: int = 1000
    max_series_total: int = 20_000
    series_ttl: float | None = None
    max_matches: int = 100
    limit: Threshold = LIMIT_OF_ALL
    nested_containers: bool = False
    native_histograms: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration; ``files`` are those that it was read from, in order.

    ``warnings`` are lines for the user, each with its file, line and column. They are about valid keys that
    have no effect or are read differently than written. ``otlp`` is None if no file has this key, and
    ``lines`` if no probe that is enabled is exported as lines. ``record`` is None without recordings.
    """

    settings: Settings
    probes: tuple[Probe, ...]
    files: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    otlp: Otlp | None = None
    lines: LinesExport | None = None
    record: RecordSettings | None = None

    @property
    def exports(self) -> Otlp | None:
        """The settings of exports: those of ``otlp``, or the defaults if there are lines alone."""
        return self.otlp or (Otlp() if self.lines else None)


ERRNO = "errno"
"""The return type ``int`` whose negative values are error numbers also where a program returns them."""

_SIGNED = {
    "s8": ("s8", "signed char"),
    "s16": ("s16", "short", "short int"),
    "s32": ("s32", "int", "signed int", "pid_t", ERRNO),
    "s64": ("s64", "long long", "ssize_t", "loff_t", "ptrdiff_t", "time64_t", "ktime_t"),
}
_UNSIGNED = {
    "u8": ("u8", "bool", "_Bool", "unsigned char"),
    "u16": ("u16", "unsigned short", "umode_t"),
    "u32": ("u32", "unsigned int", "unsigned", "gfp_t", "uid_t", "gid_t", "dev_t", "vm_fault_t"),
    "u64": ("u64", "unsigned long", "unsigned long long", "size_t", "sector_t"),
}

RETURN_TYPES: Mapping[str, ReturnType] = {
    **{n: ReturnType(n, t, signed=True) for t, names in _SIGNED.items() for n in names},
    **{n: ReturnType(n, t) for t, names in _UNSIGNED.items() for n in names},
    "long": ReturnType("long", "s64", signed=True),
    "ptr": ReturnType("ptr", "x64", pointer=True),
    "void": ReturnType("void", None),
}

GUESSED_RETURN = RETURN_TYPES["long"]._replace(wide=True)
"""How a value is read whose type nothing says. If it is an ``int``, the register's upper half is garbage, so
small negative numbers are also looked for in the lower half."""

_POINTER = re.compile(r"(const )?((struct|union) )?[A-Za-z_][A-Za-z0-9_ ]*\*+")


def return_type(name: str) -> ReturnType:
    """Return how to read a return value, by the type in the function's declaration: ``struct file *``.

    Raises ValueError with a sentence for an unknown type.
    """
    plain = " ".join(name.split())
    if found := RETURN_TYPES.get(plain):
        return found
    if _POINTER.fullmatch(plain.replace("* *", "**")):
        return RETURN_TYPES["ptr"]._replace(name=plain)
    raise ValueError(
        f"the return type {name!r} is not known: write int, long, ptr, bool, void,"
        " or the kernel's own name of an integer, as u32 or ssize_t"
    )
