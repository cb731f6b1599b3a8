"""Functions of stripped programs are found by .gnu_debugdata, where nm sees them before the strip."""

import io
import lzma
import random
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.elf import functions, mini_debug_info
from kprobe_exporter.elf.mini_debug_info import BLOCK, MOST_BYTES, NoTableError, decompressed
from kprobe_exporter.errors import GrammarError
from tests.support.compiling import compiled
from tests.support.patience import patience
from tests.support.programs import PROGRAM, file_offset

SOURCE = f"{PROGRAM}\nstatic __attribute__((noinline, used)) int secret(int n) {{ return n * 11 + 1; }}\n"


def run(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def nm(path: Path, *options: str) -> set[str]:
    return {
        line.split()[2]
        for line in run("nm", "--defined-only", *options, path).splitlines()
        if " T " in line.upper()
    }


def stripped(whole: Path, data: bytes | None = None) -> Path:
    """Strip a program and give it a .gnu_debugdata, made as GDB's manual says, or with this ``data``."""
    keep, debug, mini = (whole.with_suffix(f".{end}") for end in ("keep", "debug", "mini"))
    bare = whole.with_suffix(".bare")
    run("objcopy", "--only-keep-debug", whole, debug)
    names = nm(whole) - nm(whole, "-D")
    keep.write_text("".join(f"{name}\n" for name in sorted(names)))
    run("objcopy", "-S", "--remove-section", ".comment", f"--keep-symbols={keep}", debug, mini)
    xz = whole.with_suffix(".xz")
    xz.write_bytes(lzma.compress(mini.read_bytes()) if data is None else data)
    run("strip", "-o", bare, whole)
    run("objcopy", "--add-section", f".gnu_debugdata={xz}", bare)
    return bare


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("mini") / "program", SOURCE)


@pytest.fixture
def copied(program: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(program, tmp_path))


def test_a_function_that_is_not_exported(copied: Path) -> None:
    bare = stripped(copied)
    assert nm(bare.with_suffix(".mini")) >= {"secret", "main"}
    assert "no symbols" in subprocess.run(["nm", bare], check=False, capture_output=True, text=True).stderr
    for name in ("secret", "main"):
        assert file_offset(str(bare), name) == file_offset(str(copied), name)
    assert set(functions(str(bare))) >= nm(copied)


def test_exported_functions_are_still_found(tmp_path: Path) -> None:
    whole = compiled(tmp_path / "library", SOURCE.replace("main", "exported"), "-shared", "-fPIC")
    bare = stripped(whole)
    for name in ("exported", "secret"):
        assert file_offset(str(bare), name) == file_offset(str(whole), name)
    assert functions(str(bare)).count("exported") == 1


def test_an_unknown_function(copied: Path) -> None:
    with pytest.raises(GrammarError) as caught:
        file_offset(str(stripped(copied)), "secert")
    assert str(caught.value).endswith("has no function 'secert', did you mean 'secret'?")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xfd7zXZ\0", "ends early"),
        (b"nothing of xz", "is not what xz writes"),
        (
            lzma.compress(bytes(MOST_BYTES + 1), preset=0),
            f"has more than {MOST_BYTES} bytes when decompressed",
        ),
        (lzma.compress(b"no ELF file"), "is damaged"),
        (lzma.compress(b"\x7fELF\2\1\1"), "is damaged"),
    ],
    ids=["short", "other", "bomb", "no ELF", "header"],
)
def test_a_damaged_section(tmp_path: Path, data: bytes, said: str) -> None:
    """What the file exports is still found."""
    whole = compiled(tmp_path / "library", SOURCE.replace("main", "exported"), "-shared", "-fPIC")
    bare = stripped(whole, data)
    assert file_offset(str(bare), "exported") == file_offset(str(whole), "exported")
    assert "exported" in functions(str(bare))
    with pytest.raises(GrammarError) as caught:
        file_offset(str(bare), "secret")
    assert f"only what it exports has a name, as its section .gnu_debugdata {said})" in str(caught.value)
    assert "\n" not in str(caught.value)


def ask(data: bytes, size: int | None = None) -> bytes:
    """Decompress, of a section that is kept in memory."""
    whole = io.BytesIO(data)

    def read(start: int, length: int) -> bytes:
        whole.seek(start)
        return whole.read(length)

    return decompressed(read, len(data) if size is None else size, lambda spent: None).getvalue()


@given(st.binary(max_size=5 * BLOCK // 2))
@settings(deadline=1000 * patience(3))
def test_what_xz_compressed(data: bytes) -> None:
    assert ask(lzma.compress(data)) == data


def test_many_blocks() -> None:
    data = random.Random(1).randbytes(1 << 20)
    assert ask(lzma.compress(data, preset=0)) == data


def test_a_bomb_takes_a_bounded_part_of_memory() -> None:
    bomb = lzma.compress(bytes(1 << 28), preset=0)
    tracemalloc.start()
    with pytest.raises(NoTableError, match="has more than"):
        ask(bomb)
    assert tracemalloc.get_traced_memory()[1] < 3 * MOST_BYTES
    tracemalloc.stop()


def test_a_dictionary_that_takes_too_much_memory() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    with pytest.raises(NoTableError, match="is not what xz writes"):
        ask(lzma.compress(b"data", filters=filters))


def test_a_section_that_is_too_large() -> None:
    with pytest.raises(NoTableError, match="would be read"):
        ask(b"", mini_debug_info.MOST_COMPRESSED + 1)


VALID = lzma.compress(random.Random(2).randbytes(3000) * 3)


@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=6),
    st.integers(0, len(VALID)),
)
@settings(deadline=1000 * patience(3), suppress_health_check=[HealthCheck.too_slow])
def test_damaged_data(put: list[tuple[int, int]], end: int) -> None:
    data = bytearray(VALID)
    for at, byte in put:
        data[at] = byte
    for some in (data, data[:end]):
        try:
            assert len(ask(bytes(some))) <= 9000
        except NoTableError as error:
            assert str(error) in ("ends early", "is not what xz writes")  # noqa: PT017
