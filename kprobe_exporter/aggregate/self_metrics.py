"""The metrics about the agent itself and about the state of its probes."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.model.snapshot import Family, LabelValues, ProbeStatus

PREFIX = "kprobe_exporter"
"""The prefix of the agent's own metrics; the namespace of the configuration does not apply to them."""

LOSSES = tuple(
    "overrun commit_overrun dropped unparsed unpaired unreadable negative table_full disabled sampled"
    " wiped".split()
)

HELP = {
    "up": "1 if the probe is installed and enabled.",
    "info": "The probe's target, and how its events are collected.",
    "probe_tripped": "1 while the probe is switched off because it exceeded its limit.",
    "probe_disabled": "1 if the configuration disables the probe.",
    "probe_absent": "1 if the probe is optional and this kernel does not support it, or if it waits for a"
    " container.",
    "probe_sampling_ratio": "Share of threads whose events a critical probe records: 1, or less while it"
    " exceeds a limit.",
    "fault": "1 while this interference from outside the agent persists.",
    "faults_total": "Times that each fault began, including those repaired at once.",
    "budget_overruns_total": "Times that a file, process, container or path was refused for a minute, because"
    " reading it took too much.",
    "build_info": "The running agent.",
    "kernel_info": "The running kernel.",
    "events_total": "Events that passed the probe's filter and were delivered.",
    "events_lost_total": "Events, or values of events, that did not reach the metrics, by reason.",
    "probe_events_lost_total": "Lost events by probe, where the probe is known.",
    "stack_hits_lost_total": "Hits whose stack is unknown, or was not kept because `stacks.max` was reached."
    " The kernel's own tables are read at a request for the stacks.",
    "series_overflow_total": "Events counted in the label set __overflow__, because the metric reached its"
    " limit.",
    "decode_failures_total": "Label values that became 'unknown', by decoder; 'none' if the event has no"
    " value.",
    "config_last_reload_successful": "1 if the agent runs with the configuration that it read last.",
    "config_last_reload_success_timestamp_seconds": "Time at which the running configuration was read.",
    "recordings_total": "Recordings by their outcome: written, refused by the budget, or failed.",
    "recordings_bytes": "Size of all files of recordings.",
    "kernel_read_age_seconds": "Time since the kernel's own counts were last read.",
    "ring_buffer_bytes": "Bytes of unread events in the ring buffers of all CPUs.",
}


def probe_families(namespace: str, probes: Iterable[ProbeStatus]) -> tuple[Family, ...]:
    """Return which probes are installed, what they are attached to, and how they are collected."""
    up: dict[LabelValues, float] = {}
    info: dict[LabelValues, float] = {}
    for probe in probes:
        up[probe.name,] = float(probe.state == "up")
        if probe.state == "up":
            info[probe.name, probe.kind, probe.target, probe.plan] = 1
    return (
        _family("up", up, "probe", prefix=namespace),
        _family("info", info, "probe", "kind", "target", "plan", prefix=namespace),
    )


def off_families(probes: Sequence[ProbeStatus]) -> tuple[Family, ...]:
    """Return which probes are off or sampled although nothing is wrong with them."""
    optional = [probe for probe in probes if probe.optional]
    sampling = {probe.name: probe.sampling for probe in probes if probe.sampling is not None}
    return (
        *(
            _by("probe", f"probe_{state}", {probe.name: float(probe.state == state) for probe in among})
            for state, among in (("tripped", probes), ("disabled", probes), ("absent", optional))
        ),
        _by("probe", "probe_sampling_ratio", sampling),
    )


def stack_families(lost: Mapping[str, int]) -> tuple[Family, ...]:
    """Return the hits whose stack is lost, by probe."""
    return (_by("probe", "stack_hits_lost_total", lost),)


def fault_families(holding: Collection[str], noticed: Mapping[str, int]) -> tuple[Family, ...]:
    """Return the faults around the agent; ``noticed`` is how often each possible fault began."""
    return (
        _by("fault", "fault", {fault: float(fault in holding) for fault in noticed}),
        _by("fault", "faults_total", noticed),
    )


def overrun_families(overruns: Mapping[str, int]) -> tuple[Family, ...]:
    """Return how often a source went over its budget, by its kind."""
    return (_by("source", "budget_overruns_total", overruns),)


def recording_families(results: Mapping[tuple[str, str], int], kept: int) -> tuple[Family, ...]:
    """Return how often each recording was cut, by its outcome, and the bytes of all files."""
    return (
        _family("recordings_total", dict(results.items()), "recording", "result"),
        _family("recordings_bytes", {(): kept}),
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
    return (
        _family("build_info", {tuple(build.values()): 1}, *build),
        _family("kernel_info", {tuple(kernel.values()): 1}, *kernel),
        _by("probe", "events_total", numbers.events),
        _by("reason", "events_lost_total", dict.fromkeys(LOSSES, 0) | numbers.lost),
        _family("probe_events_lost_total", numbers.lost_of, "probe", "reason"),
        _by("metric", "series_overflow_total", numbers.overflows),
        _by("decoder", "decode_failures_total", numbers.decode_failures),
        _family("config_last_reload_successful", {(): float(successful)}),
        _family("config_last_reload_success_timestamp_seconds", {(): loaded_at}),
        _family("kernel_read_age_seconds", {(): read_age}),
        _family("ring_buffer_bytes", {(): numbers.buffer_bytes}),
    )


def _by(label: str, name: str, values: Mapping[str, float]) -> Family:
    return _family(name, {(key,): value for key, value in values.items()}, label)


def _family(name: str, samples: Mapping[LabelValues, float], *labels: str, prefix: str = PREFIX) -> Family:
    """Return a counter if the name ends in ``_total``, else a gauge."""
    counts = name.endswith("_total")
    return Family(f"{prefix}_{name}", "counter" if counts else "gauge", HELP[name], labels, samples)
