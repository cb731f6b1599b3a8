"""The image is small, needs no shell and no capability, and leaves the kernel unchanged.

buildah builds it, and podman runs it as the README's `docker run` does, with the host's tracefs. A VM runs it
on a kernel with kprobes, with the image's files as the agent's root.
"""

import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs_tracefs
from tests.deploy.containers import build, container, get, in_a_vm, inspect, needs_containers, tool
from tests.support.agent_process import Metrics
from tests.support.patience import eventually, patience, within
from tests.support.private_tracefs import TRACEFS
from tests.vm import ROOT

INSTANCE = "kp_image"
SAFE = ("--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only")
CONFIG = f"""
global: {{tracefs_instance: {INSTANCE}}}
probes:
  - name: exec
    attach: tracepoint:sched:sched_process_exec
    fetch: {{file: filename}}
    metrics:
      - counter: execs_total
        help: Programs that were started.
        labels: [file]
"""


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    run = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "")


def test_it_names_public_bases_by_their_tag() -> None:
    text = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^ARG (?:BUILDER|BASE)=(.+)$", text, re.MULTILINE)
    assert len(bases) == 2
    for base in bases:
        assert re.fullmatch(r"docker\.io/library/python:3\.\d+-(slim-)?bookworm", base)


@pytest.fixture(scope="module")
def image() -> str:
    needs_containers()
    return build()


@pytest.fixture(scope="module")
def files(image: str) -> Iterator[Path]:
    """The image as a directory."""
    yield Path(tool("podman", "image", "mount", image).stdout.strip())
    tool("podman", "image", "umount", image)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    file.chmod(0o644)
    return file


@pytest.fixture
def tracefs() -> Iterator[Path]:
    """The host's tracefs; no instance or definition of the test's agent exists before and after."""
    needs_tracefs()
    assert left(TRACEFS) == []
    yield TRACEFS
    assert left(TRACEFS) == []


def left(tracefs: Path) -> list[str]:
    """Instances and definitions of this test's agent."""
    found = [path.name for path in (tracefs / "instances").iterdir()]
    for name in ("kprobe_events", "uprobe_events", "dynamic_events"):
        if (tracefs / name).exists():
            found += (tracefs / name).read_text().splitlines()
    return [line for line in found if INSTANCE in line]


@contextmanager
def agent(config: Path, *options: str) -> Iterator[str]:
    """Run a container until its agent is ready, and yield its name."""
    volumes = (f"--volume={TRACEFS}:/tracefs", f"--volume={config}:/etc/kprobe_exporter/config.yaml:ro")
    arguments = ("run", "--config=/etc/kprobe_exporter/config.yaml")
    with container(*SAFE, *volumes, *options, arguments=arguments) as name:
        eventually(lambda: answers(name), 60)
        yield name


def answers(name: str) -> bool:
    assert inspect(name)["State"]["Running"], tool("podman", "logs", name).stderr
    return get(name, "/-/ready") is not None


def test_its_labels_tell_what_it_is(image: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = inspect(image)["Config"]["Labels"]
    told = {key.removeprefix("org.opencontainers.image."): value for key, value in labels.items()}
    assert told["version"] == project["version"]
    assert told["licenses"] == project["license"]
    assert told["description"] == project["description"]
    assert told["title"] == "kprobe_exporter"


def test_it_runs_one_program_as_uid_0_and_is_stopped_by_sigterm(image: str) -> None:
    config = inspect(image)["Config"]
    assert config["Entrypoint"] == ["python3", "-m", "kprobe_exporter"]
    assert config["Cmd"] == ["run"]
    assert config["User"] == "0"
    assert config["StopSignal"] == "SIGTERM"
    assert config["ExposedPorts"] == {"10435/tcp": {}}


def test_it_is_small(image: str) -> None:
    """Bytes of the unpacked image: in total on a base of Python alone, and without the base."""
    size = inspect(image)["Size"]
    base = next(found for found in _images() if "kprobe-exporter-base-amd64" in found["Names"][0])
    print(f"{size:,} bytes, {size - base['Size']:,} of them ours")
    assert size < 120e6
    assert size - base["Size"] < 65e6


def _images() -> list[Any]:
    found: list[Any] = json.loads(tool("podman", "images", "--format=json").stdout)
    return [image for image in found if image.get("Names")]


def test_there_is_nothing_in_it_but_the_agent(files: Path) -> None:
    ours = files / "opt/kprobe_exporter"
    packages = {path.name for path in ours.iterdir()}
    assert {"kprobe_exporter", "prometheus_client", "pydantic"} <= packages
    assert not packages & {"pip", "setuptools", "Cython", "bin", "pytest"}
    assert not list(ours.rglob("*.c"))
    bill = json.loads((ours / "sbom.cdx.json").read_text())
    installed = {found.metadata["Name"]: found.version for found in distributions(path=[str(ours)])}
    assert installed.pop("kprobe-exporter")
    assert installed == {component["name"]: component["version"] for component in bill["components"]}
    names = ("sh", "bash", "dash", "gcc", "pip3", "apt-get")
    assert [name for name in names if shutil.which(name, path=f"{files}/usr/bin")] == []
    assert [path for path in files.rglob("*") if "wheels" in path.parts or path.suffix == ".whl"] == []


def test_a_start_compiles_nothing(files: Path) -> None:
    """Each module has bytecode that is used without a check of its source (PEP 552)."""
    ours = files / "opt/kprobe_exporter"
    sources = [path for path in ours.rglob("*.py") if "lib2to3" not in path.parts]
    assert len(sources) > 500
    for source in sources:
        compiled = list((source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc"))
        assert len(compiled) == 1, source
        assert int.from_bytes(compiled[0].read_bytes()[4:8], "little") == 0b01


def test_what_others_may_write_is_not_in_it(files: Path) -> None:
    paths = [files / "etc/kprobe_exporter", *(files / "opt").rglob("*")]
    assert [path for path in paths if not path.is_symlink() and path.stat().st_mode & 0o022] == []


def test_as_the_readme_says_it_serves_without_a_capability_and_stops_cleanly(
    image: str, tracefs: Path, config: Path
) -> None:
    began = time.monotonic()
    with agent(config) as name:
        print(f"ready after {time.monotonic() - began:.1f} s")
        for _ in range(5):
            subprocess.run(["/bin/true"], check=True)

        def counted() -> Metrics:
            return Metrics(get(name, "/metrics") or "")

        eventually(lambda: counted().value("kprobe_execs_total", file="/bin/true") >= 5)
        metrics = counted()
        assert metrics.value("kprobe_up", probe="exec") == 1

        pid = inspect(name)["State"]["Pid"]
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert status["Uid"].split() == ["0"] * 4
        assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"  # the runtime's default filter
        mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        options = {mount[4]: mount[5].split(",") for mount in mounts}
        assert "ro" in options["/"]
        assert "/sys/kernel/tracing" not in options

        assert tool("podman", "healthcheck", "run", name).returncode == 0
        doctor = tool("podman", "exec", name, "python3", "-m", "kprobe_exporter", "doctor", "--json")
        checks = {check["name"]: check for check in json.loads(doctor.stdout)}
        assert checks["tracefs"]["evidence"].startswith("/tracefs ")

        began = time.monotonic()
        tool("podman", "stop", f"--time={patience(10):.0f}", name)
        print(f"stopped after {time.monotonic() - began:.1f} s")
        assert inspect(name)["State"]["ExitCode"] == 0  # not the status of podman's SIGKILL
        assert left(tracefs) == []


def test_what_a_killed_container_leaves_the_next_one_removes(image: str, tracefs: Path, config: Path) -> None:
    with agent(config) as name:
        tool("podman", "kill", "--signal=KILL", name)
        eventually(lambda: not inspect(name)["State"]["Running"])
        assert left(tracefs) != []
        with agent(config) as successor:
            tool("podman", "stop", f"--time={patience(10):.0f}", successor)


def test_the_packaged_configuration_has_a_path_of_its_own(image: str, files: Path) -> None:
    packaged = files / "etc/kprobe_exporter/default.yaml"
    assert packaged.readlink() == Path("/opt/kprobe_exporter/kprobe_exporter/config/default.yaml")
    assert tool(
        *("podman", "run", "--rm", "--network=none", *SAFE, image, "check"),
        "/etc/kprobe_exporter/default.yaml",
    ).stdout.endswith("metrics\n")


def test_without_tracefs_one_sentence_says_what_to_mount(image: str) -> None:
    run = tool("podman", "run", "--rm", "--network=none", *SAFE, image, check=False)
    assert run.returncode == 1
    assert "bind-mount the host's /sys/kernel/tracing" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_health_check_fails_without_an_agent_and_imports_none_of_it(image: str) -> None:
    test = inspect(image)["Healthcheck"]["Test"]
    assert test[:2] == ["CMD", "python3"]
    assert "I" in test[2]  # isolated mode: PYTHONPATH, where the agent is, is ignored
    sleeping = container("--entrypoint=python3", arguments=("-c", "import time; time.sleep(60)"))
    with sleeping as name, within(5):  # the time-out of the image's check
        assert tool("podman", "exec", name, *test[1:], check=False).returncode == 1


def test_on_a_kernel_with_kprobes(image: str, files: Path) -> None:
    """The image's command works in a VM, with the image's files as its root and no capability."""
    found = in_a_vm("6.12", files, inspect(image)["Config"])
    metrics = Metrics(found["metrics"])
    targets = {labels["probe"]: labels["target"] for labels in metrics.labels("kprobe_info")}
    assert targets["open"] == "kretprobe:do_sys_openat2"
    assert metrics.value("kprobe_up", probe="open") == 1
    assert metrics.value("kprobe_hits_total", probe="open") > 0
    assert found["status"] == 0
    assert found["after"] == found["before"]
