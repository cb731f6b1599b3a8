"""The first dashboard: all agents and all probes, what they see and what they lose."""

from typing import Any

from grafana.frame import build
from grafana.panels import RED, YELLOW, graph, number, rows
from grafana.queries import PROBE, Query, down, increase, of, quantile, rate, ratio

UID = "kprobe-exporter-fleet"

LOSSES = 'reason!~"unreadable|negative|unpaired|disabled|sampled"'
"""With the first two the event was counted and only one of its values was not; a few ``unpaired`` are normal;
``disabled`` is of probes that were being switched off."""


def dashboard() -> Any:
    return build(
        UID,
        "Kernel probes: fleet",
        "Which agents and probes are up, what the kernel does on all machines, and what was lost on the way.",
        probe="multi",
        rows={
            "At this moment": [_numbers(), [_instances(), _probes()]],
            "What the kernel does": [
                [_hits(), _hits_by_instance()],
                [_errors(), _error_ratio()],
                [_usual_durations(), _long_durations()],
            ],
            "What was lost": [[_lost(), _missed()]],
        },
    )


def _numbers() -> list[Any]:
    loss = ratio(
        rate("kprobe_exporter_events_lost_total", LOSSES),
        f"{rate('kprobe_exporter_events_total')} or {rate('kprobe_exporter_events_lost_total', LOSSES)}",
        "instance",
    )
    # Of no agent at all KprobeExporterAbsent has neither label.
    alerts = 'ALERTS{alertname=~"Kprobe.+",alertstate="firing",job=~"$job|",instance=~"$instance|"}'
    return [
        number(
            "Agents",
            "Agents that Prometheus scrapes and that answer.",
            "short",
            Query(f"count({of('kprobe_exporter_build_info')})", "agents"),
        ),
        number(
            "Probes up",
            "Probes that are installed and enabled, on all agents together.",
            "short",
            Query(f"sum({of('kprobe_up', PROBE)})", "up"),
        ),
        number(
            "Probes down",
            "Probes that a kernel refused, or that tripped. The agent's status page and its log say why.",
            "short",
            Query(f"sum({down(PROBE)})", "down"),
            limits={1: RED},
        ),
        number(
            "Hits",
            "Firings of all probes per second, before their filters.",
            "cps",
            Query(f"sum({rate('kprobe_hits_total', PROBE)})", "hits"),
        ),
        number(
            "Events lost",
            "The share of events that were lost between the kernel and the metrics. Above 1 % the counts of"
            " probes with plan=events are too low.",
            "percentunit",
            Query(f"max({loss}) or vector(0)", "lost"),
            limits={0.001: YELLOW, 0.01: RED},
        ),
        number(
            "Alerts",
            "Alerts of deploy/prometheus/rules.yaml that are firing on the chosen agents.",
            "short",
            Query(f"count({alerts}) or vector(0)", "firing"),
            limits={1: RED},
        ),
    ]


def _instances() -> Any:
    return rows(
        "Each agent",
        "Each agent with its version, its probes that are up and down, and what it counts and loses per"
        " second.",
        [
            ("", "short", f"max by (instance, version) ({of('kprobe_exporter_build_info')})"),
            ("Up", "short", f"sum by (instance) ({of('kprobe_up', PROBE)})"),
            ("Down", "short", f"sum by (instance) ({down(PROBE)})"),
            ("Hits", "cps", f"sum by (instance) ({rate('kprobe_hits_total', PROBE)})"),
            ("Lost", "eps", f"sum by (instance) ({rate('kprobe_exporter_events_lost_total', LOSSES)})"),
        ],
        {"instance": "Agent", "version": "Version"},
        alarming="Down",
    )


def _probes() -> Any:
    return rows(
        "Each probe",
        "Each probe with the number of agents on which it is up and down, and its firings and error returns"
        " per second. Click its name to see it in depth.",
        [
            ("Up", "short", f"sum by (probe) ({of('kprobe_up', PROBE)})"),
            ("Down", "short", f"sum by (probe) ({down(PROBE)})"),
            ("Hits", "cps", f"sum by (probe) ({rate('kprobe_hits_total', PROBE)})"),
            ("Errors", "cps", f"sum by (probe) ({rate('kprobe_return_errors_total', PROBE)})"),
        ],
        {"probe": "Probe"},
        alarming="Down",
    )


def _hits() -> Any:
    return graph(
        "Hits by probe",
        "Firings per second of the ten busiest probes, before their filters. A call or a pair counts when it"
        " begins.",
        "cps",
        Query(f"topk(10, sum by (probe) ({rate('kprobe_hits_total', PROBE)}))", "{{probe}}"),
        to_probe=True,
    )


def _hits_by_instance() -> Any:
    return graph(
        "Hits by agent",
        "Firings of the chosen probes per second on the ten busiest machines: look at the one that stands"
        " out.",
        "cps",
        Query(f"topk(10, sum by (instance) ({rate('kprobe_hits_total', PROBE)}))", "{{instance}}"),
    )


def _errors() -> Any:
    errors = f"sum by (probe, errno) ({rate('kprobe_return_errors_total', PROBE)})"
    return graph(
        "Errors by errno",
        "Error returns of the probed functions per second, by the name of the error. ENOENT mostly comes from"
        " programs that look for a file in many places.",
        "cps",
        Query(f"topk(10, {errors})", "{{probe}} {{errno}}"),
        to_probe=True,
    )


def _error_ratio() -> Any:
    failed = ratio(rate("kprobe_return_errors_total", PROBE), rate("kprobe_hits_total", PROBE), "probe")
    return graph(
        "Errors per hit",
        "The share of firings that returned an error. Firings are counted before the filter.",
        "percentunit",
        Query(f"topk(10, {failed})", "{{probe}}"),
        to_probe=True,
    )


def _usual_durations() -> Any:
    return graph(
        "Durations, median",
        "The median time of the ten slowest calls and pairs, as exactly as the histogram's buckets allow.",
        "s",
        Query(f"topk(10, {quantile(0.5, 'kprobe_duration_seconds', 'probe', PROBE)})", "{{probe}}"),
        minimum=None,
        logarithmic=True,
        to_probe=True,
    )


def _long_durations() -> Any:
    return graph(
        "Durations, 99th percentile",
        "The time that one in a hundred of the ten slowest calls and pairs exceeds, as exactly as the"
        " histogram's buckets allow.",
        "s",
        Query(f"topk(10, {quantile(0.99, 'kprobe_duration_seconds', 'probe', PROBE)})", "{{probe}}"),
        minimum=None,
        logarithmic=True,
        to_probe=True,
    )


def _lost() -> Any:
    return graph(
        "Events lost by reason",
        "Events, or values of them, that were lost on the way, per interval. overrun: the ring buffer was"
        " full; unpaired: the other half of a call or a pair is missing.",
        "short",
        Query(f"sum by (reason) ({increase('kprobe_exporter_events_lost_total')})", "{{reason}}"),
        stacked=True,
    )


def _missed() -> Any:
    missed = ratio(
        rate("kprobe_misses_total", PROBE),
        f"{rate('kprobe_hits_total', PROBE)} + {rate('kprobe_misses_total', PROBE)}",
        "probe",
    )
    return graph(
        "Firings missed by the kernel",
        "The share of firings that the kernel could not record, usually because more calls ran at once than"
        " maxactive allows.",
        "percentunit",
        Query(f"topk(10, {missed})", "{{probe}}"),
        to_probe=True,
    )
