"""``session``: what --tool may say, and what is shown of an agent's messages."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.cli.session import SessionOutput, asked_tool
from kprobe_exporter.errors import UsageError
from kprobe_exporter.sessions.protocol import Limits, SessionRequest, parse_request
from kprobe_exporter.trace.output import Interrupt, Output


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("killsnoop", {}),
        ("killsnoop -x", {"failed": True}),
        ("killsnoop --signal 'a b' -n 3 -T", {"signal": "a b", "rows": "3", "timestamp": True}),
        ("opensnoop --add pod --add cgroup -s", {"add": ["pod", "cgroup"], "stacks": True}),
        ("funccount 'vfs_*' -i 500ms", {"function": "vfs_*", "interval": "0.5"}),
        ("ext4slower 1", {"min-ms": "1"}),
    ],
)
def test_tool_with_its_options(text: str, options: dict[str, Any]) -> None:
    tool = asked_tool(text)
    assert (tool.name, tool.options) == (text.split(maxsplit=1)[0], options)
    # The agent takes what the client sends.
    assert parse_request(SessionRequest((tool,), {}, 1).encoded(), Limits()).tools == (tool,)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "write a tool's name and its options, quoted as in a shell"),
        ("killsnoop 'x", "write a tool's name and its options"),
        ("killsnop", "there is no tool 'killsnop', did you mean 'killsnoop'"),
        ("./mine.yaml", "there is no tool './mine.yaml'"),
        ("killsnoop --nope", "--tool killsnoop: No such option"),
        ("funccount", "--tool funccount: Missing argument 'FUNCTION'"),
        ("killsnoop -c sh", "a session does not take --command of a tool"),
        ("killsnoop -p 1", "a session does not take --pid of a tool"),
        ("killsnoop -d 5", "a session does not take --duration of a tool"),
        ("killsnoop --perfetto x", "a session does not take --perfetto of a tool"),
        ("killsnoop --tracefs /x", "a session does not take --tracefs of a tool"),
        ("killsnoop --json", "a session does not take --json of a tool"),
        ("killsnoop --emit-config", "a session does not take --emit-config of a tool"),
    ],
)
def test_tool_that_no_session_runs(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        asked_tool(text)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "Missing option '--tool'"),
        (["--tool", "killsnoop", "-p", "1", "--pod", "x"], "-p and --pod do not go together"),
        (["--tool", "killsnoop", "-c", "sh"], "No such option"),
        (["--tool", "killsnoop", "--perfetto", "x", "--json"], "--perfetto takes one tool, and no --json"),
        (["--tool", "killsnoop", "--tool", "opensnoop", "--perfetto", "x"], "--perfetto takes one tool"),
        (["--tool", "killsnoop", "--for", "0"], "'0' is not a time above 0"),
        (["--tool", "killsnoop", "--socket", "/nonexistent/s"], "no agent serves sessions at /nonexistent/s"),
    ],
)
def test_wrong_command_line(arguments: list[str], why: str) -> None:
    result = CliRunner().invoke(main, ["session", *arguments])
    assert result.exit_code in (1, 2)
    assert why in result.output


class Pipe:
    """A reader of what is shown."""

    def __init__(self, stop: Interrupt, *, terminal: bool) -> None:
        self._read, self._write = os.pipe()
        self.out = Output(self._write, stop, terminal=terminal)

    def shown(self, tools: list[str], *messages: dict[str, Any], verbose: bool = False) -> SessionOutput:
        output = SessionOutput(self.out, tools, verbose=verbose)
        for message in messages:
            output.show(message)
        return output

    def read(self) -> bytes:
        os.close(self._write)
        with os.fdopen(self._read, "rb") as pipe:
            return pipe.read()


@pytest.fixture(params=[False, True])
def terminal(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def pipe(terminal: bool) -> Iterator[Pipe]:
    with Interrupt().heeded() as stop:
        yield Pipe(stop, terminal=terminal)


def test_lines_begin_with_their_tool_if_there_are_several(pipe: Pipe, terminal: bool) -> None:
    hostile = b"a\xff\x1b[2J".decode(errors="surrogateescape")
    pipe.shown(["killsnoop", "time"], {"tool": "time", "text": hostile}, {"tool": "time", "row": {"a": 1}})
    pipe.shown(["time"], {"tool": "time", "text": "b"})
    lines = pipe.read().splitlines()
    assert lines[0] == (rb"time      a\xff\x1b[2J" if terminal else b"time      a\xff\x1b[2J")
    assert json.loads(lines[1]) == {"tool": "time", "row": {"a": 1}}
    assert lines[2] == b"b"


ENDED = {"ended": "done", "note": "over", "rows": 0, "bytes": 0}


@pytest.mark.parametrize(
    ("messages", "failed", "told"),
    [
        ([{"tool": "t", "status": 0}, ENDED], False, ""),
        ([{"tool": "t", "status": 1}, ENDED], True, ""),
        ([ENDED | {"ended": "budget"}], True, "the session was ended: over"),
        ([ENDED | {"ended": "stopped"}], True, "the session was ended: over"),
        ([ENDED | {"ended": "left"}], False, ""),
        ([{"tool": "t", "traced": True}, ENDED], False, "t: traced from now on."),
        ([{"tool": "t", "note": "x\x1b", "level": "warning"}, ENDED], False, r"t: x\x1b"),
        ([{"tool": "t", "note": "x", "level": "info"}, ENDED], False, ""),
    ],
)
@pytest.mark.parametrize("terminal", [False], indirect=True)
def test_status_and_notes(
    messages: list[dict[str, Any]], failed: bool, told: str, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = pipe.shown(["t"], *messages)
    assert (shown.failed, shown.ended) == (failed, True)
    assert capsys.readouterr().err == (f"kprobe-exporter: {told}\n" if told else "")


@pytest.mark.parametrize("terminal", [False], indirect=True)
def test_verbose_has_all_notes(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    pipe.shown(["t"], {"tool": "t", "note": "x", "level": "info"}, verbose=True)
    assert capsys.readouterr().err == "kprobe-exporter: t: x\n"
