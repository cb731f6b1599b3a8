"""Tracking the cgroups of threads by the kernel's tracepoints, recorded in our own instance."""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kprobe_exporter.agent.own_tracepoints import Followed, OwnTracepoints
from kprobe_exporter.agent.thread_events import ThreadEvents
from kprobe_exporter.config.values import Config
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.pods import Pods, Whereabouts
from kprobe_exporter.model.values import OF_THREAD, TID, TIME, Batch, Layout, Record
from kprobe_exporter.plan import Kernel
from kprobe_exporter.tracefs.instance import Instance

log = logging.getLogger(__name__)

Handle = Callable[[Record], None]


FOLLOWED = (
    # Not sched_process_fork: only this one has the flags, for threads and for a cgroup named by clone3().
    Followed("task", "task_newtask", {"child": "pid", "flags": "clone_flags"}),
    Followed(
        "cgroup",
        "cgroup_attach_task",
        {"leader": "pid", "hierarchy": "dst_root", "path": "dst_path"},
    ),
    Followed("sched", "sched_process_exec", {"old": "old_pid"}),
    Followed("sched", "sched_process_exit", {}),
)


PODS = Path("/var/log/pods")
"""Where this directory exists, exported events get attributes of their container and pod."""


def wants_cgroups(config: Config) -> bool:
    """Return whether any label needs the cgroup of a thread, or exported events need their container."""
    labels = (label for probe in config.probes for metric in probe.metrics for label in metric.labels)
    return exports_containers(config) or any(
        label.decode and label.decode[0].name in OF_THREAD for label in labels
    )


def exports_containers(config: Config) -> bool:
    """Return whether single events are exported on a node of Kubernetes."""
    exported = config.otlp is not None and any(probe.export is not None for probe in config.probes)
    return exported and PODS.is_dir()


class Identities:
    """The cgroups and pods of threads, and their ends. The reader's thread owns it while that runs.

    Threads are tracked only while the configuration needs it. The thread that holds the
    change lock calls ``configure`` and ``follow``, before the reader knows of the change. With ``nested`` a
    container in a container counts.
    """

    def __init__(self, *, nested: bool = False) -> None:
        self.nested = nested
        self.pods = Pods()
        self.cgroups = Cgroups()
        self._wanted = self._exported = False
        self._whereabouts = Whereabouts(self.cgroups, self.pods, nested=nested)
        self.following: CgroupEvents | None = None
        self.ends = ThreadEvents()

    def configure(self, config: Config) -> None:
        """Take from the configuration what is needed from now on."""
        self.ends.configure(config)
        self._wanted = wants_cgroups(config)
        self._exported = exports_containers(config)

    @property
    def tracepoints(self) -> tuple[OwnTracepoints, ...]:
        """The tracepoints that are installed now."""
        return tuple(each for each in (self.following, self.ends.following) if each is not None)

    @property
    def attributes(self) -> Callable[[int, int], Mapping[str, str] | None] | None:
        """Looks up the container and the pod of a thread at a noted event; None on hosts without pods."""
        return self._whereabouts.take if PODS.is_dir() else None

    @property
    def note(self) -> Handle | None:
        """Notes the container of a record's thread; call it in the stream's order. None if not needed."""
        return self._whereabouts.note if self._exported else None

    def follow(self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int]) -> None:
        """Install the tracepoints if the configuration needs them, or disable them. Where they cannot be
        installed, the agent reads cgroups from /proc only."""
        self.ends.follow(instance, kernel, layout_ids)
        if not self._wanted and self.following is not None:
            self.following.disable()
            self.following = None
        if not self._wanted or self.following is not None:
            return
        if not kernel.binary:
            log.warning("%s, where events are read as text", CgroupEvents.without)
            return
        try:
            self.following = CgroupEvents(instance, kernel, layout_ids, self.cgroups)
        except ProbeRefused as error:
            log.warning("%s: %s", CgroupEvents.without, error)

    def before(self, batch: Batch) -> None:
        """Forget the threads known from before the end of the batch's losses: they may have moved."""
        if batch.losses:
            self.cgroups.lost(max(loss.end for loss in batch.losses))

    def after(self) -> None:
        """Forget the notes of a batch that is processed."""
        self._whereabouts.forget()


class CgroupEvents(OwnTracepoints):
    """The tracepoints FOLLOWED. ``handlers``, by layout id, get the records in time order."""

    without = "cgroups are looked up in /proc only"

    def __init__(
        self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int], cgroups: Cgroups
    ) -> None:
        super().__init__(instance, kernel, layout_ids, FOLLOWED)
        self._cgroups = cgroups
        self.handlers: dict[int, Handle] = {
            layout.layout_id: _handler(event, layout, cgroups) for event, layout in self.by_event.items()
        }

    def begin(self) -> None:
        """Forget what was known, and read all threads from /proc."""
        self._cgroups.lost()
        self._cgroups.scan()


def _handler(event: str, layout: Layout, cgroups: Cgroups) -> Handle:
    """Return the function that passes a record of this tracepoint on to ``cgroups``."""

    def place(name: str) -> int:
        found = layout.place(name)
        assert found is not None
        return found

    match event:
        case "task_newtask":
            child, flags = place("child"), place("flags")
            return lambda record: cgroups.started(record[TID], record[child], record[flags], record[TIME])
        case "cgroup_attach_task":
            leader, hierarchy, path = place("leader"), place("hierarchy"), place("path")
            return lambda record: cgroups.attached(
                record[leader], record[hierarchy], record[path] or b"", record[TIME]
            )
        case "sched_process_exec":
            old = place("old")
            return lambda record: cgroups.executed(record[old], record[TID])
    return lambda record: cgroups.exited(record[TID], record[TIME])
