"""Probes to plan, and the formats of their events."""

from typing import Any

from kprobe_exporter.config.model import Attach, Label, Metric, Probe, return_type
from kprobe_exporter.grammar.target import parse_target
from tests.unit.captured import KERNELS, captured

EXIT, EXEC, SWITCH = "syscalls:sys_exit_openat", "sched:sched_process_exec", "sched:sched_switch"


def formats(system: str, event: str) -> str | None:
    """Return a format file of one real kernel; None if it is not captured."""
    for file in captured("format/"):
        if file.kernel == KERNELS[0] and file.name == f"format/{system}/{event}":
            return file.text
    return None


def attach(to: str, returns: str | None = None, filter_text: str | None = None, **fetch: str) -> Attach:
    return Attach(parse_target(to), fetch, filter_text, return_type(returns) if returns else None)


def counter(*fields: str, value: str | None = None) -> Metric:
    return Metric("counter", "x_total", "help", value, tuple(Label(f"l_{name}", name) for name in fields))


def probe(*ways: Attach, metrics: tuple[Metric, ...] = (), **more: Any) -> Probe:
    return Probe("p", "help", ways, metrics, **more)
