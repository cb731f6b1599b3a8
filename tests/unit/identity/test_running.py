"""running: the containers of the machine are found by their processes, also after these moved."""

from pathlib import Path

import pytest

from kprobe_exporter.identity import running as module
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.identity.procfs import INITIAL
from kprobe_exporter.identity.running import LOOKS, Places, RunningContainers
from tests.support.container_processes import ContainerProcesses
from tests.support.containers import PATHS, UID, container_id


def ids(running: RunningContainers) -> dict[str, list[int]]:
    return {one.id: pids for one, pids in running.look().items()}


def test_every_runtime(tmp_path: Path) -> None:
    machine = ContainerProcesses(tmp_path)
    for number, runtime in enumerate(PATHS, 1):
        machine.start(100 + number, number, runtime=runtime)
        machine.start(1000 + number, number, f"other{number}", runtime)
    machine.add(50, "/user.slice/user-1000.slice/session-1.scope", "host")
    expected = {container_id(number): [100 + number, 1000 + number] for number in range(1, len(PATHS) + 1)}
    assert ids(RunningContainers(machine.proc)) == expected


def test_the_hierarchies_of_v1(tmp_path: Path) -> None:
    machine = ContainerProcesses(tmp_path)
    machine.add(20, f"/\n4:memory:/docker/{container_id(1)}\n1:name=systemd:/docker/{container_id(1)}", "c")
    assert ids(RunningContainers(machine.proc)) == {container_id(1): [20]}


def test_a_process_that_moves_after_its_start(tmp_path: Path) -> None:
    """A runtime moves a container's first process, within milliseconds; later moves are not looked for."""
    machine = ContainerProcesses(tmp_path)
    machine.add(20, "/system.slice/containerd.service", "a")
    running = RunningContainers(machine.proc)
    assert ids(running) == {}
    (machine.proc / "20/cgroup").write_text(f"0::/docker/{container_id(1)}\n")
    assert ids(running) == {container_id(1): [20]}
    machine.end(20)
    assert ids(running) == {}
    machine.add(20, "/", "b")
    for _ in range(LOOKS):
        assert ids(running) == {}
    (machine.proc / "20/cgroup").write_text(f"0::/docker/{container_id(2)}\n")
    assert ids(running) == {}


def test_a_look_reads_a_bounded_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = ContainerProcesses(tmp_path)
    for number in range(1, 8):
        machine.start(100 + number, number)
    running = RunningContainers(machine.proc)
    monkeypatch.setattr(module, "MOST_READ", 3)
    found = [len(ids(running)) for _ in range(9)]
    assert found[0] < 7
    assert found[-1] == 7


def test_another_process_with_the_id(tmp_path: Path) -> None:
    machine = ContainerProcesses(tmp_path)
    machine.start(20, 1)
    running = RunningContainers(machine.proc)
    [one] = running.look()
    assert running.has(one, 20)
    assert running.has_root(one, 20)
    machine.end(20)
    assert not running.has_root(one, 20)
    machine.start(20, 2)
    assert not running.has(one, 20)
    assert not running.has_root(one, 20)


OTHERS = [f"docker {container_id(2)[:12]}", f"containerd {container_id(3)[:12]}", ""]


@pytest.mark.parametrize(
    ("namespace", "names"),
    [
        (INITIAL, ["", "shop/web-1", *OTHERS]),
        ("pid:[4026532777]", [""] * 5),  # where ids of processes are others
    ],
)
def test_the_place_of_a_process(tmp_path: Path, namespace: str, names: list[str]) -> None:
    machine = ContainerProcesses(tmp_path)
    (machine.proc / "self/ns").mkdir(parents=True)
    (machine.proc / "self/ns/pid").symlink_to(namespace)
    (tmp_path / "logs/pods" / f"shop_web-1_{UID.format(1)}").mkdir(parents=True)
    machine.start(101, 1)
    machine.start(102, 2, runtime="docker")
    machine.start(103, 3)  # a pod without logs
    places = Places(machine.proc, Pods(tmp_path / "logs"))
    assert [places.name(pid) for pid in (1, 101, 102, 103, 999)] == names
