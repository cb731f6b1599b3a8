"""A kernel's lists as files, in which each reason why a function cannot be probed occurs once."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kprobe_exporter.symbols.listing.kernel import KernelPlaces

FILES: Mapping[str, str] = {
    "tracing/kprobe_events": "",
    "tracing/dynamic_events": "p:tool/watch vfs_read\n",
    "tracing/README": "\t f[:[<group>/][<event>]] <func-name>[%return] [<args>]\n",
    "tracing/available_filter_functions": "".join(
        f"{line}\n"
        for line in (
            *("vfs_read", "vfs_write", "vfs_open", "keeps_off", "twice", "twice", "alike", "do_sys_open"),
            *("do_sys_openat2", "kernel_clone", "__do_sys_getppid", "shrink.isra.0", "tcp_v4_rcv.cold"),
            *("__ftrace_invalid_address___42", "ext4_open [ext4]", "ext4_read [ext4]", "alike [ext4]"),
            *("xfs_open [xfs]", "same [xfs]", "same [xfs]", "\xff\xfe", ""),
        )
    ),
    "tracing/available_events": "sched:sched_switch\nsched:sched_wakeup\nsyscalls:sys_enter_openat\n"
    "syscalls:sys_exit_openat\nsyscalls:sys_enter_read\nsyscalls:sys_exit_read\next4:ext4_read\n"
    "tool:watch\nno line\n",
    "root/proc/kallsyms": "".join(
        f"{0xFFFFFFFF81000000 + 16 * at:x} {line}\n"
        for at, line in enumerate(
            (
                *("T _text", "T vfs_read", "T vfs_write", "T vfs_open", "T keeps_off", "t twice", "t twice"),
                *("t alike", "T do_sys_open", "T kernel_clone", "t do_sys_openat2", "t shrink.isra.0"),
                *("t notraced", "D jiffies", "t ext4_open\t[ext4]", "t ext4_read\t[ext4]"),
                *("t alike\t[ext4]", "t xfs_open\t[xfs]", "t same\t[xfs]", "t same\t[xfs]"),
                *("t vfs_open\t[bpf]", "t vfs_write\t[__builtin__kprobes]"),
            )
        )
    ),
    "root/sys/kernel/debug/kprobes/blacklist": "0xffffffff81000040-0xffffffff81000048\tkeeps_off\n",
    "root/proc/modules": "ext4 1130496 1 - Live 0x0\nxfs 1 0 - Live 0x0\n",
    "root/proc/sys/kernel/ftrace_enabled": "1\n",
}

Make = Callable[..., KernelPlaces]


@pytest.fixture
def kernel(tmp_path: Path) -> Make:
    """Return a function that writes FILES, without some or with others, below ``tracing`` and ``root``."""

    def make(without: tuple[str, ...] = (), **others: str) -> KernelPlaces:
        files = {path: text for path, text in FILES.items() if path not in without}
        for path, text in (files | others).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text, errors="surrogateescape", encoding="latin-1")
        return KernelPlaces(tmp_path / "tracing", tmp_path / "root")

    return make
