"""Messages to systemd have the form of sd_notify(3), and no failure to send one stops the agent."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.service.sdnotify import MAX_STATUS, SEND_TIME, Systemd, passed_descriptors
from tests.support.notify_socket import EXTENDED, Manager


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = str(tmp_path / "notify")
    return path if request.param == "path" else f"@kprobe_exporter{path}"


@pytest.fixture
def manager(address: str) -> Iterator[Manager]:
    manager = Manager(address)
    with manager.socket:
        yield manager


def test_a_life(address: str, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: 1_234_567_890)
    with Systemd(address) as systemd:
        systemd.starting("installing 6 probes")
        assert manager.heard() == ["STATUS=installing 6 probes", EXTENDED]
        systemd.ready("5 of 6 probes are up")
        assert manager.heard() == ["READY=1", "STATUS=5 of 6 probes are up"]
        systemd.alive()
        assert manager.heard() == ["WATCHDOG=1"]
        systemd.reloading()
        assert manager.heard() == [
            "RELOADING=1",
            "MONOTONIC_USEC=1234567",
            "STATUS=reading the configuration again",
            EXTENDED,
        ]
        systemd.ready("6 of 6 probes are up")
        assert manager.heard() == ["READY=1", "STATUS=6 of 6 probes are up"]
        systemd.status("5 of 6 probes are up")
        assert manager.heard() == ["STATUS=5 of 6 probes are up"]
        systemd.stopping("removing the probes")
        assert manager.heard() == ["STOPPING=1", "STATUS=removing the probes"]
    systemd.alive()
    systemd.close()
    assert manager.heard_nothing()


@pytest.mark.parametrize(
    ("environment", "watchdog"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "42"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "43"}, None),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": ""}, None),
        ({"WATCHDOG_PID": "42"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": ""}, None),
        ({"WATCHDOG_USEC": "1e6"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
    ],
)
def test_the_watchdog_of_an_environment(environment: dict[str, str], watchdog: float | None) -> None:
    everything = {"HOME": "/", **environment}
    with Systemd.of(everything, 42) as systemd:
        assert systemd.watchdog == watchdog
        assert not systemd.listens
    assert everything == {"HOME": "/"}  # child processes must not inherit them


def test_the_socket_of_an_environment(address: str, manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": address, "HOME": "/"}
    with Systemd.of(environment, 42) as systemd:
        assert environment == {"HOME": "/"}
        assert systemd.listens
        systemd.alive()
        assert manager.heard() == ["WATCHDOG=1"]


@pytest.mark.parametrize("address", ["", "/", "@", "relative", "vsock:2:1234"])
def test_an_address_that_is_none(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with Systemd.of({"NOTIFY_SOCKET": address}, 42) as systemd:
        systemd.ready("x")
        assert not systemd.listens
    assert [record.levelname for record in caplog.records] == (["WARNING"] if address else [])


@pytest.mark.parametrize("address", ["/nowhere/notify", "/" + "x" * 4096, "@" + "x" * 4096, "/a\0b"])
def test_a_manager_that_is_not_there(address: str) -> None:
    with Systemd(address) as systemd:
        systemd.ready("x")
        systemd.alive()


def test_a_manager_that_hears_nothing_any_more(address: str, manager: Manager) -> None:
    with Systemd(address) as systemd:
        manager.socket.close()
        systemd.ready("x")


def test_a_manager_that_does_not_get_on(
    address: str, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending a message waits for a bounded time, and the agent continues without it."""
    assert 0 < SEND_TIME < 10
    monkeypatch.setattr("kprobe_exporter.service.sdnotify.SEND_TIME", 0.01)
    waiting = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    with Systemd(address) as systemd:
        for _ in range(waiting + 3):
            systemd.alive()


def test_no_descriptor_is_left_to_open_one(
    address: str, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WATCHDOG=1 is sent without a new descriptor, so an agent that has none left is not killed for it."""
    with Systemd(address) as systemd, monkeypatch.context() as patch:
        patch.setattr(socket, "socket", None)
        systemd.alive()
        assert manager.heard() == ["WATCHDOG=1"]


@given(st.text(st.characters()))
def test_a_status_is_one_assignment_of_a_bounded_length(text: str) -> None:
    sent: list[tuple[str, ...]] = []
    systemd = Systemd()
    systemd._send = lambda *lines: sent.append(lines)  # type: ignore[method-assign]
    systemd.status(text)
    [[line]] = sent
    assert line.startswith("STATUS=")
    assert line.isprintable()
    assert len(line) <= len("STATUS=") + MAX_STATUS + 1
    line.encode()


def test_many_threads_at_once(address: str, manager: Manager) -> None:
    with Systemd(address) as systemd:
        with ThreadPoolExecutor(5) as pool:
            for n in range(5):
                pool.submit(systemd.status, f"{n}")
        assert sorted(manager.heard()[0] for _ in range(5)) == [f"STATUS={n}" for n in range(5)]


@pytest.mark.parametrize(
    ("environment", "descriptors"),
    [
        ({}, []),
        ({"LISTEN_FDS": "2", "LISTEN_PID": "42"}, [3, 4]),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "42", "LISTEN_FDNAMES": "a.socket"}, [3]),
        ({"LISTEN_FDS": "2", "LISTEN_PID": "43"}, []),
        ({"LISTEN_FDS": "2"}, []),
        ({"LISTEN_PID": "42"}, []),
        ({"LISTEN_FDS": "-1", "LISTEN_PID": "42"}, []),
        ({"LISTEN_FDS": "²", "LISTEN_PID": "42"}, []),
    ],
)
def test_descriptors_of_an_environment(environment: dict[str, str], descriptors: list[int]) -> None:
    everything = {"HOME": "/", **environment}
    assert list(passed_descriptors(everything, 42)) == descriptors
    assert everything == {"HOME": "/"}
