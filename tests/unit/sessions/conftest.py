"""A server of sessions whose tools are a script: how each behaves is in the scope's ``comm``."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.sessions import tool_run
from kprobe_exporter.sessions.client import Message, SessionClient
from kprobe_exporter.sessions.protocol import Limits, SessionRequest, ToolRequest
from kprobe_exporter.sessions.server import SessionServer
from tests.support.patience import eventually

TOOL = r"""
import os, select, signal, sys, time

words = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[3:])
how, seconds = words["comm"], float(words["duration"])
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))

def log(text):
    print(f"2026-11-30T10:00:00.123Z INFO trace.loops: {text}", file=sys.stderr, flush=True)

if "perfetto" in words:
    os.write(1, b"\n\xff" + words["perfetto"].encode() + b"\0" * 100_000)

def write(data):
    while data:
        try:
            data = data[os.write(1, data):]
        except BrokenPipeError:
            sys.exit(0)

def gone():
    poll = select.poll()
    poll.register(1, 0)
    return bool(poll.poll(10))

if how == "fails":
    print("kprobe-exporter: no such kernel\n", file=sys.stderr)
    sys.exit(1)
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
log("1 probe traced")
for number in range(3):
    write(b'{"number": %d}\n' % number if "json" in words else b"number %d\n" % number)
if how == "long":
    write(b"x" * 3_000_000 + b"\n")
end = time.monotonic() + seconds
while how == "deaf" or time.monotonic() < end and not ended and not gone():
    if how == "floods":
        write(b"y" * 9999 + b"\n")
if ended:
    write(b"the rest\n" * (99_999 if how == "talks" else 1))
open(sys.argv[0] + ".signals", "w").write(str(len(ended)))
"""

PATH = "s/socket"


class Served:
    """A server, and requests to it. ``cleaned`` is how often it removed what killed tools left."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        self.path = directory / PATH
        self.server = SessionServer(self.path, limits, Path("/the/tracefs"))
        self.cleaned = 0
        self.server.start(self._clean)

    def _clean(self) -> None:
        self.cleaned += 1

    def ask(
        self,
        how: str = "waits",
        *,
        number: int = 1,
        seconds: float = 30,
        as_json: bool = False,
        perfetto: bool = False,
    ) -> Any:
        """Return a client whose tools behave so."""
        tools = (ToolRequest("killsnoop"),) * number
        return SessionClient.at(self.path, SessionRequest(tools, {"comm": how}, seconds, as_json, perfetto))

    def results(self) -> dict[str, float]:
        """How many sessions ended in which way, and how many are active."""
        active, total = self.server.families()
        found = {labels[0]: float(str(value)) for labels, value in total.samples.items() if value}
        running = float(str(active.samples[()]))
        return found | ({"active": running} if running else {})

    def wait_for(self, **results: float) -> None:
        eventually(lambda: self.results() == results)


def all_of(client: SessionClient) -> list[Message]:
    """The messages until the agent closes."""
    found: list[Message] = []
    while (messages := client.messages()) is not None:
        found += messages
    return found


def until(client: SessionClient, fits: Callable[[Message], bool]) -> list[Message]:
    """The messages until one of them fits."""
    found: list[Message] = []
    while not any(map(fits, found)):
        messages = client.messages()
        assert messages is not None, found
        found += messages
    return found


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    """A function that makes a server with limits; it is closed at the end, within its time."""
    script = tmp_path / "tool.py"
    script.write_text(TOOL)
    monkeypatch.setattr(tool_run, "PROGRAM", (sys.executable, "-I", str(script)))
    made: list[Served] = []

    def make(limits: Limits = Limits()) -> Served:  # noqa: B008 - it cannot change
        made.append(Served(tmp_path, limits))
        return made[-1]

    yield make
    for each in made:
        each.server.close()
        assert not each.path.exists()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


def processes(tmp_path: Path) -> list[int]:
    """The processes of tools that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(tmp_path / "tool.py").encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
