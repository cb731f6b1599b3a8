"""The cgroup of a thread at the time of an event: from the kernel's own events, else from /proc.

The kernel emits these events in kernel/fork.c, kernel/exit.c, fs/exec.c and kernel/cgroup/cgroup.c.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from kprobe_exporter.identity.containers import OUTSIDE, container
from kprobe_exporter.identity.procfs import host_proc, names, namespace
from kprobe_exporter.identity.threads import CLONE_THREAD, TGID

CLONE_INTO_CGROUP = 0x2_0000_0000  # include/uapi/linux/sched.h
PF_EXITING = 0x4  # include/linux/sched.h; on v1, /proc shows an exiting thread in "/", not in its cgroup

INITIAL_CGROUPS = "cgroup:[4026531835]"
"""The initial cgroup namespace (PROC_CGROUP_INIT_INO, include/linux/proc_ns.h)."""

Paths: TypeAlias = tuple[tuple[int, bytes], ...]
"""A thread's cgroup paths, each with the id of its hierarchy, which is 0 for v2."""

ROOT = b"/"
MOST_THREADS, MOST_EXITED, MOST_TOLD = 32_768, 4096, 1024
KEPT = 5_000_000_000
"""Nanoseconds of the stream for which a thread is kept after its exit event, as do_exit() continues."""

LONGEST = 1023
"""Bytes; a path of this length in an event may have been cut (TRACE_CGROUP_PATH_LEN, cgroup-internal.h)."""

PREFERRED = (b"", b"name=systemd", b"memory", b"cpu", b"pids")
"""The controllers of the most informative hierarchies, the best first: the unified one of v2."""

TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STAT = re.compile(rb" \S(?: \S+){5} (\d{1,10})(?: \S+){12} (\d{1,20})\s")
"""Fields 9 and 22 of proc_pid_stat(5), after the name: the flags and the start, in ticks after boot."""
LINE = re.compile(rb"^(\d{1,10}):([^:\n]*):(/.*)$", re.MULTILINE)
"""A line ``ID:CONTROLLERS:/PATH`` of /proc/PID/cgroup (cgroups(7)); no path has a line end in it."""


def boot_time(time_ns: int) -> int:
    """Convert CLOCK_MONOTONIC, the events' clock, to time since boot, which includes suspended time."""
    return time_ns - time.clock_gettime_ns(time.CLOCK_MONOTONIC) + time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class _Thread:
    """The agent's knowledge of a thread; ``path`` is the most informative of its ``paths``, None if unknown.

    The paths are those at ``since``, in the events' time, as later events changed them. Paths from /proc are
    ahead of the stream, and of the thread that lives since ``start``, nanoseconds after boot. ``looked`` is
    when /proc was read; ``tgid`` 0 if unknown. ``stayed`` are its paths if only its process's leader moved.
    """

    since: int
    tgid: int
    paths: Paths
    path: bytes | None
    start: int = 0
    looked: int = 0
    stayed: Paths | None = None


class Cgroups:
    """Follows threads through their cgroups; the reader's thread owns it.

    It gets the kernel's events in time order, and is queried in between. A child inherits its parent's
    cgroups. So threads that began and moved during the recording are known exactly, also after their end. The
    exception is a move in the microsecond between a fork and its event, which no event reports. Any other
    thread is looked up in /proc, once, while it lives. A thread that started after the event is rejected: it
    has reused the id. /proc is read about 0.1 s late: a thread that moved in between gets its new cgroup.
    ``scan`` avoids this: call it when the cgroup events are on, and the events to be labelled not yet.

    ``clock`` is the events' clock in nanoseconds, ``since_boot`` converts its time to time since boot. If the
    host's /proc is missing, that of another pid namespace has other threads under these ids and is never read
    for them: then only threads that move during the recording are known, and their children. In a cgroup
    namespace of the agent's own, only paths that begin with ``/..`` are used: those inside its container lack
    its name.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        since_boot: Callable[[int], int] = boot_time,
    ) -> None:
        self._proc = host_proc(proc)
        self._own = proc / "self/cgroup"
        self._namespaced = namespace(proc, "cgroup") not in (None, INITIAL_CGROUPS)
        self._clock = clock
        self._since_boot = since_boot
        self._threads: dict[int, _Thread] = {}
        self._processes: dict[int, set[int]] = {}
        self._exited: dict[int, int] = {}
        self._hierarchies: dict[int, bytes] = {}
        self._telling = lru_cache(MOST_TOLD)(self._tell)
        self._learn_hierarchies()

    def path(self, tid: int, time_ns: int) -> bytes | None:
        """Return the cgroup's path in the most informative hierarchy; None if unknown.

        A path that names a container comes first, then one that is not the root; among these the first
        hierarchy of PREFERRED, then the one with the lowest id.
        """
        if tid <= 0:
            return ROOT if tid == 0 else None  # a CPU's idle thread
        thread = self._known(tid, time_ns)
        if time_ns < thread.since and self._too_late(thread.start, time_ns):
            return None
        return thread.path

    def started(self, parent: int, child: int, clone_flags: int, time_ns: int) -> None:
        """``task:task_newtask``: a new task, in its parent's cgroups unless the flags say otherwise."""
        if child <= 0:
            return
        known = self._known(parent, time_ns)
        paths = known.paths if known.since <= time_ns else ()  # not the parent's later cgroups
        if clone_flags & CLONE_INTO_CGROUP:
            paths = _with(paths, 0, b"")  # no event names this cgroup
        tgid = known.tgid if clone_flags & CLONE_THREAD else child
        self._keep(child, _Thread(time_ns, tgid, paths, self._telling(paths)))
        if clone_flags & CLONE_INTO_CGROUP:
            self._look(child, time_ns)

    def attached(self, tid: int, hierarchy: int, path: bytes, time_ns: int) -> None:
        """``cgroup:cgroup_attach_task``: a thread, or a whole process by its leader, is in another cgroup.

        The event of a leader does not say whether all its threads moved: a write to cgroup.procs. Or only the
        leader did (cgroup.threads, or ``tasks`` on v1). Usually all move, so all are taken to have moved. A
        thread that /proc still shows in its old cgroup when it is next looked up has stayed.
        """
        if tid <= 0:
            return
        if hierarchy not in self._hierarchies:
            self._learn_hierarchies()
            self._hierarchies.setdefault(hierarchy, b"?")
            self._telling.cache_clear()
        if not self._known(tid, time_ns).tgid and self._proc is None:  # nearly all are leaders
            self._keep(tid, _Thread(time_ns, tid, (), None))
        self._move(tid, hierarchy, path, time_ns, certain=True)
        for other in self._processes.get(tid, ()):
            if other != tid:
                self._move(other, hierarchy, path, time_ns, certain=False)

    def exited(self, tid: int, time_ns: int) -> None:
        """``sched:sched_process_exit``: the last events of the thread may still follow."""
        thread = self._threads.get(tid)
        if thread is not None and thread.since <= time_ns:
            self._exited[tid] = time_ns
        while self._exited:
            first, when = next(iter(self._exited.items()))
            if len(self._exited) <= MOST_EXITED and time_ns - when <= KEPT:
                break
            self._forget(first)

    def executed(self, old_tid: int, tid: int) -> None:
        """``sched:sched_process_exec``: de_thread() gives a thread the id of its leader, which has exited."""
        if old_tid != tid:
            thread = self._threads.get(old_tid)
            self._forget(old_tid)
            self._forget(tid)
            if thread is not None:
                self._keep(tid, thread)

    def lost(self, time_ns: int | None = None) -> None:
        """Forget the threads that are known from before ``time_ns``, or before now: events up to then may be
        missing, so any of these threads may have moved, and its id may be another thread's."""
        before = self._clock() if time_ns is None else time_ns
        for tid in [tid for tid, thread in self._threads.items() if thread.since < before]:
            self._forget(tid)

    def scan(self) -> None:
        """Read every thread from /proc, about 30 µs each, so that all are known before their first event."""
        for process in filter(str.isdecimal, names(self._proc) if self._proc is not None else ()):
            for tid in filter(str.isdecimal, names(f"{self._proc}/{process}/task")):
                if len(self._threads) < MOST_THREADS and (found := self._read(f"{process}/task/{tid}")):
                    self._keep(int(tid), found)

    def _known(self, tid: int, time_ns: int) -> _Thread:
        thread = self._threads.get(tid)
        if thread is None or (thread.path is None and thread.looked <= time_ns):
            return self._look(tid, time_ns)
        if thread.stayed is not None:
            found = self._read(str(tid))
            if found and found.paths == thread.stayed and not self._too_late(found.start, time_ns):
                thread.paths, thread.path = found.paths, found.path
            thread.stayed = None
        return thread

    def _look(self, tid: int, time_ns: int) -> _Thread:
        """Look up a thread of an event in /proc; one that is not found is not looked up again at once."""
        looked = self._clock()
        found = self._read(str(tid))
        if found is None or self._too_late(found.start, time_ns):
            found = self._threads.get(tid) or _Thread(time_ns, 0, (), None)
        found.looked = looked
        if found is not self._threads.get(tid):
            self._keep(tid, found)
        return found

    def _too_late(self, start: int, time_ns: int) -> bool:
        """Return whether a thread with this start after boot is too young for an event of this time."""
        return start > self._since_boot(time_ns) + TICK

    def _move(self, tid: int, hierarchy: int, path: bytes, time_ns: int, *, certain: bool) -> None:
        thread = self._threads[tid]
        if not thread.tgid or tid in self._exited or not (certain or thread.paths):
            return  # exited threads do not move, and nothing is guessed about unknown threads
        if time_ns < thread.since:  # /proc had this move already; the event gives its exact time
            if not certain or len(thread.paths) > 1 or self._too_late(thread.start, time_ns):
                return
            thread.since = time_ns
        before = thread.stayed or thread.paths
        thread.paths = _with(thread.paths, hierarchy, path)
        thread.stayed = None if certain or before == thread.paths else before
        thread.path = self._telling(thread.paths)

    def _tell(self, paths: Paths) -> bytes | None:
        """Return the most informative path; None if hierarchies are missing, except a container's without
        /proc."""
        best = min(paths, key=self._rank)[1] if paths else b""
        whole = self._hierarchies.keys() <= dict(paths).keys()
        return best if best and (whole or (self._proc is None and container(best) is not None)) else None

    def _rank(self, place: tuple[int, bytes]) -> tuple[bool, bool, int, int]:
        hierarchy, path = place
        names = self._hierarchies.get(hierarchy, b"?").split(b",")
        best = min((PREFERRED.index(name) for name in names if name in PREFERRED), default=len(PREFERRED))
        return container(path) is None, path == ROOT, best, hierarchy

    def _keep(self, tid: int, thread: _Thread) -> None:
        self._forget(tid)
        # After exited threads, the oldest go first: they live long, and /proc can be read again for them.
        while len(self._threads) >= MOST_THREADS:
            self._forget(next(iter(self._exited or self._threads)))
        self._threads[tid] = thread
        if thread.tgid:
            self._processes.setdefault(thread.tgid, set()).add(tid)

    def _forget(self, tid: int) -> None:
        self._exited.pop(tid, None)
        thread = self._threads.pop(tid, None)
        if thread is not None and thread.tgid in self._processes:
            self._processes[thread.tgid].discard(tid)
            if not self._processes[thread.tgid]:
                del self._processes[thread.tgid]

    def _read(self, thread: str) -> _Thread | None:
        """Return what /proc has about a thread that lives and is not exiting."""
        if self._proc is None:
            return None
        now = self._clock()
        try:
            # Files opened through this descriptor all belong to the thread for which it was opened.
            directory = os.open(self._proc / thread, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                cgroup, stat, status = (_text(directory, file) for file in ("cgroup", "stat", "status"))
            finally:
                os.close(directory)
        except OSError:
            return None
        fields = _STAT.match(stat.rpartition(b")")[2])
        tgid, paths = TGID.search(status), self._parse(cgroup)
        if fields is None or tgid is None or int(fields[1]) & PF_EXITING:
            return None
        return _Thread(now, int(tgid[1]), paths, self._telling(paths), start=int(fields[2]) * TICK)

    def _parse(self, cgroup: bytes) -> Paths:
        """Parse the lines of a thread."""
        lines = sorted((int(number), names, path) for number, names, path in LINE.findall(cgroup))
        hierarchies = {number: names for number, names, _ in lines}
        if hierarchies != self._hierarchies:
            self._hierarchies = hierarchies
            self._telling.cache_clear()
        places = ((number, path) for number, _, path in lines)
        return tuple(p for p in places if not self._namespaced or p[1].split(b"/")[1] == OUTSIDE)

    def _learn_hierarchies(self) -> None:
        """Learn which hierarchies there are; the agent's own file lists them in any namespace."""
        with suppress(OSError):
            self._parse(self._own.read_bytes())


def _with(paths: Paths, hierarchy: int, path: bytes) -> Paths:
    others = tuple(place for place in paths if place[0] != hierarchy)
    return tuple(sorted((*others, (hierarchy, path)))) if 0 < len(path) < LONGEST else others


def _text(directory: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), "rb", buffering=0) as file:
        return file.read()
