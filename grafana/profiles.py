"""The stacks that Alloy collects from the agents as profiles (deploy/alloy), asked from Pyroscope."""

from typing import Any

from grafana_foundation_sdk.builders import dashboard as panel
from grafana_foundation_sdk.builders import grafanapyroscope
from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable
from grafana_foundation_sdk.models import dashboard as model

from grafana.frame import build, variable
from grafana.pack import trust
from grafana.panels import graph
from grafana.queries import Query, rate, ratio

UID = "kprobe-exporter-profiles"
PROBES = ("off_cpu", "time", "on_cpu")
MATCHER = f'probe=~"{"|".join(PROBES)}"'

PYROSCOPE = "grafana-pyroscope-datasource"
SOURCE = model.DataSourceRef(type_val=PYROSCOPE, uid="${pyroscope}")
SELECTED = '{service_name="kernel",instance=~"${agent:regex}"}'
"""The profiles of the chosen agents, by the labels that deploy/alloy gives them."""


def profile_type(probe: str, sample: str, unit: str) -> str:
    """Pyroscope's name of a profile: that of the block in Alloy, the sample's type, and the period's."""
    return f"{probe}:{sample}:{unit}:hits:count"


DURATION, HITS = ("duration", "nanoseconds"), ("hits", "count")


def dashboard() -> Any:
    return build(
        UID,
        "Kernel probes: profiles",
        "Flame graphs of the stacks that probes count, as Grafana Alloy collects them for Pyroscope.",
        probe=None,
        rows={
            "Where threads wait": [
                [_flames("off_cpu", *DURATION, "Off the CPU", "Time between two runs of threads, by stack.")],
                [_flames("time", *DURATION, "Asleep", "Time in sleeps; the outermost frame is their class.")],
            ],
            "What the CPUs do": [
                [_flames("on_cpu", *HITS, "On the CPU", "Samples of what the CPUs run, by stack.")],
            ],
            "When": [
                [
                    _over_time("off_cpu", *DURATION, "Off the CPU, by agent", "ns"),
                    _over_time("time", *DURATION, "Asleep, by agent", "ns"),
                    _over_time("on_cpu", *HITS, "On the CPU, by agent", "short"),
                ]
            ],
            "How far to trust it": [[_hits(), _lost()], trust(MATCHER)],
        },
        more=(
            DatasourceVariable("pyroscope").label("Pyroscope").type(PYROSCOPE),
            _agents(),
        ),
    )


def _agents() -> QueryVariable:
    """The agents that Pyroscope has profiles of."""
    query: dict[str, object] = {
        "refId": "agent",
        "type": "labelValue",
        "labelName": "instance",
        "profileTypeId": profile_type("off_cpu", *DURATION),
    }
    return variable("agent", "Agent in Pyroscope", query, SOURCE, many=True)


def _flames(probe: str, sample: str, unit: str, title: str, description: str) -> panel.Panel:
    return (
        panel.Panel()
        .type("flamegraph")
        .title(title)
        .description(f"{description} Empty unless the probe {probe} counts stacks, and Alloy collects them.")
        .unit("ns" if unit == "nanoseconds" else "short")
        .height(14)
        .datasource(SOURCE)
        .with_target(_target("profile", probe, sample, unit))
    )


def _over_time(probe: str, sample: str, unit: str, title: str, shown: str) -> Any:
    description = f"The profile of {probe}, added up in each interval. Empty without such profiles."
    made = graph(title, description, shown)
    return made.datasource(SOURCE).with_target(_target("metrics", probe, sample, unit).group_by(["instance"]))


def _target(query_type: str, probe: str, sample: str, unit: str) -> grafanapyroscope.Dataquery:
    return (
        grafanapyroscope.Dataquery()
        .ref_id("A")
        .query_type(query_type)
        .profile_type_id(profile_type(probe, sample, unit))
        .label_selector(SELECTED)
    )


def _hits() -> Any:
    return graph(
        "Stacks per second",
        "Hits of the probes whose stacks are counted. Empty unless one of them is on.",
        "cps",
        Query(f"sum by (probe) ({rate('kprobe_hits_total', MATCHER)})", "{{probe}}"),
        to_probe=True,
    )


def _lost() -> Any:
    lost = rate("kprobe_exporter_stack_hits_lost_total", MATCHER)
    return graph(
        "Share of lost stacks",
        "Hits whose stack was lost, or not kept because there were more than `max`. Empty unless one of the"
        " probes is on.",
        "percentunit",
        Query(ratio(lost, rate("kprobe_hits_total", MATCHER), "probe"), "{{probe}}"),
        to_probe=True,
    )
