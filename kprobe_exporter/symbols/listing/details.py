"""The data at a place as ``list`` prints it: prototypes and structures from BTF, a tracepoint's fields."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kprobe_exporter.btf.kernel_types import RETURN, KernelTypes
from kprobe_exporter.btf.prototypes import Param, Prototype
from kprobe_exporter.btf.structures import Row, Structures
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import FormatField, parse_format
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.symbols.resolve import FUNCTIONS
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import BTF, running_kernel

POINTED = re.compile(r"\(\*+(?:const|volatile|restrict| )*(?=\))")
"""Finds the place of the name in ``int (*)(void *)``."""


CALL = "__syscall_nr"  # A field of a system call's tracepoints; its value is always the same


class Details:
    """Looks up all places at once, so that the BTF of each module is read only once."""

    def __init__(self, tracefs: Path, root: Path = Path("/")) -> None:
        self._files = ReadOnlyTracefs(tracefs)
        self._types = root / BTF
        self._btf = running_kernel(self._files, root).btf

    def of(self, places: Iterable[Target]) -> tuple[dict[Target, list[str]], list[str]]:
        """Return lines by place, without unknown places, and sentences about data that could not be read.

        For a single function they include the members of the structures behind its parameters.
        """
        found: dict[Target, list[str]] = {}
        functions: defaultdict[str, dict[str, Target]] = defaultdict(dict)
        for place in places:
            if place.kind in FUNCTIONS:
                functions[place.module][place.symbol] = place
            else:
                events = place.halves if place.kind is Kind.SYSCALL else (place,)
                found[place] = [line for one in events for line in self._fields(f"{one.system}/{one.event}")]
        if not functions:
            return found, []
        if not (self._types / "vmlinux").exists():
            return found, [f"no prototypes: there is no {self._types / 'vmlinux'} (CONFIG_DEBUG_INFO_BTF)"]
        types = KernelTypes(self._btf)
        alone = sum(map(len, functions.values())) == 1
        try:
            for module, asked in functions.items():
                for name, prototype in types.prototypes(asked, module).items():
                    members = parameters(types, module, name) if alone else ()
                    found[asked[name]] = [signature(prototype), *members]
        except GrammarError as error:
            return found, [f"no prototypes: {error.message}"]
        return found, []

    def _fields(self, event: str) -> list[str]:
        try:
            form = parse_format(self._files.read(f"events/{event}/format").decode("ascii", "replace"))
        except (OSError, GrammarError):
            return []
        return [declaration(field) for field in form.fields.values() if field.name != CALL]


def signature(prototype: Prototype) -> str:
    """Format a prototype as in C: ``ssize_t vfs_read(struct file *file, char *buf, …)``."""
    params = ", ".join(map(_parameter, prototype.params)) or "void"
    return _named(prototype.returns.name, f"{prototype.name}({params})")


def declaration(field: FormatField) -> str:
    """Format a field as in the kernel's ``format`` file: ``char prev_comm[16]``."""
    size = f"[{field.length}]" if field.length and not field.type.endswith("]") else ""
    return f"{field.type} {field.name}{size}"


def _parameter(param: Param) -> str:
    return _named(param.type.name, param.name) if param.name else param.type.name


def _named(kind: str, name: str) -> str:
    """Put a name into a C type: after the innermost ``(*``, before the ``[`` of an array, or at the end."""
    found = POINTED.search(kind)
    at = found.end() if found else (kind + "[").index("[")
    blank = "" if kind[:at].endswith("*") else " "
    return f"{kind[:at]}{blank}{name}{kind[at:]}"


def structure(written: str, root: Path = Path("/")) -> list[str]:
    """Return the lines for ``[MODULE:]NAME``, with all members of each structure of this name.

    Raises GrammarError if there is none.

    ``root`` is ``/``, or a directory that a test uses instead.
    """
    types = KernelTypes(lambda name: (root / BTF / name).read_bytes())
    module, _, name = written.rpartition(":")
    structures = types.structures(module)
    plain = name.removeprefix("struct ").removeprefix("union ").strip()
    found = structures.named(plain)
    if not found:
        owner = f"the module {module}" if module else "this kernel"
        raise GrammarError(f"{owner} has no structure {plain!r}{structures.near(plain)}")
    return [line for number in found for line in _whole(structures, number)]


def _whole(structures: Structures, number: int) -> Iterator[str]:
    yield f"{structures.spelled(number)}, {structures.size(number)} bytes"
    yield from _table(structures, structures.rows(number), "")


def parameters(types: KernelTypes, module: str, function: str) -> Iterator[str]:
    """Yield lines for what is behind the parameters and the return value of a function, one level deep."""
    structures = types.structures(module)
    for name, number in types.roots(module, function).items():
        target = structures.pointed(number)
        if target is not None and (not name.startswith("$") or name == RETURN):
            yield f"{structures.spelled(number)} {name}".replace("* ", "*")
            yield from _table(structures, structures.rows(target), f"{name}->")


def _table(structures: Structures, rows: Sequence[Row], prefix: str) -> Iterator[str]:
    """Yield a line for each member: its offset in bytes, of a bit field also the bit; its name, its type."""
    cells = [(_offset(row), f"{prefix}{row.name}", structures.spelled(row.type)) for row in rows]
    widths = [max((len(cell[column]) for cell in cells), default=0) for column in range(2)]
    for row, (offset, name, kind) in zip(rows, cells, strict=True):
        width = f":{row.width}" if row.width else ""
        yield f"    {offset:>{widths[0]}}  {name:<{widths[1]}}  {kind}{width}"


def _offset(row: Row) -> str:
    return f"{row.offset // 8}:{row.offset % 8}" if row.width else str(row.offset // 8)
