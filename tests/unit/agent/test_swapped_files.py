"""A uprobe sits in the file that was parsed, at whatever moment somebody else changes what its path names."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kprobe_exporter.tracefs.ownership import MARKER
from tests.support.compiling import compiled
from tests.support.crafted_elf import leading_to
from tests.support.fake_tracefs import FakeTracefs, code_at
from tests.support.machine import GROUP, Watched, watched
from tests.support.programs import file_offset

VICTIM = "int twice(int n) { return 2 * n; }\nint main(int count, char **words) { return count; }\n"

PROBE = "{{name: victim, attach: '{}:{}:twice'}}"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    return compiled(tmp_path / "victim", VICTIM)


class Attack:
    """A link that names the attacker's file, and the victim's whenever the kernel is about to open it."""

    def __init__(self, directory: Path, victim: Path) -> None:
        self.victim, self.link = victim, directory / "link"
        self.inside = file_offset(str(victim), "twice") + 1
        self.own = leading_to(directory / "own", "twice", self.inside)
        self.link.symlink_to(self.own)

    def point(self, target: Path) -> None:
        new = self.link.with_name("new")
        new.symlink_to(target)
        new.rename(self.link)

    @contextmanager
    def during_definitions(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        write = FakeTracefs.write

        def swapped(files: FakeTracefs, path: str, text: str) -> None:
            self.point(self.victim)
            try:
                write(files, path, text)
            finally:
                self.point(self.own)

        with monkeypatch.context() as patched:
            patched.setattr(FakeTracefs, "write", swapped)
            yield


def places(machine: Watched) -> set[str]:
    """Where the probes of our group are, without the marker, which is in no file of anyone."""
    return {event.symbol for event in machine.files.events if event.group == GROUP and event.name != MARKER}


@pytest.mark.parametrize("kind", ["uprobe", "ucall"])
def test_a_link_that_is_swapped_while_the_kernel_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: Path, kind: str
) -> None:
    """The victim's program would get a breakpoint in the middle of an instruction."""
    attack = Attack(tmp_path, victim)
    with (
        attack.during_definitions(monkeypatch),
        watched(tmp_path, monkeypatch, PROBE.format(kind, attack.link)) as machine,
    ):
        assert places(machine) == {code_at(attack.own, attack.inside)}
        machine.shows((1, "kprobe_up", "victim"))
        machine.reload(PROBE.format("uretprobe", attack.link))
        machine.look()
        assert code_at(victim, attack.inside) not in places(machine)


def test_a_link_that_is_swapped_after_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The probe is planned again for the new file, and sits at its function's first instruction."""
    caplog.set_level(logging.INFO)
    attack = Attack(tmp_path, victim)
    with monkeypatch.context() as patched:
        plan = vars(__import__("kprobe_exporter.agent.installer").agent.installer)["plan_probe"]

        def swapped(*arguments: object) -> object:
            planned = plan(*arguments)
            attack.point(victim)
            return planned

        patched.setattr("kprobe_exporter.agent.installer.plan_probe", swapped)
        with watched(tmp_path, monkeypatch, PROBE.format("uprobe", attack.link)) as machine:
            assert f"{attack.link} was replaced at this moment: the new file is tried next" in caplog.text
            machine.look(20, times=2)
            assert machine.value("kprobe_up", "victim") == 1
            assert code_at(victim, attack.inside) not in places(machine)
            assert code_at(victim, attack.inside - 1) in places(machine)


def test_the_files_are_closed_when_the_probes_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: Path
) -> None:
    def opened() -> list[Path]:
        links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
        return [link for link in links if link.is_symlink() and link.readlink() == victim]

    with watched(tmp_path, monkeypatch, PROBE.format("ucall", victim)) as machine:
        assert opened() == []
        assert "/proc/self/fd/" in machine.files.read("uprobe_events").decode()
        machine.reload(PROBE.format("uprobe", victim))
        assert opened() == []
