"""Facts of the processes of threads: from the kernel's own events, and from /proc while a process lives.

The kernel emits these events in kernel/fork.c (task_newtask) and fs/exec.c (sched_process_exec).
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.identity.cgroups import TICK, boot_time
from kprobe_exporter.identity.procfs import PF_KTHREAD, host_proc, names
from kprobe_exporter.identity.threads import CLONE_THREAD
from kprobe_exporter.model.values import COMM_BYTES, Value

CLONE_PARENT = 0x8000  # include/uapi/linux/sched.h

MAX_THREADS = 65_536
"""Threads that are known. Beyond it the first ones that were learnt go; they are read again if they live."""

MAX_ARGV_BYTES = 1024
"""Bytes of a command line; a longer one ends with ``…``."""

UID_AGE_NS = 5_000_000_000
"""Nanoseconds after which a user id is read again: no event reports that a process has changed its own."""

NEW_DESCRIPTOR = b"/dev/fd/"
"""Begins the path of a program that fexecve() executes. The name of its thread does not follow from it."""

SIGNALLED = 128
"""A shell adds it to the number of a signal that ended a process."""

MAX_STATUS = 0xFFFF
"""The largest status of wait(2): the low byte has a signal and the bit of a core dump, the high one the
exit status."""

_STAT = re.compile(rb"(?s)\d{1,10} \((.*)\) \S(?: \S+){5} (\d{1,10})(?: \S+){12} (\d{1,20})\s")
"""Fields 2, 9 and 22 of proc_pid_stat(5): the name, the flags, and the start in ticks after boot."""

_STATUS = re.compile(rb"(?s)\nTgid:\t(\d{1,10})\n.*?\nPPid:\t(\d{1,10})\n.*?\nUid:\t(\d{1,10})\t")


@dataclass(slots=True, eq=False)
class Process:
    """A process from its start, or from an exec, to its next exec. None stands for an unknown fact."""

    pid: int
    born: int | None  # nanoseconds after boot
    ppid: int | None = None  # the process that started it, or, read from /proc, its parent at that time
    parent_comm: bytes | None = None
    exe: bytes | None = None
    argv: bytes | None = None
    uid: int | None = None  # the real one
    argv_read: int | None = None  # when /proc was asked for it, in nanoseconds of the events' clock
    uid_read: int | None = None  # the same
    name: bytes = b""  # the name that an exec gave the thread; empty if no exec was seen
    ended: int | None = None  # of a thread that ends, the code in the form of wait(2)

    @property
    def exit_signal(self) -> int | None:
        """The number of the signal that ended it, 0 if none did."""
        return None if self.ended is None else self.ended & 0x7F

    @property
    def exit_code(self) -> int | None:
        """The number that a shell shows as ``$?``: its exit status, or 128 and the signal that ended it."""
        signal = self.exit_signal
        if self.ended is None or signal is None:
            return None
        return SIGNALLED + signal if signal else self.ended >> 8 & 0xFF


IDLE = Process(0, 0, 0, b"", b"", b"", 0, argv_read=0, uid_read=1 << 63)
"""The process of the processors' idle threads."""


class _Seen(NamedTuple):
    """A thread in /proc."""

    comm: bytes
    kernel: bool
    start: int  # nanoseconds after boot, rounded down to a tick
    tgid: int
    ppid: int
    uid: int


class Processes:
    """Follows processes; the thread that reads the events owns it.

    It gets the kernel's events in time order, and is queried in between. For a process that starts during the
    recording, the parent, the start and the executed path are right, also after its end. Its user id and its
    command line are read from /proc when its exec is read: both stay unknown if it has ended by then. Any
    other process is read from /proc while it lives; one that started after the event is rejected, because it
    has reused the id. /proc does not show that such a process executed another program since the event.
    ``scan`` avoids this: call it when the kernel's events are on, and the events to be labelled not yet.

    ``wanted`` are the facts that are needed of a process at its exec. ``read_argv`` reads a command line from
    the descriptor of a directory ``/proc/PID``. ``clock`` is the events' clock in nanoseconds, ``since_boot``
    converts its time to time since boot. Without the host's /proc only the kernel's events serve.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        since_boot: Callable[[int], int] = boot_time,
        read_argv: Callable[[int], bytes | None] | None = None,
    ) -> None:
        self._proc = host_proc(proc)
        self._clock, self._since_boot = clock, since_boot
        self._read_argv = read_argv or command_line
        self._of: dict[int, Process] = {}
        self.wanted: Collection[str] = ()

    def fact(self, name: str, tid: int, time_ns: int) -> Value:
        """Return a fact of a thread's process at an event's place in the stream, None if it is unknown.

        ``age`` is in nanoseconds, since the process started.
        """
        process = self.at(tid, time_ns)
        return None if process is None else self.fact_of(process, name, time_ns)

    def fact_of(self, process: Process, name: str, time_ns: int) -> Value:
        """Return a fact of a process that ``at`` returned for an event of this time."""
        match name:
            case "age":
                return None if process.born is None else max(0, self._since_boot(time_ns) - process.born)
            case "uid":
                now = self._clock()
                if process.uid_read is None or now - process.uid_read >= UID_AGE_NS:
                    self._read_more(process, now)
            case "argv" if process.argv_read is None:
                self._read_more(process, self._clock())
        value: Value = getattr(process, name)
        return value

    def at(self, tid: int, time_ns: int) -> Process | None:
        """Return a thread's process at an event's place in the stream, None if it is unknown."""
        if tid <= 0:
            return IDLE if tid == 0 else None
        process = self._of.get(tid) or self._look(tid)
        if process is None or process.born is None:
            return process
        return None if process.born > self._since_boot(time_ns) + TICK else process

    def started(self, parent: int, child: int, clone_flags: int, time_ns: int, comm: bytes | None) -> None:
        """``task:task_newtask``: a new thread, whose name ``comm`` is that of the thread that started it."""
        if child <= 0:
            return
        forker = self.at(parent, time_ns)
        if clone_flags & CLONE_THREAD:
            self._keep(child, forker)
            return
        new = Process(child, self._since_boot(time_ns))
        if forker is not None:
            new = replace(forker, pid=child, born=new.born, uid=None, uid_read=None, ended=None)
        if not clone_flags & CLONE_PARENT:
            new.ppid = None if forker is None else forker.pid
            new.parent_comm = comm
            if forker is not None and parent != forker.pid:
                new.parent_comm = self._comm(forker.pid) or comm
        self._keep(child, new)

    def executed(self, old_tid: int, tid: int, time_ns: int, path: bytes | None) -> None:
        """``sched:sched_process_exec``: another program. de_thread() has given its thread the leader's id."""
        before = self.at(old_tid, time_ns) or Process(tid, None)
        if (before.argv_read or 0) > time_ns:
            before.argv = None  # it is that of the new program, or of a later one
        if old_tid != tid:
            self._of.pop(old_tid, None)
        name = b"" if path is None or path.startswith(NEW_DESCRIPTOR) else path.rpartition(b"/")[2]
        now = replace(
            before,
            exe=path,
            argv=None,
            uid=None,
            argv_read=None,
            uid_read=None,
            name=name[:COMM_BYTES],
            ended=None,
        )
        self._keep(tid, now)
        if "uid" in self.wanted or "argv" in self.wanted:
            self._read_more(now, self._clock())

    def exiting(self, tid: int, time_ns: int, code: int) -> None:
        """``do_exit()``: this thread ends, with a code in the form of wait(2); its process may live on.

        A thread of the kernel may end with another number, which is not noted.
        """
        if 0 <= code <= MAX_STATUS and (process := self.at(tid, time_ns)) is not None:
            self._keep(tid, replace(process, ended=code))

    def lost(self) -> None:
        """Forget all processes, because events about threads are missing."""
        self._of.clear()

    def scan(self) -> None:
        """Read every process from /proc, so that all are known before their first event."""
        for pid in filter(str.isdecimal, names(self._proc) if self._proc is not None else ()):
            if len(self._of) < MAX_THREADS:
                self._look(int(pid))

    def _keep(self, tid: int, process: Process | None) -> None:
        self._of.pop(tid, None)
        if process is None:
            return
        while len(self._of) >= MAX_THREADS:
            del self._of[next(iter(self._of))]
        self._of[tid] = process

    def _look(self, tid: int) -> Process | None:
        """Learn from /proc the process of a thread that is not known."""
        found = None
        with suppress(OSError), self._directory(tid) as directory:
            seen = _see(directory)
            if seen.tgid != tid:
                found = self._of.get(seen.tgid) or self._look(seen.tgid)
            else:
                comm = self._comm(seen.ppid) if seen.ppid else b""
                exe = b"" if seen.kernel else _exe(directory)
                found = Process(tid, seen.start, seen.ppid, comm, exe)
            self._keep(tid, found)
        return found

    def _read_more(self, process: Process, now: int) -> None:
        """Read the facts that only /proc has, if this process is still there."""
        asked, process.uid_read = process.argv_read is None, now
        process.argv_read = now if asked else process.argv_read
        with suppress(OSError), self._directory(process.pid) as directory:
            seen = _see(directory)
            if process.born is None or abs(seen.start - process.born) > TICK:
                return  # another process has its id
            process.uid = seen.uid
            # A program with another name is one that it has executed since, or it has renamed itself.
            if asked and process.name in (b"", seen.comm):
                process.argv = self._read_argv(directory)

    def _comm(self, pid: int) -> bytes | None:
        with suppress(OSError), self._directory(pid) as directory:
            return _see(directory).comm
        return None

    @contextmanager
    def _directory(self, tid: int) -> Iterator[int]:
        """Yield a descriptor: all files opened through it belong to the thread for which it was opened."""
        if self._proc is None:
            raise FileNotFoundError
        directory = os.open(self._proc / str(tid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield directory
        finally:
            os.close(directory)


def command_line(directory: int) -> bytes | None:
    """Return the arguments, joined by blanks and cut, by the descriptor of a directory ``/proc/PID``.

    None for a process that has ended. It waits for the process's memory map, which the process may hold for
    seconds.
    """
    read = _read(directory, "cmdline", MAX_ARGV_BYTES + 1)
    text = read[:MAX_ARGV_BYTES].rstrip(b"\0").replace(b"\0", b" ")
    return text + "…".encode() if len(read) > MAX_ARGV_BYTES else text or None


def _see(directory: int) -> _Seen:
    """Read a thread. Raises OSError if it has ended."""
    stat, status = _STAT.match(_read(directory, "stat")), _STATUS.search(_read(directory, "status"))
    if stat is None or status is None:
        raise ProcessLookupError
    kernel, start = bool(int(stat[2]) & PF_KTHREAD), int(stat[3]) * TICK
    return _Seen(stat[1][:COMM_BYTES], kernel, start, *map(int, status.groups()))


def _exe(directory: int) -> bytes | None:
    with suppress(OSError):
        return os.fsencode(os.readlink("exe", dir_fd=directory)).removesuffix(b" (deleted)")
    return None


def _read(directory: int, name: str, size: int = 1 << 16) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), "rb", buffering=0) as file:
        return file.read(size)
