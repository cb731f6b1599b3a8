"""``namespace``: the Kubernetes namespace of the pod that a cgroup is of, empty outside of pods."""

from collections.abc import Callable

from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.labels.pod import decoders
from kprobe_exporter.model.values import Decoder


def decoder_with(pods: Pods) -> Callable[[object], Decoder]:
    """Makes decoders that look in these pods. The value is a cgroup's path; they take no options."""
    return decoders("namespace", pods, lambda pod: pod.namespace)


decoder = decoder_with(Pods())
"""Of the pods of this machine; a configuration is checked with it, which looks at nothing."""
