"""Attach strings: what they name, how they are written back, where their errors point."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import SUPPORTED, Kind, Target, parse_target
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
        (
            "tracepoint:9p:9p_client_req",
            Target(Kind.TRACEPOINT, system="9p", event="9p_client_req"),
        ),
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
        ("uprobe:/bin/sh:main", 0, "does not do uprobe probes yet, only kprobe"),
        ("call:vfs_read", 0, "does not do call probes yet"),
        ("kprobe:", 7, "name of the function is missing"),
        ("kprobe:vfs_*", 11, "patterns are not done yet"),
        ("tracepoint:sched:*", 17, "patterns are not done yet"),
        ("kprobe:vfs read", 10, "cannot have ' ' here"),
        ("kprobe:vfs_read-4", 15, "cannot have '-' here"),
        ("kprobe:a:b:c", 8, "a module's name cannot have ':'"),
        ("kprobe::vfs_read", 7, "name of the module is missing"),
        ("kprobe:vfs_read+", 16, "no offset in bytes"),
        ("kprobe:vfs_read+4294967296", 16, "no offset in bytes"),
        ("kprobe:ext4:f+x", 14, "no offset in bytes"),
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


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in SUPPORTED])
def test_other_kinds_are_recognised(kind: Kind) -> None:
    with pytest.raises(GrammarError, match="yet"):
        parse_target(f"{kind}:vfs_read")


@given(st.one_of(st.text(), st.from_regex(r"(kprobe|kretprobe|tracepoint):[a-z9:.+*x0 -]*")))
def test_noise(text: str) -> None:
    try:
        target = parse_target(text)
    except GrammarError as error:
        assert_points_into(text, error)
    else:
        assert parse_target(str(target)) == target
