"""Requests are answered while the agent plans its probes, which may take long."""

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from kprobe_exporter.agent.agent import STARTING
from kprobe_exporter.agent.installer import Installer
from kprobe_exporter.agent.serve import ServeOptions, serve
from kprobe_exporter.config.load import load
from kprobe_exporter.errors import UsageError
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.tracefs.files import Tracefs
from tests.support.fake_tracefs import FakeTracefs
from tests.support.machine import OPEN
from tests.support.patience import eventually, patience

Get = Callable[[str], tuple[int, str]]


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Planning lasts until this is set."""
    ended, plan = threading.Event(), Installer.plan

    def slow(installer: Installer, *rest: Any) -> Any:
        ended.wait()
        return plan(installer, *rest)

    monkeypatch.setattr(Installer, "plan", slow)
    yield ended
    ended.set()


@pytest.fixture
def get(tmp_path: Path, planning: threading.Event) -> Iterator[Get]:
    """A function that asks the agent for a path, and returns the status and the text of the answer."""
    config, stop = tmp_path / "config.yaml", Shutdown()
    config.write_text(f"probes: [{OPEN}]\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"

    @contextmanager
    def kernel(_: Path | None) -> Iterator[Tracefs]:
        yield FakeTracefs(tmp_path / "tracefs", {"do_open"})

    def ask(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=patience(10)) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def listening() -> bool:
        try:
            return ask("/-/healthy")[0] == 200
        except URLError:
            return False

    (tmp_path / "tracefs").mkdir()
    options = ServeOptions(listen=[address])
    agent = threading.Thread(target=lambda: serve(lambda: load([config], DECODERS), options, stop, kernel))
    agent.start()
    try:
        eventually(listening)
        yield ask
    finally:
        stop.set()
        planning.set()
        agent.join()


def test_answers_before_planning(get: Get, planning: threading.Event) -> None:
    assert get("/-/ready") == (503, f"{STARTING}\n")
    status, metrics = get("/metrics")
    assert status == 200
    assert "kprobe_exporter_build_info{" in metrics
    assert "kprobe_up{" not in metrics
    assert STARTING in get("/")[1]
    planning.set()
    eventually(lambda: get("/-/ready")[0] == 200)
    assert 'kprobe_up{probe="open"} 1.0' in get("/metrics")[1]
    assert STARTING not in get("/")[1]


def test_no_socket_from_systemd(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"probes: [{OPEN}]\n")
    with pytest.raises(UsageError, match=r"^--web\.systemd-socket: systemd passed no socket to this process"):
        serve(lambda: load([config], DECODERS), ServeOptions(systemd_socket=True), Shutdown())
