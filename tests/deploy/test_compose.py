"""The Compose file is valid, and names ports, files and settings that exist.

No test starts it, since a Docker engine and the images of Grafana and of the collector are unavailable.
test_image.py runs the agent's own image; its configuration is checked here.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from tests.vm import ROOT

DEPLOY = ROOT / "deploy"
FILE = DEPLOY / "docker-compose.yml"
COMPOSE = yaml.safe_load(FILE.read_text())
SERVICES = COMPOSE["services"]
COLLECTOR = yaml.safe_load((DEPLOY / "otel-collector/config.yaml").read_text())
PROMETHEUS = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])


def judged(file: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("check-jsonschema")
    command = [str(tool), "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_is_valid_by_the_schema_of_compose() -> None:
    assert judged(FILE).returncode == 0, judged(FILE).stdout


def test_the_schema_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(FILE.read_text().replace("cap_drop:", "capdrop:", 1))
    assert judged(wrong).returncode == 1


def test_there_are_the_agent_prometheus_grafana_and_a_collector() -> None:
    assert set(SERVICES) == {"agent", "prometheus", "grafana", "otel-collector"}
    for name, service in SERVICES.items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        assert not service.get("privileged")
        # No port is reachable from another machine.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_every_file_and_volume_that_is_mounted_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            elif not source.startswith("/"):
                assert source in COMPOSE["volumes"]
        for config in service.get("configs", []):
            assert config["source"] in COMPOSE["configs"]
    assert (DEPLOY / SERVICES["agent"]["build"]["context"] / "Dockerfile").exists()


def test_the_agent_has_no_capability_and_its_configuration_passes_check(tmp_path: Path) -> None:
    agent = SERVICES["agent"]
    assert agent["cap_drop"] == ["ALL"]
    assert "/sys/kernel/tracing:/tracefs" in agent["volumes"]
    packaged, own = (arg.partition("=")[2] for arg in agent["command"] if arg.startswith("--config="))
    assert own == agent["configs"][0]["target"]
    assert packaged == "/etc/kprobe_exporter/default.yaml"
    text = COMPOSE["configs"]["agent"]["content"]
    assert "$" not in text  # Compose would replace it
    file = tmp_path / "otlp.yaml"
    file.write_text(text)
    file.chmod(0o600)
    config = load([ROOT / "kprobe_exporter/config/default.yaml", file], DECODERS, {})
    assert config.warnings == ()
    assert config.otlp
    assert config.otlp.endpoint == "http://otel-collector:4318"


def test_prometheus_scrapes_the_agent_under_the_name_that_rules_and_dashboards_know(
    promtool: str, tmp_path: Path
) -> None:
    ours = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (job,) = PROMETHEUS["scrape_configs"]
    assert job.pop("static_configs") == [{"targets": ["agent:10435"]}]
    (expected,) = ours["scrape_configs"]
    assert expected.pop("static_configs")
    assert job == expected
    assert PROMETHEUS["rule_files"] == ours["rule_files"]
    (tmp_path / "prometheus.yml").write_text(COMPOSE["configs"]["prometheus"]["content"])
    (tmp_path / "rules.yaml").symlink_to(DEPLOY / "prometheus/rules.yaml")
    run = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_grafana_is_provisioned_with_the_data_source_and_the_dashboards() -> None:
    grafana = SERVICES["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    provisioning = DEPLOY / "../grafana/provisioning"
    assert mounts["../grafana/provisioning"] == "/etc/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "${PROMETHEUS_URL}"
    assert grafana["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/kprobe_exporter.yaml").read_text())["providers"]
    assert mounts["../grafana/dashboards"] == provider["options"]["path"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DEPLOY / "../grafana/dashboards" / home.name).exists()


@pytest.mark.parametrize("signal", ["traces", "logs", "metrics"])
def test_the_collector_takes_each_signal_through_parts_that_are_there(signal: str) -> None:
    pipelines: dict[str, Any] = COLLECTOR["service"]["pipelines"]
    for kind in ("receivers", "processors", "exporters"):
        assert pipelines[signal][kind]
        assert set(pipelines[signal][kind]) <= set(COLLECTOR[kind])
    # The limiter is first, so that refused data is not processed.
    assert pipelines[signal]["processors"][0] == "memory_limiter"
    endpoint = COLLECTOR["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert endpoint == "0.0.0.0:4318"


def test_no_part_of_the_collector_is_unused() -> None:
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in COLLECTOR["service"]["pipelines"].values() for name in pipeline[kind]}
        assert used == set(COLLECTOR[kind])
    limiter = COLLECTOR["processors"]["memory_limiter"]
    limit = int(SERVICES["otel-collector"]["mem_limit"].removesuffix("m"))
    assert limiter["spike_limit_mib"] < limiter["limit_mib"] < limit
