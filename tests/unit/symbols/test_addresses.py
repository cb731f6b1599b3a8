"""Kernel symbols: found by address as the kernel finds them, loaded lazily, and reloaded for new modules."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.symbols.addresses import FARTHEST, RELOAD_PAUSE, AddressTable, Symbols
from kprobe_exporter.symbols.lists import (
    ADDRESSES,
    LEAST,
    MOST,
    Row,
    certain,
    parse_functions,
    parse_order,
    parse_symbols,
)
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from tests.support.kallsyms import HIDDEN, KALLSYMS, LISTED, Files, Machine


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
    symbols = Machine(tmp_path, HIDDEN, LISTED).symbols
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
    machine.modules.write_bytes(b"xfs 1236 0 - Live 0x0000000000000000\n")
    assert machine.symbols.name(late) is None
    machine.now += RELOAD_PAUSE
    assert machine.symbols.text(late) == b"late+0x10/0x11 [xfs]"


def test_lines_that_are_none_are_left_out() -> None:
    top = b"%x" % 0xFFFFFFFF81000000
    lines = [b"x", b"%s ", b"%s T a b", b"zz T a", b"10 A percpu", b"%s D data\t[m]"]
    good = [b"%s T a\n", b"%s t b\t[m]\n", b"%s c [m]"]
    found = [*parse_symbols(line.replace(b"%s", top) for line in [*lines, *good])]
    assert [(name, module) for _, name, module in found] == [(b"a", None), (b"b", b"m"), (b"c", b"m")]


def test_marks_of_the_assembler_are_no_names() -> None:
    """/proc/kallsyms of arm64 has ``$x`` where code begins in a module, and ``$d`` where data begins."""
    top = b"%x" % 0xFFFFFFFF81000000
    marks = [b"$x", b"$d", b"$x.12", b"$d.0"]
    lines = [top + b" t " + name + b"\t[m]" for name in (*marks, b"$y", b"x$x")]
    assert [name for _, name, _ in parse_symbols(lines)] == [b"$y", b"x$x"]


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_anything_may_be_in_the_file(lines: list[bytes]) -> None:
    for address, name, _ in parse_symbols(lines):
        assert 2**63 <= address < 2**64
        assert name


@given(st.dictionaries(st.integers(0, 5000), st.integers(0, 99), min_size=1), st.integers(0, 6000))
def test_finding_is_looking_for_the_greatest_at_or_before(rows: dict[int, int], address: int) -> None:
    table = AddressTable((start, b"f%d" % name, None) for start, name in rows.items())
    found = table.find(address)
    before = [start for start in rows if start <= address]
    if not before:
        assert found is None
    else:
        assert found is not None
        assert (found.name, found.offset) == (b"f%d" % rows[max(before)], address - max(before))
    assert len(table) == len(rows)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([None, b"m"])), max_size=60))
def test_of_aliases_the_first_listed_is_taken(rows: list[tuple[int, bytes | None]]) -> None:
    table = AddressTable((start, b"f%d" % at, module) for at, (start, module) in enumerate(rows))
    for start in {start for start, _ in rows}:
        first = next(at for at, row in enumerate(rows) if row[0] == start)
        found = table.find(start)
        assert found is not None
        assert (found.name, found.module) == (b"f%d" % first, rows[first][1])


def test_what_lies_behind_the_kernel_is_not_its_last_symbol() -> None:
    table = AddressTable([(0x1000, b"last", None), (0x2000, b"_end", None), (0x2000, b"__brk_limit", None)])
    assert table.find(0x1FFF) is not None
    assert table.find(0x2000) is table.find(0x2001) is None


def test_code_that_was_made_later() -> None:
    """The kernel prints a BPF program without ``[bpf]``, and no name at all for code of kprobes or ftrace."""
    top = b"ffffffffc0000000 t"
    lines = [
        top + b" bpf_prog_1234_f\t[bpf]",
        top + b" kprobe_insn_page\t[__builtin__kprobes]",
        top + b" ftrace_trampoline\t[__builtin__ftrace]",
    ]
    start = 0xFFFFFFFFC0000000
    unnamed = (start, b"", None)
    assert [*parse_symbols(lines)] == [(start, b"bpf_prog_1234_f", None), unnamed, unnamed]


def test_a_module_in_the_place_of_another(tmp_path: Path) -> None:
    machine = Machine(tmp_path, KALLSYMS)
    machine.modules.write_bytes(b"ext4 1130496 1 - Live 0x0\n")
    assert machine.symbols.name(0xFFFFFFFFC0000020) == b"ext4_open"
    machine.file.write_bytes(KALLSYMS.replace(b"ext4", b"xfs"))
    machine.modules.write_bytes(b"xfs 1236 0 - Live 0x0\n")
    machine.now += RELOAD_PAUSE
    assert machine.symbols.name(0xFFFFFFFFC0000020) == b"xfs_open"


def test_an_unknown_address_costs_one_loading(tmp_path: Path) -> None:
    """A user who can bring unknown addresses into events must not keep the agent busy loading symbols."""
    machine = Machine(tmp_path, KALLSYMS)
    machine.modules.write_bytes(b"ext4 1130496 1 - Live 0x0\n")
    assert machine.symbols.name(0x1234) is None
    table = machine.symbols._table
    machine.modules.write_bytes(b"ext4 1130496 2 xfs, Live 0x0\n")  # the same modules, one more user
    for _ in range(5):
        machine.now += RELOAD_PAUSE
        assert machine.symbols.name(0x1234) is None
    assert machine.symbols._table is table


def test_a_tracefs_that_is_only_looked_at_sees_the_same(tmp_path: Path) -> None:
    (tmp_path / ADDRESSES).write_bytes(LISTED)
    assert Symbols(ReadOnlyTracefs(tmp_path), tmp_path / "kallsyms").visible()
    (tmp_path / ADDRESSES).unlink()
    assert not Symbols(ReadOnlyTracefs(tmp_path), tmp_path / "kallsyms").visible()


def test_a_file_that_is_there_and_cannot_be_opened(tmp_path: Path) -> None:
    class Forbidden(Files):
        def open_pipe(self, path: str) -> int:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)

    files = Forbidden()
    files.files[ADDRESSES] = LISTED
    assert not Symbols(files, tmp_path / "kallsyms").visible()


ORDER = b"""0000000000000000 T first
0000000000000000 T __pfx_vfs_read
0000000000000000 T vfs_read
0000000000000000 T __pfx_do_syscall_64
0000000000000000 T do_syscall_64
0000000000000000 D some_data
0000000000000000 T second
0000000000000000 T last
0000000000000000 t ext4_open\t[ext4]
"""


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (0xFFFFFFFF81000100, b"first"),  # listed with the 4 bytes of its endbr64
        (0xFFFFFFFF8100017F, b"first"),
        (0xFFFFFFFF81000180 + LEAST - 1, b"vfs_read"),
        (0xFFFFFFFF81000180 + LEAST, None),  # perhaps do_syscall_64, which is not listed
        (0xFFFFFFFF81000250, b"second"),
        (0xFFFFFFFFC0000010 + MOST - 1, b"ext4_open"),
        (0xFFFFFFFFC0000010 + MOST, None),
        (0xFFFFFFFFC0009010, b"ext4_close"),
    ],
)
def test_a_function_has_the_name_only_where_no_other_can_be(address: int, name: bytes | None) -> None:
    table = AddressTable(certain(parse_functions(LISTED), parse_order(ORDER.splitlines())))
    found = table.find(address)
    assert (None if found is None else found.name) == name


def test_without_the_order_little_is_certain() -> None:
    table = AddressTable(certain(parse_functions(LISTED), ()))
    assert table.find(0xFFFFFFFF81000100) is not None
    assert table.find(0xFFFFFFFF81000100 + LEAST) is None


@given(st.data())
def test_whatever_cannot_be_traced_no_name_is_wrong(data: st.DataObject) -> None:
    """Where only some functions are listed, a lookup finds the function at the address or nothing."""
    traced = data.draw(st.lists(st.booleans(), min_size=1, max_size=40))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=len(traced), max_size=len(traced)))
    starts = [2**63 + 16 * sum(sizes[:at]) for at in range(len(traced) + 1)]
    names = [b"f%d" % at for at in range(len(traced))]
    listed: list[Row] = [(starts[at], names[at], None) for at, shown in enumerate(traced) if shown]
    table = AddressTable(certain(listed, names))
    for at, name in enumerate(names):
        for address in (starts[at], starts[at] + 15, starts[at + 1] - 1):
            found = table.find(address)
            assert found is None or found.name == name
        assert not traced[at] or table.find(starts[at]) is not None


@given(st.binary(max_size=300), st.lists(st.binary(max_size=40), max_size=20))
def test_anything_may_be_in_the_lists(text: bytes, lines: list[bytes]) -> None:
    functions = parse_functions(text + b"\n" + LISTED)
    assert functions == sorted(functions, key=lambda row: row[0])
    assert len(AddressTable(certain(functions, parse_order([*lines, *ORDER.splitlines()])))) >= 6


def test_the_last_function_of_a_module_ends_in_its_page() -> None:
    """Code that was loaded after the symbols were read may begin on the next page."""
    start = 0xFFFFFFFFC0000E00
    table = AddressTable([(start, b"last", b"one"), (start + 0x9000, b"first", b"other")])
    assert [table.find(start + offset) is not None for offset in (0, 0x1FF, 0x200, 0x5000)] == [
        True,
        True,
        False,
        False,
    ]
