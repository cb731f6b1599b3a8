"""What /proc/kallsyms and tracefs list of the kernel's symbols, parsed: bytes in, rows out."""

import re
import struct
from collections.abc import Iterable, Iterator
from typing import TypeAlias

Row: TypeAlias = tuple[int, bytes, bytes | None]
"""Address, name and module of a symbol; what begins at one without a name is not known."""

LINE = re.compile(rb"([0-9a-f]{1,16}) (?:([a-zA-Z?]) )?([^\s\[\]]+)(?:\s+\[([^\s\[\]]+)\])?\s*")
TEXT = (None, b"t", b"T", b"w", b"W")
"""The types of functions; tracefs' list has nothing else, and no types."""

KERNEL = 1 << (8 * struct.calcsize("P") - 1)
"""Addresses start in the upper half; below are offsets of what every CPU has its own of."""

SITE = 7
"""A function is listed by the place that is patched: on x86 4 bytes after its start, behind an endbr64."""

LEAST, MOST = 16, 4096
"""Bytes that are certainly a listed function's, and that a module's is taken to have at the most."""

WINDOW = 16
"""Listed functions that are searched for the one that comes next in the kernel's own order."""

PADDING, OVERRIDDEN = b"__pfx_", b"__ftrace_invalid_address_"
"""What stands before a function and never runs, and a weak function that another one replaced."""


def parse_symbols(lines: Iterable[bytes]) -> Iterator[Row]:
    """Address, name and module of each line that is one.

    Of modules their functions alone: their data lies between, and the kernel knows more of it. What
    kallsyms lists as of ``__builtin__kprobes`` and the like, the kernel prints as a bare address, and a
    BPF program without brackets (kernel/kallsyms.c: kallsyms_lookup_buildid).
    """
    for line in lines:
        found = LINE.fullmatch(line)
        if found is None:
            continue
        address, kind, name, module = int(found[1], 16), found[2], found[3], found[4]
        if address < KERNEL or (module is not None and kind not in TEXT):
            continue
        if module is not None and module.startswith(b"__builtin__"):
            yield address, b"", None
        else:
            yield address, name, None if module == b"bpf" else module


def parse_functions(text: bytes) -> list[Row]:
    """Tracefs' list of functions, by the addresses where they start."""
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
    """Names of the kernel's own functions in the order of kallsyms, whose addresses may all be 0."""
    for line in lines:
        found = LINE.fullmatch(line)
        if found and found[2] in TEXT and found[4] is None and not found[3].startswith(PADDING):
            yield found[3]


def certain(functions: list[Row], order: Iterable[bytes]) -> Iterator[Row]:
    """The functions, and where it is no longer certain that an address is theirs, a row without a name.

    Between two listed functions may lie others that cannot be traced: do_syscall_64, or a kretprobe's
    trampoline. In the kernel itself the order of all names tells between which. A module's are not in
    order; of them nearly all can be traced, so what is near is taken to be one's own.
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
    """Which of the listed functions are followed by the next one listed, and by nothing else before."""
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
