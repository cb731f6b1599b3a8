"""Programs and libraries, which are ELF files: where in the file a function begins.

What reads them is imported when the first one is read: it takes 4 MB, and most agents probe none.
"""

from collections.abc import Iterator

from kprobe_exporter.elf.code import Code
from kprobe_exporter.grammar.target import Target

__all__ = ["Code", "file_offset", "functions", "locate"]


def locate(target: Target) -> Code:
    """Where a probe of a file has to sit. Raises GrammarError; see ``find.locate``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return find.locate(target)


def file_offset(path: str, symbol: str, offset: int = 0) -> int:
    """The offset in the file of a symbol. Raises GrammarError; see ``find.file_offset``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return find.file_offset(path, symbol, offset)


def functions(path: str) -> Iterator[str]:
    """The names that ``file_offset`` may be asked for. Raises GrammarError; see ``find.functions``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return find.functions(path)
