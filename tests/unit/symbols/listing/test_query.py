"""Patterns that select places, and the functions of a compiled program that they select."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.target import Kind, parse_target
from kprobe_exporter.symbols.listing.query import Query, file_places, parse_query, usdt_places
from kprobe_exporter.util.rooted_path import ProbedFiles
from tests.support.compiling import compiled
from tests.support.programs import file_offset


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


SOURCE = """
int shared(void) { return 1; }
int alone(int x) { return x; }
__attribute__((visibility("default"))) int strange(void) __asm__("\\"go.(*T).f\\"");
int strange(void) { return 2; }
static __attribute__((noinline, used)) int hidden(int x) { return 3 * x; }
int data = 3;
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("elf") / "lib.so", SOURCE, "-shared", "-fPIC")


def places(query: Query) -> list[str]:
    with closing(ProbedFiles()) as files:
        return [*file_places(query, files)]


def names(query: Query) -> list[str]:
    return [parse_target(place).symbol for place in places(query)]


def test_all_that_an_attach_string_can_hold(library: Path) -> None:
    found = places(Query("*", Kind.UPROBE, str(library), "*"))
    assert {f"uprobe:{library}:{name}" for name in ("shared", "alone")} <= set(found)
    assert found == sorted(str(parse_target(place)) for place in found)
    assert f"uprobe:{library}:go.(*T).f" in found  # a name in Go


def test_a_pattern(library: Path) -> None:
    assert names(parse_query(f"uprobe:{library}:[as]*[!a]")) == ["alone", "shared"]
    assert places(parse_query(f"uretprobe:{library}:al*")) == [f"uretprobe:{library}:alone"]


def test_an_offset_is_named(library: Path, tmp_path: Path) -> None:
    alone = file_offset(str(library), "alone")
    for more, place in ((0, "alone"), (1, "alone+1")):
        query = parse_query(f"uprobe:{library}:{alone + more:#x}")
        assert places(query) == [f"uprobe:{library}:{place}"]
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, library], check=True)
    local = file_offset(str(library), "hidden")
    query = Query("", Kind.UPROBE, str(stripped), str(local))
    assert places(query) == [f"uprobe:{stripped}:{local:#x}"]
    with pytest.raises(ProbeRefused, match="is not in its code"):
        places(parse_query(f"uprobe:{library}:0x1"))
    with pytest.raises(
        ProbeRefused, match=f"^only a uprobe sits at an offset in a file: write uprobe:{library}:0x10.$"
    ):
        places(parse_query(f"uretprobe:{library}:0x10"))


def test_a_library_by_its_name() -> None:
    assert places(parse_query("ucall:libc.so.6:getaddrinf[o]")) == ["ucall:libc.so.6:getaddrinfo"]
    root = f"/proc/{os.getpid()}/root"
    query = Query("getaddrinfo", Kind.UPROBE, f"{root}:libc.so.6", "getaddrinfo")
    assert places(query) == [f"uprobe:{root}:libc.so.6:getaddrinfo"]


def test_one_function_of_a_relative_path(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(library.parent)
    assert places(Query("alone", Kind.UCALL, "lib.so", "alone")) == [f"ucall:{library}:alone"]
    assert places(Query("al*", Kind.UPROBE, "lib.so", "al*")) == [f"uprobe:{library}:alone"]


def test_path_with_brackets_is_no_pattern(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "a[1]*" / "lib.so"
    path.parent.mkdir()
    path.symlink_to(library)
    for name in ("alone", "alone+1", "al*"):
        placed = [f"uprobe:{path}:{name.replace('*', 'one')}"]
        assert places(Query(name, Kind.UPROBE, str(path), name)) == placed
    with pytest.raises(ProbeRefused, match="has no function 'aloen', did you mean 'alone'"):
        places(Query("aloen", Kind.UPROBE, str(path), "aloen"))
    with closing(ProbedFiles()) as files, pytest.raises(GrammarError, match=r"a\[1\]\*/lib\.so"):
        usdt_places(parse_query(f"usdt:{path}:none:none"), files)


def test_parent_behind_a_link(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel goes to the parent of the directory to which the link leads."""
    below = library.parent / "below"
    below.mkdir()
    (tmp_path / "link").symlink_to(below)
    (tmp_path / library.name).write_text("another file, whose path is the shorter text")
    monkeypatch.chdir(tmp_path)
    for path in (f"link/../{library.name}", f"{tmp_path}/link/../{library.name}"):
        found = places(Query("alone", Kind.UPROBE, path, "alone"))
        assert found == [f"uprobe:{tmp_path}/link/../{library.name}:alone"]
    found = places(Query("alone", Kind.UPROBE, f"{below}/../{library.name}", "alone"))
    assert found == [f"uprobe:{library}:alone"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aloen", "has no function 'aloen', did you mean 'alone'?"),
        ("data", "is data, no function."),
        ("al[0-9]*", "; one begins with 'al': alone."),
        ("_nothing_*x", "matches none of the "),
    ],
)
def test_why_not(library: Path, name: str, said: str) -> None:
    with pytest.raises(ProbeRefused) as error:
        places(Query(name, Kind.UPROBE, str(library), name))
    assert said in str(error.value)


def test_no_program(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    for path, said in (
        (tmp_path / "gone", "there is no file"),
        (script, "a script"),
        (Path("/a b"), "blank"),
    ):
        with pytest.raises(GrammarError, match=said):
            places(Query("*", Kind.UPROBE, str(path), "*"))


def test_this_interpreter() -> None:
    """Each function that is listed can be attached, for any symbol names of this interpreter."""
    path = os.path.realpath(sys.executable)
    for place in places(Query("*", Kind.UPROBE, path, "*")):
        assert parse_target(place).path == path
