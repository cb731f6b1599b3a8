"""Whether a function can be probed, according to the kernel's lists, any of which may be missing."""

import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.symbols.functions import Answer, Functions
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import running_kernel
from tests.support.function_lists import BLACKLIST, MODULES, NAMES, lists_of

TRACEABLE = b"""vfs_read
vfs_write
do_sys_open
do_sys_openat2
kernel_clone
tcp_retransmit_skb
twice
twice
keeps_off
__do_sys_getppid
shrink.isra.0
ext4_open [ext4]
shared_name [ext4]
__ftrace_invalid_address___42
"""
SYMBOLS = b"""ffffffff81000010 T vfs_read
ffffffff81000020 T vfs_write
ffffffff81000030 T do_sys_open
ffffffff81000040 T do_sys_openat2
ffffffff81000050 t twice
ffffffff81000060 t twice
ffffffff81000070 T keeps_off
ffffffff81000080 t __do_sys_getppid
ffffffff81000080 T __x64_sys_getppid
ffffffff81000090 T notraced
ffffffff810000a0 D jiffies
ffffffff810000a4 t vfs_write.cold
ffffffff810000a8 t notraced.cold
ffffffff810000b0 t number_of_same_symbols
ffffffffc0000010 t ext4_open\t[ext4]
ffffffffc0000020 t notraced_there\t[ext4]
"""


def functions(
    traceable: bytes | None = TRACEABLE,
    symbols: bytes | None = SYMBOLS,
    blacklist: bytes | None = BLACKLIST,
    modules: bytes | None = MODULES,
    names: Iterable[str] = NAMES,
) -> Functions:
    return Functions(lists_of(traceable, symbols, blacklist, modules), names)


@pytest.mark.parametrize(
    ("name", "can", "why"),
    [
        ("vfs_read", True, ""),
        ("ext4_open", True, ""),
        ("ext4:ext4_open", True, ""),
        ("__x64_sys_getppid", True, "it is also called __do_sys_getppid"),
        ("do_sys_open", True, "it will never fire: open(2) does not go through it, name do_sys_openat2"),
        ("twice", False, "2 functions have this name, and this kernel refuses to choose"),
        ("keeps_off", False, "blacklist"),
        ("notraced", False, "notrace"),
        ("ext4:notraced_there", False, "notrace"),
        ("vfs_write.cold", True, "it is a part of vfs_write that the compiler set apart"),
        ("notraced.cold", False, "notrace"),
        ("jiffies", False, "data"),
        ("vfs_raed", False, "inlined it, or its module is not loaded, did you mean 'vfs_read'?"),
        ("_do_fork", False, ": kernel_clone does its work today"),
        ("shrink", False, ": the compiler made 'shrink.isra.0' of it"),
        ("nothing_like_it", False, "or its module is not loaded: kprobe:MODULE:nothing_like_it waits for it"),
        ("ext4:vfs_read", False, "the module 'ext4' has no such function: it is one of the kernel itself"),
        ("xfs:ext4_open", False, "it is one of the module 'ext4'"),
        ("xfs:nothing_like_it", False, "the module 'xfs' has no such function"),
        ("nfs:nfs_open", True, "armed when the module 'nfs' is loaded"),
        ("nfs:vfs_read", True, "the kernel itself has a function of this name, without 'nfs:'"),
        ("vfs_read+16", None, "only trying tells whether an instruction begins at this offset"),
        ("notraced+16", False, "notrace"),
    ],
)
def test_a_function(name: str, can: bool | None, why: str) -> None:
    module, _, rest = name.rpartition(":")
    symbol, _, offset = rest.partition("+")
    found = functions().answer(module, symbol, int(offset or 0))
    assert found.can is can
    assert why in found.why
    assert bool(found.why) == bool(why)


def test_older_kernels_take_one_of_several() -> None:
    symbols = SYMBOLS.replace(b"number_of_same_symbols", b"another")
    assert functions(symbols=symbols).answer("", "twice", 0).can is None
    assert functions(symbols=None).answer("", "twice", 0).can is None


@pytest.mark.parametrize(
    ("lists", "symbol", "can"),
    [
        ({"symbols": None}, "vfs_read", True),
        ({"symbols": None}, "nothing_like_it", False),
        ({"traceable": None}, "vfs_read", None),
        ({"traceable": None}, "nothing_like_it", False),
        ({"traceable": None}, "jiffies", False),
        ({"traceable": None, "symbols": None}, "vfs_read", None),
        ({"blacklist": None}, "keeps_off", True),
        ({"modules": None}, "ext4_open", True),
    ],
)
def test_a_list_that_cannot_be_read(lists: dict[str, Any], symbol: str, can: bool | None) -> None:
    assert functions(**lists).answer("", symbol, 0).can is can


@pytest.mark.parametrize(
    ("symbols", "name", "can"),
    [(SYMBOLS, "jiffies", True), (SYMBOLS, "jiffes", None), (None, "jiffies", None)],
)
def test_variable(symbols: bytes | None, name: str, can: bool | None) -> None:
    found = functions(symbols=symbols, names=[name]).variable(name)
    assert found.can is can
    assert (name in found.why) == (can is not True)


def test_without_modules_a_modules_function_waits() -> None:
    assert functions(modules=None).answer("ext4", "ext4_open", 0).why.startswith("armed when")


def test_addresses_that_are_hidden() -> None:
    """Without CAP_SYSLOG every address is 0, so a function's alias cannot be told from a notrace function."""
    hidden = b"".join(b"0" * 16 + line[16:] for line in SYMBOLS.splitlines(keepends=True))
    for symbol in ("notraced", "__x64_sys_getppid"):
        assert functions(symbols=hidden).answer("", symbol, 0).can is None
    assert functions(symbols=hidden).answer("", "vfs_read", 0) == Answer(True)


@pytest.mark.parametrize(
    ("symbols", "can"),
    [
        (SYMBOLS, False),
        (SYMBOLS + b"ffffffff81000100 t eprobe_register\n", True),
        (SYMBOLS + b"ffffffff81000100 t __pfx_eprobe_register\n", False),
        (None, None),
    ],
)
def test_eprobes(symbols: bytes | None, can: bool | None) -> None:
    assert functions(symbols=symbols).eprobes().can is can


@pytest.mark.parametrize("symbol", ["", ".", "a" * 1000, "$", "vfs_read\n", "vfs_read [ext4]", "é"])
def test_names_that_no_kernel_has(symbol: str) -> None:
    assert functions(names=[symbol]).answer("", symbol, 0).can is False


def test_boot_code_where_addresses_are_hidden() -> None:
    """kallsyms is sorted by address, whether or not it shows them; a damaged line is left out."""
    symbols = b"0 T _text\n0  t\n0 t notraced\n0 T _sinittext\n0 t vfs_raed\n0 T _einittext\n0 t twice\n"
    known = functions(symbols=symbols)
    assert known.answer("", "vfs_raed", 0) == (False, "it ran at boot alone, and its memory has been freed")
    assert known.answer("", "notraced", 0).can is None


def test_lines_that_are_none() -> None:
    odd = b"\n\n \xff\xfe\n[]\n"
    known = functions(odd, odd + b"1 T\n", odd, MODULES, names=["x"])
    assert known.answer("", "x", 0).can is False
    assert known.answer("ext4", "x", 0).can is False


def test_the_files(tmp_path: Path) -> None:
    """Each list is read from its place in the kernel's files, and a missing file does no harm."""
    tracefs, root = tmp_path / "tracing", tmp_path / "root"
    known = Functions(Lists.of(running_kernel(ReadOnlyTracefs(tracefs), root)), NAMES)
    assert known.answer("", "vfs_read", 0).can is None
    for path, content in (
        (tracefs / "available_filter_functions", TRACEABLE),
        (root / "proc/kallsyms", SYMBOLS),
        (root / "sys/kernel/debug/kprobes/blacklist", BLACKLIST),
        (root / "proc/modules", MODULES),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    known = Functions(Lists.of(running_kernel(ReadOnlyTracefs(tracefs), root)), NAMES)
    assert known.answer("", "vfs_read", 0).can
    assert known.answer("", "keeps_off", 0).can is False
    assert known.answer("xfs", "vfs_read", 0).can is False


INSTALLED = b"""kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko
kernel/fs/fuse/fuse.ko.xz:
kernel/fs/fuse/fuse-io.ko.zst:
"""
EXPORTS = b"# Aliases\nalias symbol:nfs_open nfs-v4\nalias symbol:nfs_openx x\nalias symbol:ext4_get ext4\n"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "fuse_read",
            ", or it is one of the module 'fuse', which is not loaded: kprobe:fuse:fuse_read",
        ),
        ("fuse_io_read", ", or it is one of the module 'fuse_io', which is not loaded"),
        (
            "nfs_open",
            "; the module 'nfs_v4' has one and is not loaded, 'kprobe:nfs_v4:nfs_open' is armed",
        ),
        ("ext4_read", ", or its module is not loaded: kprobe:MODULE:ext4_read waits for it"),
        ("ext4_get", ", or its module is not loaded: kprobe:MODULE:ext4_get waits for it"),
    ],
)
def test_modules_that_are_installed_and_not_loaded(tmp_path: Path, name: str, why: str) -> None:
    tracefs, root = tmp_path / "tracing", tmp_path / "root"
    modules = root / "lib/modules" / platform.release()
    for path, content in (
        (tracefs / "available_filter_functions", TRACEABLE),
        (root / "proc/modules", MODULES),
        (modules / "modules.dep", INSTALLED),
        (modules / "modules.symbols", EXPORTS),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    kernel = running_kernel(ReadOnlyTracefs(tracefs), root)
    assert why in Functions(Lists.of(kernel), [name]).answer("", name, 0).why
    (root / "proc/modules").unlink()
    answer = Functions(Lists.of(kernel), [name]).answer("", name, 0)
    assert f"kprobe:MODULE:{name} waits for it" in answer.why
