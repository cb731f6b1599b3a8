"""Inputs for fuzzing: real material, changed a little or a lot by a seeded random number generator."""

import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

CHANGES = (0, 1, 1, 1, 2, 2, 4, 8, 32)
"""Numbers of changes of an input; most are small, so that inputs get far into a parser."""

LONGEST = 1 << 16
"""Most bytes of an input."""

NOISE = 0.03
"""The fraction of inputs that are only random bytes."""

HEAD = 64
"""Bytes at the start, where binary formats have their headers; half of all positions are chosen there."""

EXTREMES = tuple(
    struct.pack(order + form, number & (1 << 8 * size) - 1)
    for size, form in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))
    for bits in (7, 8, 15, 16, 31, 32, 63, 64)
    if bits <= 8 * size
    for number in (0, 1, (1 << bits) - 1, 1 << bits - 1)
    for order in "<>"
)
NUMBERS = (
    *(b"0", b"-0", b"-1", b"1", b"255", b"256", b"65536", b"2147483648", b"4294967295", b"4294967296"),
    *(b"9223372036854775808", b"18446744073709551615", b"18446744073709551616", b"0x7fffffffffffffff"),
    *(b"1e999", b"nan", b"inf", b"0x", b"1_0", b"+5", b"1.5", b"", b"00000000000000000007"),
    *(b"9" * 400, b"9" * 5000, "٣".encode(), "²".encode()),
)
"""Replacements of digits. Python converts at most 4,300 digits, and accepts those of any script."""

ODD = (
    *(b"\0", b"\n", b"\r\n", b"\t", b" ", b"\x0b", b"\x0c", b"\x1c", b"\x7f", b"\x85", b"\xff", b"\xc0\x80"),
    *("\u2028".encode(), "\u202e".encode(), "\ufeff".encode(), b"\xed\xa0\x80", b"%s", b"\\", b'"', b"'"),
    *(b"=", b":", b"/", b"..", b"[", b"]", b"{", b"}", b"(", b")", b"#", b",", b"-", b"~", b"\x1b[31m"),
)
DIGITS = re.compile(rb"[0-9]+")

Change: TypeAlias = Callable[[Random, bytearray, "Mutator"], None]


class Mutator:
    """Makes inputs from ``material``; they depend on the random number generator alone.

    ``words`` are inserted: they have a meaning in the format, and the material lacks them.
    """

    def __init__(
        self, material: Sequence[bytes], words: Sequence[bytes] = (), longest: int = LONGEST
    ) -> None:
        assert material
        self.material = tuple(material)
        self.words = (*words, *ODD)
        self._longest = longest

    def __call__(self, random: Random) -> bytes:
        """Return one input."""
        if random.random() < NOISE:
            return random.randbytes(random.randrange(300))
        data = bytearray(random.choice(self.material))
        for _ in range(random.choice(CHANGES)):
            random.choice(KINDS)(random, data, self)
            del data[self._longest :]
        return bytes(data)

    def change(self, random: Random, data: bytes) -> bytes:
        """Return the bytes with one change."""
        changed = bytearray(data)
        random.choice(KINDS)(random, changed, self)
        return bytes(changed[: self._longest])


def _place(random: Random, data: bytearray) -> int:
    """A random position, the end included."""
    return random.randrange(min(len(data), HEAD if random.random() < 0.5 else len(data)) + 1)


def _slice(random: Random, data: bytes | bytearray) -> slice:
    """A random slice, usually a short one."""
    start = random.randrange(len(data) + 1)
    return slice(start, start + random.randrange(1 << random.randrange(1, 11)))


def _flip(random: Random, data: bytearray, _: Mutator) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set_extreme(random: Random, data: bytearray, _: Mutator) -> None:
    extreme, at = random.choice(EXTREMES), _place(random, data)
    at -= at % len(extreme) if random.random() < 0.5 else 0
    data[at : at + len(extreme)] = extreme


def _set_number(random: Random, data: bytearray, _: Mutator) -> None:
    found = DIGITS.search(data, random.randrange(len(data) + 1)) or DIGITS.search(data)
    if found:
        data[slice(*found.span())] = random.choice(NUMBERS)


def _insert_word(random: Random, data: bytearray, mutator: Mutator) -> None:
    at = _place(random, data)
    data[at:at] = random.choice(mutator.words)


def _replace_by_word(random: Random, data: bytearray, mutator: Mutator) -> None:
    data[_slice(random, data)] = random.choice(mutator.words)


def _insert_noise(random: Random, data: bytearray, _: Mutator) -> None:
    at = _place(random, data)
    data[at:at] = random.randbytes(random.randrange(1, 9))


def _delete(random: Random, data: bytearray, _: Mutator) -> None:
    del data[_slice(random, data)]


def _cut(random: Random, data: bytearray, _: Mutator) -> None:
    del data[random.randrange(len(data) + 1) :]


def _repeat(random: Random, data: bytearray, _: Mutator) -> None:
    part = _slice(random, data)
    data[part.start : part.start] = bytes(data[part]) * random.choice((1, 1, 2, 5, 300))


def _move(random: Random, data: bytearray, _: Mutator) -> None:
    part = _slice(random, data)
    moved = bytes(data[part])
    del data[part]
    at = _place(random, data)
    data[at:at] = moved


def _splice(random: Random, data: bytearray, mutator: Mutator) -> None:
    """Insert a slice of another piece of material, or overwrite as many bytes with it."""
    other = random.choice(mutator.material)
    taken = other[_slice(random, other)]
    at = _place(random, data)
    data[at : at + (len(taken) if random.random() < 0.5 else 0)] = taken


KINDS: tuple[Change, ...] = (
    *(_flip, _set_extreme, _set_number, _insert_word, _replace_by_word, _insert_noise),
    *(_delete, _cut, _repeat, _move, _splice),
)
