"""Runs one of the kernel's function tracers in the instance of a trace, and prints its text.

A tracer is switched on by its name in `current_tracer`, for the functions in `set_ftrace_filter` and the
threads in `set_ftrace_pid`. All of these files are the instance's own, so that other users of tracefs keep
theirs. The kernel switches the tracer off with the instance. The `available_tracers` of an instance lists
those that it can have (`allow_instances` in kernel/trace/trace.c), `function_graph` since 6.11 only.
"""

import errno
import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from kprobe_exporter.config.model import Probe
from kprobe_exporter.errors import TracefsError, UsageError, counted
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.probing.scope import OF_TRACERS
from kprobe_exporter.tools.tool_model import View
from kprobe_exporter.trace.output import Gone
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.text import KernelText
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.profile import buffer_stats
from kprobe_exporter.tracefs.refusal import MEANING

log = logging.getLogger(__name__)

TRACERS: Mapping[View, str] = {"functions": "function", "graph": "function_graph"}
"""The tracers by the views of tools."""

BUILT_BY = {"function": "CONFIG_FUNCTION_TRACER", "function_graph": "CONFIG_FUNCTION_GRAPH_TRACER"}

SWITCH = re.compile(rb"( -{42}\n)(.*?)(\n -{42}\n)", re.DOTALL)
"""The graph tracer's lines when another thread runs on a CPU. They show 7 characters of each name."""

FILTER, CURRENT = "set_ftrace_filter", "current_tracer"


def tracer_lacked(files: Tracefs, view: View) -> str | None:
    """Return a sentence if the kernel has no such tracer at all, None if it has, or if that is unknown."""
    tracer = TRACERS[view]
    with suppress(OSError):
        if tracer not in _tracers(files, "."):
            return _not_built(tracer)
    return None


def trace_functions(session: TraceSession, probes: Sequence[Probe], view: View) -> int:
    """Print the tracer's text until the session ends; return the number of lost entries.

    Raises UsageError for what is not a function of the kernel, and TracefsError if the kernel refuses.
    """
    instance, out, tracer = session.instance, session.out, TRACERS[view]
    filter_text = _filter_of(probes[0].attach[0].target)
    _refuse_missing(instance, tracer)
    _narrow(instance, filter_text)
    _switch_on(instance, tracer)  # the kernel refuses it while trace_pipe is open
    with open(instance.open_pipe(), "rb", buffering=0) as pipe:
        text = KernelText(
            instance, pipe.fileno(), out, _escape_switches if tracer == "function_graph" else None
        )
        log.info("%s traced", counted(len(probes), "probe"))
        session.begin()
        begun = time.monotonic()

        def look() -> None:
            session.look()
            if session.seconds is not None and time.monotonic() - begun >= session.seconds:
                out.stop.set()

        with suppress(Gone):
            text.live(look, header=False)
            instance.write("tracing_on", "0")
            text.rest(header=False, whole=not out.stop.signalled)
        stats = buffer_stats(instance.files, instance.path)
    return stats.overrun + stats.dropped


def _filter_of(target: Target) -> str:
    """Return the words of set_ftrace_filter for a function, or for a pattern. Raises UsageError."""
    if target.kind is not Kind.KPROBE or target.offset or not target.symbol:
        raise UsageError(f"{target} is not a function of the kernel: give a name or a pattern, as 'vfs_*'.")
    return f"{target.symbol}:mod:{target.module}" if target.module else target.symbol


def _tracers(files: Tracefs, path: str) -> list[str]:
    return files.read(f"{path}/available_tracers").decode().split()


def _refuse_missing(instance: Instance, tracer: str) -> None:
    """Raise TracefsError if the instance cannot have the tracer."""
    if tracer in _tracers(instance.files, instance.path):
        return
    if tracer in _tracers(instance.files, "."):
        raise TracefsError(
            f"this kernel has the tracer '{tracer}' only for all users of tracefs together, which is left "
            "alone: instances have it since Linux 6.11."
        )
    raise TracefsError(_not_built(tracer))


def _not_built(tracer: str) -> str:
    return f"this kernel was built without {BUILT_BY[tracer]} (no tracer '{tracer}')."


def _narrow(instance: Instance, filter_text: str) -> None:
    """Limit the tracer to functions, and keep this thread out of it. Raises TracefsError."""
    try:
        instance.write(FILTER, f"{filter_text}\n")
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise TracefsError(
                f"no function that can be traced fits '{filter_text}': 'list' shows those that there are."
            ) from None
        why = MEANING.get(error.errno or 0, error.strerror)
        raise TracefsError(f"functions cannot be traced: {why}.") from None
    if instance.files.exists(f"{instance.path}/{OF_TRACERS.left}"):
        instance.write(OF_TRACERS.left, f"{instance.own_tid()}\n")


def _escape_switches(entry: bytes) -> bytes:
    """Escape the newlines of names in the lines that tell of another thread (verif_pid() of the kernel)."""
    return SWITCH.sub(lambda found: found[1] + found[2].replace(b"\n", b"\\n") + found[3], entry)


def _switch_on(instance: Instance, tracer: str) -> None:
    try:
        instance.write(CURRENT, tracer)
    except OSError as error:
        raise TracefsError(f"the kernel refuses the tracer '{tracer}': {error.strerror}.") from None
