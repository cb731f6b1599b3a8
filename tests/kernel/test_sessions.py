"""Sessions of an agent: rows are what the load did, and a session leaves the kernel as it was."""

import json
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # type: ignore[import-untyped]
    Trace,
    TrackEvent,
)

from kprobe_exporter.sessions import relay, server
from kprobe_exporter.tracefs.leftovers import PREFIX
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.certificates import Authority
from tests.support.forked_child import become_nobody, started
from tests.support.leftovers import instances
from tests.support.patience import eventually, patience
from tests.support.tool_cases import SHOWN, Load, Rows, WaitingLoad, compare
from tests.support.trace_process import START, StartTrace, TraceProcess
from tests.support.web_target import HASH

NAMED = "global: {tracefs_instance: sessions_under_test}\n"
CONFIG = NAMED + 'probes: [{name: exec, attach: "tracepoint:sched:sched_process_exec"}]\n'

LONG = "500s"
"""A session that a test ends before its time."""


class Sessions:
    """An agent that serves sessions, and clients of it."""

    def __init__(self, agent: AgentProcess, path: Path, trace: StartTrace, tracefs: Path) -> None:
        self.agent, self.path, self._trace, self._tracefs = agent, path, trace, tracefs
        self._tools: set[int] = set()

    def ask(self, *arguments: str, seconds: str = LONG, **how: Any) -> TraceProcess:
        words = ("--socket", str(self.path), "--for", seconds, *arguments)
        return self._trace(*words, command="session", **how)

    def begin(self, *arguments: str, number: int = 1, seconds: str = LONG, **how: Any) -> TraceProcess:
        """Ask, and wait until all tools record."""
        client = self.ask(*arguments, seconds=seconds, **how)

        def traced() -> bool:
            assert client.poll() is None, client.errors
            return client.errors.count("traced from now on.") == number

        eventually(traced, number * START)
        tools = tools_of(self.agent)
        assert len(tools) >= number
        self._tools.update(tools)
        return client

    def instances(self) -> list[str]:
        """The instances of the tools that were seen to begin."""
        own = {f"{PREFIX}{pid}" for pid in self._tools}
        return [name for name in instances(self._tracefs) if name.partition(".")[0] in own]

    def results(self) -> Mapping[str, float]:
        found = self.agent.scrape()
        name = "kprobe_exporter_sessions_total"
        ended = {labels["result"]: found.value(name, **labels) for labels in found.labels(name)}
        ended["active"] = found.value("kprobe_exporter_sessions_active")
        return {result: value for result, value in ended.items() if value}


@pytest.fixture
def start(
    start_agent: StartAgent,
    trace: StartTrace,
    tmp_path: Path,
    tracefs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Sessions]:
    """A function that starts an agent that serves sessions.

    Tools have as much more time for their start and their end as this machine is slower.
    """
    for name in ("START_TIME_S", "END_TIME_S"):
        monkeypatch.setattr(relay, name, patience(getattr(relay, name)))
    monkeypatch.setattr(server, "END_TIME_S", relay.END_TIME_S)

    def begin(*arguments: str) -> Sessions:
        path = tmp_path / "sessions/socket"
        agent = start_agent(CONFIG, "--session.socket", str(path), *arguments)
        return Sessions(agent, path, trace, tracefs)

    return begin


@pytest.fixture
def sessions(start: Callable[..., Sessions]) -> Sessions:
    return start()


def rows_of(client: TraceProcess, tool: str) -> list[dict[str, Any]]:
    messages = [json.loads(line) for line in client.output.splitlines()]
    found = [message["row"] for message in messages if message["tool"] == tool]
    return [row for one in found for row in one.get("rows", [one])]


NOBODY = 4194305
"""A process id above the kernel's limit."""


def kills() -> Rows:
    """Signals to this process and to none."""
    os.kill(os.getpid(), signal.SIGWINCH)
    with suppress(OSError):
        os.kill(NOBODY, signal.SIGTERM)
    known = {"pid": os.getpid(), "comm": SHOWN}
    return [
        {**known, "tpid": os.getpid(), "sig": "SIGWINCH", "result": 0},
        {**known, "tpid": NOBODY, "sig": "SIGTERM", "result": -3},
    ]


def system_calls() -> Rows:
    for _ in range(137):
        os.getppid()
    return [{"comm": SHOWN, "syscall": "getppid", "count": 137}]


def programs_and_files() -> Rows:
    """Programs with numbered arguments, and opens of numbered files, of which every other one is there."""
    rows: list[Mapping[str, object]] = []
    for number in range(7):

        def run(number: int = number) -> None:
            os.execv("/bin/true", ["true", str(number)])

        pid = started(run)
        os.waitpid(pid, 0)
        rows.append({"pid": pid, "ppid": os.getpid(), "args": f"true {number}", "ret": 0})
        path = "/proc/self/status" if number % 2 else f"/nonexistent/{number}"
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY))
        rows.append({"pid": os.getpid(), "comm": SHOWN, "path": path, "err": 0 if number % 2 else 2})
    return rows


@pytest.mark.needs("initial_pid_namespace")
@pytest.mark.parametrize(("tool", "load"), [("killsnoop", kills), ("syscount -P", system_calls)])
def test_rows_are_the_loads(sessions: Sessions, tool: str, load: Load) -> None:
    with closing(WaitingLoad(load)) as process:
        client = sessions.begin("--tool", tool, "--json", "-p", str(process.pid))
        assert len(sessions.instances()) >= 1
        expected = process.run()
        assert client.end() == 0, client.errors
    assert expected
    name = tool.partition(" ")[0]
    compare(rows_of(client, name), expected, exact=name == "killsnoop")
    assert sessions.instances() == []
    assert sessions.results() == {"left": 1}


@pytest.mark.parametrize("to_stdout", [False, True])
def test_timeline_is_brought_back(sessions: Sessions, tmp_path: Path, to_stdout: bool) -> None:
    file = tmp_path / "brought.pftrace"
    with closing(WaitingLoad(kills)) as process:
        where = "-" if to_stdout else str(file)
        client = sessions.begin("--tool", "killsnoop", "--perfetto", where, "-p", str(process.pid))
        expected = process.run()
        assert client.end() == 0, client.errors
    read = Trace()
    read.ParseFromString(client.output if to_stdout else file.read_bytes())
    drawn = [one.track_event for one in read.packet if one.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]
    values = [{one.name: one.int_value for one in event.debug_annotations} for event in drawn]
    assert [value["return"] for value in values] == [row["result"] for row in expected]
    if not to_stdout:
        assert file.stat().st_mode & 0o777 == 0o600
        assert client.output == b""
    assert sessions.instances() == []


@pytest.mark.needs("kprobe_events")
def test_rows_of_two_tools_at_once(sessions: Sessions) -> None:
    with closing(WaitingLoad(programs_and_files)) as process:
        scope = ("-p", str(process.pid), "--children")
        client = sessions.begin("--tool", "execsnoop", "--tool", "opensnoop", "--json", *scope, number=2)
        expected = process.run()
        assert client.end() == 0, client.errors
    compare(rows_of(client, "execsnoop"), [row for row in expected if "args" in row], exact=True)
    own = [row for row in rows_of(client, "opensnoop") if row["pid"] == process.pid]
    compare(own, [row for row in expected if "path" in row], exact=True)
    assert sessions.instances() == []


def test_time_is_over(sessions: Sessions) -> None:
    begun, seconds = time.monotonic(), patience(2)
    tools = ("--tool", "killsnoop", "--tool", "syscount")
    client = sessions.begin(*tools, number=2, seconds=f"{seconds:.1f}s")
    assert client.wait(60) == 0, client.errors
    assert time.monotonic() - begun >= seconds
    lines = client.output.splitlines()
    assert any(line.startswith(b"killsnoop PID") for line in lines)
    assert any(line.startswith(b"syscount  SYSCALL") for line in lines)
    assert sessions.instances() == []
    assert sessions.results() == {"done": 1}


def test_killed_client(sessions: Sessions) -> None:
    client = sessions.begin("--tool", "killsnoop", "--tool", "syscount", number=2)
    assert len(sessions.instances()) >= 2
    client.signal(signal.SIGKILL)
    client.wait()
    eventually(lambda: sessions.instances() == [])
    eventually(lambda: sessions.results() == {"left": 1})


def test_reader_that_has_gone(sessions: Sessions) -> None:
    read, write = os.pipe()
    client = sessions.begin("--tool", "killsnoop", stdout=write)
    os.close(write)
    os.close(read)
    assert client.wait() == 0
    eventually(lambda: sessions.instances() == [])


def test_agent_that_stops(sessions: Sessions) -> None:
    client = sessions.begin("--tool", "killsnoop")
    assert sessions.agent.end() == 0
    assert sessions.instances() == []
    assert client.wait() == 1
    assert "the session was ended: the agent stops." in client.errors
    assert not sessions.path.exists()


@pytest.mark.needs("initial_pid_namespace")
def test_over_https(start: Callable[..., Sessions], tmp_path: Path) -> None:
    """Rows are the load's, also the last ones after Ctrl-C; an agent that stops says so."""
    authority = Authority(tmp_path / "certificates")
    server = authority.issue("server")
    web, password = tmp_path / "web.yaml", tmp_path / "password"
    web.write_text(
        f"tls_server_config: {{cert_file: {server.certificate}, key_file: {server.key}}}\n"
        f"basic_auth_users: {{ops: '{HASH.decode()}'}}\n"
    )
    web.chmod(0o600)
    password.write_text("secret\n")
    sessions = start("--web.enable-sessions", "--web.config.file", str(web))
    login = ["--url", sessions.agent.address, "--user", "ops", "--password-file", str(password)]
    login += ["--ca-file", str(authority.certificate)]
    with closing(WaitingLoad(system_calls)) as process:
        client = sessions.begin(*login, "--tool", "syscount -P", "--json", "-p", str(process.pid))
        expected = process.run()
        assert client.end() == 0, client.errors
    compare(rows_of(client, "syscount"), expected, exact=False)
    assert sessions.instances() == []
    client = sessions.begin(*login, "--tool", "killsnoop")
    assert sessions.agent.end() == 0
    assert client.wait() == 1
    assert "the session was ended: the agent stops." in client.errors


def test_killed_agent(sessions: Sessions, start: Callable[..., Sessions]) -> None:
    client = sessions.begin("--tool", "killsnoop", "--tool", "syscount", number=2)
    sessions.agent.signal(signal.SIGKILL)
    assert client.wait() == 1
    assert "the agent ended without ending the session." in client.errors
    # Not by the next agent: the tools end because their output has no reader.
    eventually(lambda: sessions.instances() == [])
    assert stat.S_ISSOCK(sessions.path.stat().st_mode)
    again = start()  # in place of the socket that was left
    assert again.ask("--tool", "killsnoop", seconds="0.1s").wait(60) == 0


def tools_of(agent: AgentProcess) -> list[int]:
    """The processes that an agent has started."""
    children = Path(f"/proc/{agent.pid}/task").glob("*/children")
    return [int(word) for path in children for word in path.read_text().split()]


def test_killed_tool_is_cleaned_up(sessions: Sessions) -> None:
    client = sessions.begin("--tool", "killsnoop")
    [tool] = tools_of(sessions.agent)
    os.kill(tool, signal.SIGKILL)
    assert client.wait() == 1
    eventually(lambda: sessions.instances() == [])
    eventually(lambda: sessions.results() == {"failed": 1})


def test_budget(start: Callable[..., Sessions]) -> None:
    sessions = start(
        "--session.max-size", "10000", "--session.max-tools", "2", "--session.max-duration", "9m"
    )
    with closing(WaitingLoad(lambda: [row for _ in range(300) for row in kills()])) as process:
        client = sessions.begin("--tool", "killsnoop", "-p", str(process.pid))
        other = sessions.ask("--tool", "killsnoop", "--tool", "syscount")
        assert other.wait() == 1
        assert "the agent refuses the session: 1 tool of other sessions run" in other.errors
        longer = sessions.ask("--tool", "killsnoop", seconds="10m")
        assert longer.wait() == 1
        assert "600 s are more than this agent allows, 540 s (--session.max-duration" in longer.errors
        process.run()
        assert client.wait() == 1
    assert "the tools wrote more than this agent allows, 10,000 bytes (--session.max-size" in client.errors
    assert 9_000 < len(client.output) <= 10_000
    assert sessions.instances() == []
    assert sessions.results() == {"budget": 1, "refused": 2}


def test_tool_that_cannot_be_says_why(sessions: Sessions) -> None:
    client = sessions.ask("--tool", "killsnoop", "-p", "4194304")
    assert client.wait(60) == 1
    assert "killsnoop: there is no process 4194304." in client.errors
    assert sessions.results() == {"failed": 1}


@pytest.mark.needs("checkout_for_all_users")
def test_other_users(sessions: Sessions) -> None:
    client = sessions.ask("--tool", "killsnoop", confine=become_nobody)
    assert client.wait() == 1
    assert "only root may ask an agent for a session" in client.errors
    # If they could open the file, the agent would ask the kernel for their id.
    closed = [path for path in sessions.path.parents if not path.stat().st_mode & stat.S_IXOTH]
    with ExitStack() as stack:
        for path in (sessions.path, *closed):
            mode = stat.S_IMODE(path.stat().st_mode)
            stack.callback(path.chmod, mode)
            path.chmod(0o666 if path == sessions.path else mode | stat.S_IXOTH)
        client = sessions.ask("--tool", "killsnoop", confine=become_nobody)
        assert client.wait() == 1
    assert "user 65534 may not ask for a session: only root may." in client.errors
    assert sessions.results() == {"refused": 1}


@pytest.mark.needs("initial_pid_namespace")
def test_silent_and_broken_clients_beside_a_session(sessions: Sessions) -> None:
    with closing(WaitingLoad(kills)) as process:
        client = sessions.begin("--tool", "killsnoop", "--json", "-p", str(process.pid))
        others = []
        for sent in (b"", b"\xff\n", b"{", b"x" * 100_000):
            other = socket.socket(socket.AF_UNIX)
            other.settimeout(10)
            other.connect(str(sessions.path))
            with suppress(OSError):  # it is refused before all is sent
                other.sendall(sent)
            others.append(other)
        expected = process.run()
        assert client.end() == 0, client.errors
    for other in others:
        other.close()
    compare(rows_of(client, "killsnoop"), expected, exact=True)
