"""``namespace``: the Kubernetes namespace of a cgroup's pod, empty outside of pods."""

from collections.abc import Callable

from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.labels.pod import decoders
from kprobe_exporter.model.specs import Decoder


def decoder_with(pods: Pods, *, nested: bool = False) -> Callable[[object], Decoder]:
    """Return a factory of decoders for these pods. It takes no options; values are paths of cgroups."""
    return decoders("namespace", pods, lambda pod: pod.namespace, nested=nested)


decoder = decoder_with(Pods())
"""For the pods of this machine. Checking a configuration uses it too, and looks up no pod."""
