"""The language of sessions: a request is read as it was written, and all else gets a sentence."""

import json
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.cli.tool import Tools
from kprobe_exporter.errors import SessionRefused, one_line
from kprobe_exporter.probing.scope import Scope
from kprobe_exporter.sessions.protocol import (
    NUMBERS,
    TEXTS,
    Limits,
    SessionRequest,
    ToolRequest,
    Value,
    parse_request,
)
from kprobe_exporter.sessions.tool_run import note, row, tool_words
from kprobe_exporter.tools.load import load_tool, tool_path

LIMITS = Limits(max_tools=2, max_seconds=60)

GOOD: dict[str, Any] = {"version": 1, "tools": [{"name": "killsnoop"}], "seconds": 5}


def asked(**changes: object) -> bytes:
    return json.dumps(GOOD | changes).encode()


def tools(*names: str, **options: object) -> dict[str, Any]:
    return {"tools": [{"name": name, "options": options} for name in names]}


def test_request_is_read_as_written() -> None:
    options: dict[str, Value] = {"failed": True, "rows": "10", "add": ["pod", "cgroup"]}
    wanted = SessionRequest(
        (ToolRequest("opensnoop", options), ToolRequest("ext4dist")), {"pid": 3, "children": True}, 2.5, True
    )
    assert parse_request(wanted.encoded(), LIMITS) == wanted
    drawn = SessionRequest((ToolRequest("biosnoop"),), {}, 2.5, perfetto=True)
    assert parse_request(drawn.encoded(), LIMITS) == drawn
    assert wanted.shown == "opensnoop, ext4dist for 2.5 s, of pid=3 children=True"


def test_scope_has_all_fields_but_the_command() -> None:
    assert {*NUMBERS, *TEXTS, "children"} == {*Scope._fields} - {"command"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "the request is not JSON"),
        (b"[" * 16000, "the request is not JSON"),
        (b'{"a": \xff}', "the request is not JSON"),
        (b"[]", "not of version 1: use the kprobe-exporter of the agent's version"),
        (asked(version=2), "not of version 1"),
        (asked(more=1), "request: a session does not take more"),
        (asked(tools=[]), "names no tool: give --tool NAME"),
        (asked(tools=["killsnoop"]), "a tool of the request has no name"),
        (asked(**tools("a\nb")), r"there is no tool 'a\\nb': 'kprobe-exporter tool' lists them"),
        (asked(**tools("../tools/killsnoop")), "there is no tool"),
        (asked(**tools("/tmp/mine.yaml")), "there is no tool"),
        (asked(**tools("\ud800")), "there is no tool"),
        (asked(**tools(*["killsnoop"] * 3)), r"3 tools are more than .* allows, 2 \(--session.max-tools"),
        (asked(**tools("killsnoop", perfetto="/etc/x")), "killsnoop: a session does not take perfetto"),
        (asked(**tools("killsnoop", command="sh")), "killsnoop: a session does not take command"),
        (asked(**tools("killsnoop", tracefs="/x")), "killsnoop: a session does not take tracefs"),
        (asked(**tools("killsnoop", duration="1d")), "killsnoop: a session does not take duration"),
        (asked(**tools("killsnoop", signal="a\0b")), "--signal of killsnoop is not a text of 1 to 255"),
        (asked(**tools("killsnoop", signal="x" * 256)), "--signal of killsnoop is not a text"),
        (asked(**tools("killsnoop", signal=9)), "--signal of killsnoop is not a text"),
        (asked(**tools("killsnoop", signal=["\ud800"])), "not a text that a command line can have"),
        (asked(tools=[{"name": "killsnoop", "options": []}]), "the options of killsnoop are not an object"),
        (asked(scope=[]), "the request's scope is not an object"),
        (asked(scope={"command": ["sh"]}), "scope: a session does not take command"),
        (asked(scope={"pid": -1}), "the scope's 'pid' is not a number of 32 bits"),
        (asked(scope={"pid": True}), "the scope's 'pid' is not a number"),
        (asked(scope={"children": "yes"}), "the scope's 'children' is not true"),
        (asked(scope={"pod": ""}), "the scope's 'pod' is not a text of 1 to 4,096"),
        (asked(json=1), "'json' is neither true nor false"),
        (asked(perfetto=1), "'perfetto' is neither true nor false"),
        (asked(perfetto=True, json=True), "a timeline is of one tool, and takes the place of JSON"),
        (asked(**tools("killsnoop", "opensnoop"), perfetto=True), "a timeline is of one tool"),
        (asked(**tools("syscount"), perfetto=True), "syscount draws no timeline: ask for a tool that"),
        (asked(seconds=0), "no seconds above 0"),
        (asked(seconds=True), "no seconds above 0"),
        (asked(seconds="5"), "no seconds above 0"),
        (asked(seconds=float("nan")), "no seconds above 0"),
        (asked(seconds=float("inf")), "no seconds above 0"),
        (asked(seconds=10**400), "no seconds above 0"),
        (asked(seconds=61), r"61 s are more than this agent allows, 60 s \(--session.max-duration"),
        (asked(**tools("stackcount", function="x"), json=True), "stackcount writes text alone: omit --json"),
    ],
)
def test_wrong_request_gets_a_sentence(line: bytes, why: str) -> None:
    with pytest.raises(SessionRefused, match=why) as raised:
        parse_request(line, LIMITS)
    assert one_line(str(raised.value)) == str(raised.value)
    assert str(raised.value).endswith((".", "'run')."))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["killsnoop"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(sorted(GOOD)), inner),
    max_leaves=6,
)


@given(st.binary() | st.dictionaries(st.sampled_from([*GOOD, "scope", "json"]), JSON))
def test_any_bytes_are_a_request_or_refused(sent: bytes | dict[str, Any]) -> None:
    line = sent if isinstance(sent, bytes) else json.dumps(GOOD | sent).encode()
    refused = ""
    try:
        assert parse_request(line, LIMITS).tools
    except SessionRefused as error:
        refused = str(error)
    assert one_line(refused) == refused


def parsed(request: SessionRequest) -> dict[str, Any]:
    """The parameters that click finds in the command line of the request's first tool."""
    [tool] = request.tools
    path = tool_path(tool.name)
    assert path is not None
    arguments = [key for key, option in load_tool(path).model.options.items() if option.argument]
    name, *words = tool_words(tool, request, arguments)
    command = Tools().get_command(click.Context(click.Command("tool")), name)
    assert command is not None
    return command.make_context(name, words).params


def test_values_that_look_like_options_stay_values() -> None:
    options = {"function": "--perfetto=/x", "rows": "3"}
    request = SessionRequest((ToolRequest("funccount", options),), {"comm": "-x", "uid": 0}, 1.5)
    found = parsed(request)
    assert (found["own_function"], found["most"], found["seconds"]) == ("--perfetto=/x", 3, 1.5)
    assert (found["comm"], found["uid"], found["as_json"]) == ("-x", "0", False)


def test_options_of_a_tool_on_its_command_line() -> None:
    options: dict[str, Value] = {"signal": "-c sh", "timestamp": True, "add": ["pod", "cgroup"]}
    found = parsed(
        SessionRequest((ToolRequest("killsnoop", options),), {"pid": 7, "children": True}, 9, True)
    )
    assert (found["own_signal"], found["timestamp"], found["added"]) == ("-c sh", True, ("pod", "cgroup"))
    assert (found["pid"], found["children"], found["as_json"], found["command"]) == (7, True, True, None)
    drawn = parsed(SessionRequest((ToolRequest("killsnoop"),), {}, 9, perfetto=True))
    assert (str(drawn["perfetto"]), drawn["as_json"]) == ("-", False)


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        (b"2026-11-30T10:00:00.123Z INFO trace.loops: 2 probes traced", {"traced": True}),
        (b"2026-11-30T10:00:00.123Z INFO a.b: x\xff", {"note": "x\\xff", "level": "info"}),
        (b"kprobe-exporter: warning: 3 events lost", {"note": "warning: 3 events lost", "level": "warning"}),
        (b"Traceback", {"note": "Traceback", "level": "warning"}),
    ],
)
def test_message_of_a_line_of_stderr(line: bytes, sent: dict[str, Any]) -> None:
    assert json.loads(note("tool", line)) == {"tool": "tool", **sent}


def test_message_of_a_row() -> None:
    assert json.loads(row("tool", b'{"a": 1}', as_json=True)) == {"tool": "tool", "row": {"a": 1}}
    text = json.loads(row("tool", b"a\xff\x1b", as_json=False))["text"]
    assert text.encode(errors="surrogateescape") == b"a\xff\x1b"
