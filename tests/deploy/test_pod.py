"""The DaemonSet's pod runs as written: podman plays the manifests that kubectl renders, with the image.

What podman 4.3 does not support is removed: the kubelet's probes, ports without a network, and a field of the
API server. The configuration's volume gets the mode that the kubelet gives it.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import needs_tracefs
from tests.deploy.containers import build, container, get, inspect, needs_containers, tool
from tests.deploy.manifests import KUBERNETES, only, rendered
from tests.support.agent_process import Metrics
from tests.support.patience import eventually, patience
from tests.support.private_tracefs import TRACEFS

INSTANCE = "kp_pod"


@pytest.fixture(scope="module")
def image() -> str:
    needs_containers()
    needs_tracefs()
    return build()


@contextmanager
def played(objects: list[Any], image: str, directory: Path) -> Iterator[str]:
    """Run a DaemonSet's pod. Yields the name of its container; on exit, SIGTERM ends it."""
    template = only(objects, "DaemonSet")["spec"]["template"]
    config = only(objects, "ConfigMap")
    # The agents of other tests on this machine use the default instance name.
    (file,) = config["data"]
    config["data"][file] = f"global: {{tracefs_instance: {INSTANCE}}}\n{config['data'][file]}"
    (container,) = template["spec"]["containers"]
    for unknown in ("startupProbe", "livenessProbe", "readinessProbe", "ports"):
        del container[unknown]
    container |= {
        "image": image,
        "imagePullPolicy": "Never",
        "env": [{"name": "NODE_NAME", "value": "node-1"}],
    }
    name = f"kprobe-exporter-{os.getpid()}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": name}}
    played = directory / "pod.yaml"
    played.write_text(yaml.safe_dump_all([config, {**pod, "spec": template["spec"]}]))
    volume = config["metadata"]["name"]
    try:
        tool("podman", "play", "kube", "--start=false", "--network=none", played)
        # The volume's mode lets every user of the container write to the directory.
        Path(tool("podman", "volume", "inspect", "--format={{.Mountpoint}}", volume).stdout.strip()).chmod(
            0o777
        )
        tool("podman", "pod", "start", name)
        yield f"{name}-{container['name']}"
    finally:
        tool("podman", "pod", "rm", "--force", "--time=2", name, check=False)
        tool("podman", "volume", "rm", "--force", volume, check=False)


def test_the_pod_serves_with_its_probes_up_and_stops_within_its_grace_period(
    image: str, tmp_path: Path
) -> None:
    objects = rendered(KUBERNETES / "base")
    grace = only(objects, "DaemonSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    with played(objects, image, tmp_path) as name:

        def ready() -> bool:
            assert inspect(name)["State"]["Running"], tool("podman", "logs", name).stderr
            return get(name, "/-/ready") is not None

        eventually(ready, 60)
        assert get(name, "/-/healthy")
        metrics = Metrics(get(name, "/metrics") or "")
        up = {labels["probe"]: metrics.value("kprobe_up", **labels) for labels in metrics.labels("kprobe_up")}
        assert up["exec"] == up["fork"] == up["oom_kill"] == 1

        state = inspect(name)
        status = Path(f"/proc/{state['State']['Pid']}/status").read_text()
        for line in (
            "CapEff:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ):
            assert line in status
        resident = metrics.value("process_resident_memory_bytes")
        assert resident < 64 * 2**20  # the memory request

        # The runbook's commands for Kubernetes.
        ours = ("podman", "exec", name, "python3", "-m", "kprobe_exporter")
        assert tool(*ours, "check", "/etc/kprobe_exporter").stdout.endswith("metrics\n")
        assert "/tracefs" in tool(*ours, "doctor").stdout

        tool("podman", "stop", f"--time={grace}", name)
        assert inspect(name)["State"]["ExitCode"] == 0
        assert '"message": "stopped"' in tool("podman", "logs", name).stderr
    assert not (TRACEFS / "instances" / INSTANCE).exists()


CALLS = 23
CALL = f"import os\nfor _ in range({CALLS}): os.getppid()"


def test_the_pod_probes_libraries_of_the_node_and_of_a_container(image: str, tmp_path: Path) -> None:
    """The same function of two files: a probe counts the calls of its own file."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    libc = next(line.split()[-1] for line in maps if line.endswith("/libc.so.6"))
    sleeping = container("--entrypoint=python3", arguments=("-c", "import time; time.sleep(600)"))
    with sleeping as other:
        (tmp_path / "probes.yaml").write_text(f"""
global: {{tracefs_instance: {INSTANCE}}}
probes:
  - {{name: node, attach: "uprobe:/host{libc}:getppid"}}
  - {{name: container, attach: "uprobe:/proc/{inspect(other)["State"]["Pid"]}/root{libc}:getppid"}}
""")
        with with_the_hosts_pids(KUBERNETES / "overlays/programs", tmp_path) as name:
            eventually(lambda: get(name, "/-/ready"), 60)
            before = hits(name, "node")
            tool("podman", "exec", other, "python3", "-c", CALL)
            eventually(lambda: hits(name, "container") == CALLS)
            for _ in range(CALLS):
                os.getppid()
            eventually(lambda: hits(name, "node") - before >= CALLS)
            assert hits(name, "container") == CALLS


@contextmanager
def with_the_hosts_pids(directory: Path, config: Path) -> Iterator[str]:
    """Run a DaemonSet's container as `played` does, which cannot share process ids with the host."""
    pod = only(rendered(directory), "DaemonSet")["spec"]["template"]["spec"]
    assert pod["hostPID"] is True
    (agent,) = pod["containers"]
    there = {volume["name"]: volume.get("hostPath", {}).get("path", config) for volume in pod["volumes"]}
    volumes = [
        f"--volume={there[mount['name']]}:{mount['mountPath']}:{'ro' if mount.get('readOnly') else 'rw'}"
        for mount in agent["volumeMounts"]
    ]
    rights = agent["securityContext"]["capabilities"]
    options = [f"--cap-drop={name}" for name in rights["drop"]] + [
        f"--cap-add={name}" for name in rights["add"]
    ]
    options += ["--read-only", "--security-opt=no-new-privileges", "--pid=host"]
    with container(*options, *volumes, arguments=agent["args"]) as name:
        yield name


def hits(name: str, probe: str) -> float:
    return Metrics(get(name, "/metrics") or "").value("kprobe_hits_total", probe=probe)


NODE = """
set -e
mount --make-rshared /
cd "$0"
mkdir tracefs; mkfifo bound unmounted
unshare --mount --propagation slave sh -ec '
    mount --rbind /sys/kernel/tracing tracefs; mount --make-rprivate tracefs
    echo >bound; read -r _ <unmounted
    cat tracefs/tracing_on
' &
read -r _ <bound
umount /sys/kernel/tracing
ls /sys/kernel/tracing | wc -l
echo >unmounted
wait $!
"""
"""A node in a mount namespace of its own, and in it a container without mount propagation."""


def test_an_unmount_on_the_node_does_not_reach_the_tracefs_of_a_running_pod(tmp_path: Path) -> None:
    needs_containers()
    needs_tracefs()
    (mount,) = (m for m in container_mounts() if m["mountPath"] == "/tracefs")
    assert mount.get("mountPropagation", "None") == "None"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", NODE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(60))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() in (["0", "0"], ["0", "1"])  # entries on the node; tracing_on in the pod


def container_mounts() -> list[Any]:
    (container,) = only(rendered(KUBERNETES / "base"), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    mounts: list[Any] = container["volumeMounts"]
    return mounts
