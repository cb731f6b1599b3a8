"""The unit under a real systemd, which learns the agent's state, and confines, watches and ends it.

Its probes are uprobes of the C library, which kernels without kprobes support too: under emulation each
start takes a minute. tests/faults/test_systemd.py runs it on a kernel with kprobes.
"""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from kprobe_exporter.sessions.protocol import DEFAULT_SOCKET
from tests.kernel.conftest import as_found, tracefs  # noqa: F401
from tests.support.kernel_ids import kernel_tid
from tests.support.libc import own_libc
from tests.support.patience import eventually, patience
from tests.support.systemd import (  # noqa: F401
    START_TIME,
    UNIT,
    UNITS,
    Systemd,
    configure,
    port,
    scrape,
    systemd,
)

pytestmark = [pytest.mark.needs("uprobe_events"), pytest.mark.usefixtures("as_found")]

NUMBER = 23
SOCKET = "kprobe_exporter.socket"

CONFIG = """
probes:
  - name: hits
    attach: uprobe:{libc}:getppid
  - name: answers
    attach: uretprobe:{libc}:getppid
    filter: common_pid == {tid}
    metrics: [{{counter: answers_total}}]
  - name: absent
    attach: uprobe:{libc}:no_such_function
"""


@pytest.fixture
def config() -> str:
    """Two probes of the C library that this process uses, and one of a function that the library lacks."""
    return CONFIG.format(libc=own_libc(), tid=kernel_tid())


def test_a_life(systemd: Systemd, port: int, config: str) -> None:  # noqa: F811
    configure(systemd, config)
    systemd.ctl("start", UNIT)  # returns when the agent has sent READY=1
    assert systemd.shows("StatusText") == "2 of 3 probes are up; down: absent"
    before = scrape(port)
    for _ in range(NUMBER):
        os.getppid()

    def hits() -> float:
        return scrape(port).value("kprobe_hits_total", probe="hits")

    eventually(lambda: hits() - before.value("kprobe_hits_total", probe="hits") >= NUMBER)
    assert scrape(port).value("kprobe_answers_total") == NUMBER
    pid = systemd.main_pid()
    assert_hardened(Path(f"/proc/{pid}"))

    configure(systemd, "probes: [{name: X}]")
    systemd.ctl("reload", UNIT)
    eventually(lambda: systemd.shows("StatusText").startswith("not reloaded: /run/configuration.yaml:1:"))
    configure(systemd, config.replace("no_such_function", "getpid"))
    systemd.ctl("reload", UNIT)
    eventually(lambda: systemd.shows("StatusText") == "3 of 3 probes are up")
    eventually(lambda: systemd.shows("ActiveState") == "active")
    assert systemd.main_pid() == pid
    assert hits() >= before.value("kprobe_hits_total", probe="hits") + NUMBER

    systemd.ctl("stop", UNIT)
    assert systemd.shows("Result") == "success"
    assert systemd.shows("NRestarts") == "0"
    assert systemd.log().splitlines()[-1].endswith("INFO cli.run: stopped")
    assert "Traceback" not in systemd.log()


def assert_hardened(process: Path) -> None:
    """The kernel shows these restrictions, whatever systemd understands by the unit's settings."""
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Uid"].split()[0]) == ("1", "2", "0")
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    states = {fields[4]: fields[5].split(",")[0] for fields in mounts}  # the last mount at a path counts
    assert states["/run/kprobe_exporter"] == "rw"
    for path in ("/", "/sys", "/sys/kernel/tracing", "/proc/sys", "/sys/fs/cgroup"):
        assert states[path] == "ro", path
    environment = (process / "environ").read_bytes()
    assert b"NOTIFY_SOCKET=" in environment  # the environment at exec; children do not inherit it


def has_heard_since(systemd: Systemd, heard: str) -> bool:  # noqa: F811
    return systemd.shows("WatchdogTimestampMonotonic") != heard


def watched(systemd: Systemd, config: str, seconds: int) -> int:  # noqa: F811
    """Start the unit with a watchdog of ``seconds``, and return the id of its process."""
    drop_in = Path(f"/proc/{systemd.pid}/root/run/systemd/system/{UNIT}.d/watchdog.conf")
    drop_in.write_text(f"[Service]\nWatchdogSec={seconds}s\nRestartSec=100ms\n")
    systemd.ctl("daemon-reload")
    configure(systemd, config)
    systemd.ctl("start", UNIT)
    return systemd.main_pid()


def test_it_is_restarted_however_often_it_dies(systemd: Systemd, port: int, config: str) -> None:  # noqa: F811
    """As when something makes the agent use more memory than it may have, time and again."""
    pid = watched(systemd, config, 60)
    for number in range(1, 7):
        os.kill(pid, signal.SIGKILL)
        eventually(lambda number=number: systemd.shows("NRestarts") == str(number), 60)  # type: ignore[misc]
        eventually(lambda: systemd.shows("ActiveState") == "active", START_TIME)
        pid = systemd.main_pid()


def test_sockets_of_systemd(systemd: Systemd, port: int, config: str) -> None:  # noqa: F811
    """A client of the socket starts the agent, which needs no network of its own, and waits for it."""
    run = Path(f"/proc/{systemd.pid}/root/run")
    units = run / "systemd/system"
    shutil.copy(UNITS / SOCKET, units)
    (units / f"{SOCKET}.d").mkdir()
    (units / f"{SOCKET}.d/here.conf").write_text(
        f"[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=127.0.0.1:{port}\n"
    )
    (units / f"{UNIT}.d/sockets.conf").write_text(
        "[Service]\nPrivateNetwork=yes\n"
        "Environment='OPTIONS=--config /run/configuration.yaml --web.systemd-socket'\n"
    )
    systemd.ctl("daemon-reload")
    configure(systemd, config)
    systemd.ctl("start", SOCKET)
    path = run / "kprobe_exporter.sock"
    assert path.lstat().st_mode & 0o777 == 0o660
    curl = ["curl", "--silent", "--fail", "--unix-socket", str(path), "http://localhost/metrics"]
    for _ in range(2):
        assert systemd.shows("ActiveState") == "inactive"
        answer = subprocess.run(
            curl, capture_output=True, text=True, check=True, timeout=patience(START_TIME)
        )
        assert "kprobe_exporter_build_info{" in answer.stdout
        eventually(lambda: scrape(port).value("kprobe_up", probe="hits") == 1, START_TIME)
        assert (
            len(Path(f"/proc/{systemd.main_pid()}/net/dev").read_text().splitlines()) == 3
        )  # loopback alone
        systemd.ctl("stop", UNIT)
    assert path.is_socket()
    systemd.ctl("stop", SOCKET)
    assert not path.exists()


def test_the_watchdog(systemd: Systemd, port: int, config: str) -> None:  # noqa: F811
    """A working agent keeps meeting the watchdog's deadline; systemd replaces one that hangs."""
    pid = watched(systemd, config, 6)

    for _ in range(3):
        heard = systemd.shows("WatchdogTimestampMonotonic")
        eventually(partial(has_heard_since, systemd, heard))
    assert systemd.main_pid() == pid

    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: systemd.shows("NRestarts") == "1", 60)
    eventually(lambda: systemd.shows("ActiveState") == "active", START_TIME)
    assert systemd.main_pid() != pid
    assert "removing what a killed agent left" in systemd.log()
    assert scrape(port).value("kprobe_up", probe="hits") == 1
    systemd.ctl("stop", UNIT)


def test_the_watchdog_of_a_thread_that_hangs(systemd: Systemd, port: int, config: str) -> None:  # noqa: F811
    """Scrapes are still answered; the stuck thread is reported, and then systemd replaces the agent."""
    pid = watched(systemd, config, 8)

    # A FIFO over the file that the poller reads, visible to this process alone: opening it blocks.
    os.mkfifo(f"/proc/{systemd.pid}/root/run/fifo")
    mount = ["mount", "--bind", "/run/fifo", "/run/kprobe_exporter/uprobe_profile"]
    subprocess.run(["nsenter", f"--target={pid}", "--mount", "--", *mount], check=True)
    eventually(lambda: scrape(port)["kprobe_exporter_kernel_read_age_seconds", frozenset()] > 4)
    assert scrape(port).value("kprobe_up", probe="hits") == 1
    assert systemd.main_pid() == pid
    # The status is visible until the watchdog's deadline, when systemd ends the agent.
    eventually(lambda: systemd.shows("StatusText") == "no progress of the poller", 60)
    eventually(lambda: systemd.shows("NRestarts") == "1", 60)
    assert "the poller makes no progress: the watchdog will end this" in systemd.log()
    eventually(lambda: systemd.shows("ActiveState") == "active", START_TIME)
    assert systemd.main_pid() != pid
    assert scrape(port).value("kprobe_up", probe="hits") == 1
    systemd.ctl("stop", UNIT)


def test_a_wrong_configuration_is_not_tried_again(systemd: Systemd) -> None:  # noqa: F811
    configure(systemd, "probes: [{name: X}]")
    assert systemd.inside("systemctl", "start", UNIT).returncode == 1
    assert systemd.shows("ExecMainStatus") == "2"
    assert (systemd.shows("ActiveState"), systemd.shows("NRestarts")) == ("failed", "0")
    assert "/run/configuration.yaml:1:" in systemd.log()


def test_session_in_the_confined_unit(systemd: Systemd) -> None:  # noqa: F811
    """Tools have the agent's confinement, and root is root to an agent in a user namespace of its own."""
    files = Path(f"/proc/{systemd.pid}/root/run/systemd/system/{UNIT}.d")
    shutil.copy(UNITS / "drop-ins/sessions.conf", files)
    options = re.search(r"'OPTIONS=(.*)'", (files / "here.conf").read_text())
    assert options
    served = f"'OPTIONS={options[1]} --session.socket {DEFAULT_SOCKET}'"
    (files / "served.conf").write_text(f"[Service]\nEnvironment={served}\n")
    systemd.ctl("daemon-reload")
    configure(systemd, 'probes: [{name: exec, attach: "tracepoint:sched:sched_process_exec"}]')
    systemd.ctl("start", UNIT)
    assert systemd.shows("OOMPolicy") == "continue"
    root = Path(f"/proc/{systemd.pid}/root")
    socket = root / DEFAULT_SOCKET.relative_to("/")
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    command = (sys.executable, "-m", "kprobe_exporter", "session", "--tool", "syscount -P", "--for", "2s")
    done = systemd.inside(*command)
    assert done.returncode == 0, f"{done.stderr}{systemd.log()}"
    assert re.search(r"^[0-9]+ +.+ [0-9]+$", done.stdout, re.MULTILINE), done.stdout
    assert "a session of user 0, process" in systemd.log()
    systemd.ctl("stop", UNIT)
    assert systemd.shows("Result") == "success"
    assert not socket.exists()
