"""Runs a tool in a session, by its view."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from kprobe_exporter.config.model import Probe, Settings
from kprobe_exporter.plan import wants_tgid
from kprobe_exporter.probing.scope import Scope
from kprobe_exporter.tools.columns import Column, column_of
from kprobe_exporter.tools.load import Tool
from kprobe_exporter.trace.class_table import show_classes
from kprobe_exporter.trace.count_stacks import count_stacks, loss_sentences, write_profile
from kprobe_exporter.trace.emit import read_back
from kprobe_exporter.trace.function_tracer import TRACERS, trace_functions
from kprobe_exporter.trace.rows import Display, show_rows
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.tables import TableView, show_tables

REFRESH = 1.0
"""Seconds from one table of ``top`` to the next."""


def read_tool(tool: Tool) -> tuple[Settings, list[Probe]]:
    """Return the settings of a tool, and its probes that are attached. Raises UsageError."""
    config = read_back(tool.text)
    return config.settings, [probe for probe in config.probes if probe.enabled]


def records_process(tool: Tool, probes: Sequence[Probe]) -> bool:
    """Whether the kernel has to record the process of each thread."""
    return tool.model.view == "rows" or wants_tgid(probes)


def run_tool(
    session: TraceSession,
    tool: Tool,
    probes: Sequence[Probe],
    shown: Display,
    *,
    scope: Scope,
    flame: Path | None,
    tell: Callable[[str], None],
) -> int:
    """Show what the tool shows until the session ends; return the number of events lost untold.

    Only the threads of ``scope`` are traced. ``flame`` is a file for counted stacks; ``tell`` is called
    with a sentence about these.
    """
    model, each = tool.model, scope.narrows
    if model.view == "classes":
        return show_classes(session, probes, tool.columns, model.sort, shown, scope)
    if model.view == "rows":
        return show_rows(session, probes, tool.columns, shown)
    if model.view == "stacks":
        profile = count_stacks(session, probes, tool.name, each=each, user=False)
        tell(write_profile(profile, session.out, folded_text=flame is None, flame=flame))
        for why in loss_sentences(profile):
            session.warn(why)
        return 0
    if model.view in TRACERS:
        return trace_functions(session, probes, model.view)
    interval = shown.interval or model.interval or (REFRESH if model.view == "top" else None)
    shown = shown._replace(interval=interval)
    machine = meminfo if any("meminfo_" in column.source for column in tool.columns) else dict
    view = TableView(model.view, tool.columns or _counted(probes), model.sort, model.unit, shown)
    return show_tables(session, probes, view, shown, each=each, machine=machine)


def meminfo(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Return the numbers of /proc/meminfo, of which those in kB are bytes, as ``meminfo_cached``."""
    found = re.findall(r"^(\w+):\s+([0-9]+)( kB)?$", path.read_text(), re.MULTILINE)
    return {f"meminfo_{name.lower()}": int(number) << (10 if unit else 0) for name, number, unit in found}


def _counted(probes: Sequence[Probe]) -> tuple[Column, ...]:
    """Return the columns of a tool that names none: those of its first metric, or its probes."""
    metric = next((metric for probe in probes for metric in probe.metrics), None)
    if metric is None:
        return column_of("PROBE", "probe"), column_of("COUNT", "hits_total")
    labels = [column_of(label.name.upper(), label.name) for label in metric.labels]
    return *labels, column_of("COUNT", metric.name)
