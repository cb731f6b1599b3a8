"""Which /proc has threads under the ids of events, in and out of the initial PID namespace."""

from pathlib import Path

import pytest

from kprobe_exporter.identity.procfs import INITIAL, host_proc

KERNEL_THREAD = b"2 (k) thr (eadd) S 0 0 0 0 -1 2129984 0 0 0 0\n"
PROGRAM = b"2 (bash) S 1 2 2 0 -1 4194304 0 0 0 0\n"


class Machine:
    """A /proc in this PID namespace, and what is mounted elsewhere."""

    def __init__(self, directory: Path, namespace: str = "pid:[4026532777]") -> None:
        self.directory, self.own = directory, directory / "proc"
        (self.own / "self/ns").mkdir(parents=True)
        (self.own / "self/ns/pid").symlink_to(namespace)
        self._lines = ["21 1 0:19 / /sys rw - sysfs sysfs rw"]
        self.mount(PROGRAM, "proc")

    def mount(self, stat: bytes | None, name: str, root: str = "/", kind: str = "proc") -> Path:
        """Mount a file system with a process 2 that has this ``stat``."""
        place = self.directory / name
        (place / "2").mkdir(parents=True)
        if stat is not None:
            (place / "2/stat").write_bytes(stat)
        shown = str(place).replace(" ", "\\040")
        self._lines.append(f"40 21 0:22 {root} {shown} ro,nosuid shared:4 - {kind} proc rw")
        (self.own / "self/mountinfo").write_text("".join(f"{line}\n" for line in self._lines))
        return place


def test_initial_pid_namespace(tmp_path: Path) -> None:
    machine = Machine(tmp_path, INITIAL)
    assert host_proc(machine.own) == machine.own


def test_host_proc_mounted_at_any_place(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert host_proc(machine.own) is None
    machine.mount(PROGRAM, "another container")
    place = machine.mount(KERNEL_THREAD, "host processes")
    assert host_proc(machine.own) == place


@pytest.mark.parametrize(
    ("stat", "root", "kind"),
    [
        (KERNEL_THREAD, "/sys", "proc"),
        (KERNEL_THREAD, "/", "tmpfs"),
        (None, "/", "proc"),
        (b"", "/", "proc"),
        (b"2 (kthreadd) S 0 0", "/", "proc"),
        (b"2 (kthreadd) S 0 0 0 0 -1 x 0", "/", "proc"),
    ],
)
def test_other_mounts_are_not_host_proc(tmp_path: Path, stat: bytes | None, root: str, kind: str) -> None:
    machine = Machine(tmp_path)
    machine.mount(stat, "elsewhere", root, kind)
    assert host_proc(machine.own) is None


def test_without_proc(tmp_path: Path) -> None:
    assert host_proc(tmp_path) is None


def test_this_machine() -> None:
    """Process 2 of the initial namespace is a kernel thread, if this process is in that namespace."""
    own = Path("/proc/self/ns/pid").readlink()
    assert (host_proc() == Path("/proc")) or str(own) != INITIAL
