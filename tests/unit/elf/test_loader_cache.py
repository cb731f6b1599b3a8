"""The loader's cache is read as ldconfig -p reads it; hostile bytes give one clause."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kprobe_exporter.elf import library_path
from kprobe_exporter.elf.libraries import ABIS
from kprobe_exporter.elf.loader_cache import CachedLibrary, LoaderCache
from tests.support.loader_caches import AARCH64, I386, SUBDIRECTORY, X86_64, Entry, behind_the_oldest, cache

ENTRIES = [
    Entry("libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"),
    Entry("libc.so.6", "/lib/i386-linux-gnu/libc.so.6", I386),
    Entry("libz.so.1", "/lib/glibc-hwcaps/x86-64-v3/libz.so.1", hwcap=SUBDIRECTORY | 1),
    Entry("libz.so.1", "/lib/x86_64-linux-gnu/libz.so.1"),
    Entry("libz.so.1", "/lib/avx512_1/libz.so.1", hwcap=1 << 48),
    Entry("libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6", AARCH64),
]
BYTES = cache(ENTRIES, ["x86-64-v2", "x86-64-v3"])
LIBZ = [
    CachedLibrary("/lib/glibc-hwcaps/x86-64-v3/libz.so.1", "x86-64-v3"),
    CachedLibrary("/lib/x86_64-linux-gnu/libz.so.1", ""),
    CachedLibrary("/lib/avx512_1/libz.so.1", None),
]
LISTED = re.compile(r"^\t(\S+) \(libc6,([^),]+).*\) => (\S+)$", re.MULTILINE)
NAMED = {"x86-64": "x86_64", "AArch64": "aarch64"}


def ldconfig() -> str:
    found = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    assert found
    return found


def printed(file: Path) -> dict[str, dict[str, list[str]]]:
    """Return the paths by machine and name, as ldconfig lists the cache."""
    command = [ldconfig(), "-C", str(file), "-p"]
    text = subprocess.run(command, check=True, capture_output=True).stdout.decode(errors="replace")
    found: dict[str, dict[str, list[str]]] = {"x86_64": {}, "aarch64": {}}
    for name, machine, path in LISTED.findall(text):
        if machine in NAMED:
            found[NAMED[machine]].setdefault(name, []).append(path)
    return found


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("written", [None, BYTES], ids=["own", "made"])
def test_as_ldconfig_prints_it(tmp_path: Path, machine: str, written: bytes | None) -> None:
    file = Path("/etc/ld.so.cache")
    if written is not None:
        file = tmp_path / "cache"
        file.write_bytes(written)
    found = LoaderCache(file.read_bytes(), ABIS[machine].flags)
    expected = printed(file)[machine]
    assert set(found.names()) == set(expected)
    assert {name: [one.path for one in found.find(name)] for name in expected} == expected
    assert found.find("libnone.so.1") == found.find("libc.so.6.7") == found.find("") == []


@pytest.mark.parametrize("form", ["new", "compat"])
def test_as_ldconfig_writes_it(tmp_path: Path, form: str) -> None:
    plain = tmp_path / "lib"
    subdirectories = {level: plain / "glibc-hwcaps" / level for level in ("x86-64-v3", "x86-64-v2")}
    for directory in (plain, *subdirectories.values()):
        directory.mkdir(parents=True)
        shutil.copy(library_path("libz.so.1"), directory / "libz.so.1")
    (tmp_path / "conf").write_text(f"{plain}\n")
    file = tmp_path / "cache"
    subprocess.run([ldconfig(), "-X", "-C", file, "-f", tmp_path / "conf", "-c", form], check=True)
    found = LoaderCache(file.read_bytes(), ABIS[platform.machine()].flags)
    expected = printed(file)[platform.machine()]
    assert set(found.names()) == set(expected)
    assert {name: [one.path for one in found.find(name)] for name in expected} == expected
    requires = {one.path: one.hwcap for one in found.find("libz.so.1")}
    assert requires[str(plain / "libz.so.1")] == ""
    for level, directory in subdirectories.items():
        assert requires[str(directory / "libz.so.1")] == (level if form == "new" else None)


@pytest.mark.parametrize("entries", [0, 1, 2, 3])
def test_behind_the_oldest_format(entries: int) -> None:
    aligned = behind_the_oldest(BYTES, entries)
    for whole in (aligned, aligned[: 16 + 12 * entries] + BYTES):
        assert LoaderCache(whole, X86_64).find("libz.so.1") == [
            CachedLibrary(one.path, None if one.hwcap else one.hwcap) for one in LIBZ
        ]


def test_requirements_of_the_processor() -> None:
    assert LoaderCache(BYTES, X86_64).find("libz.so.1") == LIBZ
    assert LoaderCache(cache(ENTRIES), X86_64).find("libz.so.1")[0].hwcap is None  # without an extension


def test_without_a_byte_order() -> None:
    """Glibc before 2.33 left the flags of the header 0."""
    assert LoaderCache(cache(ENTRIES[:1], endian=0), X86_64).find("libc.so.6")


def fault(data: bytes) -> str:
    with pytest.raises(ValueError, match=r"^(it|a name in it)") as caught:
        LoaderCache(data, X86_64).find("libz.so.1")
    return str(caught.value)


def test_no_cache() -> None:
    assert fault(b"") == fault(b"\x7fELF" + bytes(100)) == "it does not begin as one"
    assert fault(b"ld.so-1.7.0\0" + bytes(100)) == "it has the format of glibc before 2.2"
    assert fault(BYTES[:40]) == "it ends in its header"
    assert (
        fault(BYTES[:100])
        == fault(BYTES[:20] + b"\xff" * 4 + BYTES[24:])
        == "it is shorter than its header says"
    )
    assert (
        fault(cache(ENTRIES, endian=3 if BYTES[28] == 2 else 2)) == "it has the byte order of another machine"
    )
    assert fault(BYTES[:-4]) == "its list of subdirectories does not lie in it"
    assert fault(BYTES[:32] + b"\xff\xff\xff\x7f" + BYTES[36:]) == "its extension does not lie in it"
    assert fault(cache([Entry("libz.so.1", "/lib/\x1b[2J")])) == "a name in it does not print"


@given(st.integers(0, len(BYTES) - 1), st.binary(min_size=1, max_size=8), st.integers(0, len(BYTES)))
@settings(max_examples=500)
def test_damaged(at: int, put: bytes, end: int) -> None:
    """Any other bytes give printable paths, or a ValueError of one clause."""
    for data in (BYTES[:at] + put + BYTES[at + len(put) :], BYTES[:end]):
        for whole in (data, behind_the_oldest(data, 1)):
            try:
                parsed = LoaderCache(whole, X86_64)
                found = [*(one.path for one in parsed.find("libz.so.1")), *parsed.names()]
            except ValueError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert str(error)[0].islower()  # noqa: PT017
            else:
                assert all(map(str.isprintable, found))
