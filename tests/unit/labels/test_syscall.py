"""System calls by name; this machine's header and the tracepoints of saved kernels are the oracles."""

import platform
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.syscall import decoder
from kprobe_exporter.labels.syscall_numbers import TABLES
from kprobe_exporter.model.values import Value

FIXTURES = Path(__file__).parents[2] / "fixtures"
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
DEFINED = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)
# The generic header also has names for 32 bits, for counting, and for architectures that ask for them.
NOT_OURS = {"arch_specific_syscall", "syscalls"}
RENAMED = {"fstatat": "newfstatat", "sync_file_range2": "sync_file_range"}


def defined(header: Path) -> dict[int, str]:
    """Return the first name of each number, which is the one of 64-bit architectures."""
    found: dict[int, str] = {}
    for name, number in DEFINED.findall(header.read_text()):
        if int(number) not in range(403, 424) and name not in NOT_OURS:
            found.setdefault(int(number), RENAMED.get(name, name))
    return found


@pytest.mark.parametrize("architecture", HEADERS)
def test_the_header_has_the_same_names(architecture: str) -> None:
    header = next(filter(Path.exists, map(Path, HEADERS[architecture])), None)
    if header is None:
        pytest.skip(f"no header of {architecture}")
    names, theirs = TABLES[architecture], defined(header)
    assert len(theirs) > 300
    ours = {number: name for number, name in names.items() if number <= max(theirs)}
    added_later = {335, 336} if architecture == "x86_64" else set()
    for number in added_later - theirs.keys():
        del ours[number]
    # A newer header has more system calls than the table.
    assert {number: name for number, name in theirs.items() if number <= max(names)} == ours


TRACEPOINT = re.compile(r"/sys_enter_(\w+)/format$")
TRACED_AS = {
    "arm64_personality": "personality",
    "fadvise64_64": "fadvise64",
    "newfstat": "fstat",
    "newlstat": "lstat",
    "newstat": "stat",
    "newuname": "uname",
    "sendfile64": "sendfile",
    "umount": "umount2",
}
"""Functions of the kernel whose system call has another name."""


@pytest.mark.parametrize(
    ("kernel", "architecture"),
    [("7.2", "x86_64"), ("6.12", "x86_64"), ("5.10", "x86_64"), ("6.12-arm64-16k", "aarch64")],
)
def test_saved_kernel_traces_no_other_calls(kernel: str, architecture: str) -> None:
    with tarfile.open(FIXTURES / f"kernels/{kernel}.tar.xz") as archive:
        traced = {found[1] for name in archive.getnames() if (found := TRACEPOINT.search(name))}
    assert len(traced) > 300
    assert {TRACED_AS.get(name, name) for name in traced} - set(TABLES[architecture].values()) == set()


@pytest.mark.parametrize(
    ("architecture", "value", "name"),
    [
        ("x86_64", 0, "read"),
        ("x86_64", 59, "execve"),
        *(("x86_64", value, "openat") for value in (257, b"257", b"0x101")),
        ("x86_64", 334, "rseq"),
        ("x86_64", 335, "uretprobe"),
        ("x86_64", 336, "uprobe"),
        ("x86_64", 424, "pidfd_send_signal"),
        ("x86_64", 435, "clone3"),
        ("x86_64", 451, "cachestat"),
        ("x86_64", 462, "mseal"),
        ("x86_64", 469, "file_setattr"),
        *(("x86_64", value, None) for value in (337, 423, 512, -1, b"openat", None)),
        ("aarch64", 56, "openat"),
        ("aarch64", 63, "read"),
        ("aarch64", 79, "newfstatat"),
        ("aarch64", 243, "recvmmsg"),
        ("aarch64", 260, "wait4"),
        ("aarch64", 294, "kexec_file_load"),
        ("aarch64", 435, "clone3"),
        ("aarch64", 462, "mseal"),
        *(("aarch64", number, None) for number in (244, 258, 295)),
        ("riscv64", 63, "read"),
        ("riscv64", 38, None),  # renameat, which renameat2 replaces there
        ("riscv64", 258, "riscv_hwprobe"),
        ("riscv64", 259, "riscv_flush_icache"),
    ],
)
def test_names(architecture: str, value: Value, name: str | None) -> None:
    assert decoder(architecture)(value) == name


@pytest.mark.parametrize("architecture", TABLES)
def test_a_name_is_there_once(architecture: str) -> None:
    names = list(TABLES[architecture].values())
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9_]{2,40}", name) for name in names)


@pytest.mark.parametrize(("machine", "name"), [("x86_64", "ioctl"), ("aarch64", "getxattr")])
def test_the_running_architecture(machine: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert decoder(None)({"x86_64": 16, "aarch64": 8}[machine]) == name


def test_a_running_architecture_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    with pytest.raises(ValueError, match=r"no table of 's390x'.* aarch64, riscv64 or x86_64, as in"):
        decoder(None)


@pytest.mark.parametrize("options", ["sparc", "", 64, True, ["x86_64"], {"x86_64": None}, "x" * 1000])
def test_refused(options: object) -> None:
    with pytest.raises(ValueError, match="has no table of") as refused:
        decoder(options)
    assert len(str(refused.value)) < 200


@given(st.integers() | st.integers(-1, 600) | st.binary())
def test_any_value(value: int | bytes) -> None:
    assert decoder("x86_64")(value) in {None, *TABLES["x86_64"].values()}
