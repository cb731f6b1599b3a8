"""Following threads through their cgroups: the kernel's events that tell of it, in our own instance."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.config.values import Attach, Config, Probe
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.identity.attributes import Whereabouts
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.model.values import OF_THREAD, TID, TIME, Batch, Layout, ProbeSpec, Record
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.tracepoint import tracepoint_specs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed, install

log = logging.getLogger(__name__)

Handle = Callable[[Record], None]


class Followed(NamedTuple):
    """A tracepoint that tells of threads, and the fields that are read of it, by our names."""

    system: str
    event: str
    fields: dict[str, str]


FOLLOWED = (
    # Not sched_process_fork: this one tells a thread from a process, and a cgroup that clone3() names.
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
"""Where there is that, containers are of interest to whoever gets single events."""


def wants_cgroups(config: Config) -> bool:
    """Whether any label is about the cgroup of a thread, or what is exported may be."""
    labels = (label for probe in config.probes for metric in probe.metrics for label in metric.labels)
    return exports_containers(config) or any(
        label.decode and label.decode[0].name in OF_THREAD for label in labels
    )


def exports_containers(config: Config) -> bool:
    """Whether single events are exported on a node of Kubernetes."""
    exported = config.otlp is not None and any(probe.export is not None for probe in config.probes)
    return exported and PODS.is_dir()


class Identities:
    """All that is known of threads beside their events. The reader's thread owns it once it runs.

    Threads are followed through their cgroups only while somebody wants to know of those: ``wish`` and
    ``follow`` are for whoever changes probes, before the reader knows of the change.
    """

    def __init__(self) -> None:
        self.pods = Pods()
        self.cgroups = Cgroups()
        self._wanted = self._exported = False
        self._whereabouts = Whereabouts(self.cgroups, self.pods)
        self.following: Following | None = None

    def wish(self, config: Config) -> None:
        """What is asked for from now on."""
        self._wanted = wants_cgroups(config)
        self._exported = exports_containers(config)

    @property
    def attributes(self) -> Callable[[int, int], Mapping[str, str] | None] | None:
        """The container and the pod of a thread at a noted event; None where there are none."""
        return self._whereabouts.take if PODS.is_dir() else None

    @property
    def note(self) -> Handle | None:
        """What notes them, to be called in the stream's order."""
        return self._whereabouts.note if self._exported else None

    def follow(self, instance: Instance, kernel: Kernel, slots: Iterator[int]) -> None:
        """Get ready to follow threads, or stop it, as it is wished; where it cannot be done, /proc alone
        tells."""
        if not self._wanted and self.following is not None:
            self.following.disable()
            self.following = None
        if not self._wanted or self.following is not None:
            return
        if not kernel.binary:
            log.warning("cgroups are looked up in /proc only, where events are read as text")
            return
        try:
            self.following = Following(instance, kernel, slots, self.cgroups)
        except ProbeRefused as error:
            log.warning("cgroups are looked up in /proc only: %s", error)

    def before(self, batch: Batch) -> None:
        """Heed what was lost."""
        if batch.losses:
            self.cgroups.lost(max(loss.end for loss in batch.losses))

    def after(self) -> None:
        """A batch is dealt with."""
        self._whereabouts.forget()


class Following:
    """These tracepoints, recorded as they are, without a definition. Raises ProbeRefused if they cannot be.

    ``layouts`` go to the source with the probes' own; what ``handlers`` has by slot gets the records,
    in the order of their time. Only of pages: in text, whoever names files could forge such events.
    """

    def __init__(self, instance: Instance, kernel: Kernel, slots: Iterator[int], cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self.parts: tuple[Installed, ...] = ()
        self.enabled = False
        self.layouts: dict[Layout, str] = {}
        self.handlers: dict[int, Handle] = {}
        try:
            for followed in FOLLOWED:
                part = install(instance, _spec(followed, kernel, slots), set())
                self.parts += (part,)
                self.layouts[part.layout] = part.system
                self.handlers[part.layout.slot] = _handler(followed.event, part.layout, cgroups)
        except BaseException:
            self.disable()
            raise

    @property
    def specs(self) -> list[ProbeSpec]:
        """What is installed."""
        return [part.spec for part in self.parts]

    def enable(self) -> None:
        """Record from now on; then ``scan``. Raises ProbeRefused."""
        for part in self.parts:
            part.enable()
        self.enabled = True

    def scan(self) -> None:
        """Look at all threads that there are, in the reader's thread; what was known before is old."""
        self._cgroups.lost()
        self._cgroups.scan()

    def disable(self) -> None:
        """Never raises."""
        for part in self.parts:
            part.disable()


def _spec(followed: Followed, kernel: Kernel, slots: Iterator[int]) -> ProbeSpec:
    """The tracepoint itself: an eprobe on it would only copy it."""
    target = Target(Kind.TRACEPOINT, system=followed.system, event=followed.event)
    attach = Attach(target, followed.fields, None, None)
    probe = Probe(followed.event, "", (attach,), aggregate="events")
    text = kernel.event_format(followed.system, followed.event)
    ways = tracepoint_specs(
        probe, attach, set(followed.fields), text, slots, 1, counted=False, binary=kernel.binary
    )
    for way in ways:
        if isinstance(way, ProbeSpec) and way.file is None:
            return replace(way, role="own")
    raise ProbeRefused(f"this kernel has no {target} that can be read.")


def _handler(event: str, layout: Layout, cgroups: Cgroups) -> Handle:
    """What a record of one of the tracepoints tells."""

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
