"""A bare Debian of any release, in which commands run without a network and with this kernel's tracefs."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.tools import needs_tools
from tests.vm import BUILD
from tests.vm.debian import KEYRING

STORE = BUILD / "roots"
TOOLS = ("mmdebstrap", "unshare", "ip", "chroot")

# In namespaces of its own: the mounts and processes end with the command, and the only network is a loopback.
ENTER = """
set -e
ip link set lo up
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/run"
mount -t tracefs nodev "$1/sys/kernel/tracing"
exec env --ignore-environment HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$@"
"""


@dataclass(frozen=True)
class Root:
    """The root directory of a Debian."""

    directory: Path

    def run(self, *command: str | Path, status: int = 0) -> str:
        """Run a command as root in it; return its output, standard error included.

        Raises AssertionError with the output if it ends with another status.
        """
        namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        done = subprocess.run(
            ["unshare", *namespaces, "sh", "-c", ENTER, "sh", self.directory, *command],
            env={**os.environ, "PATH": _path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == status, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def copy(self, files: Sequence[Path], into: str) -> None:
        """Copy files into a directory of it, which is made."""
        target = self.directory / into.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, target)


def fresh(suite: str, packages: Sequence[str], directory: Path) -> Root:
    """Unpack a Debian with these packages into a directory.

    mmdebstrap makes it once, by this machine's settings of apt, and it is kept below build/roots. Without the
    tools or root the test is skipped; under CI it fails.
    """
    needs_tools(TOOLS, _path(), "a Debian is unpacked and entered as root", "make dist-test")
    subprocess.run(
        ["tar", "--extract", "--file", _archive(suite, packages), "--directory", directory], check=True
    )
    return Root(directory)


def _archive(suite: str, packages: Sequence[str]) -> Path:
    STORE.mkdir(parents=True, exist_ok=True)
    recipe = hashlib.sha256(repr((suite, packages)).encode()).hexdigest()[:12]
    archive = STORE / f"{suite}-{recipe}.tar"
    with (STORE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return archive
        options = STORE / "apt.conf"
        settings = subprocess.run(
            ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
        )
        lines = settings.stdout.splitlines()
        # A list of apt's settings has names without a value too, which apt does not read back.
        kept = [line for line in lines if not line.endswith(' "";') and "Languages" not in line]
        options.write_text("".join(f"{line}\n" for line in kept if "IndexTargets" not in line))
        partial = STORE / "partial.tar"
        command = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(packages)}"]
        command += [f"--aptopt={options}", "--dpkgopt=force-unsafe-io", f"--keyring={KEYRING}"]
        subprocess.run([*command, suite, partial], stdin=subprocess.DEVNULL, check=True)
        partial.rename(archive)
    return archive


def _path() -> str:
    """The PATH with the directories of administration tools."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"
