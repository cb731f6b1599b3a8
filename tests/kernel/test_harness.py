"""The VM harness provides the requested kernel, root, a tracefs and a loopback interface."""

import os
import socket
from pathlib import Path

import pytest

from tests.support.mounts import mounted

SERIES = os.environ.get("KPROBE_EXPORTER_VM")


@pytest.mark.skipif(SERIES is None, reason="not in a VM")
def test_this_is_the_kernel_asked_for() -> None:
    assert SERIES is not None
    version, _, flavour = SERIES.partition("-")
    assert os.uname().release.startswith(f"{version}.")
    assert os.uname().release.endswith(f"-{flavour or 'amd64'}")


def test_tracefs_is_there(tracefs: Path) -> None:
    assert (tracefs / "instances").is_dir()


@pytest.mark.needs("kprobe_events")
def test_an_instance_can_be_made(tracefs: Path) -> None:
    instance = tracefs / "instances" / f"harness_{os.getpid()}"
    instance.mkdir()
    instance.rmdir()


def test_the_loopback_is_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_what_is_mounted_here_is_mounted_nowhere_else(tracefs: Path, tmp_path: Path) -> None:
    """Mounts are private to the tests, so they end with the tests, tracefs included."""
    with mounted(tmp_path, "-t", "tmpfs"):
        assert str(tmp_path) in Path("/proc/self/mountinfo").read_text()
        assert str(tmp_path) not in Path(f"/proc/{os.getppid()}/mountinfo").read_text()
