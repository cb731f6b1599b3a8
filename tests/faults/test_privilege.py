"""The agent needs no privilege except uid 0: it does all of its work confined as container runtimes do."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kprobe_exporter.cli import doctor as doctor  # noqa: PLC0414
from kprobe_exporter.cli import main
from tests.faults.confinement import (
    PROFILE,
    Step,
    apparmor,
    confined,
    default_seccomp,
    mounted_at,
    no_capabilities,
    no_new_privileges,
    read_only,
)
from tests.support.agent_process import AgentProcess, Metrics, running
from tests.support.libc import own_libc
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("kprobe_events")

NUMBER = 23

PROC = Path("/proc")
"""A container has a /proc of its own, of which the runtime masks parts."""

CONFIG = """
probes:
  - name: hits
    attach: kprobe:sys_getppid
  - name: answers
    attach: kretprobe:sys_getppid
    filter: common_pid == {tid}
    metrics: [{{counter: answers_total, labels: [comm, caller]}}]
  - name: syscall
    attach: syscall:getppid
    filter: common_pid == {tid}
    metrics: [{{histogram: getppid_seconds, value: duration}}]
  - name: library
    attach: uprobe:{library}:getppid
    filter: common_pid == {tid}
    metrics: [{{counter: library_total}}]
  - name: in_kernel
    attach: tracepoint:syscalls:sys_enter_getppid
    filter: common_pid == {tid}
    aggregate: kernel
    metrics: [{{counter: in_kernel_total, labels: [comm]}}]
"""

HITS = "kprobe_hits_total"
PROBES = ("hits", "answers", "syscall", "library", "in_kernel")

COUNTS = (
    "kprobe_answers_total",
    "kprobe_getppid_seconds_count",
    "kprobe_library_total",
    "kprobe_in_kernel_total",
)

CONFINED = {
    "no capability": {"CapInh": "0" * 16, "CapPrm": "0" * 16, "CapEff": "0" * 16, "CapBnd": "0" * 16},
    "no new privileges": {"NoNewPrivs": "1"},
    "read-only root": {},
    "seccomp": {"Seccomp": "2"},
    "AppArmor": {},
}
"""The confinements, and how /proc/PID/status shows them."""

Confine = Callable[..., AgentProcess]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of the host's tracefs in a container: outside /sys."""
    (tmp_path / "tracefs").mkdir()
    return tmp_path / "tracefs"


@pytest.fixture
def confine(tmp_path: Path, tracefs: Path, place: Path, as_found: None) -> Iterator[Confine]:
    """Yield a function that starts a command line with the named confinements and its log in a file."""
    with ExitStack() as stack:

        def start(names: set[str], *arguments: str) -> AgentProcess:
            steps: list[Step] = [mounted_at(tracefs, place)]
            if "read-only root" in names:
                steps.append(read_only(place, PROC))
            if "AppArmor" in names:
                steps.append(stack.enter_context(apparmor()))
            if "no capability" in names:
                steps.append(no_capabilities)
            if "no new privileges" in names:
                steps.append(no_new_privileges)
            if "seccomp" in names:
                steps.append(default_seccomp)
            agent = AgentProcess(tmp_path / "log", confined(main, *steps), arguments)
            stack.enter_context(running(agent))
            return agent

        yield start


@pytest.fixture
def run_arguments(tmp_path: Path) -> list[str]:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(tid=os.getpid(), library=own_libc()))
    config.chmod(0o600)
    return ["run", "--web.listen-address", "127.0.0.1:0", "--config", str(config)]


@pytest.mark.parametrize("names", [*([name] for name in CONFINED), [*CONFINED]], ids=", ".join)
def test_it_does_all_of_its_work(
    confine: Confine, run_arguments: list[str], place: Path, names: list[str]
) -> None:
    agent = confine(set(names), *run_arguments, "--tracefs", str(place))
    agent.wait_until_serving()
    assert_confined(agent.pid, place, names)
    before = agent.scrape()
    for _ in range(NUMBER):
        os.getppid()
    eventually(lambda: all(count == NUMBER for count in counted(agent.scrape()).values()))
    # Without hist triggers, hits are read from kprobe_profile, after the events.
    eventually(lambda: all(hits >= NUMBER for hits in grown(before, agent.scrape())))
    after = agent.scrape()
    assert [after.value("kprobe_up", probe=probe) for probe in PROBES] == [1] * len(PROBES)
    assert after.value("kprobe_exporter_events_lost_total", reason="unpaired") == 0
    assert agent.get("/-/ready")
    assert agent.end() == 0
    assert "Traceback" not in agent.output()


def test_below_sys_apparmor_refuses_and_the_agent_says_so(
    confine: Confine, run_arguments: list[str], tracefs: Path
) -> None:
    """AppArmor's profile takes effect: below /sys, where hosts have tracefs, writes are denied."""
    agent = confine({"AppArmor"}, *run_arguments, "--tracefs", str(tracefs))
    assert agent.wait() == 1
    [line] = agent.output().splitlines()
    assert line.startswith("kprobe-exporter: ")
    assert "AppArmor" in line


def test_doctor_lists_what_is_lost(confine: Confine, place: Path) -> None:
    """Compared with an unconfined process, two capabilities and what depends on them are missing, no more.

    Without CAP_SYS_PTRACE the network namespace of process 1 cannot be read. The state of lockdown is below
    /sys/kernel/security, which AppArmor hides.
    """

    def examined(names: set[str]) -> dict[str, str]:
        agent = confine(names, "doctor", "--json", "--tracefs", str(place))
        assert agent.wait() == 0
        checks = json.loads(agent.output())
        agent.log.write_text("")
        return {check["name"]: check["state"] for check in checks}

    free, bound = examined(set()), examined(set(CONFINED))
    worse = {name: state for name, state in bound.items() if state != free[name]}
    expected = {"cap_syslog": "warn", "cap_sys_ptrace": "warn"}
    expected |= {"net_namespace": "unknown", "lockdown": "unknown"}
    if not has_addresses():
        expected["symbols"] = "warn"
    assert worse == expected


def counted(metrics: Metrics) -> dict[str, float]:
    """For each of COUNTS, the sum over its label sets."""
    return {name: metrics.total(name) for name in COUNTS}


def grown(before: Metrics, after: Metrics) -> list[float]:
    """How many hits each of PROBES got meanwhile."""
    return [after.value(HITS, probe=probe) - before.value(HITS, probe=probe) for probe in PROBES]


def has_addresses() -> bool:
    """Whether tracefs has the addresses of functions (since 6.5)."""
    return Path("/sys/kernel/tracing/available_filter_functions_addrs").exists()


def assert_confined(pid: int, place: Path, names: list[str]) -> None:
    """Assert that /proc shows the process confined as named."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    for name in names:
        assert {key: status[key] for key in CONFINED[name]} == CONFINED[name]
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    writable = {
        fields[4]
        for number, fields in enumerate(mounts, 1)
        if "rw" in fields[5].split(",") and not hidden(fields[4], mounts[number:])
    }
    if "read-only root" in names:
        assert writable == {str(place), str(PROC)}
    if "AppArmor" in names:
        assert (process / "attr/apparmor/current").read_text().strip() == f"{PROFILE} (enforce)"


def hidden(target: str, later: list[list[str]]) -> bool:
    """Whether a mount lies below a later one at the same place or above it, where no path leads to it."""
    return any(Path(target).is_relative_to(fields[4]) for fields in later)
