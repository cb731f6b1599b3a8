"""Functions that fire the probes of docs/kinds.md: a known number of times, or once for each case."""

import ctypes
import mmap
import os
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support.containers import UID
from tests.support.forked_child import in_a_child
from tests.support.kernel_modules import MODULE, reads_of_the_size, unload
from tests.support.provoked_calls import TIMES

SHOP = Path("/opt/shop")
GROUPS = Path("/run/documented-cgroups")
CONTAINER = "9f3c" * 16
POD = UID.format(1)
IN_POD = f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
SERVICE = "system.slice/shop.service"


def unlinks() -> None:
    for _ in range(TIMES):
        with pytest.raises(IsADirectoryError):
            Path("/dev/shm").unlink()


def mkdirs() -> None:
    """Call both mkdir(2) and mkdirat(2)."""
    root = os.open("/", os.O_PATH)
    for at in (None, root):
        for _ in range(TIMES):
            with pytest.raises(FileExistsError):
                os.mkdir("run" if at else "/run", dir_fd=at)
    os.close(root)


def loads_of_a_module() -> None:
    """Load a module twice, and call its function each time."""
    for _ in range(2):
        subprocess.run(["modprobe", MODULE], check=True)
        reads_of_the_size(TIMES)
        unload(MODULE)


def resolutions() -> None:
    libc = ctypes.CDLL(None)
    for _ in range(TIMES):
        socket.getaddrinfo("127.0.0.1", 80)
        libc.realpath(b"/", ctypes.create_string_buffer(4096))


def serves() -> None:
    subprocess.run([SHOP / "server"], check=True)


def collections() -> None:
    """Collect garbage in Debian's Python, which also does so while it starts."""
    code = f"import gc; gc.disable(); [gc.collect() for _ in range({TIMES})]"
    subprocess.run(["/usr/bin/python3.11", "-S", "-E", "-c", code], check=True)


def block_reads() -> None:
    """Read past the page cache, one request a read."""
    device = os.open("/dev/loop0", os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        for _ in range(TIMES):
            assert os.preadv(device, [page], 0) == mmap.PAGESIZE
    os.close(device)


def failed_and_other_opens() -> None:
    with pytest.raises(FileNotFoundError):
        os.open("/nonexistent", os.O_RDONLY)
    os.close(os.open("/dev/null", os.O_RDONLY))


def killed_children() -> None:
    for number in (signal.SIGKILL, signal.SIGRTMIN + 1):
        child = subprocess.Popen(["sleep", "60"])
        child.send_signal(number)
        child.wait()


def connections() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((address, 0), family=family) as listening:
            socket.create_connection(listening.getsockname()[:2]).close()


def connections_to_a_port() -> None:
    with socket.create_server(("127.0.0.1", 8080), reuse_port=True) as listening:
        for _ in range(TIMES):
            socket.create_connection(listening.getsockname()).close()


def other_users() -> None:
    for uid in (65534, 4321):
        in_a_child(partial(os.setuid, uid))


def programs_in_cgroups() -> None:
    for group in (IN_POD, SERVICE):
        procs = GROUPS / group / "cgroup.procs"
        subprocess.run(["/bin/sh", "-c", f"echo 0 > {procs}; exec true"], check=True)
