"""Two probes on one tracepoint of a kernel without eprobes: an instance has one filter for both."""

from collections.abc import Iterable

from kprobe_exporter.model.values import ProbeSpec


def cannot_share(spec: ProbeSpec, others: Iterable[ProbeSpec]) -> str | None:
    """Return why ``spec`` cannot be installed beside the others, as a sentence; None if it can.

    Two probes share a tracepoint's own event only if the kernel filters for neither of them.
    """
    for other in others:
        same = spec.file is None and (other.system, other.event) == (spec.system, spec.event)
        if same and (spec.kernel_filter or other.kernel_filter):
            return (
                f"this kernel has no eprobes, and the probe '{other.probe}' has this tracepoint "
                "already: put the metrics of both into one probe."
            )
    return None
