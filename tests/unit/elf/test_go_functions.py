"""Functions of stripped Go programs are found by .gopclntab, where nm sees them before the strip."""

import random
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kprobe_exporter.elf import functions
from kprobe_exporter.elf.budget import MOST_SECONDS
from kprobe_exporter.elf.find import functions_at
from kprobe_exporter.elf.go_functions import MAX_FUNCTIONS
from kprobe_exporter.elf.reader import opened
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.util.overruns import OVERRUNS
from tests.support.compiling import compiled
from tests.support.programs import file_offset

GO_1_16, GO_1_18, GO_1_20 = 0xFFFFFFFA, 0xFFFFFFF0, 0xFFFFFFF1

FUNCTIONS = {"one": "main.one", "two": "net/http.(*Server).two", "three": "main.three[...]"}

STRIPPED = "it is stripped, and only what it exports has a name"


def source(magic: int, start: str = "one", more: str = "", section: str = ".gopclntab") -> str:
    """Return a program whose table is as Go's linker writes it, with addresses that the linker fills in."""
    is_relative = magic != GO_1_16
    word, base = (".long", " - one") if is_relative else (".quad", "")
    names = "".join(f'name_{one}: .asciz "{name}"\n' for one, name in FUNCTIONS.items())
    pairs = "".join(f"{word} {one}{base}, about_{one} - pairs\n" for one in FUNCTIONS)
    about = "".join(f"about_{one}: {word} {one}{base}\n.long name_{one} - names, 0, 0\n" for one in FUNCTIONS)
    table = f"""
.section {section},"aw"
.balign 8
table:
.long {magic}
.byte 0, 0, 1, 8
.quad {len(FUNCTIONS)}, 1
{f".quad {start}" if is_relative else ""}
.quad names - table, 0, 0, 0, pairs - table
names:
{names}
.balign 8
pairs:
{pairs}
{word} behind{base}
{about}
{more}
"""
    code = "".join(
        f"static __attribute__((noinline, used)) int {name}(int n) {{ return n * {len(name)}; }}\n"
        for name in (*FUNCTIONS, "behind")
    )
    main = "int main(int n, char **words) { return one(n) + two(n) + three(n) + behind(n); }\n"
    text = table.replace('"', '\\"').replace("\n", "\\n")
    return f'{code}{main}__asm__("{text}.text\\n");\n'


def nm(path: Path) -> dict[str, int]:
    lines = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[2]: int(line.split()[0], 16) for line in lines if " t " in line.lower()}


def stripped(path: Path, *arguments: str) -> Path:
    """Return a program without symbols, whose offsets are those of ``path``."""
    bare = path.with_suffix(".bare")
    subprocess.run(["strip", *arguments, "-o", bare, path], check=True)
    return bare


FORMS = {
    "1.16": (GO_1_16, "one", "", ".gopclntab"),
    "1.18": (GO_1_18, "one", "", ".gopclntab"),
    "1.20": (GO_1_20, "one", "", ".gopclntab"),
    "1.20 with cgo": (GO_1_20, "one", '.section .go.buildinfo,"a"\n.byte 1\n', ".data.rel.ro.go"),
    "1.26": (GO_1_20, "0", '.section .go.module,"aw"\n.zero 176\n.quad one\n', ".gopclntab"),
}
FLAGS = ("-O0", "-fno-toplevel-reorder")


@pytest.mark.parametrize("kind", ["-no-pie", "-pie"])
@pytest.mark.parametrize("form", FORMS)
def test_functions_are_where_nm_sees_them(tmp_path: Path, form: str, kind: str) -> None:
    whole = compiled(tmp_path / "program", source(*FORMS[form]), *FLAGS, "-fPIE", kind)
    bare = stripped(whole)
    assert set(functions(str(bare))) >= set(FUNCTIONS.values())
    for symbol, name in FUNCTIONS.items():
        offset = file_offset(str(whole), symbol)
        assert file_offset(str(bare), name) == offset
        assert functions_at(str(bare), [offset, offset + 1]) == {offset: name, offset + 1: name}
    assert file_offset(str(whole), "two") == file_offset(str(bare), "net/http.(*Server).two")
    behind = file_offset(str(whole), "behind")
    assert functions_at(str(bare), [behind]) == {}


def refusal(path: Path, name: str) -> str:
    with pytest.raises(GrammarError) as caught:
        file_offset(str(path), name)
    return str(caught.value)


def test_symbol_table_comes_first(tmp_path: Path) -> None:
    whole = compiled(tmp_path / "program", source(GO_1_20), *FLAGS)
    assert "main.one" not in functions(str(whole))
    assert "one" in functions(str(whole))


def test_start_of_code_unknown(tmp_path: Path) -> None:
    bare = stripped(compiled(tmp_path / "program", source(GO_1_20, "0"), *FLAGS))
    assert refusal(bare, "main.one").endswith(
        f"({STRIPPED}, as its section .gopclntab does not say where the code begins)"
    )


def test_unknown_form(tmp_path: Path) -> None:
    bare = stripped(compiled(tmp_path / "program", source(0xFFFFFFFB), *FLAGS))
    assert "has a form that is not known: that of Go 1.16 to 1.27 is" in refusal(bare, "main.one")


@pytest.mark.parametrize(
    ("place", "value"),
    [(8, 1 << 40), (8, 1 << 18), (32, 1 << 63), (32, 0), (64, 1 << 62), (64, 0), (24, 1)],
)
def test_damaged_header(tmp_path: Path, place: int, value: int) -> None:
    """A count, or an offset of a part, that leads anywhere."""
    bare = stripped(compiled(tmp_path / "program", source(GO_1_20), *FLAGS, "-no-pie"))
    data = bytearray(bare.read_bytes())
    at = data.index(GO_1_20.to_bytes(4, "little") + b"\0\0\1\10")
    data[at + place : at + place + 8] = value.to_bytes(8, "little")
    bare.write_bytes(data)
    assert re.search(f"{re.escape(STRIPPED)}, as its section .gopclntab ", refusal(bare, "main.one"))


def test_damaged_tables(tmp_path: Path) -> None:
    """Drawn bytes cost the names of functions at most."""
    bare = stripped(compiled(tmp_path / "program", source(GO_1_18), *FLAGS, "-no-pie"))
    whole = bare.read_bytes()
    at, draw = whole.index(GO_1_18.to_bytes(4, "little") + b"\0\0\1\10"), random.Random(46)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[at + draw.randrange(220)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        bare.write_bytes(data)
        OVERRUNS.clear()
        with suppress(GrammarError):
            functions(str(bare))
            functions_at(str(bare), range(0x1000, 0x1100))
    OVERRUNS.clear()


def test_most_functions_of_holes(tmp_path: Path) -> None:
    """A table of 262,144 functions, all of them zeros, takes a bounded part of the time."""
    bare = stripped(compiled(tmp_path / "program", source(GO_1_20), *FLAGS, "-no-pie"))
    data = bytearray(bare.read_bytes())
    at = data.index(GO_1_20.to_bytes(4, "little") + b"\0\0\1\10")
    end = len(data) - at
    for place, value in ((8, MAX_FUNCTIONS), (64, end)):
        data[at + place : at + place + 8] = value.to_bytes(8, "little")
    bare.write_bytes(data)
    subprocess.run(["truncate", "-s", "64M", bare], check=True)
    with bare.open("r+b") as file:  # the section's size, in its header
        header = data.index((at).to_bytes(8, "little"), int.from_bytes(data[40:48], "little"))
        file.seek(header + 8)
        file.write((32 << 20).to_bytes(8, "little"))
    began = time.thread_time()
    with opened(str(bare)) as file:
        assert file.mini is not None
        assert sum(1 for _ in file.mini.rows()) == MAX_FUNCTIONS
    assert time.thread_time() - began < MOST_SECONDS
