"""The language of a client and the agent: lines of JSON over a Unix socket.

The client sends one request, in one line::

    {"version": 1, "tools": [{"name": "opensnoop", "options": {"failed": true}}],
     "scope": {"pod": "shop/web-1"}, "seconds": 60, "json": true}

The agent answers ``{"refused": SENTENCE}``, or a line for each thing that happens::

    {"tool": "opensnoop", "row": {...}}       what the tool writes with --json
    {"tool": "opensnoop", "text": "..."}      what it writes otherwise
    {"tool": "opensnoop", "data": "..."}      with "perfetto": true, a piece of the timeline, in base64
    {"tool": "opensnoop", "note": "...", "level": "info"}
    {"tool": "opensnoop", "traced": true}     its events are recorded from now on
    {"tool": "opensnoop", "status": 0}        its process has ended
    {"ended": "time", "note": SENTENCE, "rows": 12, "bytes": 1234}    the last line

A client that closes its sending half ends the session, and gets the rest of the output.
"""

import json
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from kprobe_exporter.errors import SessionRefused, counted, name_text
from kprobe_exporter.tools.load import LONGEST_VALUE, load_tool, tool_aliases, tool_path

VERSION = 1

DEFAULT_SOCKET = Path("/run/kprobe_exporter_session/socket")
"""The path at which the client looks for an agent."""

MAX_REQUEST_BYTES = 16384
MAX_PATTERN = 4096
"""Characters of a text of the scope: the longest path."""

MAX_NUMBER = 2**53

COMMON = frozenset({"rows", "interval", "timestamp", "stacks", "add"})
"""The options that all tools have and that a session takes. The others write files, start programs, or are
the session's own."""

NUMBERS, TEXTS = frozenset({"pid", "tid", "uid"}), frozenset({"comm", "container", "pod", "cgroup"})
"""The fields of a scope, besides ``children``, which is true: the options of that name that tools have."""

TIMELINE_VIEW = "rows"
"""The view of tools that write a timeline."""

TEXT_VIEWS = frozenset({"stacks", "functions", "graph"})
"""The views of tools that have no ``--json``."""

Value: TypeAlias = bool | str | list[str]
"""The value of an option: true of a flag, a text, or the texts of one that is given several times."""

Scope: TypeAlias = Mapping[str, bool | int | str]
"""The threads that all tools of a session trace: options of tools and their values."""


class ToolRequest(NamedTuple):
    """A tool by its name, and its options by their long names without dashes; arguments are among them."""

    name: str
    options: Mapping[str, Value] = {}


class SessionRequest(NamedTuple):
    """The tools of a session, the threads that they trace, and for how long.

    ``as_json``: the tools write objects. ``perfetto``: the only tool writes a timeline instead.
    """

    tools: tuple[ToolRequest, ...]
    scope: Scope
    seconds: float
    as_json: bool = False
    perfetto: bool = False

    def encoded(self) -> bytes:
        """Return the line that asks for it."""
        tools = [{"name": tool.name, "options": dict(tool.options)} for tool in self.tools]
        asked = {"version": VERSION, "tools": tools, "scope": dict(self.scope), "seconds": self.seconds}
        how = {"perfetto": True} if self.perfetto else {"json": self.as_json}
        return message(asked | how)

    @property
    def shown(self) -> str:
        """The tools, the time and the scope in one line, for a log."""
        scope = " ".join(f"{name}={value}" for name, value in self.scope.items())
        tools = ", ".join(tool.name for tool in self.tools)
        return f"{tools} for {self.seconds:g} s" + (f", of {scope}" if scope else "")


class Limits(NamedTuple):
    """The budget of all sessions. ``max_bytes`` are those that the tools of one session may write."""

    max_tools: int = 4
    max_seconds: float = 600.0
    max_bytes: int = 64 << 20


def message(content: Mapping[str, object]) -> bytes:
    """Return a line of the protocol."""
    return json.dumps(content).encode() + b"\n"


def parse_request(line: bytes, limits: Limits) -> SessionRequest:
    """Return the request in a line. Raises SessionRefused for one that is wrong or beyond the limits."""
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError):
        raise SessionRefused("the request is not JSON.") from None
    if not isinstance(asked, dict) or asked.get("version") != VERSION:
        raise SessionRefused(
            f"the request is not of version {VERSION}: use the kprobe-exporter of the agent's version."
        )
    _refuse_unknown("request", asked, {"version", "tools", "scope", "seconds", "json", "perfetto"})
    tools, scope, seconds = asked.get("tools"), asked.get("scope", {}), asked.get("seconds")
    if not isinstance(tools, list) or not tools:
        raise SessionRefused("the request names no tool: give --tool NAME.")
    if len(tools) > limits.max_tools:
        raise SessionRefused(
            f"{counted(len(tools), 'tool')} are more than this agent allows, {limits.max_tools}"
            " (--session.max-tools of 'run')."
        )
    if not isinstance(scope, dict):
        raise SessionRefused("the request's scope is not an object.")
    as_json = asked.get("json", False)
    if not isinstance(as_json, bool):
        raise SessionRefused("the request's 'json' is neither true nor false.")
    request = SessionRequest(
        tuple(_tool(tool, as_json=as_json) for tool in tools),
        _scope(scope),
        _seconds(seconds, limits.max_seconds),
        as_json,
        asked.get("perfetto", False),
    )
    _check_timeline(request)
    return request


def _check_timeline(request: SessionRequest) -> None:
    if not isinstance(request.perfetto, bool):
        raise SessionRefused("the request's 'perfetto' is neither true nor false.")
    if not request.perfetto:
        return
    if request.as_json or len(request.tools) > 1:
        raise SessionRefused("a timeline is of one tool, and takes the place of JSON.")
    name = request.tools[0].name
    path = model_path(name)
    assert path is not None
    if load_tool(path).model.view != TIMELINE_VIEW:
        raise SessionRefused(f"{name} draws no timeline: ask for a tool that writes a row for each event.")


def model_path(name: str) -> Path | None:
    """Return the file of a tool that comes with this program, by its name or alias; None if there is none."""
    path = tool_path(name) if name.isidentifier() else None
    return path or _aliases().get(name)


@cache
def _aliases() -> Mapping[str, Path]:
    """Return the files by the other names of tools. They are read once, because all are parsed for it."""
    return {alias: path for alias, (path, _) in tool_aliases().items()}


def _tool(asked: object, *, as_json: bool) -> ToolRequest:
    name = asked.get("name") if isinstance(asked, dict) else None
    if not isinstance(asked, dict) or not isinstance(name, str):
        raise SessionRefused("a tool of the request has no name.")
    _refuse_unknown("tool", asked, {"name", "options"})
    path, options = model_path(name), asked.get("options", {})
    if path is None:
        shown = name_text(os.fsencode(name[:LONGEST_VALUE].encode(errors="replace")))
        raise SessionRefused(f"there is no tool '{shown}': 'kprobe-exporter tool' lists them.")
    if not isinstance(options, dict):
        raise SessionRefused(f"the options of {name} are not an object.")
    model = load_tool(path).model
    if as_json and model.view in TEXT_VIEWS:
        raise SessionRefused(f"{name} writes text alone: omit --json.")
    _refuse_unknown(name, options, COMMON | model.options.keys())
    for key, value in options.items():
        for text in value if isinstance(value, list) else [value]:
            if text is not True:
                _check_text(f"--{key} of {name}", text, LONGEST_VALUE)
    return ToolRequest(name, options)


def _scope(asked: dict[str, Any]) -> Scope:
    _refuse_unknown("scope", asked, {*NUMBERS, *TEXTS, "children"})
    for key, value in asked.items():
        if key == "children":
            if value is not True:
                raise SessionRefused("the scope's 'children' is not true.")
        elif key in NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
                raise SessionRefused(f"the scope's '{key}' is not a number of 32 bits.")
        else:
            _check_text(f"the scope's '{key}'", value, MAX_PATTERN)
    return asked


def _seconds(asked: object, most: float) -> float:
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not 0 < asked < MAX_NUMBER:
        raise SessionRefused("the request has no seconds above 0.")
    if asked > most:
        raise SessionRefused(
            f"{asked:g} s are more than this agent allows, {most:g} s (--session.max-duration of 'run')."
        )
    return float(asked)


def _check_text(what: str, text: object, most: int) -> None:
    """Refuse what cannot be a word of a command line."""
    if not isinstance(text, str) or not text or len(text) > most or "\0" in text:
        raise SessionRefused(f"{what} is not a text of 1 to {most:,} characters.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise SessionRefused(f"{what} is not a text that a command line can have.") from None


def _refuse_unknown(what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted(set(asked).difference(known)):
        shown = ", ".join(name_text(key[:LONGEST_VALUE].encode(errors="replace")) for key in unknown[:3])
        raise SessionRefused(f"{what}: a session does not take {shown}.")
