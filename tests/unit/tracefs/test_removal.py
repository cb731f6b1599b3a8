"""tracefs.removal: the kernel waits as little as can be; progress is told; the rest stays on request."""

import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from kprobe_exporter.errors import RemovalStopped
from kprobe_exporter.model.hist import HistKey, HistTable
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs import removal as module
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed, install, names_in_use
from kprobe_exporter.tracefs.removal import Removal
from tests.support.fake_tracefs import FakeTracefs

NAME = "removal_test"
MANY = 20
COUNTED = ProbeSpec(
    "p",
    "kprobe",
    "kprobe:f",
    "f",
    "kprobe_events",
    "p",
    "f",
    None,
    Layout(0, "p", "p", "entry", "f"),
    plan="count",
)
RECORDED = replace(COUNTED, plan="events")
TABLES = tuple(
    HistTable((HistKey(name, name, 64, signed=True),), None, f"{name} > 0", 128, ()) for name in ("a", "b")
)
KINDS = {
    "counted": COUNTED,
    "recorded": RECORDED,
    "filtered": replace(RECORDED, filter="common_pid > 1"),
    "aggregated": replace(COUNTED, plan="kernel", tables=TABLES),
    "counted by a trigger": replace(
        RECORDED, verb="e", body="sched.sched_process_exec", file="dynamic_events"
    ),
}


@pytest.fixture
def kernel(tmp_path: Path) -> FakeTracefs:
    return FakeTracefs(tmp_path, {"f"})


def installed(instance: Instance, spec: ProbeSpec, number: int = MANY) -> list[Installed]:
    taken = names_in_use(instance)
    probes = [install(instance, spec, taken) for _ in range(number)]
    for probe in probes:
        probe.enable()
    return probes


def cheapest(kernel: FakeTracefs, spec: ProbeSpec, name: str) -> int:
    """The waits to remove an instance with all on, and then the definitions: measured, nothing takes less."""
    instance = Instance.acquire(kernel, name)
    before = [event.name for event in kernel.events]
    installed(instance, spec)
    kernel.waits = 0
    kernel.rmdir(instance.path)
    for event in [event.name for event in kernel.events if event.name not in before]:
        kernel.write("dynamic_events", f"-:{name}/{event}")
    return kernel.waits


@pytest.mark.parametrize("kind", KINDS)
def test_a_removal_waits_as_little_as_can_be(kernel: FakeTracefs, kind: str) -> None:
    least = cheapest(kernel, KINDS[kind], "cheapest_test")
    instance = Instance.acquire(kernel, NAME)
    installed(instance, KINDS[kind])
    kernel.waits = 0
    instance.close()
    assert kernel.probes == []
    assert MANY < kernel.waits <= 1.2 * least


@pytest.mark.parametrize("kind", KINDS)
def test_a_reload_waits_as_little_as_can_be(kernel: FakeTracefs, kind: str) -> None:
    """It pauses its probes, and removes them later; the definitions stay."""
    least = cheapest(kernel, KINDS[kind], "cheapest_test") - MANY * (KINDS[kind].file == "kprobe_events")
    with Instance.acquire(kernel, NAME) as instance:
        probes = installed(instance, KINDS[kind])
        instance.recording = True
        kernel.waits = 0
        for probe in probes:
            probe.pause()
        for probe in probes:
            probe.remove()
        assert MANY <= kernel.waits <= 1.2 * least


def test_what_a_killed_agent_left_waits_as_little(kernel: FakeTracefs) -> None:
    least = cheapest(kernel, COUNTED, "cheapest_test")
    killed = Instance.acquire(kernel, NAME)
    installed(killed, COUNTED)
    assert killed._lock is not None
    os.close(killed._lock)
    killed._lock = None
    kernel.waits = 0
    Instance.acquire(kernel, NAME).close()
    assert MANY < kernel.waits <= 1.2 * least + 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a second."""
    seconds = count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))


def test_it_tells_how_far_it_is(kernel: FakeTracefs, clock: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told: list[str] = []
    instance = Instance.acquire(kernel, NAME, Removal(told.append))
    installed(instance, RECORDED, 12)
    instance.close()
    assert "removing 12 events from the kernel" in caplog.text
    assert told == [
        "removing triggers: 4 of 12",
        "removing triggers: 9 of 12",
        "switching events off: 2 of 12",
        "switching events off: 7 of 12",
        "deleting definitions: 0 of 12",
        "deleting definitions: 5 of 12",
        "deleting definitions: 10 of 12",
    ]


def stopping_at(kernel: FakeTracefs, events: int) -> Callable[[], bool]:
    """Whether so many are off or fewer are left."""
    return lambda: sum(bool(event.enabled) for event in kernel.events) <= events


def test_the_rest_stays_until_the_next_start(kernel: FakeTracefs, caplog: pytest.LogCaptureFixture) -> None:
    instance = Instance.acquire(kernel, NAME, Removal(gives_up=stopping_at(kernel, 7), least=0))
    installed(instance, RECORDED, 10)
    instance.close()
    assert caplog.messages == [
        "the removal was stopped while switching events off, after 3 of 10: 'kprobe-exporter cleanup' or the"
        " next start removes the rest."
    ]
    assert [len(kernel.probes), sum(bool(event.enabled) for event in kernel.events)] == [10, 7]
    with pytest.raises(RemovalStopped, match="after 2 of 7"):
        Instance.acquire(kernel, NAME, Removal(gives_up=stopping_at(kernel, 5), least=0))
    Instance.acquire(kernel, NAME).close()
    assert (kernel.instances, kernel.events) == ({}, [])


def test_definitions_alone_may_stay(kernel: FakeTracefs, caplog: pytest.LogCaptureFixture) -> None:
    few = Removal(gives_up=lambda: kernel.instances == {} and len(kernel.probes) <= 4, least=0)
    instance = Instance.acquire(kernel, NAME, few)
    installed(instance, RECORDED, 10)
    instance.close()
    assert "while deleting definitions, after 6 of 10" in caplog.text
    Instance.acquire(kernel, NAME).close()
    assert (kernel.instances, kernel.events) == ({}, [])


def test_a_short_removal_is_finished(kernel: FakeTracefs) -> None:
    instance = Instance.acquire(kernel, NAME, Removal(gives_up=lambda: True, least=math.inf))
    installed(instance, RECORDED, 10)
    instance.close()
    assert (kernel.instances, kernel.events) == ({}, [])


@pytest.mark.parametrize(
    "path",
    [
        "",
        "kprobe_events",
        "dynamic_events",
        "set_event_pid",
        "events/sched/sched_switch/trigger",
        "instances/a/trigger",
        "instances/a/events/b/trigger",
        "instances/a/events/b/c/d/trigger",
        "instances/../events/b/c/trigger",
        "instances/a/events/../../trigger",
        "/instances/a/events/b/c/trigger",
        "instances/a/../set_event_pid",
    ],
)
def test_no_other_path_is_truncated(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="must not be truncated"):
        MountedTracefs(tmp_path).truncate(path)
