"""tracefs.probes: a retired definition is used again by an equal one, and the oldest are deleted first."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kprobe_exporter.agent import probe_set
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.poller import read_counts
from kprobe_exporter.tracefs.probes import install, names_in_use
from tests.support.fake_tracefs import FakeTracefs

NAME = "retired_test"
SPEC = ProbeSpec(
    "p", "kprobe", "kprobe:f", "f", "kprobe_events", "p", "f", None, Layout(0, "p", "p", "entry", "f")
)


class Stubborn(FakeTracefs):
    """A tracefs that refuses some writes to some files."""

    def __init__(self, root: Path, functions: set[str]) -> None:
        super().__init__(root, functions)
        self.refused: dict[tuple[str, str], int] = {}

    def write(self, path: str, text: str) -> None:
        for (end, beginning), number in self.refused.items():
            if path.endswith(end) and text.startswith(beginning):
                raise OSError(number, os.strerror(number))
        super().write(path, text)


@pytest.fixture
def kernel(tmp_path: Path) -> Stubborn:
    return Stubborn(tmp_path, {"f"})


@pytest.fixture
def instance(kernel: Stubborn) -> Iterator[Instance]:
    with Instance.acquire(kernel, NAME) as found:
        found.recording = True
        yield found


def defined(kernel: FakeTracefs) -> list[str]:
    return [event.name for event in kernel.probes]


FILTERED = replace(SPEC, filter="common_pid > 1")
FILTER = f"instances/{NAME}/events/{NAME}/p/filter"


def retire(instance: Instance, spec: ProbeSpec) -> None:
    probe = install(instance, spec, names_in_use(instance))
    probe.enable()
    assert not probe.remove()


def test_what_was_enabled_is_retired_and_taken_up_again(instance: Instance, kernel: FakeTracefs) -> None:
    """A retired definition is used again; its profile continues, but its earlier hits do not count."""
    probe = install(instance, SPEC, names_in_use(instance))
    probe.enable()
    kernel.fire("f")
    assert not probe.remove()
    assert defined(kernel) == ["p"]
    kernel.fire("f")
    again = install(instance, replace(SPEC, layout=replace(SPEC.layout, layout_id=1)), names_in_use(instance))
    assert (again.event, again.layout.layout_id, defined(kernel)) == ("p", 1, ["p"])
    assert read_counts(instance, [again]).hits == {"p": 0}
    again.enable()
    kernel.fire("f")
    assert read_counts(instance, [again]).hits == {"p": 1}


@pytest.mark.parametrize(
    ("other", "event"),
    [
        (replace(SPEC, body="f a=$stack"), "p_2"),
        (replace(SPEC, layout=replace(SPEC.layout, event="q")), "q"),
        (replace(SPEC, inode=(1, 2)), "p_2"),
    ],
)
def test_the_same_definition_is_taken_once(instance: Instance, other: ProbeSpec, event: str) -> None:
    taken: set[str] = set()
    probe = install(instance, SPEC, taken)
    probe.enable()
    probe.remove()
    assert (install(instance, other, taken).event, list(instance.retired)) == (event, ["p"])
    assert install(instance, SPEC, taken).event == "p"
    assert install(instance, SPEC, taken).event != "p"
    assert instance.retired == {}


def test_what_was_never_enabled_is_deleted(instance: Instance, kernel: FakeTracefs) -> None:
    assert install(instance, SPEC, names_in_use(instance)).remove()
    assert defined(kernel) == []
    assert len(instance.retired) == 0


def test_a_definition_that_another_tool_enabled_is_retired(instance: Instance, kernel: Stubborn) -> None:
    instance.recording = False
    kernel.refused = {("dynamic_events", "-:"): errno.EBUSY}
    assert not install(instance, SPEC, names_in_use(instance)).remove()
    assert len(instance.retired) == 1
    kernel.refused = {}
    assert install(instance, SPEC, names_in_use(instance)).event == "p"


def test_an_fprobe_without_maxactive_where_the_kernel_refuses_it(
    instance: Instance, kernel: FakeTracefs
) -> None:
    spec = replace(SPEC, kind="fexit", target="fexit:f", file="dynamic_events", verb="f1024", body="f%return")
    lines = []
    for kernel.fprobes_take_maxactive in (True, False):
        install(instance, spec, names_in_use(instance))
        lines.append(kernel.probes[-1].line)
    assert lines == [f"f1024:{NAME}/p f%return", f"f:{NAME}/p_2 f%return"]


def test_before_anything_is_recorded_all_is_deleted(instance: Instance, kernel: FakeTracefs) -> None:
    instance.recording = False
    probe = install(instance, SPEC, names_in_use(instance))
    probe.enable()
    assert probe.remove()
    assert defined(kernel) == []


def test_a_deleted_definition_is_defined_again(instance: Instance, kernel: FakeTracefs) -> None:
    retire(instance, SPEC)
    kernel.write("kprobe_events", f"-:{NAME}/p")
    assert install(instance, SPEC, names_in_use(instance)).event == "p"
    assert defined(kernel) == ["p"]


def test_one_whose_counts_cannot_be_read_is_defined_anew(
    instance: Instance, kernel: FakeTracefs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retired definition is not used again then, because its earlier hits would count twice."""
    retire(instance, SPEC)
    read = kernel.read

    def unreadable(path: str) -> bytes:
        if path == "kprobe_profile":
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    taken = names_in_use(instance)
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "read", unreadable)
        assert install(instance, SPEC, taken).event == "p_2"
    assert install(instance, SPEC, taken).event == "p"  # the retired definition is still known


@pytest.mark.parametrize("spec", [SPEC, FILTERED, replace(SPEC, filter="common_pid > 2")])
def test_a_filter_that_stayed_is_none_of_the_next_one(
    instance: Instance, kernel: Stubborn, spec: ProbeSpec
) -> None:
    kernel.refused = {("/filter", "0"): errno.ENOMEM}
    retire(instance, FILTERED)
    assert kernel.read(FILTER) == b"common_pid > 1\n"
    kernel.refused = {}
    assert install(instance, spec, names_in_use(instance)).event == "p"
    assert kernel.read(FILTER).decode() == f"{spec.filter or 'none'}\n"


def test_one_whose_filter_cannot_be_cleared_is_not_taken_up(instance: Instance, kernel: Stubborn) -> None:
    kernel.refused = {("/filter", "0"): errno.ENOMEM}
    retire(instance, FILTERED)
    assert install(instance, SPEC, names_in_use(instance)).event == "p_2"
    assert len(instance.retired) == 1
    kernel.refused = {}
    assert install(instance, SPEC, names_in_use(instance)).event == "p"


def test_one_that_cannot_be_deleted_is_tried_again(
    instance: Instance, kernel: Stubborn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A definition that another process has enabled stays retired; the oldest ones are deleted first."""
    monkeypatch.setattr(probe_set, "MOST_RETIRED", 3)
    monkeypatch.setattr(probe_set, "KEPT", 1)

    def prune(*numbers: int) -> list[str]:
        probes = [
            install(instance, replace(SPEC, body=f"f a{number}=$stack"), names_in_use(instance))
            for number in numbers
        ]
        for probe in probes:
            probe.enable()
            probe.remove()
        probe_set.prune(instance, [], lambda: None)
        return defined(kernel)

    kernel.refused = {("dynamic_events", f"-:{NAME}/p\n"): errno.EBUSY}
    assert prune(1, 2, 3, 4) == ["p", "p_4"]
    assert len(instance.retired) == 2
    assert prune(5, 6) == ["p", "p_3"]
    kernel.refused = {}
    assert prune(7) == ["p", "p_3", "p_2"]
    assert prune(8) == ["p_4"]
    assert len(instance.retired) == 1


def test_a_shared_switch_is_switched_off_by_the_last(instance: Instance, kernel: FakeTracefs) -> None:
    layout = Layout(0, "a", "sched_process_exec", "tracepoint", "x")
    spec = ProbeSpec("a", "tracepoint", "t", "x", None, "", "", None, layout, "sched", "sched_process_exec")
    first, second = (install(instance, spec, set()) for _ in range(2))
    first.enable()
    second.enable()
    switch = f"instances/{NAME}/events/sched/sched_process_exec/enable"
    first.disable()
    first.disable()
    assert kernel.read(switch) == b"1"
    second.pause()
    assert kernel.read(switch) == b"0"


def test_the_places_of_one_event_are_defined_together_or_not_at_all(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"program")
    body = f"{program}:0x1"
    usdt = replace(
        SPEC,
        kind="usdt",
        target=f"usdt:{program}:a:b",
        file="uprobe_events",
        body=body,
        more=(f"{program}:0x2",),
    )
    (tmp_path / "tracefs").mkdir()
    kernel = Stubborn(tmp_path / "tracefs", set())
    with Instance.acquire(kernel, NAME) as instance:
        probe = install(instance, usdt, names_in_use(instance))
        assert defined(kernel) == ["p", "p"]
        for event in kernel.probes:
            event.hits = 3
        assert read_counts(instance, [probe]).hits == {"p": 6}
        probe.remove()
        assert defined(kernel) == []
        kernel.joins_places = False
        with pytest.raises(ProbeRefused, match="cannot attach one event to several places"):
            install(instance, usdt, names_in_use(instance))
        assert defined(kernel) == []
