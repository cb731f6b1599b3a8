"""`doctor` on a real kernel: its findings are true, and it leaves everything as it was."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.tracefs.features import TRIAL
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.ownership import mark
from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.foreign import PROBES, foreign_things
from tests.support.forked_child import become_nobody, in_a_child
from tests.support.leftovers import definitions, instances
from tests.support.patience import eventually
from tests.vm.kernels import FPROBES, HIST

FTRACE_ENABLED = Path("/proc/sys/kernel/ftrace_enabled")


def diagnose(*arguments: str, status: int = 0) -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    assert result.exit_code == status, result.output
    return {check["name"]: check for check in json.loads(result.stdout)}


def test_what_it_finds(tracefs: Path) -> None:
    checks = diagnose()
    assert checks["kernel"]["evidence"].startswith(os.uname().release)
    assert checks["tracefs"]["evidence"] == f"{tracefs} is mounted and can be read"
    for name in ("tracefs", "instance", "user", "tracepoint"):
        assert checks[name]["state"] == "ok"
    has_kprobes = (tracefs / "kprobe_events").exists()
    assert (checks["kprobe"]["state"] == "ok") == has_kprobes
    assert (checks["kretprobe"]["state"] == "ok") == has_kprobes


@pytest.mark.needs("kprobe_events")
def test_a_kernel_of_a_distribution_can_do_nearly_everything() -> None:
    less = {name for name, check in diagnose().items() if check["state"] == "no"}
    needs = {"eprobe": "<attached-group>.<attached-event>", "fprobe": FPROBES, "hist": HIST}
    assert less == {name for name, feature in needs.items() if not has(feature)}


def test_the_table_holds_the_same(tracefs: Path) -> None:
    table = CliRunner().invoke(main, ["doctor"]).stdout
    print(table)
    assert table.endswith("'run' can work here\n")
    for check in diagnose().values():
        assert f"{check['name']} " in table
        assert check["evidence"] in table


def test_beside_a_live_agent(start_agent: StartAgent, tracefs: Path, files: MountedTracefs) -> None:
    """`doctor` leaves the agent's probes, its unread events and another tool's instance and probe alone."""
    with foreign_things(files):
        agent = start_agent(PROBES)
        before = definitions(tracefs), instances(tracefs)
        for _ in range(23):
            for _ in range(23):
                os.getppid()
            assert diagnose()["agent"]["evidence"] == "a live agent holds instances/kprobe_exporter"
        assert (definitions(tracefs), instances(tracefs)) == before

        def all_arrived() -> bool:
            metrics = agent.scrape()
            events = metrics.value("kprobe_exporter_events_total", probe="getppid")
            return metrics.value("kprobe_hits_total", probe="getppid") == events >= 23 * 23

        eventually(all_arrived)
        assert agent.scrape().value("kprobe_up", probe="open") == 1


def test_what_a_killed_agent_left_is_told_and_kept(start_agent: StartAgent, tracefs: Path) -> None:
    agent = start_agent(PROBES)
    agent.end(signal.SIGKILL)
    check = diagnose()["agent"]
    assert check["state"] == "warn"
    assert "a killed agent left instances/kprobe_exporter" in check["evidence"]
    assert "kprobe_exporter" in instances(tracefs)
    assert CliRunner().invoke(main, ["cleanup"]).exit_code == 0
    assert diagnose()["agent"]["state"] == "ok"


@pytest.mark.parametrize("command", [["doctor"], ["cleanup", "--instance", TRIAL]])
def test_what_a_killed_doctor_left_goes(files: MountedTracefs, tracefs: Path, command: list[str]) -> None:
    before = definitions(tracefs), instances(tracefs)
    files.mkdir(f"instances/{TRIAL}")
    mark(files, TRIAL)
    files.write("uprobe_events", f"p:{TRIAL}/doctor_uprobe /proc/self/exe:0x0")
    if files.exists("kprobe_events"):
        files.write("kprobe_events", f"p:{TRIAL}/doctor_kprobe vfs_mknod")
    assert CliRunner().invoke(main, command).exit_code == 0
    assert (definitions(tracefs), instances(tracefs)) == before


@pytest.fixture
def ftrace_off() -> Iterator[None]:
    FTRACE_ENABLED.write_text("0")
    yield
    FTRACE_ENABLED.write_text("1")


@pytest.mark.skipif("KPROBE_EXPORTER_VM" not in os.environ, reason="not on a machine that is used on")
def test_ftrace_switched_off(ftrace_off: None) -> None:
    check = diagnose()["ftrace_enabled"]
    assert check["state"] == "warn"
    assert "sysctl kernel.ftrace_enabled=1" in check["fix"]


def test_a_tracefs_that_is_read_only(bound: Path) -> None:
    subprocess.run(["mount", "-o", "remount,bind,ro", bound], check=True)
    check = diagnose("--tracefs", str(bound), status=1)["tracefs"]
    assert check["state"] == "no"
    assert "read-only" in check["evidence"]
    assert check["fix"] == "Mount it read-write."


@pytest.mark.needs("initial_pid_namespace")
def test_namespaces_and_capabilities_of_a_container(tracefs: Path) -> None:
    """The agent can work without these namespaces and capabilities, and `doctor` names each missing one."""
    before = definitions(tracefs), instances(tracefs)
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--cgroup", "--net"]
    command += ["setpriv", "--bounding-set", "-all"]
    command += [sys.executable, "-m", "kprobe_exporter", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    outside = diagnose()
    for name in ("pid_namespace", "cgroup_namespace", "cap_syslog", "cap_sys_ptrace"):
        assert (outside[name]["state"], checks[name]["state"]) == ("ok", "warn")
        assert outside[name]["evidence"] != checks[name]["evidence"]
    assert checks["net_namespace"]["state"] == "unknown"
    assert checks["user_namespace"]["state"] == checks["instance"]["state"] == "ok"
    assert (definitions(tracefs), instances(tracefs)) == before


def test_a_user_who_may_not(tracefs: Path, tmp_path: Path) -> None:
    """Without uid 0, `doctor` exits with 1 and names tracefs in its verdict."""
    report = tmp_path / "report"

    def look() -> None:
        with report.open("w") as file:
            become_nobody()
            result = CliRunner().invoke(main, ["doctor"])
            file.write(f"{result.exit_code}\n{result.output}")

    in_a_child(look)
    lines = report.read_text().splitlines()
    assert lines[0] == "1"
    assert lines[-1] == "'run' cannot work here, because of: tracefs"
    assert any("uid 65534" in line for line in lines)
