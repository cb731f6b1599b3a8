"""The values of events: what a field can hold, how its type is read, and what stands for nothing."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias, TypeGuard

Value: TypeAlias = int | bytes | None
"""A field of an event: a number, a string's raw bytes, or None where the kernel could not read it."""


ArgKind = Literal["int", "hex", "char", "bare", "str", "texts", "vector", "comm", "program"]
"""How the kernel prints an argument: a number in C syntax, hexadecimal digits without 0x, one character in
quotes, a quoted string, an array of quoted strings. Symbols, and arrays of numbers or characters, are text
without quotes. ``vector`` is such an array up to a null pointer, as argv, whose strings become one text.
``comm`` is the thread's name: it is not in the event, but looked up by the thread's id. ``program`` is the
name that a thread takes from the path of the program that it executes."""


ABSENT = b"\0"
"""Stands in a label for a field that the alternative in use lacks. No string of a record holds a NUL."""


SHORT_ID = 12
"""Digits of a container's id as ``docker ps`` shows it."""

COMM_BYTES = 15
"""The longest name of a thread (TASK_COMM_LEN of include/linux/sched.h, without the NUL)."""


MAX_ERRNO = 4095
"""include/linux/err.h: a return value from -MAX_ERRNO to -1 is an error."""


def is_error(value: object) -> TypeGuard[int]:
    """Return whether this return value is an error, if it was read with its own width and sign."""
    return isinstance(value, int) and -MAX_ERRNO <= value < 0


SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
"""The limits of the numbers that a field can hold, signed or not."""


def decimal(number: float) -> Fraction:
    """Return the shortest decimal number that is this float, which is what a configuration says."""
    return Fraction(repr(float(number)))


def unscaled(bound: float, scale: float) -> Fraction:
    """Return the number whose product with ``scale`` is ``bound``, by their decimals.

    A float has 53 bits: of larger numbers the float itself counts, since 2^63 is written as
    9.223372036854776e+18, which is more.
    """
    found = decimal(bound) / decimal(scale)
    return Fraction(float(found)) if 1 << 53 <= abs(found) <= 1 << 65 else found


class ReturnType(NamedTuple):
    """How the return register is read.

    ``fetch`` is the kernel's fetch type, None where there is nothing to read. ``signed`` values below 0 may
    be errors. A ``pointer`` has no value histogram, but an ERR_PTR (include/linux/err.h) counts as an error.
    ``wide`` says that the width is a guess: the upper half of the register is garbage for a C ``int``.
    ``errno`` says that errors are numbers of the kernel's. In a program, -3 may be getaddrinfo's EAI_AGAIN.
    """

    name: str
    fetch: str | None
    signed: bool = False
    pointer: bool = False
    wide: bool = False
    errno: bool = True

    @property
    def wrap(self) -> int:
        """The number N for which N-MAX_ERRNO .. N-1 are errors too, 0 if there is none.

        An ``int`` that was read as 64 bits has its errors below 2**32, and an ERR_PTR is one of the last
        addresses.
        """
        return 1 << 32 if self.wide else 1 << 64 if self.pointer else 0


class Arg(NamedTuple):
    """One argument of an event, in the order of its definition.

    ``bits`` is the width of a signed number that is printed as an unsigned one; below 0 it is that of an
    unsigned number that is printed with further bits. ``type`` is the kernel's fetch type, such as ``x32[4]``
    or ``symbol``; "" where the event's ``format`` is sufficient. ``field`` is the argument's name in that
    format, "" if it equals ``name``. ``pointer``: the plan takes the argument for an address.
    ``unsigned`` is the width in bits of an unsigned number, 0 for other values.

    ``network`` is the width in bytes of a number, or of an array's elements, that is recorded in network byte
    order, 0 for others; sources deliver it in the host's. ``guards`` are the arguments with the pointers
    through which this one was read: it is missing if one of them is not an address.
    """

    name: str
    kind: ArgKind
    bits: int = 0
    type: str = ""
    field: str = ""
    pointer: bool = False
    network: int = 0
    guards: tuple[str, ...] = ()
    unsigned: int = 0

    @property
    def shown(self) -> str:
        """Its name in the event's text and ``format``."""
        return self.field or self.name


LOWEST_ADDRESS = 4096
"""The kernel maps nothing in the first page, so that a null pointer and small offsets from it fault."""


HIGHEST_ADDRESS = (1 << 64) - MAX_ERRNO - 1
"""Above are the pointers that stand for errors: IS_ERR() of include/linux/err.h."""


def is_address(value: object) -> bool:
    """Return whether a pointer can be followed: it is neither null nor an ERR_PTR (include/linux/err.h)."""
    return isinstance(value, int) and LOWEST_ADDRESS <= value <= HIGHEST_ADDRESS


def swapped(value: int, size: int) -> int:
    """Return an unsigned number of ``size`` bytes with its bytes in the opposite order."""
    return int.from_bytes(value.to_bytes(size, "little"), "big")


_ELEMENT = re.compile(rb"\d{1,20}")


def swapped_elements(array: bytes, size: int) -> bytes:
    """Return an array as the kernel prints it, ``{1,2}``, with each number of ``size`` bytes swapped."""
    return _ELEMENT.sub(lambda found: b"%d" % swapped(int(found[0]) % (1 << 8 * size), size), array)


def enumerator(names: Mapping[int, str], value: int) -> str | None:
    """Return the name of an enum's value, also of a negative one of which one side has lost the sign."""
    found = names.get(value)
    for whole in (1 << 32, 1 << 64):
        if found is None and -whole // 2 <= value < whole:
            found = names.get(value - whole if value >= whole // 2 else value + whole if value < 0 else value)
    return found


Words: TypeAlias = Callable[[int], str | None]
"""Returns what the kernel calls a number, None if it has no word for it."""
