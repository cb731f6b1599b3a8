"""``pod``: the name of the Kubernetes pod that a cgroup is of, empty outside of pods."""

from collections.abc import Callable

from kprobe_exporter.identity.containers import container
from kprobe_exporter.identity.pods import Pod, Pods
from kprobe_exporter.model.values import Decoder, Value

OF_PODS = ("containerd", "cri-o")
"""The runtimes whose containers are a pod's, also where the path does not show the pod's cgroup."""


def decoder_with(pods: Pods) -> Callable[[object], Decoder]:
    """Makes decoders that look in these pods. The value is a cgroup's path; they take no options."""
    return decoders("pod", pods, lambda pod: pod.name)


def decoders(name: str, pods: Pods, part: Callable[[Pod], str]) -> Callable[[object], Decoder]:
    """The same for any part of what is known about a pod.

    What is in no pod gets an empty label, which to Prometheus is none. What is in a pod that is not
    known, or not yet, cannot be decoded.
    """

    def decoder(options: object) -> Decoder:
        if options is not None:
            raise ValueError(f"the decoder {name} takes no options: write 'decode: {name}'")
        return decode

    def decode(value: Value) -> str | None:
        if not isinstance(value, bytes):
            return None
        found = container(value)
        if found is None:
            return ""
        pod = pods.find(found.id, found.pod)
        if pod is not None:
            return part(pod)
        return None if found.pod is not None or found.runtime in OF_PODS else ""

    return decoder


decoder = decoder_with(Pods())
"""Of the pods of this machine; a configuration is checked with it, which looks at nothing."""
