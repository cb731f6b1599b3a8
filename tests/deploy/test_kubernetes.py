"""The manifests are valid, request no more privilege than the agent needs, and use names that exist."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from kprobe_exporter.cli.run import run
from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from tests.deploy.manifests import COMPONENTS, KUBERNETES, OVERLAYS, crd_schema, only, references, rendered
from tests.support.kubernetes import CUSTOM, NEWEST, OLDEST
from tests.vm import ROOT

DEPLOYED = ["base", *(f"overlays/{name}" for name in OVERLAYS)]

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

deployed = pytest.mark.parametrize("directory", DEPLOYED)


def daemonset(directory: str) -> Any:
    return only(rendered(KUBERNETES / directory), "DaemonSet")


def agent(directory: str) -> Any:
    (container,) = daemonset(directory)["spec"]["template"]["spec"]["containers"]
    return container


def test_each_component_has_an_overlay_that_adds_it_to_the_base() -> None:
    assert {"apparmor", "hostpid", "otlp", "selinux", "tls"} <= set(COMPONENTS)
    assert set(OVERLAYS) == {*COMPONENTS, "production"}


PULLED = f"registry.example.com/monitoring/kprobe-exporter:{VERSION}"


def test_the_overlay_for_production_names_what_its_comments_and_the_readme_build_and_push() -> None:
    assert agent("overlays/production")["image"] == PULLED
    assert agent("base")["image"] == f"kprobe-exporter:{VERSION}"
    for file in ("overlays/production/kustomization.yaml", "README.md"):
        text = (KUBERNETES / file).read_text()
        for command in (
            f"docker build --tag {PULLED} .",
            f"docker push {PULLED}",
            "kubectl apply -k deploy/kubernetes/overlays/production",
        ):
            assert re.search(rf"^(#   )?{re.escape(command)}$", text, re.MULTILINE), (file, command)


@pytest.mark.parametrize("others", [(), ("tls",)])
def test_the_overlay_for_production_does_without_the_operator_where_its_comment_is_a_line(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    text = (KUBERNETES / "overlays/production/kustomization.yaml").read_text()
    changed = text.replace("\n# components: ", "\ncomponents: ")
    assert changed != text
    kustomization = yaml.safe_load(changed)
    assert kustomization["components"] == ["../../components/without-operator"]
    here = os.path.relpath(KUBERNETES, tmp_path)
    kustomization["resources"] = [f"{here}/base"]
    kustomization["components"] = [f"{here}/components/{name}" for name in ("without-operator", *others)]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    assert not [item for item in rendered(tmp_path) if item["apiVersion"] == CUSTOM]


@deployed
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_each_object_is_valid_in_the_strict_schema(directory: str, version: str) -> None:
    """A kind without a schema is an error, and so is an unknown field."""
    if directory.endswith("apparmor"):
        version = max(version, "1.30")  # the first with this field
    objects = [item for item in rendered(KUBERNETES / directory) if item["apiVersion"] != CUSTOM]
    assert len(objects) >= 7
    for item in objects:
        kubernetes_validate.validate(item, version, strict=True)


def test_the_strict_schema_finds_what_is_wrong() -> None:
    item = daemonset("base")
    item["spec"]["template"]["spec"]["containers"][0]["readOnly"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(item, NEWEST, strict=True)
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        kubernetes_validate.validate({"apiVersion": CUSTOM, "kind": "PodMonitor"}, NEWEST, strict=True)


@deployed
def test_custom_resources_are_valid_by_their_definitions(directory: str) -> None:
    found = [item for item in rendered(KUBERNETES / directory) if item["apiVersion"] == CUSTOM]
    expected = [] if directory.endswith("without-operator") else ["PodMonitor", "PrometheusRule"]
    assert sorted(item["kind"] for item in found) == expected
    for item in found:
        jsonschema.validate(item, crd_schema(item["kind"]), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "honourLabels"), True),
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "interval"), "15 seconds"),
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "relabelings", 0, "action"), "rename"),
        ("PodMonitor", ("spec", "selectors"), {}),
        ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "for_"), "5m"),
        ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "for"), "five minutes"),
    ],
)
def test_the_definitions_find_what_is_wrong(kind: str, path: tuple[Any, ...], value: Any) -> None:
    item = only(rendered(KUBERNETES / "base"), kind)
    part = item
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(item, crd_schema(kind), cls=jsonschema.Draft202012Validator)


@deployed
def test_the_agent_has_no_privilege_but_its_uid(directory: str) -> None:
    pod = daemonset(directory)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "initContainers"} & pod.keys()
    assert pod.get("hostPID", False) is directory.endswith(("hostpid", "programs"))
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]}
            | ({"add": ["SYS_PTRACE"]} if directory.endswith("programs") else {}),
        }
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        assert writable == ["/tracefs"]
    (tracefs,) = (volume for volume in pod["volumes"] if volume["name"] == "tracefs")
    assert tracefs["hostPath"]["path"] == "/sys/kernel/tracing"


@deployed
def test_no_right_is_granted_and_the_namespace_admits_the_pod(directory: str) -> None:
    objects = rendered(KUBERNETES / directory)
    assert not [item["kind"] for item in objects if "Role" in item["kind"]]
    assert only(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    labels = only(objects, "Namespace")["metadata"]["labels"]
    # The levels baseline and restricted refuse a hostPath volume.
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


@deployed
def test_every_name_that_is_used_is_there(directory: str) -> None:
    objects = rendered(KUBERNETES / directory)
    there = {(item["kind"], item["metadata"]["name"]) for item in objects}
    pod = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    by_hand = {("Secret", "kprobe-exporter-tls")} if "tls" in directory else set()
    assert references(pod) - by_hand <= there
    assert ("ServiceAccount", pod["serviceAccountName"]) in there
    assert ("PriorityClass", pod["priorityClassName"]) in there
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == volumes
    namespace = only(objects, "Namespace")["metadata"]["name"]
    for item in objects:
        if item["kind"] not in ("Namespace", "PriorityClass"):
            assert item["metadata"]["namespace"] == namespace, item["kind"]


@deployed
def test_service_monitor_and_policy_select_the_pods_and_their_port(directory: str) -> None:
    objects = rendered(KUBERNETES / directory)
    template = only(objects, "DaemonSet")["spec"]["template"]
    labels = template["metadata"]["labels"]
    (port,) = template["spec"]["containers"][0]["ports"]
    assert (port["name"], port["containerPort"]) == ("metrics", 10435)

    service = only(objects, "Service")["spec"]
    assert (service["clusterIP"], service["selector"]) == ("None", labels)
    assert [found["targetPort"] for found in service["ports"]] == [port["name"]]
    policy = only(objects, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert [found["port"] for rule in policy["ingress"] for found in rule["ports"]] == [port["name"]]
    if not directory.endswith("without-operator"):
        monitor = only(objects, "PodMonitor")["spec"]
        assert monitor["selector"]["matchLabels"] == labels
        (endpoint,) = monitor["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["honorLabels"]) == (port["name"], True)
        # The rules and dashboards select the agents by job="kprobe-exporter".
        assert labels[monitor["jobLabel"]] == "kprobe-exporter"


@deployed
def test_it_reaches_every_node_and_is_replaced_a_few_at_a_time(directory: str) -> None:
    spec = daemonset(directory)["spec"]
    assert spec["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert spec["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    # The pod is scheduled on a full node as well.
    assert "preemptionPolicy" not in only(rendered(KUBERNETES / directory), "PriorityClass")
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}


@deployed
def test_the_kubelet_asks_what_the_agent_answers(directory: str) -> None:
    container = agent(directory)
    asked = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert {name: probe["path"] for name, probe in asked.items()} == {
        "startupProbe": "/-/healthy",
        "livenessProbe": "/-/healthy",
        "readinessProbe": "/-/ready",
    }
    scheme = "HTTPS" if directory.endswith("tls") else "HTTP"
    assert {probe.get("scheme", "HTTP") for probe in asked.values()} == {scheme}
    assert {probe["port"] for probe in asked.values()} == {"metrics"}


@deployed
def test_memory_is_what_the_benchmark_measured_with_room_above(directory: str) -> None:
    rows = (ROOT / "docs/benchmarks.md").read_text().splitlines()
    most = [float(found) for row in rows for found in re.findall(r"([\d.]+) MB \|", row)]
    # All label sets that `max_series_total` allows by default, each of them a histogram.
    extreme = [row for row in rows if row.startswith("| 20,000, ") and "histograms" in row]
    measured = [
        float(found) for row in rows if row not in extreme for found in re.findall(r"([\d.]+) MB \|", row)
    ]
    assert extreme
    resources = agent(directory)["resources"]
    request, limit = (
        int(resources[kind]["memory"].removesuffix("Mi")) * 1.048576 for kind in ("requests", "limits")
    )
    assert request >= (max(measured) if "otlp" in directory else 64)
    assert limit >= 2.5 * max(measured)
    assert limit >= 1.3 * max(most)
    assert "cpu" in resources["requests"]
    assert "cpu" not in resources["limits"]


@deployed
def test_the_configuration_passes_check_and_is_named_file_by_file(directory: str, tmp_path: Path) -> None:
    data = only(rendered(KUBERNETES / directory), "ConfigMap")["data"]
    given = [arg.partition("=")[2] for arg in agent(directory)["args"] if arg.startswith("--config=")]
    assert {Path(name).name for name in given} == set(data)
    for name, text in data.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    config = load([tmp_path / Path(name).name for name in given], DECODERS, {})
    assert config.warnings == ()
    assert len(config.probes) >= 8


@deployed
def test_the_arguments_are_those_of_the_command(directory: str) -> None:
    command, *arguments = agent(directory)["args"]
    assert command == "run"
    with click.Context(run) as context:
        parsed, rest, _ = run.make_parser(context).parse_args(list(arguments))
    assert rest == []
    assert parsed["tracefs"] == "/tracefs"
    assert parsed["form"] == "json"


def test_the_configuration_to_begin_with_is_the_packaged_one() -> None:
    copy = KUBERNETES / "base/config/probes.yaml"
    assert copy.read_text() == DEFAULT.read_text(), (
        f"cp {os.path.relpath(DEFAULT, ROOT)} {copy.relative_to(ROOT)}"
    )


def test_tls_reaches_the_agent_and_its_scraper(tmp_path: Path) -> None:
    objects = rendered(KUBERNETES / "overlays/tls")
    container = agent("overlays/tls")
    (file,) = (arg.partition("=")[2] for arg in container["args"] if arg.startswith("--web.config.file="))
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {
        volume["name"]: volume for volume in daemonset("overlays/tls")["spec"]["template"]["spec"]["volumes"]
    }
    assert (
        volumes[mounts[str(Path(file).parent)]]["secret"]["secretName"]
        == only(objects, "Secret")["metadata"]["name"]
    )
    web = yaml.safe_load((KUBERNETES / "components/tls" / Path(file).name).read_text())
    for key in ("cert_file", "key_file"):
        place = Path(web["tls_server_config"][key])
        assert volumes[mounts[str(place.parent)]]["secret"]["secretName"] == "kprobe-exporter-tls"
    (endpoint,) = only(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    # The documented command that creates the secret gives it every key that is used.
    text = (KUBERNETES / "components/tls/kustomization.yaml").read_text()
    command = re.search(r"create secret generic kprobe-exporter-tls((?: |\\\n#|--from-file=[\w.]+)+)", text)
    assert command
    made = set(re.findall(r"--from-file=([\w.]+)", command[1]))
    assert made == {"tls.crt", "tls.key", "ca.crt"}
    assert endpoint["tlsConfig"]["ca"]["secret"]["key"] in made
    assert {Path(name).name for name in web["tls_server_config"].values()} <= made
    assert (
        "server_name: " + endpoint["tlsConfig"]["serverName"]
        in (ROOT / "deploy/prometheus/prometheus-kubernetes.yml").read_text()
    )


def test_otlp_opens_the_way_to_the_collector_only() -> None:
    policies = {
        directory: only(rendered(KUBERNETES / directory), "NetworkPolicy")["spec"]
        for directory in ("base", "overlays/otlp")
    }
    assert policies["base"]["egress"] == []
    ports = [{port["port"] for port in rule["ports"]} for rule in policies["overlays/otlp"]["egress"]]
    assert ports == [{53, 5353}, {4317, 4318}]
    dns, collector = policies["overlays/otlp"]["egress"]
    assert "to" not in dns  # a cluster's DNS may be anywhere
    assert len(collector["to"]) == 1
    names = {item["name"] for item in agent("overlays/otlp")["env"]}
    assert {"NODE_NAME", "OTEL_EXPORTER_OTLP_HEADERS"} <= names


def test_the_readme_names_each_component() -> None:
    text = (KUBERNETES / "README.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == set(COMPONENTS)


def test_components_can_be_added_to_one_another(tmp_path: Path) -> None:
    """An overlay of a team's own is valid with all components that can be combined."""
    combined = [name for name in COMPONENTS if name != "without-operator"]
    (tmp_path / "probes.yaml").write_text((ROOT / "examples/getting_started.yaml").read_text())
    (documented,) = re.findall(r"```yaml\n(.*?)```", (KUBERNETES / "README.md").read_text(), re.DOTALL)
    kustomization = yaml.safe_load(documented)
    here = os.path.relpath(KUBERNETES, tmp_path)
    assert kustomization["resources"] == ["../../base"]
    kustomization["resources"] = [f"{here}/base"]
    assert {Path(name).name for name in kustomization["components"]} <= set(combined)
    kustomization["components"] = [f"{here}/components/{name}" for name in combined]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    objects = rendered(tmp_path)
    for item in objects:
        if item["apiVersion"] != CUSTOM:
            kubernetes_validate.validate(item, NEWEST, strict=True)
    pod = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    there = {(item["kind"], item["metadata"]["name"]) for item in objects}
    assert references(pod) - {("Secret", "kprobe-exporter-tls")} <= there
    (container,) = pod["containers"]
    assert container["image"] == PULLED
    assert len([arg for arg in container["args"] if arg.startswith("--config=")]) == 3
    assert "exec" in only(objects, "ConfigMap")["data"]["probes.yaml"]
    assert set(only(objects, "ConfigMap")["data"]) == {"probes.yaml", "otlp.yaml", "pods.yaml"}
    assert pod["hostPID"] is True
    assert pod["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert pod["securityContext"]["appArmorProfile"] == {"type": "RuntimeDefault"}
