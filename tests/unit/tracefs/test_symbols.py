"""The kernel's symbols: found by address as the kernel finds them, loaded late, and again for new modules."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.tracefs.symbols import FARTHEST, FUNCTIONS, RELOAD_PAUSE, Symbols, Table, parse_symbols
from tests.unit.tracefs.conftest import Table as Listed

KALLSYMS = b"""0000000000000000 A fixed_percpu_data
ffffffff81000000 T _text
ffffffff81000000 T _stext
ffffffff81000100 t first
ffffffff81000180 T vfs_read
ffffffff81000180 W alias_of_vfs_read
ffffffff81000200 D some_data
ffffffffc0000010 t ext4_open\t[ext4]
ffffffffc0000050 t ext4_close\t[ext4]
"""
ADDRESSES = b"ffffffff81000104 first\nffffffff81000184 vfs_read\nffffffffc0000014 ext4_open [ext4]\n"
HIDDEN = b"0000000000000000 T _text\n0000000000000000 T vfs_read\n"


class Files(Listed):
    """Of which those that are there can be opened."""

    def open_pipe(self, path: str) -> int:
        self.read(path)
        return os.open("/dev/null", os.O_RDONLY)


class Machine:
    """A /proc/kallsyms, a tracefs and a clock."""

    def __init__(self, root: Path, kallsyms: bytes | None, addresses: bytes | None = None) -> None:
        self.file = root / "kallsyms"
        if kallsyms is not None:
            self.file.write_bytes(kallsyms)
        self.files = Files()
        if addresses is not None:
            self.files.files[FUNCTIONS] = addresses
        self.now = 0.0
        self.symbols = Symbols(self.files, self.file, lambda: self.now)


@pytest.mark.parametrize(
    ("address", "text", "name"),
    [
        (0xFFFFFFFF81000000, b"_text+0x0/0x100", b"_text"),
        (0xFFFFFFFF81000185, b"vfs_read+0x5/0x80", b"vfs_read"),
        (0xFFFFFFFF81000280, b"some_data+0x80/0x3efffe10", b"some_data"),
        (0xFFFFFFFFC0000020, b"ext4_open+0x10/0x40 [ext4]", b"ext4_open"),
        (0xFFFFFFFFC0000050, b"ext4_close+0x0/0x1 [ext4]", b"ext4_close"),
        (0xFFFFFFFF81000200 + FARTHEST + 1, b"0xffffffff81100201", None),
        (0x7F00DEADBEEF, b"0x7f00deadbeef", None),
    ],
)
def test_an_address_is_in_the_symbol_before_it(
    tmp_path: Path, address: int, text: bytes, name: bytes
) -> None:
    symbols = Machine(tmp_path, KALLSYMS).symbols
    assert (symbols.text(address), symbols.name(address)) == (text, name)


def test_without_a_capability_tracefs_has_the_functions(tmp_path: Path) -> None:
    symbols = Machine(tmp_path, HIDDEN, ADDRESSES).symbols
    assert symbols.visible()
    assert symbols.name(0xFFFFFFFF81000190) == b"vfs_read"
    assert symbols.name(0xFFFFFFFFC0000020) == b"ext4_open"


@pytest.mark.parametrize("kallsyms", [HIDDEN, None, b""])
def test_nothing_may_be_seen(tmp_path: Path, kallsyms: bytes | None) -> None:
    symbols = Machine(tmp_path, kallsyms).symbols
    assert not symbols.visible()
    assert symbols.name(0xFFFFFFFF81000190) is None
    assert symbols.text(0xFFFFFFFF81000190) == b"0xffffffff81000190"


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, KALLSYMS)
    assert machine.symbols._table is None
    machine.symbols.name(1)
    assert machine.symbols._table is not None


def test_a_module_that_comes_later_is_found(tmp_path: Path) -> None:
    machine = Machine(tmp_path, KALLSYMS)
    late = 0xFFFFFFFFC1000010
    assert machine.symbols.name(late) is None
    machine.file.write_bytes(KALLSYMS + b"ffffffffc1000000 t late\t[xfs]\n")
    assert machine.symbols.name(late) is None
    machine.now += RELOAD_PAUSE
    assert machine.symbols.text(late) == b"late+0x10/0x11 [xfs]"


def test_lines_that_are_none_are_left_out() -> None:
    top = b"%x" % 0xFFFFFFFF81000000
    lines = [b"x", b"%s ", b"%s T a b", b"zz T a", b"10 A percpu", b"%s D data\t[m]"]
    good = [b"%s T a\n", b"%s t b\t[m]\n", b"%s c [m]"]
    found = [*parse_symbols(line.replace(b"%s", top) for line in [*lines, *good])]
    assert [(name, module) for _, name, module in found] == [(b"a", None), (b"b", b"m"), (b"c", b"m")]


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_anything_may_be_in_the_file(lines: list[bytes]) -> None:
    for address, name, _ in parse_symbols(lines):
        assert 2**63 <= address < 2**64
        assert name


@given(st.dictionaries(st.integers(0, 5000), st.integers(0, 99), min_size=1), st.integers(0, 6000))
def test_finding_is_looking_for_the_greatest_at_or_before(rows: dict[int, int], address: int) -> None:
    table = Table((start, b"f%d" % name, None) for start, name in rows.items())
    found = table.find(address)
    before = [start for start in rows if start <= address]
    if not before:
        assert found is None
    else:
        assert found is not None
        assert (found.name, found.offset) == (b"f%d" % rows[max(before)], address - max(before))
    assert len(table) == len(rows)
