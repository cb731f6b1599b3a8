"""What a function's fetch arguments mean here: BTF's types, parameters by their names, registers."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from kprobe_exporter.btf.prototypes import Prototype, parameter
from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.fetch import FetchArg, parse_fetch
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.plan.metric import fields_used, filter_fields

Prototypes = Mapping[tuple[str, str], Prototype]
"""By module, "" for the kernel itself, and by function."""

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "EM_X86_64": ("%di", "%si", "%dx", "%cx", "%r8", "%r9"),
    "EM_AARCH64": tuple(f"%x{number}" for number in range(8)),
}
"""By machine, as elf.h names it: the System V ABI of AMD64, which programs and the kernel follow, and the
AAPCS64. They hold for whole numbers and pointers only."""

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}  # by the machine's name in uname(2)
ARGUMENT = re.compile(r"\$arg(\d+)")

PARAMETER = re.compile(r"((?:[+-]u?\w+\()*)([A-Za-z_]\w*)(\)*)")
"""A parameter by its name, with the memory reads around it."""


def look_up(
    places: Iterable[Attach], prototypes: Callable[[Collection[str], str], Mapping[str, Prototype]]
) -> Prototypes:
    """Return the prototypes of the functions that need one, with one call of ``prototypes`` per module."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    for place in places:
        if _undecided(place):
            names[place.target.module].add(place.target.symbol)
    return {
        (module, name): found
        for module, wanted in names.items()
        for name, found in prototypes(wanted, module).items()
    }


def typed(probe: Probe, attach: Attach, known: Prototypes, machine: str | None = None) -> Attach:
    """Return the same with BTF's types where the configuration gives none. Raises GrammarError.

    A parameter's name becomes ``$argN``, which kernels without BTF arguments take as well. With
    ``machine``, which is set for kernels without ``$argN``, that becomes a register.
    """
    if attach.target.kind.in_file or attach.target.kind.on_event:
        return attach
    attach = _by_types(probe, attach, known)
    if machine is None:
        return attach
    return replace(attach, fetch={name: in_registers(text, machine) for name, text in attach.fetch.items()})


def _by_types(probe: Probe, attach: Attach, known: Prototypes) -> Attach:
    prototype = known.get((attach.target.module, attach.target.symbol))
    if prototype is None:
        return attach
    returns = attach.returns
    if attach.guessed:
        returns = prototype.returns
        used = fields_used(probe) | filter_fields(attach.filter)
        if returns.fetch is None and "return" in used:
            what = "nothing (void)" if returns.name == "void" else f"{returns.name}, which is no number"
            raise GrammarError(f"{prototype.name} returns {what}: take 'return' out")
    fetch = {name: _fetched(text, prototype) for name, text in attach.fetch.items()}
    return replace(attach, fetch=fetch, returns=returns)


def _undecided(place: Attach) -> bool:
    """Whether BTF could tell a type: that of a guessed return value, or of an argument without one."""
    if not place.target.symbol or place.target.kind.in_file or place.target.kind.on_event:
        return False
    return place.guessed or any(_untyped(parse_fetch(text)) for text in place.fetch.values())


def _untyped(arg: FetchArg) -> bool:
    """Whether it needs BTF: a parameter by its name, or an ``$argN`` without a type."""
    numbered = arg.type is None and ARGUMENT.fullmatch(arg.expression)
    return bool(numbered or PARAMETER.fullmatch(arg.expression))


def _fetched(text: str, prototype: Prototype) -> str:
    arg = parse_fetch(text)
    if named := PARAMETER.fullmatch(arg.expression):
        before, name, after = named.groups()
        found = parameter(prototype, name)
        if found is None:
            names = [param.name for param in prototype.params if param.name]
            near = closest(name, names) or f"; it has {', '.join(names) or 'none'}"
            raise GrammarError(f"{prototype.name} has no parameter {name!r} that can be read{near}")
        number, type_ = found
        read = arg.type or (None if before else type_.fetch)
        arg = replace(arg, expression=f"{before}$arg{number}{after}", type=read)
    elif arg.type is None and (numbered := ARGUMENT.fullmatch(arg.expression)):
        types = {param.number: param.type.fetch for param in prototype.params}
        arg = replace(arg, type=types.get(int(numbered[1])))
    return arg.body


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
