"""A crafted file takes a bounded part of memory and time, and costs its own probe only."""

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from kprobe_exporter.elf import functions, locate, usdt_probes
from kprobe_exporter.elf.find import functions_at
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.util.overruns import OVERRUNS
from kprobe_exporter.util.rooted_path import ProbedFiles
from tests.support.counted_reads import Reads
from tests.support.crafted_elf import (
    ADDRESS,
    CODE,
    DYNAMIC,
    DYNSYM,
    NAMES,
    NOTES,
    SYMTAB,
    VERDEF,
    VERSYM,
    elf,
    symbol,
)
from tests.support.patience import patience
from tests.support.programs import file_offset

MEMORY = 32 << 20
"""Bytes that one question may take."""

SECONDS = 3.0
"""Seconds of processor time that a question may take without exhausting the budget of time."""


def refusal(ask: Callable[[], object]) -> str:
    try:
        ask()
    except GrammarError as error:
        return str(error)
    return ""


def asked(ask: Callable[[], object]) -> tuple[str, int, float]:
    """Return the refusal, the most bytes that were held at once, and the seconds of processor time."""
    began = time.thread_time()
    said = refusal(ask)
    took = time.thread_time() - began
    OVERRUNS.clear()
    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kprobe_exporter.elf.budget.MOST_SECONDS", 60.0)  # tracing takes ten times as long
        refusal(ask)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return said, most, took


def holes(path: Path) -> Path:
    """Two symbol tables, each with a name table of 256 MiB, in a file that takes 16 KB of disk."""
    table = symbol(0) + symbol((256 << 20) - 5)
    return elf(
        path, (NAMES, 256 << 20, 0, 0), (NAMES, 256 << 20, 0, 0), (DYNSYM, table, 1, 0), (SYMTAB, table, 2, 0)
    )


def test_name_tables_of_holes(tmp_path: Path) -> None:
    """What lies between the names is not read."""
    path = holes(tmp_path / "holes")
    assert path.stat().st_blocks * 512 < 64 << 10
    questions: list[Callable[[], object]] = [
        lambda: file_offset(str(path), "main"),
        lambda: functions(str(path)),
        lambda: locate(parse_target(f"uretprobe:{path}:main")),
    ]
    for ask in questions:
        _, most, took = asked(ask)
        assert most < MEMORY
        assert took < SECONDS * patience(1) / 10
    assert "has no function 'main'" in refusal(questions[0])


def test_names_all_over_a_hole(tmp_path: Path) -> None:
    """A symbol in each MiB of a name table of 600 MiB, in a file that takes 100 KB of disk."""
    table = b"".join(symbol((number << 20) + 1) for number in range(600))
    path = elf(tmp_path / "all_over", (NAMES, 600 << 20, 0, 0), (SYMTAB, table, 1, 0))
    said, most, took = asked(lambda: file_offset(str(path), "main"))
    assert "is damaged or no usual program" in said
    assert most < MEMORY
    assert took < SECONDS * patience(1)


def test_many_dynamic_sections(tmp_path: Path) -> None:
    """A name that is only imported is looked for among the libraries, of which there is one table."""
    entries = struct.pack("<qQ", 21, 0) * 4096
    path = elf(
        tmp_path / "dynamic",
        (NAMES, b"\0f\0", 0, 0),
        (DYNSYM, symbol(1, section=0), 1, 0),
        *[(DYNAMIC, entries, 1, 0)] * 150,
    )
    said, most, took = asked(lambda: file_offset(str(path), "f"))
    assert "only imports 'f'" in said
    assert took < SECONDS * patience(1)
    assert most < MEMORY


def test_many_tables_of_versions(tmp_path: Path) -> None:
    """Every entry of every table is the same one, which is its own successor."""
    entry = struct.pack("<HHHHIII", 1, 0, 2, 1, 0, 0, 0)
    path = elf(
        tmp_path / "versions",
        (NAMES, b"\0f\0", 0, 0),
        (DYNSYM, symbol(1), 1, 0),
        (VERSYM, struct.pack("<H", 2), 2, 0),
        *[(VERDEF, entry, 1, 4096)] * 200,
    )
    _, most, took = asked(lambda: file_offset(str(path), "f"))
    assert took < SECONDS * patience(1)
    assert most < MEMORY


def test_a_symbol_table_of_one_name(tmp_path: Path) -> None:
    path = elf(tmp_path / "same", (NAMES, b"\0f\0", 0, 0), (SYMTAB, symbol(1) * 100_000, 1, 0))
    said, most, took = asked(lambda: file_offset(str(path), "f"))
    assert "has more than 10000 symbols 'f'" in said
    assert most < MEMORY
    assert took < SECONDS * patience(1)


NOTE_NAMES = (NAMES, b".note.stapsdt\0", 0, 0)


def test_usdt_notes_of_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 sections of 4 MiB, in a file that takes 20 KB of disk: 70 million notes of no owner."""
    path, reads = (
        elf(tmp_path / "notes", NOTE_NAMES, *[(NOTES, 4 << 20, 0, 0)] * 200, names=1),
        Reads(monkeypatch),
    )
    assert path.stat().st_blocks * 512 < 64 << 10
    assert "bytes of USDT notes, and 4194304 would be read" in refusal(lambda: usdt_probes(str(path)))
    assert reads.bytes < 1 << 20


def test_usdt_notes_of_no_owner(tmp_path: Path) -> None:
    """Notes that are left out are charged as others are."""
    path = elf(tmp_path / "notes", NOTE_NAMES, (NOTES, (4 << 20) - 64, 0, 0), names=1)
    said, most, _ = asked(lambda: usdt_probes(str(path)))
    assert "has more than 20000 USDT notes" in said
    assert most < MEMORY


def test_usdt_notes_with_counters_in_many_segments(tmp_path: Path) -> None:
    """Each of 20,000 counters would be looked for in each of 4,000 segments."""
    content = struct.pack("<QQQ", ADDRESS + CODE, 0, 48) + b"app\0step\0\0"
    notes = (struct.pack("<III", 8, len(content), 3) + b"stapsdt\0" + content + bytes(2)) * 20_000
    path = elf(tmp_path / "notes", NOTE_NAMES, (NOTES, notes, 0, 0), names=1, segments=4000)
    assert "has 4000 writable segments, more than 64" in refusal(lambda: usdt_probes(str(path)))


def test_a_name_table_of_one_name(tmp_path: Path) -> None:
    """The name is at more places than are looked for at once: the last one is found all the same."""
    names = b"f\0" * 200_000
    path = elf(tmp_path / "names", (NAMES, names, 0, 0), (SYMTAB, symbol(len(names) - 2), 1, 0))
    assert file_offset(str(path), "f") == CODE
    assert list(functions(str(path))) == ["f"]


@pytest.mark.parametrize("place", [(1 << 14) - 3, (1 << 20) - 3, (3 << 20) - 1])
def test_a_name_that_lies_in_two_blocks(tmp_path: Path, place: int) -> None:
    names = bytes(place) + b"function\0" + bytes(99)
    path = elf(tmp_path / "names", (NAMES, names, 0, 0), (SYMTAB, symbol(place), 1, 0))
    assert file_offset(str(path), "function") == CODE
    assert list(functions(str(path))) == ["function"]


def test_long_names_that_overlap(tmp_path: Path) -> None:
    """Names of 1,023 bytes for each symbol would take 100 MB; the nearest one is looked for among some."""
    symbols = b"".join(symbol(1 + number % 60_000) for number in range(100_000))
    path = elf(tmp_path / "names", (NAMES, b"\0" + b"a" * 61_023, 0, 0), (SYMTAB, symbols, 1, 0))
    said, most, _ = asked(lambda: file_offset(str(path), "main"))
    assert "has no function 'main'" in said
    assert most < 2 * MEMORY


def test_a_file_that_takes_too_long_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes in it share the refusal, and a probe in another file is not touched by it."""
    bad = elf(tmp_path / "bad", (NAMES, b"\0f\0", 0, 0), (SYMTAB, symbol(1) * 30_000, 1, 0))
    good = elf(tmp_path / "good", (NAMES, b"\0f\0", 0, 0), (SYMTAB, symbol(1), 1, 0))
    (tmp_path / "same").hardlink_to(bad)
    files, reads = ProbedFiles(), Reads(monkeypatch)
    monkeypatch.setattr("kprobe_exporter.elf.budget.MOST_BYTES", 4096)
    for name in ("bad", "bad", "same"):
        before = reads.bytes
        with pytest.raises(GrammarError, match=r"damaged or no usual program: .* write its offset instead$"):
            locate(parse_target(f"uprobe:{tmp_path / name}:f"), files)
    assert reads.bytes - before < 1 << 20  # one read of the table, whose charge is refused
    assert locate(parse_target(f"uprobe:{good}:f"), files).offset == CODE
    files.close()


def test_a_file_over_its_budget_is_refused_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Labels ask for its functions again and again: it costs its budget once, and is told once."""
    bad = elf(tmp_path / "bad", (NAMES, b"\0f\0", 0, 0), (SYMTAB, symbol(1) * 30_000, 1, 0))
    reads, before = Reads(monkeypatch), OVERRUNS.counts()["file"]
    monkeypatch.setattr("kprobe_exporter.elf.budget.MOST_BYTES", 4096)
    said = {refusal(lambda: functions_at(str(bad), [CODE])) for _ in range(5)}
    assert reads.files == 1
    assert len(said) == caplog.text.count("is damaged or no usual program") == 1
    assert OVERRUNS.counts()["file"] == before + 1


def test_a_budget_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = elf(tmp_path / "slow", (NAMES, b"\0f\0", 0, 0), (SYMTAB, symbol(1), 1, 0))
    monkeypatch.setattr("kprobe_exporter.elf.budget.MOST_SECONDS", -1.0)
    for ask in (lambda: file_offset(str(path), "f"), lambda: list(functions(str(path)))):
        with pytest.raises(GrammarError, match="is damaged or no usual program"):
            ask()
