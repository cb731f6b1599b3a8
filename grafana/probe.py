"""The second dashboard: one probe in depth."""

from typing import Any

from grafana.frame import build
from grafana.panels import RED, YELLOW, buckets, graph, number, rows, to_agent
from grafana.queries import PROBE, Query, down, increase, of, quantile, rate, ratio, spread

UID = "kprobe-exporter-probe"


def dashboard() -> Any:
    return build(
        UID,
        "Kernel probes: one probe",
        "One probe on all machines: how often it fires, what its function returns, how long it takes.",
        probe="single",
        rows={
            "The probe": [_numbers(), [_info()]],
            "How often": [[_hits(), _errors()], [_events(), _error_ratio()]],
            "Return values": [[_returned()]],
            "Durations": [[_durations()], [_quantiles(), _mean()]],
            "How far to trust it": [[_missed(), _lost(), _overhead()]],
        },
    )


def _numbers() -> list[Any]:
    return [
        number(
            "Up",
            "Machines on which the probe is installed and enabled.",
            "short",
            Query(f"sum({of('kprobe_up', PROBE)})", "up"),
        ),
        number(
            "Down",
            "Machines on which it is not; the agent's status page says why.",
            "short",
            Query(f"sum({down(PROBE)})", "down"),
            limits={1: RED},
        ),
        number(
            "Hits",
            "Firings per second on all machines, before the filter.",
            "cps",
            Query(f"sum({rate('kprobe_hits_total', PROBE)})", "hits"),
        ),
        number(
            "Errors",
            "Error returns per second on all machines. Empty for a probe that sees no return.",
            "cps",
            Query(f"sum({rate('kprobe_return_errors_total', PROBE)})", "errors"),
            limits={1: YELLOW},
        ),
    ]


def _info() -> Any:
    found = rows(
        "What it is attached to",
        "The kind and target that were chosen from the list of alternatives on each machine, and how the"
        " probe is collected: events are read one by one, count and kernel are added up in the kernel.",
        [
            ("", "short", f"max by (instance, kind, target, plan) ({of('kprobe_info', PROBE)})"),
            ("Hits", "cps", f"sum by (instance) ({rate('kprobe_hits_total', PROBE)})"),
        ],
        {"instance": "Agent", "kind": "Kind", "target": "Target", "plan": "Plan"},
    )
    # The probe's page has heat maps, the busiest label sets and flame graphs.
    page = to_agent("Its page on this agent", "probe/${probe:percentencode}")
    return found.override_by_name("Agent", [page])


def _hits() -> Any:
    return graph(
        "Hits by agent",
        "Firings per second on the ten busiest machines, before the filter. A call or a pair counts when it"
        " begins.",
        "cps",
        Query(f"topk(10, sum by (instance) ({rate('kprobe_hits_total', PROBE)}))", "{{instance}}"),
    )


def _errors() -> Any:
    return graph(
        "Errors by errno",
        "Error returns per second, by the name of the error.",
        "cps",
        Query(f"sum by (errno) ({rate('kprobe_return_errors_total', PROBE)})", "{{errno}}"),
        stacked=True,
    )


def _events() -> Any:
    return graph(
        "Hits and events",
        "Firings per second beside those that passed the filter and were delivered. If they are far apart,"
        " the filter drops many, or many are lost: see below. With plan=count there are no events.",
        "cps",
        Query(f"sum({rate('kprobe_hits_total', PROBE)})", "hits"),
        Query(f"sum({rate('kprobe_exporter_events_total', PROBE)})", "events"),
    )


def _error_ratio() -> Any:
    failed = ratio(rate("kprobe_return_errors_total", PROBE), rate("kprobe_hits_total", PROBE), "instance")
    return graph(
        "Errors per hit",
        "The share of firings that returned an error, on the ten machines where it is highest.",
        "percentunit",
        Query(f"topk(10, {failed})", "{{instance}}"),
    )


def _returned() -> Any:
    return buckets(
        "Return values",
        "Return values from 0 upwards: the deeper the colour, the more of them fell between two bounds of"
        " return_buckets. Errors are above.",
        "short",
        Query(spread("kprobe_return_value", PROBE), "{{le}}"),
    )


def _durations() -> Any:
    return buckets(
        "Durations",
        "How long the calls or pairs took: the deeper the colour, the more of them fell between two bounds of"
        " duration_buckets. The dots are single calls that were exported; each leads to its trace.",
        "s",
        Query(spread("kprobe_duration_seconds", PROBE), "{{le}}"),
    )


def _quantiles() -> Any:
    return graph(
        "Durations, quantiles",
        "The times that half, one in ten and one in a hundred of the calls exceed, on all machines together.",
        "s",
        *(
            Query(
                quantile(share, "kprobe_duration_seconds", "", PROBE),
                name,
            )
            for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
        ),
        minimum=None,
        logarithmic=True,
    )


def _mean() -> Any:
    return graph(
        "Durations, 99th percentile by agent",
        "The time that one in a hundred exceeds, on the ten machines where it is longest.",
        "s",
        Query(f"topk(10, {quantile(0.99, 'kprobe_duration_seconds', 'instance', PROBE)})", "{{instance}}"),
        minimum=None,
        logarithmic=True,
    )


def _missed() -> Any:
    missed = ratio(
        rate("kprobe_misses_total", PROBE),
        f"{rate('kprobe_hits_total', PROBE)} + {rate('kprobe_misses_total', PROBE)}",
        "instance",
    )
    return graph(
        "Firings missed by the kernel",
        "The share of firings that the kernel could not record, usually because more calls ran at once than"
        " maxactive allows.",
        "percentunit",
        Query(f"topk(10, {missed})", "{{instance}}"),
    )


def _lost() -> Any:
    here = f"on (instance) group_left () max by (instance) ({of('kprobe_up', PROBE)})"
    return graph(
        "Events lost where it runs",
        "Events of all probes that were lost per interval, on the machines where this one is up: the buffer"
        " is shared, so losses cannot be attributed to one probe.",
        "short",
        Query(
            f"sum by (reason) ({increase('kprobe_exporter_events_lost_total')} * {here})",
            "{{reason}}",
        ),
        stacked=True,
    )


def _overhead() -> Any:
    return graph(
        "Overhead",
        "An estimate of the processor time that the probe costs the machine: 1 % is a hundredth of one"
        " processor.",
        "percentunit",
        Query(
            f"topk(10, sum by (instance) ({rate('kprobe_exporter_probe_overhead_seconds_total', PROBE)}))",
            "{{instance}}",
        ),
    )
