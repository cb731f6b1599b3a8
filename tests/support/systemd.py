"""A real systemd that runs the unit of deploy/systemd, with namespaces, a cgroup and a /run of its own."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from tests.support.agent_process import Metrics
from tests.support.mounts import mounted
from tests.support.patience import eventually, patience
from tests.vm import ROOT
from tests.vm.boot import free_port

MANAGER = Path("/lib/systemd/systemd")
UNITS = ROOT / "deploy/systemd"
UNIT = "kprobe_exporter.service"
CGROUP = "systemd_under_test_"
"""What a manager's cgroup is called, and a suffix that is new each time."""

# The arguments of each script: the manager's cgroup, and the directory of its files.
ENTER_CGROUP = """
set -e
echo 0 >"$1/cgroup.procs"
exec unshare --cgroup --mount sh -c "$SCRIPT" sh "$@"
"""
HERE = f"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/system
cp -r "$2/." /run/systemd/system
mount --bind "$1" /sys/fs/cgroup
exec {MANAGER} --system --unit=quiet.target --log-target=console --show-status=no
"""

START_TIME = 20
"""Seconds that an idle machine needs at most to start the unit, with imports from a cold cache."""


class Systemd:
    """A manager in its own namespaces, and commands that are run inside them."""

    def __init__(self, pid: int, output: Path, namespaces: Sequence[str] = ()) -> None:
        self.pid = pid
        self.output = output
        self._namespaces = ("--mount", "--pid", "--cgroup", *namespaces)

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", f"--target={self.pid}", *self._namespaces, "--"]
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
        """The main process' id in this process' PID namespace."""
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
        """The agent's stderr."""
        return Path(f"/proc/{self.pid}/root/run/agent.log").read_text()


def _namespace(process: Path) -> str:
    return str((process / "ns/pid").readlink())


@pytest.fixture
def port() -> int:
    return free_port(20000)


@pytest.fixture
def systemd(tmp_path: Path, tracefs: Path, port: int) -> Iterator[Systemd]:
    """Yield a manager that has loaded the unit and started nothing."""
    files = tmp_path / "units"
    lay_out(files, port)
    with running_manager(tmp_path, files) as manager:
        yield manager
        manager.inside("systemctl", "stop", UNIT)  # in case the test failed


def lay_out(files: Path, port: int) -> None:
    """Write the unit unchanged, a drop-in with this machine's differences, and an empty target."""
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
        # This machine's Python may be below /root,
        "ProtectHome=read-only\n"
        # and this tree below /tmp.
        f"BindReadOnlyPaths={ROOT}\n"
    )


@contextmanager
def running_manager(
    directory: Path, *files: Path, script: str = HERE, namespaces: Sequence[str] = ()
) -> Iterator[Systemd]:
    """Start a manager by a script that mounts what it needs; ``namespaces`` are further ones for it."""
    with _hierarchy() as cgroups, _manager(cgroups, directory, files, script, namespaces) as manager:
        yield manager


@contextmanager
def _hierarchy() -> Iterator[Path]:
    """Yield the hierarchy of cgroups v2. If mounted here it is gone afterwards, as podman looks there."""
    cgroups = Path("/sys/fs/cgroup")
    with nullcontext() if (cgroups / "cgroup.procs").exists() else mounted(cgroups, "-t", "cgroup2"):
        yield cgroups


@contextmanager
def _manager(
    cgroups: Path, directory: Path, files: Sequence[Path], script: str, namespaces: Sequence[str]
) -> Iterator[Systemd]:
    for left in cgroups.glob(f"{CGROUP}*"):
        _removed(left)  # what a killed test left, unless its processes live
    own = Path(tempfile.mkdtemp(prefix=CGROUP, dir=cgroups))
    before = _private_directories()
    output = directory / "systemd.log"
    command = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
    command += ["--mount-proc", *namespaces, "sh", "-c", ENTER_CGROUP, "sh", str(own), *map(str, files)]
    with output.open("w") as log:
        child = subprocess.Popen(
            command,
            env={"container": "test", "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "SCRIPT": script},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        eventually(lambda: children.read_text().strip())
        manager = Systemd(int(children.read_text()), output, namespaces)

        def is_up() -> bool:
            assert child.poll() is None, output.read_text()
            return manager.inside("systemctl", "is-active", "quiet.target").returncode == 0

        eventually(is_up, START_TIME)
        yield manager
    finally:
        child.kill()
        child.wait()
        eventually(partial(_removed, own))
        for left in _private_directories() - before:
            shutil.rmtree(left)  # of a unit that the manager did not stop, since it was killed


def _private_directories() -> set[Path]:
    """The directories that PrivateTmp= has made for the unit."""
    return set(Path("/var/tmp").glob(f"systemd-private-*-{UNIT}-*"))


def _removed(cgroup: Path) -> bool:
    """Remove an empty cgroup and those below it; return False while processes are in them."""
    try:
        for place in [*sorted((path for path in cgroup.rglob("*") if path.is_dir()), reverse=True), cgroup]:
            place.rmdir()
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
