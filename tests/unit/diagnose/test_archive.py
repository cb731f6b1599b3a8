"""Archives come back as they were packed; damaged and hostile ones are refused before they take memory."""

import io
import lzma
import tarfile
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.diagnose import archive
from kprobe_exporter.diagnose.archive import pack, unpack
from kprobe_exporter.errors import GrammarError

NAMES = st.from_regex(r"[a-z]{1,9}(/[a-z_]{1,60}){0,2}", fullmatch=True)


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Compress with little memory: setting up the usual amount takes longer than all else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "PRESET", 0)
        yield


FILES = st.dictionaries(NAMES, st.binary(max_size=2000), max_size=5)


@given(FILES)
def test_what_was_packed_comes_back(files: dict[str, bytes]) -> None:
    assert unpack(pack(files)) == files


@given(FILES)
def test_equal_files_are_equal_bytes(files: dict[str, bytes]) -> None:
    assert pack(files) == pack(dict(reversed(files.items())))


def test_tar_reads_it_without_a_user_or_a_time() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack({"a/b": b"text"})), mode="r:xz") as tar:
        (entry,) = tar.getmembers()
        found = tar.extractfile(entry)
        assert found is not None
        assert found.read() == b"text"
        assert (entry.name, entry.mtime, entry.uid, entry.gid, entry.uname) == ("a/b", 0, 0, 0, "")


def test_what_tar_makes_is_read() -> None:
    """Also with a name that takes the header's prefix."""
    name = "x" * 90 + "/" + "y" * 90
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", format=tarfile.USTAR_FORMAT) as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"abc"))
    assert unpack(buffer.getvalue()) == {name: b"abc"} == unpack(pack({name: b"abc"}))


def tar_of(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for entry, content in entries:
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def named(name: str, **values: object) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(entry, key, value)
    return entry


def resized(size: bytes) -> bytes:
    """Return a tar archive whose only header gives another size, with a valid checksum."""
    tar = bytearray(tar_of((named("a"), b"text")))
    tar[124:136] = size.ljust(12, b"\0")
    tar[148:156] = b" " * 8
    tar[148:156] = b"%06o\0 " % sum(tar[:512])
    return bytes(tar)


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a link": (
        lambda: tar_of((named("a", type=tarfile.SYMTYPE, linkname="/etc/shadow"), b"")),
        "not a plain file",
    ),
    "a directory": (lambda: tar_of((named("a", type=tarfile.DIRTYPE), b"")), "not a plain file"),
    "a device": (lambda: tar_of((named("a", type=tarfile.CHRTYPE), b"")), "not a plain file"),
    "a sparse file": (lambda: tar_of((named("a", type=tarfile.GNUTYPE_SPARSE), b"")), "not a plain file"),
    "a pax header": (lambda: tar_of((named("ä"), b""), form=tarfile.PAX_FORMAT), "not a plain file"),
    "a file twice": (lambda: tar_of((named("a"), b"1"), (named("a"), b"2")), "twice"),
    "a longer file": (lambda: resized(b"77777777777"), "longer than the archive"),
    "a negative size": (lambda: resized(b"-0000000001"), "damaged tar header"),
    "a size that is no number": (lambda: resized(b"\x80\0\0\0\0\0\0\0\0\0\xff\xff"), "damaged tar header"),
    "a wrong checksum": (lambda: tar_of((named("a"), b"1")).replace(b"a", b"b", 1), "damaged tar header"),
    "no end": (lambda: tar_of((named("a"), b"1"))[:1024], "in the middle"),
    "nothing": (lambda: b"", "in the middle"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_no_save_makes_is_refused(what: str) -> None:
    made, why = HOSTILE[what]
    with pytest.raises(GrammarError, match=why):
        unpack(lzma.compress(made()))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: b"", "cut short"),
        (lambda data: data[:-20], "cut short"),
        (lambda data: data + b"more", "something follows"),
        (lambda data: data + data, "something follows"),
        (lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:], "not a whole xz file"),
        (lambda data: b"probes: []\n" * 9, "not a whole xz file"),
    ],
)
def test_damaged_compression_is_refused(damage: Callable[[bytes], bytes], why: str) -> None:
    with pytest.raises(GrammarError, match=why):
        unpack(damage(pack({"a": b"text" * 100})))


def test_it_unpacks_to_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = lzma.compress(b"\0" * (4 << 20))
    assert len(bomb) < 2000
    monkeypatch.setattr(archive, "LARGEST_UNPACKED", 1 << 20)
    with pytest.raises(GrammarError, match="more than 1 MiB when it is unpacked"):
        unpack(bomb)


def test_it_has_no_more_files_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 2)
    with pytest.raises(GrammarError, match="too many files"):
        unpack(pack(dict.fromkeys("abc", b"")))


def test_a_dictionary_larger_than_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MEMORY", 1 << 20)
    monkeypatch.setattr(archive, "PRESET", 6)
    with pytest.raises(GrammarError, match="not a whole xz file"):
        unpack(pack({"a": b"text"}))


@given(FILES, st.integers(0, 10_000), st.binary(min_size=1, max_size=20))
def test_damage_to_the_tar_archive_is_an_error_or_read(files: dict[str, bytes], at: int, put: bytes) -> None:
    tar = bytearray(lzma.decompress(pack(files)))
    tar[at : at + len(put)] = put
    try:
        found = unpack(lzma.compress(bytes(tar), preset=0))
    except GrammarError:
        return
    assert sum(map(len, found.values())) <= len(tar)
