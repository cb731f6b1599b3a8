"""Attach strings: what they name, how they are written back, where their errors point."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from tests.unit.grammar.corpus import assert_points_into


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("kprobe:vfs_read", Target(Kind.KPROBE, symbol="vfs_read")),
        ("kprobe:vfs_read+16", Target(Kind.KPROBE, symbol="vfs_read", offset=16)),
        ("kprobe:ext4:f+1", Target(Kind.KPROBE, module="ext4", symbol="f", offset=1)),
        ("kprobe:foo.isra.0", Target(Kind.KPROBE, symbol="foo.isra.0")),
        ("kprobe:.text_x$y", Target(Kind.KPROBE, symbol=".text_x$y")),
        ("kretprobe:do_sys_openat2", Target(Kind.KRETPROBE, symbol="do_sys_openat2")),
        ("kretprobe:8021q:vlan_x", Target(Kind.KRETPROBE, module="8021q", symbol="vlan_x")),
        (
            "tracepoint:syscalls:sys_exit_openat",
            Target(Kind.TRACEPOINT, system="syscalls", event="sys_exit_openat"),
        ),
        ("tracepoint:9p:9p_client_req", Target(Kind.TRACEPOINT, system="9p", event="9p_client_req")),
        ("fentry:vfs_read", Target(Kind.FENTRY, symbol="vfs_read")),
        ("fexit:ext4:f", Target(Kind.FEXIT, module="ext4", symbol="f")),
        ("call:vfs_read", Target(Kind.CALL, symbol="vfs_read")),
        ("syscall:openat", Target(Kind.SYSCALL, symbol="openat")),
        ("uprobe:/bin/sh:main", Target(Kind.UPROBE, path="/bin/sh", symbol="main")),
        ("uprobe:/bin/sh:main+4", Target(Kind.UPROBE, path="/bin/sh", symbol="main", offset=4)),
        ("uprobe:/bin/sh:0x1234", Target(Kind.UPROBE, path="/bin/sh", offset=0x1234)),
        (
            "uretprobe:/lib/a:b.so:memcpy@GLIBC_2.14",
            Target(Kind.URETPROBE, path="/lib/a:b.so", symbol="memcpy@GLIBC_2.14"),
        ),
        ("ucall:/bin/sh:_ZN3fooEv", Target(Kind.UCALL, path="/bin/sh", symbol="_ZN3fooEv")),
        ("kprobe:tcp_send*", Target(Kind.KPROBE, symbol="tcp_send*")),
        ("call:nfs:*[!a-c]?", Target(Kind.CALL, module="nfs", symbol="*[!a-c]?")),
        ("tracepoint:sched:sched_*", Target(Kind.TRACEPOINT, system="sched", event="sched_*")),
    ],
)
def test_parses_and_writes_back(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert str(target) == text


def test_offsets_have_one_spelling() -> None:
    assert str(parse_target("kprobe:f+0x10")) == "kprobe:f+16"
    assert str(parse_target("kprobe:f+0")) == "kprobe:f"


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("", 0, "names no kind"),
        ("vfs_read", 0, "names no kind"),
        ("kprob:vfs_read", 0, "did you mean 'kprobe'"),
        ("k:vfs_read", 0, "write kprobe"),
        ("kr:vfs_read", 0, "write kretprobe"),
        ("zz9:vfs_read", 0, "there are kprobe, kretprobe"),
        ("pair:vfs_read", 0, "a pair is written as"),
        ("kfunc:vfs_read", 0, "write fentry"),
        ("uprobe:sh:main", 7, "begins with '/', nor a library's name"),
        ("uprobe:libc:main", 7, "nor a library's name, such as libc.so.6"),
        ("uprobe:host:libc.so.6:main", 7, "nor a library's name"),
        ("uprobe::libc.so.6:main", 7, "nor a library's name"),
        ("uprobe:lib/libc.so.6:main", 7, "nor a library's name"),
        ("uprobe:/bin/sh", 14, "uprobe:PATH:FUNCTION or"),
        ("uprobe:/bin/sh:", 15, "uprobe:PATH:FUNCTION or"),
        ("uprobe:/my files/x:main", 10, "with a blank in it"),
        ("uprobe:/bin/sh:a*", 16, "cannot have '[*]' here"),
        ("uprobe:/bin/sh:0x12g", 15, "not an offset in bytes"),
        ("uretprobe:/bin/sh:main+4", 22, "a return has no offset"),
        ("call:vfs_read+4", 13, "a call has no offset"),
        ("fentry:vfs_read+4", 15, "an fentry has no offset"),
        ("syscall:openat64x-", 17, "cannot have '-' here"),
        ("syscall:", 8, "name of the system call is missing"),
        ("kprobe:vfs_*+4", 12, "a pattern has no offset"),
        ("kprobe:", 7, "name of the function is missing"),
        ("tracepoint:*:x", 11, "cannot have '[*]' here"),
        ("kprobe:vfs read", 10, "cannot have ' ' here"),
        ("kprobe:vfs_read-4", 15, "cannot have '-' here"),
        ("kprobe:a:b:c", 8, "a module's name cannot have ':'"),
        ("kprobe::vfs_read", 7, "name of the module is missing"),
        ("kprobe:vfs_read+", 16, "not an offset in bytes"),
        ("kprobe:vfs_read+4294967296", 16, "not an offset in bytes"),
        ("kprobe:ext4:f+x", 14, "not an offset in bytes"),
        ("kretprobe:vfs_read+4", 18, "a return has no offset"),
        ("tracepoint:sched", 16, "write tracepoint:SYSTEM:EVENT"),
        ("tracepoint:sched/sched_switch", 29, "write tracepoint:sched:sched_switch"),
        ("tracepoint::x", 11, "name of the tracepoint system is missing"),
        ("tracepoint:sched:", 17, "name of the tracepoint event is missing"),
        ("tracepoint:a:b:c", 14, "cannot have ':' here"),
        ("kprobe:f\n-:x", 8, "a newline"),
        ("kprobe:f#x", 8, "a '#'"),
        ("kprobe:é", 7, "U.00E9"),
        ('kprobe:f"', 8, "cannot have"),
        ("kprobe:" + "f" * 1024, 1024, "longer than"),
    ],
)
def test_errors_point(text: str, at: int, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        parse_target(text)
    assert (caught.value.text, caught.value.column) == (text, at)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        *((text, True) for text in ("kprobe:vfs_*", "kprobe:a?", "call:[ab]c", "tracepoint:sched:*")),
        *((text, False) for text in ("kprobe:vfs_read", "uprobe:/bin/[:x", "syscall:read")),
    ],
)
def test_patterns(text: str, pattern: bool) -> None:
    assert parse_target(text).is_pattern is pattern


@pytest.mark.parametrize(
    ("text", "halves"),
    [
        ("call:ext4:f", ("kprobe:ext4:f", "kretprobe:ext4:f")),
        ("ucall:/bin/sh:main", ("uprobe:/bin/sh:main", "uretprobe:/bin/sh:main")),
        ("syscall:read", ("tracepoint:syscalls:sys_enter_read", "tracepoint:syscalls:sys_exit_read")),
    ],
)
def test_a_call_has_two_halves(text: str, halves: tuple[str, str]) -> None:
    assert tuple(map(str, parse_target(text).halves)) == halves


def test_a_pair_names_its_parts() -> None:
    parts = tuple(map(parse_target, ("tracepoint:a:b", "kprobe:f", "tracepoint:a:c")))
    assert str(Target(Kind.PAIR, parts=parts)) == "tracepoint:a:b | kprobe:f -> tracepoint:a:c"


@given(
    st.one_of(
        st.text(), st.from_regex(r"(kprobe|kretprobe|tracepoint|u?call|uprobe|syscall):[a-z/9:.+*x0 -]*")
    )
)
def test_noise(text: str) -> None:
    try:
        target = parse_target(text)
    except GrammarError as error:
        assert_points_into(text, error)
    else:
        assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    ("path", "symbol"),
    [
        ("/bin/x", "app::Foo::bar"),
        ("/bin/x", "app::Foo::bar(std::string const&, int) const"),
        ("/bin/x", "app::(anonymous namespace)::f"),
        ("/bin/x", "A::operator+"),
        ("/bin/x", "f[abi:cxx11](int)"),
        ("/proc/1/root:libx.so.1", "main::'lambda'()::operator()() const"),
        ("/bin/go", "net/http.(*Server).Serve"),
        ("/bin/go", "main.Map[go.shape.int].Get"),
        ("/bin/go", "main.Map[...]"),
        ("/bin/r", "<alloc::vec::Vec<T> as core::fmt::Debug>::fmt"),
    ],
)
def test_name_as_people_write_it(path: str, symbol: str) -> None:
    for offset in (0, 4):
        text = f"uprobe:{path}:{symbol}" + (f"+{offset}" if offset else "")
        target = parse_target(text)
        assert (target.path, target.symbol, target.offset) == (path, symbol, offset)
        assert str(target) == text
        assert not target.is_pattern
    assert parse_target(f"ucall:{path}:{symbol}").symbol == symbol
