"""In which files a probe on a program in containers belongs, while containers start and end.

A uprobe belongs to an inode (kern_path() in kernel/trace/trace_uprobe.c), which a process in the container
leads to: ``/proc/PID/root``. Containers of one image share the inodes of its files by overlayfs, and the
kernel takes the shared one (d_real_inode()). So they share one definition: with one each, every hit would
count as often as there are containers.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.elf import library_path
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import Target
from kprobe_exporter.identity.containers import Container
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.identity.running import RunningContainers
from kprobe_exporter.plan import ProbePlan
from kprobe_exporter.probing.container_scope import selects
from kprobe_exporter.util.deadline import CONTAINERS
from kprobe_exporter.util.rooted_path import file_system, walked

OVERLAYFS_SUPER_MAGIC = 0x794C7630
"""include/uapi/linux/magic.h"""

AGAIN = 10.0
"""Seconds after which a container is searched for the file again, which may be a new one, or come later."""

LINGER = 5.0
"""Seconds for which a file stays probed after its last container has ended, as one that restarts has it."""

DENIED = "may not be looked into, for which CAP_SYS_PTRACE is needed"
HANGS = "does not answer, as its file system hangs"

MOST_OF_CONTAINER = 3
"""Files of one path in one container, as they were replaced, that stay probed: the latest ones."""

FileKey: TypeAlias = tuple[tuple[int, ...], ...]
"""The key of the same files, those of all alternatives: their devices, inodes, sizes and times.

On overlayfs each mount has a device number of its own, so it is omitted there. The rest differs between
files, also after a change of the file in one of the containers.
"""

Inode: TypeAlias = tuple[int, int]
"""The device and the inode number of a file that is planned: see ``ProbeSpec``."""


@dataclass(slots=True)
class _Place:
    """A container that a probe selects: a process in it, and the files that it has had, the newest last.

    The inodes of a file are those that this container shows: on overlayfs each has its own.
    """

    pid: int
    since: float
    last_seen: float
    again: float
    files: dict[FileKey, frozenset[Inode]] = field(default_factory=dict)


class ContainerFiles:
    """Knows the files of all probes that select containers; the thread that calls it owns it.

    It is asked once a second. A probe costs a search of each container when that starts, and every AGAIN
    seconds: about 0.1 ms each.
    """

    def __init__(self, running: RunningContainers, pods: Pods | None = None) -> None:
        self._running = running
        self._pods = Pods() if pods is None else pods
        self._places: dict[str, tuple[Probe, dict[Container, _Place]]] = {}
        self._denied: dict[str, str] = {}

    def look(self, probes: Iterable[Probe], now: float) -> None:
        """Look for the containers of these probes; ``now`` is in seconds of a monotonic clock."""
        wanted = list(probes)
        running = self._running.look() if wanted else {}
        self._places = {probe.name: (probe, self._followed(probe, running, now)) for probe in wanted}

    def files(self, name: str) -> list[FileKey]:
        """Return the files that the containers of a probe have."""
        _, places = self._places[name]
        return list(dict.fromkeys(file for place in places.values() for file in place.files))

    def plan(
        self, probe: Probe, plan: Callable[[Probe], ProbePlan], wanted: FileKey | None = None
    ) -> ProbePlan:
        """Plan a probe by ``plan``: in a container with the file ``wanted``, or in any that it selects.

        A probe that selects no containers is planned as it is. One whose containers do not run waits.
        """
        if probe.within is None:
            return plan(probe)
        if self._places.get(probe.name, (None,))[0] != probe:
            places = self._followed(probe, self._running.look(), time.monotonic())
            self._places[probe.name] = probe, places
        _, places = self._places[probe.name]
        for one, place in places.items():
            file = next(reversed(place.files), None)
            if file is not None and wanted in (None, file) and self._running.has(one, place.pid):
                return plan(_rooted(probe, self._running.root(place.pid)))._replace(probe=probe)
        if not places and (why := self.denied(probe.name)):
            return plan(probe).refused(why)
        if not places:
            return plan(probe).waits(f"no container that runs fits {probe.within}")
        paths = " or ".join(dict.fromkeys(target.path for target in _targets(probe)))
        return plan(probe).waits(f"no container that fits {probe.within} has {paths}")

    def denied(self, name: str) -> str | None:
        """Return why the agent cannot look into a container of a probe; None if it can, or there is none."""
        return self._denied.get(name)

    def file_of(self, name: str, inodes: Iterable[Inode]) -> FileKey | None:
        """Return the file with one of these inodes, for which a probe was planned.

        None if no container shows it any more: the definition holds the file system of one that has ended,
        though others may have the same file.
        """
        _, places = self._places[name]
        wanted = set(inodes)
        found = (file for place in places.values() for file, own in place.files.items() if own & wanted)
        return next(found, None)

    def _followed(
        self, probe: Probe, running: Mapping[Container, list[int]], now: float
    ) -> dict[Container, _Place]:
        """Return the containers of a probe that run, or did until recently, with their files."""
        assert probe.within is not None
        before, places = self._places.get(probe.name, (None, {}))
        places = places if before == probe else {}
        self._denied.pop(probe.name, None)
        for one, pids in running.items():
            if one in places or selects(probe.within, self._pods, one):
                self._search(places, probe, one, pids, now)
        return {one: place for one, place in places.items() if now - place.last_seen < LINGER}

    def _search(
        self, places: dict[Container, _Place], probe: Probe, one: Container, pids: list[int], now: float
    ) -> None:
        """Note that a container runs, and from time to time which file it has."""
        place = places.get(one)
        if place is None or place.pid not in pids or now >= place.again:
            try:
                pid, found = CONTAINERS.run(one.id, lambda: self._looked_into(probe, one, pids))
            except (PermissionError, TimeoutError) as error:
                why = HANGS if isinstance(error, TimeoutError) else DENIED
                self._denied[probe.name] = f"the container {one.id[:12]} {why}"
                if place is not None:
                    place.last_seen = now
                return
            if pid is None:
                return  # its processes have ended since, or it is not set up yet
            place = places.setdefault(one, _Place(pid, now, now, now))
            place.pid = pid
            if found and self._running.has(one, pid):
                file = tuple(_key(status, overlay=overlay) for status, overlay in found)
                place.files.pop(file, None)
                place.files[file] = frozenset((status.st_dev, status.st_ino) for status, _ in found)
                while len(place.files) > MOST_OF_CONTAINER:
                    del place.files[next(iter(place.files))]
            place.again = now + AGAIN if place.files or now - place.since > AGAIN else now
        place.last_seen = now

    def _looked_into(
        self, probe: Probe, one: Container, pids: list[int]
    ) -> tuple[int | None, list[tuple[os.stat_result, bool]]]:
        """Return a process of a container, None if there is none any more, and the probe's files in there."""
        pid = next((pid for pid in pids if self._running.has_root(one, pid)), None)
        return pid, [] if pid is None else _found(_rooted(probe, self._running.root(pid)))


def _rooted(probe: Probe, root: Path) -> Probe:
    """Return the probe with its paths below a root, and selecting nothing any more."""
    return replace(probe, within=None, attach=tuple(_attached_below(one, root) for one in probe.attach))


def _attached_below(attach: Attach, root: Path) -> Attach:
    return replace(
        attach,
        target=_below(attach.target, root),
        begins=tuple(_attached_below(one, root) for one in attach.begins),
        through={name: _attached_below(one, root) for name, one in attach.through.items()},
        end=None if attach.end is None else _attached_below(attach.end, root),
    )


def _below(target: Target, root: Path) -> Target:
    if target.parts:
        return replace(target, parts=tuple(_below(part, root) for part in target.parts))
    between = "" if target.path.startswith("/") else ":"  # before a library's name
    return replace(target, path=f"{root}{between}{target.path}")


def _targets(probe: Probe) -> Iterator[Target]:
    return (one.target for attach in probe.attach for one in attach.single)


def _found(probe: Probe) -> list[tuple[os.stat_result, bool]]:
    """Return the files that the probe's paths name, each with whether it is on overlayfs."""
    found = []
    for path in dict.fromkeys(target.path for target in _targets(probe)):
        with suppress(OSError, ValueError, GrammarError), walked(library_path(path)) as descriptor:
            found.append((os.fstat(descriptor), file_system(descriptor) == OVERLAYFS_SUPER_MAGIC))
    return found


def _key(status: os.stat_result, *, overlay: bool) -> tuple[int, ...]:
    device = 0 if overlay else status.st_dev
    return device, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
