"""What a configuration means, as frozen values: defaults filled in, short forms written out."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.grammar.target import Target
from kprobe_exporter.model.values import ReturnType

MetricKind: TypeAlias = Literal["counter", "histogram", "gauge"]

# Powers of 4 from 1 to 4^10, the bounds of the built-in histogram of return values.
RETURN_BUCKETS = tuple(float(4**k) for k in range(11))

# Powers of 4 from 1 µs to 4^12 µs, 17 s: those of the built-in histogram of durations, in seconds.
DURATION_BUCKETS = tuple(4**k / 1_000_000 for k in range(13))

# In the probe's name space, so that no metric of a probe may have their names. The kinds tell
# which further names each of them takes.
BUILT_IN_METRICS: Mapping[str, MetricKind] = {
    "hits_total": "counter",
    "misses_total": "counter",
    "up": "gauge",
    "info": "gauge",
    "return_value": "histogram",
    "return_errors_total": "counter",
    "duration_seconds": "histogram",
}


Aggregate: TypeAlias = Literal["auto", "events", "kernel"]

MAXACTIVE = 1024


class Decode(NamedTuple):
    """One step of a label's decoding: the decoder's name and its options, None without any."""

    name: str
    options: object = None


class Label(NamedTuple):
    """A label of a metric, the field that it shows, and the decoders that it goes through."""

    name: str
    field: str
    decode: tuple[Decode, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a probe. ``name`` is as configured, without the namespace.

    ``value`` is the field that is added, observed or set, multiplied by ``scale``; None adds 1.
    ``buckets`` are a histogram's upper bounds, rising, without +Inf; None for the other kinds.
    ``where`` is a filter, which the agent evaluates: events that do not pass it change nothing.
    """

    kind: MetricKind
    name: str
    help: str
    value: str | None = None
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] | None = None
    where: str | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Attach:
    """One alternative of a probe, with what the probe says for all of them merged in.

    ``fetch`` keeps its order: NAME to fetch argument; on a tracepoint NAME to its field.
    ``returns`` is None where there is no return value to read: on entry, and on a tracepoint that
    does not fetch a ``return``. ``guessed``: nobody said how it is read, and the kernel's BTF may know.

    A call or a pair has ``begins``, one of which comes first, and ``end``: they say what is fetched and
    what the kernel filters; ``filter`` is what is left for the agent, in its own names. A pair's
    halves agree in the fields ``key``.
    """

    target: Target
    fetch: Mapping[str, str]
    filter: str | None
    returns: ReturnType | None
    guessed: bool = False
    begins: tuple["Attach", ...] = ()
    end: "Attach | None" = None
    key: tuple[str, ...] = ()

    @property
    def single(self) -> tuple["Attach", ...]:
        """The single events: of a call or a pair those that begin it and the one that ends it."""
        return (self,) if self.end is None else (*self.begins, self.end)


class Export(NamedTuple):
    """Single events of a probe, as OpenTelemetry log records or spans.

    ``sample`` is the share that is kept, 0 to 1, and ``max_per_second`` the most, None without a limit of
    its own. ``where`` is a filter, which the agent evaluates. ``attributes`` are the fields that are sent
    as ``kprobe.arg.NAME`` although they are pointers.
    """

    signal: Literal["log", "span"]
    sample: float = 1.0
    max_per_second: float | None = None
    where: str | None = None
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Otlp:
    """Where OpenTelemetry's signals go. What is None comes from the OTEL_EXPORTER_OTLP_* environment.

    ``timeout`` in seconds. ``queue`` counts the log records that wait, and as many spans;
    ``max_per_second`` those of all probes together. ``metrics`` are pushed every so many seconds, None
    for never. Texts may be secrets from the environment, and are not in its ``repr()``.
    """

    endpoint: str | None = field(default=None, repr=False)
    protocol: Literal["http/protobuf", "grpc"] | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    timeout: float | None = None
    compression: Literal["gzip", "none"] | None = None
    certificate: str | None = field(default=None, repr=False)
    client_certificate: str | None = field(default=None, repr=False)
    client_key: str | None = field(default=None, repr=False)
    queue: int = 10_000
    max_per_second: float = 2000.0
    metrics: float | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe: the first alternative of ``attach`` that the kernel can do is used.

    ``stack`` asks for the kernel's stack with each event. ``aggregate`` says who adds up: the agent,
    event by event, or the kernel, by hist triggers. ``limit`` in firings a second, None for none.
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
    aggregate: Aggregate = "auto"
    limit: float | None = 100_000.0
    export: Export | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``global:`` says. Buffers in bytes.

    ``max_series`` counts the label sets of a metric, ``max_series_total`` those of all of them. One
    that was not seen for ``series_ttl`` seconds goes; 0 is never. A pattern names ``max_matches`` at most.
    All probes together may fire ``limit`` times a second, None for any number.
    """

    namespace: str = "kprobe"
    tracefs_instance: str = "kprobe_exporter"
    source: Literal["auto", "binary", "text"] = "auto"
    buffer_size: int = 1 << 20
    buffer_total: int = 64 << 20
    max_series: int = 1000
    max_series_total: int = 20_000
    series_ttl: float = 900.0
    max_matches: int = 100
    limit: float | None = 200_000.0


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration; ``files`` are those that it was read from, in order.

    ``warnings`` are lines for a person, each with its file, line and column: nothing is wrong, but
    something is read otherwise than it is written. ``otlp`` is None if nothing goes there.
    """

    settings: Settings
    probes: tuple[Probe, ...]
    files: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    otlp: Otlp | None = None


_SIGNED = {
    "s8": ("s8", "signed char"),
    "s16": ("s16", "short", "short int"),
    "s32": ("s32", "int", "signed int", "pid_t"),
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
    # Said of functions that return an int as well, and where nothing is said: the upper half of
    # the register is garbage then, so the small negative numbers are looked for in the lower half.
    "long": ReturnType("long", "s64", signed=True, wide=True),
    "ptr": ReturnType("ptr", "x64", pointer=True),
    "void": ReturnType("void", None),
}

_POINTER = re.compile(r"(const )?((struct|union) )?[A-Za-z_][A-Za-z0-9_ ]*\*+")


def return_type(name: str) -> ReturnType:
    """How a return value is read, by the type in the function's declaration: ``struct file *``.

    Raises ValueError, a sentence, for a type that is not known.
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
