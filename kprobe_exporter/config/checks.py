"""Checks a probe's `container`, `pod`, `stacks` and `export`, and `otlp` of all files together."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from kprobe_exporter.config.expressions import check_expression, fields_read, missing_field
from kprobe_exporter.config.kernel_aggregation import EVENTS
from kprobe_exporter.config.metrics import MetricBuilder, is_fact
from kprobe_exporter.config.model import NO_STACK, Export, Label, Otlp, Stacks, Within, Worst
from kprobe_exporter.config.otlp import ExportModel
from kprobe_exporter.config.schema import MetricModel, ProbeModel
from kprobe_exporter.config.sites import BUILT_IN, Alternatives
from kprobe_exporter.config.wording import Path, listed, quote
from kprobe_exporter.config.yaml_source import Report
from kprobe_exporter.grammar.evaluate import COMPUTED, FLOAT
from kprobe_exporter.grammar.formula import DURATION
from kprobe_exporter.grammar.lexis import NAME, closest
from kprobe_exporter.grammar.target import Target
from kprobe_exporter.model.records import Outstanding
from kprobe_exporter.model.specs import OF_PROGRAM, OF_THREAD

FILES = ("certificate", "client_certificate", "client_key")

NOWHERE = (
    "nothing says where it goes: add `otlp: {endpoint: …}` at the top, or `otlp: {}` for what the"
    " OTEL_EXPORTER_OTLP_* environment says"
)
DISABLED = "OTEL_SDK_DISABLED is true in the environment, so nothing is exported"
IDLE = "nothing goes there: no probe that is enabled has `export`, and `metrics` is not asked for"
LONE = "a $ begins ${NAME}, a variable of the environment: write $$ for the character itself"

# `$$` stands for one `$`, as in OpenTelemetry's own configuration files.
_DOLLAR = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]{0,127})\})?")


def fill_in(report: Report, environ: Mapping[str, str]) -> None:
    """Replace every ``${NAME}`` in the strings of a file's ``otlp``, and ``$$`` by ``$``.

    This keeps secrets out of files. A string that cannot be filled in is removed and reported; no problem
    quotes a value of ``environ``. The paths of FILES are then resolved against the file's directory.
    """
    data = report.source.data
    if isinstance(data, dict) and isinstance(written := data.get("otlp"), dict):
        data["otlp"] = filled = _filled(written, ("otlp",), report, environ)
        for key in FILES:
            if isinstance(file := filled.get(key), str) and file:
                filled[key] = str(FilePath(report.source.file).parent / file)


def _filled(
    written: Mapping[Any, object], path: Path, report: Report, environ: Mapping[str, str]
) -> dict[Any, object]:
    filled: dict[Any, object] = {}
    for key, value in written.items():
        here = (*path, key)
        if isinstance(value, dict):
            filled[key] = _filled(value, here, report, environ)
        elif not isinstance(value, str):
            filled[key] = value
        elif wrong := list(_wrong(value, environ)):
            for column, sentence in wrong:
                report(here, sentence, column=column)
        else:
            filled[key] = _DOLLAR.sub(lambda found: environ[found["name"]] if found["name"] else "$", value)
    return filled


def _wrong(text: str, environ: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield each place that cannot be filled in: its column, from 0, and a sentence."""
    for found in _DOLLAR.finditer(text):
        if found[0] == "$":
            yield found.start(), LONE
        elif (name := found["name"]) and name not in environ:
            yield found.start(), f"the environment has no {name}; set it, for `check` as well as for `run`"


def wrong_with_otlp(otlp: Otlp) -> Iterator[tuple[str, str]]:
    """Yield each key that conflicts with another one, with a sentence."""
    given = [key for key in FILES if getattr(otlp, key) is not None]
    if otlp.endpoint is not None:
        scheme, _, rest = otlp.endpoint.rpartition("://")
        if not scheme and otlp.protocol != "grpc":
            yield "endpoint", "over HTTP it is a URL, as http://HOST:4318; for gRPC add `protocol: grpc`"
        if scheme and otlp.protocol == "grpc" and rest.partition("/")[2]:
            yield "endpoint", "gRPC takes no path: let it end with the port"
        if scheme == "http":
            for key in given:
                yield key, "the endpoint is without TLS: write https://, or leave this out"
    if ("client_certificate" in given) != ("client_key" in given):
        yield given[-1], "client_certificate and client_key go together: one file may be both"


def export_of(
    model: ExportModel, probe: ProbeModel, alternatives: Alternatives, report: Report, *, short: bool
) -> Export:
    """Convert a probe's ``export``, one word if ``short``. Problems go to ``report``, by paths within it."""
    if probe.aggregate == "kernel":
        report((), f"the kernel keeps no events where it aggregates: {EVENTS}")
    single = [str(target) for one in alternatives if not (target := one.attach.target).is_joined]
    if model.signal == "span" and single:  # a span has a beginning and an end
        why = f"{listed(single)} is one moment: write log, or attach a call or a pair, which take time"
        report(() if short else ("as",), why)
    if model.where is not None:
        check_expression(model.where, ("where",), alternatives, report)
    labels: tuple[Label, ...] = ()
    names: tuple[str, ...] = () if isinstance(model.attributes, dict) else tuple(model.attributes)
    attributes = model.attributes
    if not isinstance(attributes, dict):
        attributes = {name: name for name in names if is_fact(name, alternatives)}
    if attributes:
        metric = MetricModel.model_construct(counter="exported_total", labels=attributes)
        labels = tuple(MetricBuilder(metric, probe, alternatives, report, key="attributes").labels())
        for label in labels:
            if label.decode and label.decode[0].name in {*OF_THREAD, OF_PROGRAM}:
                why = f"{label.decode[0].name} is for labels of metrics: an exported event has its container"
                report(("attributes", label.name), why)
    for index, name in enumerate(names):
        if name not in attributes and (sentence := _no_attribute(name, alternatives)):
            report(("attributes", index), sentence)
        elif name in names[:index]:
            report(("attributes", index), f"{quote(name)} is there already: keep one")
    fetched = tuple(name for name in names if name not in attributes)
    return Export(model.signal, model.sample, model.max_per_second, model.where, fetched, labels)


def _no_attribute(name: str, alternatives: Alternatives) -> str | None:
    """Return why a field cannot be an attribute, if an alternative does not fetch it."""
    fetched = [
        {name for name, known in one.fields.items() if known is not COMPUTED} - BUILT_IN
        for one in alternatives
    ]
    without = [one for one, names in zip(alternatives, fetched, strict=True) if name not in names]
    if not without:
        return None
    if name in BUILT_IN:
        return f"{quote(name)} is a built-in field, and attributes are names of `fetch`: leave it out"
    hint = closest(name, set().union(*fetched) - {name}) or ": every alternative must fetch it"
    return f"{quote(name)} is not fetched at {listed(str(one.attach.target) for one in without)}{hint}"


def within_of(probe: ProbeModel, alternatives: Alternatives, report: Report) -> Within | None:
    """Return which containers a probe selects, None for one of the machine. Problems go to ``report``."""
    within = Within(probe.container, probe.pod)
    if not any(within):
        return None
    key = "pod" if within.container is None else "container"
    for target in (part.target for one in alternatives for part in one.attach.single):
        for sentence in _not_in_container(target):
            report((key,), sentence)
    return within


def _not_in_container(target: Target) -> Iterator[str]:
    if not target.kind.in_file:
        yield f"{quote(str(target))} is in the kernel, which all containers share: leave this key out"
    elif target.is_pattern:
        yield f"{quote(str(target))} is a pattern, for which a file has to be there: name one probe"
    elif ":" in target.path or target.path.startswith("/proc/"):
        yield f"{quote(target.path)} names a root: leave this key out, or write the path in the container"


NOT_WEIGHTS = BUILT_IN - {"return", "duration"}
"""Fields that every event has, and whose sum says nothing."""


def stacks_of(probe: ProbeModel, alternatives: Alternatives, report: Report) -> Stacks | None:
    """Return how the stacks of a probe are counted, None if they are not. Problems go to ``report``."""
    if probe.stacks is None:
        return None
    in_programs = (any(one.target.kind.in_file for one in each.attach.single) for each in alternatives)
    if not probe.stacks.user and alternatives and all(in_programs):
        report(("stacks",), NO_STACK, at_key=True)
    weigh = probe.stacks.weigh
    if weigh is not None and (why := _no_weight(weigh, alternatives)):
        report(("stacks", "weigh"), why)
    if probe.stacks.root is not None and not probe.stacks.user:
        report(("stacks", "root"), "only the stack of a program tells its process: add user: true")
    stacks = probe.stacks
    return Stacks(weigh, stacks.max, stacks.user, stacks.interrupted, stacks.root is not None)


def _no_weight(name: str, alternatives: Alternatives) -> str | None:
    """Return why the sum of a field cannot be a weight; None if it can, as far as is known here."""
    if why := missing_field(name, alternatives):
        return why
    if name in NOT_WEIGHTS:
        return f"the sum of {quote(name)} says nothing: weigh by a name of `fetch`, by return or by duration"
    types = [one.fields[name] for one in alternatives]
    if any(found is COMPUTED for found in types):
        return f"{quote(name)} is computed by the agent, and the kernel adds up: weigh by a name of `fetch`"
    if name != DURATION and any(found is FLOAT for found in types):
        return f"{quote(name)} is a part of the duration: weigh by duration"
    if any(found is not None and found.kind not in ("int", "float") for found in types):
        return f"{quote(name)} is not a number to add up"
    return None


def outstanding_of(probe: ProbeModel, alternatives: Alternatives, report: Report) -> Outstanding | None:
    """Return what of a probe is outstanding, None if that is not counted. Problems go to ``report``."""
    if probe.outstanding is None:
        return None
    weigh = probe.outstanding.weigh
    read = frozenset[str]() if weigh is None else fields_read(weigh, probe.let or {})
    for one in alternatives:
        target, begins = str(one.attach.target), one.attach.begins
        missing = sorted(name for name in read if any(name not in begin.fetch for begin in begins))
        if not one.attach.target.is_joined:
            report(("outstanding",), f"{target} is a single moment, and a call or a pair ends", at_key=True)
        elif missing:
            known = set().union(*(begin.fetch for begin in begins))
            why = f"{quote(missing[0])} is not fetched where {target} begins{closest(missing[0], known)}"
            report(("outstanding", "weigh"), why)
        elif weigh is not None and (type_ := one.fields[weigh]) and type_.kind not in ("int", COMPUTED.kind):
            report(("outstanding", "weigh"), f"{quote(weigh)} is not a number to add up")
    return Outstanding(round(probe.outstanding.older_than * 1e9), probe.outstanding.weigh)


MIN_WINDOW_S, MAX_WINDOW_S = 1.0, 3600.0


def worst_of(probe: ProbeModel, alternatives: Alternatives, report: Report) -> Worst | None:
    """Return which largest value of a probe is kept, None for none. Problems go to ``report``."""
    if probe.worst is None:
        return None
    here, wanted = report.below(("worst",)), probe.worst
    if probe.aggregate == "kernel":
        here((), f"the kernel keeps no single value where it aggregates: {EVENTS}")
    if not MIN_WINDOW_S <= wanted.window <= MAX_WINDOW_S:
        here(("window",), "a window has 1s to 1h: let it be longer than the time between two scrapes")
    metric = MetricModel.model_construct(gauge="worst", value=wanted.by, labels=wanted.keep)
    builder = MetricBuilder(metric, probe, alternatives, here, key="keep")
    if NAME.fullmatch(wanted.by):
        builder.check_number(wanted.by, ("by",))
    else:
        here(("by",), "this is not the name of a field: name an expression by let: {NAME: EXPRESSION}")
    return Worst(wanted.by, tuple(builder.labels()), wanted.window)
