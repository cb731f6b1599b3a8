"""The function at an offset in a file is the one that addr2line and nm see there."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from kprobe_exporter.elf import function_at, functions, locate
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from tests.support.compiling import compiled
from tests.support.crafted_elf import CODE, NAMES, SYMTAB, elf, symbol
from tests.support.libc import own_libc
from tests.support.programs import LIBRARY, PROGRAM, VERSIONS, file_offset


def run(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def executable(path: Path) -> tuple[int, int, int]:
    """Return the offset, the address and the size of the only executable segment, as readelf shows it."""
    lines = (line.split() for line in run("readelf", "-lW", path).splitlines())
    [found] = [line for line in lines if line[:1] == ["LOAD"] and "E" in line[6:-1]]
    return int(found[1], 16), int(found[2], 16), int(found[4], 16)


@pytest.mark.parametrize("flags", [["-pie", "-fPIE"], ["-no-pie"]], ids=["pie", "no-pie"])
def test_each_byte_of_a_program(tmp_path: Path, flags: list[str]) -> None:
    path = compiled(tmp_path / "program", PROGRAM, *flags)
    start, address, size = executable(path)
    sized = [line.split() for line in run("nm", "-S", "--defined-only", path).splitlines()]
    ends = [
        (int(value, 16), int(length, 16))
        for value, length, kind, _ in (one for one in sized if len(one) == 4)
        if kind in "Tt"
    ]
    offsets = range(start, start + size)
    names = run(
        "addr2line", "-f", "-e", path, *(hex(offset - start + address) for offset in offsets)
    ).splitlines()[::2]
    inside = 0
    for offset, name in zip(offsets, names, strict=True):
        at = offset - start + address
        if any(value <= at < value + length for value, length in ends):  # addr2line names gaps too
            assert function_at(str(path), offset) == (name, offset - file_offset(str(path), name))
            inside += 1
        else:
            assert function_at(str(path), offset) is None
    assert inside > 50


def test_functions_of_the_c_library() -> None:
    """A probe by the name is at the offset, for every name that an attach string can hold."""
    path = str(own_libc())
    for name in random.Random(1).sample([one for one in functions(path) if one.isidentifier()], 40):
        try:
            offset = file_offset(path, name)
        except GrammarError:
            continue  # one that is data, or decided when a program starts
        found = function_at(path, offset)
        if found is not None:
            assert found[1] == 0
            assert file_offset(path, found[0]) == offset
    assert function_at(path, file_offset(path, "malloc")) == ("malloc", 0)  # and __libc_malloc
    assert function_at(path, file_offset(path, "malloc") + 3) == ("malloc", 3)
    assert function_at("libc.so.6", locate(parse_target("uprobe:libc.so.6:malloc")).offset) == ("malloc", 0)


def test_a_version(tmp_path: Path) -> None:
    (tmp_path / "map").write_text(VERSIONS)
    path = compiled(
        tmp_path / "library.so", LIBRARY, "-shared", "-fPIC", f"-Wl,--version-script={tmp_path / 'map'}"
    )
    stripped = Path(shutil.copy(path, tmp_path / "stripped.so"))
    run("strip", stripped)
    for name in ("answer", "answer@VERS_1"):
        assert function_at(str(stripped), file_offset(str(stripped), name)) == (name, 0)


def test_what_is_stripped_of_everything(tmp_path: Path) -> None:
    path = compiled(tmp_path / "program", PROGRAM)
    offset = file_offset(str(path), "main")
    assert function_at(str(path), offset) == ("main", 0)
    run("strip", path)
    assert function_at(str(path), offset) is None


def test_no_code(tmp_path: Path) -> None:
    path = compiled(tmp_path / "program", PROGRAM)
    for offset in (0, path.stat().st_size, 2**63):
        with pytest.raises(GrammarError, match="is not in its code"):
            function_at(str(path), offset)


def test_many_names_of_one_place(tmp_path: Path) -> None:
    """A crafted file with 100,000 names of one function costs a bounded part of time, and gives a name."""
    path = elf(tmp_path / "crafted", (NAMES, b"\0f\0", 0, 0), (SYMTAB, symbol(0) + symbol(1) * 100_000, 1, 0))
    assert function_at(str(path), CODE) == ("f", 0)
