"""VM with real probes → agent → Prometheus: dashboard queries and rules have data, alerts fire."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from grafana import pack
from grafana.__main__ import DIRECTORY
from tests.support import picture
from tests.support.dashboard_schema import asked, panels
from tests.support.patience import eventually, patience
from tests.support.picture import Line
from tests.support.prometheus_server import Prometheus
from tests.whole.vm import DEPLOY, LIMIT, NODE, needs_a_vm, whole

DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(DIRECTORY.glob("*.json"))}
PROVOKED = {
    "KprobeBlockIoErrors",
    "KprobeFsyncFailed",
    "KprobeOomKill",
    "KprobeOpenErrorsRising",
    "KprobeOtlpFailing",
    "KprobeProbeDown",
    "KprobeSeriesOverflow",
}
HEALTHY = {
    "KprobeEventsUnexplained",
    "KprobeExporterAbsent",
    "KprobeExporterDown",
    "KprobeExporterFault",
    "KprobeKernelReadStale",
    "KprobeReloadFailed",
}

LATER = {
    "KprobeBlockIoErrors": "kprobe_block_errors_total > 0",
    "KprobeFsyncFailed": 'kprobe_return_errors_total{probe=~"fsync|fdatasync",errno=~"EIO|ENOSPC"} > 0',
    "KprobeOomKill": 'kprobe_hits_total{probe="oom_kill"} > 0',
}
"""Alerts on what the VM does only after a while (tests/whole/guest.py), and a query that then matches."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    needs_a_vm()
    with whole(tmp_path_factory.mktemp("whole"), lambda server: server.firing() >= PROVOKED) as server:
        yield server


def rules() -> list[Any]:
    groups = yaml.safe_load((DEPLOY / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts(server: Prometheus) -> list[Any]:
    found: list[Any] = server.get("alerts")["alerts"]
    return found


def first(server: Prometheus, expr: str) -> float:
    """The time of a query's first result, in seconds since the epoch."""
    return min(series.samples[0][0] for series in server.over(expr, run_seconds()))


def run_seconds() -> int:
    """The longest time for which the VM may have run."""
    return round(patience(LIMIT))


LACKING = {"kprobe-exporter-postgresql", "kprobe-exporter-time", "kprobe-exporter-profiles"}
"""The dashboards of a server that the VM lacks, and of all switches between threads, which would leave an
emulated machine time for little else. test_postgresql.py and test_thread_times.py show their metrics."""

OF_TIME = "KprobeTimeUnaccounted"
"""The alert of the latter."""


def targets(*, answered: bool) -> Iterator[Any]:
    """Each query of each panel that the VM has data for, or that it has none for.

    Those of the probe's dashboard ask for one probe that has all metrics.
    """
    for uid, dashboard in DASHBOARDS.items():
        probe = "rename" if uid == "kprobe-exporter-probe" else ".+"
        for panel in panels(dashboard):
            lacking = uid in LACKING or "Empty unless" in panel["description"]
            asks = panel["datasource"]["type"] == "prometheus" and answered != lacking
            for target in panel["targets"] if asks else ():
                name = f"{uid}: {panel['title']}: {target['refId']}"
                yield pytest.param(asked(target["expr"], probe), id=name)


class TestDashboards:
    @pytest.mark.parametrize("expr", list(targets(answered=True)))
    def test_a_query_answers(self, server: Prometheus, expr: str) -> None:
        """At some time of the run: a slow guest works on disks once in several minutes."""
        eventually(lambda: any(series.finite for series in server.over(expr, run_seconds(), step=5)))

    @pytest.mark.parametrize("expr", list(targets(answered=False)))
    def test_a_query_about_a_missing_server_or_a_probe_that_is_off_is_accepted(
        self, server: Prometheus, expr: str
    ) -> None:
        """A query that Prometheus refuses raises AssertionError; its answer may be empty."""
        server.over(expr, 60)

    @pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
    def test_its_variables_offer_something(self, server: Prometheus, dashboard: Any) -> None:
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query" and variable["datasource"]["type"] == "prometheus":
                query = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
                assert query
                assert server.label_values(query[2], asked(query[1])), variable["query"]


WATCHED = [rule["alert"] for rule in rules() if rule.get("alert", OF_TIME) != OF_TIME]
"""The alerts whose metrics the VM has."""


class TestRules:
    def test_all_are_evaluated(self, server: Prometheus) -> None:
        evaluated = server.rules()
        names = [rule.get("alert") or rule["record"] for rule in rules()]
        assert sorted(rule["name"] for rule in evaluated) == sorted(names)
        assert {rule["health"] for rule in evaluated} == {"ok"}
        assert [rule["lastError"] for rule in evaluated if rule.get("lastError")] == []

    @pytest.mark.parametrize("record", [rule["record"] for rule in rules() if "record" in rule])
    def test_what_is_recorded(self, server: Prometheus, record: str) -> None:
        eventually(lambda: any(series.finite for series in server.now(record)), 40)

    @pytest.mark.parametrize(
        "alert", [one["alert"] for one in rules() if one.get("alert", OF_TIME) != OF_TIME]
    )
    def test_what_an_alert_looks_at_is_there(self, server: Prometheus, alert: str) -> None:
        """Each of its selectors finds series, whether or not they exceed its threshold."""
        (expr,) = (rule["expr"] for rule in rules() if rule.get("alert") == alert)
        selectors = re.findall(r"\b(?:instance\w*:)?(?:kprobe|up\b)[\w:]*(?:{[^}]*})?", expr)
        assert selectors
        for selector in selectors:
            assert server.now(selector), selector

    def test_alerts_fire_after_what_was_provoked(self, server: Prometheus) -> None:
        assert server.firing() >= PROVOKED

    @pytest.mark.parametrize(("alert", "condition"), LATER.items())
    def test_an_alert_is_inactive_until_its_condition_is_provoked(
        self, server: Prometheus, alert: str, condition: str
    ) -> None:
        """The order since the agent's first scrape, by Prometheus' records at steps of 1 s."""
        watched, provoked = first(server, "up == 1"), first(server, condition)
        assert watched < provoked
        assert provoked <= first(server, f'ALERTS{{alertname="{alert}"}}')
        assert provoked <= first(server, f'ALERTS{{alertname="{alert}",alertstate="firing"}}')

    def test_one_fires_of_a_probe_over_its_limit(self, server: Prometheus) -> None:
        """A tripped probe does not fire the alert on probes that are down."""
        eventually(lambda: "KprobeProbeTripped" in server.firing(), 30)
        busy = {one["labels"]["alertname"] for one in alerts(server) if one["labels"].get("probe") == "busy"}
        assert busy == {"KprobeProbeTripped"}

    def test_others_do_not(self, server: Prometheus) -> None:
        assert server.firing() & HEALTHY == set()

    def test_an_alert_says_where(self, server: Prometheus) -> None:
        (down,) = [one for one in alerts(server) if one["labels"].get("probe") == "gone"]
        (kernel,) = server.now("kprobe_exporter_kernel_info")
        release = kernel.labels["release"]
        assert (
            down["annotations"]["summary"] == f"Probe gone is down on 1 of the machines with Linux {release}."
        )
        (refused,) = server.now('kprobe_up{probe="gone"} == 0')
        assert refused.labels["instance"] == NODE


def test_a_target_is_what_its_pod_says(server: Prometheus) -> None:
    """The instance is the node's name, and no other port of the pod is scraped."""
    (up,) = server.now("up")
    assert up.labels == {"__name__": "up", "job": "kprobe-exporter", "instance": NODE}
    assert up.finite[0][1] == 1


IMAGES = Path(__file__).parents[2] / "docs/images"

NUMBERS = ("Agents", "Probes up", "Probes down", "Hits", "Events lost", "Alerts")
GRAPHS = 4
"""The number of graphs in which most happens; HEATMAPS are drawn as well."""

HEATMAPS = (("Durations", "fsync"), ("Return values", "file_read"))
OF_PACKS = {
    "network": ["Packets dropped by function and reason"],
    "disk": ["Bytes by device and operation", "Syncs, 99th percentile"],
    "security": [
        "Processes traced, by program, request and result",
        "Changes of user, by program, user and result",
    ],
    "python": ["Collections by program and generation"],
}
"""The graphs of packs that are drawn."""


def test_pictures(server: Prometheus, tmp_path: Path) -> None:
    """The panels' queries give pictures; UPDATE_IMAGES=1 writes them to the documents' files."""
    if os.environ.get("UPDATE_IMAGES"):  # of a minute with enough memory and no failed scrape
        eventually(lambda: server.now("sum_over_time(up[1m])")[0].finite[0][1] >= 55, 150)
    numbers = [the_number(server, "kprobe-exporter-fleet", title) for title in NUMBERS]
    heatmaps = [the_heatmap(server, *shown) for shown in HEATMAPS]
    drawn = picture.page("Kernel probes", numbers, [*liveliest(server), *heatmaps])
    assert drawn.count('fill="#7f3b08"') + drawn.count('fill="#b35806"') > 5
    for name, content in {"dashboard": drawn, "packs": of_packs(server)}.items():
        assert content.count("<polyline") >= 10
        where = (IMAGES if os.environ.get("UPDATE_IMAGES") else tmp_path) / f"{name}.svg"
        where.write_text(content)
        ElementTree.parse(where)


def of_packs(server: Prometheus) -> str:
    """The hits of some packs, and graphs of them."""
    numbers, graphs = [], []
    for name, titles in OF_PACKS.items():
        title, text, colour = the_number(server, pack.uid(name), "Hits")
        numbers.append((f"{title} of {name}", text, colour))
        chosen = [by_title(pack.uid(name), title) for title in titles]
        graphs += [the_graph(panel, the_lines(server, panel)) for panel in chosen]
    return picture.page("Kernel probes: packs", numbers, graphs)


def the_number(server: Prometheus, uid: str, title: str) -> tuple[str, str, str]:
    """The title, text and colour of a panel with one number."""
    panel = by_title(uid, title)
    defaults = panel["fieldConfig"]["defaults"]
    ((_, value),) = server.now(asked(panel["targets"][0]["expr"]))[0].samples
    steps = [step for step in defaults["thresholds"]["steps"] if (step["value"] or 0) <= value]
    colours = {"green": "#73bf69", "yellow": "#f2cc0c", "red": "#f2495c"}
    return title, picture.readable(value, defaults["unit"]), colours[steps[-1]["color"]]


def liveliest(server: Prometheus) -> list[str]:
    """The liveliest graphs of panels with one query, in the order of their dashboards."""
    drawn = []
    for dashboard in (DASHBOARDS["kprobe-exporter-fleet"], DASHBOARDS["kprobe-exporter-agent"]):
        for panel in panels(dashboard):
            if panel["type"] != "timeseries" or len(panel["targets"]) > 1:
                continue
            lines = the_lines(server, panel)
            if len(lines) > 1:
                drawn.append((picture.lively(lines, logarithmic=logarithmic(panel)), the_graph(panel, lines)))
    least = sorted(drawn, reverse=True)[GRAPHS - 1]
    return [graph for lively, graph in drawn if (lively, graph) >= least]


def the_graph(panel: Any, lines: list[Line]) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    return picture.graph(panel["title"], unit, lines, logarithmic=logarithmic(panel))


def logarithmic(panel: Any) -> bool:
    custom = panel["fieldConfig"]["defaults"]["custom"]
    return bool(custom.get("scaleDistribution", {}).get("type") == "log")


def the_heatmap(server: Prometheus, title: str, probe: str) -> str:
    panel = by_title("kprobe-exporter-probe", title)
    unit = panel["options"]["yAxis"]["unit"]
    return picture.heatmap(f"{title} of {probe}", unit, the_lines(server, panel, probe))


def the_lines(server: Prometheus, panel: Any, probe: str = ".+") -> list[Line]:
    """The lines of a panel with one query, for the last two minutes."""
    (target,) = panel["targets"]
    found = server.over(asked(target["expr"], probe), 120, 2)
    return [Line(legend(target["legendFormat"], one.labels), one.finite) for one in found if one.finite]


def by_title(uid: str, title: str) -> Any:
    (panel,) = [panel for panel in panels(DASHBOARDS[uid]) if panel["title"] == title]
    return panel


def legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), form)
