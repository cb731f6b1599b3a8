"""Tracking the cgroups of threads by the kernel's tracepoints, recorded in our own instance."""

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
    """A tracepoint about threads. ``fields`` maps our names of its fields to the kernel's."""

    system: str
    event: str
    fields: dict[str, str]


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
    """The cgroups and pods of threads. The reader's thread owns it while that runs.

    Threads are tracked only while the configuration needs their cgroups. The thread that holds the
    change lock calls ``configure`` and ``follow``, before the reader knows of the change.
    """

    def __init__(self) -> None:
        self.pods = Pods()
        self.cgroups = Cgroups()
        self._wanted = self._exported = False
        self._whereabouts = Whereabouts(self.cgroups, self.pods)
        self.following: Following | None = None

    def configure(self, config: Config) -> None:
        """Take from the configuration whether cgroups are needed from now on."""
        self._wanted = wants_cgroups(config)
        self._exported = exports_containers(config)

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
        if not self._wanted and self.following is not None:
            self.following.disable()
            self.following = None
        if not self._wanted or self.following is not None:
            return
        if not kernel.binary:
            log.warning("cgroups are looked up in /proc only, where events are read as text")
            return
        try:
            self.following = Following(instance, kernel, layout_ids, self.cgroups)
        except ProbeRefused as error:
            log.warning("cgroups are looked up in /proc only: %s", error)

    def before(self, batch: Batch) -> None:
        """Forget the threads known from before the end of the batch's losses: they may have moved."""
        if batch.losses:
            self.cgroups.lost(max(loss.end for loss in batch.losses))

    def after(self) -> None:
        """Forget the notes of a batch that is processed."""
        self._whereabouts.forget()


class Following:
    """The tracepoints FOLLOWED, recorded without definitions. Raises ProbeRefused if one is unavailable.

    ``layouts`` go to the source with the probes' own. ``handlers``, by layout id, get the records in time
    order. It needs pages: in text, an unprivileged user could forge these events by a file's name.
    """

    def __init__(
        self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int], cgroups: Cgroups
    ) -> None:
        self._cgroups = cgroups
        self.parts: tuple[Installed, ...] = ()
        self.enabled = False
        self.layouts: dict[Layout, str] = {}
        self.handlers: dict[int, Handle] = {}
        try:
            for followed in FOLLOWED:
                part = install(instance, _spec(followed, kernel, layout_ids), set())
                self.parts += (part,)
                self.layouts[part.layout] = part.system
                self.handlers[part.layout.layout_id] = _handler(followed.event, part.layout, cgroups)
        except BaseException:
            self.disable()
            raise

    @property
    def specs(self) -> list[ProbeSpec]:
        """The specifications of what is installed."""
        return [part.spec for part in self.parts]

    def enable(self) -> None:
        """Start recording; call ``scan`` afterwards. Raises ProbeRefused."""
        for part in self.parts:
            part.enable()
        self.enabled = True

    def scan(self) -> None:
        """Forget what was known, and read all threads from /proc. The reader's thread calls it."""
        self._cgroups.lost()
        self._cgroups.scan()

    def disable(self) -> None:
        """Stop recording. Never raises."""
        for part in self.parts:
            part.disable()


def _spec(followed: Followed, kernel: Kernel, layout_ids: Iterator[int]) -> ProbeSpec:
    """Plan the tracepoint itself: an eprobe on it would only copy its event."""
    target = Target(Kind.TRACEPOINT, system=followed.system, event=followed.event)
    attach = Attach(target, followed.fields, None, None)
    probe = Probe(followed.event, "", (attach,), aggregate="events")
    text = kernel.event_format(followed.system, followed.event)
    ways = tracepoint_specs(
        probe, attach, set(followed.fields), text, layout_ids, 1, counted=False, binary=kernel.binary
    )
    for way in ways:
        if isinstance(way, ProbeSpec) and way.file is None:
            return replace(way, role="own")
    raise ProbeRefused(f"this kernel has no {target} that can be read.")


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
