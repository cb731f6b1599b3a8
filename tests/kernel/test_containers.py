"""Short-lived processes in real cgroups get the labels of their container and pod, and of no other."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kprobe_exporter.config.files import DEFAULT
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.compiling import compiled
from tests.support.containers import PATHS, PROGRAM, container_id, group, write_logs
from tests.support.mounts import mounted
from tests.support.patience import eventually

# The tests mount over /var/log, so they may run only on a machine of their own, a VM.
pytestmark = pytest.mark.needs("kprobe_events")

TIMES = 23
MOUNTS = {"v2": ["-t", "cgroup2"], "v1": ["-t", "cgroup", "-o", "none,name=systemd"]}
HOST = ("", "", "")


CONFIG = """
probes:
  - name: open
    attach: kprobe:do_sys_openat2
    filter: 'comm == "short"'
    metrics:
      - counter: opened_total
        labels:
          container: {field: tid, decode: {container: short}}
          pod: {field: tid, decode: pod}
          namespace: {field: tid, decode: namespace}
"""


NAME = "kprobe_exporter"
"""Of the agent's instance. Threads are followed in one of their own."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("program") / "short", PROGRAM, "-static")


@pytest.fixture(params=MOUNTS)
def hierarchy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A hierarchy of cgroups, mounted for the test; the test's cgroups are removed at teardown."""
    where = tmp_path / "cgroups"
    where.mkdir()
    with mounted(where, *MOUNTS[request.param]):
        before = {path for path in where.rglob("*") if path.is_dir()}
        yield where
        made = {path for path in where.rglob("*") if path.is_dir()} - before
        for path in sorted(made, reverse=True):
            path.rmdir()


@pytest.fixture
def logs() -> Iterator[Path]:
    """A new /var/log with the directories that a kubelet keeps in it."""
    with mounted(Path("/var/log"), "-t", "tmpfs") as where:
        for name in ("pods", "containers"):
            (where / name).mkdir()
        yield where


def opened(agent: AgentProcess) -> dict[tuple[str, str, str], float]:
    """Return the opens by container, namespace and pod."""
    metrics = agent.scrape()
    return {
        (one["container"], one["namespace"], one["pod"]): metrics.value("kprobe_opened_total", **one)
        for one in metrics.labels("kprobe_opened_total")
    }


def test_short_lived_processes(start_agent: StartAgent, program: Path, hierarchy: Path, logs: Path) -> None:
    """Processes that move themselves into a container, as a runtime does, and live 5 ms get its labels."""
    pods = [number for number, runtime in enumerate(PATHS, 1) if not runtime.startswith("docker")]
    for number in pods:
        write_logs(logs, number, f"web-{number}", "shop")
    agent = start_agent(CONFIG)
    expected: dict[tuple[str, ...], int] = {HOST: len(PATHS)}
    for number, path in enumerate(PATHS.values(), 1):
        procs = group(hierarchy, path, number) / "cgroup.procs"
        subprocess.run([program, procs, str(TIMES)], check=True)
        name = ("shop", f"web-{number}") if number in pods else ("", "")
        expected[container_id(number)[:12], *name] = TIMES
    assert opened(agent) == expected


@pytest.mark.parametrize("nested", [False, True])
def test_who_may_make_cgroups_chooses_no_label(
    start_agent: StartAgent, program: Path, hierarchy: Path, logs: Path, nested: bool
) -> None:
    """Cgroups in a container and in a delegated unit, named after a victim's container and pod."""
    write_logs(logs, 2, "victim", "shop")
    outer = PATHS["docker"].format(id=container_id(1), uid="", uid_="")
    agent = start_agent(CONFIG + ("global: {nested_containers: true}\n" if nested else ""))
    for outside in (outer, "system.slice/jobs.service", "lxc.payload.web"):
        procs = group(hierarchy, f"{outside}/{PATHS['containerd']}", 2) / "cgroup.procs"
        subprocess.run([program, procs, str(TIMES)], check=True)
    victim = (container_id(2)[:12], "shop", "victim")
    if nested:
        assert opened(agent) == {victim: 3 * TIMES, HOST: 3}
    else:
        assert opened(agent) == {(container_id(1)[:12], "", ""): TIMES, HOST: 2 * TIMES + 3}


def test_children_of_what_ran_before(
    start_agent: StartAgent, program: Path, hierarchy: Path, logs: Path
) -> None:
    """In a container that is older than the agent, children that end before a look-up get its labels."""
    write_logs(logs, 7, "old", "shop")
    procs = group(hierarchy, PATHS["containerd"], 7) / "cgroup.procs"
    shell = subprocess.Popen(["/bin/sh"], stdin=subprocess.PIPE, text=True)
    procs.write_text(str(shell.pid))
    agent = start_agent(CONFIG)
    shell.communicate(f"{program} '' {TIMES}\nexit\n")  # the forked agent also holds the pipe open
    subprocess.run([program, "", str(TIMES)], check=True)  # on the host
    assert opened(agent) == {(container_id(7)[:12], "shop", "old"): TIMES, HOST: TIMES}


def test_a_pod_that_is_not_known_yet(
    start_agent: StartAgent, program: Path, hierarchy: Path, logs: Path
) -> None:
    """A pod has no name until the kubelet gives it one, and never gets another pod's."""
    write_logs(logs, 1, "other", "shop")
    agent = start_agent(CONFIG)
    procs = group(hierarchy, PATHS["cri-o"], 2) / "cgroup.procs"
    subprocess.run([program, procs, str(TIMES)], check=True)
    short = container_id(2)[:12]
    assert opened(agent) == {(short, "unknown", "unknown"): TIMES, HOST: 1}
    assert agent.scrape().value("kprobe_exporter_decode_failures_total", decoder="pod") == TIMES
    write_logs(logs, 2, "late", "shop")

    def told() -> bool:
        subprocess.run([program, procs, "1"], check=True)
        return (short, "shop", "late") in opened(agent)

    eventually(told)
    assert {pod for _, _, pod in opened(agent)} == {"unknown", "late", ""}


def test_threads_are_followed_again_after_an_interruption(start_agent: StartAgent, tracefs: Path) -> None:
    agent = start_agent(CONFIG)
    own, threads = (tracefs / f"instances/{name}/events" for name in (NAME, f"{NAME}.threads"))
    enabled = [
        *(threads / name / "enable" for name in ("task/task_newtask", "sched/sched_process_exit")),
        own / "kprobe_exporter/open/enable",
    ]
    # The one that changes what is known of a thread is also enabled softly, before the probe.
    expected = ["1*\n", "1\n", "1\n"]
    assert [path.read_text() for path in enabled] == expected
    for events in (own, threads):
        (events / "enable").write_text("0")
    eventually(lambda: [path.read_text() for path in enabled] == expected)
    assert "the probe 'task:task_newtask': another process disabled it" in agent.output()
    assert agent.scrape().value("kprobe_exporter_faults_total", fault="probe_disabled") >= 3


def test_victim_of_want_of_memory(start_agent: StartAgent, hierarchy: Path, logs: Path) -> None:
    """A process that the kernel kills because memory ran out is counted by its pod."""
    write_logs(logs, 1, "web-1", "shop")
    agent = start_agent(DEFAULT.read_text())
    victim = subprocess.Popen(["/bin/sleep", "infinity"])
    (group(hierarchy, PATHS["containerd"], 1) / "cgroup.procs").write_text(str(victim.pid))
    Path(f"/proc/{victim.pid}/oom_score_adj").write_text("1000")
    Path("/proc/sysrq-trigger").write_text("f")  # kill the process that the kernel would choose
    assert victim.wait() == -signal.SIGKILL
    eventually(lambda: [one["pod"] for one in agent.scrape().labels("kprobe_oom_kills_total")] == ["web-1"])
