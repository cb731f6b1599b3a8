"""The kernel's symbols by address, loaded when the first is asked for."""

import logging
import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.tracefs.files import Tracefs

log = logging.getLogger(__name__)

FUNCTIONS = "available_filter_functions_addrs"
"""Of tracefs since 6.5: the addresses of all functions that can be traced, for whoever may read tracefs."""

LINE = re.compile(rb"([0-9a-f]{1,16}) (?:[a-zA-Z?] )?([^\s\[\]]+)(?:\s+\[([^\s\[\]]+)\])?\s*")
FARTHEST = 1 << 20
"""Bytes from a symbol's start: what is farther is in no symbol, but in a hole between them."""

RELOAD_PAUSE = 10.0
"""Seconds between two loadings, for modules that came later."""

MOST_CACHED = 16_384


class Found(NamedTuple):
    """The symbol that holds an address; ``size`` is the distance to the next one, in bytes."""

    name: bytes
    offset: int
    size: int
    module: bytes | None

    def render(self) -> bytes:
        """As the kernel prints it (kernel/kallsyms.c: sprint_symbol)."""
        module = b"" if self.module is None else b" [%s]" % self.module
        return b"%s+0x%x/0x%x%s" % (self.name, self.offset, self.size, module)


class Table:
    """Symbols in the order of their addresses; 12 bytes each, and their names in one string."""

    def __init__(self, symbols: Iterable[tuple[int, bytes, bytes | None]]) -> None:
        rows = sorted(symbols, key=lambda row: row[0])  # stable: of aliases the kernel takes the first
        self._addresses = array("Q", (address for address, _, _ in rows))
        self._ends = array("I")
        names = bytearray()
        for _, name, module in rows:
            names += name if module is None else name + b"\0" + module
            self._ends.append(len(names))
        self._names = bytes(names)

    def __len__(self) -> int:
        return len(self._addresses)

    def find(self, address: int) -> Found | None:
        """The symbol at or before the address, unless that is too far away."""
        after = bisect_right(self._addresses, address)
        if after == 0 or address - self._addresses[after - 1] > FARTHEST:
            return None
        start = self._addresses[after - 1]
        first = bisect_right(self._addresses, start - 1)
        text = self._names[self._ends[first - 1] if first else 0 : self._ends[first]]
        name, _, module = text.partition(b"\0")
        end = self._addresses[after] if after < len(self._addresses) else address + 1
        return Found(name, address - start, end - start, module or None)


class Symbols:
    """Names of addresses in the kernel, modules included. Not thread-safe.

    From /proc/kallsyms, where it shows addresses (with CAP_SYSLOG), else from tracefs' own list of
    functions, which knows no data and not the end of a function. Loading takes some tenths of a
    second, and 40 bytes of memory a symbol.
    """

    def __init__(
        self,
        files: Tracefs,
        kallsyms: Path = Path("/proc/kallsyms"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._kallsyms = kallsyms
        self._clock = clock
        self._table: Table | None = None
        self._loaded = float("-inf")
        self._cache: dict[int, Found | None] = {}

    def visible(self) -> bool:
        """Whether addresses may be seen at all. Cheap."""
        return self._kallsyms_visible() or self._files.exists(FUNCTIONS)

    def name(self, address: int) -> bytes | None:
        """The function that holds the address; None if that is not known."""
        found = self._find(address)
        return None if found is None else found.name

    def text(self, address: int) -> bytes:
        """The address as the kernel prints it: ``vfs_read+0x10/0x1a0``, ``f+0x0/0x10 [ext4]``, or hex."""
        found = self._find(address)
        return b"0x%x" % address if found is None else found.render()

    def _find(self, address: int) -> Found | None:
        if address in self._cache:
            return self._cache[address]
        found = self._table.find(address) if self._table is not None else None
        if found is None and self._clock() - self._loaded >= RELOAD_PAUSE:
            self._load()
            found = self._table.find(address) if self._table is not None else None
        if len(self._cache) >= MOST_CACHED:
            self._cache.clear()
        self._cache[address] = found
        return found

    def _load(self) -> None:
        self._loaded = self._clock()
        self._cache.clear()
        try:
            self._table = Table(self._read())
        except OSError as error:
            log.debug("the kernel's symbols cannot be read: %s", error)

    def _read(self) -> Iterator[tuple[int, bytes, bytes | None]]:
        if self._kallsyms_visible():
            with self._kallsyms.open("rb") as lines:
                yield from parse_symbols(lines)
        elif self._files.exists(FUNCTIONS):
            yield from parse_symbols(self._files.read(FUNCTIONS).splitlines())

    def _kallsyms_visible(self) -> bool:
        """All addresses are 0 to whoever may not see them; that was decided when the file was opened."""
        try:
            with self._kallsyms.open("rb") as lines:
                return any(
                    address
                    for address, _, _ in parse_symbols(
                        line for line, _ in zip(lines, range(50), strict=False)
                    )
                )
        except OSError:
            return False


def parse_symbols(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Address, name and module of each line that is one."""
    for line in lines:
        if found := LINE.fullmatch(line):
            yield int(found[1], 16), found[2], found[3]
