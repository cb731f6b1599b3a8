"""Checks ``record`` against the probes, and makes the metrics that count its conditions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from kprobe_exporter.config.model import Probe
from kprobe_exporter.config.record import RecordModel
from kprobe_exporter.config.recordings import Condition, RecordingSettings, RecordSettings
from kprobe_exporter.config.schema import MetricModel
from kprobe_exporter.config.wording import nearest, quote
from kprobe_exporter.config.yaml_source import Report

TRACEPOINT = re.compile(r"tracepoint:([A-Za-z_][\w-]*):([A-Za-z_]\w*)", re.ASCII)

HELP = "Events that meet a condition of this recording."


Conditions: TypeAlias = Mapping[str, Sequence[tuple[MetricModel, Report]]]
"""The counters of conditions by the name of the probe, each with the report of its condition."""


def condition_metrics(record: RecordModel, report: Report) -> Conditions:
    """Return the counters of all conditions."""
    found: dict[str, list[tuple[MetricModel, Report]]] = {}
    for index, one in enumerate(record.recordings):
        seen: set[str] = set()
        for number, condition in enumerate(one.when):
            here = report.below(("record", "recordings", index, "when", number))
            if condition.probe in seen:
                here(
                    ("probe",), f"this recording has a condition on {quote(condition.probe)}: join both by ||"
                )
                continue
            seen.add(condition.probe)
            counter = MetricModel(
                counter=RecordingSettings(one.name).counter, where=condition.where, help=HELP
            )
            found.setdefault(condition.probe, []).append((counter, here))
    return found


def record_of(model: RecordModel, probes: Sequence[Probe], report: Report) -> RecordSettings:
    """Check the names in ``record``; return its values."""
    known = {probe.name: probe for probe in probes}
    found: dict[str, RecordingSettings] = {}
    for index, one in enumerate(model.recordings):
        here = report.below(("record", "recordings", index))
        if one.name in found:
            here(("name",), f"there is a recording {quote(one.name)} already")
        for number, condition in enumerate(one.when):
            _check_name(condition.probe, known, here, ("when", number, "probe"))
        tracepoints, names = [], []
        for number, name in enumerate(one.probes):
            if target := TRACEPOINT.fullmatch(name):
                tracepoints.append(f"{target[1]}/{target[2]}")
            elif _check_name(name, known, here, ("probes", number)):
                pattern = any(attach.target.is_pattern for attach in known[name].attach)
                names += [name, f"{name}_*"] if pattern else [name]
        when = tuple(Condition(condition.probe, condition.where) for condition in one.when)
        found[one.name] = RecordingSettings(
            one.name,
            tuple(names),
            tuple(tracepoints),
            one.window,
            one.buffer_size,
            when,
            one.every,
            tuple(dict.fromkeys(one.formats)),
            one.marks,
        )
    return RecordSettings(model.directory, model.max_bytes, model.max_files, tuple(found.values()))


def _check_name(name: str, known: Iterable[str], report: Report, path: tuple[str | int, ...]) -> bool:
    if name in known:
        return True
    how = " (a tracepoint is tracepoint:SYSTEM:EVENT)" if ":" in name else nearest(name, known)
    report(path, f"there is no probe {quote(name)}{how}")
    return False
