"""Programs and libraries, which are ELF files: where in the file a function or a USDT probe is.

Takes a file's path, or a library's soname, and the name of a function or a probe. Gives its offset in the
file, or a GrammarError. With ``files`` the file stays open and parsed there: it is parsed once for all
questions, and what was parsed is what is probed.
The ELF parser is imported when the first file is read: it takes 4 MB, and most agents probe no file.
May import errors, grammar and util.
"""

from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import NamedTuple, TypeVar

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import Target, names_library
from kprobe_exporter.util.rooted_path import ProbedFiles

T = TypeVar("T")


class Code(NamedTuple):
    """A place in a file's code: ``offset`` in bytes from the file's start.

    ``machine`` is the processor that the code is for, as elf.h names it, such as EM_X86_64. ``inode`` is the
    file's device and inode number: its path may name another file by the time at which the offset is used.
    ``path`` is where a library was found that was named by its soname; None if the path was given.
    """

    offset: int
    machine: str
    inode: tuple[int, int] | None = None
    path: str | None = None


class UsdtSite(NamedTuple):
    """One place of a USDT probe: its ``offset`` in bytes from the file's start, ``arguments`` as in the note.

    ``counter`` is the offset of the 16 bits that count who wants the probe, None if the place always fires.
    """

    offset: int
    counter: int | None
    arguments: str


class UsdtProbe(NamedTuple):
    """A USDT probe of a file with all of its places. The last three are those of Code."""

    provider: str
    name: str
    sites: tuple[UsdtSite, ...]
    machine: str
    inode: tuple[int, int] | None = None
    path: str | None = None


def locate(target: Target, files: ProbedFiles | None = None) -> Code:
    """Return where a probe of a file has to sit. Raises GrammarError; see ``find.locate``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return _answered(target.path, files, lambda held: find.locate(target, held))


def functions(path: str, files: ProbedFiles | None = None) -> list[str]:
    """Return the names that ``locate`` finds. Raises GrammarError; see ``find.functions``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return _answered(path, files, lambda held: find.functions(path, held))


def function_at(path: str, offset: int, files: ProbedFiles | None = None) -> tuple[str, int] | None:
    """Return which function is at an offset in a file. Raises GrammarError; see ``find.function_at``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return _answered(path, files, lambda held: find.function_at(path, offset, held))


def matching_functions(target: Target, most: int, files: ProbedFiles | None = None) -> list[Target]:
    """Return the matches of a pattern. Raises GrammarError; see ``find.matching_functions``."""
    from kprobe_exporter.elf import find  # noqa: PLC0415

    return _answered(target.path, files, lambda held: find.matching_functions(target, most, held))


def library_path(name: str, files: ProbedFiles | None = None) -> str:
    """Return the path of the library ``[ROOT:]SONAME``, or what is a path already. Raises GrammarError.

    With ``files`` it is looked for once.
    """
    if not names_library(name):
        return name
    if files is not None and name in files.libraries:
        return files.libraries[name]
    from kprobe_exporter.elf import libraries  # noqa: PLC0415

    root, _, soname = name.rpartition(":")
    path = libraries.library_path(soname, Path(root or "/"))
    if files is not None:
        files.libraries[name] = path
    return path


def locate_usdt(target: Target, files: ProbedFiles | None = None) -> UsdtProbe:
    """Return a USDT probe of a file. Raises GrammarError; see ``notes.locate_usdt``."""
    from kprobe_exporter.elf import notes  # noqa: PLC0415

    return _answered(target.path, files, lambda held: notes.locate_usdt(target, held))


def matching_usdt(target: Target, most: int, files: ProbedFiles | None = None) -> list[Target]:
    """Return the matches of a pattern. Raises GrammarError; see ``notes.matching_usdt``."""
    from kprobe_exporter.elf import notes  # noqa: PLC0415

    return _answered(target.path, files, lambda held: notes.matching_usdt(target, most, held))


def usdt_probes(path: str, files: ProbedFiles | None = None) -> list[UsdtProbe]:
    """Return the USDT probes of a file, sorted. Raises GrammarError; see ``notes.usdt_probes``."""
    from kprobe_exporter.elf import notes  # noqa: PLC0415

    return _answered(path, files, lambda held: notes.usdt_probes(path, held))


def _answered(path: str, files: ProbedFiles | None, ask: Callable[[ProbedFiles], T]) -> T:
    """Ask about a file, by a thread that may hang there. Raises GrammarError."""
    with closing(ProbedFiles()) if files is None else nullcontext(files) as held:
        try:
            return held.ask(path, ask)
        except TimeoutError as error:
            raise GrammarError(f"{path} cannot be read: {error.strerror}") from None
