"""The tracepoints that tell when threads end, recorded in our own instance: open calls end with them."""

import logging
from collections.abc import Callable, Iterator, Mapping

from kprobe_exporter.agent.own_tracepoints import Followed, OwnTracepoints
from kprobe_exporter.aggregate.ended_threads import EndedThreads
from kprobe_exporter.config.values import Config
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.values import TID, TIME, Layout, Record
from kprobe_exporter.plan import Kernel
from kprobe_exporter.tracefs.instance import Instance

log = logging.getLogger(__name__)

FOLLOWED = (
    Followed("task", "task_newtask", {"child": "pid", "flags": "clone_flags"}),
    Followed("sched", "sched_process_exec", {"old": "old_pid"}),
    Followed("sched", "sched_process_exit", {}),
)


def wants_thread_ends(config: Config) -> bool:
    """Return whether any probe joins two events."""
    return any(attach.end is not None for probe in config.probes for attach in probe.attach)


class _EndsOfThreads(OwnTracepoints):
    """The tracepoints FOLLOWED."""

    without = "calls stay open when their thread ends"


class ThreadEvents:
    """Installs the tracepoints FOLLOWED while the configuration has calls or pairs.

    The thread that holds the change lock owns it. Where they cannot be installed, or events are read as text,
    a call whose thread ends stays open until a later call of the same thread id takes its place.
    """

    def __init__(self) -> None:
        self._wanted = False
        self.following: OwnTracepoints | None = None

    def configure(self, config: Config) -> None:
        """Take from the configuration whether ends of threads are needed from now on."""
        self._wanted = wants_thread_ends(config)

    def follow(self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int]) -> None:
        """Install the tracepoints if the configuration needs them, or disable them."""
        if not self._wanted and self.following is not None:
            self.following.disable()
            self.following = None
        if not self._wanted or self.following is not None or not kernel.binary:
            return
        try:
            self.following = _EndsOfThreads(instance, kernel, layout_ids, FOLLOWED)
        except ProbeRefused as error:
            log.info("%s: %s", _EndsOfThreads.without, error)


def handlers(following: OwnTracepoints, threads: EndedThreads) -> Mapping[Layout, Callable[[Record], None]]:
    """Return the functions that pass the records of each tracepoint on to ``threads``."""
    started, executed, exited = (following.by_event[one.event] for one in FOLLOWED)
    child, flags, old = started.place("child"), started.place("flags"), executed.place("old")
    assert child is not None
    assert flags is not None
    assert old is not None
    return {
        started: lambda record: threads.started(record[TID], record[child], record[flags], record[TIME]),
        executed: lambda record: threads.executed(record[old], record[TID]),
        exited: lambda record: threads.exited(record[TID], record[TIME]),
    }
