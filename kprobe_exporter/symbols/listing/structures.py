"""Structures as ``list`` prints them: the members with their types and offsets, as BTF has them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kprobe_exporter.btf.kernel_types import RETURN, KernelTypes
from kprobe_exporter.btf.structures import Row, Structures
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.tracefs.kernel_files import BTF


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
