"""Patterns that select places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.symbols.listing.query import parse_query


@pytest.mark.parametrize(
    ("text", "kind", "owner", "name", "exact"),
    [
        ("*", None, "", "*", False),
        ("", None, "", "*", False),
        ("vfs_read", None, "", "vfs_read", True),
        ("tcp_*", None, "", "tcp_*", False),
        ("sched:*", None, "sched", "*", False),
        ("sched:", None, "sched", "*", False),
        ("nf_*:x", None, "nf_*", "x", False),
        ("kprobe:", Kind.KPROBE, "", "*", False),
        ("kprobe:vfs_read", Kind.KPROBE, "", "vfs_read", True),
        ("kretprobe:ext4:e?", Kind.KRETPROBE, "ext4", "e?", False),
        ("tracepoint:sched:sched_switch", Kind.TRACEPOINT, "sched", "sched_switch", True),
        ("tracepoint:[s]*:*", Kind.TRACEPOINT, "[s]*", "*", False),
        ("syscall:open*", Kind.SYSCALL, "", "open*", False),
        ("uprobe:/bin/bash:readline", Kind.UPROBE, "/bin/bash", "readline", True),
        ("ucall:/bin/bash", Kind.UCALL, "/bin/bash", "*", False),
        ("pair:x", None, "pair", "x", True),
        ("kprobes:x", None, "kprobes", "x", True),
    ],
)
def test_a_wish(text: str, kind: Kind | None, owner: str, name: str, exact: bool) -> None:
    query = parse_query(text)
    assert (query.kind, query.owner, query.name, query.is_exact) == (kind, owner, name, exact)
    assert query.text == text


@pytest.mark.parametrize(
    ("text", "owner", "name", "matches"),
    [
        ("*", "", "vfs_read", True),
        ("vfs_*", "", "vfs_read", True),
        ("vfs_*", "ext4", "vfs_read", True),
        ("vfs_*", "", "xvfs_read", False),
        ("VFS_*", "", "vfs_read", False),
        ("ext?:*", "ext4", "x", True),
        ("ext?:*", "", "x", False),
        ("sched:[!s]*", "sched", "sched_switch", False),
    ],
)
def test_what_matches(text: str, owner: str, name: str, matches: bool) -> None:
    assert parse_query(text).matcher()(owner, name) is matches


@given(st.text())
def test_any_text_is_a_wish(text: str) -> None:
    query = parse_query(text)
    query.matcher()(query.owner, query.name)
