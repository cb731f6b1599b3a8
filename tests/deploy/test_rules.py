"""The alerts fire when they should and not before, state what to do, and equal the operator's rules."""

import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.recorded_cases import RECORDED
from tests.deploy.rule_cases import CASES, NODE, Case, Series

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus/rules.yaml"
RUNBOOK = (ROOT / "docs/runbook.md").read_text()
PUBLISHED = "https://kprobe-exporter.example/docs/runbook.md#"

GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
OF_MANY = ("KprobeExporterFleetDown", "KprobeExporterAbsent", "KprobeProbeDown")
"""Alerts that concern several machines."""

RECORDS = [rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule]


def accepted(promtool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool, which must find no fault."""
    run = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run


def judged(promtool: str, directory: Path, *tests: dict[str, Any]) -> None:
    """Run these tests of the rules with promtool."""
    file = directory / "test.yaml"
    given = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        # Prometheus runs groups concurrently: an alert may be one interval later than what is recorded.
        "group_eval_order": [group["name"] for group in GROUPS],
        "tests": list(tests),
    }
    file.write_text(json.dumps(given))
    accepted(promtool, "test", "rules", file)


def samples(series: Series) -> list[dict[str, str]]:
    """The series as promtool reads them, with NODE's labels; a series with a job is another target's."""
    return [
        {"series": key if "job=" in key else selector(key, NODE), "values": values}
        for key, values in series.items()
    ]


def selector(key: str, labels: str) -> str:
    name, _, others = key.partition("{")
    return f"{name}{{{labels}{',' if others else ''}{others.removesuffix('}')}}}"


def quiet(alert: str, series: Series, *minutes: int) -> dict[str, Any]:
    never = [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []} for minute in minutes]
    return {"interval": "1m", "input_series": samples(series), "alert_rule_test": never}


def firing(case: Case) -> dict[str, Any]:
    """The alert fires at its minute, with all its labels and texts, and not one minute earlier."""
    rule = ALERTS[case.alert]
    node = {"job": "kprobe-exporter", "instance": "node-1"} if case.of_node else {}
    labels = {**node, **case.labels}
    values = {**case.values, **{f"$labels.{name}": value for name, value in labels.items()}}
    texts = {
        key: re.sub(r"{{ (.*?) }}", lambda found: values[found[1]], text)
        for key, text in rule["annotations"].items()
    }
    expected = {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": texts}
    test = quiet(case.alert, case.fires, case.at - 1, *([case.over] if case.over else []))
    test["alert_rule_test"].append(
        {"eval_time": f"{case.at}m", "alertname": case.alert, "exp_alerts": [expected]}
    )
    return test


class TestAlert:
    def test_each_has_a_case(self) -> None:
        assert [case.alert for case in CASES] == list(ALERTS)

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
    def test_it_fires(self, case: Case, promtool: str, tmp_path: Path) -> None:
        judged(promtool, tmp_path, firing(case))

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
    def test_it_does_not_fire_below_its_threshold(self, case: Case, promtool: str, tmp_path: Path) -> None:
        assert case.quiet
        judged(promtool, tmp_path, *(quiet(case.alert, one.series, *one.minutes) for one in case.quiet))

    def test_promtool_would_see_a_difference(self, promtool: str, tmp_path: Path) -> None:
        case = CASES[0]
        with pytest.raises(AssertionError, match="FAILED"):
            judged(promtool, tmp_path, quiet(case.alert, case.fires, case.at))


class TestRecordingRule:
    def test_each_has_a_case(self) -> None:
        assert list(RECORDED) == RECORDS

    @pytest.mark.parametrize("record", RECORDED)
    def test_it_gives(self, record: str, promtool: str, tmp_path: Path) -> None:
        series, expected = RECORDED[record]
        agent = NODE if record.startswith("instance") else NODE.partition(",")[0]
        given = [
            {"labels": f"{record}{{{agent}{',' * bool(labels)}{labels}}}", "value": value}
            for labels, value in expected.items()
        ]
        test = {"expr": record, "eval_time": "30m", "exp_samples": given}
        judged(
            promtool,
            tmp_path,
            {"interval": "1m", "input_series": samples(series), "promql_expr_test": [test]},
        )

    def test_names_are_level_metric_operation(self) -> None:
        for group in GROUPS:
            for rule in group["rules"]:
                if record := rule.get("record"):
                    level, metric, operation = record.split(":")
                    by = {frozenset(found.split(", ")) for found in re.findall(r"by \((.*?)\)", rule["expr"])}
                    assert {one - {"le"} for one in by} == {frozenset({"job", *level.split("_")})}
                    assert metric in rule["expr"].replace("_total", "").replace("_bucket", "")
                    assert operation.endswith("rate5m")


@pytest.mark.parametrize("name", ALERTS)
class TestAlertTells:
    def test_how_bad_and_what(self, name: str) -> None:
        rule = ALERTS[name]
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["summary"].endswith(".")
        if name not in OF_MANY:
            assert "{{ $labels.instance }}" in rule["annotations"]["summary"]

    def test_where_to_read_on(self, name: str) -> None:
        assert ALERTS[name]["annotations"]["runbook_url"] == PUBLISHED + name.lower()

    def test_what_the_runbook_says(self, name: str) -> None:
        section = sections()[name]
        parts = re.findall(r"^\*\*(.*?)\.\*\*", section, re.MULTILINE)
        assert parts == ["What it means", "See more", "Do"]
        assert "```promql" in section
        assert "kprobe-exporter " in section.partition("**See more.**")[2]


def sections() -> dict[str, str]:
    parts = re.split(r"^## (Kprobe\w+)$", RUNBOOK, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def queries() -> Iterator[str]:
    """The queries of the runbook, one a line."""
    for block in re.findall(r"```promql\n(.*?)```", RUNBOOK, re.DOTALL):
        yield from (line for line in block.splitlines() if line and not line.startswith("#"))


class TestRunbook:
    def test_it_has_no_section_of_an_alert_that_is_gone(self) -> None:
        assert list(sections()) == list(ALERTS)

    def test_its_queries_are_promql(self, promtool: str, tmp_path: Path) -> None:
        rules = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(queries())]
        assert len(rules) >= len(ALERTS)
        file = tmp_path / "queries.yaml"
        file.write_text(json.dumps({"groups": [{"name": "runbook", "rules": rules}]}))
        accepted(promtool, "check", "rules", file)


class TestFiles:
    def test_promtool_accepts_the_rules(self, promtool: str) -> None:
        run = accepted(promtool, "check", "rules", RULES)
        assert run.stderr == ""
        assert f"{len(ALERTS) + len(RECORDS)} rules found" in run.stdout

    def test_promtool_accepts_the_configuration(self, promtool: str) -> None:
        run = accepted(promtool, "check", "config", DEPLOY / "prometheus/prometheus.yml")
        assert "1 rule files found" in run.stdout

    def test_promtool_accepts_the_one_for_kubernetes(self, promtool: str, tmp_path: Path) -> None:
        """Debian's promtool lacks the Kubernetes discovery. It is compared here; promtool checks the rest."""
        config = yaml.safe_load((DEPLOY / "prometheus/prometheus-kubernetes.yml").read_text())
        (job,) = config["scrape_configs"]
        assert job["honor_labels"] is True
        assert job.pop("kubernetes_sd_configs") == [
            {"role": "pod", "selectors": [{"role": "pod", "label": "app.kubernetes.io/name=kprobe-exporter"}]}
        ]
        file = tmp_path / "prometheus.yml"
        file.write_text(json.dumps({**config, "rule_files": [str(RULES)]}))
        accepted(promtool, "check", "config", file)

    def test_the_operator_gets_the_same_rules(self) -> None:
        file = DEPLOY / "kubernetes/base/prometheusrule.yaml"
        made = runpy.run_path(str(ROOT / "scripts/prometheusrule"))["manifest"]()
        assert file.read_text() == made, "scripts/prometheusrule makes it anew"
        manifest = yaml.safe_load(made)
        assert (manifest["apiVersion"], manifest["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
        assert manifest["spec"] == {"groups": GROUPS}
