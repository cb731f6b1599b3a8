"""USDT notes agree with readelf's in each program of this machine; a hostile file gives one sentence."""

import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.elf import UsdtProbe, UsdtSite, locate_usdt, usdt_probes
from kprobe_exporter.elf.notes import MOST_SITES, Note, parse_notes
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from tests.support.compiling import compiled
from tests.support.usdt_programs import HEADER, ReadNote, readelf_notes

PROGRAM = (
    HEADER
    + r"""
SEMAPHORE(app_step_semaphore);
int main(int count, char **words) {
  SITE("app", "step", "app_step_semaphore", "-4@%0 8@%1", "nor"(count), "nor"(words));
  SITE("app", "step", "app_step_semaphore", "-4@%0 8@%1", "nor"(7), "nor"(words[0]));
  SITE("app", "query__start", "0", "8@%0", "nor"(words));
  return 0;
}
"""
)


def segments(path: Path) -> list[tuple[int, int, int]]:
    """Return readelf's segments that are loaded: offset, address and bytes in the file."""
    output = subprocess.run(["readelf", "-lW", path], capture_output=True, text=True, check=True).stdout
    return [
        (int(offset, 16), int(address, 16), int(size, 16))
        for offset, address, size in re.findall(r"LOAD +(0x\w+) (0x\w+) 0x\w+ (0x\w+)", output)
    ]


def section_address(path: Path, name: str) -> int:
    output = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True, check=True).stdout
    return int(re.findall(rf"{re.escape(name)} +\w+ +(\w+)", output)[0], 16)


def by_readelf(notes: list[ReadNote], parts: list[tuple[int, int, int]], base: int) -> set[UsdtSite]:
    def offset(address: int) -> int:
        [found] = [address - start + at for at, start, size in parts if start <= address < start + size]
        return found

    return {
        UsdtSite(
            offset(one.location + base - one.base),
            offset(one.semaphore + base - one.base) if one.semaphore else None,
            one.arguments,
        )
        for one in notes
    }


def agree(path: Path, known: dict[tuple[str, str], list[ReadNote]]) -> None:
    probes = {(one.provider, one.name): one for one in usdt_probes(str(path))}
    assert probes.keys() == known.keys()
    parts, base = segments(path), section_address(path, ".stapsdt.base")
    for key, notes in known.items():
        assert set(probes[key].sites) == by_readelf(notes, parts, base), (path, key)


@pytest.mark.skipif(not shutil.which("readelf"), reason="no binutils")
def test_each_program_of_this_machine_has_the_notes_that_readelf_sees() -> None:
    places = [
        Path("/usr/bin"),
        *Path("/usr/lib").glob("*-linux-gnu"),
        *Path("/usr/lib").glob("postgresql/*/bin"),
    ]
    files = [
        path
        for place in places
        for path in place.iterdir()
        if path.is_file() and not path.is_symlink() and (place.name == "bin" or ".so" in path.name)
    ]
    found = readelf_notes(files)
    assert found, "no program here has a USDT probe, not even g++'s libstdc++.so.6"
    for path, known in found.items():
        agree(path, known)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("usdt") / "program", PROGRAM, "-O1")


@pytest.mark.skipif(not shutil.which("readelf"), reason="no binutils")
@pytest.mark.parametrize("flags", ["-pie -fPIE", "-no-pie", "-shared -fPIC", "-static", "-s"])
def test_what_was_compiled_has_the_notes_that_readelf_sees(tmp_path: Path, flags: str) -> None:
    path = compiled(tmp_path / "program", PROGRAM, "-O1", *flags.split())
    [known] = readelf_notes([path]).values()
    assert {("app", "step"), ("app", "query__start")} <= known.keys()
    agree(path, known)


def test_the_sites_of_one_probe_are_one_probe(program: Path) -> None:
    found = locate_usdt(parse_target(f"usdt:{program}:app:step"))
    assert (found.provider, found.name, len(found.sites)) == ("app", "step", 2)
    assert len({site.offset for site in found.sites}) == 2
    assert len({site.counter for site in found.sites}) == 1
    status = program.stat()
    assert found.inode == (status.st_dev, status.st_ino)


def test_a_dash_stands_for_two_underscores(program: Path) -> None:
    assert locate_usdt(parse_target(f"usdt:{program}:app:query-start")).name == "query__start"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("app:stop", "the provider 'app' of {} has no USDT probe 'stop', did you mean 'step'?"),
        ("app:query-stat", "has no USDT probe 'query-stat', did you mean 'query__start'?"),
        ("ap:step", "{} has no USDT provider 'ap', did you mean 'app'?"),
        ("zzz:step", "{} has no USDT provider 'zzz', only app"),
    ],
)
def test_an_unknown_provider_or_name_is_refused_with_the_nearest(
    program: Path, name: str, sentence: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        locate_usdt(parse_target(f"usdt:{program}:{name}"))
    assert sentence.format(program) in caught.value.message


def test_a_program_without_notes_is_refused(tmp_path: Path) -> None:
    path = compiled(tmp_path / "plain", "int main(void) { return 0; }", "-nostdlib", "-static", "-e", "main")
    with pytest.raises(GrammarError, match="has no USDT probes, as it has no notes of them"):
        locate_usdt(parse_target(f"usdt:{path}:app:step"))
    assert usdt_probes(str(path)) == []


def test_what_is_copied_of_many_notes() -> None:
    """A section of 1 MiB of notes that nobody owns, each of 12 bytes."""

    class Counted(bytes):
        copied = 0

        def __getitem__(self, part: Any) -> Any:
            found = super().__getitem__(part)
            Counted.copied += len(found) if isinstance(found, bytes) else 1
            return found

    data = Counted(1 << 20)
    assert list(parse_notes(data, "<", wide=True)) == []
    assert Counted.copied <= len(data)


def test_notes_move_with_their_base(program: Path, tmp_path: Path) -> None:
    """Prelink moves a file's segments and leaves its notes alone: here the notes' own addresses are moved."""
    moved = tmp_path / "moved"
    data = bytearray(program.read_bytes())
    for found in re.finditer(rb"stapsdt\0", bytes(data)):
        if data[found.start() - 4 : found.start()] != b"\3\0\0\0":
            continue  # the name of a section
        at = found.end()
        old = struct.unpack_from("<QQQ", data, at)
        struct.pack_into("<QQQ", data, at, *(one - 0x800 if one else 0 for one in old))
    moved.write_bytes(data)

    def places(path: Path) -> list[tuple[str, tuple[UsdtSite, ...]]]:
        return [(one.name, one.sites) for one in usdt_probes(str(path))]

    assert data != program.read_bytes()
    assert places(moved) == places(program)


def test_a_place_outside_of_the_code_is_left_out(program: Path, tmp_path: Path) -> None:
    broken, data = tmp_path / "broken", bytearray(program.read_bytes())
    at = data.index(b"app\0query__start\0") - 24
    struct.pack_into("<Q", data, at, 0x7FFFFFFFFFFFFFF0)
    broken.write_bytes(data)
    with pytest.raises(GrammarError, match=r"the USDT probe app:query__start of .* is not in its code"):
        locate_usdt(parse_target(f"usdt:{broken}:app:query__start"))


def test_a_place_whose_semaphore_cannot_be_counted_is_left_out(program: Path, tmp_path: Path) -> None:
    broken, data = tmp_path / "broken", bytearray(program.read_bytes())
    at = data.index(b"app\0step\0") - 8
    struct.pack_into("<Q", data, at, 1)
    broken.write_bytes(data)
    assert len(locate_usdt(parse_target(f"usdt:{broken}:app:step")).sites) == 1


def test_a_probe_with_too_many_places_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = tuple(UsdtSite(number, None, "") for number in range(MOST_SITES + 1))
    probe = UsdtProbe("app", "step", sites, "EM_X86_64")
    monkeypatch.setattr("kprobe_exporter.elf.notes.usdt_probes", lambda path, files: [probe])
    with pytest.raises(GrammarError, match=f"is at {MOST_SITES + 1} places of /x, and at most {MOST_SITES}"):
        locate_usdt(parse_target("usdt:/x:app:step"))


def note(
    provider: bytes = b"app", name: bytes = b"step", owner: bytes = b"stapsdt\0", kind: int = 3
) -> bytes:
    content = struct.pack("<QQQ", 16, 32, 48) + b"%b\0%b\0-4@%%eax\0" % (provider, name)
    head = struct.pack("<III", len(owner), len(content), kind) + owner
    return head + content + bytes(-len(content) % 4)


def test_notes_of_others_are_skipped() -> None:
    one = Note(16, 32, 48, "app", "step", "-4@%eax")
    others = note(owner=b"GNU\0") + note(kind=4) + note(name=b"a b") + note(provider=b"\xff") + note(name=b"")
    assert list(parse_notes(others + note() + others, "<", wide=True)) == [one]
    assert list(parse_notes(note()[:-8], "<", wide=True)) == []


def test_an_address_has_the_width_of_the_machine() -> None:
    content = struct.pack(">III", 16, 32, 0) + b"app\0step\0\0"
    data = struct.pack(">III", 8, len(content), 3) + b"stapsdt\0" + content
    assert list(parse_notes(data, ">", wide=False)) == [Note(16, 32, 0, "app", "step", "")]


@given(st.binary(max_size=200) | st.binary(max_size=40).map(lambda data: note() + data))
def test_any_bytes_are_notes_or_none(data: bytes) -> None:
    for one in parse_notes(data, "<", wide=True):
        parse_target(f"usdt:/x:{one.provider}:{one.name}")
