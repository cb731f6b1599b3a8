"""Which pod a container belongs to, by the names that kubelet gives to logs, without reading a log.

``pods/NAMESPACE_POD_UID/`` (BuildPodLogsDirectory) and ``containers/POD_NAMESPACE_CONTAINER-ID.log``
(logSymlink), both of kubelet's pkg/kubelet/kuberuntime. No name of Kubernetes has an underscore in it.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

MOST_NAMES = 20_000
"""The most names that are read from one directory; a node has some hundred pods."""

MOST_UNKNOWN = 4096
SCAN_PAUSE = 0.125
"""The least number of seconds between two looks, over all callers and containers."""

LONGEST_PAUSE = 60.0
"""Seconds; a container that is not found is looked for after pauses of 0.125, 0.25, … up to this."""

KEEP = 600.0

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = rf"(?=[^_]{{1,253}}_){_LABEL}(?:\.{_LABEL})*"
_UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"

_DIRECTORY = re.compile(rf"({_LABEL})_({_NAME})_({_UID})")
_LINK = re.compile(rf"({_NAME})_({_LABEL})_({_LABEL})-([0-9a-f]{{64}})\.log")
"""A pod's name may have dots in it, and a static pod's often has: it ends in the node's name."""


class Pod(NamedTuple):
    """A pod, and the container of it that was asked for; what is unknown is None.

    ``uid`` is the hash of a static pod's manifest if its cgroup is named after that.
    """

    namespace: str
    name: str
    container: str | None
    uid: str | None


T = TypeVar("T")


class Pods:
    """Looks pods up; the thread that calls it owns it.

    A container that is not known is looked for when it is asked for, at most once in SCAN_PAUSE and with
    growing pauses. This lists two directories, which takes about a millisecond. A name that disappears is
    kept for ``keep`` seconds after it was first missed. Neither ids nor UIDs are reused, and both are
    compared as a whole, so no pod gets the events of another.
    """

    def __init__(
        self,
        logs: Path = Path("/var/log"),
        clock: Callable[[], float] = time.monotonic,
        keep: float = KEEP,
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._scanned = float("-inf")
        self._pods: _Seen[tuple[str, str]] = _Seen(keep)
        self._containers: _Seen[tuple[str, str, str]] = _Seen(keep)
        self._pauses: dict[tuple[str, str | None], tuple[float, float]] = {}

    def find(self, container: str, uid: str | None) -> Pod | None:
        """Return the pod of a container by its id, and by the pod's UID if the cgroup's path has it.

        The UID decides. ``container`` of the result is None as long as the container's log has no link: just
        after its start, and always in a pod's sandbox.
        """
        found = self._known(container, uid)
        if (found is None or found.container is None) and self._may_look((container, uid)):
            self._look()
            found = self._known(container, uid)
        if found is not None and found.container is not None:
            self._pauses.pop((container, uid), None)
        return found

    def _known(self, container: str, uid: str | None) -> Pod | None:
        link = self._containers.get(container)
        pod = self._pods.get(uid) if uid is not None else None
        if pod is None:
            return Pod(link[0], link[1], link[2], uid) if link is not None else None
        named = link is not None and link[:2] == pod
        return Pod(*pod, link[2] if link is not None and named else None, uid)

    def _may_look(self, asked: tuple[str, str | None]) -> bool:
        """Return whether it is time to look for this container again; if so, lengthen the next pause."""
        now = self._clock()
        due, pause = self._pauses.get(asked, (now, SCAN_PAUSE))
        if now < due or now - self._scanned < SCAN_PAUSE:
            return False
        self._pauses.pop(asked, None)
        while len(self._pauses) >= MOST_UNKNOWN:
            del self._pauses[next(iter(self._pauses))]
        self._pauses[asked] = now + pause, min(2 * pause, LONGEST_PAUSE)
        return True

    def _look(self) -> None:
        self._scanned = self._clock()
        pods = (_DIRECTORY.fullmatch(name) for name in _names(self._logs / "pods"))
        links = (_LINK.fullmatch(name) for name in _names(self._logs / "containers"))
        self._pods.update({pod[3]: (pod[1], pod[2]) for pod in pods if pod}, self._scanned)
        self._containers.update(
            {link[4]: (link[2], link[1], link[3]) for link in links if link}, self._scanned
        )


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    missed: float | None = None


class _Seen(Generic[T]):
    """Names that are there now, and names that were there until recently."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._entries: dict[str, _Entry[T]] = {}

    def get(self, key: str) -> T | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def update(self, there: dict[str, T], now: float) -> None:
        """Take in the names that are there now; others stay for ``keep`` seconds, if there is room."""
        ended = {key: entry for key, entry in self._entries.items() if key not in there}
        for key, entry in ended.items():
            entry.missed = now if entry.missed is None else entry.missed
            if now - entry.missed >= self._keep:
                del self._entries[key]
        left = [key for key in ended if key in self._entries]
        for key in left[: max(0, len(left) - MOST_NAMES)]:
            del self._entries[key]
        self._entries.update({key: _Entry(value) for key, value in there.items()})


def _names(directory: Path) -> Iterator[str]:
    """Yield the names in a directory; none if it does not exist, as on a machine without Kubernetes."""
    try:
        with os.scandir(directory) as entries:
            yield from (entry.name for entry in islice(entries, MOST_NAMES))
    except OSError:
        return
