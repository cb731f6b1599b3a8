"""The kernel's symbols as they are saved: without addresses, yet with what planning reads off addresses.

Planning reads three things: whether a symbol's address is hidden, which symbols share one (aliases), and how
far a function is from ``_text``. Only ``_text+OFFSET`` names one of several functions with the same name.
That distance is the same after each boot of a build. In place of an address a saved line of kallsyms has:

    0        hidden
    -        one that no other symbol has
    =N       the N-th that several symbols have
    +HEX     a distance from _text
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.symbols.functions import BASE, INIT
from kprobe_exporter.symbols.lists import PADDING, TEXT

TYPES = TEXT.encode()
WITH_OFFSET = frozenset(name.encode() for name in (BASE, *INIT))

NOT_OF_THE_KERNEL = (b"[bpf]", b"[__builtin__")
"""In the place of a module: programs that processes loaded, and trampolines of probes."""

BASE_ADDRESS, SHARED, ALONE = 0xFFFFFFFF81000000, 0xFFFF900000000000, 0xFFFFA00000000000
"""Made-up addresses of ``_text``, of the first shared address, and of the first that is not."""

FARTHEST = 1 << 30  # Bytes from ``_text``: the kernel's image is at most 1 GiB (KERNEL_IMAGE_SIZE)
STEP = 16


class _Symbol(NamedTuple):
    address: int
    kind: bytes
    name: bytes
    module: bytes


def without_addresses(lines: Iterable[bytes]) -> bytes:
    """Return the lines of kallsyms as they are saved."""
    symbols = [*_parsed(lines)]
    names = Counter(one.name for one in symbols if one.kind in TYPES)
    count = Counter(one.address for one in symbols)
    base = next((one.address for one in symbols if one.name == BASE.encode() and not one.module), 0)
    places = {0: b"0"}
    for one in symbols:
        told = one.name in WITH_OFFSET or (names[one.name] > 1 and one.kind in TYPES)
        if told and base and not one.module and 0 <= one.address - base < FARTHEST:
            places[one.address] = b"+%x" % (one.address - base)
    groups = 0
    for address, several in count.items():
        if several > 1 and address not in places:
            groups += 1
            places[address] = b"=%d" % groups
    return b"".join(
        b"%s %s %s%s\n"
        % (places.get(one.address, b"-"), one.kind, one.name, one.module and b" " + one.module)
        for one in symbols
    )


def sites_without_addresses(lines: Iterable[bytes], symbols: Iterable[bytes]) -> bytes:
    """Return the lines of ``available_filter_functions_addrs`` as they are saved: of shared names only.

    ``symbols`` are the lines of kallsyms.
    """
    names = Counter[bytes]()
    base = 0
    for one in _parsed(symbols):
        names[one.name] += one.kind in TYPES
        if one.name == BASE.encode() and not one.module:
            base = one.address
    rows = []
    for line in lines:
        fields = line.split()
        if len(fields) == 2 and names[fields[1]] > 1 and base:
            distance = int(fields[0], 16) - base
            if 0 <= distance < FARTHEST:
                rows.append(b"+%x %s\n" % (distance, fields[1]))
    return b"".join(rows)


def with_addresses(saved: bytes) -> Iterator[bytes]:
    """Yield saved lines with made-up addresses, as the kernel prints them. Raises GrammarError."""
    for number, line in enumerate(saved.splitlines()):
        place, _, rest = line.partition(b" ")
        yield b"%016x %s" % (_address(place, number), rest)


def _address(place: bytes, number: int) -> int:
    if place == b"-":
        return ALONE + number * STEP
    if place == b"0":
        return 0
    try:
        if place[:1] == b"=":
            return SHARED + min(int(place[1:]), FARTHEST) * STEP
        if place[:1] == b"+":
            return BASE_ADDRESS + min(int(place[1:], 16), FARTHEST)
    except ValueError:
        pass
    raise GrammarError(f"has a damaged line in its list of symbols, line {number + 1}")


def _parsed(lines: Iterable[bytes]) -> Iterator[_Symbol]:
    """Yield the symbols of the kernel and of its modules in the order of kallsyms, without padding."""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        module = fields[3] if len(fields) > 3 else b""
        if not module.startswith(NOT_OF_THE_KERNEL) and not fields[2].startswith(PADDING):
            yield _Symbol(int(fields[0], 16), fields[1], fields[2], module)
