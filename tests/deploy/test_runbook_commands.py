"""The runbook's commands use existing names: the unit, namespace, paths and ports of deploy/, our options.

tests/kernel/test_runbook.py runs the traces among them, and test_pod.py the commands in the agent's pod.
"""

import re
import shlex
import subprocess

import click
import pytest

from kprobe_exporter.agent.interference import MEANING
from kprobe_exporter.cli import main
from tests.deploy.manifests import KUBERNETES, only, rendered
from tests.vm import ROOT

RUNBOOK = (ROOT / "docs/runbook.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", RUNBOOK, re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
CODE = [*LINES, *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", RUNBOOK, flags=re.DOTALL))]
"""Every command, including those within sentences."""

UNIT = "kprobe_exporter"
DEFAULTS = (ROOT / "deploy/systemd/kprobe_exporter.default").read_text()
SYSTEMD = (ROOT / "deploy/systemd/README.md").read_text()
PORT = "10435"


def found(pattern: str) -> list[str]:
    """The matches of a pattern's one group in all commands."""
    return [match for code in CODE for match in re.findall(pattern, code)]


def commands() -> list[list[str]]:
    """The words after ``kprobe-exporter``, or after the command that replaces it in a container."""
    texts = found(r"(?:^|; |^(?:kubectl|docker) .*python3 -m )kprobe[-_]exporter (.*)$")
    return [shlex.split(text, comments=True) for text in texts if text != "…"]


def test_there_are_commands() -> None:
    assert len(LINES) >= 35
    assert len(commands()) >= 25


def test_the_unit_is_the_one_that_is_installed() -> None:
    assert (ROOT / f"deploy/systemd/{UNIT}.service").exists()
    units = found(r"journalctl (?:.* )?-u (\S+)") + found(r"systemctl \w+ ([^\s;]+)")
    assert len(units) >= 6
    assert set(units) == {UNIT}


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_and_its_options_exist(words: list[str]) -> None:
    """Each command of the program exists, and accepts these options and this number of arguments."""
    name, *arguments = words
    command = main.get_command(click.Context(main), name)
    assert command, name
    with click.Context(command, **main.context_settings) as context:  # click keeps its option for help
        _, rest, _ = command.make_parser(context).parse_args(list(arguments))
    assert rest == []


def test_a_configuration_is_where_each_deployment_has_it() -> None:
    paths = {path for words in commands() for path in words if path.startswith("/etc/")}
    assert paths == {"/etc/kprobe_exporter"}
    [path] = paths
    assert f'\nOPTIONS="--config {path} ' in DEFAULTS
    assert f" {path}/getting_started.yaml\n" in SYSTEMD
    (container,) = only(rendered(KUBERNETES / "base"), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert path in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert f" /image{path}/" in (ROOT / "Dockerfile").read_text()


def test_kubectl_finds_the_namespace_and_the_pods() -> None:
    objects = rendered(KUBERNETES / "base")
    namespace = only(objects, "Namespace")["metadata"]["name"]
    lines = [code for code in CODE if code.startswith("kubectl ")]
    assert len(lines) >= 5
    for line in lines:
        assert line.startswith(f"kubectl -n {namespace} "), line
    labels = only(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    chosen = found(r"-l (\S+)")
    assert chosen
    assert set(chosen) <= {f"{name}={value}" for name, value in labels.items()}
    assert f'daemonset="{only(objects, "DaemonSet")["metadata"]["name"]}"' in RUNBOOK


def test_in_a_container_only_what_its_image_has_is_run() -> None:
    """In a container, only the image's entry point is run: no shell, no curl, and no script of ours."""
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    program = " ".join(re.findall(r'"(.*?)"', entry))
    inside = [*found(r"kubectl .* exec .*-- (.*)"), *found(r"docker exec -it kprobe-exporter (.*)")]
    assert len(inside) >= 2
    assert {words.rpartition(" ")[0] for words in inside} == {program}


def test_ports_are_the_agents() -> None:
    ports = found(r"localhost:(\d+)") + found(r"port-forward \S+ (\d+)")
    assert len(ports) >= 4
    assert set(ports) == {PORT}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_a_script(block: str) -> None:
    done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_fault_has_advice_and_none_is_made_up() -> None:
    section = RUNBOOK.partition("## KprobeExporterFault\n")[2].partition("\n## ")[0]
    advice = section.partition("**Do.**")[2]
    named = [name for line in re.findall(r"^- (.*?): ", advice, re.MULTILINE) for name in line.split(", ")]
    assert sorted(name.strip("`") for name in named) == sorted(MEANING)
