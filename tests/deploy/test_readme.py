"""The README's commands with `make run`, docker and kubectl work as printed, or by equivalent tools here.

Servers listen in a network namespace of the test, in which the README's ports are free.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.conftest import needs_tracefs
from tests.deploy.containers import build, inspect, needs_containers, tool
from tests.deploy.manifests import crd_schema, only, rendered
from tests.support.agent_process import Metrics
from tests.support.kubernetes import CUSTOM, NEWEST
from tests.support.patience import eventually, patience
from tests.support.private_tracefs import TRACEFS
from tests.support.readme import ROOT, reads

INSTANCE = TRACEFS / "instances/kprobe_exporter"
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")
"""Variables by which an outer make influences an inner one."""

Network = tuple[str, ...]


@pytest.fixture
def network() -> Iterator[Network]:
    """Yield the prefix that runs a command in a network namespace whose only interface is the loopback."""
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("the README's commands are run as root")
        pytest.skip("only root can do this")
    keeper = "ip link set lo up && echo up && exec sleep infinity"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", keeper], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"up\n"
            yield "nsenter", f"--net=/proc/{process.pid}/ns/net"
        finally:
            process.kill()


@pytest.fixture
def tracefs() -> Iterator[None]:
    """Assert that no agent's instance exists before the test and after it."""
    needs_tracefs()
    assert not INSTANCE.exists(), "an agent runs on this machine already: end it"
    yield
    assert not INSTANCE.exists()


def ask(network: Network, command: str) -> str:
    """The answer that curl gets, or Python if curl is not installed; empty if there is none."""
    program, url = shlex.split(command)
    assert program == "curl"
    curl = ["curl", "--silent", "--fail", url]
    asking = curl if shutil.which("curl") else [sys.executable, "-c", ASK, f"http://{url}"]
    return subprocess.run([*network, *asking], capture_output=True, text=True, check=False).stdout


def working(metrics: Metrics) -> int:
    """The number of probes that are up."""
    return sum(metrics.value("kprobe_up", **labels) == 1 for labels in metrics.labels("kprobe_up"))


@reads(command="make run", then="curl ")
def test_make_run(network: Network, tracefs: None, tmp_path: Path, command: str, then: str) -> None:
    log = tmp_path / "log"
    environment = {key: value for key, value in os.environ.items() if key not in OF_MAKE}
    with log.open("w") as file:
        make = subprocess.Popen(
            [*network, *shlex.split(command)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:

        def answers() -> str:
            assert make.poll() is None, log.read_text()
            return ask(network, then)

        eventually(answers, 120)
        eventually(lambda: working(Metrics(ask(network, then))) >= 4)
        # The agent gets the signal, since make itself would end by it.
        (agent,) = Path(f"/proc/{make.pid}/task/{make.pid}/children").read_text().split()
        os.kill(int(agent), signal.SIGTERM)
        assert make.wait(patience(30)) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        if make.poll() is None:
            os.killpg(make.pid, signal.SIGTERM)
            make.wait(patience(30))


@reads(building="docker build", running="docker run", asking="curl ")
def test_docker(network: Network, tracefs: None, building: str, running: str, asking: str) -> None:
    """buildah builds the image under the README's name, and podman runs it with the README's options."""
    needs_containers()
    *_, tag_option, tag, context = shlex.split(building)
    assert shlex.split(building) == ["docker", "build", tag_option, tag, context]
    assert (tag_option, context) == ("--tag", ".")
    _, run, *options, image = shlex.split(running)
    assert image == tag
    (published,) = [options[at + 1] for at, word in enumerate(options) if word == "--publish"]
    outside, _ = published.split(":")
    assert f":{outside}/" in asking
    (name,) = [options[at + 1] for at, word in enumerate(options) if word == "--name"]
    # The port is opened in the test's network namespace, since publishing it would require more of podman.
    at = options.index("--publish")
    options[at : at + 2] = ["--network=host"]

    tool("podman", "tag", build(), tag)
    tool(*network, "podman", run, *options, image)
    try:
        eventually(lambda: ask(network, asking), 60)
        eventually(lambda: working(Metrics(ask(network, asking))) >= 4)
        config = inspect(name)["HostConfig"]
        assert config["ReadonlyRootfs"]
        assert "no-new-privileges" in config["SecurityOpt"]
        capabilities = Path(f"/proc/{inspect(name)['State']['Pid']}/status").read_text()
        assert re.findall(r"^Cap\w+:\t(\w+)$", capabilities, re.MULTILINE) == ["0" * 16] * 5
        tool("podman", "stop", "--time=20", name)
        assert inspect(name)["State"]["ExitCode"] == 0
    finally:
        tool("podman", "rm", "--force", "--time=5", name)
        tool("podman", "untag", tag)


@reads(applying="kubectl apply", waiting="kubectl -n")
def test_kubectl(applying: str, waiting: str) -> None:
    """The objects to apply are valid, and contain the DaemonSet that the next command waits for."""
    *apply, directory = shlex.split(applying)
    assert apply == ["kubectl", "apply", "-k"]
    objects = rendered(ROOT / directory)
    for item in objects:
        if item["apiVersion"] == CUSTOM:
            jsonschema.validate(item, crd_schema(item["kind"]), cls=jsonschema.Draft202012Validator)
        else:
            kubernetes_validate.validate(item, NEWEST, strict=True)
    metadata = only(objects, "DaemonSet")["metadata"]
    waited = ["-n", metadata["namespace"], "rollout", "status", "daemonset", metadata["name"]]
    assert shlex.split(waiting) == ["kubectl", *waited]
