"""Which pod a container belongs to, by the names that kubelet gives to logs, without reading a log.

``pods/NAMESPACE_POD_UID/`` (BuildPodLogsDirectory) and ``containers/POD_NAMESPACE_CONTAINER-ID.log``
(logSymlink), both of kubelet's pkg/kubelet/kuberuntime. No name of Kubernetes has an underscore in it.
"""

import re
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.containers import container
from kprobe_exporter.identity.procfs import names
from kprobe_exporter.model.records import TID, TIME, Record

MOST_NAMES = 20_000
"""The most names that are read from one directory; a node has some hundred pods."""

MOST_UNKNOWN = 4096
SCAN_PAUSE = 0.125
"""The least number of seconds between two looks, over all callers and containers."""

LONGEST_PAUSE = 60.0
"""Seconds; a container that is not found is looked for after pauses of 0.125, 0.25, … up to this."""

KEEP = 600.0
"""Seconds for which a name is kept after it was first missed."""

MOST_NOTED = 65_536

ATTRIBUTES = ("k8s.namespace.name", "k8s.pod.name", "k8s.container.name", "k8s.pod.uid")
"""A Pod's fields in OpenTelemetry's semantic conventions, copied."""

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


class Pods:
    """Looks pods up; the thread that calls it owns it.

    A container that is not known is looked for when it is asked for, at most once in SCAN_PAUSE and with
    growing pauses. This lists two directories, which takes about a millisecond. Neither ids nor UIDs are
    reused, and both are compared as a whole, so no pod gets the events of another.
    """

    def __init__(self, logs: Path = Path("/var/log"), clock: Callable[[], float] = time.monotonic) -> None:
        self._logs = logs
        self._clock = clock
        self._scanned = float("-inf")
        self._pods, self._containers = _Seen(), _Seen()
        self._pauses: dict[tuple[str, str | None], tuple[float, float]] = {}

    def find(self, container_id: str, uid: str | None) -> Pod | None:
        """Return the pod of a container by its id, and by the pod's UID if the cgroup's path has it.

        The UID decides. ``container`` of the result is None as long as the container's log has no link: just
        after its start, and always in a pod's sandbox.
        """
        found = self._known(container_id, uid)
        if (found is None or found.container is None) and self._may_look((container_id, uid)):
            self._look()
            found = self._known(container_id, uid)
        if found is not None and found.container is not None:
            self._pauses.pop((container_id, uid), None)
        return found

    def _known(self, container_id: str, uid: str | None) -> Pod | None:
        link = self._containers.entries.get(container_id)
        pod = self._pods.entries.get(uid) if uid is not None else None
        if link is not None and (pod is None or link[:2] == pod[:2]):
            return link._replace(uid=uid)
        return pod

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
        now = self._scanned = self._clock()
        pods = map(_DIRECTORY.fullmatch, islice(names(self._logs / "pods"), MOST_NAMES))
        links = map(_LINK.fullmatch, islice(names(self._logs / "containers"), MOST_NAMES))
        self._pods.update({pod[3]: Pod(pod[1], pod[2], None, pod[3]) for pod in pods if pod}, now)
        self._containers.update(
            {link[4]: Pod(link[2], link[1], link[3], None) for link in links if link}, now
        )


class _Seen:
    """Names that are there now, and names that were there until recently."""

    def __init__(self) -> None:
        self.entries: dict[str, Pod] = {}
        self._missed: dict[str, float] = {}

    def update(self, there: dict[str, Pod], now: float) -> None:
        """Take in the names that are there now; others stay for KEEP seconds, if there is room."""
        self._missed = {key: self._missed.get(key, now) for key in self.entries if key not in there}
        kept = [key for key, missed in self._missed.items() if now - missed < KEEP]
        self.entries = {key: self.entries[key] for key in kept[-MOST_NAMES:]} | there


class Whereabouts:
    """Notes where the threads of events were, when the stream is at them; the reader's thread owns it.

    By the end of a batch, a thread may have moved, or another thread may have its id. With ``nested`` a
    container in a container counts.
    """

    def __init__(self, cgroups: Cgroups, pods: Pods, *, nested: bool = False) -> None:
        self._nested = nested
        self._cgroups = cgroups
        self._pods = pods
        self._noted: dict[tuple[int, int], Mapping[str, str]] = {}

    def note(self, record: Record) -> None:
        """Note the attributes for this record, which its thread and time identify."""
        path = self._cgroups.path(record[TID], record[TIME])
        found = container(path, nested=self._nested) if path is not None else None
        if found is None or len(self._noted) >= MOST_NOTED:
            return
        attributes = self._noted[record[TID], record[TIME]] = {"container.id": found.id}
        pod = self._pods.find(found.id, found.pod)
        if pod is not None:
            attributes.update((name, value) for name, value in zip(ATTRIBUTES, pod, strict=True) if value)

    def add(self, record: Record, attributes: Mapping[str, str]) -> None:
        """Note further attributes for this record."""
        if len(self._noted) < MOST_NOTED:
            noted = self._noted.get((record[TID], record[TIME]), {})
            self._noted[record[TID], record[TIME]] = {**noted, **attributes}

    def take(self, tid: int, time_ns: int) -> Mapping[str, str] | None:
        """Return the noted attributes of a thread at an event; None if there are none."""
        return self._noted.get((tid, time_ns))

    def forget(self) -> None:
        """Forget all notes, when their records have been passed on."""
        self._noted.clear()
