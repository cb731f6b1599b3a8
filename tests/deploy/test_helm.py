"""The Helm chart, rendered and linted by Helm's own library, gives the objects that kustomize gives."""

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from tests.deploy.manifests import COMPONENTS, KUBERNETES, OVERLAYS, crd_schema, only, references, rendered
from tests.support.kubernetes import CUSTOM, NEWEST
from tests.vm import ROOT

if not os.environ.get("CI"):
    pytest.importorskip("helm_python", reason="no helm-python-sdk, which has no wheel for this processor")
import helm_python as helm

CHART = ROOT / "deploy/helm/kprobe-exporter"
README = (ROOT / "deploy/helm/README.md").read_text()

RUNBOOK = yaml.safe_load((KUBERNETES / "components/runbook/settings.yaml").read_text())["data"]["url"]
WITHOUT_OPERATOR = {"podMonitor": {"enabled": False}, "prometheusRule": {"enabled": False}}
VALUES: Mapping[str, dict[str, Any]] = {
    "base": {},
    **{f"overlays/{name}": {"components": [name]} for name in COMPONENTS},
    "overlays/production": {"image": {"repository": "registry.example.com/monitoring/kprobe-exporter"}},
    "overlays/runbook": {"prometheusRule": {"runbook": RUNBOOK}},
    "overlays/without-operator": WITHOUT_OPERATOR,
}
"""By the directory that kustomize renders, the values that give the same."""

ALL = [name for name in COMPONENTS if name not in ("runbook", "without-operator")]


def templated(values: dict[str, Any], chart: Path = CHART) -> list[Any]:
    with helm.Chart.load(chart) as loaded:
        texts = loaded.render(values, name="release", namespace="kprobe-exporter").values()
    return [item for text in texts for item in yaml.load_all(text, yaml.CSafeLoader) if item]


def comparable(objects: list[Any]) -> dict[tuple[str, str], Any]:
    """By kind and name, the objects without what rolls a configuration out, and with parsed data."""
    found = {}
    for item in objects:
        if item["kind"] == "DaemonSet":
            template = item["spec"]["template"]
            template["metadata"].pop("annotations", None)
            for volume in template["spec"]["volumes"]:
                for kind, key in (("configMap", "name"), ("secret", "secretName")):
                    if kind in volume:
                        volume[kind][key] = unsuffixed(volume[kind][key])
        if item["kind"] == "Secret":
            item["data"] = {
                name: base64.b64decode("".join(data.split())) for name, data in item["data"].items()
            }
        if item["kind"] == "ConfigMap":
            item["data"] = {name: yaml.safe_load(text) for name, text in item["data"].items()}
        item["metadata"]["name"] = unsuffixed(item["metadata"]["name"])
        found[item["kind"], item["metadata"]["name"]] = item
    return found


def unsuffixed(name: str) -> str:
    return re.sub(r"-[0-9a-z]{10}$", "", name)


def kustomized(directory: Path) -> list[Any]:
    """The objects of kustomize; a chart does not make the namespace that it is installed in."""
    return [item for item in rendered(directory) if item["kind"] != "Namespace"]


def valid(objects: list[Any]) -> None:
    for item in objects:
        if item["apiVersion"] == CUSTOM:
            jsonschema.validate(item, crd_schema(item["kind"]), cls=jsonschema.Draft202012Validator)
        else:
            kubernetes_validate.validate(item, NEWEST, strict=True)


def agent(values: dict[str, Any]) -> Any:
    (container,) = only(templated(values), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    return container


def test_each_overlay_has_its_values() -> None:
    assert VALUES.keys() == {"base", *(f"overlays/{name}" for name in OVERLAYS)}


@pytest.mark.parametrize("directory", VALUES)
def test_chart_equals_kustomize(directory: str) -> None:
    objects = templated(VALUES[directory])
    valid(objects)
    assert comparable(objects) == comparable(kustomized(KUBERNETES / directory))


def test_chart_with_all_components_equals_kustomize(tmp_path: Path) -> None:
    here = os.path.relpath(KUBERNETES, tmp_path)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{here}/base"],
        "components": [f"{here}/components/{name}" for name in ALL],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    expected = comparable(kustomized(tmp_path))
    for components in (ALL, ALL[::-1]):
        assert comparable(templated({"components": components})) == expected


@pytest.mark.parametrize("values", [{}, {"components": ALL}, WITHOUT_OPERATOR], ids=str)
def test_lint(values: dict[str, Any]) -> None:
    report = helm.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [found["error"] for found in report["messages"]] == ["icon is recommended"]


def test_package_is_complete_without_the_checkout(tmp_path: Path) -> None:
    """It has the files to which the chart's links lead."""
    archive = helm.package(CHART, destination=tmp_path)
    helm.expand(tmp_path, archive)
    chart = tmp_path / "kprobe-exporter"
    assert not [path for path in chart.rglob("*") if path.is_symlink()]
    values = {"components": ALL, "packs": ["disk"]}
    assert templated(values, chart) == templated(values)


def test_own_configuration_and_packs(tmp_path: Path) -> None:
    config = {"probes": [{"name": "execs", "attach": "tracepoint:sched:sched_process_exec"}]}
    objects = templated({"config": config, "packs": ["disk", "network"], "components": ["otlp"]})
    data = only(objects, "ConfigMap")["data"]
    args = only(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["args"]
    files = [Path(arg.partition("=")[2]).name for arg in args if arg.startswith("--config=")]
    assert sorted(files) == sorted(data) == ["disk.yaml", "network.yaml", "otlp.yaml", "probes.yaml"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    loaded = load([tmp_path / name for name in files], DECODERS, {})
    names = {probe.name for probe in loaded.probes}
    assert {"execs", "fsync_slow"} < names
    assert len(names) > 10
    pack = (ROOT / "examples/packs/disk.yaml").read_text()
    assert data["disk.yaml"] == pack


def test_changed_configuration_is_rolled_out() -> None:
    def annotations(values: dict[str, Any]) -> Any:
        return only(templated(values), "DaemonSet")["spec"]["template"]["metadata"]["annotations"]

    assert annotations({}) == annotations({"podMonitor": {"interval": "30s"}})
    assert annotations({}) != annotations({"packs": ["disk"]})


def test_values_of_the_pod() -> None:
    resources = {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}}
    values = {
        "image": {"repository": "example.com/agent", "tag": "1.2.3", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "extraArgs": ["--web.enable-lifecycle"],
        "resources": resources,
        "nodeSelector": {"pool": "batch"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClass": {"create": False, "name": "system-node-critical"},
        "components": ["otlp"],
    }
    objects = templated(values)
    valid(objects)
    pod = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "batch"}
    assert pod["tolerations"] == values["tolerations"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert "PriorityClass" not in {item["kind"] for item in objects}
    (container,) = pod["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("example.com/agent:1.2.3", "Always")
    assert container["args"][-1] == "--web.enable-lifecycle"
    assert container["resources"] == resources


def test_values_of_secrets_and_of_the_collector() -> None:
    values = {
        "components": ["tls", "otlp"],
        "tls": {"secretName": "issued"},
        "otlp": {"endpoint": "https://otlp.example.com:4318", "namespace": "tracing", "secretName": "token"},
    }
    objects = templated(values)
    valid(objects)
    pod = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert ("Secret", "issued") in references(pod)
    assert {"name": "token", "key": "headers", "optional": True} in [
        item["valueFrom"].get("secretKeyRef") for item in pod["containers"][0]["env"]
    ]
    (endpoint,) = only(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == "issued"
    otlp = yaml.safe_load(only(objects, "ConfigMap")["data"]["otlp.yaml"])["otlp"]
    assert otlp["endpoint"] == "https://otlp.example.com:4318"
    collector = only(objects, "NetworkPolicy")["spec"]["egress"][-1]["to"]
    assert collector == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tracing"}}}]


def test_values_of_monitoring() -> None:
    values = {
        "podMonitor": {"interval": "30s", "labels": {"release": "prometheus"}},
        "prometheusRule": {"labels": {"release": "prometheus"}},
        "networkPolicy": {"namespace": "metrics"},
    }
    objects = templated(values)
    valid(objects)
    monitor = only(objects, "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "30s"
    for item in (monitor, only(objects, "PrometheusRule")):
        assert item["metadata"]["labels"].items() > {"release": "prometheus"}.items()
    (rule,) = only(objects, "NetworkPolicy")["spec"]["ingress"]
    assert rule["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "metrics"}}}
    ]
    assert "NetworkPolicy" not in {item["kind"] for item in templated({"networkPolicy": {"enabled": False}})}


@pytest.mark.parametrize(
    "wrong",
    [
        {"component": ["tls"]},
        {"components": ["without-operator"]},
        {"packs": ["no_such_pack"]},
        {"tls": {"enabled": True}},
        {"resources": "64Mi"},
        {"image": {"repository": ""}},
    ],
    ids=str,
)
def test_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema(chart.merge_values(wrong))


def test_schema_names_the_components_and_packs_that_exist() -> None:
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values({}))
        schema: Any = chart.schema
    properties = schema["properties"]
    assert properties["components"]["items"]["enum"] == ALL
    packs = sorted(path.stem for path in (ROOT / "examples/packs").glob("*.yaml"))
    assert properties["packs"]["items"]["enum"] == packs


def test_readme_has_a_row_for_each_value_and_an_example_that_works() -> None:
    with helm.Chart.load(CHART) as chart:
        values = set(chart.values)
    rows = [re.findall(r"`(\w+)`", cells) for cells in re.findall(r"^\| (`.*?) \|", README, re.MULTILINE)]
    assert {name for row in rows for name in row} == values
    (example,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    objects = templated(yaml.safe_load(example))
    valid(objects)
    assert set(only(objects, "ConfigMap")["data"]) == {
        "probes.yaml",
        "disk.yaml",
        "network.yaml",
        "pods.yaml",
    }


def test_readme_names_files_that_exist() -> None:
    for name in re.findall(r"deploy/[\w/.-]+", README):
        assert (ROOT / name).exists(), name
