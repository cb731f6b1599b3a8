"""Prototypes from BTF agree with the kernel's sources, the kernel's own reading of BTF, and real calls."""

import os
import re
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.btf.prototypes import Type, parameter
from kprobe_exporter.tracefs.definitions import delete_group
from kprobe_exporter.tracefs.files import MountedTracefs
from tests.conftest import has
from tests.support.system_calls import function

pytestmark = pytest.mark.needs("kprobe_events")

GROUP = "btf_under_test"
INSTANCE = f"instances/{GROUP}"

KNOWN = {
    "vfs_read": "ssize_t(struct file *, char *, size_t, loff_t *)",
    "vfs_write": "ssize_t(struct file *, const char *, size_t, loff_t *)",
    "vfs_getattr": "int(const struct path *, struct kstat *, u32, unsigned int)",
    "kfree": "void(const void *)",
    "filp_close": "int(struct file *, fl_owner_t)",
    function("read"): "long(const struct pt_regs *)",
    "schedule": "void()",
    "seq_printf": "void(struct seq_file *, const char *, ...)",
}
"""Prototypes as the sources of all kernels under test declare them."""

COMPARED = [
    *("vfs_read", "vfs_write", "do_sys_openat2", "tcp_v4_connect", "kfree", "vfs_getattr", "tcp_sendmsg"),
    *("vfs_fallocate", "vfs_mkdir", "ksys_dup3", "kernel_wait4", "vfs_truncate", "capable", "ip_rcv"),
    "set_user_nice",
]


def read(name: str) -> bytes:
    return Path("/sys/kernel/btf", name).read_bytes()


@pytest.fixture
def btf() -> KernelTypes:
    return KernelTypes(read)


@pytest.fixture
def cleaned(files: MountedTracefs, as_found: None) -> Iterator[MountedTracefs]:
    """The kernel's tracefs; all definitions in GROUP are deleted at teardown."""
    yield files
    delete_group(files, GROUP)


def as_shown(fetch: str) -> tuple[str, str]:
    """Return the field type and the print format that an event's ``format`` file shows for a fetch type."""
    kind, bits = fetch[0], int(fetch[1:])
    long = "L" if bits == 64 else ""
    return fetch.replace("x", "u"), {"s": f"%{long}d", "u": f"%{long}u", "x": f"0x%{long}x"}[kind]


def shown(files: MountedTracefs, event: str) -> dict[str, tuple[str, str]]:
    """Return these two for each argument of an event, as the kernel shows them."""
    text = files.read(f"events/{GROUP}/{event}/format").decode()
    fields = re.findall(r"field:(\w+) (\w+);", text)
    formats = dict(re.findall(r'(\w+)=([^\s"]+)', text.partition("print fmt:")[2]))
    return {name: (kind, formats[name]) for kind, name in fields if name in formats}


def test_what_the_sources_declare(btf: KernelTypes) -> None:
    found = btf.prototypes(KNOWN)
    assert {
        name: f"{prototype.returns.name}({', '.join(param.type.name for param in prototype.params)})"
        for name, prototype in found.items()
    } == KNOWN


def test_what_is_read_of_them(btf: KernelTypes) -> None:
    found = btf.prototypes([*KNOWN, "do_sys_openat2", "tcp_v4_connect"])
    assert parameter(found["vfs_read"], "count") == (3, Type("size_t", "u64"))
    assert parameter(found["tcp_v4_connect"], "addr_len") == (3, Type("int", "s32", signed=True))
    returns = {name: prototype.returns for name, prototype in found.items()}
    assert returns["kfree"].fetch is None
    assert returns["vfs_read"][:3] == ("ssize_t", "s64", True)
    assert returns["vfs_getattr"][:3] == ("int", "s32", True)
    assert returns["do_sys_openat2"][:2] in [("long", "s64"), ("int", "s32")]
    assert not any(type_.wide for type_ in returns.values())


def test_the_kernel_reads_the_same_types(cleaned: MountedTracefs, btf: KernelTypes) -> None:
    """The kernel gives parameters the same types: by name where it knows names, else by number and type."""
    found = btf.prototypes(COMPARED)
    assert set(found) == set(COMPARED)
    by_name = has("<argname>")
    for symbol, prototype in found.items():
        expected = {}
        args = []
        for param in prototype.params:
            place = parameter(prototype, param.name)
            assert place, (symbol, param)
            number, type_ = place
            assert type_.fetch
            args.append(f"{param.name}={param.name if by_name else f'$arg{number}:{type_.fetch}'}")
            expected[param.name] = as_shown(type_.fetch)
        cleaned.write("kprobe_events", f"p:{GROUP}/{symbol} {symbol} {' '.join(args)}\n")
        assert shown(cleaned, symbol) == expected, symbol


def test_the_kernel_returns_the_same_types(cleaned: MountedTracefs, btf: KernelTypes) -> None:
    for symbol, prototype in btf.prototypes(COMPARED).items():
        if not (fetch := prototype.returns.fetch):
            continue
        value = "$retval" if has("<argname>") else f"$retval:{fetch}"
        cleaned.write("kprobe_events", f"r:{GROUP}/{symbol} {symbol} value={value}\n")
        assert shown(cleaned, symbol) == {"value": as_shown(fetch)}, symbol


def test_a_real_call(cleaned: MountedTracefs, btf: KernelTypes, tmp_path: Path) -> None:
    """The requested size arrives in the parameter ``count``, and the bytes read in the return value."""
    prototype = btf.prototypes(["vfs_read"])["vfs_read"]
    place = parameter(prototype, "count")
    assert place
    number, type_ = place
    returns = prototype.returns.fetch
    cleaned.write("kprobe_events", f"p:{GROUP}/asked vfs_read count=$arg{number}:{type_.fetch}\n")
    cleaned.write("kprobe_events", f"r:{GROUP}/given vfs_read value=$retval:{returns}\n")
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1234)
    cleaned.mkdir(INSTANCE)
    try:
        cleaned.write(f"{INSTANCE}/set_event_pid", f"{os.getpid()}\n")
        cleaned.write(f"{INSTANCE}/events/{GROUP}/enable", "1")
        with path.open("rb", buffering=0) as file:
            file.read(424_242)
        cleaned.write(f"{INSTANCE}/events/{GROUP}/enable", "0")
        trace = cleaned.read(f"{INSTANCE}/trace").decode()
    finally:
        cleaned.rmdir(INSTANCE)
    assert re.search(r"asked: .* count=424242\n.* given: .* value=1234\n", trace), trace


def test_a_module(btf: KernelTypes) -> None:
    """The prototypes of 9pnet, by which a VM sees this tree, are known; unknown names have none."""
    modules = sorted(path.name for path in Path("/sys/kernel/btf").iterdir() if path.name != "vmlinux")
    if "9pnet" in modules:
        found = btf.prototypes(["p9_client_walk", "vfs_read"], "9pnet")
        assert set(found) == {"p9_client_walk"}
        prototype = found["p9_client_walk"]
        assert prototype.returns == Type("struct p9_fid *", "x64", pointer=True)
        assert parameter(prototype, "nwname") == (2, Type("uint16_t", "u16"))
        assert parameter(prototype, "oldfid") == (1, Type("struct p9_fid *", "x64", pointer=True))
    for module in modules[:3]:
        assert btf.prototypes(["no_such_function"], module) == {}
    assert btf.prototypes(["vfs_read"], "no_such_module") == {}


def test_what_it_costs() -> None:
    """The memory of a parse, which no load changes, is bounded; its time is only printed for the record.

    The file stays, as members may be asked for.
    """
    before = time.perf_counter()
    found = KernelTypes(read).prototypes(COMPARED[:10])
    took = time.perf_counter() - before
    tracemalloc.start()
    try:
        kept = KernelTypes(read)
        kept.prototypes(COMPARED[:10])
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"10 prototypes: {took * 1000:.0f} ms, at most {peak / 1e6:.1f} MB, {after / 1e6:.1f} MB are kept")
    assert len(found) == 10
    assert peak < len(read("vmlinux")) + 3e6
