"""The kernel's symbols by address, loaded at the first look-up."""

import errno
import logging
import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.symbols.lists import (
    ADDRESSES,
    Row,
    attempt,
    certain,
    parse_functions,
    parse_order,
    parse_symbols,
)
from kprobe_exporter.tracefs.files import Tracefs

log = logging.getLogger(__name__)

FARTHEST = 1 << 20  # Bytes from a symbol's start. An address farther away is in a hole between symbols.

LAST_OF_PAGE = 4095
"""A module's last function is taken to end in its page: ftrace's trampolines lie in pages soon after it."""

RELOAD_PAUSE = 10.0
"""Seconds between two reads of /proc/modules, to notice modules that were loaded or unloaded."""

MOST_CACHED = 16_384


class Found(NamedTuple):
    """The symbol that holds an address; ``size`` is the distance to the next one, in bytes."""

    name: bytes
    offset: int
    size: int
    module: bytes | None

    def render(self) -> bytes:
        """Format it as the kernel does (kernel/kallsyms.c: sprint_symbol)."""
        module = b"" if self.module is None else b" [%s]" % self.module
        return b"%s+0x%x/0x%x%s" % (self.name, self.offset, self.size, module)


class AddressTable:
    """Symbols in the order of their addresses: 12 bytes each, and their names in one string.

    Filled row by row, because a list of all rows would take five times the memory while it exists.
    """

    def __init__(self, symbols: Iterable[Row]) -> None:
        self._addresses = array("Q")
        self._ends = array("I")
        self._names = bytearray()
        for address, name, module in symbols:
            self._addresses.append(address)
            self._names += name if module is None else name + b"\0" + module
            self._ends.append(len(self._names))
        self._sort()

    def _sort(self) -> None:
        """Sort, stably: the kernel uses the first of aliases. Its own symbols, already sorted, come first."""
        addresses, ends, names = self._addresses, self._ends, self._names
        rising = next((at for at, (a, b) in enumerate(pairwise(addresses), 1) if b < a), None)
        if rising is None:
            return
        in_place = bisect_right(addresses, min(addresses[rising:]), 0, rising)
        order = sorted(range(in_place, len(addresses)), key=addresses.__getitem__)
        texts = [bytes(names[ends[row - 1] if row else 0 : ends[row]]) for row in order]
        addresses[in_place:] = array("Q", map(addresses.__getitem__, order))
        end = ends[in_place - 1] if in_place else 0
        names[end:] = b"".join(texts)
        for row, text in enumerate(texts, in_place):
            end += len(text)
            ends[row] = end

    def __len__(self) -> int:
        return len(self._addresses)

    def find(self, address: int) -> Found | None:
        """Return the symbol at or before the address; None if it is too far away or has no name."""
        after = bisect_right(self._addresses, address)
        if after == 0 or address - self._addresses[after - 1] > FARTHEST:
            return None
        start = self._addresses[after - 1]
        name, module = self._name(bisect_right(self._addresses, start - 1))
        if name in (b"", b"_end"):
            return None
        following, of = self._name(after)
        if module and following and of != module and address > start | LAST_OF_PAGE:
            return None
        end = self._addresses[after] if after < len(self._addresses) else address + 1
        return Found(name, address - start, end - start, module or None)

    def _name(self, row: int) -> tuple[bytes, bytes]:
        """Return a row's name and module; ``_end`` for the row past the last one."""
        if row == len(self._ends):
            return b"_end", b""
        text = bytes(self._names[self._ends[row - 1] if row else 0 : self._ends[row]])
        name, _, module = text.partition(b"\0")
        return name, module


class Symbols:
    """Names of addresses in the kernel, modules included. Not thread-safe.

    They come from /proc/kallsyms if it shows addresses (with CAP_SYSLOG), else from tracefs' list of
    functions, which has no data and no sizes: then an address that may be in an untraceable function has
    no name. On 6.12, 190,000 symbols take 0.4 s and 10 MB, at most 12 MB while they are loaded; the
    53,000 functions that tracefs lists take 0.5 s, 6 MB and 17 MB. A look-up takes about 2 µs, or 0.2 µs
    from the cache. After modules were loaded or unloaded, the next look-up loads all symbols again. BPF
    programs that are loaded later do not cause this and have no name.
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
        self._table: AddressTable | None = None
        self._modules: frozenset[bytes] = frozenset()
        self._looked = float("-inf")
        self._cache: dict[int, Found | None] = {}

    def visible(self) -> bool:
        """Whether this process may see addresses at all. Cheap."""
        return self._kallsyms_visible() or self._functions_visible()

    def name(self, address: int) -> bytes | None:
        """Return the symbol that holds the address; None if it is not known."""
        found = self._find(address)
        return None if found is None else found.name

    def text(self, address: int) -> bytes:
        """Format the address as the kernel does: ``vfs_read+0x10/0x1a0``, ``f+0x0/0x10 [ext4]``, or hex."""
        found = self._find(address)
        return b"0x%x" % address if found is None else found.render()

    def _find(self, address: int) -> Found | None:
        if self._clock() - self._looked >= RELOAD_PAUSE:
            self._look_again()
        if address not in self._cache:
            if len(self._cache) >= MOST_CACHED:
                self._cache.clear()
            self._cache[address] = None if self._table is None else self._table.find(address)
        return self._cache[address]

    def _look_again(self) -> None:
        """Load the symbols, unless they are loaded and the modules are the same."""
        self._looked = self._clock()
        modules = self._loaded_modules()
        if self._table is not None and modules == self._modules:
            return
        self._modules = modules
        self._cache.clear()
        self._table = None  # frees its memory before the next table is built
        try:
            self._table = AddressTable(self._read())
        except OSError as error:
            log.debug("the kernel's symbols cannot be read: %s", error)

    def _loaded_modules(self) -> frozenset[bytes]:
        """Return the modules' names and sizes, which /proc/modules shows to every process."""
        text = attempt(self._kallsyms.with_name("modules").read_bytes) or b""
        return frozenset(b" ".join(line.split()[:2]) for line in text.splitlines())

    def _read(self) -> Iterator[Row]:
        if self._kallsyms_visible():
            with self._kallsyms.open("rb") as lines:
                yield from parse_symbols(lines)
        elif self._functions_visible():
            yield from certain(parse_functions(self._files.read(ADDRESSES)), self._order())

    def _order(self) -> Iterator[bytes]:
        """Yield the kernel's own functions by rising address, the order of kallsyms even if it hides them."""
        with suppress(OSError), self._kallsyms.open("rb") as lines:
            yield from parse_order(lines)

    def _functions_visible(self) -> bool:
        """Whether the file can be opened; it also exists on kernels that refuse to open it."""
        try:
            os.close(self._files.open_pipe(ADDRESSES))
        except OSError as error:  # a ReadOnlyTracefs opens no pipe: read the whole file
            return error.errno == errno.EROFS and bool(attempt(lambda: self._files.read(ADDRESSES)))
        return True

    def _kallsyms_visible(self) -> bool:
        """Whether addresses are not 0; the kernel decides this when the process opens the file."""
        try:
            with self._kallsyms.open("rb") as lines:
                return any(True for _ in parse_symbols(islice(lines, 10_000)))
        except OSError:
            return False
