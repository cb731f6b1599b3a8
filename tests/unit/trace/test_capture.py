"""trace.capture: functions of a pattern that the kernel refuses are skipped; tracepoints have all fields."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Probe
from kprobe_exporter.errors import TracefsError
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.trace import capture as module
from kprobe_exporter.trace.capture import collected, each_event
from kprobe_exporter.trace.count import counting
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.tracefs.instance import Instance
from tests.support.fake_tracefs import FakeTracefs
from tests.support.leftovers import list_probes

NAME = "collect_test"


class Picky(FakeTracefs):
    """A kernel that lists more functions than it accepts, and refuses to enable the events ``stuck``."""

    def __init__(self, root: Path, listed: str, taken: str, stuck: str = "") -> None:
        super().__init__(root, set(taken.split()))
        self._listed = "".join(f"{name}\n" for name in listed.split()).encode()
        self._stuck = stuck.split()

    def read(self, path: str) -> bytes:
        return self._listed if path == "available_filter_functions" else super().read(path)

    def write(self, path: str, text: str) -> None:
        if (
            path.endswith("/trigger")
            and text.startswith("enable_event:")
            and path.split("/")[-2] in self._stuck
        ):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        super().write(path, text)


@pytest.fixture(autouse=True)
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read no pages: where the kernel counts, no event is recorded."""
    monkeypatch.setattr(module, "_pages", lambda instance, symbols, stacks: None)


def configured(kernel: FakeTracefs, attach: str) -> Sequence[Probe]:
    file = kernel.root / "c.yaml"
    file.write_text(f"probes: [{{name: p, attach: '{attach}'}}]")
    return load([file], DECODERS).probes


def session(instance: Instance, warn: Callable[[str], None]) -> TraceSession:
    unused = cast("Any", None)
    return TraceSession(instance, 4, unused, None, unused, None, warn)


def trace(kernel: FakeTracefs, attach: str) -> tuple[list[str], list[str]]:
    """Return the targets that were installed and enabled, and the warnings; no definition is left."""
    wanted = [counting(probe, narrowed=False) for probe in configured(kernel, attach)]
    said: list[str] = []
    with (
        Instance.acquire(kernel, NAME) as instance,
        collected(session(instance, said.append), wanted, lambda batch: None) as made,
    ):
        targets = [attached.spec.target for attached in made.attached]
        assert len(made.plans) == len(targets)
        made.enable()
    assert list_probes(kernel) == []
    return targets, said


def test_a_pattern_without_refusals(tmp_path: Path) -> None:
    kernel = Picky(tmp_path, "vfs_a vfs_b other", "vfs_a vfs_b")
    assert trace(kernel, "kprobe:vfs_*") == (["kprobe:vfs_a", "kprobe:vfs_b"], [])


def test_one_of_a_pattern_is_refused(tmp_path: Path) -> None:
    kernel = Picky(tmp_path, "vfs_a vfs_b vfs_c", "vfs_a vfs_c")
    targets, [said] = trace(kernel, "kprobe:vfs_*")
    assert targets == ["kprobe:vfs_a", "kprobe:vfs_c"]
    assert said.startswith("3 match the pattern, and 1 of them are refused, such as kprobe:vfs_b: ")
    assert said.count(".") == 1


def test_many_of_a_pattern_are_refused(tmp_path: Path) -> None:
    """The warning for many refused functions names only one of them."""
    kernel = Picky(tmp_path, " ".join(f"vfs_{number:03}" for number in range(100)), "vfs_050")
    targets, [said] = trace(kernel, "kprobe:vfs_*")
    assert targets == ["kprobe:vfs_050"]
    assert said.startswith("100 match the pattern, and 99 of them are refused, such as kprobe:vfs_000: ")
    assert said.count("kprobe:") == 1


def test_one_of_a_pattern_that_cannot_be_enabled(tmp_path: Path) -> None:
    kernel = Picky(tmp_path, "vfs_a vfs_b", "vfs_a vfs_b", stuck="p_vfs_a")
    targets, [said] = trace(kernel, "kprobe:vfs_*")
    assert targets == ["kprobe:vfs_a", "kprobe:vfs_b"]
    assert said == (
        "2 match the pattern, and 1 of them are refused, such as kprobe:vfs_a: it cannot be enabled: "
        "another user of tracefs uses it (EBUSY)."
    )


@pytest.mark.parametrize(
    ("attach", "taken", "stuck", "said"),
    [
        ("kprobe:vfs_*", "", "", "nothing that the pattern matches can be traced, such as kprobe:vfs_a: "),
        ("kprobe:vfs_*", "vfs_a vfs_b", "p_vfs_a p_vfs_b", "nothing that the pattern matches can be traced"),
        ("kprobe:nosuch_*", "vfs_a vfs_b", "", "'kprobe:nosuch_*' matches no function"),
        ("kprobe:vfs_b", "vfs_a", "", "kprobe:vfs_b: "),
        ("kprobe:vfs_b", "vfs_a vfs_b", "p", "it cannot be enabled"),
    ],
)
def test_nothing_is_left(tmp_path: Path, attach: str, taken: str, stuck: str, said: str) -> None:
    """A trace that can collect nothing raises an error, and leaves no definition in the kernel."""
    kernel = Picky(tmp_path, "vfs_a vfs_b", taken, stuck)
    with pytest.raises(TracefsError) as refusal:
        trace(kernel, attach)
    assert said in str(refusal.value)
    assert list_probes(kernel) == []


@pytest.mark.parametrize("eprobes", [True, False])
def test_all_fields_of_a_tracepoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eprobes: bool) -> None:
    """All fields are recorded, also without eprobes, where the tracepoint itself is read."""
    kernel = FakeTracefs(tmp_path, set(), eprobes=eprobes)
    monkeypatch.setattr(module, "BufferReader", Mock())
    [probe] = configured(kernel, "tracepoint:sched:sched_process_exec")
    wanted = [each_event(probe, stacks=False)]
    with (
        Instance.acquire(kernel, NAME) as instance,
        collected(session(instance, print), wanted, lambda batch: None, single=True, all_fields=True) as made,
    ):
        [attached] = made.attached
        names = {arg.name for arg in attached.layout.args}
        assert attached.layout.form == ("eprobe" if eprobes else "tracepoint")
    assert names == {"filename", "pid", "old_pid", "comm"}
