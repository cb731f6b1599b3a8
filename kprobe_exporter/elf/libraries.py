"""Finds a library by its soname, such as ``libc.so.6``, where the dynamic loader finds it.

That is by /etc/ld.so.cache, then in the usual directories (ld.so(8)), which is all there is with musl or in a
minimal image. Paths that programs add by LD_LIBRARY_PATH or their own run path are unknown here. In a
container the files are the container's, unless ``root`` is where the host's, or another container's, are.
"""

import platform
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.elf.loader_cache import LoaderCache
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.util.file_access import cannot_be_read
from kprobe_exporter.util.rooted_path import open_rooted, status

CACHE = "/etc/ld.so.cache"

MOST_BYTES = 1 << 21
"""Bytes of the cache that are read. One of 600 libraries has 40 KB."""

MOST_NEAR = 5000  # Names that are compared with an unknown one, which takes 4 ms per 1,000
MOST_TOLD = 5  # Names that an error message lists
LIKELY = 0.75  # Similarity, from 0 to 1, at which one name counts as a misspelling of another


class Abi(NamedTuple):
    """The marks that the libraries of this machine's 64-bit programs have.

    ``flags`` is FLAG_ELF_LIBC6 and the processor's flag of sysdeps/generic/ldconfig.h of glibc. ``directory``
    is Debian's name of the multiarch directory, ``machine`` e_machine of elf.h, ``big`` the byte order.
    """

    flags: int
    directory: str
    machine: int
    big: bool = False


ABIS = {
    "x86_64": Abi(0x0303, "x86_64-linux-gnu", 62),
    "aarch64": Abi(0x0A03, "aarch64-linux-gnu", 183),
    "ppc64le": Abi(0x0503, "powerpc64le-linux-gnu", 21),
    "s390x": Abi(0x0403, "s390x-linux-gnu", 22, big=True),
    "riscv64": Abi(0x1003, "riscv64-linux-gnu", 243),
    "loongarch64": Abi(0x1203, "loongarch64-linux-gnu", 258),
}
"""By the machine as uname(2) names it."""

LEVELS = {
    "x86-64-v2": "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3",
    "x86-64-v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "x86-64-v4": "avx512bw avx512cd avx512dq avx512f avx512vl",
}
"""The subdirectories of glibc-hwcaps, the plainest first, and the flags of /proc/cpuinfo that each adds.

Those of other processors are passed over, as are entries with the bits that glibc before 2.33 wrote.
"""


def library_path(
    name: str, root: Path = Path("/"), machine: str = "", cpuinfo: Path = Path("/proc/cpuinfo")
) -> str:
    """Return the path of a library. Raises GrammarError with a sentence if there is none of this name.

    ``root`` is a directory below which the files are, such as ``/proc/PID/root``: a container may have
    written all of them. ``machine`` is this machine if it is empty.
    """
    machine = machine or platform.machine()
    if (abi := ABIS.get(machine)) is None:
        raise GrammarError(f"libraries of {machine} cannot be found by their names: write the path of {name}")
    identity = _identity(root)
    cached, fault = _cached(name, root, abi, cpuinfo, identity)
    for path in cached:
        with suppress(OSError):
            status(below := _below(root, path))
            return below
    for path in _usual(name, abi, root):
        return path
    cache, first, second = (_below(root, path) for path in (CACHE, *islice(_directories(abi), 2)))
    why = fault or ("names none that is there" if cached else "names none")
    raise GrammarError(
        f"there is no library {name!r} here: {cache} {why}, and none is in {first}, {second} or the like"
        f"{_near(name, root, abi, identity)}"
    )


def _identity(root: Path) -> tuple[int, ...]:
    """Return what differs after ldconfig has replaced the cache."""
    try:
        found = status(_below(root, CACHE))
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _below(root: Path, path: str) -> str:
    return f"{root}{path}" if root != Path("/") else path


def _is_inside(path: str) -> bool:
    """Return whether a path of the cache cannot lead out of the root by itself."""
    return path.startswith("/") and ".." not in path.split("/")


def _cache(root: Path, abi: Abi) -> LoaderCache:
    """Return the parsed cache. Raises OSError and ValueError."""
    with open_rooted(_below(root, CACHE)) as file:
        return LoaderCache(file.read(MOST_BYTES), abi.flags)


@lru_cache(256)
def _cached(
    name: str, root: Path, abi: Abi, cpuinfo: Path, identity: tuple[int, ...]
) -> tuple[Sequence[str], str]:
    """Return the paths that the cache has of a library, the best for this processor first.

    If the cache cannot be used there are none, but a clause that says why. ``identity`` is the cache's: a
    name is looked up once as long as the cache stays the same.
    """
    try:
        found = [one for one in _cache(root, abi).find(name) if _is_inside(one.path)]
    except OSError as error:
        return (), cannot_be_read(error)
    except ValueError as error:
        return (), f"is damaged, as {error} (run ldconfig)"
    levels = ["", *(_levels(cpuinfo) if any(one.hwcap for one in found) else ())]
    return [one.path for level in reversed(levels) for one in found if one.hwcap == level], ""


def _levels(cpuinfo: Path) -> Iterator[str]:
    """Yield the subdirectories of glibc-hwcaps that serve this processor, the plainest first."""
    has: set[str] = set()
    with suppress(OSError), cpuinfo.open(errors="replace") as lines:
        has = next((set(line.split()) for line in lines if line.startswith("flags")), has)
    for level, added in LEVELS.items():
        if not has.issuperset(added.split()):
            return
        yield level


def _directories(abi: Abi) -> Iterator[str]:
    for end in (f"lib/{abi.directory}", "lib64", "lib"):
        yield from (f"/{end}", f"/usr/{end}")


def _usual(name: str, abi: Abi, root: Path) -> Iterator[str]:
    """Yield the paths in the usual directories of libraries for this machine's programs."""
    for directory in _directories(abi):
        path = _below(root, f"{directory}/{name}")
        with suppress(OSError), open_rooted(path) as file:
            if _is_for(abi, file.read(20)):
                yield path


def _is_for(abi: Abi, header: bytes) -> bool:
    """Return whether a file that begins like this is a 64-bit ELF file for this machine's processor."""
    begin, order = (b"\x7fELF\2\2", ">H") if abi.big else (b"\x7fELF\2\1", "<H")
    return header.startswith(begin) and header[18:20] == struct.pack(order, abi.machine)


@lru_cache(256)
def _near(name: str, root: Path, abi: Abi, _identity: tuple[int, ...]) -> str:
    """Return a clause with the versions of this library, or of that with the nearest name, in the cache."""
    versions: dict[str, set[str]] = {}
    with suppress(OSError, ValueError):
        for one in islice(_cache(root, abi).names(), MOST_NEAR):
            versions.setdefault(one.partition(".so")[0], set()).add(one)
    stems = get_close_matches(name.partition(".so")[0], versions, n=1, cutoff=LIKELY)
    return f"; there is {', '.join(sorted(versions[stems[0]])[:MOST_TOLD])}" if stems else ""
