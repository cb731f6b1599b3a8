"""Every target accepts some of its inputs, refuses some, and crashes on none."""

import re
import time
from math import inf
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import elf_files
from tests.fuzz.__main__ import TARGETS, main
from tests.fuzz.document import END, START, merged
from tests.fuzz.material import crafted
from tests.fuzz.proc_texts import READERS, mutator
from tests.fuzz.run import Limit, Result, fuzz
from tests.fuzz.target import ROOT, Target
from tests.support.hist_texts import NAMES as HIST_NAMES

INPUTS = 200
SECONDS = 120.0
MOST_SECONDS = 5.0

# Inputs that once took minutes, or crashed a parser with an undocumented exception.
MENDED = [
    ("confinement", b"\x96\n"),
    ("format", b"name: sys_exit_x\nID: 5\n\tfield:long other;\toffset:16;\tsize:8;\tsigned:1;\n"),
    ("format", b"name: x\nID: " + b"9" * 5000 + b"\n"),
    ("format", b"name: x\nID: 5\n\tfield:long y;\toffset:" + b"9" * 5000 + b";\tsize:8;\tsigned:1;\n"),
    ("format", b"name: x\nID: 5\n\tfield:char y[" + b"9" * 5000 + b"];\toffset:8;\tsize:8;\tsigned:1;\n"),
    ("format", b'name: x\nID: 5\nprint fmt: "%d", ' + b"(" * 30_000 + b"REC->y" + b")" * 30_000),
    ("header_page", b"\tfield: u64 timestamp;\toffset:" + b"9" * 5000 + b";\tsize:8;\tsigned:0;\n"),
    ("hist", HIST_NAMES.replace(b"keys=comm,", b"keys=comm.x,")),
    ("stats", b"entries: " + b"9" * 5000 + b"\n"),
    ("stat", b"7 (x) S 1 1 1 0 -1 4\x8c4 0 0 0 0 0 0 0 0 20 0 1 0 1234 0 0\n"),
    ("stat", b"7 (x) S 1 1 1 0 -1 44 0 0 0 0 0 0 0 0 20 0 1 0 12x4 0 0\n"),
    ("status", b"Tgid:\t" + b"9" * 5000 + b"\n"),
    ("tgid", b"Tgid:\t" + b"9" * 5000 + b"\n"),
    ("cgroup", b"9" * 5000 + b"::/x\n"),
    ("own_cgroup", b"9" * 5000 + b"::/x\n"),
]


def read(what: str, data: bytes, directory: Path) -> bool:
    try:
        return bool(READERS[what].read(data, directory))
    except READERS[what].refusals:
        return False


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    result = fuzz(TARGETS[name], 1, Limit(SECONDS, INPUTS), said.append, tmp_path)
    assert not [line for line in said if "0 crashes" not in line]  # one every two seconds, on a busy machine
    assert (result.inputs, result.crashes) == (INPUTS, ())
    assert result.accepted > INPUTS // 50
    assert result.refused > INPUTS // 50


@pytest.mark.parametrize("what", READERS)
def test_a_parser_finds_something_in_what_it_is_made_for(what: str, tmp_path: Path) -> None:
    reader = READERS[what]
    found = [read(what, piece, tmp_path) for piece in reader.material()]
    assert any(found)
    assert mutator(what)(Random(1)) == mutator(what)(Random(1))


@pytest.mark.parametrize(("what", "data"), MENDED)
def test_what_once_crashed(what: str, data: bytes, tmp_path: Path) -> None:
    began = time.thread_time()
    read(what, data, tmp_path)
    assert time.thread_time() - began < MOST_SECONDS


def test_elf_input_after_one_over_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent refuses a file for a minute after that, and all inputs are one file."""
    data = crafted()
    with monkeypatch.context() as patched:
        patched.setattr("kprobe_exporter.elf.budget.MOST_BYTES", 4)
        assert not elf_files.read(data, tmp_path)
    assert elf_files.read(data, tmp_path)


def test_total_over_targets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The last target goes on until all have so many inputs together, however long that takes."""
    limits = []

    def ran(target: Target, first: int, limit: Limit, _: object) -> Result:
        limits.append(limit)
        return Result(target.name, first, 300, 300, 0, 1.0, 0.1, ())

    monkeypatch.setattr("tests.fuzz.__main__.fuzz", ran)
    monkeypatch.setattr("sys.argv", [*"fuzz --seconds 9 --seed 1 --total 1000 pages elf trace-text".split()])
    assert main() == 0
    assert limits == [Limit(9.0), Limit(9.0), Limit(inf, 400)]
    assert "trace-text" in capsys.readouterr().out


def test_the_document_has_every_target() -> None:
    document = (ROOT / "docs/reliability.md").read_text()
    written = document.partition(START)[2].partition(END)[0]
    assert re.findall(r"^\| ([a-z-]+) \| [0-9]", written, re.MULTILINE) == list(TARGETS)
    assert merged(document, [], list(TARGETS)) == document
