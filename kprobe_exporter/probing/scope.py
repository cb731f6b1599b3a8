"""The threads that an instance records: those of a process, a user, a container, a cgroup, or with a name.

The kernel narrows all of it. ``set_event_pid`` has the threads; the option event-fork adds those that they
start. The name of a thread is a part of each event's filter.
"""

import pwd
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.config.model import Within
from kprobe_exporter.errors import StartError, UsageError, sentence
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.identity.procfs import KTHREADD, host_proc
from kprobe_exporter.identity.thread_sets import (
    cgroup_directory,
    cgroup_threads,
    processes,
    real_uid,
    threads_of,
    with_descendants,
)
from kprobe_exporter.model.values import COMM_BYTES
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.thread_ids import HostIds

RECORDED, LEFT = "set_event_pid", "set_event_notrace_pid"
"""The kernel's lists of recorded threads and, since 5.7, of threads that are not recorded despite the first
list. If event-fork is set, a new thread gets the entries of its starter, and loses them when it ends."""


class ThreadLists(NamedTuple):
    """The files of an instance that limit what it records to some threads: two lists, and an option."""

    recorded: str = RECORDED
    left: str = LEFT
    follow_forks: str = "options/event-fork"


OF_EVENTS = ThreadLists()
OF_TRACERS = ThreadLists("set_ftrace_pid", "set_ftrace_notrace_pid", "options/function-fork")
"""The lists for events, and those for the function tracers, which events do not heed."""

MAX_TIDS = 1000
"""Threads in one write to the kernel. Each write waits for its readers, 30 ms, for one thread or many."""

MAX_ROUNDS = 10
"""Rounds of one look. A thread that starts during a write is found in the next round."""

MAX_SHARE = 0.05
"""The part of a core that looks may take."""

PROPERTIES = ("uid", "container", "pod", "cgroup")
"""The fields of a scope that select processes by what they have, and that go together."""


class Scope(NamedTuple):
    """The properties of the wanted threads: all that are given hold for each.

    ``children``: with all descendants of the process ``pid``. ``uid`` is the real user id. ``comm`` may be a
    pattern with ``*``, as may ``container`` and ``pod``, which ``Within`` describes. ``cgroup`` is a path;
    the cgroups below it count, too. ``command`` has the words of a command that is yet to be started.
    """

    pid: int | None = None
    tid: int | None = None
    children: bool = False
    command: tuple[str, ...] = ()
    comm: str | None = None
    uid: int | None = None
    container: str | None = None
    pod: str | None = None
    cgroup: str | None = None

    @property
    def narrows(self) -> bool:
        """Whether only some threads are traced, so that each event has to be recorded."""
        return self != Scope()

    @property
    def has_properties(self) -> bool:
        """Whether it selects processes by what they have, which those that they start inherit."""
        return any(getattr(self, name) is not None for name in PROPERTIES)


class ScopedThreads:
    """Keeps an instance to the threads of a scope; ``look`` follows those that come and go.

    The kernel itself follows forks and ends, but not for a process without its children, whose new threads
    ``look`` finds. ``look`` also finds the processes that move into a container or a cgroup or become
    another user's, and those that leave. Until the next look, events of the former are missed, and those of
    the latter recorded. A process that starts another and ends between two listings of the first look is
    missed with it.

    The lists have the host's ids; ``host_ids`` translates those of another PID namespace into them.
    """

    def __init__(
        self,
        instance: Instance,
        scope: Scope,
        host_ids: HostIds | None = None,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
        lists: ThreadLists = OF_EVENTS,
    ) -> None:
        """Narrow the instance by its ``lists``; no event may be enabled yet.

        Raises StartError if there is no such process, container or cgroup, UsageError for a name that no
        thread can have, and TracefsError or OSError.
        """
        self._instance, self._host_ids, self._proc, self._clock = instance, host_ids, proc, clock
        self._files = lists
        if scope.has_properties and scope.cgroup is None and (place := host_proc(proc)) is not None:
            self._host_ids, self._proc = None, place  # a cgroup lists the ids of this process's namespace
        self.translated: dict[int, int] = {}
        self._can_exclude = self._host_ids is None and instance.files.exists(f"{instance.path}/{lists.left}")
        self._excludes = False
        self._due = float("-inf")
        self._threads = self._selected(scope)
        if scope.comm is not None:
            instance.names = condition = comm_filter(scope.comm)
            instance.guard = condition if instance.guard is None else f"({instance.guard}) && {condition}"
        if self._threads is None:
            return
        if scope.children or scope.has_properties:
            instance.write(lists.follow_forks, "1")
        self.look()
        if not self._list(self._files.recorded):  # without a list, every thread is recorded
            self._write(self._files.recorded, {KTHREADD})
            self._exclude({KTHREADD}, set())
        if scope.children or scope.tid is not None:
            self._threads = None  # the kernel does the rest

    def look(self) -> None:
        """Bring the kernel's lists up to date. A look that took long is not repeated soon. Raises OSError."""
        begin = self._clock()
        if self._threads is None or begin < self._due:
            return
        for _ in range(MAX_ROUNDS):
            before = self._list(self._files.recorded)
            found = self._translated(self._threads())
            listed = self._list(self._files.recorded)
            missing = {own: found[own] for own in found if found[own] not in listed and self._lives(own)}
            self._write(self._files.recorded, missing.values())
            strays = (before & listed).difference(found.values())
            self._exclude({tid for tid in strays if self._can_exclude and self._lives(tid)}, found.values())
            if not missing:
                break
        end = self._clock()
        self._due = end + (end - begin) / MAX_SHARE

    def _exclude(self, strays: set[int], found: Iterable[int]) -> None:
        """Leave out threads that the kernel has listed, and no longer the ones that are ``found`` again."""
        if not self._can_exclude or not (strays or self._excludes):
            return
        excluded = self._list(self._files.left)
        if again := excluded.intersection(found):
            self._instance.files.truncate(f"{self._instance.path}/{self._files.left}")  # no id goes alone
            excluded -= again
            self._write(self._files.left, excluded)
        self._write(self._files.left, strays - excluded)
        self._excludes = True

    def _lives(self, tid: int) -> bool:
        """Return whether a thread has not ended; the kernel itself removes the entries of a zombie."""
        with suppress(OSError):
            stat = (self._proc / str(tid) / "stat").read_bytes()
            return stat.rpartition(b") ")[2][:1] not in (b"Z", b"X")
        return False

    def _translated(self, tids: set[int]) -> dict[int, int]:
        """Return the host's ids by those of this PID namespace."""
        if self._host_ids is None:
            return {tid: tid for tid in tids}
        kept = {tid: host for tid, host in self.translated.items() if tid in tids}
        self.translated = kept | self._host_ids.of(tids - kept.keys())
        return self.translated

    def _list(self, name: str) -> set[int]:
        # An empty list of the tracers reads "no pid".
        return {int(word) for word in self._instance.read(name).split() if word.isdigit()}

    def _write(self, name: str, tids: Iterable[int]) -> None:
        words = [str(tid) for tid in sorted(tids)]
        for at in range(0, len(words), MAX_TIDS):
            self._instance.write(name, " ".join(words[at : at + MAX_TIDS]) + "\n")

    def _selected(self, scope: Scope) -> Callable[[], set[int]] | None:
        """Return a function that lists the threads; None if the scope does not choose among them."""
        proc, pid, tid = self._proc, scope.pid, scope.tid
        for what, number in (("thread", tid), ("process", pid)):
            if number is not None and not (proc / str(number)).exists():
                raise StartError(f"there is no {what} {number}.")
        if tid is not None:
            return lambda: {tid}
        if pid is not None:
            below = with_descendants if scope.children else lambda proc, pid: {pid}
            return lambda: threads_of(proc, below(proc, pid))
        lists = list(self._lists(scope))
        return (lambda: set.intersection(*(one() for one in lists))) if lists else None

    def _lists(self, scope: Scope) -> Iterator[Callable[[], set[int]]]:
        """Yield a function for each property, which lists the threads that have it."""
        proc, uid = self._proc, scope.uid
        if uid is not None:
            yield lambda: _of_processes(proc, lambda pid: real_uid(proc, pid) == uid)
        if scope.container is not None or scope.pod is not None:
            from kprobe_exporter.probing.container_scope import in_containers  # noqa: PLC0415 - seldom

            inside = in_containers(Within(scope.container, scope.pod), proc)
            yield lambda: _of_processes(proc, inside)
        if scope.cgroup is not None:
            directory = cgroup_directory(scope.cgroup, proc)
            if directory is None:
                raise StartError(
                    f"there is no cgroup {scope.cgroup!r}: give its directory, or its path as "
                    "/proc/PID/cgroup shows it."
                )
            yield lambda: cgroup_threads(directory)


def _of_processes(proc: Path, accepts: Callable[[int], bool]) -> set[int]:
    return threads_of(proc, filter(accepts, processes(proc)))


def comm_filter(name: str) -> str:
    """Return the kernel's filter that only threads of this name pass. Raises UsageError."""
    quote = next((each for each in "\"'" if each not in name), None)
    if not name or quote is None or not name.isprintable():
        raise UsageError(f"no filter can have the thread's name {name!r}: use * for what it cannot have.")
    operator = "~" if set(name) & set("*?[") else "=="
    cut = name if operator == "~" else name.encode()[:COMM_BYTES].decode(errors="ignore")
    return f"COMM {operator} {quote}{cut}{quote}"


def user_id(user: str) -> int:
    """Return the id of a user by name or number. Raises UsageError."""
    if user.isascii() and user.isdecimal() and int(user) < 2**32:
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        near = closest(user, (one.pw_name for one in pwd.getpwall()))
        raise UsageError(
            sentence(f"there is no user {user!r}{near or ': give a name, or a number'}")
        ) from None
