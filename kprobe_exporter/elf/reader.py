"""ELF files of programs and libraries: opening one, its segments, and its symbols by name and address.

An unprivileged user may have written the file. Its headers are checked against its size, and all reading has
one budget of bytes and time. Any exception of the parser becomes a GrammarError of one sentence.
"""

import errno
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import IO, Any, BinaryIO, NamedTuple, TypeVar, cast

from kprobe_exporter.elf.budget import STEP, Exhausted, FileBudget
from kprobe_exporter.elf.go_functions import SECTION as GO_TABLE
from kprobe_exporter.elf.go_functions import go_functions
from kprobe_exporter.elf.mini_debug_info import NoTableError, decompressed
from kprobe_exporter.elf.sections import HEADER, MOST_HEADERS, ElfSections, printable
from kprobe_exporter.elf.tables import (
    FUNC,
    NOTYPE,
    UNDEFINED,
    ElfSymbol,
    SymbolTable,
)
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.util.file_access import NotRegularError
from kprobe_exporter.util.overruns import OVERRUNS
from kprobe_exporter.util.rooted_path import ProbedFiles

T = TypeVar("T")

MOST_KEPT = 1 << 25
"""Bytes of memory that the results of all files of a plan take, roughly. Those of four million symbols do."""

MOST_SEGMENTS = 64  # Executable segments, and writable ones. A usual file has one of each.
MOST_NAMESAKES = 10_000  # Symbols of one name, such as the static functions of many source files

MINI = ".gnu_debugdata"

EXECUTABLE, WRITABLE, NEEDED = 1, 2, 1  # PF_X, PF_W and DT_NEEDED of elf.h


class Part(NamedTuple):
    """A segment: its offset in the file, its address, and its bytes in the file."""

    offset: int
    address: int
    size: int


@dataclass(slots=True)
class _Parsed:
    """An inode that a plan has read: its budget, and what was found until the file changes or is dropped."""

    budget: FileBudget
    version: tuple[int, ...] = ()
    file: "ElfFile | None" = None


@contextmanager
def opened(path: str, files: ProbedFiles | None = None) -> Iterator["ElfFile"]:
    """Open a file read-only. Raises GrammarError for any fault of it, also inside the ``with`` block.

    If ``files`` is given, it stays open and parsed there, under each of its paths, until these are closed.
    Then all questions have one budget. A file that took too much work is not read again for a minute.
    """
    with closing(ProbedFiles()) if files is None else nullcontext(files) as held:
        try:
            stream = held.open(path)
        except (OSError, ValueError) as error:
            raise GrammarError(_cannot_open(path, error)) from None
        try:
            status = os.fstat(stream.fileno())
            parsed = held.parsed.pop((status.st_dev, status.st_ino), None) or _Parsed(FileBudget())
            held.parsed[status.st_dev, status.st_ino] = parsed  # the last one is that which was asked last
            if OVERRUNS.refused("file", (status.st_dev, status.st_ino)):
                raise GrammarError(f"{path} {Exhausted()}")
            try:
                with parsed.budget.question():
                    yield _file(parsed, path, stream, status)
            finally:
                _drop_results(held.parsed.values())
        except GrammarError:
            raise
        except OSError as error:
            raise GrammarError(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception:  # pyelftools may raise any kind on invalid headers, and instead of Exhausted
            damaged = "is damaged: its headers contradict each other or its size"
            if not parsed.budget.exhausted:
                raise GrammarError(f"{path} {damaged}") from None
            message = f"{path} {Exhausted()}"
            OVERRUNS.add("file", (status.st_dev, status.st_ino), message)
            raise GrammarError(message) from None


def _file(parsed: _Parsed, path: str, stream: BinaryIO, status: os.stat_result) -> "ElfFile":
    """Return the file as it was parsed before, if it is still the same."""
    version = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if parsed.file is None or parsed.version != version:
        parsed.budget.kept = 0
        parsed.file, parsed.version = ElfFile(path, stream, status.st_size, parsed.budget), version
        parsed.file.inode = status.st_dev, status.st_ino
    parsed.file.path = path
    return parsed.file


def _drop_results(parsed: Iterable[_Parsed]) -> None:
    """Drop what was found in the files that were asked first, while all of it takes too much memory."""
    *others, last = parsed
    kept = last.budget.kept + sum(one.budget.kept for one in others)
    for one in others:
        if kept <= MOST_KEPT:
            return
        kept -= one.budget.kept
        one.file, one.budget.kept = None, 0


def _cannot_open(path: str, error: OSError | ValueError) -> str:
    if isinstance(error, NotRegularError):
        return f"{path} {error}, so no program or library"
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOENT:
        return f"there is no file {path} here; one in a container is /proc/PID/root/…, PID a process in it"
    if code == errno.EACCES:
        return f"this process may not read {path}"
    return f"{path} cannot be opened: {error.strerror if isinstance(error, OSError) else error}"


class ElfFile(ElfSections):
    """An open file, made by ``opened``. On a damaged file its methods may raise any exception."""

    inode: tuple[int, int]
    mini_fault = ""

    def __init__(self, path: str, stream: IO[bytes], size: int, budget: FileBudget) -> None:
        super().__init__(path, stream, size, budget)
        self._answers: dict[object, Any] = {}

    def offset_of(self, address: int) -> int | None:
        """Return the offset in the file of the code at this address, None if it has none."""
        return _offset_in(self.code, address)

    def data_offset_of(self, address: int) -> int | None:
        """Return the offset in the file of the writable data at this address, None if it has none."""
        return _offset_in(self.data, address)

    def address_of(self, offset: int) -> int | None:
        """Return the address of the code at this offset in the file, None if there is none."""
        for part in self.code:
            if part.offset <= offset < part.offset + part.size:
                return offset - part.offset + part.address
        return None

    def named(self, name: str) -> list[ElfSymbol]:
        """Return all symbols of this name, of any version."""
        found = (one for table in self.tables for one in table.named(name.encode()))
        most = list(islice(found, MOST_NAMESAKES + 1))
        if len(most) > MOST_NAMESAKES:
            raise GrammarError(f"{self.path} has more than {MOST_NAMESAKES} symbols {name!r}")
        return most

    def functions(self) -> Iterator[str]:
        """Yield the names of all functions, with the version if that is not the default one, in no order."""
        for table, number, name in self.numbered_functions():
            yield name + table.suffix(number) if table.versioned else name

    def numbered_functions(self) -> Iterator[tuple[SymbolTable, int, str]]:
        """Yield the table, the number and the name of each function."""
        for table in self.tables:
            named = table.strings.each(array("I", self._places_of_functions(table)))
            kept = 0  # by the caller, at most
            for number, name in named:
                kept += len(name)
                if kept >= STEP:
                    self.budget.spend(kept)
                    kept = 0
                if name:
                    yield table, number, printable(name)

    def _places_of_functions(self, table: SymbolTable) -> Iterator[int]:
        """Yield the place of each symbol's name, 0 unless it is a function with code in this file."""
        spans = [(part.address, part.address + part.size) for part in self.code]
        for place, info, _, section, value, _ in table.rows():
            if section != UNDEFINED and info & 15 in (NOTYPE, FUNC):
                for start, end in spans:
                    if start <= value < end:
                        yield place
                        break
                else:
                    yield 0
            else:
                yield 0

    def once(self, answer: Callable[["ElfFile"], T]) -> T:
        """Return the answer of a function, which is called once for this file."""
        if answer not in self._answers:
            self._answers[answer] = answer(self)
        return cast("T", self._answers[answer])

    def at(self, address: int) -> Iterator[tuple[str, ElfSymbol]]:
        """Yield the functions that have the code at an address, with the version if not the default one."""
        for table in self.tables:
            for number, row in enumerate(table.rows()):
                place, info, _, section, value, size = row
                here = value <= address < value + size and info & 15 == FUNC and section != UNDEFINED
                if here and (name := table.strings.text(place)):
                    yield name + table.suffix(number), table.symbol(number, row)

    def libraries(self) -> Iterator[str]:
        """Yield the libraries that it is linked with: DT_NEEDED."""
        if (section := self.section("SHT_DYNAMIC")) is None:
            return
        strings = self.strings(section)
        entry = struct.Struct(self.order + ("qQ" if self.wide else "iI"))
        data = self.read(section, 0, MOST_HEADERS * entry.size)
        for tag, value in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
            if tag == NEEDED:
                yield strings.text(value)

    @cached_property
    def code(self) -> list[Part]:
        """The executable segments."""
        return self._segments(EXECUTABLE, "executable")

    @cached_property
    def data(self) -> list[Part]:
        """The writable segments."""
        return self._segments(WRITABLE, "writable")

    def _segments(self, flag: int, right: str) -> list[Part]:
        """Return the segments that are loaded with this right."""
        parts = [part for part, flags in self._loaded if flags & flag]
        if len(parts) > MOST_SEGMENTS:
            raise GrammarError(f"{self.path} has {len(parts)} {right} segments, more than {MOST_SEGMENTS}")
        return parts

    @cached_property
    def _loaded(self) -> list[tuple[Part, int]]:
        """The segments that are loaded, each with its PF_… flags."""
        entry, start, size = self.elf.structs.Elf_Phdr, self.elf["e_phoff"], self.elf["e_phentsize"]
        count = min(self.elf.num_segments(), MOST_HEADERS)
        self.budget.kept += HEADER * count
        found = [self.parse(entry, start + number * size) for number in range(count)]
        return [
            (
                Part(one["p_offset"], one["p_vaddr"], min(one["p_filesz"], self.size - one["p_offset"])),
                one["p_flags"],
            )
            for one in found
            if one["p_type"] == "PT_LOAD"
        ]

    @cached_property
    def tables(self) -> list["SymbolTable"]:
        """The table of exported and imported symbols, and that of all symbols or of a stripped file's own."""
        kinds = ("SHT_DYNSYM", "SHT_SYMTAB")
        found = [section for kind in kinds for section in self.sections if section["sh_type"] == kind]
        tables = [SymbolTable(self, section) for section in found[: len(kinds)]]
        return tables if self.mini is None else [*tables, self.mini]

    @cached_property
    def mini(self) -> "SymbolTable | None":
        """The functions in .gnu_debugdata, or in .gopclntab of a Go program, if they have no symbol table.

        A damaged section leaves the exported functions, and ``mini_fault`` says in a clause what is wrong.
        """
        if self.section("SHT_SYMTAB") is not None:
            return None
        for name, table in (
            (MINI, self._debug_data),
            (GO_TABLE, partial(go_functions, self, self.offset_of)),
        ):
            try:
                if (found := table()) is not None:
                    return found
            except Exhausted:
                raise
            except NoTableError as error:
                self.mini_fault = f", as its section {name} {error}"
            except Exception:  # pyelftools may raise any kind on invalid headers
                self.mini_fault = f", as its section {name} is damaged"
        return None

    def _debug_data(self) -> SymbolTable | None:
        if (section := next(iter(self.named_sections(MINI)), None)) is None:
            return None
        stream = decompressed(partial(self.read, section), section["sh_size"], self.budget.spend)
        size = stream.tell()
        stream.seek(0)
        self.budget.kept += size
        inner = ElfSections(self.path, stream, size, self.budget)
        return SymbolTable(inner, inner.section("SHT_SYMTAB"))


def _offset_in(parts: list[Part], address: int) -> int | None:
    for part in parts:
        if part.address <= address < part.address + part.size:
            return address - part.address + part.offset
    return None
