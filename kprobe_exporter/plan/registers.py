"""The registers in which functions take arguments, for probes without the kernel's own ``$argN``."""

import re
from collections.abc import Mapping

from kprobe_exporter.errors import GrammarError

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "EM_X86_64": ("%di", "%si", "%dx", "%cx", "%r8", "%r9"),
    "EM_AARCH64": tuple(f"%x{number}" for number in range(8)),
}
"""By machine, as elf.h names it: the System V ABI of AMD64, which programs and the kernel follow, and the
AAPCS64. They hold for whole numbers and pointers only."""

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
"""By the machine's name in uname(2)."""

ARGUMENT = re.compile(r"\$arg(\d+)")


def in_registers(expression: str, machine: str) -> str:
    """Replace each ``$argN`` of a fetch argument by the register that holds it. Raises GrammarError."""
    registers = ARGUMENTS.get(machine)
    if registers is None:
        raise GrammarError(
            f"in which register '{expression}' is on {machine} is not known: write the register, such as %di"
        )

    def register(found: re.Match[str]) -> str:
        number = int(found[1])
        if not 1 <= number <= len(registers):
            raise GrammarError(
                f"{found[0]} is not in a register, as the first {len(registers)} are: read it from the stack"
            )
        return registers[number - 1]

    return ARGUMENT.sub(register, expression)
