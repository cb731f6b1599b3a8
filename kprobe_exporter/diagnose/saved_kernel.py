"""A kernel's files in one archive: taken by ``doctor --save``, and read back for ``check --against``.

In the archive a file has its path below the root, or below ``tracefs/``. The archive holds no addresses, and
nothing of the machine's processes: no dynamic events, no instances, no BPF programs.
"""

import errno
import io
import json
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, NoReturn

from kprobe_exporter.diagnose.archive import LARGEST, pack, unpack
from kprobe_exporter.diagnose.saved_symbols import sites_without_addresses, with_addresses, without_addresses
from kprobe_exporter.errors import GrammarError, UsageError, one_line
from kprobe_exporter.symbols.lists import ADDRESSES, BLACKLIST, MODULES, SYMBOLS, blacklisted, modules
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.features import FTRACE_ENABLED
from kprobe_exporter.tracefs.files import TRACEABLE, Tracefs
from kprobe_exporter.tracefs.kernel_files import BTF, KernelFiles
from kprobe_exporter.util.file_access import cannot_be_read, open_regular, write_whole

FORMAT = 1
"""The form of the archive. One of a later version with another form is refused."""

ABOUT, PATHS, BELOW = "kernel.json", "tracefs.paths", "tracefs/"
EVENT_FILES = ("header_page", "header_event")
SYNTHETIC = "synthetic"  # The system of the events that users make of others

MOST_LINES = 1_000_000  # Of a list. A kernel with all its modules loaded has 300,000 symbols.
MOST_PATHS = 200_000  # Below tracefs. A kernel with 2,500 tracepoints has 20,000.
LONGEST_PATH, DEEPEST = 255, 8  # Characters and directories of a path
LARGEST_ABOUT = 4096  # Bytes of kernel.json
LARGEST_FORMAT = 1 << 20  # Bytes of an event's format, which usually are 1,000


@dataclass(frozen=True, slots=True)
class SavedKernel:
    """A kernel that was saved, and the file that it is in."""

    file: Path
    kernel: KernelFiles


def take(kernel: KernelFiles) -> dict[str, bytes]:
    """Read what a kernel offers, and return the files to save.

    Raises OSError if tracefs cannot be read. A list that this kernel does not have, or does not show to this
    process, is omitted.
    """
    about = {"format": FORMAT, "release": kernel.release, "machine": kernel.machine}
    files = {ABOUT: json.dumps(about, indent=1, sort_keys=True).encode() + b"\n"}
    tracefs = kernel.tracefs
    paths = [*tracefs.names("."), *_below_events(tracefs)]
    for path in paths:
        if path.endswith("/format"):
            files[BELOW + path] = tracefs.read(path)
    files[PATHS] = "".join(f"{path}\n" for path in sorted(paths)).encode()
    lists: dict[str, Callable[[], bytes]] = {
        f"{BELOW}README": lambda: tracefs.read("README"),
        **{f"{BELOW}events/{name}": _reading(tracefs.read, f"events/{name}") for name in EVENT_FILES},
        BELOW + TRACEABLE: lambda: tracefs.read(TRACEABLE),
        BELOW + ADDRESSES: lambda: sites_without_addresses(
            tracefs.read(ADDRESSES).splitlines(), kernel.lines(SYMBOLS)
        ),
        SYMBOLS: lambda: without_addresses(kernel.lines(SYMBOLS)),
        MODULES: lambda: _column(map(str.encode, modules(kernel.lines(MODULES)))),
        BLACKLIST: lambda: _column(b"- " + name for name in blacklisted(kernel.lines(BLACKLIST))),
        FTRACE_ENABLED: lambda: kernel.read(FTRACE_ENABLED),
    }
    with suppress(OSError):
        lists |= {f"{BTF}/{name}": _reading(kernel.read, f"{BTF}/{name}") for name in kernel.names(BTF)}
    for path, content in lists.items():
        with suppress(OSError):
            files[path] = content()
    return files


def describe(files: Mapping[str, bytes]) -> str:
    """Return in a clause what the files to save tell of the kernel."""
    release, machine = _about(files[ABOUT])
    functions = files.get(BELOW + TRACEABLE, b"").count(b"\n")
    tracepoints = sum(path.endswith("/format") for path in files)
    types = sum(path.startswith(BTF) for path in files)
    return (
        f"{release} {machine}, {functions:,} functions, {tracepoints:,} tracepoints, "
        f"types {f'of the kernel and {types - 1} modules' if types else 'unknown'}"
    )


def save(files: Mapping[str, bytes], path: Path) -> int:
    """Write the archive, replacing the file as a whole, and return its size in bytes. Raises UsageError."""
    data = pack(files)
    try:
        write_whole(path, data)
    except OSError as error:
        raise UsageError(f"{one_line(str(path))} cannot be written: {error.strerror}.") from None
    return len(data)


def load(path: Path) -> SavedKernel:
    """Read a file that ``save`` wrote. Raises UsageError for a file that is not one, or is damaged."""
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise GrammarError(f"has more than {LARGEST >> 20} MiB")
        return SavedKernel(path, saved_kernel(unpack(data)))
    except (OSError, ValueError) as error:
        raise UsageError(f"{one_line(str(path))} {cannot_be_read(error)}.") from None
    except GrammarError as error:
        raise UsageError(
            f"{one_line(str(path))} {one_line(error.message)}: save the kernel again with "
            "'kprobe-exporter doctor --save FILE'."
        ) from None


def saved_kernel(files: Mapping[str, bytes]) -> KernelFiles:
    """Return the kernel whose files these are. Raises GrammarError."""
    release, machine = _about(files.get(ABOUT, b""))
    _check_sizes(files)
    symbols = cache(lambda path: b"\n".join(with_addresses(files[path])))
    for path in (SYMBOLS, BELOW + ADDRESSES):
        if path in files:
            symbols(path)  # raises for damaged lines now, not in the middle of a check

    def content(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return symbols(path) if path in (SYMBOLS, BELOW + ADDRESSES) else files[path]

    def opened(path: str) -> BinaryIO:
        return io.BytesIO(content(path))

    paths = files.get(PATHS, b"").decode("ascii", "replace").split("\n")
    saved = (path.removeprefix(BELOW) for path in files if path.startswith(BELOW))
    tracefs = SavedTracefs({*paths, *saved}, lambda path: content(BELOW + path))
    others = SavedTracefs({path for path in files if not path.startswith(BELOW)}, content)
    return KernelFiles(tracefs, opened, others.names, release, machine)


class SavedTracefs:
    """A tracefs that was saved: it can be read, as ``files.Tracefs``, and every change raises EROFS."""

    def __init__(self, paths: Iterable[str], content: Callable[[str], bytes]) -> None:
        self._content = content
        self._children: dict[str, set[str]] = {"": set()}
        for path in paths:
            if len(path) > LONGEST_PATH or path.count("/") > DEEPEST:
                raise GrammarError(f"has the path '{path[:40]}…', which is too long")
            above = path
            while above:
                above, _, name = above.rpartition("/")
                self._children.setdefault(above, set()).add(name)

    def read(self, path: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError, also if the content was not saved."""
        return self._content(posixpath.normpath(path))

    def exists(self, path: str) -> bool:
        above, _, name = _relative(path).rpartition("/")
        return name in self._children.get(above, ())

    def names(self, path: str) -> list[str]:
        try:
            return sorted(self._children[_relative(path)])
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def _refuse(self, path: str, text: str = "") -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    write = truncate = mkdir = rmdir = open_pipe = open_marker = lock = _refuse


def _relative(path: str) -> str:
    plain = posixpath.normpath(path)
    return "" if plain == "." else plain


def _about(text: bytes) -> tuple[str, str]:
    """Return release and machine."""
    try:
        about = json.loads(text if len(text) <= LARGEST_ABOUT else b"")
        form, release, machine = about["format"], about["release"], about["machine"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise GrammarError("is not a kernel that 'doctor --save' saved") from None
    if form != FORMAT or not isinstance(release, str) or not isinstance(machine, str):
        raise GrammarError(f"has the form {one_line(str(form))[:20]}, and this version knows {FORMAT}")
    return release, machine


def _check_sizes(files: Mapping[str, bytes]) -> None:
    """Refuse files that are not a kernel's, before their lines become objects. Raises GrammarError."""
    for path, content in files.items():
        if path.endswith("/format"):
            fits = len(content) <= LARGEST_FORMAT
        elif path.startswith(BTF):
            continue  # it is read as it is, without an object for each type
        else:
            fits = content.count(b"\n") <= (MOST_PATHS if path == PATHS else MOST_LINES)
        if not fits:
            raise GrammarError(f"has a file {path!r} that is larger than a kernel's")


def _below_events(tracefs: Tracefs) -> Iterator[str]:
    """Yield the paths of the kernel's own events and of their files."""
    made = {(one.group, one.event) for one in list_definitions(tracefs)}
    for system in tracefs.names("events"):
        if system == SYNTHETIC:
            continue
        names = _names(tracefs, f"events/{system}")
        files = {
            name: _names(tracefs, f"events/{system}/{name}") for name in names if (system, name) not in made
        }
        if not names or any(files.values()):
            yield f"events/{system}"
            for name, below in files.items():
                yield f"events/{system}/{name}"
                yield from (f"events/{system}/{name}/{file}" for file in below)


def _names(tracefs: Tracefs, path: str) -> list[str]:
    """Return the names in a directory; none for a file."""
    try:
        return tracefs.names(path)
    except NotADirectoryError:
        return []


def _reading(read: Callable[[str], bytes], path: str) -> Callable[[], bytes]:
    return lambda: read(path)


def _column(names: Iterable[bytes]) -> bytes:
    return b"".join(name + b"\n" for name in sorted(names))
