"""The meaning of a function's fetch arguments here: BTF's types, parameters by their names, registers."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.btf.prototypes import Prototype, parameter
from kprobe_exporter.config.model import Attach, Probe, return_type
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.fetch import FetchArg, parse_fetch
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.grammar.target import SYSTEM_CALL
from kprobe_exporter.model.values import ReturnType
from kprobe_exporter.plan.metric import fields_used, filter_fields
from kprobe_exporter.plan.read_members import resolved

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

REGISTERS: Mapping[str, frozenset[str]] = {
    "x86_64": frozenset(
        "r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di orig_ax ip cs flags sp ss".split()
    ),
    "aarch64": frozenset([*(f"x{number}" for number in range(31)), "lr", "sp", "pc", "pstate"]),
}
"""The registers that kernels know, by the machine's name in uname(2) (arch/*/kernel/ptrace.c)."""

CALL_ARGUMENTS: Mapping[str, tuple[int, ...]] = {
    "__x64_": (112, 104, 96, 56, 72, 64),
    "__arm64_": (0, 8, 16, 24, 32, 40),
}
"""Offsets in bytes of a system call's arguments in struct pt_regs, by the prefix of its function: di, si, dx,
r10, r8 and r9 of x86-64; x0 to x5 of arm64 (arch/*/include/asm/ptrace.h and syscall_wrapper.h)."""

OF_SYSTEM_CALL = tuple(f"{prefix}{SYSTEM_CALL}" for prefix in CALL_ARGUMENTS)
"""How the names of functions begin that ``syscall_wrapper.h`` declares to return a C ``long``."""

PARAMETER = re.compile(r"((?:[+-]u?\w+\()*)([A-Za-z_]\w*)(\)*)")
"""A parameter by its name, with the memory reads around it."""


def look_up(
    places: Iterable[Attach], prototypes: Callable[[Collection[str], str], Mapping[str, Prototype]]
) -> Prototypes:
    """Return the prototypes of the functions that need one, with one call of ``prototypes`` per module.

    BTF is not read if all that is unknown is the return type of system calls.
    """
    names: defaultdict[str, set[str]] = defaultdict(set)
    known: dict[tuple[str, str], Prototype] = {}
    for place in places:
        module, name = place.target.module, place.target.symbol
        if _of_system_call(place):
            known[module, name] = Prototype(name, (), return_type("long"))
        elif _undecided(place):
            names[module].add(name)
    for module, wanted in names.items():
        known |= {(module, name): found for name, found in prototypes(wanted, module).items()}
    return known


def typed(
    probe: Probe,
    attach: Attach,
    known: Prototypes,
    machine: str | None = None,
    types: KernelTypes | None = None,
) -> Attach:
    """Return the same with BTF's types where the configuration gives none. Raises GrammarError.

    A path into a structure becomes memory reads, by ``types``. A parameter's name becomes ``$argN``, which
    kernels without BTF arguments take as well. If ``machine`` is given, for kernels without ``$argN``, that
    becomes a register.
    """
    if attach.target.kind.in_file or attach.target.kind.on_event:
        return attach
    attach = _by_types(probe, attach, known)
    if attach.paths and types is not None:
        attach = _members(attach, known, types)
    if machine is None:
        return attach
    return replace(attach, fetch={name: in_registers(text, machine) for name, text in attach.fetch.items()})


def _members(attach: Attach, known: Prototypes, types: KernelTypes) -> Attach:
    """Resolve the paths into structures."""
    module, function = attach.target.module, attach.target.symbol

    def root(name: str) -> str:
        if name.startswith("$"):
            return name
        prototype = known.get((module, function))
        if prototype is None:
            raise GrammarError(f"the type of {name!r} is not known: this kernel's BTF has no {function}")
        return f"$arg{_parameter(prototype, name)[0]}"

    return resolved(attach, types, root, lambda name: types.roots(module, function).get(name))


def argument_of_system_call(arg: FetchArg, name: str, function: str) -> str:
    """Return an argument's expression, in which ``$argN`` is the N-th argument of the system call ``name``.

    The ``function`` behind it takes the registers of the system call, from which the argument is read. Raises
    GrammarError.
    """
    places = CALL_ARGUMENTS.get(function.removesuffix(name))

    def read(found: re.Match[str]) -> str:
        if places is None:
            raise GrammarError(
                f"where {found[0]} of '{name}' is on this machine is not known: attach to "
                f"syscall:{name.removeprefix(SYSTEM_CALL)}, and fetch its fields"
            )
        number = int(found[1])
        if not 1 <= number <= len(places):
            raise GrammarError(f"a system call has no {found[0]}, only $arg1 to $arg{len(places)}")
        return f"+{places[number - 1]}($arg1)"

    return arg.expression if arg.is_text else ARGUMENT.sub(read, arg.expression)


def _by_types(probe: Probe, attach: Attach, known: Prototypes) -> Attach:
    prototype = known.get((attach.target.module, attach.target.symbol))
    if prototype is None:
        return attach
    returns = attach.returns
    if attach.guessed:
        returns = prototype.returns
        used = fields_used(probe) | filter_fields(attach.filter)
        if returns.fetch is None and "return" in used:
            what = "nothing (void)" if returns.name == "void" else f"{returns.name}, which is not a number"
            raise GrammarError(f"{prototype.name} returns {what}: take 'return' out")
    fetch = {name: _fetched(text, prototype) for name, text in attach.fetch.items()}
    return replace(attach, fetch=fetch, returns=returns)


def _undecided(place: Attach) -> bool:
    """Whether BTF could tell a type: that of a guessed return value, or of an argument without one."""
    if not place.target.symbol or place.target.kind.in_file or place.target.kind.on_event:
        return False
    return place.guessed or _fetches_untyped(place)


def _of_system_call(place: Attach) -> bool:
    """Whether only the return type is unknown, and the function is that of a system call."""
    guessed = place.guessed and place.target.symbol.startswith(OF_SYSTEM_CALL)
    return guessed and not _fetches_untyped(place)


def _fetches_untyped(place: Attach) -> bool:
    return bool(place.paths) or any(_untyped(parse_fetch(text)) for text in place.fetch.values())


def _untyped(arg: FetchArg) -> bool:
    """Whether it needs BTF: a parameter by its name, or an ``$argN`` without a type."""
    numbered = arg.type is None and ARGUMENT.fullmatch(arg.expression)
    return bool(numbered or PARAMETER.fullmatch(arg.expression)) or arg.is_path


def _fetched(text: str, prototype: Prototype) -> str:
    arg = parse_fetch(text)
    if named := PARAMETER.fullmatch(arg.expression):
        before, name, after = named.groups()
        number, type_ = _parameter(prototype, name)
        read = arg.type or (None if before else type_.fetch)
        arg = replace(arg, expression=f"{before}$arg{number}{after}", type=read)
    elif arg.type is None and (numbered := ARGUMENT.fullmatch(arg.expression)):
        types = {param.number: param.type.fetch for param in prototype.params}
        arg = replace(arg, type=types.get(int(numbered[1])))
    return arg.body


def _parameter(prototype: Prototype, name: str) -> tuple[int, ReturnType]:
    """Return the N of a parameter's ``$argN``, and its type. Raises GrammarError."""
    found = parameter(prototype, name)
    if found is None:
        names = [param.name for param in prototype.params if param.name]
        near = closest(name, names) or f"; it has {', '.join(names) or 'none'}"
        raise GrammarError(f"{prototype.name} has no parameter {name!r} that can be read{near}")
    return found


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
