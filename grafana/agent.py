"""The third dashboard: the health of the agents themselves."""

from typing import Any

from grafana.frame import build
from grafana.panels import GREEN, RED, YELLOW, graph, number, rows, to_agent
from grafana.queries import Query, increase, of, rate

UID = "kprobe-exporter-agent"


def dashboard() -> Any:
    return build(
        UID,
        "Kernel probes: the agents",
        "What the agents lose, what they cost, and whether they keep up.",
        probe=None,
        rows={
            "At this moment": [_numbers()],
            "Losses": [[_lost(), _delivered()], [_ring_buffer(), _labels()]],
            "Cost": [[_processor(), _memory()], [_overhead(), _scrape()]],
            "State": [[_faults(), _tripped()], [_age(), _reloaded()]],
            "OpenTelemetry": [[_sent(), _unsent()]],
            "Recordings": [[_list_of_recordings()], [_recordings(), _recorded_bytes()]],
        },
    )


def _numbers() -> list[Any]:
    return [
        number(
            "Agents",
            "Agents that Prometheus scrapes and that answer.",
            "short",
            Query(f"count({of('kprobe_exporter_build_info')})", "agents"),
        ),
        number(
            "Probes tripped",
            "Probes that fired more often than their limit and are off for a while, on all agents together.",
            "short",
            Query(f"sum({of('kprobe_exporter_probe_tripped')})", "tripped"),
            limits={1: RED},
        ),
        number(
            "Configuration",
            "Whether every agent runs the configuration that it read last.",
            "short",
            Query(f"min({of('kprobe_exporter_config_last_reload_successful')})", "reload"),
            limits={1: GREEN},
            below=RED,
            names={"0": "refused", "1": "as read"},
        ),
        number(
            "Lost in the last hour",
            "Events, or values of them, that were lost on the way, on all agents together.",
            "short",
            Query(
                f"sum(increase({of('kprobe_exporter_events_lost_total')}[1h]))",
                "lost",
            ),
            limits={1: YELLOW},
        ),
    ]


def _lost() -> Any:
    return graph(
        "Events lost by reason",
        "Events, or values of them, that were lost on the way, per interval. overrun: the ring buffer was"
        " full, a larger buffer_size helps; table_full: more label sets than max_series in the kernel.",
        "short",
        Query(f"sum by (reason) ({increase('kprobe_exporter_events_lost_total')})", "{{reason}}"),
        stacked=True,
    )


def _delivered() -> Any:
    return graph(
        "Events by agent",
        "Events per second that passed the filters and were delivered, at the ten busiest agents.",
        "eps",
        Query(f"topk(10, sum by (instance) ({rate('kprobe_exporter_events_total')}))", "{{instance}}"),
    )


def _ring_buffer() -> Any:
    return graph(
        "Waiting in the ring buffer",
        "Bytes of events that wait to be read, on all processors of a machine. Close to buffer_total, events"
        " are lost.",
        "bytes",
        Query(f"topk(10, max by (instance) ({of('kprobe_exporter_ring_buffer_bytes')}))", "{{instance}}"),
    )


def _labels() -> Any:
    overflow = f"sum by (metric) ({increase('kprobe_exporter_series_overflow_total')})"
    failures = f"sum by (decoder) ({increase('kprobe_exporter_decode_failures_total')})"
    return graph(
        "Labels that could not be kept",
        "Events per interval that were counted under __overflow__ because their metric already has max_series"
        " label sets, and label values that could not be decoded and became unknown.",
        "short",
        Query(overflow, "overflow of {{metric}}"),
        Query(failures, "decoder {{decoder}}"),
    )


def _processor() -> Any:
    return graph(
        "Processor time",
        "What the agents themselves use: 100 % is one processor. The probes' cost in the kernel is below.",
        "percentunit",
        Query(f"topk(10, {rate('process_cpu_seconds_total')})", "{{instance}}"),
    )


def _memory() -> Any:
    return graph(
        "Memory",
        "Resident memory of the agents. The ring buffers belong to the kernel and are not included.",
        "bytes",
        Query(f"topk(10, {of('process_resident_memory_bytes')})", "{{instance}}"),
    )


def _overhead() -> Any:
    return graph(
        "Overhead of the probes",
        "An estimate of the processor time that each probe costs on all machines together: 100 % is one"
        " processor.",
        "percentunit",
        Query(
            f"topk(10, sum by (probe) ({rate('kprobe_exporter_probe_overhead_seconds_total')}))", "{{probe}}"
        ),
        to_probe=True,
    )


def _scrape() -> Any:
    return graph(
        "Duration of a scrape",
        "How long Prometheus waited for an answer, and how long the agent took to prepare it, at the slowest"
        " agent.",
        "s",
        Query(f"max({of('scrape_duration_seconds')})", "waited"),
        Query(f"max({of('kprobe_exporter_scrape_duration_seconds')})", "prepared"),
    )


def _age() -> Any:
    return graph(
        "Age of the kernel's numbers",
        "Time since the kernel's own counts were last read: hits and misses are as old as this.",
        "s",
        Query(f"topk(10, {of('kprobe_exporter_kernel_read_age_seconds')})", "{{instance}}"),
    )


def _faults() -> Any:
    return graph(
        "Faults",
        "1 while something outside the agent keeps probes from working: tracing switched off, tracefs not"
        " mounted, a probe deleted. docs/reliability.md lists what each name means.",
        "short",
        Query(
            f"topk(10, max by (instance, fault) ({of('kprobe_exporter_fault')}))",
            "{{instance}} {{fault}}",
        ),
    )


def _tripped() -> Any:
    return graph(
        "Tripped, by probe",
        "1 while a probe is off because it fired more often than its limit.",
        "short",
        Query(
            f"topk(10, max by (instance, probe) ({of('kprobe_exporter_probe_tripped')}))",
            "{{instance}} {{probe}}",
        ),
        to_probe=True,
    )


def _reloaded() -> Any:
    return graph(
        "Age of the configuration",
        "Time since the running configuration was read: it falls to 0 at a reload that succeeds.",
        "s",
        Query(
            f"topk(10, time() - {of('kprobe_exporter_config_last_reload_success_timestamp_seconds')})",
            "{{instance}}",
        ),
    )


def _sent() -> Any:
    return graph(
        "Exported to the collector",
        "Log records, spans and data points per second that the collector accepted. Empty without otlp.",
        "cps",
        Query(f"sum by (signal) ({rate('kprobe_exporter_otlp_exported_total')})", "{{signal}}"),
    )


def _unsent() -> Any:
    return graph(
        "Not exported",
        "Items per second that were dropped because of a limit or a full queue, and that the collector did"
        " not accept.",
        "cps",
        Query(f"sum by (signal) ({rate('kprobe_exporter_otlp_dropped_total')})", "{{signal}} dropped"),
        Query(f"sum by (signal) ({rate('kprobe_exporter_otlp_failed_total')})", "{{signal}} failed"),
    )


def _list_of_recordings() -> Any:
    def within_an_hour(result: str) -> str:
        name = of("kprobe_exporter_recordings_total", f'result="{result}"')
        return f"sum by (instance, recording) (increase({name}[1h]))"

    found = rows(
        "Recordings of the last hour",
        "Files that each recording has written, conditions that were refused by its budget, and files that"
        " failed. The agent's name leads to its list of files. Empty without recordings.",
        [
            ("Written", "short", within_an_hour("written")),
            ("Refused", "short", within_an_hour("refused")),
            ("Failed", "short", within_an_hour("failed")),
        ],
        {"instance": "Agent", "recording": "Recording"},
        alarming="Failed",
    )
    return found.override_by_name("Agent", [to_agent("Files on this agent", "recordings")])


def _recordings() -> Any:
    name = "kprobe_exporter_recordings_total"
    return graph(
        "Recordings by outcome",
        "Recordings per interval: written, refused because the last one was too recent or the file too large,"
        " or failed, for which the log has the reason. An agent lists its files at /recordings.",
        "short",
        Query(f"sum by (recording, result) ({increase(name)})", "{{recording}} {{result}}"),
        stacked=True,
    )


def _recorded_bytes() -> Any:
    return graph(
        "Size of recordings",
        "Bytes of the files of recordings, at the ten agents with most.",
        "bytes",
        Query(f"topk(10, {of('kprobe_exporter_recordings_bytes')})", "{{instance}}"),
    )
