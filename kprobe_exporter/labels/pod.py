"""``pod``: the name of a cgroup's Kubernetes pod, empty outside of pods."""

from collections.abc import Callable

from kprobe_exporter.identity.containers import container
from kprobe_exporter.identity.pods import Pod, Pods
from kprobe_exporter.labels._text import without_options
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

OF_PODS = ("containerd", "cri-o")
"""Runtimes whose containers count as a pod's even if the path does not show the pod's cgroup."""


def decoder_with(pods: Pods, *, nested: bool = False) -> Callable[[object], Decoder]:
    """Return a factory of decoders for these pods. It takes no options; values are paths of cgroups."""
    return decoders("pod", pods, lambda pod: pod.name, nested=nested)


def decoders(
    name: str, pods: Pods, part: Callable[[Pod], str], *, nested: bool
) -> Callable[[object], Decoder]:
    """Return a factory of decoders to any part of a pod.

    A cgroup outside of pods gets an empty label, which Prometheus treats as a missing one. The cgroup
    of a pod that is not known, or not yet known, cannot be decoded.
    """

    def decode(value: Value) -> str | None:
        if not isinstance(value, bytes):
            return None
        found = container(value, nested=nested)
        if found is None:
            return ""
        pod = pods.find(found.id, found.pod)
        if pod is not None:
            return part(pod)
        return None if found.pod is not None or found.runtime in OF_PODS else ""

    return without_options(name, decode)


decoder = decoder_with(Pods())
"""For the pods of this machine. Checking a configuration uses it too, and looks up no pod."""
