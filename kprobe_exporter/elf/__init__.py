"""Programs and libraries, which are ELF files: where in the file a function begins.

Takes a file's path and the name of a function. Gives the function's offset in the file, or a
GrammarError. With ``files`` the file stays open there, so that what was parsed is what is probed.
The ELF parser is imported when the first file is read: it takes 4 MB, and most agents probe no file.
May import errors, grammar and util.
"""

from typing import NamedTuple

from kprobe_exporter.grammar.target import Target
from kprobe_exporter.util.rooted_path import ProbedFiles


class Code(NamedTuple):
    """A place in a file's code: ``offset`` in bytes from the file's start.

    ``machine`` is the processor that the code is for, as elf.h names it, such as EM_X86_64. ``inode`` is the
    file's device and inode number: its path may name another file by the time at which the offset is used.
    """

    offset: int
    machine: str
    inode: tuple[int, int] | None = None


def locate(target: Target, files: ProbedFiles | None = None) -> Code:
    """Return where a probe of a file has to sit. Raises GrammarError; see ``find.locate``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return find.locate(target, files)


def functions(path: str) -> list[str]:
    """Return the names that ``locate`` finds. Raises GrammarError; see ``find.functions``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return find.functions(path)
