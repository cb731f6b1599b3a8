"""A plan reads a file once, whoever asks, and forgets what it read when the plan has been made."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kprobe_exporter.elf import Code, function_at, functions, library_path, locate, locate_usdt, matching_usdt
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.util import rooted_path
from kprobe_exporter.util.rooted_path import ProbedFiles
from tests.support.compiling import compiled
from tests.support.counted_reads import Reads
from tests.support.crafted_elf import CODE, NAMES, SYMTAB, elf, symbol
from tests.support.usdt_programs import HEADER

LIBC = "libc.so.6"

SOURCE = f"""{HEADER}
int main(int count, char **words) {{ SITE("app", "step", "0", "-4@%0", "r"(count)); return 0; }}
"""


@pytest.fixture
def files() -> Iterator[ProbedFiles]:
    with closing(ProbedFiles()) as found:
        yield found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def at(path: Path | str, name: str, files: ProbedFiles, kind: str = "uprobe") -> Code:
    return locate(parse_target(f"{kind}:{path}:{name}"), files)


def program(path: Path, count: int, first: int = 0) -> Path:
    """Write a program with functions ``f0``, ``f1`` and so on, each of 16 bytes."""
    names = [f"f{number}".encode() for number in range(first, first + count)]
    places = [1 + sum(len(name) + 1 for name in names[:number]) for number in range(count)]
    table = b"".join(symbol(place, offset=CODE + 16 * number) for number, place in enumerate(places))
    text = b"\0" + b"\0".join(names) + b"\0"
    return elf(path, (NAMES, text, 0, 0), (SYMTAB, table, 1, 0), code=16 * count)


def test_whoever_asks(files: ProbedFiles, reads: Reads, tmp_path: Path) -> None:
    """Uprobes, returns, USDT probes, patterns of these and lists, by any path of the file."""
    path = compiled(tmp_path / "app", SOURCE)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "same").hardlink_to(path)
    at(path, "main", files)
    first = reads.names
    for name in ("app", "link", "same"):
        place = tmp_path / name
        assert at(place, "main", files) == at(place, "main", files, "uretprobe")
        one, *_ = matching_usdt(parse_target(f"usdt:{place}:app:*"), 100, files)
        assert locate_usdt(one, files).sites
        assert function_at(str(place), at(place, "main", files).offset, files) == ("main", 0)
    assert (reads.files, reads.names) == (1, first)
    assert "main" in functions(str(path), files)
    assert reads.files == 1
    files.close()
    at(path, "main", files)
    assert reads.files == 2


def test_the_cost_of_many_probes(files: ProbedFiles, reads: Reads) -> None:
    """The first probe of a library reads its tables; each other one reads the symbols of its own name."""
    names = [name for name in functions(LIBC) if "@" not in name][:1000]
    assert len(names) == 1000
    reads.bytes = reads.names = reads.files = 0
    at(LIBC, names[0], files)
    alone, symbols = reads.bytes, reads.names
    for name in names:
        at(LIBC, name, files)
    assert (reads.files, reads.names) == (1, symbols)
    assert reads.bytes - alone < 200 * len(names)


def test_a_library_is_looked_for_once(files: ProbedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    found = library_path(LIBC)
    asked: list[str] = []

    def look(name: str, root: Path) -> str:
        asked.append(name)
        return found

    monkeypatch.setattr("kprobe_exporter.elf.libraries.library_path", look)
    for name in ("malloc", "free", "realloc"):
        assert at(LIBC, name, files).path == found
    assert asked == [LIBC]
    files.close()
    at(LIBC, "malloc", files)
    assert asked == [LIBC, LIBC]


def test_a_file_that_changes_is_read_again(files: ProbedFiles, reads: Reads, tmp_path: Path) -> None:
    path = program(tmp_path / "program", 10)
    assert at(path, "f1", files).offset == CODE + 16
    status = path.stat()
    program(path, 10, first=1)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the time of change differs all the same
    assert at(path, "f1", files).offset == CODE
    assert reads.files == 2


def test_one_budget_for_a_file_that_changes(
    files: ProbedFiles, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is written over and over costs no more than one that stays."""
    monkeypatch.setattr("kprobe_exporter.elf.budget.MOST_BYTES", 20_000)
    path = program(tmp_path / "program", 100)
    at(path, "f1", files)
    alone = reads.bytes
    said = ""
    for number in range(1, 100):
        try:
            at(program(path, 100, first=number), f"f{number}", files)
        except GrammarError as error:
            said = str(error)
            break
    assert "is damaged or no usual program" in said
    assert 3 <= reads.files <= 20_000 // alone + 1


def test_the_path_of_an_open_file_asks_no_file_system(
    files: ProbedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(tmp_path / "program", 10)
    device, number = path.stat().st_dev, path.stat().st_ino
    assert files.path(str(path), (device, number + 1)) is None  # this opens it

    def hangs(path: str, work: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(rooted_path, "answered", hangs)
    given = files.path(str(path), (device, number))
    assert given is not None
    assert Path(given).samefile(path)
    assert files.path(str(path), None) == given


def test_a_file_that_is_replaced_stays_what_it_was(files: ProbedFiles, tmp_path: Path) -> None:
    path = program(tmp_path / "program", 10)
    assert at(path, "f1", files).offset == CODE + 16
    program(tmp_path / "new", 10, first=1).rename(path)
    assert at(path, "f1", files).offset == CODE + 16


def test_what_is_kept_is_bounded(
    files: ProbedFiles, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of the files that were asked first go; a file that is asked again is read again."""
    monkeypatch.setattr("kprobe_exporter.elf.reader.MOST_KEPT", 35_000)
    paths = [program(tmp_path / f"program{number}", 1000) for number in range(5)]
    for path in paths:
        at(path, "f999", files)
    [held] = files._within.values()
    kept = [parsed.budget.kept for parsed in held.parsed.values()]
    assert kept[:2] == [0, 0]
    assert 3 * 8 * 1000 < sum(kept) < 35_000
    assert at(paths[-1], "f0", files).offset == CODE
    assert reads.files == 5
    assert at(paths[0], "f0", files).offset == CODE
    assert reads.files == 6
