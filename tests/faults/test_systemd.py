"""The unit of deploy/systemd under a real systemd: told what it has to know, confined, watched, ended.

systemd is the first process of a PID namespace here, over a cgroup of its own and with an empty /run.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.agent_process import Metrics
from tests.kernel.conftest import as_found, tracefs  # noqa: F401
from tests.support.patience import eventually, patience
from tests.vm import ROOT
from tests.vm.boot import free_port

pytestmark = [pytest.mark.needs("kprobe_events"), pytest.mark.usefixtures("as_found")]

MANAGER = Path("/lib/systemd/systemd")
UNITS = ROOT / "deploy/systemd"
UNIT = "kprobe_exporter.service"
NUMBER = 23

CONFIG = """
probes:
  - name: hits
    attach: kprobe:__x64_sys_getppid
  - name: answers
    attach: kretprobe:__x64_sys_getppid
    filter: common_pid == {tid}
    metrics: [{{counter: answers_total}}, {{counter: callers_total, labels: [caller]}}]
  - name: absent
    attach: kprobe:no_such_function
"""

SET_UP = """
set -e
echo 0 >{cgroup}/cgroup.procs
exec unshare --cgroup --mount sh -c '
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/system
cp -r {files}/. /run/systemd/system
mount --bind {cgroup} /sys/fs/cgroup
exec {manager} --system --unit=quiet.target --log-target=console --show-status=no
'
"""

CAP_SYSLOG = 34

START_TIME = 20
"""Seconds that an idle machine takes at most to start the unit, with imports from a cold cache."""


class Systemd:
    """A manager in namespaces of its own, and commands to it from inside of them."""

    def __init__(self, pid: int, output: Path) -> None:
        self.pid = pid
        self.output = output

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--cgroup", "--"]
        return subprocess.run(
            [*enter, *command], capture_output=True, text=True, timeout=patience(START_TIME), check=False
        )

    def ctl(self, *command: str) -> str:
        done = self.inside("systemctl", "--no-pager", *command)
        assert done.returncode == 0, f"{command}: {done.stderr}{self.output.read_text()}"
        return done.stdout

    def shows(self, name: str) -> str:
        """A property of the unit."""
        return self.ctl("show", UNIT, f"--property={name}", "--value").strip()

    def main_pid(self) -> int:
        """The main process as this namespace numbers it."""
        inner = self.shows("MainPID")
        for status in Path("/proc").glob("[0-9]*/status"):
            found = re.search(r"^NSpid:.*\t(\d+)$", status.read_text(), re.MULTILINE)
            if (
                found
                and found[1] == inner
                and _namespace(status.parent) == _namespace(Path(f"/proc/{self.pid}"))
            ):
                return int(status.parent.name)
        raise AssertionError(f"no process {inner} in the namespace of systemd")

    def log(self) -> str:
        """What the agent wrote to stderr."""
        return Path(f"/proc/{self.pid}/root/run/agent.log").read_text()


def _namespace(process: Path) -> str:
    return str((process / "ns/pid").readlink())


@pytest.fixture
def port() -> int:
    return free_port(20000)


@pytest.fixture
def systemd(tmp_path: Path, tracefs: Path, port: int) -> Iterator[Systemd]:  # noqa: F811
    """A manager that knows the unit, and has started nothing yet."""
    files = tmp_path / "units"
    lay_out(files, port)
    with running_manager(tmp_path, files) as manager:
        yield manager
        manager.inside("systemctl", "stop", UNIT)  # of a test that failed


def lay_out(files: Path, port: int) -> None:
    """The unit as it is, a drop-in with what differs on this machine, and a target without anything."""
    (files / f"{UNIT}.d").mkdir(parents=True)
    shutil.copy(UNITS / UNIT, files)
    (files / "quiet.target").write_text("[Unit]\nDefaultDependencies=no\n")
    start = re.search(
        r"^ExecStart=/opt/kprobe_exporter/bin/kprobe-exporter (.*)$", (UNITS / UNIT).read_text(), re.M
    )
    assert start
    (files / f"{UNIT}.d/here.conf").write_text(
        f"[Unit]\nDefaultDependencies=no\n"
        f"[Service]\nExecStart=\nExecStart={sys.executable} -m kprobe_exporter {start[1]}\n"
        f"WorkingDirectory={ROOT}\n"
        f"Environment='OPTIONS=--config /run/configuration.yaml --web.listen-address 127.0.0.1:{port}'\n"
        "Environment=PYTHONDONTWRITEBYTECODE=1\n"
        "StandardOutput=append:/run/agent.log\nStandardError=append:/run/agent.log\n"
        # This machine's Python may be below /root.
        "ProtectHome=read-only\n"
        # And this tree below /tmp.
        f"BindReadOnlyPaths={ROOT}\n"
    )


@contextmanager
def running_manager(directory: Path, files: Path) -> Iterator[Systemd]:
    cgroups = Path("/sys/fs/cgroup")
    if not (cgroups / "cgroup.procs").exists():
        subprocess.run(["mount", "-t", "cgroup2", "cgroup2", cgroups], check=True)
    own = cgroups / "systemd_under_test"
    own.mkdir()
    output = directory / "systemd.log"
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
    with output.open("w") as log:
        child = subprocess.Popen(
            [*command, SET_UP.format(files=files, cgroup=own, manager=MANAGER)],
            env={"container": "test", "PATH": os.environ["PATH"]},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        eventually(lambda: children.read_text().strip())
        manager = Systemd(int(children.read_text()), output)

        def is_up() -> bool:
            assert child.poll() is None, output.read_text()
            return manager.inside("systemctl", "is-active", "quiet.target").returncode == 0

        eventually(is_up, START_TIME)
        yield manager
    finally:
        child.kill()
        child.wait()
        for place in [*sorted((path for path in own.rglob("*") if path.is_dir()), reverse=True), own]:
            eventually(partial(_removed, place))


def _removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except OSError:
        return False
    return True


def configure(systemd: Systemd, text: str) -> None:
    path = Path(f"/proc/{systemd.pid}/root/run/configuration.yaml")
    path.write_text(text)
    path.chmod(0o600)


def scrape(port: int) -> Metrics:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience(10)) as answer:
        return Metrics(answer.read().decode())


def test_a_life(systemd: Systemd, port: int) -> None:
    configure(systemd, CONFIG.format(tid=os.getpid()))
    systemd.ctl("start", UNIT)  # returns when the agent says that it is ready
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
    configure(systemd, CONFIG.format(tid=os.getpid()).replace("no_such_function", "do_unlinkat"))
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
    """As the kernel tells it, whatever systemd means by its words."""
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Uid"].split()[0]) == ("1", "2", "0")
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    states = {fields[4]: fields[5].split(",")[0] for fields in mounts}  # of one path the last counts
    assert states["/run/kprobe_exporter"] == "rw"
    for path in ("/", "/sys", "/sys/kernel/tracing", "/proc/sys", "/sys/fs/cgroup"):
        assert states[path] == "ro", path
    environment = (process / "environ").read_bytes()
    assert b"NOTIFY_SOCKET=" in environment  # as it was executed; children do not inherit it


def has_heard_since(systemd: Systemd, heard: str) -> bool:
    return systemd.shows("WatchdogTimestampMonotonic") != heard


def watched(systemd: Systemd, seconds: int) -> int:
    """Start it with a watchdog of so many seconds: its process."""
    drop_in = Path(f"/proc/{systemd.pid}/root/run/systemd/system/{UNIT}.d/watchdog.conf")
    drop_in.write_text(f"[Service]\nWatchdogSec={seconds}s\nRestartSec=100ms\n")
    systemd.ctl("daemon-reload")
    configure(systemd, CONFIG.format(tid=os.getpid()))
    systemd.ctl("start", UNIT)
    return systemd.main_pid()


def test_the_watchdog(systemd: Systemd, port: int, tmp_path: Path) -> None:
    """A living agent outlives its time again and again; of one that hangs the successor serves."""
    pid = watched(systemd, 6)

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


def test_the_watchdog_of_a_thread_that_hangs(systemd: Systemd, port: int) -> None:
    """All others go on, so that scrapes are answered; what hangs is told, and then the successor serves."""
    pid = watched(systemd, 8)

    # Over what the poller reads, where this process alone sees it: to open it waits for a writer.
    os.mkfifo(f"/proc/{systemd.pid}/root/run/fifo")
    mount = ["mount", "--bind", "/run/fifo", "/run/kprobe_exporter/kprobe_profile"]
    subprocess.run(["nsenter", f"--target={pid}", "--mount", "--", *mount], check=True)
    eventually(lambda: scrape(port)["kprobe_exporter_kernel_read_age_seconds", frozenset()] > 4)
    assert scrape(port).value("kprobe_up", probe="hits") == 1
    assert systemd.main_pid() == pid
    # systemd shows it for as long as the watchdog waits, then it ends the agent.
    eventually(lambda: systemd.shows("StatusText") == "no progress of the poller", 60)
    eventually(lambda: systemd.shows("NRestarts") == "1", 60)
    assert "the poller makes no progress: the watchdog will end this" in systemd.log()
    eventually(lambda: systemd.shows("ActiveState") == "active", START_TIME)
    assert systemd.main_pid() != pid
    assert scrape(port).value("kprobe_up", probe="hits") == 1
    systemd.ctl("stop", UNIT)


def test_with_names_of_addresses(systemd: Systemd, port: int) -> None:
    """The drop-in gives CAP_SYSLOG and no more; on Linux 6.1 `caller` is unknown without it."""
    files = Path(f"/proc/{systemd.pid}/root/run/systemd/system/{UNIT}.d")
    shutil.copy(UNITS / "drop-ins/symbols.conf", files / "symbols.conf")
    systemd.ctl("daemon-reload")
    configure(systemd, CONFIG.format(tid=os.getpid()))
    systemd.ctl("start", UNIT)
    status = Path(f"/proc/{systemd.main_pid()}/status").read_text()
    assert f"\nCapEff:\t{1 << CAP_SYSLOG:016x}\n" in status
    os.getppid()
    eventually(lambda: scrape(port).labels("kprobe_callers_total"))
    [labels] = scrape(port).labels("kprobe_callers_total")
    assert labels["caller"].startswith(("do_syscall_64", "x64_sys_call"))
    systemd.ctl("stop", UNIT)


def test_a_wrong_configuration_is_not_tried_again(systemd: Systemd) -> None:
    configure(systemd, "probes: [{name: X}]")
    assert systemd.inside("systemctl", "start", UNIT).returncode == 1
    assert systemd.shows("ExecMainStatus") == "2"
    assert (systemd.shows("ActiveState"), systemd.shows("NRestarts")) == ("failed", "0")
    assert "/run/configuration.yaml:1:" in systemd.log()
