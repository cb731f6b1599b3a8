"""The metrics about the agent itself and about the state of its probes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.model.values import Family, LabelValues, ProbeStatus

PREFIX = "kprobe_exporter"
"""The prefix of the agent's own metrics; the namespace of the configuration does not apply to them."""

LOSSES = (
    "overrun",
    "commit_overrun",
    "dropped",
    "unparsed",
    "unpaired",
    "unreadable",
    "negative",
    "table_full",
    "disabled",
    "sampled",
    "wiped",
)


def probe_families(namespace: str, probes: Iterable[ProbeStatus]) -> tuple[Family, ...]:
    """Return which probes are installed, what they are attached to, and how they are collected."""
    up: dict[LabelValues, float] = {}
    info: dict[LabelValues, float] = {}
    for probe in probes:
        up[probe.name,] = float(probe.state == "up")
        if probe.state == "up":
            info[probe.name, probe.kind, probe.target, probe.plan] = 1
    return (
        _gauge(f"{namespace}_up", "1 if the probe is installed and enabled.", ("probe",), up),
        _gauge(
            f"{namespace}_info",
            "What the probe is attached to, and how its events are collected.",
            ("probe", "kind", "target", "plan"),
            info,
        ),
    )


def off_families(probes: Sequence[ProbeStatus]) -> tuple[Family, ...]:
    """Return which probes are off or sampled although nothing is wrong with them."""
    return (
        _gauge(
            f"{PREFIX}_probe_tripped",
            "1 while the probe is switched off because it exceeded its limit.",
            ("probe",),
            {(probe.name,): float(probe.state == "tripped") for probe in probes},
        ),
        _gauge(
            f"{PREFIX}_probe_disabled",
            "1 if the configuration disables the probe.",
            ("probe",),
            {(probe.name,): float(probe.state == "disabled") for probe in probes},
        ),
        _gauge(
            f"{PREFIX}_probe_absent",
            "1 if the probe is optional and this kernel does not support it.",
            ("probe",),
            {(probe.name,): float(probe.state == "absent") for probe in probes if probe.optional},
        ),
        _gauge(
            f"{PREFIX}_probe_sampling_ratio",
            "Share of threads whose events a critical probe records: 1, or less while it exceeds a limit.",
            ("probe",),
            {(probe.name,): probe.sampling for probe in probes if probe.sampling is not None},
        ),
    )


def fault_families(holding: Collection[str], noticed: Mapping[str, int]) -> tuple[Family, ...]:
    """Return the faults around the agent; ``noticed`` is how often each possible fault began."""
    return (
        _gauge(
            f"{PREFIX}_fault",
            "1 while this interference from outside the agent persists.",
            ("fault",),
            {(fault,): float(fault in holding) for fault in noticed},
        ),
        _counter(
            f"{PREFIX}_faults_total",
            "Times that each fault began, including those repaired at once.",
            "fault",
            noticed,
        ),
    )


def agent_families(
    numbers: Numbers,
    build: Mapping[str, str],
    kernel: Mapping[str, str],
    loaded_at: float,
    read_age: float,
    *,
    successful: bool = True,
) -> tuple[Family, ...]:
    """Return the agent's health. ``build`` and ``kernel`` hold labels of the agent and of the running kernel.
    ``loaded_at`` is in seconds since the epoch, ``read_age`` in seconds. ``successful``: the configuration
    that was last read is the running one."""
    lost = dict.fromkeys(LOSSES, 0) | numbers.lost
    return (
        _gauge(f"{PREFIX}_build_info", "The running agent.", tuple(build), {tuple(build.values()): 1}),
        _gauge(f"{PREFIX}_kernel_info", "The running kernel.", tuple(kernel), {tuple(kernel.values()): 1}),
        _counter(
            f"{PREFIX}_events_total",
            "Events that passed the probe's filter and were delivered.",
            "probe",
            numbers.events,
        ),
        _counter(
            f"{PREFIX}_events_lost_total",
            "Events, or values of events, that did not reach the metrics, by reason.",
            "reason",
            lost,
        ),
        Family(
            f"{PREFIX}_probe_events_lost_total",
            "counter",
            "Lost events by probe, where the probe is known.",
            ("probe", "reason"),
            numbers.lost_of,
        ),
        _counter(
            f"{PREFIX}_series_overflow_total",
            "Events counted in the label set __overflow__, because the metric reached its limit.",
            "metric",
            numbers.overflows,
        ),
        _counter(
            f"{PREFIX}_decode_failures_total",
            "Label values that became 'unknown', by decoder; 'none' if the event has no value.",
            "decoder",
            numbers.decode_failures,
        ),
        _gauge(
            f"{PREFIX}_config_last_reload_successful",
            "1 if the agent runs with the configuration that it read last.",
            (),
            {(): float(successful)},
        ),
        _gauge(
            f"{PREFIX}_config_last_reload_success_timestamp_seconds",
            "Time at which the running configuration was read.",
            (),
            {(): loaded_at},
        ),
        _gauge(
            f"{PREFIX}_kernel_read_age_seconds",
            "Time since the kernel's own counts were last read.",
            (),
            {(): read_age},
        ),
        _gauge(
            f"{PREFIX}_ring_buffer_bytes",
            "Bytes of unread events in the ring buffers of all CPUs.",
            (),
            {(): numbers.buffer_bytes},
        ),
    )


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Mapping[LabelValues, float]) -> Family:
    return _family(name, "gauge", text, labels, samples)


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Family:
    return _family(name, "counter", text, (label,), {(key,): n for key, n in counts.items()})


def _family(
    name: str,
    kind: Literal["counter", "gauge"],
    text: str,
    labels: tuple[str, ...],
    samples: Mapping[LabelValues, float],
) -> Family:
    return Family(name, kind, text, labels, dict(samples))
