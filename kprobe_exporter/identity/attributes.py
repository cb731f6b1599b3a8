"""OpenTelemetry attributes for the container and the pod that a thread was in at an event."""

from collections.abc import Mapping

from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.containers import container
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.model.values import TID, TIME, Record

CONTAINER = "container.id"
NAMESPACE, POD, POD_UID = "k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid"
KUBERNETES_CONTAINER = "k8s.container.name"
"""Names from OpenTelemetry's semantic conventions, copied."""

MOST_NOTED = 65_536


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
        found = self._attributes(self._cgroups.path(record[TID], record[TIME]))
        if found and len(self._noted) < MOST_NOTED:
            self._noted[record[TID], record[TIME]] = found

    def take(self, tid: int, time: int) -> Mapping[str, str] | None:
        """Return the noted attributes; None if there are none."""
        return self._noted.get((tid, time))

    def forget(self) -> None:
        """Forget all notes, when their records have been passed on."""
        self._noted.clear()

    def _attributes(self, path: bytes | None) -> dict[str, str]:
        found = container(path, nested=self._nested) if path is not None else None
        if found is None:
            return {}
        attributes = {CONTAINER: found.id}
        pod = self._pods.find(found.id, found.pod)
        if pod is not None:
            attributes |= {NAMESPACE: pod.namespace, POD: pod.name}
            attributes |= {POD_UID: pod.uid} if pod.uid else {}
            attributes |= {KUBERNETES_CONTAINER: pod.container} if pod.container else {}
        return attributes
