"""cli.doctor: a table or JSON, status 1 if `run` could not work, and nothing left in the kernel."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kprobe_exporter.cli import doctor as module
from kprobe_exporter.cli import main
from kprobe_exporter.cli.doctor import examine, table, tracefs_checks
from kprobe_exporter.errors import TracefsError
from kprobe_exporter.grammar.definition import parse_definition
from kprobe_exporter.probing.thread_tracepoints import CGROUP_EVENTS
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.features import TRIAL, Check
from kprobe_exporter.tracefs.ownership import mark
from tests.support.fake_tracefs import EXEC_FORMAT, FakeEvent, FakeTracefs

GOOD = Check("kernel", "ok", "6.12")
LESS = Check("btf", "no", "there is no btf", "Boot another kernel.")
DEAD = Check("tracefs", "no", "it is not there", "Mount it.", required=True)


@pytest.fixture
def fake(tmp_path: Path) -> FakeTracefs:
    return FakeTracefs(tmp_path, {"vfs_mknod", "0x0"})


def invoke(
    monkeypatch: pytest.MonkeyPatch, checks: list[Check], *arguments: str, color: bool = False
) -> Result:
    monkeypatch.setattr(module, "examine", lambda tracefs, root: checks)
    return CliRunner().invoke(main, ["doctor", *arguments], color=color)


def test_the_table() -> None:
    assert table([GOOD, LESS, DEAD], ["tracefs"]).replace("\x1b[", "").splitlines() == [
        "32mok  0m  kernel   6.12",
        "31mno  0m  btf      there is no btf",
        "               fix: Boot another kernel.",
        "31mno  0m  tracefs  it is not there",
        "               fix: Mount it.",
        "",
        "'run' cannot work here, because of: tracefs",
    ]


def test_what_the_kernel_says_cannot_write_to_the_terminal() -> None:
    assert "\x1b]" not in table([Check("tracefs", "ok", "/a\x1b]0;b")], [])


def test_it_can_work_with_less(monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke(monkeypatch, [GOOD, LESS])
    assert result.exit_code == 0
    assert result.stdout.endswith("\n\n'run' can work here\n")


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_it_cannot_work(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    assert invoke(monkeypatch, [GOOD, DEAD], *arguments).exit_code == 1


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke(monkeypatch, [GOOD, LESS], "--json")
    assert json.loads(result.stdout) == [
        {"name": "kernel", "state": "ok", "evidence": "6.12", "fix": None, "required": False},
        {
            "name": "btf",
            "state": "no",
            "evidence": "there is no btf",
            "fix": "Boot another kernel.",
            "required": False,
        },
    ]


def test_color_only_on_a_terminal_and_never_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in invoke(monkeypatch, [GOOD], color=True).stdout
    assert "\x1b" not in invoke(monkeypatch, [GOOD]).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in invoke(monkeypatch, [GOOD], color=True).stdout


def test_no_tracefs_at_that_path(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--json", "--tracefs", str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    last = json.loads(result.stdout)[-1]
    assert (last["name"], last["state"]) == ("tracefs", "no")
    assert last["evidence"] == f"there is no tracefs at {tmp_path}/nowhere (No such file or directory)"
    assert last["fix"].startswith("Mount it with")


def test_what_a_container_takes_is_looked_at(tmp_path: Path) -> None:
    """The checks of a container run without a tracefs too, and name the path where it was looked for."""
    checks = {check.name: check for check in examine(tmp_path / "nowhere", Path("/"))}
    assert {"pid_namespace", "apparmor", "selinux", "cap_syslog", "pod_names"} <= checks.keys()
    assert [*checks][-1] == "tracefs"
    (tmp_path / "proc/self/attr/apparmor").mkdir(parents=True)
    (tmp_path / "proc/self/attr/apparmor/current").write_text("docker-default (enforce)\n")
    checks = {check.name: check for check in examine(tmp_path / "nowhere", tmp_path)}
    assert checks["apparmor"].state == "ok"
    assert f"tracefs is at {tmp_path}/nowhere, not below /sys" in checks["apparmor"].evidence


@pytest.mark.parametrize(("release", "state"), [("6.11.0-29-generic", "warn"), ("6.14.0", "ok")])
def test_uretprobes_under_seccomp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, state: str
) -> None:
    monkeypatch.setattr("platform.release", lambda: release)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    checks = {check.name: check for check in examine(tmp_path / "nowhere", Path("/"))}
    assert checks["seccomp_uretprobe"].state == state


def test_events_that_threads_are_followed_by(fake: FakeTracefs) -> None:
    check = next(check for check in tracefs_checks(fake) if check.name == "cgroup_events")
    assert check.state == "no"
    assert check.evidence.startswith("there is no events/task/task_newtask/enable and no events/cgroup/")
    fake.tracepoints |= {(one.system, one.event): EXEC_FORMAT for one in CGROUP_EVENTS}
    check = next(check for check in tracefs_checks(fake) if check.name == "cgroup_events")
    assert check.state == "ok"


def test_a_fake_kernel_is_left_as_it_was(fake: FakeTracefs) -> None:
    line = "p:other/doctor_kprobe f"
    event = FakeEvent("other", "doctor_kprobe", 1, line, parse_definition(line), "f", False, True)
    fake.events.append(event)
    states = {check.name: check.state for check in tracefs_checks(fake)}
    assert states["kprobe"] == states["kretprobe"] == states["eprobe"] == states["instance"] == "ok"
    assert [event.group for event in fake.events] == ["other"]
    assert fake.instances == {}


def test_what_a_killed_doctor_left_goes(fake: FakeTracefs) -> None:
    mark(fake, TRIAL)
    fake.mkdir(f"instances/{TRIAL}")
    fake.write("kprobe_events", f"p:{TRIAL}/doctor_kprobe vfs_mknod")
    assert {check.name: check.state for check in tracefs_checks(fake)}["kprobe"] == "ok"
    assert fake.events == []
    assert fake.instances == {}


def test_two_doctors(fake: FakeTracefs) -> None:
    fake.mkdir(f"instances/{TRIAL}")
    lock = fake.lock(f"instances/{TRIAL}")
    assert lock is not None
    with pytest.raises(TracefsError, match="another 'doctor' is at work"):
        tracefs_checks(fake)
    os.close(lock)


def agent(fake: FakeTracefs) -> Check:
    return next(check for check in tracefs_checks(fake) if check.name == "agent")


def test_an_agent_that_lives_and_one_that_was_killed(fake: FakeTracefs) -> None:
    assert agent(fake) == Check("agent", "ok", "no instance and no probe of 'kprobe_exporter' exists")
    mark(fake, "kprobe_exporter")
    fake.mkdir("instances/kprobe_exporter")
    fake.write("kprobe_events", "p:kprobe_exporter/open vfs_mknod")
    lock = fake.lock("instances/kprobe_exporter")
    assert lock is not None
    assert agent(fake) == Check("agent", "ok", "a live agent holds instances/kprobe_exporter")
    os.close(lock)
    killed = agent(fake)
    assert killed.state == "warn"
    assert killed.evidence == (
        "a killed agent left instances/kprobe_exporter, kprobe_exporter/made_by_kprobe_exporter, "
        "kprobe_exporter/open"
    )
    assert "cleanup" in (killed.fix or "")
    assert list(fake.instances) == ["kprobe_exporter"]
    assert len(fake.probes) == 1


def test_an_instance_of_another_program(fake: FakeTracefs) -> None:
    fake.mkdir("instances/kprobe_exporter")
    foreign = agent(fake)
    assert foreign.state == "warn"
    assert foreign.evidence.endswith("is left alone; it holds instances/kprobe_exporter")
    assert (foreign.fix or "").startswith("Use another name (global.tracefs_instance)")
    assert list(fake.instances) == ["kprobe_exporter"]


def test_an_instance_that_cannot_be_made(fake: FakeTracefs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(fake, "mkdir", refuse)
    last = tracefs_checks(fake)[-1]
    assert (last.name, last.state, last.required) == ("instance", "no", True)
    assert last.evidence == f"instances/{TRIAL} cannot be made"
    assert (last.fix or "").startswith("No permission; run as root")


def test_a_kernel_whose_pages_are_not_known_is_read_as_text(
    fake: FakeTracefs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Symbols, "visible", lambda self: False)
    checks = {check.name: check for check in tracefs_checks(fake)}
    assert checks["pages"].state == "warn"
    assert "header_page" in checks["pages"].evidence
    assert checks["symbols"].state == "warn"
    assert "CAP_SYSLOG" in (checks["symbols"].fix or "")
