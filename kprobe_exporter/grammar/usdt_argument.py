"""Arguments of USDT probes, such as ``-4@112(%rsp)``: from the notes' spelling to the kernel's.

A note has one ``[SIZE@]OPERAND`` for each argument, with a blank between them. SIZE is in bytes, below 0 for
a signed number. OPERAND is the compiler's own assembly for the place of the value (sys/sdt.h of SystemTap).
"""

import re
from typing import NamedTuple

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.lexis import kernel_number

MOST_ARGUMENTS = 12
"""STAP_PROBE12 of sys/sdt.h has the most."""

_ARGUMENT = re.compile(r"(?:(-?)([0-9]{1,2})(f?)@)?([^\s\[\]]*(?:\[[^\]]*\]\S*)?)")

_LONG = 2**31 - 1  # The kernel takes an offset as an int (parse_probe_arg() of kernel/trace/trace_probe.c)

_NUMBER = r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})"
_X86_MEMORY = re.compile(rf"({_NUMBER})?\(%([a-z0-9]+)\)")
_ARM_MEMORY = re.compile(rf"\[([a-z0-9]+)(?:, *#?({_NUMBER}))?\]")


class Operand(NamedTuple):
    """The place of a value: an expression of the kernel's, or a ``constant`` that the compiler knew."""

    expression: str
    constant: int | None = None


class UsdtArgument(NamedTuple):
    """One argument of a note at one place in a program: ``size`` in bytes, ``operand`` as written."""

    text: str
    size: int
    signed: bool
    floating: bool
    operand: str
    machine: str

    @property
    def type(self) -> str:
        """The kernel's fetch type."""
        return f"{'s' if self.signed else 'u'}{8 * self.size}"

    def fetched(self) -> Operand:
        """Return where the kernel can fetch it. Raises GrammarError with the reason why it cannot."""
        if self.floating or re.match(r"%?[xyz]mm|%?[dsqv][0-9]+$", self.operand):
            raise GrammarError(f"'{self.text}' is a floating-point number, which the kernel does not fetch")
        if self.size not in (1, 2, 4, 8):
            raise GrammarError(f"'{self.text}' has {self.size} bytes, so it is not a number")
        parse = {"EM_X86_64": _x86, "EM_AARCH64": _arm}.get(self.machine)
        if parse is None:
            raise GrammarError(f"the notation '{self.text}' of {self.machine} is not known")
        if (found := parse(self.operand)) is None:
            raise GrammarError(
                f"'{self.text}' is computed of several registers or a symbol, and the kernel fetches "
                "registers, constants and memory at one register"
            )
        return found


def parse_usdt_arguments(text: str, machine: str) -> tuple[UsdtArgument, ...]:
    """Split a note's arguments. ``machine`` is named as in elf.h. Those after MOST_ARGUMENTS are omitted.

    An argument without a size is an unsigned number of 8 bytes.
    """
    found = (one for one in _ARGUMENT.finditer(text) if one[4])
    return tuple(
        UsdtArgument(one[0], int(one[2] or 8), one[1] == "-", one[3] == "f", one[4], machine)
        for one, _ in zip(found, range(MOST_ARGUMENTS), strict=False)
    )


def _x86_registers() -> dict[str, str]:
    """Map the names of x86-64's registers, of any width, to the kernel's (arch/x86/kernel/ptrace.c).

    ``%ah`` and the like are omitted: the kernel would read the lowest byte.
    """
    names: dict[str, str] = {}
    for letter in "abcd":
        names |= dict.fromkeys((f"r{letter}x", f"e{letter}x", f"{letter}x", f"{letter}l"), f"{letter}x")
    for name in ("si", "di", "bp", "sp"):
        names |= dict.fromkeys((f"r{name}", f"e{name}", name, f"{name}l"), name)
    for number in range(8, 16):
        names |= {f"r{number}{width}": f"r{number}" for width in ("", "d", "w", "b", "l")}
    return names


_X86 = _x86_registers()
_ARM = {f"{letter}{number}": f"x{number}" for letter in "xw" for number in range(31)}
_ARM |= {"sp": "sp", "wsp": "sp"}
"""By arch/arm64/kernel/ptrace.c."""
_ARM_ZERO = frozenset({"xzr", "wzr"})


def _x86(operand: str) -> Operand | None:
    if operand.startswith("$"):
        return _constant(operand[1:])
    if operand.startswith("%"):
        name = _X86.get(operand[1:])
        return Operand(f"%{name}") if name else None
    found = _X86_MEMORY.fullmatch(operand)
    return _memory(_X86.get(found[2]), found[1]) if found else None


def _arm(operand: str) -> Operand | None:
    if operand in _ARM_ZERO:
        return Operand("\\0", 0)
    if operand in _ARM:
        return Operand(f"%{_ARM[operand]}")
    if found := _ARM_MEMORY.fullmatch(operand):
        return _memory(_ARM.get(found[1]), found[2])
    return _constant(operand.removeprefix("#"))


def _memory(register: str | None, offset: str | None) -> Operand | None:
    value = _integer(offset or "0")
    if register is None or value is None or abs(value) > _LONG:
        return None
    return Operand(f"{value:+d}(%{register})")


def _constant(text: str) -> Operand | None:
    value = _integer(text)
    if value is None or not -(2**63) <= value < 2**64:
        return None
    return Operand(f"\\{value}", value)


def _integer(text: str) -> int | None:
    """Parse a number of the assembler's, where ``0x`` is hexadecimal, and a leading 0 octal."""
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    value = kernel_number(digits)
    return None if value is None or digits.startswith("-") else sign * value
