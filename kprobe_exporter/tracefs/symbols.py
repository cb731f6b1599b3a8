"""The kernel's symbols by address, loaded when the first is asked for."""

import logging
import os
import re
import struct
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.tracefs.files import Tracefs

log = logging.getLogger(__name__)

FUNCTIONS = "available_filter_functions_addrs"
"""Of tracefs since 6.5: the addresses of all functions that can be traced, for whoever may read tracefs."""

LINE = re.compile(rb"([0-9a-f]{1,16}) (?:([a-zA-Z?]) )?([^\s\[\]]+)(?:\s+\[([^\s\[\]]+)\])?\s*")
TEXT = (None, b"t", b"T", b"w", b"W")
"""The types of functions; tracefs' list has nothing else, and no types."""

KERNEL = 1 << (8 * struct.calcsize("P") - 1)
"""Addresses start in the upper half; below are offsets of what every CPU has its own of."""

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
        return self._kallsyms_visible() or self._functions_visible()

    def name(self, address: int) -> bytes | None:
        """The function that holds the address; None if that is not known."""
        found = self._find(address)
        return None if found is None else found.name

    def text(self, address: int) -> bytes:
        """The address as the kernel prints it: ``vfs_read+0x10/0x1a0``, ``f+0x0/0x10 [ext4]``, or hex."""
        found = self._find(address)
        return b"0x%x" % address if found is None else found.render()

    def _find(self, address: int) -> Found | None:
        found = self._cache.get(address)
        due = self._clock() - self._loaded >= RELOAD_PAUSE
        if found is not None or (address in self._cache and not due):
            return found
        found = self._look_up(address)
        if found is None and due:
            self._load()
            found = self._look_up(address)
        if len(self._cache) >= MOST_CACHED:
            self._cache.clear()
        self._cache[address] = found
        return found

    def _look_up(self, address: int) -> Found | None:
        return self._table.find(address) if self._table is not None else None

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
        elif self._functions_visible():
            yield from parse_symbols(self._files.read(FUNCTIONS).splitlines())

    def _functions_visible(self) -> bool:
        """It is there on kernels that forbid to open it, too."""
        try:
            os.close(self._files.open_pipe(FUNCTIONS))
        except OSError:
            return False
        return True

    def _kallsyms_visible(self) -> bool:
        """All addresses are 0 to whoever may not see them; that was decided when the file was opened."""
        try:
            with self._kallsyms.open("rb") as lines:
                return any(True for _ in parse_symbols(islice(lines, 10_000)))
        except OSError:
            return False


def parse_symbols(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Address, name and module of each line that is one.

    Of modules their functions alone: their data lies between, and the kernel knows more of it.
    """
    for line in lines:
        found = LINE.fullmatch(line)
        if found is None or (found[4] is not None and found[2] not in TEXT):
            continue
        if (address := int(found[1], 16)) >= KERNEL:
            yield address, found[3], found[4]
