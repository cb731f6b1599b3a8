"""The threads of the scope of a session."""

from pathlib import Path

from kprobe_exporter.identity.procfs import KTHREADD
from kprobe_exporter.identity.thread_sets import processes, threads_of
from kprobe_exporter.model.thread_times import Follow
from kprobe_exporter.probing.scope import LEFT, RECORDED, Scope
from kprobe_exporter.trace.session import TraceSession


class ScopeOfThreads:
    """Which threads are in the scope of a session now, by their ids on the host."""

    def __init__(self, session: TraceSession, scope: Scope, proc: Path | None) -> None:
        self._session, self._proc, self._everything = session, proc, not scope.narrows
        self._process = None if scope.children else scope.pid
        self.follows: frozenset[Follow] = frozenset()
        if scope.tid is None:
            self.follows = frozenset(("threads", "processes") if self._process is None else ("threads",))

    def follow(self) -> None:
        """Set the option event-fork: the kernel records new threads from their first event on."""
        if self._process is not None:
            self._session.instance.write("options/event-fork", "1")

    def threads(self) -> set[int]:
        """Return the threads that the kernel records. In the scope of one process, its children are none."""
        if self._everything:
            proc = self._proc or Path("/proc")
            return threads_of(proc, processes(proc))
        instance = self._session.instance
        listed = set(map(int, instance.read(RECORDED).split()))
        if instance.files.exists(f"{instance.path}/{LEFT}"):
            listed -= set(map(int, instance.read(LEFT).split()))
        if self._process is not None:
            found = threads_of(Path("/proc"), [self._process])
            translated = self._session.threads.translated
            listed &= {translated.get(tid, tid) for tid in found}
        return listed - {KTHREADD}
