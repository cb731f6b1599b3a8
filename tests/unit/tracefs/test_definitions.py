"""The kernel's list of dynamic events, and how our events are deleted."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.tracefs import definitions
from kprobe_exporter.tracefs.definitions import (
    Defined,
    delete,
    delete_group,
    list_definitions,
    parse_definitions,
)
from tests.unit.tracefs.conftest import Table


@pytest.mark.parametrize(
    ("line", "group", "event"),
    [
        ("p:kprobes/vfs_read vfs_read", "kprobes", "vfs_read"),
        ("r:g/e vfs_read ret=$retval:s64", "g", "e"),
        ("r1024:g/e vfs_read ret=$retval:s64 comm=$comm:string", "g", "e"),
        ("p:uprobes/e /bin/a:b/c:0x0000000000001234 x=%di:u64", "uprobes", "e"),
        ("e:eprobes/e syscalls.sys_exit_openat ret=$ret:s64", "eprobes", "e"),
        ("f32:fprobes/e vfs_read%return", "fprobes", "e"),
        ("s:synthetic/e u64 x; pid_t pid", "synthetic", "e"),
        ("s:e u64 x", "", "e"),
    ],
)
def test_one_line(line: str, group: str, event: str) -> None:
    assert parse_definitions(f"{line}\n") == [Defined(group, event, line)]


@pytest.mark.parametrize("line", ["", "# comment", "p vfs_read", ":g/e x", "P:g/e x", " p:g/e x"])
def test_what_is_no_definition(line: str) -> None:
    assert parse_definitions(f"{line}\n") == []


def test_only_a_newline_ends_a_line() -> None:
    """A file's name may hold characters that Python treats as the end of a line."""
    line = "p:g/e /tmp/a\x1cp:ours/forged\u2028p:ours/too:0x0"
    assert parse_definitions(f"{line}\n") == [Defined("g", "e", line)]


@given(st.text())
def test_any_text(text: str) -> None:
    lines = text.split("\n")
    assert all(defined.line in lines for defined in parse_definitions(text))


def test_each_event_is_listed_once_in_the_kernels_order(table: Table) -> None:
    table.files["dynamic_events"] = b"p:g/a f\nu:h/a /x:0\np:g/b f\n"
    table.files["kprobe_events"] = b"p:g/a f\np:g/b f\n"
    assert [(d.group, d.event) for d in list_definitions(table)] == [("g", "a"), ("h", "a"), ("g", "b")]


def test_old_kernels_have_no_dynamic_events(table: Table) -> None:
    table.files["kprobe_events"] = b"p:g/a f\n"
    table.files["uprobe_events"] = b"p:g/u /x:0\n"
    assert {d.event for d in list_definitions(table)} == {"a", "u"}


def test_one_command_deletes(table: Table) -> None:
    table.files |= {"dynamic_events": b"", "kprobe_events": b""}
    assert delete(table, "g", "e") is None
    assert table.written == [("dynamic_events", "-:g/e\n")]


def test_what_is_gone_is_as_good_as_deleted(table: Table) -> None:
    table.files |= {"dynamic_events": b"", "kprobe_events": b""}
    table.refused = {"dynamic_events": errno.ENOENT, "kprobe_events": errno.ENOENT}
    assert delete(table, "g", "e") is None
    assert [path for path, _ in table.written] == ["dynamic_events", "kprobe_events"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EBUSY, "another user of tracefs has it enabled (EBUSY)"),
        (errno.EPERM, "the kernel answers EPERM"),
    ],
)
def test_what_stays_is_told_and_not_forced(
    table: Table, code: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "PAUSE", 0)
    table.files |= {"dynamic_events": b"p:ours/a f\np:theirs/b f\n", "kprobe_events": b""}
    table.refused = {"dynamic_events": code}
    assert delete(table, "ours", "a") == reason
    assert table.written == [("dynamic_events", "-:ours/a\n")]
    assert delete_group(table, "ours") == (0, [f"ours/a could not be deleted: {reason}."])


def test_a_group_goes_and_no_other(table: Table) -> None:
    table.files["dynamic_events"] = b"p:ours/a f\np:ours2/b f\np:theirs/ours f\np:ours/c f\n"
    assert delete_group(table, "ours") == (2, [])
    assert table.written == [("dynamic_events", "-:ours/a\n"), ("dynamic_events", "-:ours/c\n")]


def test_an_event_that_is_busy_for_a_moment_goes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Linux 7.2, which frees the trigger of an event after its removal."""
    monkeypatch.setattr(definitions, "PAUSE", 0)
    table.files["dynamic_events"] = b"p:ours/a f\np:ours/b f\n"
    answers = iter([errno.EBUSY, 0, errno.EBUSY, 0])

    def write(path: str, text: str) -> None:
        table.refused = {path: next(answers)}
        Table.write(table, path, text)

    monkeypatch.setattr(table, "write", write)
    assert delete_group(table, "ours") == (2, [])
    assert [text for _, text in table.written] == ["-:ours/a\n", "-:ours/b\n", "-:ours/a\n", "-:ours/a\n"]
