"""probing.thread_tracepoints: the agent's own events are enabled before probes, and leave nothing behind."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from kprobe_exporter.errors import sentence
from kprobe_exporter.identity.processes import Processes
from kprobe_exporter.plan import Kernel
from kprobe_exporter.probing.thread_tracepoints import (
    CHANGES_OF_THREADS,
    EXEC,
    EXECUTED,
    EXIT_EVENTS,
    OwnTracepoints,
    process_handlers,
    thread_events,
)
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.removal import soft_trigger, soft_trigger_off
from tests.support.fake_tracefs import FakeTracefs
from tests.support.leftovers import list_probes

NAME = "own_test"
SOFT = f"instances/{NAME}.threads/events/sched/sched_process_exec/trigger"


@pytest.fixture
def files(tmp_path: Path) -> FakeTracefs:
    return FakeTracefs(tmp_path, {"do_exit"}, pages=True)


@pytest.fixture
def instance(files: FakeTracefs) -> Iterator[Instance]:
    instance = Instance.acquire(files, NAME)
    instance.set_up(64, record_tgid=False)
    yield instance
    if instance.threads is not None:
        instance.threads.close_pipes()
    instance.close()
    assert (list_probes(files), files.instances) == ([], {})


def followed(own: OwnTracepoints, instance: Instance) -> str | None:
    own.wanted = True
    kernel = Kernel(instance.event_format, counts_tracepoints=True, binary=True)
    return own.follow(instance, kernel, itertools.count())


def triggers(files: FakeTracefs) -> list[str]:
    return [text for path, text in files.writes if path == SOFT]


def test_tracepoint_is_enabled_softly_until_the_last_one_goes(files: FakeTracefs, instance: Instance) -> None:
    calls = OwnTracepoints((EXEC,), "")
    facts, cgroups = (OwnTracepoints((one,), "", before_probes=True) for one in (EXECUTED, EXEC))
    assert followed(calls, instance) is None
    assert triggers(files) == []
    assert facts.coming == set()
    facts.wanted = True
    assert facts.coming == {"tracepoint:sched:sched_process_exec"}
    assert followed(facts, instance) is None
    assert followed(cgroups, instance) is None
    assert facts.coming == set()
    on = [soft_trigger("sched", "sched_process_exec")]
    assert triggers(files) == on
    facts.enable()
    facts.disable()
    assert triggers(files) == on
    cgroups.disable()
    assert triggers(files) == [*on, soft_trigger_off("sched", "sched_process_exec")]


def test_ends_of_threads_come_from_a_function(files: FakeTracefs, instance: Instance) -> None:
    own = OwnTracepoints(EXIT_EVENTS, "")
    assert followed(own, instance) is None
    [part] = own.parts
    assert [event.line for event in files.probes] == [f"p:{NAME}/do_exit do_exit code=$arg1:s32"]
    assert thread_events(own, CHANGES_OF_THREADS)[part.layout.layout_id].kind == "placed"
    processes = Processes(Path("/nowhere"), lambda: 0, lambda time_ns: time_ns)
    processes.started(1, 8, 0, 5, b"sh")
    [handle] = process_handlers(own, processes).values()
    handle((part.layout.layout_id, 6, 0, 8, 8, None, 3 << 8))
    assert processes.fact("exit_code", 8, 7) == 3


def test_definition_is_used_again(files: FakeTracefs, instance: Instance) -> None:
    """To delete it would empty the buffer of the other events about threads."""
    own = OwnTracepoints(EXIT_EVENTS, "")
    for _ in range(3):
        assert followed(own, instance) is None
        own.enable()
        [event] = files.probes
        assert event.enabled == {f"{NAME}.threads"}
        own.disable()
        assert (files.probes, event.enabled) == ([event], set())


def test_name_of_a_probe_is_not_taken(files: FakeTracefs, instance: Instance) -> None:
    files.write("kprobe_events", "p:other/do_exit do_exit")
    own = OwnTracepoints(EXIT_EVENTS, "")
    assert followed(own, instance) is None
    assert [part.event for part in own.parts] == ["do_exit_2"]
    files.write("kprobe_events", "-:other/do_exit")


def test_kernel_without_kprobes(tmp_path: Path) -> None:
    files = FakeTracefs(tmp_path, set(), kprobes=False, pages=True)
    own = OwnTracepoints(EXIT_EVENTS, "")
    instance = Instance.acquire(files, NAME)
    instance.set_up(64, record_tgid=False)
    reason = followed(own, instance)
    instance.close()
    assert reason is not None
    assert "CONFIG_KPROBE_EVENTS" in sentence(reason)
    assert own.parts == ()
