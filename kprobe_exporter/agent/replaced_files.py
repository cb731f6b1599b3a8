"""Programs and libraries that are replaced while they are probed, as a package's upgrade does by rename.

A uprobe belongs to the inode that its path named when it was defined (kern_path() in
kernel/trace/trace_uprobe.c). Processes that run a file of the same path but another inode never hit it.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.config.model import Probe
from kprobe_exporter.elf import library_path
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import Kind, parse_target
from kprobe_exporter.plan import ProbePlan
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.util.deadline import answered
from kprobe_exporter.util.rooted_path import status
from kprobe_exporter.util.token_bucket import TokenBucket

log = logging.getLogger(__name__)

MOST_OLDER = 3
"""Replaced files to which a probe stays attached, for the processes that still run them: the latest ones."""

BURST, EVERY = 3, 10.0
"""A path that is replaced again and again is followed BURST times at once, then once in EVERY seconds."""

_target = lru_cache(maxsize=1024)(parse_target)

Inode: TypeAlias = tuple[int, int]

Planner: TypeAlias = Callable[[Sequence[Probe]], list[ProbePlan]]
"""Plans how to collect probes. Raises OSError where tracefs cannot be read."""


class _File(NamedTuple):
    """The file that a path names. Size and time change while a file is being written; its inode stays."""

    inode: Inode
    size: int
    modified: int


class ReplacedFiles:
    """Notices files that were replaced. The thread that holds the change lock owns it.

    A probe that is attached is compared with the inode for which it was planned. One that failed is tried
    again when its file changes: it may have been missing, half-written, or without the function.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _File | None] = {}
        self._buckets: dict[str, TokenBucket] = {}

    def look(self, probes: Iterable[ProbeState], now: float) -> list[ProbeState]:
        """Return the probes to plan again; ``now`` is in seconds of a monotonic clock.

        It costs one stat(2) for each path, in a thread that may hang: about 0.1 ms.
        Those of programs in containers are left to ``ContainerProbes``.
        A path that names no file now is looked at next time.
        """
        followed = [one for one in probes if one.state in ("up", "down") and one.plan.probe.within is None]
        watched = {one: list(_files(one)) for one in followed}
        places = dict.fromkeys(place for of_probe in watched.values() for place in of_probe)
        files = {path: _file(path, inode) for path, inode in places}
        there = {path: file for path, file in files.items() if file is not None}
        self._buckets = {path: bucket for path, bucket in self._buckets.items() if path in files}
        self._seen = {path: seen for path, seen in self._seen.items() if path in files}
        changed = {
            path for path, inode in places if path in there and self._is_another(there[path], path, inode)
        }
        due = {path for path in changed if self._bucket(path, now).take(now)}
        for path, file in files.items():
            if path not in self._seen or (file is not None and path not in changed - due):
                self._seen[path] = file
        return [
            probe
            for probe, of_probe in watched.items()
            if any(path in due and there[path].inode != inode for path, inode in of_probe)
        ]

    def _is_another(self, file: _File, path: str, inode: Inode | None) -> bool:
        """Return whether the path names another file than ``inode``, or, if that is None, than before."""
        return file.inode != inode if inode is not None else file != self._seen.get(path, file)

    def _bucket(self, path: str, now: float) -> TokenBucket:
        return self._buckets.setdefault(path, TokenBucket(1 / EVERY, BURST, now))


def moved(attached: Attached) -> str | None:
    """Return the path of a part that names another file than the one for which the part was planned.

    A library that was named by its soname is not looked for again: that takes 0.3 ms, a stat(2) 0.1 ms.
    """
    for spec in (part.spec for part in attached.parts):
        if spec.inode is not None:
            file = _file(spec.path, spec.inode)
            if file is not None and file.inode != spec.inode:
                return spec.path
    return None


def retained(attachments: Sequence[Attached], plan: ProbePlan) -> tuple[Attached, ...]:
    """Return those of a probe's attachments, the newest first, that stay beside the new plan.

    One on a file for which the probe is planned again goes, because its calls would be counted twice. So
    does a pair, of which one event may stay the same; it stays if the new plan is impossible.
    """
    planned = {one.inode for one in plan.specs}  # None for an event of the kernel
    older = [one for one in attachments if _may_stay(one, planned)]
    if len(older) > MOST_OLDER:
        log.info(
            "the probe '%s': calls in processes that run the oldest of its %d replaced files are no longer "
            "counted",
            plan.probe.name,
            len(older),
        )
    return tuple(older[:MOST_OLDER])


def successors(stale: Sequence[ProbeState], plan: Planner) -> Mapping[ProbeState, ProbeState]:
    """Return the successor of each probe, which is to be installed; none where tracefs cannot be read now."""
    plans: list[ProbePlan] = []
    with suppress(OSError):  # the next look tries again
        plans = plan([probe.plan.probe for probe in stale]) if stale else []
    made = {old: ProbeState.of(new) for old, new in zip(stale, plans, strict=False)}
    for old, new in made.items():
        new.older, new.logged = retained(old.attachments, new.plan), old.logged
    return made


def plan_again(old: ProbeState, new: ProbeState, plan: Planner) -> None:
    """Plan a probe in a file again before it is installed again: the path may name another file by now."""
    if next(_places(new.plan.probe), None) is None:
        return
    with suppress(OSError):  # with the old plan, a file that was replaced is refused: see ``moved``
        [new.plan] = plan([new.plan.probe])
    new.older = retained(old.older if old.attached is None else (), new.plan)


def report(changes: Mapping[ProbeState, ProbeState]) -> None:
    """Log which probes are attached to a new file. Those that are not have been reported as down."""
    for old, new in changes.items():
        if new.attached is not None and old.attachments:
            paths = " and ".join(dict.fromkeys(path for path, _ in _parts(new.attached)))
            too = " too" if new.older else ""
            log.info("the probe '%s': %s was replaced; attached to the new file%s", new.name, paths, too)


def _files(probe: ProbeState) -> Iterator[tuple[str, Inode | None]]:
    """Return the paths of a probe, each with the inode to which the probe is attached, None if it is not."""
    if probe.attached is not None:
        return _parts(probe.attached)
    return ((path, None) for path in _places(probe.plan.probe))


def _places(probe: Probe) -> Iterator[str]:
    """Return the paths of all alternatives that are places in files."""
    targets = (one.target for attach in probe.attach for one in attach.single)
    return (target.path for target in targets if target.kind.in_file)


def _parts(attached: Attached) -> Iterator[tuple[str, Inode]]:
    for part in attached.parts:
        if part.spec.inode is not None:
            yield _target(part.spec.target).path, part.spec.inode


def _may_stay(attached: Attached, planned: set[Inode | None]) -> bool:
    if not planned:
        return True
    inodes = {part.spec.inode for part in attached.parts}
    return attached.spec.kind != Kind.PAIR and None not in inodes and not inodes & planned


def _file(path: str, inode: Inode | None) -> _File | None:
    """Return the file that a path names now, None if there is none or it cannot be seen.

    stat(2), which may leave a container by a link in it, is believed where it finds the file ``inode``.
    """
    with suppress(TimeoutError):
        return answered(path, lambda: _found(path, inode))
    return None


def _found(path: str, inode: Inode | None) -> _File | None:
    try:
        path = library_path(path)  # another one, where an upgrade changed the loader's cache
    except GrammarError:
        return None
    for look in (os.stat, status):
        with suppress(OSError, ValueError):
            found = look(path)
            if look is status or (found.st_dev, found.st_ino) == inode:
                return _File((found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns)
    return None
