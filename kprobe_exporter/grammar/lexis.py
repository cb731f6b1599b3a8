"""Shared by all grammars: numbers, names, the columns of errors, and forbidden characters."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import NoReturn

from kprobe_exporter.errors import GrammarError

# Names of events, arguments and parameters: is_good_name() of kernel/trace/trace.h.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A symbol as /proc/kallsyms lists it, including the compiler's suffixes such as ``.isra.0``.
SYMBOL = re.compile(r"[A-Za-z_.][A-Za-z0-9_.$]*")
# A module as /proc/modules lists it: the kernel writes ``_`` where a file name has ``-``.
MODULE = re.compile(r"[A-Za-z0-9_]+")

LONG_MIN, LONG_MAX, ULONG_MAX = -(2**63), 2**63 - 1, 2**64 - 1

SECONDS: Mapping[str, Decimal] = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
"""Units of time as users write them. Which of them are allowed is a matter of the place."""

_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|(0[0-7]*)|[1-9][0-9]*)")

_FORBIDDEN = re.compile(r"[^\t -~]|#")


def fail(message: str, text: str, column: int = 0) -> NoReturn:
    """Raise the GrammarError for ``text`` at ``column``, counted from 0."""
    raise GrammarError(message, text, column)


@contextmanager
def part_of(text: str, column: int) -> Iterator[None]:
    """Convert the columns of errors in a part that begins at ``column`` to columns of the whole ``text``."""
    try:
        yield
    except GrammarError as error:
        place = min(column + error.column, len(text))
        raise GrammarError(error.message, text, place) from None


def refuse_forbidden(text: str, longest: int) -> None:
    """Refuse characters with which one line could become two lines or another command.

    The kernel ends a command at a newline and starts a comment at ``#`` (trace_parse_run_command() of
    kernel/trace/trace.c). Its isspace() is true for a byte that UTF-8 uses, so text that is not ASCII could
    split a word. A ``;`` has no meaning for the kernel. ``longest`` is in bytes.
    """
    if found := _FORBIDDEN.search(text):
        what = {"\n": "a newline", "\0": "a NUL byte", "#": "a '#'"}.get(found[0])
        what = what or f"the character U+{ord(found[0]):04X}"
        fail(f"{what} cannot be written to the kernel, take it out", text, found.start())
    if len(text) > longest:
        fail(f"the text is longer than the {longest} bytes that the kernel takes", text, longest)


def kernel_number(text: str, lowest: int = 0, highest: int = ULONG_MAX) -> int | None:
    """Parse a number as kstrtoull() and kstrtoll() of lib/kstrtox.c do in base 0; None if it is invalid.

    ``0x`` marks a hexadecimal number and a leading ``0`` an octal one, as in C.
    """
    found = _NUMBER.fullmatch(text)
    if not found or len(text) > 24:  # longer than 2**64 in octal, so int() need not parse it
        return None
    value = int(text, 8 if found[1] else 0)
    return value if lowest <= value <= highest else None


def closest(word: str, words: Iterable[str]) -> str:
    """Return ``, did you mean 'x'?`` for the nearest of ``words``, or an empty string.

    The words are near also without the parts that they begin with alike, such as ``sys_enter_``.
    """
    near = difflib.get_close_matches(word, map(str, words))
    found = next((other for other in near if _is_near(word, other)), None)
    return f", did you mean {found!r}?" if found else ""


def _is_near(word: str, other: str) -> bool:
    at = word.rfind("_", 0, _first_difference(word, other)) + 1
    return at == 0 or bool(difflib.get_close_matches(word[at:], [other[at:]]))


def misspelt(word: str, words: Iterable[str]) -> str:
    """Return ``, did you mean 'x'?`` for one of ``words`` that is one letter away, or an empty string.

    One letter is missing, added or another one, or two neighbours are exchanged.
    """
    near = min(filter(lambda other: _is_slip(word, other), words), default=None)
    return f", did you mean {near!r}?" if near else ""


def _first_difference(word: str, other: str) -> int:
    pairs = enumerate(zip(word, other, strict=False))
    return next((at for at, (mine, its) in pairs if mine != its), min(len(word), len(other)))


def _is_slip(word: str, other: str) -> bool:
    at = _first_difference(word, other)
    one, two = word[at:], other[at:]
    exchanged = one[:2] == two[1::-1] and one[2:] == two[2:]
    return word != other and (exchanged or one[1:] == two[1:] or one[1:] == two or one == two[1:])
