"""Programs and libraries, which are ELF files: where in the file a function begins.

Takes a file's path and the name of a function. Gives the function's offset in the file, or a
GrammarError. With ``files`` the file stays open there, so that what was parsed is what is probed.
The ELF parser is imported when the first file is read: it takes 4 MB, and most agents probe no file.
May import errors, grammar and util.
"""

from collections.abc import Iterator

from kprobe_exporter.elf.code import Code
from kprobe_exporter.grammar.target import Target
from kprobe_exporter.util.rooted_path import ProbedFiles

__all__ = ["Code", "file_offset", "functions", "locate"]


def locate(target: Target, files: ProbedFiles | None = None) -> Code:
    """Return where a probe of a file has to sit. Raises GrammarError; see ``find.locate``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return find.locate(target, files)


def file_offset(path: str, symbol: str, offset: int = 0) -> int:
    """Return the offset of a symbol in its file. Raises GrammarError; see ``find.file_offset``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return find.file_offset(path, symbol, offset)


def functions(path: str) -> Iterator[str]:
    """Return the names that ``file_offset`` takes. Raises GrammarError; see ``find.functions``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return find.functions(path)
