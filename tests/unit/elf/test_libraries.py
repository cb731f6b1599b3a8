"""A soname is the library that the dynamic loader takes for this machine's programs."""

import ctypes
import os
import platform
import re
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.elf import functions, libraries, library_path, locate
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from tests.support.libc import own_libc
from tests.support.loader_caches import AARCH64, I386, SUBDIRECTORY, X86_64, Entry, cache

X86_64_ELF = b"\x7fELF\2\1" + bytes(12) + struct.pack("<H", 62)
LEVELS = ["x86-64-v2", "x86-64-v3"]
V2 = "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"


def made(root: Path, entries: list[Entry], *missing: str, flags: str = "") -> Path:
    """Make a root with a cache of these libraries, of which all but the ``missing`` ones exist."""
    for path in {one.path for one in entries} - set(missing):
        library(root, path)
    (root / "etc").mkdir(parents=True, exist_ok=True)
    (root / "etc/ld.so.cache").write_bytes(cache(entries, LEVELS))
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    return root


def library(root: Path, path: str, data: bytes = X86_64_ELF) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def found(name: str, root: Path, machine: str = "x86_64") -> str:
    path = libraries.library_path(name, root, machine, root / "proc/cpuinfo")
    assert path.startswith(f"{root}/")
    return path.removeprefix(str(root))


def refusal(name: str, root: Path, machine: str = "x86_64") -> str:
    with pytest.raises(GrammarError) as caught:
        found(name, root, machine)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(root), "")


def test_the_library_that_this_process_has_loaded() -> None:
    """ctypes asks the dynamic loader, which maps the file that it finds."""
    for name in ("libc.so.6", "libz.so.1"):
        ctypes.CDLL(name)
        mapped = re.findall(r" (/\S+)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
        assert any(Path(library_path(name)).samefile(one) for one in set(mapped) if one.startswith("/"))


def test_a_function_of_it() -> None:
    by_name, by_path = (
        locate(parse_target(f"uprobe:{file}:getaddrinfo")) for file in ("libc.so.6", own_libc())
    )
    assert by_name.path == library_path("libc.so.6")
    assert by_name._replace(path=None) == by_path
    assert "getaddrinfo" in functions("libc.so.6")


def test_a_path_is_itself() -> None:
    assert library_path("/nonexistent/libc.so.6") == "/nonexistent/libc.so.6"


def test_the_machine(tmp_path: Path) -> None:
    paths = {"x86_64": "/lib/x/libc.so.6", "aarch64": "/lib/a/libc.so.6"}
    entries = [
        Entry("libc.so.6", "/lib/i/libc.so.6", I386),
        Entry("libc.so.6", paths["aarch64"], AARCH64),
        Entry("libc.so.6", paths["x86_64"]),
    ]
    root = made(tmp_path, entries)
    assert {machine: found("libc.so.6", root, machine) for machine in paths} == paths
    assert refusal("libc.so.6", root, "sparc64") == (
        "libraries of sparc64 cannot be found by their names: write the path of libc.so.6"
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("", "/lib/z"), (V2, "/v2/z"), (V3, "/v3/z"), (V3.replace("fma ", ""), "/v2/z")],
    ids=["any", "v2", "v3", "not quite v3"],
)
def test_the_processor(tmp_path: Path, flags: str, expected: str) -> None:
    entries = [
        Entry("libz.so.1", "/v3/z", hwcap=SUBDIRECTORY | 1),
        Entry("libz.so.1", "/v2/z", hwcap=SUBDIRECTORY),
        Entry("libz.so.1", "/lib/z"),
        Entry("libz.so.1", "/legacy/z", hwcap=4),
    ]
    assert found("libz.so.1", made(tmp_path, entries, flags=flags)) == expected


def test_a_cache_that_is_older_than_the_files(tmp_path: Path) -> None:
    """As the loader does, the usual directories are searched for what the cache has at another place."""
    root = made(tmp_path, [Entry("libz.so.1", "/opt/libz.so.1")], "/opt/libz.so.1")
    assert "there is no library 'libz.so.1' here: /etc/ld.so.cache names none that is there" in refusal(
        "libz.so.1", root
    )
    library(root, "/usr/lib64/libz.so.1")
    assert found("libz.so.1", root) == "/usr/lib64/libz.so.1"


def test_a_cache_that_is_replaced(tmp_path: Path) -> None:
    root = made(tmp_path, [Entry("libz.so.1", "/opt/1/libz.so.1")])
    assert found("libz.so.1", root) == "/opt/1/libz.so.1"
    (root / "etc/ld.so.cache").unlink()
    made(tmp_path, [Entry("libz.so.1", "/opt/2/libz.so.1.2")])
    assert found("libz.so.1", root) == "/opt/2/libz.so.1.2"


def test_without_a_cache(tmp_path: Path) -> None:
    """A 32-bit library, a script of the linker, and a FIFO are passed over."""
    library(tmp_path, "/lib64/libz.so.1", b"\x7fELF\1\1" + X86_64_ELF[6:])
    library(tmp_path, "/usr/lib64/libz.so.1", b"INPUT(libz.so.1.2)")
    (tmp_path / "lib").mkdir()
    os.mkfifo(tmp_path / "lib/libz.so.1")
    assert refusal("libz.so.1", tmp_path) == (
        "there is no library 'libz.so.1' here: /etc/ld.so.cache cannot be read: No such file or directory, "
        "and none is in /lib/x86_64-linux-gnu, /usr/lib/x86_64-linux-gnu or the like"
    )
    for directory in ("/usr/lib", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"):
        library(tmp_path, f"{directory}/libz.so.1")
        assert found("libz.so.1", tmp_path) == f"{directory}/libz.so.1"


def test_a_damaged_cache(tmp_path: Path) -> None:
    root = made(tmp_path, [])
    (root / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1")
    assert "/etc/ld.so.cache is damaged, as it ends in its header (run ldconfig)" in refusal(
        "libz.so.1", root
    )
    library(root, "/usr/lib/libz.so.1")
    assert found("libz.so.1", root) == "/usr/lib/libz.so.1"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("libssl.so.1.1", "; there is libssl.so, libssl.so.3"),
        ("libsll.so.3", "; there is libssl.so, libssl.so.3"),
        ("libpq.so.5", ""),
    ],
)
def test_the_nearest_names(tmp_path: Path, name: str, near: str) -> None:
    entries = [Entry(one, f"/lib/{one}") for one in ("libssl.so.3", "libssl.so", "libsslx.so.1", "libc.so.6")]
    assert refusal(name, made(tmp_path, entries)).endswith(f"or the like{near}")


def test_no_path_of_a_cache_leads_out_of_its_root(tmp_path: Path) -> None:
    library(tmp_path, "/outside/z")
    entries = [Entry("libz.so.1", path) for path in ("z", "/../outside/z", "/lib/../../outside/z")]
    root = made(tmp_path / "root", entries)
    assert "names none, and" in refusal("libz.so.1", root)


def test_below_another_root(tmp_path: Path) -> None:
    """ROOT:SONAME is the library of a container, or of the host where that is mounted in the agent's."""
    abi = libraries.ABIS[platform.machine()]
    place = tmp_path / "usr/lib" / abi.directory
    place.mkdir(parents=True)
    shutil.copy(own_libc(), place / "libc.so.6")
    found = locate(parse_target(f"uprobe:{tmp_path}:libc.so.6:getaddrinfo"))
    assert found.path == str(place / "libc.so.6")
    assert found.offset == locate(parse_target("uprobe:libc.so.6:getaddrinfo")).offset
    same = locate(parse_target(f"uprobe:/proc/{os.getpid()}/root:libc.so.6:getaddrinfo"))
    assert same.path == f"/proc/{os.getpid()}/root{library_path('libc.so.6')}"
    assert Path(same.path).samefile(own_libc())


def test_a_colon_in_a_path() -> None:
    assert library_path("/opt/a:b/libc.so.6") == "/opt/a:b/libc.so.6"
    assert library_path("/opt/program:1") == "/opt/program:1"


def test_this_machine_is_known() -> None:
    assert platform.machine() in libraries.ABIS


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[Any, ...]]:
    """Return the arguments of each call of this function of the module from now on."""
    calls, function = list[tuple[Any, ...]](), getattr(libraries, name)

    def noted(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    monkeypatch.setattr(libraries, name, noted)
    return calls


def test_a_cache_of_one_name_and_one_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's cache of 2 MiB: 87,000 entries of one library share a path of 1,000 bytes."""
    (tmp_path / "etc").mkdir()
    entry = Entry("libz.so.1", "/x" * 500)
    head, strings = cache([entry])[:48], cache([entry])[48 + 24 :]
    count = ((1 << 21) - 48 - len(strings)) // 24
    table = struct.pack("=iIIIQ", X86_64, 48 + 24 * count, 48 + 24 * count + len("libz.so.1") + 1, 0, 0)
    head = head[:20] + struct.pack("=I", count) + head[24:]
    (tmp_path / "etc/ld.so.cache").write_bytes(head + table * count + strings)
    looked = counted(monkeypatch, "status")
    tracemalloc.start()
    said = [refusal("libz.so.1", tmp_path) for _ in range(2)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "is damaged, as it has more than 32 libraries of one name" in said[0]
    assert len(looked) < 50
    assert peak < 10 << 20


def test_an_unknown_name_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor looks for a missing library once a second, in a cache of a container's owner."""
    made(tmp_path, [Entry(f"libx{number}.so", "/lib/x") for number in range(2000)])
    read = counted(monkeypatch, "_cache")
    for _ in range(3):
        assert "; there is libx1.so" in refusal("libx1.so.1", tmp_path)
    assert len(read) == 2
