"""A function's offset agrees with nm, readelf and the dynamic linker; a hostile file gives one sentence."""

import ctypes
import os
import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.elf import Code, function_at, functions, locate
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from tests.support.compiling import compiled
from tests.support.libc import own_libc
from tests.support.patience import patience
from tests.support.programs import GO, LIBRARY, PROGRAM, VERSIONS, file_offset


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that compiles a source under a name, once."""
    directory = tmp_path_factory.mktemp("elf")
    made: dict[str, Path] = {}

    def make(name: str, source: str, *flags: str) -> Path:
        if name not in made:
            made[name] = compiled(directory / name, source, *flags)
        return made[name]

    return make


@pytest.fixture(scope="session")
def library(build: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("versions") / "map"
    script.write_text(VERSIONS)
    return build("library.so", LIBRARY, "-shared", "-fPIC", f"-Wl,--version-script={script}")


def refusal(path: Path | str, symbol: str, offset: int = 0) -> str:
    with pytest.raises(GrammarError) as caught:
        file_offset(str(path), symbol, offset)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def output(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def by_binutils(path: Path, *options: str) -> dict[str, set[int]]:
    """Return the offsets of each function, from nm's addresses and readelf's segments."""
    segments = [
        [int(number, 16) for number in found]
        for found in re.findall(r"LOAD +(0x\w+) (0x\w+) 0x\w+ (0x\w+) .* E ", output("readelf", "-lW", path))
    ]
    found: dict[str, set[int]] = {}
    for value, name in re.findall(r"^(\w+) [TtWw] (\S+)$", output("nm", *options, path), re.MULTILINE):
        address = int(value, 16)
        for at, start, size in segments:
            if start <= address < start + size:
                found.setdefault(name, set()).add(address - start + at)
    return found


@pytest.mark.skipif(not (shutil.which("nm") and shutil.which("readelf")), reason="no binutils")
@pytest.mark.parametrize(
    "flags",
    [
        "-pie -fPIE",
        "-no-pie",
        "-static",
        "-static-pie -fPIE",
        "-shared -fPIC",
        "-no-pie -Wl,-z,noseparate-code",
    ],
)
def test_each_function_is_where_binutils_see_it(build: Callable[..., Path], flags: str) -> None:
    path = build(flags.replace(" ", ""), PROGRAM, *flags.split())
    known = by_binutils(path)
    assert {"twice", "hidden", "main"} <= known.keys()
    for name, offsets in known.items():
        if len(offsets) == 1:
            assert {file_offset(str(path), name)} == offsets
    assert {"twice", "hidden", "main"} <= set(functions(str(path)))
    assert not {"table", "late"} & set(functions(str(path)))


def test_what_is_stripped_keeps_what_it_exports(build: Callable[..., Path]) -> None:
    whole, bare = (
        build(name, PROGRAM, "-rdynamic", *more) for name, more in [("whole", []), ("bare", ["-s"])]
    )
    assert file_offset(str(bare), "twice") == file_offset(str(whole), "twice")
    assert "is stripped, and only what it exports has a name" in refusal(bare, "hidden")
    assert refusal(bare, "twize").endswith("did you mean 'twice'?")


def test_what_is_stripped_of_everything(build: Callable[..., Path]) -> None:
    path = build("nameless", PROGRAM, "-static", "-s")
    assert "is stripped of all names: write the offset of 'main' instead" in refusal(path, "main")
    assert list(functions(str(path))) == []


def mapped(path: Path, address: int) -> int | None:
    """Return the file offset behind an address of this process, as the kernel shows it in /proc/PID/maps."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.fullmatch(rf"(\w+)-(\w+) \S+ (\w+) \S+ \d+ +{re.escape(str(path))}", line)
        if found and int(found[1], 16) <= address < int(found[2], 16):
            return address - int(found[1], 16) + int(found[3], 16)
    return None


def test_the_dynamic_linker_finds_the_same_functions() -> None:
    """dlsym gives the default version of a name, and its address is mapped from the offset that is found."""
    path = own_libc()
    linked, compared = ctypes.CDLL(str(path)), 0
    for name in functions(str(path)):
        if "@" in name or not hasattr(linked, name):
            continue
        address = ctypes.cast(getattr(linked, name), ctypes.c_void_p).value
        assert address is not None
        place = mapped(path, address) if compared < 200 else None
        if place is not None:
            assert file_offset(str(path), name) == place
            compared += 1
    assert compared == 200
    malloc = ctypes.cast(linked.malloc, ctypes.c_void_p).value
    assert malloc is not None
    assert file_offset(str(path), "malloc") == mapped(path, malloc)


def test_versions(library: Path) -> None:
    exported = by_binutils(library, "-D")
    newest, oldest = exported["answer@@VERS_2"], exported["answer@VERS_1"]
    assert newest != oldest
    for name in ("answer", "answer@VERS_2", "answer@@VERS_2"):
        assert {file_offset(str(library), name)} == newest
    assert {file_offset(str(library), "answer@VERS_1")} == oldest
    assert {file_offset(str(library), "forgotten@VERS_1")} == exported["forgotten@VERS_1"]
    assert {file_offset(str(library), "plain")} == exported["plain@@VERS_1"]
    assert {"answer", "answer@VERS_1", "forgotten@VERS_1", "plain"} <= set(functions(str(library)))


@pytest.mark.parametrize(
    ("symbol", "why"),
    [
        ("answer@@VERS_1", "has no 'answer@@VERS_1', only answer@VERS_1, answer@VERS_2"),
        ("answer@VERS_3", "only answer@VERS_1, answer@VERS_2"),
        ("forgotten", "has no 'forgotten', only forgotten@VERS_1"),
        ("anser", "has no function 'anser', did you mean 'answer'?"),
    ],
)
def test_versions_that_are_not_there(library: Path, symbol: str, why: str) -> None:
    assert why in refusal(library, symbol)


def test_what_is_no_function_here(build: Callable[..., Path]) -> None:
    path = build("-pie-fPIE", PROGRAM, "-pie", "-fPIE")
    assert re.search(r"only imports 'puts': probe it in its library, perhaps libc\.so", refusal(path, "puts"))
    assert "'table' of" in refusal(path, "table")
    assert refusal(path, "table").endswith("is data, no function")
    assert "decided when a program starts (IFUNC)" in refusal(path, "late")
    assert "is not in the code that this file holds" in refusal(path, "_edata")
    assert refusal(path, "mian").endswith("did you mean 'main'?")


def test_bytes_of_a_function(build: Callable[..., Path]) -> None:
    path = build("-pie-fPIE", PROGRAM, "-pie", "-fPIE")
    start = file_offset(str(path), "twice")
    assert file_offset(str(path), "twice", 2) == start + 2
    assert file_offset(str(path), "", start + 2) == start + 2
    assert re.search(r"'twice' of \S+ has \d+ bytes, so none at 4096", refusal(path, "twice", 4096))
    for offset in (0, path.stat().st_size, 2**63):
        assert "is not in its code" in refusal(path, "", offset)


def test_static_functions_of_one_name(build: Callable[..., Path], tmp_path: Path) -> None:
    """Two source files of one program can each have a static function of the same name."""
    other = tmp_path / "other.c"
    other.write_text("static __attribute__((noinline, used)) int twin(int n) { return n * 3; }\n")
    source = "static __attribute__((used)) int twin(int n) { return n * 7; }\nint main(void) { return 0; }\n"
    path = compiled(tmp_path / "twins", source, str(other))
    offsets = by_binutils(path)["twin"]
    said = refusal(path, "twin")
    assert "is 2 functions" in said
    assert said.endswith(", ".join(map(hex, sorted(offsets))))
    other.write_text("int twin(int n) { return n * 3; }\n")
    exported = compiled(tmp_path / "one_is_exported", source, str(other))
    assert file_offset(str(exported), "twin") in by_binutils(exported)["twin"]


def test_where_a_probe_sits(build: Callable[..., Path]) -> None:
    path = build("-pie-fPIE", PROGRAM, "-pie", "-fPIE")
    start = file_offset(str(path), "twice")
    machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}.get(os.uname().machine)
    for place, offset in [("twice", start), ("twice+2", start + 2), (f"{start:#x}", start)]:
        found = locate(parse_target(f"uprobe:{path}:{place}"))
        assert found == Code(offset, machine or found.machine, (path.stat().st_dev, path.stat().st_ino))
    assert locate(parse_target(f"uretprobe:{path}:twice")).offset == start


@pytest.mark.parametrize("flags", ["", "-s"])
def test_no_return_of_a_program_in_go(build: Callable[..., Path], flags: str) -> None:
    path = build(f"go{flags}", GO, "-rdynamic", *flags.split())
    assert locate(parse_target(f"uprobe:{path}:main")).offset > 0
    with pytest.raises(GrammarError, match=r"is written in Go, .* probe the entry$"):
        locate(parse_target(f"uretprobe:{path}:main"))


def test_what_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty, script, fifo = (tmp_path / name for name in ("empty", "script", "fifo"))
    empty.touch()
    script.write_text("#!/bin/sh\n")
    os.mkfifo(fifo)
    assert refusal(empty, "main") == f"{empty} is no ELF file"
    assert refusal(script, "main") == f"{script} is a script: probe the program that runs it"
    assert refusal(fifo, "main") == f"{fifo} is not a regular file, so no program or library"
    assert "is not a regular file" in refusal(tmp_path, "main")
    assert "is not a regular file" in refusal("/dev/zero", "main")
    assert "there is no file" in refusal(tmp_path / "absent", "main")
    assert "/proc/PID/root/" in refusal(tmp_path / "absent", "main")
    assert "cannot be opened" in refusal(f"{empty}/main", "main")
    assert "cannot be opened" in refusal("/\0", "main")

    def forbidden(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", forbidden)
    assert refusal(empty, "main") == f"this process may not read {empty}"


def test_a_name_that_cannot_be_printed(build: Callable[..., Path], tmp_path: Path) -> None:
    """A library's name from the file reaches the log, so its unprintable bytes are replaced."""
    path = build("-pie-fPIE", PROGRAM, "-pie", "-fPIE")
    hostile = tmp_path / "hostile"
    hostile.write_bytes(path.read_bytes().replace(b"libc.so", b"l\n\x1b[7mo"))
    assert refusal(hostile, "puts").endswith("perhaps l??[7mo.6")


def test_a_path_through_a_process(build: Callable[..., Path]) -> None:
    """A path below /proc/PID/root, by which files of containers are reached, gives the same offset."""
    path = build("-pie-fPIE", PROGRAM, "-pie", "-fPIE")
    assert file_offset(f"/proc/self/root{path}", "twice") == file_offset(str(path), "twice")


def made_up(bits: int, order: str, address: int, size: int = 0x20, *, absurd: int = 0) -> bytes:
    """Return an ELF file of one segment, with ``f`` at its fifth byte; ``absurd`` enlarges a section."""
    wide, prefix = bits == 64, "<" if order == "little" else ">"
    head, segment = (64, 56) if wide else (52, 32)
    code = head + segment
    symbol = struct.pack(
        prefix + ("IBBHQQ" if wide else "IIIBBH"),
        *((1, 0x12, 0, 1, address + 4, 8) if wide else (1, address + 4, 8, 0x12, 0, 1)),
    )
    strings, table = code + size, code + size + 3
    sections = table + 2 * len(symbol)
    number = "Q" if wide else "I"
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "little" else 2, 1]) + bytes(9)
    data = ident + struct.pack(
        f"{prefix}HHI{number}{number}{number}IHHHHHH",
        *(2, 62, 1, 0, head, sections, 0, head, segment, 1, 64 if wide else 40, 3, 0),
    )
    if wide:
        data += struct.pack(prefix + "IIQQQQQQ", 1, 5, code, address, address, size, size, 0x1000)
    else:
        data += struct.pack(prefix + "IIIIIIII", 1, code, address, address, size, size, 5, 0x1000)
    data += bytes(size) + b"\0f\0" + bytes(len(symbol)) + symbol
    for kind, at, length, link in [(0, 0, 0, 0), (3, strings, 3, 0), (2, table, 2 * len(symbol) + absurd, 1)]:
        data += struct.pack(
            f"{prefix}II{number}{number}{number}{number}II{number}{number}",
            *(0, kind, 0, 0, at, length, link, 0, 1, len(symbol)),
        )
    return data


@given(st.sampled_from([32, 64]), st.sampled_from(["little", "big"]), st.integers(0, 2**31))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_width_and_order(tmp_path: Path, bits: int, order: str, address: int) -> None:
    path = tmp_path / "made"
    path.write_bytes(made_up(bits, order, address))
    code = (64 + 56) if bits == 64 else (52 + 32)
    assert file_offset(str(path), "f") == code + 4
    assert file_offset(str(path), "f", 7) == code + 11
    assert list(functions(str(path))) == ["f"]


@pytest.mark.parametrize("absurd", [1 << 20, 1 << 31, (1 << 63) + 1])
def test_a_table_that_claims_more_than_there_is(tmp_path: Path, absurd: int) -> None:
    path = tmp_path / "made"
    path.write_bytes(made_up(64, "little", 0x1000, absurd=absurd))
    assert re.search(r"is damaged|symbols, and \d+ would be read", refusal(path, "f"))


def test_a_table_of_nothing_that_is_as_large_as_it_says(tmp_path: Path) -> None:
    """A sparse file can be as large as its table says: 1 MiB more is read, 1 TiB more is refused."""
    path = tmp_path / "made"
    for absurd in (1 << 20, 1 << 40):
        path.write_bytes(made_up(64, "little", 0x1000, absurd=absurd))
        os.truncate(path, path.stat().st_size + absurd)
        if absurd == 1 << 20:
            assert file_offset(str(path), "f") == 124
        else:
            assert re.search(r"has \d+ symbols, and \d+ would be read", refusal(path, "f"))


def sentence(ask: Callable[[], object]) -> str:
    """Return the sentence of a refusal, or an empty string if there was none."""
    try:
        ask()
    except GrammarError as error:
        return str(error)
    return ""


def ask_everything(path: Path) -> None:
    """Each question is answered, or refused with one printable sentence."""
    questions: list[Callable[[], object]] = [
        *(
            lambda name=name: file_offset(str(path), name)
            for name in ("f", "answer", "answer@VERS_1", "puts", "x")
        ),
        lambda: file_offset(str(path), "f", 5),
        lambda: file_offset(str(path), "", 0x1100),
        *(lambda offset=offset: function_at(str(path), offset) for offset in (0, 0x1000, 0x1100)),
        lambda: Counter(functions(str(path))),
        lambda: locate(parse_target(f"uretprobe:{path}:answer")),
    ]
    for ask in questions:
        assert sentence(ask).isprintable()


FUZZ = settings(
    deadline=1000 * patience(3), suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150
)


@given(st.data())
@FUZZ
def test_damaged_files(library: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from([library.read_bytes(), made_up(64, "little", 0x1000)])))
    sections = struct.unpack_from("<Q", whole, 40)[0]
    places = st.one_of(
        st.integers(0, 63),
        st.integers(64, 700),
        st.integers(sections, len(whole) - 1),
        st.integers(0, len(whole) - 1),
    )
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=12)):
        whole[min(place, len(whole) - 1)] = byte
    path = tmp_path / "damaged"
    path.write_bytes(whole[: data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))])
    ask_everything(path)


@given(st.binary(max_size=400))
@FUZZ
def test_any_bytes(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "any"
    for head in (b"", b"\x7fELF\x02\x01\x01", b"\x7fELF\x01\x02\x01"):
        path.write_bytes(head + tail)
        ask_everything(path)
