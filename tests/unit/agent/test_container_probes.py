"""container_probes: a probe follows the containers that it selects, and counts each hit once."""

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from errno import ETIMEDOUT
from pathlib import Path
from types import SimpleNamespace

import pytest

from kprobe_exporter.agent import thread_events
from kprobe_exporter.agent.container_probes import MOST_FILES
from kprobe_exporter.agent.probe_set import prune
from kprobe_exporter.elf import Code, find
from kprobe_exporter.grammar.target import Target
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.identity.running import RunningContainers
from kprobe_exporter.probing.container_files import AGAIN, LINGER
from kprobe_exporter.util.deadline import NO_ANSWER
from kprobe_exporter.util.rooted_path import ProbedFiles
from tests.support.compiling import compiled
from tests.support.container_processes import ContainerProcesses
from tests.support.containers import container_id, write_logs
from tests.support.fake_tracefs import code_at
from tests.support.hanging_directory import hanging_directory
from tests.support.machine import COUNTED, OPEN, READ, Watched, watched
from tests.support.patience import within
from tests.support.programs import file_offset

PATH = "/usr/bin/program"
TWICE = "__attribute__((noinline)) int twice(int n) { return 2 * n; }\n"
MAIN = "int main(int count, char **words) { return count; }\n"
BEFORE = "int before(int n) { return 3 * n + 5; }\n"
PROBE = f"{{name: p, container: 'a*', attach: 'uprobe:{PATH}:twice', metrics: [{{counter: calls_total}}]}}"
FIRST, SECOND, THIRD = 0xA1, 0xA2, 0xA3
"""Containers whose ids begin with these digits."""


class Cluster:
    """Processes in containers, the programs in these, and an agent that looks when it is told."""

    def __init__(self, directory: Path, machine: "ExitStack", monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes = ContainerProcesses(directory)
        self.logs = directory / "logs"
        for name in ("pods", "containers"):
            (self.logs / name).mkdir(parents=True)
        for number, source in enumerate((TWICE + MAIN, BEFORE + TWICE + MAIN, MAIN)):
            path = directory / f"image{number}{PATH}"
            path.parent.mkdir(parents=True)
            compiled(path, source)
        self._directory, self._stack, self._monkeypatch = directory, machine, monkeypatch
        self.machine: Watched

    def start(self, *probes: str) -> Watched:
        def running(*, nested: bool) -> RunningContainers:
            return RunningContainers(self.processes.proc, nested=nested)

        where = "kprobe_exporter.probing.container_files"
        self._monkeypatch.setattr("kprobe_exporter.agent.agent.RunningContainers", running)
        self._monkeypatch.setattr(f"{where}.Pods", lambda: Pods(self.logs))
        clock = SimpleNamespace(monotonic=lambda: 1000.0)
        self._monkeypatch.setattr(f"{where}.time", clock)
        made = watched(self._directory, self._monkeypatch, *(probes or (PROBE,)))
        self.machine = self._stack.enter_context(made)
        return self.machine

    def run(self, pid: int, number: int, version: int | None = 0, *, copy: bool = False) -> str:
        """Start a container, and return the code that a call of its function would hit."""
        root = self.processes.start(pid, number)
        return self.put(root, version, copy=copy) if version is not None else ""

    def put(self, root: Path, version: int, *, copy: bool = False) -> str:
        """Give a root a version of the program: the file that images share, or a copy."""
        image, usr = self._directory / f"image{version}/usr", root / "usr"
        usr.unlink(missing_ok=True)
        if copy:
            shutil.copytree(image, usr)
        else:
            usr.symlink_to(image)
        path = root / PATH.removeprefix("/")
        return code_at(path, file_offset(str(path), "twice")) if version < 2 else ""

    @property
    def absent(self) -> object:
        return self.machine.value("kprobe_exporter_probe_absent", "p")

    def counts(self, times: int) -> None:
        self.machine.shows((times, "kprobe_hits_total", "p"), (times, "kprobe_calls_total"))


@pytest.fixture
def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Cluster]:
    caplog.set_level(logging.INFO)
    # The processes are made up, so this machine's PID namespaces have nothing to do with them.
    monkeypatch.setattr(thread_events, "host_proc", lambda: Path("/proc"))
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack, monkeypatch)


def test_it_waits_for_a_container(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    machine = cluster.start()
    assert cluster.absent == 1
    assert machine.value("kprobe_up", "p") is None
    assert machine.agent.ready() is None
    machine.agent.require_all_up()
    assert caplog.text.count(f"waits: uprobe:{PATH}:twice: no container that runs fits 'container: a*'") == 1
    code = cluster.run(20, FIRST)
    machine.look()
    machine.fire(code, 3)
    cluster.counts(3)
    assert not cluster.absent
    machine.shows((1, "kprobe_up", "p"))
    assert "WARNING" not in caplog.text


def test_containers_of_one_image_share_a_definition(cluster: Cluster) -> None:
    code = cluster.run(20, FIRST)
    machine = cluster.start()
    for pid, number in ((21, SECOND), (22, THIRD)):
        cluster.run(pid, number)
        machine.look()
    machine.fire(code, 4)
    cluster.counts(4)
    assert len(machine.defined()) == 1


def test_versions_in_several_containers(cluster: Cluster) -> None:
    codes = [cluster.run(20, FIRST), cluster.run(21, SECOND, 1), cluster.run(22, THIRD, copy=True)]
    machine = cluster.start()
    machine.look(times=3)
    for times, code in enumerate(codes, 1):
        machine.fire(code, times)
    cluster.counts(6)
    assert len(machine.defined()) == 3
    before = len(machine.files.writes)
    machine.look(times=20)
    assert machine.files.writes[before:] == []


def test_a_file_is_released_after_its_last_container(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = cluster.run(20, FIRST), cluster.run(21, SECOND, 1)
    machine = cluster.start()
    machine.look()
    machine.fire(first, 1)
    machine.fire(second, 2)
    cluster.counts(3)
    cluster.processes.end(20)
    machine.look(LINGER / 2)
    assert len(machine.enabled()) == 2
    machine.look(LINGER)
    assert len(machine.enabled()) == 1
    machine.fire(second, 4)
    cluster.counts(7)
    machine.shows((1, "kprobe_up", "p"))
    cluster.processes.end(21)
    machine.look(LINGER, times=2)
    assert machine.enabled() == []
    assert cluster.absent == 1
    cluster.counts(7)
    assert f"waits: uprobe:{PATH}:twice: no container that fits 'container: a*' runs any more" in caplog.text
    cluster.processes.start(30, FIRST, "container162")
    machine.look()
    machine.fire(second, 1)
    cluster.counts(8)
    assert "WARNING" not in caplog.text


def test_a_container_that_restarts_keeps_its_definition(cluster: Cluster) -> None:
    code = cluster.run(20, FIRST)
    machine = cluster.start()
    cluster.processes.end(20)
    machine.look(LINGER / 2)
    cluster.run(21, SECOND)
    before = len(machine.files.writes)
    machine.look(LINGER / 2, times=4)
    machine.fire(code, 2)
    cluster.counts(2)
    assert machine.files.writes[before:] == []


def test_a_process_that_is_not_in_its_root_yet(cluster: Cluster) -> None:
    """Before a runtime's process goes to the container's root, its files are those of the host."""
    host = cluster.put(cluster.processes.roots / "host", 1)
    cluster.processes.start(20, FIRST, "host")
    machine = cluster.start()
    machine.look(times=3)
    assert machine.defined() == []
    cluster.processes.end(20)
    code = cluster.run(20, FIRST)
    machine.look()
    machine.fire(host, 5)
    machine.fire(code, 2)
    cluster.counts(2)


@pytest.mark.parametrize("running", [True, False])
def test_a_container_that_may_not_be_looked_into(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, running: bool
) -> None:
    """Without CAP_SYS_PTRACE the link to a root cannot be followed; when it can, the probe goes up."""
    code = cluster.run(20, FIRST) if running else ""
    with monkeypatch.context() as patch:
        patch.setattr(RunningContainers, "has_root", denied)
        machine = cluster.start()
        code = code or cluster.run(20, FIRST)
        machine.look(times=3)
        machine.shows((0, "kprobe_up", "p"))
        assert caplog.text.count("the container a1a1a1a1a1a1 may not be looked into") == 1
    machine.look(times=2)
    machine.fire(code, 2)
    cluster.counts(2)


def denied(*_: object) -> bool:
    raise PermissionError


def test_what_is_not_selected(cluster: Cluster) -> None:
    cluster.run(20, 0xB1)
    machine = cluster.start()
    machine.look(times=2)
    assert machine.defined() == []


def test_a_container_without_the_file(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.run(20, FIRST, None)
    machine = cluster.start()
    assert f"no container that fits 'container: a*' has {PATH}" in caplog.text
    code = cluster.put(cluster.processes.roots / f"container{FIRST}", 0)
    machine.look()
    machine.fire(code, 1)
    cluster.counts(1)


def test_a_program_without_the_function(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Where it is the only one, the probe is down; beside another one, that goes on."""
    cluster.run(20, FIRST, 2)
    machine = cluster.start()
    machine.look(times=3)
    machine.shows((0, "kprobe_up", "p"))
    assert caplog.text.count("the probe 'p' is down") == 1
    code = cluster.run(21, SECOND)
    machine.look()
    machine.shows((1, "kprobe_up", "p"))
    cluster.run(22, THIRD, 2, copy=True)
    machine.look(times=3)
    machine.fire(code, 2)
    cluster.counts(2)
    machine.shows((1, "kprobe_up", "p"))
    assert caplog.text.count("the probe 'p' is not attached in another container: ") == 1


def test_a_file_that_is_replaced_in_a_container(cluster: Cluster) -> None:
    """Processes of the container may run the old file on."""
    old = cluster.run(20, FIRST)
    machine = cluster.start()
    new = cluster.put(cluster.processes.roots / f"container{FIRST}", 1)
    machine.look(AGAIN)
    machine.fire(old, 2)
    machine.fire(new, 3)
    cluster.counts(5)


def test_pods(cluster: Cluster) -> None:
    """A pod's name selects, with its namespace where the pattern has one, and the container's name in it."""
    for pid, number, pod, space in ((20, 1, "db-0", "shop"), (21, 2, "db-0", "test"), (22, 3, "web", "shop")):
        cluster.run(pid, number, copy=True)
        write_logs(cluster.logs, number, pod, space)
    attach = f"attach: 'uprobe:{PATH}:twice'"
    machine = cluster.start(
        f"{{name: both, pod: 'db-*', {attach}}}",
        f"{{name: one, pod: 'shop/db-?', container: app, {attach}}}",
        f"{{name: none, pod: 'shop/*', container: sidecar, {attach}}}",
    )
    machine.look(times=3)
    found = [name.partition("_")[0] for name in machine.enabled()]
    assert sorted(found) == ["both", "both", "one"]


def test_many_versions(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MOST_FILES + 2):
        root = cluster.processes.start(100 + number, FIRST, f"copy{number}")
        cluster.put(root, 0, copy=True)
        (cluster.processes.proc / str(100 + number) / "cgroup").write_text(
            f"0::/docker/a{container_id(number)[1:]}\n"
        )
    machine = cluster.start()
    machine.look(times=MOST_FILES + 4)
    assert len(machine.defined()) == MOST_FILES
    assert caplog.text.count(f"is in {MOST_FILES} files: those of further containers are not probed") == 1


def test_a_reload_selects_others(cluster: Cluster) -> None:
    first = cluster.run(20, FIRST)
    second = cluster.run(21, 0xB1, 1)
    machine = cluster.start()
    assert machine.reload(PROBE.replace("a*", "b*")) is None
    machine.look(times=2)
    machine.fire(first, 3)
    machine.fire(second, 1)
    cluster.counts(1)


def test_a_probe_that_tripped_follows_again(cluster: Cluster) -> None:
    cluster.run(20, FIRST)
    machine = cluster.start()
    assert machine.agent.disable("p", "too loud")
    code = cluster.run(21, SECOND, 1)
    machine.look(times=2)
    assert machine.enabled() == []
    assert machine.agent.enable("p")
    machine.look(times=2)
    machine.fire(code, 2)
    cluster.counts(2)
    assert len(machine.enabled()) == 2


@pytest.mark.parametrize("proc", ["/proc", "{}/a/place"])
def test_definitions_of_ended_processes_are_deleted(cluster: Cluster, tmp_path: Path, proc: str) -> None:
    """A definition holds the file system of its file. Others stay retired, to be used again."""
    machine = cluster.start(OPEN, READ)
    assert machine.reload(COUNTED) is None
    instance = vars(machine.agent)["_instance"]
    assert prune(instance, (), lambda: None) is None
    [first, second] = instance.retired
    ended = subprocess.Popen(["true"])
    for name, pid in ((first, os.getpid()), (second, ended.pid)):
        spec = instance.retired[name]
        instance.retired[name] = replace(spec, body=f"{proc.format(tmp_path)}/{pid}/root{PATH}:0x10")
    (tmp_path / f"a/place/{os.getpid()}").mkdir(parents=True)
    ended.wait()
    assert prune(instance, (), lambda: None) is not None
    assert list(instance.retired) == [first]
    assert second not in machine.defined()


def test_a_container_whose_file_system_hangs_at_the_start(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent starts, probes the other containers, and tells of it; it probes that one when it answers."""
    dead = cluster.processes.start(20, FIRST)
    code = cluster.put(dead, 0)
    with hanging_directory(dead, monkeypatch):
        other = cluster.run(21, SECOND, 1)
        with within(5):
            machine = cluster.start()
            machine.look()
        machine.fire(other, 3)
        machine.shows((3, "kprobe_hits_total", "p"), (1, "kprobe_exporter_fault", "container_hangs"))
    machine.look()
    machine.fire(code, 2)
    machine.shows((5, "kprobe_hits_total", "p"), (0, "kprobe_exporter_fault", "container_hangs"))


def test_a_container_whose_file_system_hangs_later(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks go on, also those at limits and faults, and the container is looked into once."""
    other = cluster.run(21, SECOND, 1)
    machine = cluster.start()
    dead = cluster.processes.start(20, FIRST)
    cluster.put(dead, 0)
    with hanging_directory(dead, monkeypatch) as hanging:
        with within(5):
            machine.look(times=5)
        machine.fire(other, 3)
        machine.shows((3, "kprobe_hits_total", "p"), (1, "kprobe_exporter_fault", "container_hangs"))
        assert hanging.threads == 1


def test_a_program_that_did_not_answer_is_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow machine may not read the program in the time that is left beside containers that hang."""
    locate, unanswered = find.locate, [TimeoutError(ETIMEDOUT, NO_ANSWER)] * 3

    def slowly(target: Target, files: ProbedFiles | None = None) -> Code:
        if unanswered:
            raise unanswered.pop()
        return locate(target, files)

    code = cluster.run(20, FIRST)
    monkeypatch.setattr(find, "locate", slowly)
    machine = cluster.start()
    machine.look(times=4)
    machine.fire(code, 2)
    cluster.counts(2)
