"""An ordinary large program, with a million symbols, is listed, searched and named.

How long that takes is a row of ``make bench ARGS="many"``.
"""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kprobe_exporter.elf import functions, locate
from kprobe_exporter.elf.find import functions_at
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.util.rooted_path import ProbedFiles
from tests.support.counted_reads import Reads
from tests.support.large_elf import COUNT, large_program, name, offset, written_name

MIB = 300

MEASURED = (
    "import pathlib, runpy, sys\n"
    "sys.argv = ['kprobe_exporter', *sys.argv[1:]]\n"
    "try:\n    runpy.run_module('kprobe_exporter', run_name='__main__')\n"
    "finally:\n    status = pathlib.Path('/proc/self/status').read_text()\n"
    "    print(status.partition('VmHWM:')[2].split()[0], file=sys.stderr)\n"
)
"""Runs a command, and tells its most KiB."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_program(tmp_path_factory.mktemp("large") / "program")


def listed(program: Path, pattern: str) -> list[str]:
    """Return what ``list -x`` prints, which takes a bounded amount of memory."""
    command = [sys.executable, "-c", MEASURED, "list", "-x", str(program), pattern]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    *said, used = result.stderr.splitlines()
    assert said == []
    assert int(used) < MIB << 10
    return result.stdout.splitlines()


def test_listed(program: Path) -> None:
    found = listed(program, "*")
    assert len(found) == COUNT
    assert found[::99_999] == [
        f"uprobe:{program}:{written_name(number)}" for number in range(0, COUNT, 99_999)
    ]


def test_searched(program: Path) -> None:
    found = listed(program, "*lib012345[5-9]*")
    assert found == [f"uprobe:{program}:{written_name(number)}" for number in range(123_455, 123_460)]


def test_probed(program: Path) -> None:
    """The first probe makes the index, and the others of a plan use it."""
    targets = [parse_target(f"uprobe:{program}:{name(number)}") for number in (0, 654_321, COUNT - 1)]
    with closing(ProbedFiles()) as files:
        places = [locate(target, files).offset for target in targets]
    assert places == [offset(0), offset(654_321), offset(COUNT - 1)]


def test_named(program: Path) -> None:
    numbers = [0, 1, 77, 654_321, COUNT - 1]
    places = {offset(number) + number % 16: name(number) for number in numbers}
    assert functions_at(str(program), places) == places


def test_each_name_is_read_once(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the names, not of the symbols, for which a block a name would be 16 GB."""
    reads = Reads(monkeypatch)
    assert len(functions(str(program))) == COUNT
    assert (reads.files, reads.names) == (1, COUNT)
    assert reads.bytes < 1.01 * program.stat().st_size
