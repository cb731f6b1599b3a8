"""Which file and which function are at an address of a running program: for its stacks."""

import os
import re
import stat
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.identity.procfs import host_proc
from kprobe_exporter.model.stacks import Addresses, Frames, Place
from kprobe_exporter.symbols import perf_map
from kprobe_exporter.util.overruns import OVERRUNS
from kprobe_exporter.util.rooted_path import itself, open_rooted
from kprobe_exporter.util.token_bucket import TokenBucket

FRESH = 2.0
"""Seconds for which a process' mappings are taken for what they were: it may start another program."""

READINGS, BURST = 100.0, 200.0
"""Readings of mappings a second, and at once: each takes about 0.3 ms. More processes stay unknown."""

MOST_PROCESSES = 1024
MOST_TEXT = 1 << 20  # Bytes of a process' list of mappings. A browser's has 200 KiB.
TYPICAL = 1 << 16  # Bytes of a list that one reading pays for; a longer one takes the room of several
MOST_MAPPINGS = 4096  # Executable mappings of one process that are kept. A browser has 300.
MOST_PLACES = 4096  # Addresses of one process whose places are kept
MOST_FILES = 128  # Files that are open for the names that a request may need
MOST_NUMBERS = 1 << 14  # Files whose numbers are known; a file may have another number later
MOST_KEPT = 1 << 24
"""Bytes that the mappings and places of all processes take, roughly."""

KEPT = 256  # Bytes that a mapping or a place takes, at most

LONGEST = 64
"""Bytes of a file's name or path, and of a function's name, that are shown."""

UNKNOWN = b"[unknown]"

COMPILED = b"jit"
"""The name in place of a file's of memory with functions that the process has compiled and listed."""

MAPPING = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) [-r][-w]x[-ps] ([0-9a-f]{1,16}) ([0-9a-f:]+ \d{1,20}) *([^\n]*)$",
    re.MULTILINE,
)
"""An executable mapping of /proc/PID/maps (fs/proc/task_mmu.c): its addresses, the offset in the file, the
device and the inode, the path. The kernel writes a line end in a path as ``\\012``."""

DELETED = b" (deleted)"

MEMORY = (b"[anon", b"[heap", b"[stack", b"/memfd:", b"/dev/zero")
"""Beginnings of the names of mappings in which a program compiles functions. Most have no name."""


class Mapping(NamedTuple):
    """Addresses from ``start`` to ``end`` of a process, with the file's bytes from ``offset`` on."""

    start: int
    end: int
    offset: int
    file: int
    name: bytes


@dataclass(slots=True)
class _Process:
    """The agent's knowledge of a process: its mappings, in order, and the places of addresses that were
    looked up."""

    read: float
    mappings: list[Mapping] = field(default_factory=list)
    places: dict[int, Place | bytes] = field(default_factory=dict)
    comm: bytes = b""

    @property
    def kept(self) -> int:
        """Bytes, roughly."""
        return KEPT * (len(self.mappings) + len(self.places))


class Programs:
    """Looks up the code of running programs, and of their libraries.

    ``frames`` needs the process, which may end at any moment: it finds the file and the place in it, and
    opens the file through /proc/PID/root. So a container's file is found, and no link leads out of it.
    ``names`` needs the file alone, and may take seconds for a large one. Both may wait for a process or a
    file system that hangs, so neither the reader of events nor a request may call them itself. Not
    thread-safe.

    The process has to be the agent's user's without more rights than the agent has, or the agent needs
    CAP_SYS_PTRACE (ptrace_may_access() of kernel/ptrace.c). If these or the host's /proc are missing, a frame
    is ``[unknown]``.

    A file is shown by its name where only root may write it. Others, and those that are gone, are shown by
    their paths, so that no user's file looks like the system's libc.so.6.

    A process may have 20,000 mappings, and forge its stacks. So all processes share MOST_KEPT bytes: the one
    that takes most of them is forgotten, and read again at its next stack.
    """

    def __init__(self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = host_proc(proc)
        self._clock = clock
        self._bucket = TokenBucket(READINGS, BURST, clock())
        self._processes: dict[int, _Process] = {}
        self._kept = 0
        self._next = count(1)
        self._numbers: dict[tuple[bytes, bytes], int] = {}  # of files, by path, device and inode
        self._files: dict[int, BinaryIO] = {}  # the oldest first
        self._compiled: dict[int, int] = {}  # processes, by the numbers of their lists of functions

    def frames(self, pid: int, addresses: Addresses) -> Frames:
        """Return the frames of a process' stack; ``pid`` may be a thread's id. A known one takes 0.1 µs."""
        process = self._process(pid)
        known, found = process.places, list[Place | bytes]()
        for number, one in enumerate(addresses):
            # A return address is that of the next instruction, which may belong to another function.
            address = one - bool(number)
            place = known.get(address)
            found.append(self._look_up(process, address) if place is None else place)
        return tuple(found)

    def comm(self, pid: int) -> bytes:
        """Return the name of a process as a frame; ``[unknown]`` if it ended before it was looked up.

        A backquote would make the name look like a function of a file, and becomes an apostrophe.
        """
        return self._process(pid).comm.replace(b"`", b"'") or UNKNOWN

    def names(self, places: Iterable[Place]) -> dict[Place, bytes]:
        """Return the functions at these places, as ``libc.so.6`malloc``, or the file where there is none.

        A place is omitted if its file is not open any more, or if the process may still list its function.
        """
        asked = defaultdict[int, list[Place]](list)
        for place in places:
            asked[place.file].append(place)
        found: dict[Place, bytes] = {}
        for number, several in asked.items():
            if number in self._files:
                functions = self._functions(number, {place.offset for place in several})
                known = [one for one in several if one.offset in functions or number not in self._compiled]
                found |= {place: _named(place, functions.get(place.offset)) for place in known}
        return found

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._compiled.clear()

    def _process(self, pid: int) -> _Process:
        now = self._clock()
        process = self._processes.get(pid)
        if process is not None and now - process.read < FRESH:
            return process
        if self._proc is None or not self._bucket.take(now):
            return process or _Process(now)
        self._forget(pid)
        while len(self._processes) >= MOST_PROCESSES:
            self._forget(next(iter(self._processes)))
        text, comm = b"", b"" if process is None else process.comm
        with suppress(OSError), (self._proc / str(pid) / "maps").open("rb") as file:
            text = file.read(MOST_TEXT)
            comm = (self._proc / str(pid) / "comm").read_bytes().removesuffix(b"\n")
        self._bucket.level -= len(text) // TYPICAL
        lines = list(islice(MAPPING.finditer(text), MOST_MAPPINGS))
        compiled = self._function_list(pid) if any(_is_memory(one[5]) for one in lines) else 0
        mappings = [self._mapping(pid, one, compiled) for one in lines]
        if len(mappings) == MOST_MAPPINGS:
            OVERRUNS.add("process", pid, f"process {pid} has more than {MOST_MAPPINGS} executable mappings")
        if not mappings and process is not None:  # it has ended, and these are its last stacks
            mappings = process.mappings
        found = _Process(now, mappings, comm=comm)
        if process is not None and process.mappings == mappings:
            found.places = process.places
        self._processes[pid] = found
        self._keep(found, found.kept)
        return found

    def _look_up(self, process: _Process, address: int) -> Place | bytes:
        """Return the place of an address, its name alone where it is in no file, and keep it."""
        place = _place(process.mappings, address)
        found = place if place.file else place.name
        if process.mappings:
            if len(process.places) >= MOST_PLACES:
                self._kept -= KEPT * len(process.places)
                process.places.clear()
            process.places[address] = found
            self._keep(process, KEPT)
        return found

    def _keep(self, process: _Process, size: int) -> None:
        """Account for bytes of a process, and forget others, the largest first, for which no room is left."""
        self._kept += size
        while self._kept > MOST_KEPT:
            others = (pid for pid, other in self._processes.items() if other is not process)
            self._forget(max(others, key=lambda pid: self._processes[pid].kept))

    def _forget(self, pid: int) -> None:
        if (process := self._processes.pop(pid, None)) is not None:
            self._kept -= process.kept

    def _mapping(self, pid: int, line: re.Match[bytes], compiled: int) -> Mapping:
        start, end, offset, inode, path = line.groups()
        if compiled and _is_memory(path):
            return Mapping(int(start, 16), int(end, 16), int(start, 16), compiled, COMPILED)
        path = path.removesuffix(DELETED)
        file = self._number(pid, path, inode) if path.startswith(b"/") else 0
        name = path.strip(b"[]") if not file else path.rpartition(b"/")[2] if self._is_trusted(file) else path
        return Mapping(int(start, 16), int(end, 16), int(offset, 16), file, name[:LONGEST] or UNKNOWN[1:-1])

    def _is_trusted(self, number: int) -> bool:
        """Return whether only root, or the agent's user, may write a file: others may choose any name."""
        if (file := self._files.get(number)) is None:
            return False
        status = os.fstat(file.fileno())
        return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def _number(self, pid: int, path: bytes, inode: bytes) -> int:
        """Return the number of a mapped file, and hold it open if it still has this path."""
        number = self._number_of(path, inode)
        if number in self._files:
            return number
        with suppress(OSError, ValueError):
            file = open_rooted(f"{self._proc}/{pid}/root{os.fsdecode(path)}")
            # The device is not compared, as that of btrfs and overlayfs is another one in the list.
            if os.fstat(file.fileno()).st_ino != int(inode.split()[1]):
                file.close()
                return number
            self._hold(number, file)
        return number

    def _function_list(self, pid: int) -> int:
        """Return the number of the list of functions that a process has compiled; 0 if there is none."""
        if self._proc is None:
            return 0
        try:
            file = perf_map.open_map(self._proc / str(pid))
        except OSError:
            return 0
        status = os.fstat(file.fileno())
        number = self._number_of(b"%d" % pid, b"%d %d" % (status.st_dev, status.st_ino))
        if number in self._files:
            file.close()
        else:
            self._hold(number, file)
            self._compiled[number] = pid
        return number

    def _number_of(self, path: bytes, inode: bytes) -> int:
        number = self._numbers.get((path, inode))
        if number is None:
            if len(self._numbers) >= MOST_NUMBERS:
                self._numbers.clear()
            number = self._numbers[path, inode] = next(self._next)
        return number

    def _hold(self, number: int, file: BinaryIO) -> None:
        self._files[number] = file
        while len(self._files) > MOST_FILES:
            oldest = next(iter(self._files))
            self._files.pop(oldest).close()
            self._compiled.pop(oldest, None)

    def _functions(self, number: int, offsets: set[int]) -> dict[int, str]:
        # Imported when it is needed, as it takes 4 MB.
        from kprobe_exporter.elf import find  # noqa: PLC0415

        path = itself(self._files[number].fileno())
        with suppress(GrammarError, OSError):
            if (pid := self._compiled.get(number)) is not None:
                return perf_map.functions_at(path, offsets, pid)
            return find.functions_at(path, offsets)
        return {}


def _named(place: Place, function: str | None) -> bytes:
    if function is None:
        return place.name
    # Imported when it is needed, as the demanglers take 1 MB.
    from kprobe_exporter.elf.demangle import short_name  # noqa: PLC0415

    cut = short_name(function, LONGEST).encode()[:LONGEST].decode(errors="ignore")
    return b"%s`%s" % (place.name[1:-1], cut.encode())


def _is_memory(path: bytes) -> bool:
    """Return whether a mapping of this name may have functions that the process has compiled."""
    return not path or path.startswith(MEMORY)


def _place(mappings: list[Mapping], address: int) -> Place:
    """Return the place of an address."""
    at = bisect_right(mappings, address, key=lambda one: one.start) - 1
    if at < 0 or address >= mappings[at].end:
        return Place(0, 0, UNKNOWN)
    found = mappings[at]
    return Place(found.file, address - found.start + found.offset, b"[%s]" % found.name)
