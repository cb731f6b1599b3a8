"""Names of kernel functions that differ between architectures and between kernels."""

import platform
from functools import cache
from pathlib import Path

import pytest

from kprobe_exporter.symbols.lists import WRAPPERS
from tests.vm.report import OTHER_MACHINE

BLACKLISTED = {"x86_64": "do_int3", "aarch64": "do_mem_abort"}[platform.machine()]
"""A function that the kernel keeps kprobes off."""

only_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason=OTHER_MACHINE)
"""A mark for tests that name a register or an instruction of one architecture."""

ENTRIES = ("do_syscall_64", "el0_svc")
"""The function that calls those of system calls: of x86-64, of arm64."""


@cache
def functions() -> frozenset[str]:
    """Return the names of all symbols of this kernel and its modules."""
    return frozenset(line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines())


def function(call: str) -> str:
    """Return the name of the function behind a system call, such as __x64_sys_getppid of getppid."""
    names = [f"{wrapper}sys_{call}" for wrapper in (*WRAPPERS, "")]
    return next(name for name in names if name in functions())


def entry() -> str:
    """Return the name of the function that calls those of system calls."""
    return next(name for name in ENTRIES if name in functions())


def of_fsync() -> str:
    """Return a function that each call of fsync(2) enters once, and that returns the call's errors as int.

    Linux 7.2 has a vfs_fsync_range through which fsync(2) does not go.
    """
    return "do_fsync" if "do_fsync" in functions() else "vfs_fsync_range"


def of_closed_port() -> str:
    """Return the function that drops a UDP datagram for a port without a socket."""
    return "__udp4_lib_rcv" if "__udp4_lib_rcv" in functions() else "udp_rcv"
