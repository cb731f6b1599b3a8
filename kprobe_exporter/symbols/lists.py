"""Reads and parses the kernel's lists of its functions, symbols and modules."""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple, TypeAlias, TypeVar

from kprobe_exporter.tracefs.files import TRACEABLE
from kprobe_exporter.tracefs.kernel_files import KernelFiles

T = TypeVar("T")

ADDRESSES = "available_filter_functions_addrs"
"""``TRACEABLE`` with each function's address (since 6.5), for any process that may read tracefs."""

SYMBOLS, MODULES = "proc/kallsyms", "proc/modules"
BLACKLIST = "sys/kernel/debug/kprobes/blacklist"
"""The paths of the other lists, below the root."""

INSTALLED = "lib/modules/{}/modules.{}"
"""The files of depmod(8) about the modules of a kernel's release: ``dep`` for all, ``symbols`` for
exports."""

Row: TypeAlias = tuple[int, bytes, bytes | None]
"""Address, name and module of a symbol. From a row without a name on, the symbol is not known."""

LINE = re.compile(rb"([0-9a-f]{1,16}) (?:([a-zA-Z?]) )?([^\s\[\]]+)(?:\s+\[([^\s\[\]]+)\])?\s*")
TEXT = "tTwW"
"""The types of functions (nm(1): text, and weak symbols). tracefs' list has functions only, without types."""

TYPES = (None, *(kind.encode() for kind in TEXT))

KERNEL = 1 << (8 * struct.calcsize("P") - 1)
"""Kernel addresses are in the upper half; lower values are offsets of per-CPU variables."""

SITE = 7  # tracefs lists the place that ftrace patches: on x86 4 bytes after the start, behind an endbr64

LEAST, MOST = 16, 4096
"""Bytes that certainly belong to a listed function, and that a module's function is taken to have at most."""

WINDOW = 16  # Listed functions that are searched for the next name in the kernel's own order

MAPPING = re.compile(rb"\$[adtx](?:\..*)?")
"""Marks that assemblers of arm64 put where code and data begin. /proc/kallsyms lists those in modules, and
the kernel names no address after them (is_mapping_symbol() of include/linux/module_symbol.h)."""

PADDING, OVERRIDDEN = b"__pfx_", b"__ftrace_invalid_address_"
"""Prefixes of the padding before a function, which never runs, and of an overridden weak function."""


WRAPPERS = ("__x64_", "__arm64_", "__riscv_", "__s390x_")
"""The prefixes that architectures put before ``sys_NAME`` (arch/*/include/asm/syscall_wrapper.h). These
functions take one argument, the registers of the system call (struct pt_regs). Those behind the calls of
32-bit programs have other prefixes, such as ``__ia32_``."""

WRAPPED = re.compile(rb"(?:^| )(?:%s)(sys_\w+)$" % "|".join(WRAPPERS).encode(), re.MULTILINE)
"""The name of a system call's function, with its prefix, at the end of a line of a list."""

DOTTED = re.compile(rb"^[^\s.]*\.\S*", re.MULTILINE)
"""A function's name in which there is a dot, at the beginning of a line."""

FEW = 32  # Names that are searched for one by one in a block of lines, or in the list of functions


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


class TraceableFunctions(Mapping[str, list[str]]):
    """The result of ``traceable`` for all names, parsed once more than FEW names are asked for, or all.

    A search for a name takes less than 1 ms. Parsing the 50,000 lines of a kernel takes 50 to 100 ms, which
    is seconds under emulation.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._text = b"\n".join((b"", *map(bytes.strip, lines), b""))
        self._asked: dict[str, list[str]] = {}

    @cached_property
    def _all(self) -> dict[str, list[str]]:
        return traceable(self._text.split(b"\n"))

    def __getitem__(self, name: str) -> list[str]:
        if "_all" in vars(self) or (name not in self._asked and len(self._asked) >= FEW):
            return self._all[name]
        if name not in self._asked:
            wanted = name.encode()
            self._asked[name] = traceable(self._beginning(b"\n" + wanted), {wanted}).get(name, [])
        if not (found := self._asked[name]):
            raise KeyError(name)
        return found

    def _beginning(self, start: bytes) -> Iterator[bytes]:
        """Yield the lines that begin so."""
        at = self._text.find(start)
        while 0 <= at < len(self._text) - 1:
            end = self._text.index(b"\n", at + 1)
            yield self._text[at + 1 : end]
            at = self._text.find(start, end)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __bool__(self) -> bool:
        return len(self._text) > 2

    @cached_property
    def dotted(self) -> list[str]:
        """The names with a dot, as compilers make them: one in twenty, so a search here is fast."""
        return [text(name) for name in dict.fromkeys(DOTTED.findall(self._text))]


@dataclass
class Lists:
    """The kernel's lists; a call opens a list and reads it line by line. OSError if it cannot be read.

    ``symbols`` are read in blocks of whole lines, as they are many, and few of them are looked for. The lists
    that the properties parse are read once, at first use, and are None if they cannot be read. Use one for a
    single start or reload, since modules come and go.
    """

    traceable: Callable[[], Iterable[bytes]]
    symbols: Callable[[], Iterable[bytes]]
    blacklist: Callable[[], Iterable[bytes]]
    modules: Callable[[], Iterable[bytes]]
    addresses: Callable[[], Iterable[bytes]] = tuple
    installed: Callable[[], Iterable[bytes]] = tuple
    exports: Callable[[], Iterable[bytes]] = tuple

    @classmethod
    def of(cls, kernel: KernelFiles) -> "Lists":
        """The lists of this kernel."""
        return cls(
            lambda: kernel.tracefs.read(TRACEABLE).splitlines(),
            lambda: kernel.blocks(SYMBOLS),
            lambda: kernel.lines(BLACKLIST),
            lambda: kernel.lines(MODULES),
            lambda: kernel.tracefs.read(ADDRESSES).splitlines(),
            lambda: kernel.lines(INSTALLED.format(kernel.release, "dep")),
            lambda: kernel.lines(INSTALLED.format(kernel.release, "symbols")),
        )

    @cached_property
    def functions(self) -> "TraceableFunctions | None":
        """The modules of every traceable function, by its name, "" for the kernel."""
        return attempt(lambda: TraceableFunctions(self.traceable()))

    @cached_property
    def loaded(self) -> set[str] | None:
        """The names of the loaded modules."""
        return attempt(lambda: modules(self.modules()))

    @cached_property
    def blacklisted(self) -> set[bytes] | None:
        """The names of the functions off which the kernel keeps kprobes."""
        return attempt(lambda: blacklisted(self.blacklist()))

    @cached_property
    def system_calls(self) -> set[str]:
        """``sys_NAME`` for each system call whose function has another name here."""
        blocks = attempt(lambda: list(self.symbols())) or attempt(lambda: list(self.traceable())) or []
        return {text(found[1]) for block in blocks for found in WRAPPED.finditer(block)}

    def named(self, names: Iterable[str]) -> dict[str, list[ListedSymbol]] | None:
        """Return the symbols of these names, searched for at each call; None if the list cannot be read."""
        return attempt(lambda: symbols(self.symbols(), {name.encode() for name in names}))


def lines_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of blocks of lines, one by one."""
    return chain.from_iterable(map(bytes.splitlines, blocks))


def symbols(blocks: Iterable[bytes], wanted: set[bytes]) -> dict[str, list[ListedSymbol]]:
    """Parse lines of kallsyms: ``address type name``, and ``[mod]`` after a tab.

    For a few names this takes a tenth of the time in which Python splits all lines.
    """
    found: dict[str, list[ListedSymbol]] = {}
    lines = (
        lines_of(blocks) if len(wanted) > FEW else (line for each in blocks for line in _with(wanted, each))
    )
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and fields[2] in wanted:
            made = ListedSymbol(_number(fields[0]), text(fields[1]), _module(fields, 3))
            found.setdefault(text(fields[2]), []).append(made)
    return found


def _with(names: set[bytes], block: bytes) -> Iterator[bytes]:
    """Yield the lines of a block of kallsyms in which one of the names begins after a space."""
    starts = set()
    for word in (b" " + name for name in names):
        at = block.find(word)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            at = block.find(word, at + 1)
    for start in sorted(starts):
        end = block.find(b"\n", start)
        yield block[start : end if end >= 0 else len(block)]


def names_at(blocks: Iterable[bytes], addresses: set[int]) -> dict[bytes, int]:
    """Return the names in kallsyms that have one of these addresses."""
    found = {}
    for line in lines_of(blocks):
        fields = line.split()
        if len(fields) > 2 and (address := _number(fields[0])) in addresses:
            found[fields[2]] = address
    return found


def names_between(blocks: Iterable[bytes], ends: tuple[str, str], wanted: set[bytes]) -> set[str]:
    """Return those names that kallsyms, which is sorted by address, has between two symbols of the kernel."""
    first, last = (end.encode() for end in ends)
    found, inside = set(), False
    for line in lines_of(blocks):
        fields = line.split()
        if len(fields) < 3:
            continue
        name = fields[2]
        if name in (first, last):
            inside = name == first
        elif inside and name in wanted:
            found.add(text(name))
    return found


def blacklisted(lines: Iterable[bytes]) -> set[bytes]:
    """Parse the blacklist of kprobes: ``0xSTART-0xEND``, the name, and ``[mod]`` of a module's function."""
    return {fields[1] for fields in map(bytes.split, lines) if len(fields) > 1}


def blacklisted_areas(lines: Iterable[bytes]) -> list[range]:
    """Parse the addresses of the blacklist. It shows them as 0 to a process that may not see them."""
    pairs = [fields[0].split(b"-") for fields in map(bytes.split, lines) if fields]
    areas = [range(_number(pair[0]), _number(pair[1])) for pair in pairs if len(pair) == 2]
    return [area for area in areas if area]


def modules(lines: Iterable[bytes]) -> set[str]:
    """Return the names of the loaded modules."""
    return {text(fields[0]) for fields in map(bytes.split, lines) if fields}


def installed_modules(lines: Iterable[bytes]) -> set[str]:
    """Return the names of the modules in lines ``kernel/fs/ext4/ext4.ko.xz: DEPENDENCIES`` of modules.dep."""
    paths = (text(line.partition(b":")[0]) for line in lines)
    return {path.rpartition("/")[2].partition(".")[0].replace("-", "_") for path in paths} - {""}


def exporting_module(lines: Iterable[bytes], symbol: str) -> str | None:
    """Return the module that exports this symbol, loaded or not; None if no line names one.

    The lines of modules.symbols (depmod(8)) are ``alias symbol:NAME MODULE``, for exported symbols only.
    """
    wanted = b"alias symbol:" + symbol.encode() + b" "
    found = next((line for line in lines if line.startswith(wanted)), None)
    return None if found is None else text(found.split()[-1]).replace("-", "_")


def _number(address: bytes) -> int:
    try:
        return int(address, 16)
    except ValueError:
        return 0


def _module(fields: list[bytes], place: int) -> str:
    return text(fields[place].strip(b"[]")) if len(fields) > place else ""


def parse_symbols(lines: Iterable[bytes]) -> Iterator[Row]:
    """Yield address, name and module of each valid line.

    Of modules only functions are kept: their data lies between them, and the kernel knows more about it.
    Marks of the assembler are not names. The kernel prints symbols of ``__builtin__kprobes`` and the like as
    bare addresses, and a BPF program without a module in brackets (kernel/kallsyms.c:
    kallsyms_lookup_buildid).
    """
    for line in lines:
        found = LINE.fullmatch(line)
        if found is None:
            continue
        address, kind, name, module = int(found[1], 16), found[2], found[3], found[4]
        if address < KERNEL or (module is not None and (kind not in TYPES or MAPPING.fullmatch(name))):
            continue
        if module is not None and module.startswith(b"__builtin__"):
            yield address, b"", None
        else:
            yield address, name, None if module == b"bpf" else module


def parse_functions(text: bytes) -> list[Row]:
    """Parse tracefs' list of functions; sorted by the addresses at which they start."""
    rows = parse_symbols(match[0] for match in re.finditer(rb"[^\n]+", text))
    kept = ((at & ~SITE, name, module) for at, name, module in rows if not name.startswith(OVERRIDDEN))
    return sorted(kept, key=lambda row: row[0])


def parse_order(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the kernel's own functions in the order of kallsyms, whose addresses may all be 0."""
    for line in lines:
        found = LINE.fullmatch(line)
        if found and found[2] in TYPES and found[4] is None and not found[3].startswith(PADDING):
            yield found[3]


def certain(functions: list[Row], order: Iterable[bytes]) -> Iterator[Row]:
    """Yield the functions, and a row without a name where an address may no longer belong to one.

    Untraceable functions, such as do_syscall_64 or a kretprobe's trampoline, may lie between two listed ones.
    In the kernel itself, the order of all names tells where. A module's functions are not in order, but
    nearly all are traceable. So the ``MOST`` bytes from a listed function on are taken to be its own.
    """
    followed = _followed([name for _, name, module in functions if module is None], order)
    ends = [*(address for address, _, _ in functions[1:]), 1 << 64]
    at = -1
    for row, end in zip(functions, ends, strict=False):
        yield row
        at += row[2] is None
        reach = MOST if row[2] is not None else end - row[0] if at in followed else LEAST
        if row[0] + reach < end:
            yield row[0] + reach, b"", None


def _followed(listed: list[bytes], order: Iterable[bytes]) -> set[int]:
    """Return the indices of listed functions that the next listed one follows, with no other between."""
    followed: set[int] = set()
    last, between = -1, True
    for name in order:
        near = range(last + 1, min(last + 1 + WINDOW, len(listed)))
        here = next((at for at in near if listed[at] == name), None)
        if here is None:
            between = True
            continue
        if here == last + 1 and not between:
            followed.add(last)
        last, between = here, False
    return followed if between else followed | {last}
