"""Prototypes and fields, as C declares them."""

from pathlib import Path

import pytest

from kprobe_exporter.btf.prototypes import Param, Prototype, Type
from kprobe_exporter.grammar.event_format import parse_format
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.symbols.listing.details import Details, declaration, signature
from tests.support.fake_tracefs import EXEC_FORMAT, EXIT_OPENAT_FORMAT

EXEC = parse_target("tracepoint:sched:sched_process_exec")
OPENAT = parse_target("syscall:openat")


def prototype(returns: str, *params: tuple[str, str]) -> Prototype:
    made = (Param(name, Type(kind, "u64"), at) for at, (kind, name) in enumerate(params, 1))
    return Prototype("f", tuple(made), Type(returns, "s64"))


@pytest.mark.parametrize(
    ("returns", "params", "written"),
    [
        ("void", [], "void f(void)"),
        ("int", [("int", "x")], "int f(int x)"),
        ("struct file *", [("const char *", "name"), ("...", "")], "struct file *f(const char *name, ...)"),
        ("int", [("int (*)(void *)", "call")], "int f(int (*call)(void *))"),
        ("int", [("void (*(*)(int))(long)", "call")], "int f(void (*(*call)(int))(long))"),
        ("int", [("char (*)[4]", "rows")], "int f(char (*rows)[4])"),
        ("int", [("char *[4]", "rows")], "int f(char *rows[4])"),
        ("int", [("int (**)(void (*)(int))", "calls")], "int f(int (**calls)(void (*)(int)))"),
        ("int", [("int (*const)(void)", "call")], "int f(int (*const call)(void))"),
        ("void (*)(int)", [("long", "")], "void (*f(long))(int)"),
    ],
)
def test_a_signature(returns: str, params: list[tuple[str, str]], written: str) -> None:
    assert signature(prototype(returns, *params)) == written


@pytest.mark.parametrize(
    ("field", "written"),
    [
        ("char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;", "char prev_comm[16]"),
        ("__data_loc char[] filename;\toffset:8;\tsize:4;\tsigned:0;", "__data_loc char[] filename"),
        ("pid_t pid;\toffset:8;\tsize:4;\tsigned:1;", "pid_t pid"),
        ("const char * name;\toffset:8;\tsize:8;\tsigned:0;", "const char * name"),
    ],
)
def test_a_field(field: str, written: str) -> None:
    [found] = parse_format(f"name: e\nID: 1\nformat:\n\tfield:{field}\n").fields.values()
    assert declaration(found) == written


@pytest.fixture
def tracefs(tmp_path: Path) -> Path:
    for event, text in (
        ("sched/sched_process_exec", EXEC_FORMAT),
        ("syscalls/sys_exit_openat", EXIT_OPENAT_FORMAT),
        ("sched/damaged", "\xff"),
    ):
        place = tmp_path / "events" / event
        place.mkdir(parents=True)
        (place / "format").write_text(text)
    return tmp_path


def test_fields_of_events(tracefs: Path) -> None:
    gone = parse_target("tracepoint:sched:gone")
    damaged = parse_target("tracepoint:sched:damaged")
    found, notes = Details(tracefs, tracefs).of([EXEC, OPENAT, gone, damaged])
    assert found[EXEC] == ["__data_loc char[] filename", "pid_t pid", "pid_t old_pid"]
    assert found[OPENAT] == ["long ret"]
    assert found[gone] == found[damaged] == []
    assert notes == []


def test_a_kernel_without_btf(tracefs: Path) -> None:
    found, notes = Details(tracefs, tracefs).of([parse_target("kprobe:vfs_read"), EXEC])
    assert list(found) == [EXEC]
    assert notes == [f"no prototypes: there is no {tracefs}/sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)"]


def test_damaged_btf(tracefs: Path) -> None:
    (tracefs / "sys/kernel/btf").mkdir(parents=True)
    (tracefs / "sys/kernel/btf/vmlinux").write_bytes(b"nothing")
    found, notes = Details(tracefs, tracefs).of([parse_target("kprobe:vfs_read")])
    assert found == {}
    assert notes[0].startswith("no prototypes: the kernel's BTF cannot be read")
