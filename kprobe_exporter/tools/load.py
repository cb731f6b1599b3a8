"""Loads a tool's file, fills in its options, and makes the configuration that it is."""

import pwd
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from kprobe_exporter.config.explain import explain
from kprobe_exporter.config.fields import size
from kprobe_exporter.config.files import Unusable, read
from kprobe_exporter.config.sites import BUILT_IN
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.errors import ConfigError, GrammarError, UsageError, sentence
from kprobe_exporter.grammar.formula import DURATION
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.grammar.lexis import NAME
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import OF_PROCESS, OF_THREAD
from kprobe_exporter.tools.columns import Column, column_of
from kprobe_exporter.tools.tool_model import ColumnModel, OptionModel, OptionType, ToolModel, View

FOLDER = Path(__file__).parent
"""The tools that come with this program."""

FILLED = ("global", "probes", "columns", "where")
"""The keys of a file in which ``{NAME}`` stands for an option's value."""

ON_CALLS, ON_RETURNS = ("call", "ucall", "syscall"), ("kretprobe", "uretprobe", "fexit")
"""Kinds of targets whose events have a duration and a return value, or a return value alone."""

KINDS = frozenset(kind.value for kind in Kind)

SHORT_KINDS: Mapping[str, tuple[str | None, str]] = {
    "t": ("tracepoint", ""),
    "u": ("usdt", ""),
    "c": (None, "libc.so.6:"),
}
"""The letters of bcc's tools: ``t:SYSTEM:EVENT``, ``u:PATH:NAME``, and ``c:FUNCTION`` of the C library."""

EXAMPLES: Mapping[str, str] = {"function": "kprobe:vfs_read", "call": "call:vfs_read"}
"""Targets with which a tool's file is valid before its function is given."""

LONGEST_VALUE = 255

ADDED, PLACE_WIDTH = sorted(OF_THREAD), 20
"""The columns that may be added to any tool, and their characters."""

Document = dict[str, Any]
Values = Mapping[str, object]
"""The values of options by their names; those that are not given are None, or False."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with the values of its options.

    ``configuration`` is the one of the agent that counts or exports the same, as data.
    """

    name: str
    model: ToolModel
    columns: tuple[Column, ...]
    configuration: Document

    def missing(self, why: str) -> str:
        """Return the sentences that say ``why`` a kernel cannot have it, and what to use there."""
        return f"{sentence(why)} {self.model.instead or ''}".rstrip()

    @property
    def text(self) -> str:
        """The configuration in YAML."""
        return yaml.dump(
            self.configuration, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True, indent=2
        )


def tool_names() -> list[str]:
    """Return the names of the tools that come with this program."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def tool_path(name: str) -> Path | None:
    """Return the file of a tool by its name, or by a path that ends in .yaml; None if there is none."""
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    return path if path.is_file() and (name.endswith(".yaml") or name in tool_names()) else None


def tool_aliases() -> dict[str, tuple[Path, Values]]:
    """Return the other names of tools, each with the tool's file and the options that it gives."""
    found: dict[str, tuple[Path, Values]] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        if b"\naliases:" in (text := path.read_bytes()):
            written = YamlSource(path.name, text).data
            assert isinstance(written, dict)
            found |= {alias: (path, values) for alias, values in written["aliases"].items()}
    return found


def is_given(value: object) -> bool:
    """Whether an option was given: a flag that was not is False."""
    return value is not None and value is not False


def load_tool(path: Path, values: Values | None = None, added: Sequence[str] = ()) -> Tool:
    """Load a tool's file with these values of its options. Raises ConfigError and UsageError.

    ``added`` are names of ADDED that become the first columns, and labels of all metrics. A file that
    another user may change is refused, unless it comes with this program.
    """
    try:
        source = _source(str(path), path.read_bytes() if path.parent == FOLDER else read(path))
    except Unusable as error:
        raise UsageError(f"{path}: {error}.") from None
    if source.readable:
        raise ConfigError(source.readable)
    data = source.data if isinstance(source.data, dict) else {}
    written = data.get("options")
    options: Document = written if isinstance(written, dict) else {}
    given = {name: value for name, value in (values or {}).items() if is_given(value)}
    texts = {name: _text(name, option, given.get(name)) for name, option in options.items()}
    filled = {key: _filled(value, texts) if key in FILLED else value for key, value in data.items()}
    try:
        model = ToolModel.model_validate(filled, context={"decoders": DECODERS})
    except ValidationError as error:
        raise ConfigError(list(explain(source, error, ToolModel))) from None
    chosen = {name: option for name, option in model.options.items() if name in given}
    for option in chosen.values():
        changed = {"view": option.view, "unit": option.unit}
        model = model.model_copy(update={key: value for key, value in changed.items() if value is not None})
    columns = tuple(
        column_of(title, column)
        for title, column in model.columns.items()
        if isinstance(column, str) or column.option is None or column.option in given
    )
    if model.view == "rows" or columns:
        columns = (*(_place(name, model.view) for name in added), *columns)
    labels = {name: _of_thread(name) for name in added}
    return Tool(path.stem, model, columns, _configuration(filled, model, columns, chosen, texts, labels))


@lru_cache(8)
def _source(file: str, content: bytes) -> YamlSource:
    """Parse a file once: it is loaded for its command, and again with the values of that command's line."""
    return YamlSource(file, content)


def _of_thread(name: str) -> Document:
    """Return the label that shows the cgroup of an event's thread, or what has it."""
    return {"field": "common_pid", "decode": name}


def _place(name: str, view: View) -> Column:
    """Return the column of the same: of a table, it shows the label."""
    shown = _of_thread(name) if view == "rows" else {"field": name}
    return column_of(name.upper(), ColumnModel.model_construct(**shown, width=PLACE_WIDTH))


def _text(name: str, option: object, value: object) -> str:
    """Return the text in place of ``{NAME}``; "" for an option without a value and a default."""
    if not isinstance(option, dict):
        return ""
    if value is None:
        value = option.get("default", EXAMPLES.get(option.get("type", "flag")))
    elif value is True:
        value = option.get("then")
    else:
        return kernel_value(name, option.get("type", "flag"), str(value))
    return "" if value is None else str(value)


def kernel_value(name: str, kind: OptionType, text: str) -> str:
    """Return an option's value as probes and conditions take it. Raises UsageError."""
    try:
        value = str(CONVERSIONS.get(kind, str)(text))
    except (OSError, KeyError, ValueError):
        raise UsageError(f"--{name}: there is no {kind} {text!r}.") from None
    if not value.isprintable() or '"' in value or len(value) > LONGEST_VALUE:
        raise UsageError(f"--{name}: the text has a quotation mark or several lines: omit them.")
    return value


def _disk(text: str) -> int:
    """Return the kernel's number of a block device by its name, see MKDEV() of include/linux/kdev_t.h."""
    major, _, minor = Path(f"/sys/class/block/{Path(text).name}/dev").read_text().partition(":")
    return int(major) << 20 | int(minor)


def _signal(text: str) -> int:
    return int(text) if text.isdigit() else signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"].value


def _target(kernel: str, program: str, text: str) -> str:
    """Return the target of a function: in ``kernel``, or in a ``program`` or library."""
    first, colon, rest = text.partition(":")
    if first in KINDS:
        return text
    if first in SHORT_KINDS and colon:
        kind, file = SHORT_KINDS[first]
        return f"{kind or program}:{file}{rest}"
    return f"{program if colon and ('/' in first or '.' in first) else kernel}:{text}"


CONVERSIONS: Mapping[OptionType, Callable[[str], object]] = {
    "disk": _disk,
    "signal": _signal,
    "user": lambda text: int(text) if text.isdigit() else pwd.getpwnam(text).pw_uid,
    "address": ip_address,
    "size": size,
    "function": partial(_target, "kprobe", "uprobe"),
    "call": partial(_target, "call", "ucall"),
    "time": lambda text: format(Decimal(text), "f"),
}
"""How values become what the kernel takes."""


def _filled(value: Any, texts: Mapping[str, str]) -> Any:
    """Return a value with ``{NAME}`` replaced in all strings below it; a number that this makes is one."""
    if isinstance(value, dict):
        return {_filled(key, texts): _filled(one, texts) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, texts) for one in value]
    if not isinstance(value, str):
        return value
    filled = re.sub(r"\{([a-z][a-z0-9-]*)\}", lambda found: texts.get(found[1], found[0]), value)
    if filled == value or not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?", filled):
        return filled
    return float(filled) if "." in filled else int(filled)


def _configuration(
    data: Document,
    model: ToolModel,
    columns: tuple[Column, ...],
    chosen: Mapping[str, OptionModel],
    texts: Mapping[str, str],
    labels: Document,
) -> Document:
    """Return the configuration of the agent with which it exports the rows, or feeds the metrics.

    All metrics get these ``labels``, too. Raises UsageError if there are some, and no metric.
    """
    wheres = [_filled(one.where, texts) for one in chosen.values() if one.where is not None]
    filters = [_filled(one.filter, texts) for one in chosen.values() if one.filter is not None]
    if labels and model.view != "rows" and not any(probe.get("metrics") for probe in data["probes"]):
        raise UsageError(f"--add {next(iter(labels))}: this tool counts its probes alone, by no label.")
    for option in (data["options"][name] for name in chosen):
        added = option.get("labels", {})
        labels = labels | (added if isinstance(added, dict) else {name: name for name in added})
    buckets = next((data["options"][name]["buckets"] for name, one in chosen.items() if one.buckets), None)
    enabled = {name for one in chosen.values() for name in one.enables}
    disabled = {name for one in chosen.values() for name in one.disables}
    made: Document = {key: data[key] for key in ("global",) if key in data}
    if model.view == "classes":
        made["time"] = {}
    if model.view == "rows":
        made["otlp"] = {}
        wheres = [*([model.where] if model.where else []), *wheres]
    made["probes"] = probes = []
    for written in data["probes"]:
        probe = dict(written)
        if probe.get("name") in enabled | disabled:
            probe["enabled"] = probe["name"] not in disabled
        if filters and probe.get("enabled", True):
            _narrow(probe, filters)
        if model.view == "rows":
            _show(probe, columns, wheres)
        elif "metrics" in probe:
            probe["metrics"] = [_metric(one, wheres, labels, buckets) for one in probe["metrics"]]
        probes.append(probe)
    return made


def _narrow(probe: Document, filters: list[str]) -> None:
    """Add the filters to the probe's own, and to those of alternatives that have one in its place."""
    probe["filter"] = _all(probe.get("filter"), filters)
    attach = probe.get("attach")
    listed = attach if isinstance(attach, list) else [attach]
    listed = [
        {**one, "filter": _all(one["filter"], filters)} if isinstance(one, dict) and "filter" in one else one
        for one in listed
    ]
    if attach is not None:
        probe["attach"] = listed if isinstance(attach, list) else listed[0]


def _all(first: str | None, others: list[str]) -> str:
    """Return a condition that holds if all of these do."""
    parts = [*([first] if first else []), *others]
    return parts[0] if len(parts) == 1 else " && ".join(f"({part})" for part in parts)


def _metric(metric: Document, wheres: list[str], labels: Document, buckets: object) -> Document:
    own = metric.get("labels", {})
    own = own if isinstance(own, dict) else {name: name for name in own}
    added: Document = {"where": _all(metric.get("where"), wheres)} if wheres else {}
    if buckets is not None and "histogram" in metric:
        added["buckets"] = buckets
    return {**metric, **added, **({"labels": own | labels} if labels else {})}


def _show(probe: Document, columns: tuple[Column, ...], wheres: list[str]) -> None:
    """Export the probe's events, with an attribute for each column whose fields it has."""
    times = {DURATION, *_steps(probe)}
    known = _fields(probe) | times - {DURATION}
    attributes: Document = {}
    let = dict(probe.get("let", {}))
    for column in columns:
        field = column.source
        if column.of_thread:  # an exported event has its container
            continue
        if not NAME.fullmatch(field):
            if not _names(field) <= known:
                continue
            let[column.key] = field
            field = column.key
        elif field not in known or field in times:  # an exported event has its times
            continue
        decoded = {"field": field, "decode": column.decode}
        attributes[column.key] = field if column.decode is None else decoded
    if let:
        probe["let"] = let
    where = {"where": _all(None, wheres)} if wheres else {}
    probe["export"] = {"as": "log", **where, "attributes": attributes}


def _names(expression: str) -> frozenset[str]:
    try:
        return parse_formula(expression).fields
    except GrammarError:
        return frozenset()


def _fields(probe: Document) -> frozenset[str]:
    """Return the fields that the events of a probe have, by what is written."""
    found = {*BUILT_IN, *OF_PROCESS} - {"return", DURATION, "caller"}
    found |= {*probe.get("fetch", {}), *probe.get("let", {})}
    attach = probe.get("attach")
    for one in attach if isinstance(attach, list) else [attach]:
        for part in _parts(one):
            if isinstance(part, dict):
                found |= {*(part.get("fetch") or {})}
                key = part.get("key", [])
                found |= {key} if isinstance(key, str) else {*key}
                found |= {DURATION} if "pair" in part else set()
            target = part.get("to") if isinstance(part, dict) else part
            kind = target.partition(":")[0] if isinstance(target, str) else ""
            found |= {DURATION} if kind in ON_CALLS else set()
            found |= {"return", "caller"} if kind in ON_CALLS + ON_RETURNS else set()
    return frozenset(found)


def _steps(probe: Document) -> set[str]:
    """Return the fields with the times of events in between."""
    attach = probe.get("attach")
    pairs = [
        one.get("pair") or {}
        for one in (attach if isinstance(attach, list) else [attach])
        if isinstance(one, dict)
    ]
    return {name for pair in pairs for name in pair.get("through") or {}}


def _parts(attach: object) -> Iterator[object]:
    """Yield an alternative, and the pair and the events in it."""
    yield attach
    if isinstance(attach, dict) and isinstance(pair := attach.get("pair"), dict):
        yield {"key": pair.get("key", []), "pair": None}
        begins = pair.get("from")
        yield from begins if isinstance(begins, list) else [begins]
        yield pair.get("to")


class _Plain(yaml.SafeDumper):
    """Writes no anchors: a configuration takes none."""

    def ignore_aliases(self, data: object) -> bool:
        return True
