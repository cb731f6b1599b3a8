"""Writes the YAML configuration with which the agent does the same as a trace, and reads it back."""

import json
import re
import shlex
from collections.abc import Sequence

from kprobe_exporter.config.model import Config
from kprobe_exporter.errors import ConfigError, UsageError, one_line
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.trace.request import TraceRequest

LONGEST = 40
"""Characters of a probe's name, at most."""

SYSTEM_CALL_EXIT = "syscalls:sys_exit_"

PROGRAM_TEXT = re.compile(r"(?P<name>[A-Za-z_]\w*):string(?:(?P<several>s)(?:\[(?P<most>\d{1,3})\])?)?")
"""``filename:string`` and ``argv:strings[8]``, as they are written at the terminal."""

BY = "by_total"
"""The metric of the configuration that counts by fields."""


def configuration(
    request: TraceRequest,
    filter_text: str | None,
    *,
    stacks: bool,
    command: Sequence[str] = (),
    by: Sequence[str] | None = None,
) -> str:
    """Return the YAML of one probe, with ``command`` in a comment.

    With ``by`` the probe counts: errors of a system call's return, and a metric with a label for each
    ``FIELD`` or ``FIELD:DECODER`` of it.
    """
    keys = [("name", probe_name(request.name))]
    if request.target is not None:  # the agent can do more with an attach string than with a definition
        keys.append(("attach", str(request.target)))
    elif request.definition is not None:
        keys.append(("definition", request.definition.render()))
    if filter_text is not None:
        keys.append(("filter", filter_text))
    lines = [f"    {key}: {_scalar(value)}" for key, value in keys]
    if request.target is not None and request.definition is not None and request.definition.args:
        lines.append("    fetch:")
        lines += [f"      {arg.name}: {_scalar(arg.body)}" for arg in request.definition.args]
    if fetch := dict(request.fetch) | (_counted_fields(request, by) if by is not None else {}):
        lines.append("    fetch:")
        lines += [f"      {name}: {_fetched(request, text)}" for name, text in fetch.items()]
    if by:
        labels = {name: _label(name, decoder) for name, _, decoder in (one.partition(":") for one in by)}
        lines.append(f"    metrics: {json.dumps([{'counter': BY, 'labels': labels}])}")
    if stacks:
        lines.append("    stack: true")
    first, *others = lines
    comment = f"# {one_line(shlex.join(command))}\n" if command else ""
    return "\n".join([f"{comment}probes:", first.replace("    ", "  - ", 1), *others]) + "\n"


def _counted_fields(request: TraceRequest, by: Sequence[str]) -> dict[str, str]:
    """Return the fields of a tracepoint that are counted: its return value, and those named in ``by``."""
    target = request.target
    if target is None or request.definition is not None or target.kind is not Kind.TRACEPOINT:
        return {}
    from kprobe_exporter.config.sites import BUILT_IN  # noqa: PLC0415

    names = {one.partition(":")[0] for one in by} - BUILT_IN
    returned = {"return": "ret"} if f"{target.system}:{target.event}".startswith(SYSTEM_CALL_EXIT) else {}
    return returned | {name: name for name in sorted(names)}


def _fetched(request: TraceRequest, text: str) -> str:
    """Return the YAML of a fetch argument; ``filename:string`` of a system call is text of its program."""
    if request.target is not None and request.target.kind is Kind.SYSCALL:
        if found := PROGRAM_TEXT.fullmatch(text):
            most = f", max: {found['most']}" if found["most"] else ""
            return f"{{string{found['several'] or ''}: {found['name']}{most}}}"
        text = re.sub(r"^\$(?=[A-Za-z_]\w*$)", "", text)
    return _scalar(text)


def _label(field: str, decoder: str) -> object:
    return {"field": field, "decode": decoder} if decoder else field


def read_back(text: str) -> Config:
    """Load the configuration as the agent does. Raises UsageError if it is refused."""
    from kprobe_exporter.config.load import load_text  # noqa: PLC0415 - a definition alone is not read back

    try:
        return load_text(text, DECODERS)
    except ConfigError as error:
        raise UsageError("; ".join(problem.message for problem in error.problems) + ".") from None


def probe_name(event: str) -> str:
    """Return the event's name, made valid as the name of a probe."""
    name = re.sub("[^a-z0-9_]", "_", event.lower())
    return f"{'_' if name[0].isdigit() else ''}{name}"[:LONGEST]


def _scalar(text: str) -> str:
    """Return a YAML string: plain if YAML reads it as that string, else quoted as in JSON."""
    plain = re.fullmatch(r"[A-Za-z_/][\w/.@+-]*(:[\w/.@+*?\[\]-]+)*", text, re.ASCII)
    return text if plain and text.lower() not in ("true", "false", "null") else json.dumps(text)
