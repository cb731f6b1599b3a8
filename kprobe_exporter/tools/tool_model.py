"""The models of a tool's YAML file, and its JSON Schema. Its probes are those of a configuration."""

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, Tag, model_validator

from kprobe_exporter.config.fields import Buckets, Decoding, Help, Labels, Strict, Where, no_items, shapes
from kprobe_exporter.config.schema import GlobalModel, ProbeModel, described

View: TypeAlias = Literal["rows", "top", "hist", "counts", "stacks", "classes", "functions", "graph"]
Unit: TypeAlias = Literal["s", "ms", "us", "ns", "KB", "MB", "hex"]
OptionType: TypeAlias = Literal[
    "flag", "text", "number", "time", "size", "disk", "signal", "user", "address", "function", "call"
]

Title: TypeAlias = Annotated[str, Field(pattern=r"^[ -~]{1,40}$")]
Command: TypeAlias = Annotated[str, Field(pattern=r"^tool [a-z]")]
ToolName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
OptionName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]


class ColumnModel(Strict):
    """A column: the field or the expression that it shows, and how."""

    field: str | None = None
    """Of rows: a field of the event, as a label's. Of tables: a label of the metrics, or `probe`."""
    decode: Decoding | None = None
    """Of rows: a decoder's name, `{NAME: OPTIONS}`, or a list of these to apply in turn."""
    value: Where | None = None
    """An expression: of rows, of the event's fields; of tables, of the metrics' and probes' names, each the
    growth in the interval. `NAME_count` and `NAME_sum` are a histogram's. A duration is in nanoseconds.
    `meminfo_cached` and the like are numbers of /proc/meminfo in bytes, if no column shows a label."""
    unit: Unit | None = None
    """How a number is shown: a time in nanoseconds as `s`, `ms` or `us`; bytes as `KB` or `MB`; `hex`."""
    scale: Annotated[float, Field(gt=0)] | None = None
    """The factor of the number, instead of a `unit`."""
    digits: Annotated[int, Field(ge=0, le=9)] | None = None
    """Digits behind the decimal point: 3 of `s` and `ms`, else 0, or 2 with a `scale`."""
    per_second: bool = False
    """Whether a table shows the number by second."""
    width: Annotated[int, Field(ge=1, le=200)] | None = None
    """Characters; longer values move the next columns."""
    align: Literal["left", "right"] | None = None
    """`right` by default for an expression and for what has a unit."""
    option: OptionName | None = None
    """The option with which alone this column is shown."""

    @model_validator(mode="after")
    def _one(self) -> "ColumnModel":
        if (self.field is None) == (self.value is None):
            raise ValueError("a column has `field` or `value`, one of them")
        return self


_Column: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[ColumnModel, Tag("<mapping>")],
    shapes("a column is the name of a field, or {field: NAME, decode: DECODER}, or {value: EXPRESSION}"),
]


class OptionModel(Strict):
    """An option of the command line. In a string of the probes, `{NAME}` stands for the value of NAME."""

    short: Annotated[str, Field(pattern=r"^[A-Za-z]$")] | None = None
    """Its letter, which it takes even from an option that all tools have."""
    help: Help
    """One sentence."""
    type: OptionType = "flag"
    """Its kind of argument. The value of `disk`, `signal`, `user` and `address` is the kernel's number for
    it. Those of `function` and `call` are targets: `vfs_read`, `tcp_*`, `PATH:FUNCTION`, or a target with its
    kind."""
    argument: bool = False
    """Whether it is given without its name, as a word behind those of the arguments above it. It is
    required if it has no default."""
    default: str | int | float | None = None
    """The value in `{NAME}` if the option is not given; of a flag, whose value is `then`, too."""
    then: str | int | float | None = None
    """The value of a flag that is given."""
    where: str | None = None
    """A condition that is added if it is given: of the rows, or of all metrics. `{NAME}` is its value."""
    filter: str | None = None
    """The same in the kernel's language, added to the filter of all probes."""
    enables: list[str] = Field(default_factory=no_items)
    """Probes that are attached only with this option; in the file they have `enabled: false`."""
    disables: list[str] = Field(default_factory=no_items)
    """Probes that are not attached with this option."""
    labels: Labels = Field(default_factory=dict)
    """Labels that all metrics get with this option."""
    view: View | None = None
    """The tool's view with this option."""
    unit: Unit | None = None
    """The unit of the tool's histograms with this option."""
    buckets: Buckets | None = None
    """The buckets of the tool's histograms with this option."""


class ToolModel(Strict):
    """A terminal tool: the probes of a configuration, and how their events are shown."""

    help: Help
    """One sentence, which the list of tools shows."""
    subject: Literal["processes", "files", "disks", "network", "scheduler", "memory", "kernel", "programs"]
    """Under which heading the list of tools has it."""
    view: View
    """`rows`: a line an event. `top`: a table by key, refreshed. `hist`: histograms. `counts`: a table at the
    end, or a line an interval. `stacks`: counted stacks. `classes`: the time of threads by class. `functions`
    and `graph`: the text of the kernel's tracers `function` and `function_graph`, of the functions of the
    first probe."""
    settings: GlobalModel = Field(default_factory=GlobalModel, alias="global")
    """Settings, as of a configuration."""
    probes: Annotated[list[ProbeModel], Field(min_length=1)]
    """The probes, as of a configuration. Those of rows need no metrics and no `export`."""
    columns: dict[Title, _Column] = Field(default_factory=dict)
    """TITLE to field, `{field, decode}` or `{value}`. Those of `counts` may be omitted."""
    sort: Title | None = None
    """The column by which a table is sorted, the largest first; the first number by default."""
    where: Where | None = None
    """Of rows: a condition on the events' fields, evaluated in the tool."""
    unit: Unit | None = None
    """Of `hist`: the unit of the values, which are in seconds for a time and in bytes for a size."""
    interval: Annotated[float, Field(gt=0)] | None = None
    """Seconds from one table to the next without -i: 1 of `top`, of the others none, which is at the end."""
    options: dict[OptionName, OptionModel] = Field(default_factory=dict)
    """NAME to an option of the command line, `--NAME`."""
    examples: dict[Command, Help] = Field(default_factory=dict)
    """Command lines, as `tool NAME -p 1`, to their use, which `--help` shows."""
    aliases: dict[ToolName, dict[OptionName, str | int | float | bool]] = Field(default_factory=dict)
    """Other names of the tool to the options that each of them gives."""
    instead: Help | None = None
    """A similar tool or option for a kernel that cannot have the tool's probes, in one sentence."""
    output: str = ""
    """A real output, which `--help` shows."""

    @model_validator(mode="after")
    def _columns(self) -> "ToolModel":
        if not self.columns and self.view in ("rows", "top", "classes"):
            raise ValueError(f"the view {self.view} shows `columns`: write at least one")
        return self


def column_key(title: str) -> str:
    """Return the name of a column in JSON, and of its attribute: ``LAT(ms)`` is ``lat_ms``."""
    key = re.sub(r"\W+", "_", title.lower().replace("%", "_pct")).strip("_")
    return f"_{key}" if key[:1].isdigit() else key


def tool_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a tool's file, in which ``{NAME}`` may stand for any text."""
    schema: dict[str, Any] = _or_placeholder(described(ToolModel))
    return schema


def _or_placeholder(schema: Any) -> Any:
    """Return a schema whose patterns an option's name in braces fits, too."""
    if isinstance(schema, list):
        return [_or_placeholder(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _or_placeholder(value) for key, value in schema.items()}
    if isinstance(pattern := changed.get("pattern"), str):
        changed["pattern"] = rf"{pattern}|^\{{[a-z][a-z0-9-]*\}}$"
    return changed
