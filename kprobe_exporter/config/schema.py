"""The models of the configuration as users write it, with its short forms, and their JSON Schema.

The models check each value by itself; `alternatives`, `metrics` and `names` check values against each
other. Editors show the docstrings below the fields.
"""

import ast
import inspect
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, Tag, model_validator
from pydantic.config import ConfigDict
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from kprobe_exporter.config.fields import (
    FETCH_NAME,
    PROBE_NAME,
    SPACE_NAME,
    Buckets,
    BuiltInBuckets,
    Definition,
    Duration,
    Fetch,
    Filter,
    Help,
    Labels,
    Let,
    Limit,
    LimitModel,
    Name,
    Returns,
    Selector,
    Size,
    Strict,
    To,
    Where,
    no_items,
    shapes,
)
from kprobe_exporter.config.model import METRIC_KINDS, Aggregate, MetricKind, SourceName
from kprobe_exporter.config.otlp import Exported, LinesModel, OtlpModel
from kprobe_exporter.config.record import RecordModel
from kprobe_exporter.config.time_probe import TimeModel


class MetricModel(Strict):
    """A metric that a probe feeds: `counter`, `histogram` or `gauge` gives its kind and name."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in METRIC_KINDS]})

    counter: Name | None = None
    """The name of a counter, which ends in `_total`; the namespace is put before it."""
    histogram: Name | None = None
    """The name of a histogram; the namespace is put before it."""
    gauge: Name | None = None
    """The name of a gauge, which keeps the last value; the namespace is put before it."""
    help: Help | None = None
    """One sentence on what is counted."""
    value: str | None = None
    """The field or expression that is added, observed or kept; a counter without it adds 1."""
    scale: Annotated[float, Field(gt=0, le=1e300, examples=[1e-9, 512])] | None = None
    """The factor of `value`: 1e-9 turns nanoseconds into seconds."""
    where: Where | None = None
    """A condition on fields and labels, evaluated in the agent, for this metric alone: an expression."""
    labels: Labels = Field(
        default_factory=dict, examples=[["comm"], {"errno": {"field": "return", "decode": "errno"}}]
    )
    """NAME to field or to `{field, decode}`; `[comm]` is short for `{comm: comm}`."""
    buckets: Buckets | None = None
    """A histogram's upper bounds, rising, without +Inf."""
    native: bool | None = None
    """Whether a histogram is a native one, too; without it as `global.native_histograms` says."""

    @property
    def given(self) -> dict[MetricKind, str]:
        """The kinds that are given, exactly one in a valid model, with the metric's name."""
        return {kind: name for kind in METRIC_KINDS if (name := getattr(self, kind)) is not None}

    @model_validator(mode="after")
    def _kind(self) -> "MetricModel":
        if len(self.given) != 1:
            raise ValueError(
                "a metric has exactly one of `counter`, `histogram` and `gauge`, with its name;"
                f" here {'are ' + ' and '.join(self.given) if self.given else 'is none'}"
            )
        return self


class HalfModel(Strict):
    """One event of a pair; `fetch` and `filter` are its own."""

    to: To
    """The event's target: any kind but `call`, `ucall` and `syscall`, and no pattern."""
    fetch: Fetch | None = None
    """NAME to the kernel's fetch argument; on a tracepoint NAME to its field."""
    filter: Filter | None = None
    """The kernel's own filter, evaluated in the kernel."""
    returns: Returns | None = None
    """How the return value is read."""


_To: TypeAlias = Annotated[To, Tag("<text>")]
_Half: TypeAlias = Annotated[HalfModel, Tag("<mapping>")]
_HALF = "an event of a pair is a text as kprobe:vfs_read, or {to: …}"
_Event: TypeAlias = Annotated[_To | _Half, shapes(_HALF)]


_StepName: TypeAlias = Annotated[str, Field(pattern=FETCH_NAME)]


class PairModel(Strict):
    """Two events as one, with the time between them and up to events in between."""

    # `from` is a keyword of Python.
    begin: Annotated[
        _To | _Half | Annotated[list[_Event], Field(min_length=1, max_length=8), Tag("<list>")],
        shapes(f"{_HALF}, or a list of these"),
    ] = Field(alias="from")
    """The event that begins it; with a list, each of them does."""
    through: Annotated[dict[_StepName, _Event], Field(min_length=1, max_length=8)] | None = None
    """NAME to an event in between, as `{issue: "tracepoint:block:block_rq_issue"}`: a field with the seconds
    from the first event to the latest of these."""
    to: _Event
    """The event that ends it."""
    key: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[list[str], Field(min_length=1, max_length=8), Tag("<list>")],
        shapes("key is the name of a field, or a list of names"),
    ]
    """The fields by which the events are matched; all must have them."""


class AttachModel(Strict):
    """One alternative; its keys replace those of the probe."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["to"]}, {"required": ["pair"]}]})

    to: To | None = None
    """The target: `kprobe:SYM[+OFF]`, `call:SYM`, `tracepoint:SYSTEM:EVENT`, `uprobe:PATH:SYM`,
    `usdt:PATH:PROVIDER:NAME`, …"""
    pair: PairModel | None = None
    """Two events as one: `{from: …, to: …, key: FIELD}`."""
    help: Help = ""
    """Help text of this alternative, if it watches less or more than the probe's own `help` says."""
    fetch: Fetch | None = None
    """NAME to the kernel's fetch argument; on a tracepoint NAME to its field; `null` where there is none."""
    filter: Filter | None = None
    """The kernel's own filter, evaluated in the kernel."""
    returns: Returns | None = None
    """How the return value is read: the type in the function's declaration."""

    @model_validator(mode="after")
    def _one(self) -> "AttachModel":
        if (self.to is None) == (self.pair is None):
            raise ValueError("attach has `to` or `pair`, one of them")
        return self


_Alternative: TypeAlias = Annotated[AttachModel, Tag("<mapping>")]
_Listed: TypeAlias = Annotated[
    _To | _Alternative, shapes("an alternative is a text as kprobe:vfs_read, {to: …} or {pair: …}")
]
Attachment: TypeAlias = Annotated[
    _To | _Alternative | Annotated[list[_Listed], Field(min_length=1, max_length=32), Tag("<list>")],
    shapes("attach is a text as kprobe:vfs_read, {to: …}, {pair: …}, or a list of these"),
]


class StacksModel(Strict):
    """How a probe's stacks are counted; ``{}`` counts how often each of the kernel's occurs."""

    weigh: Annotated[str, Field(examples=["duration", "return"])] | None = None
    """The field that is added up for each stack, beside the hits: a name of `fetch`, `return` or, of a call
    or a pair, `duration`."""
    max: Annotated[int, Field(ge=1, le=10_000)] = 1000
    """How many different stacks are kept. Hits with further stacks are counted as lost."""
    user: bool = False
    """Whether the program's stack is added. A probe in a program has only that one."""
    interrupted: bool = False
    """Whether the frames of an interrupt are cut: a probe of the timer's interrupt then samples the CPU."""
    root: Literal["comm"] | None = None
    """`comm` puts the name of the process in front of each stack, with `user: true`."""


class OutstandingModel(Strict):
    """The calls or pairs of a probe that have begun and not ended."""

    older_than: Annotated[Duration, Field(examples=["10s"])] = 0.0
    """How long ago they began at least, as `10s`."""
    weigh: Annotated[str, Field(examples=["size"])] | None = None
    """The field of the first event that is added up, such as the size of an allocation: a name of `fetch`, or
    a `let` that computes with those."""


class WorstModel(Strict):
    """The largest value of a probe within a sliding window, and what its event was."""

    by: Annotated[str, Field(examples=["duration", "return"])]
    """The field whose largest value is kept: a name of `fetch` or `let`, `return` or, of a call or a pair,
    `duration`."""
    keep: Labels = Field(default_factory=dict, examples=[["comm", "file"]])
    """The fields of its event that are kept: NAME to field or to `{field, decode}`; `[comm]` is short for
    `{comm: comm}`."""
    window: Annotated[Duration, Field(examples=["2m"])] = 120.0
    """How long a value counts, from `1s` to `1h`: longer than the time between two scrapes."""


class ProbeModel(Strict):
    """A probe: where it attaches, what it reads, and the metrics that it feeds."""

    # The module `definitions` checks which of these keys are required.
    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["name", "attach"]}, {"required": ["definition"]}],
            "not": {"required": ["attach", "definition"]},
        }
    )

    name: Annotated[str, Field(pattern=PROBE_NAME)] | None = None
    """Unique; the label `probe` of the built-in metrics. A definition's event name serves as well."""
    help: Help = ""
    """A description of the probe for human readers."""
    attach: Attachment | None = None
    """The target. A list has alternatives: the first that this kernel supports is used."""
    container: Selector | None = None
    """In which containers the program is: a pattern such as `db*`, of their names in pods or of their ids."""
    pod: Selector | None = None
    """In which pods' containers the program is: a pattern of NAME or NAMESPACE/NAME."""
    definition: Definition | None = None
    """Instead of `attach`, a line of the kernel's own grammar, as kprobe_events takes it."""
    fetch: Fetch | None = None
    """NAME to the kernel's fetch argument, as `"$arg3:u64"`, or to a member, as `sk->sk_protocol`; on a
    tracepoint NAME to its field, or to memory behind it, as `"+0($filename):ustring"`."""
    filter: Filter | None = None
    """The kernel's own filter, evaluated in the kernel; it may use `return`."""
    returns: Returns | None = None
    """How the return value is read: `int`, `long`, `ptr`, `bool`, `void`, `u32`, … By default the
    type comes from BTF; without BTF, and in programs, it is a `long` or an `int`. Negative values
    of a program's function are shown as numbers, and with `errno` by the error's name."""
    maxactive: Annotated[int, Field(ge=1, le=4096)] | None = None
    """How many calls of the function may be active at once, for return probes; 1024."""
    let: Let | None = None
    """NAME to an expression: fields that the agent computes of others."""
    metrics: list[MetricModel] = Field(default_factory=no_items)
    """Metrics in addition to the built-in ones."""
    return_buckets: BuiltInBuckets | None = None
    """Bounds of the built-in histogram of return values, powers of 4 up to 4^10; `none` for no histogram."""
    duration_buckets: BuiltInBuckets | None = None
    """Bounds in seconds of the built-in histogram of durations, 1 µs to 17 s; `none` for no histogram."""
    optional: bool = False
    """Whether the probe may be missing without a warning if the kernel does not support it."""
    enabled: bool = True
    """Whether it is attached at all."""
    stack: bool = False
    """Whether each event has the kernel's stack."""
    stacks: StacksModel | None = None
    """Count stacks, for flame graphs and profiles: `{}`, or `{weigh: FIELD, user: true, max: 1000}`."""
    outstanding: OutstandingModel | None = None
    """Show how many calls or pairs have begun and not ended: `{older_than: 10s, weigh: FIELD}`."""
    worst: WorstModel | None = None
    """Show the largest value of the last minutes with its event: `{by: duration, keep: [comm]}`."""
    aggregate: Aggregate = "auto"
    """The part that adds up. `events`: the agent. `kernel`: hist triggers, or the agent on a kernel
    without them. `auto`: the cheapest."""
    limit: Limit = LimitModel(cpu="1%")
    """If exceeded for some seconds, the probe is disabled, and tried again with growing pauses."""
    critical: bool = False
    """Whether, over a limit, it goes on with the events of some threads instead of being disabled."""
    export: Exported | None = None
    """Single events to OpenTelemetry, `log` or `span`, or as JSON, `line`; or a mapping with `as`."""


class GlobalModel(Strict):
    """Settings of the agent as a whole."""

    namespace: Annotated[str, Field(pattern=SPACE_NAME)] = "kprobe"
    """Prefix of every probe's metrics."""
    tracefs_instance: Annotated[str, Field(pattern=SPACE_NAME)] = "kprobe_exporter"
    """Name of our tracefs instance and prefix of our probe group: two agents need two names."""
    source: SourceName = "auto"
    """How events are read."""
    buffer_size: Size = 1 << 20
    """Ring buffer size per CPU, as `1MiB`."""
    buffer_total: Size = 64 << 20
    """Upper bound of all CPUs' ring buffers together."""
    max_series: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Label sets of one metric; those beyond are counted under the label value `__overflow__`."""
    max_series_total: Annotated[int, Field(ge=1, le=10_000_000)] = 20_000
    """Label sets of all metrics together."""
    series_ttl: Duration | None = None
    """A label set that was not seen for this long is removed, as `15m`; 0 keeps all. See below."""
    max_matches: Annotated[int, Field(ge=1, le=10_000)] = 100
    """How many functions or tracepoints a pattern such as `kprobe:tcp_send*` may match, a probe each."""
    limit: Limit = LimitModel(cpu="2%")
    """For all probes together: if exceeded for some seconds, the one that takes most is disabled."""
    nested_containers: bool = False
    """Whether threads in nested containers (kind, k3d, Docker in Docker) count as in the innermost one.
    Every program that can create cgroups can then impersonate other containers and pods."""
    native_histograms: bool = False
    """Whether histograms are native ones, too: for scrapes in protobuf, and in OTLP as exponential ones."""


class Document(Strict):
    """A configuration file of kprobe_exporter; several files combine."""

    model_config = ConfigDict(title="kprobe_exporter configuration")

    # `global` is a keyword of Python.
    settings: GlobalModel = Field(default_factory=GlobalModel, alias="global")
    """Settings for all probes."""
    probes: list[ProbeModel] = Field(default_factory=no_items)
    """The probes; those of all files are combined."""
    lines: LinesModel = Field(default_factory=LinesModel)
    """The destination of the events that are exported as lines of JSON (`export: line`)."""
    otlp: OtlpModel = Field(default_factory=OtlpModel)
    """The destinations of OpenTelemetry's log records, spans and metrics; without it nothing is sent."""
    record: RecordModel = Field(default_factory=RecordModel)
    """Recordings of the last seconds before an event, for trace-cmd and Perfetto."""
    time: TimeModel | None = None
    """The time of threads by class, as `time: {by: [pod]}`; `time: {}` is that of the whole machine."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file, for editors and linters."""
    metric = {
        "counter": "open_errors_total",
        "help": "Calls of open that failed.",
        "labels": {"errno": {"field": "return", "decode": "errno"}},
    }
    probe = {"name": "open", "attach": "kretprobe:do_sys_openat2", "filter": "return < 0"}
    return {**described(Document), "examples": [{"probes": [{**probe, "metrics": [metric]}]}]}


def described(model: type[Strict]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of files of this model."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(by_alias=True, schema_generator=_Described),
    }


class _Described(GenerateJsonSchema):
    """Describes each key by the docstring below its field.

    The setting ``use_attribute_docstrings`` would make pydantic parse the source of all models at every
    start.
    """

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        (definition,) = ast.parse(inspect.getsource(model)).body
        assert isinstance(definition, ast.ClassDef)
        for pair in pairwise(definition.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    key = model.model_fields[name].alias or name
                    found["properties"][key]["description"] = inspect.cleandoc(text)
        return found
