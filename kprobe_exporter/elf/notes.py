"""USDT probes of a program or a library: the notes of its section ``.note.stapsdt``.

A note has three addresses: where the probe is, where the section ``.stapsdt.base`` was when the file was
linked, and the probe's semaphore, which is 0 if it has none; then the provider, the name and the arguments,
each ended by a NUL (sys/sdt.h of SystemTap). A tool that moves the file's segments, such as prelink, moves
that section too but not the notes. So the difference is added to the other two addresses.
"""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import NamedTuple

from kprobe_exporter.elf import UsdtProbe, UsdtSite, library_path
from kprobe_exporter.elf.reader import ElfFile, opened
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.grammar.target import USDT_NAME, Target, too_many_matches
from kprobe_exporter.util.rooted_path import ProbedFiles

SECTION, BASE = ".note.stapsdt", ".stapsdt.base"
OWNER, TYPE = b"stapsdt\0", 3  # NT_STAPSDT

MOST_BYTES = 1 << 22  # Of all sections of a file. A Java virtual machine's 500 probes take 60 KB.
MOST_NOTES = 20_000  # Of a file, those that are left out included
NOTE = 512  # Bytes of memory that a note takes, besides its arguments
MOST_SITES = 500
"""Places of one probe, each of which is a definition in the kernel."""

MOST_TOLD = 8  # Providers that one error message lists

_WORDS = re.compile(rb"([^\0]*)\0([^\0]*)\0([^\0]*)", re.DOTALL)


class Note(NamedTuple):
    """One note as the file has it. The first three are addresses; ``semaphore`` is 0 if there is none."""

    location: int
    base: int
    semaphore: int
    provider: str
    name: str
    arguments: str


def parse_notes(
    data: bytes, order: str, *, wide: bool, charge: Callable[[], object] = lambda: None
) -> Iterator[Note]:
    """Yield the notes of a section. ``order`` is ``<`` or ``>``; ``wide`` says that an address has 8 bytes.

    Notes of other owners, cut ones and those whose names no attach string can hold are omitted. ``charge`` is
    called for each note, also for those.
    """
    header, addresses = struct.Struct(f"{order}III"), struct.Struct(f"{order}{'QQQ' if wide else 'III'}")
    at = 0
    while at + header.size <= len(data):
        charge()
        owner_size, size, kind = header.unpack_from(data, at)
        start = at + header.size + _padded(owner_size)
        owner, content = data[at + header.size : at + header.size + owner_size], data[start : start + size]
        at = start + _padded(size)
        if owner != OWNER or kind != TYPE or len(content) < max(size, addresses.size):
            continue
        words = _WORDS.match(content, addresses.size)
        if words is None:
            continue
        provider, name, arguments = (word.decode("ascii", "replace") for word in words.groups())
        if USDT_NAME.fullmatch(provider) and USDT_NAME.fullmatch(name) and arguments.isprintable():
            location, base, semaphore = addresses.unpack_from(content)
            yield Note(location, base, semaphore, provider, name, arguments)


def _padded(size: int) -> int:
    return (size + 3) // 4 * 4


def usdt_probes(path: str, files: ProbedFiles | None = None) -> list[UsdtProbe]:
    """Return the USDT probes of a file, each once with all of its places, sorted. Raises GrammarError."""
    found = library_path(path, files)
    with opened(found, files) as file:
        return [one._replace(path=found if found != path else None) for one in file.once(_probes)]


def locate_usdt(target: Target, files: ProbedFiles | None = None) -> UsdtProbe:
    """Return the probe of this provider and name; ``-`` may be written for ``__``. Raises GrammarError."""
    path, provider = target.path, target.provider
    known = usdt_probes(path, files)
    if not known:
        raise GrammarError(f"{path} has no USDT probes, as it has no notes of them ({SECTION})")
    named = {one.name: one for one in known if one.provider == provider}
    if not named:
        providers = dict.fromkeys(one.provider for one in known)
        listed = ", ".join(islice(providers, MOST_TOLD))
        raise GrammarError(
            f"{path} has no USDT provider {provider!r}{closest(provider, providers) or f', only {listed}'}"
        )
    found = named.get(target.symbol) or named.get(target.symbol.replace("-", "__"))
    if found is None:
        raise GrammarError(
            f"the provider {provider!r} of {path} has no USDT probe {target.symbol!r}"
            f"{closest(target.symbol.replace('-', '__'), named)}"
        )
    if not found.sites:
        raise GrammarError(f"the USDT probe {provider}:{found.name} of {path} is not in its code")
    if len(found.sites) > MOST_SITES:
        raise GrammarError(
            f"the USDT probe {provider}:{found.name} is at {len(found.sites)} places of {path}, and at most "
            f"{MOST_SITES} can be probed"
        )
    return found


def matching_usdt(target: Target, most: int, files: ProbedFiles | None = None) -> list[Target]:
    """Return the probes that a pattern matches, sorted. Raises GrammarError for 0 or more than ``most``."""
    known = usdt_probes(target.path, files)
    found = [
        replace(target, provider=one.provider, symbol=one.name)
        for one in known
        if fnmatchcase(one.provider, target.provider) and fnmatchcase(one.name, target.symbol)
    ]
    if not found:
        listed = ", ".join(islice((f"{one.provider}:{one.name}" for one in known), MOST_TOLD))
        only = f"; it has {listed}{', …' if len(known) > MOST_TOLD else ''}" if known else ""
        raise GrammarError(f"'{target}' matches none of the {len(known)} USDT probes of the file{only}")
    if len(found) > most:
        raise GrammarError(too_many_matches(target, len(found), "USDT probe", most))
    return found


def _probes(file: ElfFile) -> list[UsdtProbe]:
    base = file.section_address(BASE)
    sites: dict[tuple[str, str], dict[int, UsdtSite]] = {}
    for note in _notes(file):
        moved = base - note.base if base is not None else 0
        found = sites.setdefault((note.provider, note.name), {})
        offset = file.offset_of(note.location + moved)
        if offset is None or offset in found:
            continue  # one place fires once, however many notes it has
        counter = file.data_offset_of(note.semaphore + moved) if note.semaphore else None
        if note.semaphore and counter is None:
            continue  # without its counter, the program skips the place
        found[offset] = UsdtSite(offset, counter, note.arguments)
    return [
        UsdtProbe(provider, name, tuple(found.values()), file.machine, file.inode)
        for (provider, name), found in sorted(sites.items())
    ]


def _notes(file: ElfFile) -> Iterator[Note]:
    sections, number = file.named_sections(SECTION), 0
    if (size := sum(section["sh_size"] for section in sections)) > MOST_BYTES:
        raise GrammarError(f"{file.path} has {size} bytes of USDT notes, and {MOST_BYTES} would be read")

    def charge() -> None:
        nonlocal number
        number += 1
        if number > MOST_NOTES:
            raise GrammarError(f"{file.path} has more than {MOST_NOTES} USDT notes")

    step = 1 << 20
    for section in sections:
        data = b"".join(file.read(section, start, step) for start in range(0, section["sh_size"], step))
        for note in parse_notes(data, file.order, wide=file.wide, charge=charge):
            file.budget.kept += NOTE + len(note.arguments)
            yield note
