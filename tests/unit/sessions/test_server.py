"""The agent's side of sessions: what is relayed, every way to end, and clients of all kinds."""

import base64
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kprobe_exporter.errors import SessionRefused, StartError
from kprobe_exporter.sessions import relay, server, tool_run
from kprobe_exporter.sessions.client import SessionClient
from kprobe_exporter.sessions.protocol import MAX_REQUEST_BYTES, Limits, SessionRequest
from kprobe_exporter.sessions.server import SessionServer
from kprobe_exporter.util.unix_socket import Peer
from tests.support.forked_child import started
from tests.support.patience import eventually, within
from tests.unit.sessions.conftest import Served, all_of, processes, until

Serve = Callable[..., Served]


def first(message: dict[str, object]) -> bool:
    return message.get("text") == "number 2"


def connected(served: Served) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(served.path))
    return client


def answer(client: socket.socket) -> dict[str, object]:
    """The only message that comes, until the end of the connection."""
    data = b""
    try:
        while piece := client.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    found = json.loads(data)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("as_json", [False, True])
def test_rows_of_two_tools_until_their_time_is_over(served: Served, as_json: bool) -> None:
    with served.ask(number=2, seconds=0.2, as_json=as_json) as client:
        found = all_of(client)
    rows = [message.get("row", message.get("text")) for message in found]
    expected = [{"number": number} if as_json else f"number {number}" for number in range(3)]
    assert [row for row in rows if row is not None and row == expected[0]] == [expected[0]] * 2
    assert len([row for row in rows if row is not None]) == 6
    assert [message for message in found if "traced" in message] == [
        {"tool": "killsnoop", "traced": True}
    ] * 2
    assert [message["status"] for message in found if "status" in message] == [0, 0]
    size = found[-1].pop("bytes")
    assert found[-1] == {"ended": "done", "note": "the session is over.", "rows": 6}
    assert 0 < size < 1000
    served.wait_for(done=1)


def test_timeline_comes_as_it_was_written(served: Served) -> None:
    with served.ask(seconds=0.2, perfetto=True) as client:
        found = all_of(client)
    data = b"".join(base64.b64decode(str(message["data"])) for message in found if "data" in message)
    assert data == b"\n\xff-" + b"\0" * 100_000 + b"number 0\nnumber 1\nnumber 2\n"
    assert found[-1]["bytes"] >= len(data)
    assert [message["status"] for message in found if "status" in message] == [0]
    served.wait_for(done=1)


@pytest.mark.parametrize(("how", "status"), [("waits", 0), ("fails", 1)])
def test_client_writes_a_timeline_whole_or_not(served: Served, tmp_path: Path, how: str, status: int) -> None:
    words = ["--tool", "killsnoop", "--comm", how, "--for", "0.2s", "--socket", str(served.path)]
    command = [sys.executable, "-m", "kprobe_exporter", "session", *words, "--perfetto"]
    files = tmp_path / "files"
    files.mkdir()
    to_file = subprocess.run([*command, str(files / "out")], capture_output=True, check=False)
    to_stdout = subprocess.run([*command, "-"], capture_output=True, check=False)
    assert (to_file.returncode, to_stdout.returncode) == (status, status), to_file.stderr
    assert to_file.stdout == b""
    if status:
        assert b"the timeline is not complete, so no file is written." in to_file.stderr
        assert [*files.iterdir()] == []
    else:
        assert [one.name for one in files.iterdir()] == ["out"]
        assert to_stdout.stdout == (files / "out").read_bytes()
        assert to_stdout.stdout.startswith(b"\n\xff-\0\0")
        assert len(to_stdout.stdout) > 100_000


def test_command_line_of_a_tool(served: Served, tmp_path: Path) -> None:
    with served.ask() as client:
        until(client, first)
        [pid] = processes(tmp_path)
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        assert words[3:-1] == [
            *("tool", "killsnoop", "--tracefs=/the/tracefs", "--verbose", "--duration=30", "--comm=waits")
        ]
        assert os.getsid(pid) == pid
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "500\n"
        assert served.results() == {"active": 1}


def test_client_that_closes_ends_its_tools(served: Served, tmp_path: Path) -> None:
    with served.ask(number=2) as client, served.ask() as other:
        until(client, first)
        until(other, first)
        client.__exit__()
        served.wait_for(active=1, left=1)
        assert len(processes(tmp_path)) == 1


def test_killed_client_ends_its_tools(served: Served, tmp_path: Path) -> None:
    read, write = os.pipe()

    def work() -> None:
        with served.ask() as client:
            until(client, first)
            os.write(write, b"x")
            signal.pause()

    pid = started(work)
    assert os.read(read, 1) == b"x"
    assert len(processes(tmp_path)) == 1
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    served.wait_for(left=1)
    assert processes(tmp_path) == []
    os.close(read)
    os.close(write)


def test_client_that_asks_for_the_end_gets_the_rest(served: Served) -> None:
    with served.ask() as client:
        until(client, first)
        client.end()
        found = all_of(client)
    assert [message["text"] for message in found if "text" in message] == ["the rest"]
    assert found[-1]["ended"] == "left"


def test_budget_of_bytes(serve: Serve, tmp_path: Path) -> None:
    served = serve(Limits(max_bytes=2_000_000))
    with served.ask("floods") as client:
        found = all_of(client)
    ended = found[-1]
    assert (ended["ended"], ended["bytes"] - 2_000_000 in range(1, 10_001)) == ("budget", True)
    assert "2,000,000 bytes (--session.max-size of 'run')." in ended["note"]
    received = sum(len(message["text"]) + 1 for message in found if "text" in message)
    assert 1_980_000 < received <= 2_000_000
    served.wait_for(budget=1)
    assert processes(tmp_path) == []


def test_budget_holds_while_a_session_ends(serve: Serve) -> None:
    """Its client has asked for the end already, and a tool writes on."""
    served = serve(Limits(max_bytes=200_000))
    with served.ask("talks") as client:
        until(client, first)
        client.end()
        found = all_of(client)
    assert found[-1]["ended"] == "budget"
    assert sum(len(message["text"]) + 1 for message in found if "text" in message) <= 200_000


def test_budget_of_tools(serve: Serve) -> None:
    served = serve(Limits(max_tools=3))
    with served.ask(number=2) as client:
        until(client, first)
        with (
            pytest.raises(SessionRefused, match=r"2 tools of other sessions run, .* allows 3 at once"),
            served.ask(number=2) as refused,
        ):
            all_of(refused)
        with served.ask(seconds=0.1) as third:
            assert all_of(third)[-1]["ended"] == "done"
    served.wait_for(refused=1, done=1, left=1)


def test_tool_that_outlasts_its_time_is_ended(served: Served) -> None:
    with served.ask() as client:
        until(client, first)
        [session] = served.server._sessions
        session._deadline = time.monotonic()
        assert all_of(client)[-1]["ended"] == "done"


def test_deaf_tool_is_killed_and_cleaned_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(relay, "END_TIME_S", 0.2)
    served = serve()
    with served.ask("deaf") as client:
        until(client, first)
        client.end()
        found = all_of(client)
    assert [message["status"] for message in found if "status" in message] == [-signal.SIGKILL]
    eventually(lambda: served.cleaned == 1)
    assert processes(tmp_path) == []


def test_tool_that_fails_says_why(served: Served) -> None:
    with served.ask("fails") as client:
        found = all_of(client)
    assert {"tool": "killsnoop", "note": "no such kernel", "level": "warning"} in found
    assert found[-1]["ended"] == "failed"
    served.wait_for(failed=1)


def test_program_that_is_gone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_run, "PROGRAM", ("/nonexistent/python",))
    with (
        served.ask() as client,
        pytest.raises(SessionRefused, match=r"killsnoop cannot be started: .*No such"),
    ):
        all_of(client)
    served.wait_for(refused=1)


def test_line_without_end_is_cut(served: Served) -> None:
    with served.ask("long", seconds=1) as client:
        texts = [len(message["text"]) for message in all_of(client) if "text" in message]
    assert texts[:3] == [8, 8, 8]
    assert sum(texts[3:]) == 3_000_000
    assert len(texts) > 4
    assert max(texts) <= tool_run.MAX_LINE + tool_run.PIECE


def test_slow_reader_holds_up_its_own_tool_alone(served: Served) -> None:
    with served.ask("floods") as slow:
        eventually(lambda: served.results() == {"active": 1})
        [session] = served.server._sessions
        eventually(lambda: len(session._out) >= relay.HIGH_WATER)
        held_up = len(session._out)
        with served.ask(seconds=0.2) as other:
            assert all_of(other)[-1]["ended"] == "done"
        assert len(session._out) == held_up < relay.HIGH_WATER + 2 * tool_run.PIECE
        until(slow, lambda message: len(str(message.get("text"))) == 9999)
        eventually(lambda: len(session._out) >= relay.HIGH_WATER)


def test_reader_that_never_reads_is_dropped(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(relay, "START_TIME_S", 0)
    monkeypatch.setattr(relay, "END_TIME_S", 0.5)
    served = serve()
    with served.ask("floods", seconds=0.5):
        eventually(lambda: sum(served.results().values()) == 1 and "active" not in served.results())
        assert processes(tmp_path) == []


def test_agent_that_stops_sends_no_signal(served: Served, tmp_path: Path) -> None:
    """A supervisor sends one to all processes, and a second one would end the removal from the kernel."""
    with served.ask() as client:
        until(client, first)
        served.server.close()
    assert (tmp_path / "tool.py.signals").read_text() == "0"


def test_agent_that_stops_ends_all(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    with served.ask() as client, served.ask(number=2) as other, connected(served):
        until(client, first)
        until(other, first)
        with within(5):
            served.server.close()
        assert processes(tmp_path) == []
        assert all_of(client)[-1]["ended"] == all_of(other)[-1]["ended"] == "stopped"
    assert served.results() == {"stopped": 2}
    assert served.cleaned == 0
    assert not served.path.exists()


def test_agent_in_a_hurry_kills(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    with served.ask("deaf") as client:
        until(client, first)
        with within(5):
            served.server.close(lambda: True)
        assert processes(tmp_path) == []
        assert served.cleaned == 1


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"{\n", "the request is not JSON."),
        (b"\0\xff\n", "the request is not JSON."),
        (b"x" * (MAX_REQUEST_BYTES + 1), f"longer than {MAX_REQUEST_BYTES:,} bytes"),
        (b"{}\n{}\n", "more than a request was sent"),
        (b"GET / HTTP/1.1\r\n\r\n", "more than a request was sent"),
    ],
)
def test_hostile_bytes(served: Served, sent: bytes, why: str) -> None:
    with served.ask(seconds=30) as good, connected(served) as client:
        until(good, first)
        client.sendall(sent)
        assert why in str(answer(client)["refused"])
        assert served.results() == {"active": 1, "refused": 1}


def test_silent_client(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "REQUEST_TIME_S", 0.3)
    with connected(serve()) as client:
        client.sendall(b'{"version": ')
        assert answer(client) == {"refused": "no request came within 0.3 s."}


def test_bytes_behind_the_request_end_the_session(served: Served) -> None:
    with served.ask() as client:
        until(client, first)
        client._socket.sendall(b"more\n")
        assert all_of(client)[-1]["ended"] == "left"


def test_flood_of_connections_does_not_disturb_a_session(served: Served) -> None:
    with served.ask() as good:
        until(good, first)
        clients = [connected(served) for _ in range(server.MAX_CONNECTIONS - 1)]
        with connected(served) as one_more:
            assert answer(one_more) == {"refused": "16 clients are connected: try again later."}
        for client in clients:
            client.close()
        good.end()
        assert [message["text"] for message in all_of(good) if "text" in message] == ["the rest"]


def test_many_threads_ask_at_once(served: Served) -> None:
    ended: list[object] = []

    def ask() -> None:
        try:
            with served.ask(seconds=0.1) as client:
                ended.append(all_of(client)[-1]["ended"])
        except SessionRefused:
            ended.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 12
    assert ended.count("done") >= 4
    served.wait_for(**{each: ended.count(each) for each in ("done", "refused") if each in ended})


def test_other_user_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(server, "peer_of", lambda sock: Peer(7, os.geteuid() + 1000, 0))
    with connected(served) as client:
        with suppress(BrokenPipeError):  # it may be refused before it asks
            client.sendall(b'{"version": 1, "tools": [{"name": "killsnoop"}], "seconds": 1}\n')
        refused = {"refused": f"user {os.geteuid() + 1000} may not ask for a session: only root may."}
        assert answer(client) == refused
    served.wait_for(refused=1)
    assert processes(tmp_path) == []
    assert "process 7, is refused" in caplog.text


def test_client_refuses_another_users_socket(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.sessions.client.peer_of", lambda sock: Peer(1, 1000, 1000))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SessionRefused, match="belongs to a process of user 1000, which is not the agent"):
        served.ask()


def test_no_agent(tmp_path: Path) -> None:
    with pytest.raises(SessionRefused, match=re.escape(f"no agent serves sessions at {tmp_path}/none")):
        SessionClient.at(tmp_path / "none", SessionRequest((), {}, 1))
    with pytest.raises(SessionRefused, match="a path has at most 107 bytes"):
        SessionClient.at(tmp_path / ("x" * 200), SessionRequest((), {}, 1))


def test_files_are_roots_alone(served: Served) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(served.path.parent.stat().st_mode) == 0o700


def made(path: Path) -> SessionServer:
    return SessionServer(path, Limits(), None)


def test_second_agent_at_the_same_path(served: Served) -> None:
    with pytest.raises(StartError, match=r"^--session.socket .*: a process listens there already"):
        made(served.path)
    assert served.path.exists()


def test_socket_of_a_killed_agent_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s/socket"
    path.parent.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    made(path).close()
    assert not path.exists()


def test_other_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s/socket"
    path.parent.mkdir(0o700)
    path.write_text("mine")
    with pytest.raises(StartError, match="or the file is not a socket"):
        made(path)
    assert path.read_text() == "mine"


def test_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "s/socket"
    path.parent.mkdir(0o700)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match=r"--session.socket"):
        made(path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("mode", "above", "why"),
    [
        (0o777, 0o755, "others may write this directory: chmod o-w it"),
        (0o1777, 0o755, "others may write this directory"),
        (0o700, 0o777, "every user may replace directories in"),
    ],
)
def test_directory_that_others_may_change(tmp_path: Path, mode: int, above: int, why: str) -> None:
    directory = tmp_path / "above/s"
    directory.mkdir(parents=True)
    directory.chmod(mode)
    directory.parent.chmod(above)
    with pytest.raises(StartError, match=why):
        made(directory / "socket")
    assert not (directory / "socket").exists()


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"the directory .*/a/b does not exist; make it before the start"):
        made(tmp_path / "a/b/socket")
