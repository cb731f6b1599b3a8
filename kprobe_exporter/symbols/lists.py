"""Reads the kernel's lists of its functions, symbols and modules line by line."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from kprobe_exporter.tracefs.files import TRACEABLE

T = TypeVar("T")

ADDRESSES = "available_filter_functions_addrs"
"""``TRACEABLE`` with each function's address (since 6.5), for any process that may read tracefs."""


class Lists(NamedTuple):
    """The kernel's lists; a call opens a list and reads it line by line. OSError if it cannot be read."""

    traceable: Callable[[], Iterable[bytes]]
    symbols: Callable[[], Iterable[bytes]]
    blacklist: Callable[[], Iterable[bytes]]
    modules: Callable[[], Iterable[bytes]]
    addresses: Callable[[], Iterable[bytes]] = tuple

    @classmethod
    def of(cls, tracefs: Path, root: Path) -> "Lists":
        """The lists of this kernel. ``root`` is ``/``, or a directory that a test uses instead."""
        return cls(
            lambda: _lines(tracefs / TRACEABLE),
            lambda: _lines(root / "proc/kallsyms"),
            lambda: _lines(root / "sys/kernel/debug/kprobes/blacklist"),
            lambda: _lines(root / "proc/modules"),
            lambda: _lines(tracefs / ADDRESSES),
        )


class ListedSymbol(NamedTuple):
    """One line of kallsyms; the address is 0 if this process may not see it."""

    address: int
    kind: str
    module: str


def attempt(what: Callable[[], T]) -> T | None:
    """Return the result of ``what``, or None if a list cannot be read."""
    try:
        return what()
    except OSError:
        return None


def text(name: bytes) -> str:
    """Decode a name. Function names are ASCII; bytes that are not UTF-8 are escaped, to stay distinct."""
    return name.decode(errors="backslashreplace")


def traceable(lines: Iterable[bytes], wanted: set[bytes] | None = None) -> dict[str, list[str]]:
    """Return the modules of each traceable function, "" for the kernel; of all names or those ``wanted``."""
    found: dict[str, list[str]] = {}
    for line in lines:
        fields = line.split()
        if fields and (wanted is None or fields[0] in wanted):
            found.setdefault(text(fields[0]), []).append(_module(fields, 1))
    return found


def symbols(lines: Iterable[bytes], wanted: set[bytes]) -> dict[str, list[ListedSymbol]]:
    """Parse lines of kallsyms: ``address type name``, and ``[mod]`` after a tab."""
    found: dict[str, list[ListedSymbol]] = {}
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and fields[2] in wanted:
            made = ListedSymbol(_number(fields[0]), text(fields[1]), _module(fields, 3))
            found.setdefault(text(fields[2]), []).append(made)
    return found


def names_at(lines: Iterable[bytes], addresses: set[int]) -> dict[bytes, int]:
    """Return the names in kallsyms that have one of these addresses."""
    found = {}
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and (address := _number(fields[0])) in addresses:
            found[fields[2]] = address
    return found


def blacklisted(lines: Iterable[bytes]) -> set[bytes]:
    """Parse the blacklist of kprobes: ``0xSTART-0xEND``, the name, and ``[mod]`` of a module's function."""
    return {fields[1] for fields in map(bytes.split, lines) if len(fields) > 1}


def modules(lines: Iterable[bytes]) -> set[str]:
    """Return the names of the loaded modules."""
    return {text(fields[0]) for fields in map(bytes.split, lines) if fields}


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _number(address: bytes) -> int:
    try:
        return int(address, 16)
    except ValueError:
        return 0


def _module(fields: list[bytes], place: int) -> str:
    return text(fields[place].strip(b"[]")) if len(fields) > place else ""
