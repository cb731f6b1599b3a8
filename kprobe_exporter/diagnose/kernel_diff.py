"""Compares two saved kernels: their functions, tracepoints and structures, and the probes of a configuration.

Each subject is a mapping of names to descriptions, so that one comparison serves them all.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from kprobe_exporter.btf.kernel_types import KERNEL, KernelTypes
from kprobe_exporter.btf.members import MARKERS
from kprobe_exporter.btf.structures import Structures
from kprobe_exporter.config.model import Config
from kprobe_exporter.diagnose.dry_run import DryRunRow, look
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import FormatField, parse_format
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.tracefs.kernel_files import BTF, KernelFiles


class NameDifference(NamedTuple):
    """One name that differs. ``old`` and ``new`` are its descriptions, None where the kernel lacks it."""

    name: str
    old: str | None
    new: str | None

    @property
    def mark(self) -> str:
        """``-`` for a removed name, ``+`` for an added one, ``~`` for one with another description."""
        return "+" if self.old is None else "-" if self.new is None else "~"


@dataclass(frozen=True, slots=True)
class ProbeDifference:
    """One probe of a configuration, as each kernel would attach it."""

    probe: str
    old: DryRunRow
    new: DryRunRow

    @property
    def differs(self) -> bool:
        """Whether the state, the target or the plan differs."""
        old, new = self.old, self.new
        return (old.state, old.target, old.plan) != (new.state, new.target, new.plan)


def functions(kernel: KernelFiles) -> dict[str, str]:
    """Return the traceable functions, without the suffixes that compilers add (``.isra.0``)."""
    listed = Lists.of(kernel).functions
    return dict.fromkeys((name.partition(".")[0] for name in listed or ()), "")


def tracepoints(kernel: KernelFiles) -> dict[str, str]:
    """Return the tracepoints, as ``SYSTEM:EVENT``."""
    return dict.fromkeys(_events(kernel), "")


def fields(kernel: KernelFiles) -> dict[str, str]:
    """Return the fields of tracepoints, as ``SYSTEM:EVENT.FIELD``, with their types and sizes."""
    found: dict[str, str] = {}
    for event, path in _events(kernel).items():
        with suppress(GrammarError, OSError):
            form = parse_format(kernel.tracefs.read(path).decode(errors="backslashreplace"))
            found |= {f"{event}.{field.name}": _described(field) for field in form.fields.values()}
    return found


def _described(field: FormatField) -> str:
    array = f"[{field.length}]" if field.length and "[" not in field.type else ""
    # The kernel changed the sign of char[], which means nothing for a text.
    sign = "" if field.text else ", signed" if field.signed else ", unsigned"
    return f"{field.type}{array}, {field.size} bytes{sign}"


def members(kernel: KernelFiles) -> dict[str, str]:
    """Return the members of the kernel's structures, as ``STRUCTURE.MEMBER``, with their types.

    A name that several structures share is skipped, because a path cannot name one of them. A number is
    described as it is fetched (``u32``), because kernels spell one type in several ways. The members'
    offsets are not compared: the agent finds them on each kernel. Takes about 1.5 s.
    """
    try:
        structures = KernelTypes(lambda name: kernel.read(f"{BTF}/{name}")).structures(KERNEL)
    except GrammarError:
        return {}
    described = cache(lambda number: _type(structures, number))
    return {
        f"{name}.{row.name}": described(row.type)
        for name, row in structures.each_member()
        if not row.name.startswith(MARKERS)
    }


def _type(structures: Structures, number: int) -> str:
    is_number = structures.signed(number) is not None
    return (is_number and structures.number(number)) or structures.spelled(number)


SUBJECTS: Mapping[str, Callable[[KernelFiles], dict[str, str]]] = {
    "functions": functions,
    "tracepoints": tracepoints,
    "fields": fields,
    "members": members,
}
"""The things that are compared, by name."""


def compare(old: Mapping[str, str], new: Mapping[str, str]) -> list[NameDifference]:
    """Return the names that differ, sorted.

    A field or a member counts only if both kernels have its owner: the owner's own line tells the rest.
    """
    owners = _owners(old) & _owners(new)
    return [
        NameDifference(name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and _owner(name) in owners
    ]


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _owners(names: Mapping[str, str]) -> set[str]:
    return {"", *map(_owner, names)}


def compare_probes(config: Config, old: KernelFiles, new: KernelFiles) -> list[ProbeDifference]:
    """Return each probe with its row on both kernels; a pattern may have a row for each match.

    Raises TracefsError if no agent could start on one of the kernels.
    """
    rows = [
        {row.probe: row for row in look(config, kernel, lambda: True, programs=False)}
        for kernel in (old, new)
    ]
    names = dict.fromkeys([*rows[0], *rows[1]])
    return [
        ProbeDifference(
            name,
            rows[0].get(name) or _unmatched(rows[1][name]),
            rows[1].get(name) or _unmatched(rows[0][name]),
        )
        for name in names
    ]


def _unmatched(row: DryRunRow) -> DryRunRow:
    """Return the row of a pattern's match on the kernel that lacks the function or tracepoint."""
    return DryRunRow(row.probe, "absent", row.kind, row.target, "", ("the pattern does not match it here",))


def _events(kernel: KernelFiles) -> dict[str, str]:
    """Return the paths of the tracepoints' formats by ``SYSTEM:EVENT``."""
    return {f"{system}:{event}": path for system, event, path in _formats(kernel)}


def _formats(kernel: KernelFiles) -> Iterator[tuple[str, str, str]]:
    tracefs = kernel.tracefs
    for system in tracefs.names("events"):
        with suppress(OSError):  # a file in this directory is not a system
            for event in tracefs.names(f"events/{system}"):
                path = f"events/{system}/{event}/format"
                if tracefs.exists(path):
                    yield system, event, path
