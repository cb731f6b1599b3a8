"""The dashboards equal their sources' output, satisfy Grafana's schema, and are usable by a reader."""

import copy
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from grafana import pack
from grafana.__main__ import DIRECTORY, texts
from grafana.queries import quantile
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Probe
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.stacks import Profile
from tests.support.dashboard_schema import PYROSCOPE, panels, parts, queries, schema
from tests.support.pprof import read

DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(DIRECTORY.glob("*.json"))}
ROOT = DIRECTORY.parents[1]
PROVISIONING = DIRECTORY.parent / "provisioning"

OF_PYROSCOPE = {"type": "grafana-pyroscope-datasource", "uid": "${pyroscope}"}

each = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)


def test_they_are_what_their_sources_write() -> None:
    assert {path.name: path.read_text() for path in DIRECTORY.iterdir()} == texts()


def test_the_command_writes_the_same(tmp_path: Path) -> None:
    """Another process, with other hash values, writes the same files."""
    program = "import grafana.__main__ as g, pathlib, sys; g.DIRECTORY = pathlib.Path(sys.argv[1]); g.main()"
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=DIRECTORY.parents[1], check=True)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == texts()


class TestSchema:
    @each
    def test_grafana_knows_all_that_is_in_it(self, dashboard: Any, tmp_path: Path) -> None:
        for (plugin, kind), found in parts(dashboard).items():
            check = judge(schema(plugin, kind), found, tmp_path)
            assert check.returncode == 0, check.stdout

    @pytest.mark.parametrize(
        ("break_it", "said"),
        [
            (lambda d: d.update(refresh=30), "refresh"),
            (lambda d: d.update(uuid="x"), "uuid"),
            (lambda d: first(d, "timeseries")["options"]["legend"].update(placement="left"), "placement"),
            (lambda d: first(d, "timeseries")["fieldConfig"]["defaults"]["custom"].update(width=1), "width"),
            (lambda d: first(d, "heatmap")["options"].update(calculat=False), "calculat"),
            (lambda d: first(d, "stat")["options"].update(graphMode="bars"), "graphMode"),
            (lambda d: first(d, "table")["options"].update(cellHeight="tiny"), "cellHeight"),
        ],
        ids=lambda of: of if isinstance(of, str) else "",
    )
    def test_a_mistake_is_found(self, break_it: Any, said: str, tmp_path: Path) -> None:
        dashboard = copy.deepcopy(DASHBOARDS["kprobe-exporter-probe"])
        break_it(dashboard)
        checks = [judge(schema(*key), found, tmp_path) for key, found in parts(dashboard).items()]
        assert [said in check.stdout for check in checks if check.returncode] == [True]

    def test_a_mistake_in_a_query_to_pyroscope_is_found(self, tmp_path: Path) -> None:
        target = next(panels(DASHBOARDS["kprobe-exporter-profiles"]))["targets"][0]
        check = judge(schema(*PYROSCOPE), [{**target, "profileType": "cpu"}], tmp_path)
        assert "profileType" in check.stdout


def judge(schema_file: Path, found: list[Any], directory: Path) -> subprocess.CompletedProcess[str]:
    """The result of check-jsonschema for all of these values."""
    files: list[Path] = []
    for number, one in enumerate(found):
        files.append(directory / f"{schema_file.stem}-{number}.json")
        files[-1].write_text(json.dumps(one))
    command = [str(Path(sys.executable).with_name("check-jsonschema")), "--schemafile", str(schema_file)]
    return subprocess.run([*command, *files], capture_output=True, text=True, check=False)


def first(dashboard: Any, kind: str) -> Any:
    return next(panel for panel in panels(dashboard) if panel["type"] == kind)


@each
class TestDashboard:
    def test_it_has_an_address_that_stays_and_no_id(self, dashboard: Any) -> None:
        assert dashboard["uid"].startswith("kprobe-exporter-")
        assert "id" not in dashboard
        assert "version" not in dashboard
        assert dashboard["description"]

    def test_its_variables_choose_the_data(self, dashboard: Any) -> None:
        variables = {one["name"]: one for one in dashboard["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        assert variables["datasource"]["query"] == "prometheus"
        wanted = {"datasource", "job", "instance"}
        if dashboard["uid"] in ("kprobe-exporter-fleet", "kprobe-exporter-probe"):
            wanted.add("probe")
            assert variables["probe"]["multi"] == (dashboard["uid"] != "kprobe-exporter-probe")
        if dashboard["uid"] == "kprobe-exporter-profiles":
            wanted |= {"pyroscope", "agent"}
            assert variables["pyroscope"]["query"] == OF_PYROSCOPE["type"]
            assert variables["agent"]["datasource"] == OF_PYROSCOPE
        assert set(variables) == wanted
        for name in ("job", "instance"):
            assert (variables[name]["multi"], variables[name]["includeAll"]) == (True, True)
            assert variables[name]["datasource"] == {"type": "prometheus", "uid": "${datasource}"}

    def test_it_links_to_the_others(self, dashboard: Any) -> None:
        (link,) = dashboard["links"]
        assert (link["type"], link["includeVars"], link["keepTime"]) == ("dashboards", True, True)
        assert set(link["tags"]) <= set(dashboard["tags"])

    def test_links_to_a_probe_lead_to_its_dashboard(self, dashboard: Any) -> None:
        targets = re.findall(r"/d/([a-z-]+)\?", json.dumps(dashboard))
        assert set(targets) <= set(DASHBOARDS)
        # A probe's own dashboard has no links to probes.
        assert bool(targets) == (dashboard["uid"] != "kprobe-exporter-probe")

    def test_the_name_of_an_agent_leads_to_its_page(self, dashboard: Any) -> None:
        pages = {
            "kprobe-exporter-probe": "probe/${probe:percentencode}",
            "kprobe-exporter-agent": "recordings",
        }
        urls = re.findall(r'"url": "(http://[^,]*)"', json.dumps(dashboard))
        page = pages.get(dashboard["uid"])
        assert urls == ([f'http://${{__data.fields[\\"Agent\\"]}}/{page}'] if page else [])

    def test_no_two_panels_overlap_and_none_hangs_over(self, dashboard: Any) -> None:
        places = [panel["gridPos"] for panel in dashboard["panels"]]
        for place in places:
            assert place["w"] > 0 < place["h"]
            assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        for one, other in combinations(places, 2):
            beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert beside or below, (one, other)

    def test_each_line_is_filled(self, dashboard: Any) -> None:
        widths = Counter[int]()
        for panel in dashboard["panels"]:
            widths[panel["gridPos"]["y"]] += panel["gridPos"]["w"]
        assert set(widths.values()) == {24}

    def test_each_panel_says_what_it_shows(self, dashboard: Any) -> None:
        shown = list(panels(dashboard))
        assert len(shown) >= 8
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids)
        assert len({panel["title"] for panel in shown}) == len(shown)
        for panel in shown:
            assert panel["description"].endswith("."), panel["title"]
            assert len(panel["description"]) > 25
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["datasource"] in ({"type": "prometheus", "uid": "${datasource}"}, OF_PYROSCOPE)

    def test_each_graph_has_a_legend_of_labels_and_not_of_all(self, dashboard: Any) -> None:
        for panel in panels(dashboard):
            if panel["type"] in ("timeseries", "heatmap"):
                for target in panel["targets"] if panel["datasource"] != OF_PYROSCOPE else ():
                    assert target["legendFormat"] not in ("", "__auto"), panel["title"]
                    for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                        assert label in re.split(r"\W+", target["expr"]) or label == "instance"

    def test_queries_heed_the_variables_and_the_zoom(self, dashboard: Any) -> None:
        for target in queries(dashboard):
            expr = target["expr"]
            for selector in re.findall(r"\w+{([^}]*)}", expr):
                # An alert on absent agents has neither label.
                none = "|" if "alertname" in selector else ""
                assert f'job=~"$job{none}",instance=~"$instance{none}"' in selector, expr
            ranges = set(re.findall(r"\[([^]]+)\]", expr))
            assert ranges <= {"$__rate_interval", "1h"}, expr
            # A raw counter is not informative.
            for metric in re.findall(r"\w+_(?:total|bucket)", expr):
                for before in re.findall(rf"(\w*)\(?{metric}{{", expr):
                    assert before in ("rate", "increase"), expr

    def test_each_query_of_a_panel_has_a_letter_of_its_own(self, dashboard: Any) -> None:
        for panel in panels(dashboard):
            letters = [target["refId"] for target in panel["targets"]]
            assert len(set(letters)) == len(letters)


SHIPPED = [ROOT / "kprobe_exporter/config/default.yaml", *sorted(pack.PACKS.glob("*.yaml"))]


def metrics(exprs: list[str]) -> set[str]:
    """The names of the metrics in queries, without a histogram's suffixes."""
    return set(re.findall(r"\b(kprobe_\w+?)(?:_bucket|_sum|_count)?{", "\n".join(exprs)))


def of(probe: Probe) -> set[str]:
    """The names of a probe's own metrics."""
    return {f"kprobe_{metric.name}" for metric in probe.metrics}


def selected(probes: Sequence[Probe], exprs: list[str]) -> set[str]:
    """The names of the probes that queries select; each matcher must select one."""
    names = set[str]()
    for matcher in re.findall(r'probe=~?"([^"]+)"', "\n".join(exprs)):
        matched = {probe.name for probe in probes if re.fullmatch(matcher, probe.name)}
        assert matched, matcher
        names |= matched
    return names


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_metric_of_a_shipped_configuration_is_shown(path: Path) -> None:
    """A pack's dashboard shows its metrics; any dashboard may show those of the packaged configuration."""
    of_pack = DASHBOARDS.get(pack.uid(path.stem))
    shown = [of_pack] if of_pack else DASHBOARDS.values()
    named = metrics([target["expr"] for dashboard in shown for target in queries(dashboard)])
    wanted = set[str]().union(*(of(probe) for probe in load([path], DECODERS).probes))
    assert wanted - named == set()


@pytest.mark.parametrize("name", [path.stem for path in sorted(pack.PACKS.glob("*.yaml"))])
def test_each_probe_of_a_pack_is_shown(name: str) -> None:
    """By its own metrics, or by its name in a query that is not about the whole pack."""
    path = pack.PACKS / f"{name}.yaml"
    probes = load([path], DECODERS).probes
    exprs = [target["expr"] for target in queries(DASHBOARDS[pack.uid(name)])]
    every = {expr for expr in exprs if len(selected(probes, [expr])) == len(probes)}
    assert len(every) >= 3
    exprs = [expr for expr in exprs if expr not in every]
    shown = {probe.name for probe in probes if probe.metrics and of(probe) <= metrics(exprs)}
    assert shown | selected(probes, exprs) == {probe.name for probe in probes}


@pytest.mark.parametrize("name", pack.TITLES)
def test_each_query_in_a_comment_is_a_panel(name: str) -> None:
    """A query without a title, or without a sentence above its title, is not ignored."""
    text = (pack.PACKS / f"{name}.yaml").read_text()
    lines = [line.strip() for line in re.findall(r"^  #  +(.+)", text, re.MULTILINE)]
    described = list(pack.described(text))
    assert " ".join(panel.expr for panel in described) == " ".join(lines)
    titles = [panel["title"] for panel in panels(DASHBOARDS[pack.uid(name)])]
    assert {panel.title for panel in described} <= set(titles)


@each
def test_its_queries_are_promql(dashboard: Any, promtool: str, tmp_path: Path) -> None:
    exprs = [target["expr"].replace("$__rate_interval", "5m") for target in queries(dashboard)]
    rules = [{"record": f"query:{place}", "expr": expr} for place, expr in enumerate(exprs)]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    check = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr


class TestPanelsOfAComment:
    COMMENT = """\
probes:
  # Some words: and
  # more.
  # Title, and unit:
  #   topk(10,
  #     sum by (le, comm) (rate(kprobe_x_bucket{probe="x"}[5m])))
  # Other words.
  # Other title:
  #   rate(kprobe_y_total[5m])
  # Words without a query.
  - name: x
    # Not above the probe:
    #   kprobe_z
"""

    def test_words_title_and_query(self) -> None:
        assert list(pack.described(self.COMMENT)) == [
            (
                "x",
                "Title, and unit",
                "Some words: and more.",
                'topk(10, sum by (le, comm) (rate(kprobe_x_bucket{probe="x"}[5m])))',
            ),
            ("x", "Other title", "Other words.", "rate(kprobe_y_total[5m])"),
        ]

    @pytest.mark.parametrize(
        ("expr", "unit"),
        [
            ("histogram_quantile(0.99, sum by (le) (rate(kprobe_a_seconds_bucket[5m])))", "s"),
            ("rate(kprobe_a_seconds_sum[5m])", "short"),
            ("increase(kprobe_a_total[5m])", "short"),
            ("rate(kprobe_a_bytes_sum[5m]) / rate(kprobe_a_bytes_count[5m])", "bytes"),
            ("rate(kprobe_a_bytes_total[5m])", "Bps"),
            ("rate(kprobe_hits_total[5m])", "cps"),
        ],
    )
    def test_unit(self, expr: str, unit: str) -> None:
        assert pack.unit(expr) == unit

    def test_a_quantile_is_that_of_other_dashboards(self) -> None:
        """Of native histograms, too."""
        written = (
            'histogram_quantile(0.99, sum by (device, le) (rate(kprobe_a_seconds_bucket{probe="x"}[5m])))'
        )
        assert pack.query(written) == quantile(0.99, "kprobe_a_seconds", "device", 'probe="x"')


def test_the_types_of_profiles_are_those_of_what_alloy_asks_the_agent_for() -> None:
    """Pyroscope names a profile by Alloy's block, its sample type and its period type, each with a unit."""
    alloy = (ROOT / "deploy/alloy/config.alloy").read_text()
    files = [*pack.PACKS.glob("*.yaml"), ROOT / "examples/time.yaml"]
    probes = [probe for path in files for probe in load([path], DECODERS).probes]
    counted = {probe.name: probe.stacks.weigh for probe in probes if probe.stacks is not None}
    served = {
        ":".join((name, *value_types(Profile(name, weigh, {}, 0, 0, 1)))) for name, weigh in counted.items()
    }
    asked = {
        target["profileTypeId"]
        for panel in panels(DASHBOARDS["kprobe-exporter-profiles"])
        if panel["datasource"] == OF_PYROSCOPE
        for target in panel["targets"]
    }
    assert asked == served
    assert {name.partition(":")[0] for name in asked} == set(re.findall(r'profile\.custom "(\w+)"', alloy))


def value_types(profile: Profile) -> tuple[str, str]:
    """The last sample type of a profile, and the type of its period, each with its unit."""
    found = read(profile)
    types = found.sample_type[-1], found.period_type
    last, period = (f"{found.string_table[one.type]}:{found.string_table[one.unit]}" for one in types)
    return last, period


def test_histograms_are_heatmaps_with_exemplars() -> None:
    shown = [panel for panel in panels(DASHBOARDS["kprobe-exporter-probe"]) if panel["type"] == "heatmap"]
    metrics = [re.findall(r"\w+_bucket", panel["targets"][0]["expr"]) for panel in shown]
    assert metrics == [["kprobe_return_value_bucket"], ["kprobe_duration_seconds_bucket"]]
    for panel in shown:
        (target,) = panel["targets"]
        assert (target["format"], target["exemplar"]) == ("heatmap", True)
        assert panel["options"]["calculate"] is False


@pytest.mark.parametrize(("name", "number"), [("dashboard", 12), ("packs", 10)])
def test_a_picture_in_the_documents_is_of_panels_that_there_are(name: str, number: int) -> None:
    titles = {panel["title"] for dashboard in DASHBOARDS.values() for panel in panels(dashboard)}
    picture = ElementTree.parse(ROOT / f"docs/images/{name}.svg")
    shown = [text.text for text in picture.iter() if text.get("font-size") in ("11", "12")]
    assert len(shown) == number
    assert [title for title in shown if not {title, (title or "").partition(" of ")[0]} & titles] == []


class TestProvisioning:
    def test_of_the_data_source(self) -> None:
        config = yaml.safe_load((PROVISIONING / "datasources/prometheus.yaml").read_text())
        (source,) = config["datasources"]
        assert config["apiVersion"] == 1
        assert (source["type"], source["access"], source["isDefault"]) == ("prometheus", "proxy", True)

    def test_of_the_dashboards(self) -> None:
        config = yaml.safe_load((PROVISIONING / "dashboards/kprobe_exporter.yaml").read_text())
        (provider,) = config["providers"]
        assert config["apiVersion"] == 1
        assert provider["type"] == "file"
        assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
