"""The commands of the README, docs/command-line.md and others give what is shown, on a real kernel."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kprobe_exporter.cli import main
from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.patience import eventually
from tests.support.readme import README, ROOT, block, reads
from tests.vm.kernels import HIST

LIVE = """
probes:
  - {name: open, attach: kprobe:do_sys_open}
  - {name: fork, attach: kprobe:_do_fork}
  - {name: entry, attach: kprobe:vfs_write+4}
  - {name: exec, attach: ["kretprobe:begin_new_exe", "tracepoint:sched:sched_process_exec"]}
  - {name: switch, attach: tracepoint:sched:sched_swich, optional: true}
"""
"""The file with mistakes for which the documents show the output of `check --live`."""

OF_OTHERS_TOO = re.compile(r"kprobe_(hits|return_errors|return_value)_|.*curl")
"""Samples to which other processes add, or that depend on how programs were built."""

CURL = shutil.which("curl")
"""The program by which the README scrapes; if it is not installed, its own samples are not required."""

needs_kprobes = pytest.mark.needs("kprobe_events")


def words(command: str) -> list[str]:
    """Return the arguments of a `kprobe-exporter` command, with absolute paths of the project's files."""
    program, *arguments = shlex.split(command)
    assert program == "kprobe-exporter"
    return [str(ROOT / word) if (ROOT / word).exists() else word for word in arguments]


def run(start_agent: StartAgent, command: str, *options: str) -> AgentProcess:
    """Start the agent of a command, but on a free port."""
    subcommand, *arguments = words(command)
    assert subcommand == "run"
    return start_agent(None, *arguments, *options)


def invoke(command: str) -> Result:
    return CliRunner().invoke(main, words(command))


def shell(command: str) -> None:
    """Run a command in bash, without a pipe of the test's and without a look-up of a locale."""
    subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


@needs_kprobes
@reads(
    configured="kprobe-exporter run --config examples/getting_started.yaml",
    failing="for i in ",
    piping="echo hello",
)
def test_the_first_example_gives_what_is_shown(
    start_agent: StartAgent, configured: str, failing: str, piping: str
) -> None:
    agent = run(start_agent, configured)
    shell(failing)
    shell(piping)
    if CURL:
        shell(f"curl {agent.address}/metrics")
    shown = block('kprobe_up{probe="open"}').splitlines(keepends=True)
    lines = [line for line in shown if '"curl"' not in line or CURL]
    assert len(lines) >= 8
    found = [agent.scrape()]

    def all_there() -> bool:
        found.append(agent.scrape())
        return not any(wrong(line, found[-1]) for line in lines)

    with suppress(AssertionError):  # the agent reads the kernel's counts at most once a second
        eventually(all_there, 10)
    print(found[-1].text)
    assert [line for line in lines if wrong(line, found[-1])] == []


def wrong(line: str, found: Metrics) -> bool:
    """Return whether the sample is missing or has another value, or a lower one where other processes add."""
    ((sample, value),) = Metrics(line).items()
    if OF_OTHERS_TOO.match(line):
        return found.get(sample, 0) < (value if CURL else min(value, 23))
    return found.get(sample) != value


@pytest.mark.needs("kprobe_events", "uprobe_events")
@reads(command="kprobe-exporter run --config examples/packs")
def test_the_packs_at_once(start_agent: StartAgent, command: str) -> None:
    metrics = run(start_agent, command).scrape()
    probes = load([Path(words(command)[-1])], DECODERS).probes
    up = {labels["probe"]: metrics.value("kprobe_up", **labels) for labels in metrics.labels("kprobe_up")}
    assert up == {probe.name: float(probe.enabled) for probe in probes}


@needs_kprobes
@pytest.mark.needs(HIST)
def test_check_live_says_what_is_shown(tmp_path: Path) -> None:
    """What is shown is of a kernel with hist triggers, which are one of its plans."""
    (tmp_path / "probes.yaml").write_text(LIVE)
    result = CliRunner().invoke(main, ["check", "--live", str(tmp_path / "probes.yaml")])
    print(result.stdout)
    table = result.stdout.partition("\n\n")[2]
    documents = README + (ROOT / "docs/faq.md").read_text()
    assert block("would be up; down:", documents).splitlines() == [
        line.rstrip() for line in table.splitlines()
    ]
    assert result.exit_code == 1


@reads(
    started="kprobe-exporter run", hup="kill -HUP", post="POST /-/reload", cleanup="kprobe-exporter cleanup"
)
def test_an_agent_is_reloaded_and_what_it_leaves_is_removed(
    start_agent: StartAgent, tracefs: Path, started: str, hup: str, post: str, cleanup: str
) -> None:
    assert "`--web.enable-lifecycle`" in README
    agent = run(start_agent, started, "--web.enable-lifecycle")
    before = reloaded(agent)
    shell(hup.replace("PID", str(agent.pid)))
    eventually(lambda: reloaded(agent) > before)
    before = reloaded(agent)
    method, path = post.split()
    with urllib.request.urlopen(urllib.request.Request(agent.address + path, method=method)) as answer:
        assert answer.read() == b"reloaded\n"
    assert reloaded(agent) > before
    agent.end(signal.SIGKILL)
    assert (tracefs / "instances/kprobe_exporter").exists()
    assert invoke(cleanup).exit_code == 0
    assert not (tracefs / "instances/kprobe_exporter").exists()


def reloaded(agent: AgentProcess) -> float:
    return agent.scrape().value("kprobe_exporter_config_last_reload_success_timestamp_seconds")


@needs_kprobes
@reads(command="kprobe-exporter list")
def test_list_finds_what_is_asked_for(tracefs: Path, command: str) -> None:
    result = invoke(command)
    assert result.exit_code == 0
    assert "kprobe:tcp_connect" in result.stdout


@needs_kprobes
@reads(command="kprobe-exporter doctor")
def test_doctor_finds_nothing_that_hinders(tracefs: Path, command: str) -> None:
    assert invoke(command).exit_code == 0


@reads(diff="kprobe-exporter diff --list")
def test_two_saved_kernels_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diff: str) -> None:
    monkeypatch.chdir(tmp_path)
    for saved in (ROOT / "tests/fixtures/kernels").iterdir():
        (tmp_path / saved.name).symlink_to(saved)
    result = invoke(diff)
    assert result.exit_code == 1
    assert block("skb:kfree_skb.reason") == f"$ {diff}\n{result.stdout}"


@needs_kprobes
@reads(save="kprobe-exporter doctor --save", check="kprobe-exporter check --against")
def test_a_configuration_is_checked_against_a_saved_kernel(
    tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: str, check: str
) -> None:
    """What is saved on this kernel gives the states that `check --live` gives on it."""
    monkeypatch.chdir(tmp_path)
    kernel = Path("kernels") / f"{os.uname().release}.tar.xz"
    kernel.parent.mkdir()
    shutil.copy(ROOT / "examples/getting_started.yaml", "probes.yaml")
    assert invoke(save.replace("$(uname -r)", os.uname().release)).exit_code == 0
    assert kernel.stat().st_size < 3 << 20
    against = invoke(check.replace("kernels/*.tar.xz", str(kernel)) + " --json")
    live = CliRunner().invoke(main, ["check", "--live", "--json", "probes.yaml"])
    print(against.output, repr(against.exception), live.output)
    assert (against.exit_code, live.exit_code) == (0, 0)
    states = [re.findall(r'"state": "(\w+)"', result.stdout) for result in (against, live)]
    assert states[0] == states[1] != []
