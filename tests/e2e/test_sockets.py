"""A whole agent on a Unix socket, and on a socket that it inherits, asked by curl."""

import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import PlayBack
from tests.support.agent_process import Metrics
from tests.support.patience import patience

CONFIG = "probes: [{name: exec, attach: 'tracepoint:sched:sched_process_exec'}]"

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")


def curl(*arguments: str) -> str:
    command = ["curl", "--silent", "--show-error", "--fail", "--max-time", str(round(patience(10)))]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout


def test_unix_socket(play_back: PlayBack, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    agent = play_back(CONFIG, {}, listen=f"unix:{path}")
    assert f"status page at http://localhost/, on unix:{path}\n" in agent.output()
    for _ in range(2):
        answer = curl("--unix-socket", str(path), "http://localhost/metrics")
        assert Metrics(answer).value("kprobe_up", probe="exec") == 1
    assert "exec" in curl("--unix-socket", str(path), "http://localhost/")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0
    assert not path.exists()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_inherited_socket_outlives_the_agent(
    play_back: PlayBack, tmp_path: Path, family: socket.AddressFamily
) -> None:
    """A client that connects between two agents is answered by the second."""
    path = tmp_path / "a.sock"
    with ExitStack() as stack:
        passed = stack.enter_context(socket.socket(family))
        passed.bind(str(path) if family is socket.AF_UNIX else ("127.0.0.1", 0))
        passed.listen()
        agent = play_back(CONFIG, {}, listen=f"fd://{passed.fileno()}")
        url = "http://localhost/-/healthy"
        if family is socket.AF_INET:
            url = f"http://127.0.0.1:{passed.getsockname()[1]}/-/healthy"
        to = ["--unix-socket", str(path)] if family is socket.AF_UNIX else []
        assert curl(*to, url) == "healthy\n"
        assert agent.end() == 0
        shutil.rmtree(tmp_path / "tracefs")
        client = stack.enter_context(socket.socket(family))
        client.settimeout(patience(10))
        client.connect(passed.getsockname())
        client.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
        play_back(CONFIG, {}, listen=f"fd://{passed.fileno()}")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
