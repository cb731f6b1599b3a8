"""Parses the symbols that /proc/kallsyms and tracefs list: bytes in, rows out."""

import re
import struct
from collections.abc import Iterable, Iterator
from typing import TypeAlias

Row: TypeAlias = tuple[int, bytes, bytes | None]
"""Address, name and module of a symbol. From a row without a name on, the symbol is not known."""

LINE = re.compile(rb"([0-9a-f]{1,16}) (?:([a-zA-Z?]) )?([^\s\[\]]+)(?:\s+\[([^\s\[\]]+)\])?\s*")
TEXT = "tTwW"
"""The types of functions (nm(1): text, and weak symbols). tracefs' list has functions only, without types."""

TYPES = (None, *(kind.encode() for kind in TEXT))

KERNEL = 1 << (8 * struct.calcsize("P") - 1)
"""Kernel addresses are in the upper half; lower values are offsets of per-CPU variables."""

SITE = 7
"""tracefs lists the place that ftrace patches: on x86 4 bytes after the start, behind an endbr64."""

LEAST, MOST = 16, 4096
"""Bytes that certainly belong to a listed function, and that a module's function is taken to have at most."""

WINDOW = 16
"""Listed functions that are searched for the next name in the kernel's own order."""

PADDING, OVERRIDDEN = b"__pfx_", b"__ftrace_invalid_address_"
"""Prefixes of the padding before a function, which never runs, and of an overridden weak function."""


def parse_symbols(lines: Iterable[bytes]) -> Iterator[Row]:
    """Yield address, name and module of each valid line.

    Of modules only functions are kept: their data lies between them, and the kernel knows more about it.
    The kernel prints symbols of ``__builtin__kprobes`` and the like as bare addresses, and a BPF program
    without a module in brackets (kernel/kallsyms.c: kallsyms_lookup_buildid).
    """
    for line in lines:
        found = LINE.fullmatch(line)
        if found is None:
            continue
        address, kind, name, module = int(found[1], 16), found[2], found[3], found[4]
        if address < KERNEL or (module is not None and kind not in TYPES):
            continue
        if module is not None and module.startswith(b"__builtin__"):
            yield address, b"", None
        else:
            yield address, name, None if module == b"bpf" else module


def parse_functions(text: bytes) -> list[Row]:
    """Parse tracefs' list of functions; sorted by the addresses at which they start."""
    rows = parse_symbols(match[0] for match in re.finditer(rb"[^\n]+", text))
    return sorted(
        (
            (address & ~SITE, name, module)
            for address, name, module in rows
            if not name.startswith(OVERRIDDEN)
        ),
        key=lambda row: row[0],
    )


def parse_order(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the kernel's own functions in the order of kallsyms, whose addresses may all be 0."""
    for line in lines:
        found = LINE.fullmatch(line)
        if found and found[2] in TYPES and found[4] is None and not found[3].startswith(PADDING):
            yield found[3]


def certain(functions: list[Row], order: Iterable[bytes]) -> Iterator[Row]:
    """Yield the functions, and a row without a name where an address may no longer belong to one.

    Untraceable functions, such as do_syscall_64 or a kretprobe's trampoline, may lie between two listed
    ones. In the kernel itself, the order of all names tells where. A module's functions are not in order,
    but nearly all are traceable, so the ``MOST`` bytes from a listed function on are taken to be its own.
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
        here = next(
            (at for at in range(last + 1, min(last + 1 + WINDOW, len(listed))) if listed[at] == name), None
        )
        if here is None:
            between = True
            continue
        if here == last + 1 and not between:
            followed.add(last)
        last, between = here, False
    return followed if between else followed | {last}
