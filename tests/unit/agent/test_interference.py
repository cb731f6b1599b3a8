"""interference: changes by other processes are noticed, logged once and repaired, but not for ever."""

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kprobe_exporter.agent import interference as module
from kprobe_exporter.agent.interference import (
    MEANING,
    RENEWED,
    REPAIRS,
    WITHIN,
    Fault,
    Interference,
    Repair,
)
from kprobe_exporter.tracefs.poller import Poller
from tests.support.machine import COUNTED, EVENTS, GROUP, OPEN, READ, Watched, watched
from tests.support.patience import eventually, patience


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Watched]:
    caplog.set_level(logging.INFO)
    with watched(tmp_path, monkeypatch, OPEN, READ, COUNTED) as made:
        yield made
    assert made.files.events == []


def test_nothing_is_wrong(machine: Watched) -> None:
    before = len(machine.files.writes)
    machine.look(times=10)
    assert machine.files.writes[before:] == []
    assert {machine.fault(name) for name in MEANING} >= {(0, 0)}
    assert machine.fault("probe_gone") == (0, 0)


def test_recording_that_was_stopped_goes_on(machine: Watched, caplog: pytest.LogCaptureFixture) -> None:
    machine.files.write(f"instances/{GROUP}/tracing_on", "0")
    machine.look()
    assert machine.real_read(f"instances/{GROUP}/tracing_on") == b"1"
    assert machine.fault("tracing_off") == (1, 1)
    machine.look()
    assert machine.fault("tracing_off") == (0, 1)
    assert caplog.text.count("[tracing_off]") == 1


@pytest.mark.parametrize(
    ("name", "ours", "another", "restored"),
    [
        ("trace_clock", "local [mono] x86-tsc", "local mono [x86-tsc]", "mono"),
        ("tracing_cpumask", "ff", "1", "ff"),
        ("buffer_size_kb", "1408", "4", "1408"),
        ("trace_options", "nostacktrace\noverwrite", "stacktrace\noverwrite", "nostacktrace"),
        ("set_event_pid", "", "77", ""),
    ],
)
def test_a_setting_is_set_again(
    machine: Watched, caplog: pytest.LogCaptureFixture, name: str, ours: str, another: str, restored: str
) -> None:
    path = f"instances/{GROUP}/{name}"
    machine.files.write(path, ours)
    machine.instance.settings.keep()
    machine.look()
    assert machine.fault("setting_changed") == (0, 0)
    machine.files.write(path, another)
    machine.look()
    assert machine.files.writes[-1] == (path, restored)
    assert machine.fault("setting_changed") == (1, 1)
    assert f"changed in instances/{GROUP}: {name}" in caplog.text
    machine.files.write(path, ours)
    machine.look()
    assert machine.fault("setting_changed") == (0, 1)


def test_an_option_that_a_tracer_brought_is_no_change(machine: Watched) -> None:
    path = f"instances/{GROUP}/trace_options"
    machine.files.write(path, "overwrite\nnofunc_stack_trace")
    machine.instance.settings.keep()
    machine.files.write(path, "overwrite\nnograph-time")
    machine.look()
    assert machine.fault("setting_changed") == (0, 0)


def test_the_agents_own_change_is_none(machine: Watched) -> None:
    machine.files.write(f"instances/{GROUP}/trace_options", "nouserstacktrace")
    machine.instance.settings.keep()
    machine.instance.write("trace_options", "userstacktrace")
    machine.look()
    assert machine.fault("setting_changed") == (0, 0)


@pytest.mark.parametrize("probe", ["open", "counted"])
def test_a_filter_is_set_again(machine: Watched, caplog: pytest.LogCaptureFixture, probe: str) -> None:
    path = f"{EVENTS}/{probe}/filter"
    before = machine.real_read(path)
    machine.files.write(path, "common_pid == 1")
    machine.look()
    assert machine.real_read(path) == before
    assert machine.fault("filter_changed") == (1, 1)
    machine.look()
    assert machine.fault("filter_changed") == (0, 1)
    assert caplog.text.count("[filter_changed]") == 1


@pytest.mark.parametrize(("shows_filters", "looks"), [(False, 3), (True, 1)])
@pytest.mark.parametrize("ours", [None, "common_pid > 0"])
def test_a_filter_of_many_is_set_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: str | None, looks: int, *, shows_filters: bool
) -> None:
    """Linux 7.0 shows all filters in one file, so that the next look sees a changed one."""
    part = f", filter: {ours!r}" if ours else ""
    probes = [f"{{name: p{at}, attach: 'kprobe:do_open', limit: none{part}}}" for at in range(50)]
    with watched(tmp_path, monkeypatch, *probes) as machine:
        machine.files.shows_filters = shows_filters
        machine.look(times=3)
        assert machine.fault("filter_changed") == (0, 0)
        for another in ("common_pid == 1", "0") if ours else ("common_pid == 1",):
            path = f"{EVENTS}/p49/filter"
            before, began = machine.real_read(path), machine.fault("filter_changed")[1]
            machine.files.write(path, another)
            machine.look(times=looks - 1)
            assert machine.real_read(path) != before or looks > 1
            machine.look()
            assert machine.real_read(path) == before
            assert machine.fault("filter_changed")[1] == int(str(began)) + 1
            machine.look(times=3)


def test_a_disabled_probe_is_enabled(machine: Watched, caplog: pytest.LogCaptureFixture) -> None:
    machine.fire("do_open", 3)
    machine.files.write(f"{EVENTS}/open/enable", "0")
    machine.fire("do_open", 4)
    machine.look()
    machine.fire("do_open", 5)
    machine.shows((8, "kprobe_exporter_events_total", "open"), (1, "kprobe_up", "open"))
    machine.look()
    assert machine.fault("probe_disabled") == (0, 1)
    assert caplog.text.count("[probe_disabled]") == 1


def test_a_soft_probe_counts_on(machine: Watched) -> None:
    machine.files.write(f"{EVENTS}/counted/trigger", "!enable_event")
    machine.look()
    machine.fire("do_write", 5)
    machine.shows((5, "kprobe_hits_total", "counted"))


def test_a_deleted_probe_is_installed_again(machine: Watched, caplog: pytest.LogCaptureFixture) -> None:
    machine.fire("do_open", 3)
    machine.shows((3, "kprobe_hits_total", "open"))
    machine.delete("open")
    machine.look()
    machine.fire("do_open", 4)
    machine.shows((7, "kprobe_hits_total", "open"), (7, "kprobe_opens_total"), (1, "kprobe_up", "open"))
    assert caplog.text.count("[probe_gone]") == 1
    machine.look()
    assert machine.fault("probe_gone") == (0, 1)


def test_who_insists_is_left_for_a_while(machine: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(REPAIRS + 1):
        assert machine.value("kprobe_up", "open") == 1
        machine.files.write(f"{EVENTS}/open/enable", "0")
        machine.look()
    assert machine.value("kprobe_up", "open") == 0
    assert (machine.status("open").state, machine.status("open").reason) == (
        "down",
        "another process disabled it in the agent's instance, 4 times within 60 s: it is left alone for 10 s",
    )
    machine.look(times=9)
    assert machine.value("kprobe_up", "open") == 0
    machine.look()
    assert machine.value("kprobe_up", "open") == 1
    machine.fire("do_open", 2)
    machine.shows((2, "kprobe_exporter_events_total", "open"))
    assert caplog.text.count("is down") == 1


def test_now_and_then_is_no_insisting(machine: Watched) -> None:
    for _ in range(3 * REPAIRS):
        machine.files.write(f"{EVENTS}/open/enable", "0")
        machine.look(WITHIN / REPAIRS + 1)
        assert machine.value("kprobe_up", "open") == 1


def test_what_cannot_be_installed_again_is_tried(machine: Watched) -> None:
    machine.delete("open")
    machine.files.functions.discard("do_open")
    machine.look()
    assert machine.value("kprobe_up", "open") == 0
    machine.files.functions.add("do_open")
    machine.look(times=11)
    assert machine.value("kprobe_up", "open") == 1


@pytest.mark.parametrize(
    ("code", "fault"),
    [(errno.ENOENT, "instance_gone"), (errno.EPERM, "locked_down"), (errno.EMFILE, "descriptors_exhausted")],
)
def test_an_instance_that_cannot_be_read(
    machine: Watched, code: int, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """The last counts stay, no probe is taken for deleted, and counting continues when reads work again."""
    machine.fire("do_open", 3)
    machine.shows((3, "kprobe_hits_total", "open"))
    machine.broken = OSError(code, os.strerror(code))
    machine.look(times=3)
    assert machine.fault(fault) == (1, 1)
    assert machine.fault("probe_gone") == (0, 0)
    assert machine.value("kprobe_hits_total", "open") == 3
    machine.broken = None
    machine.look()
    assert machine.fault(fault) == (0, 1)
    machine.fire("do_open", 3)
    machine.shows((6, "kprobe_hits_total", "open"))
    assert caplog.text.count(f"[{fault}]") == 2  # when it began, and when it ended


def test_the_machines_switch_is_told_and_left(machine: Watched, caplog: pytest.LogCaptureFixture) -> None:
    machine.switch.write_text("0\n")
    machine.look(times=3)
    assert machine.fault("ftrace_off") == (1, 1)
    assert machine.switch.read_text() == "0\n"
    machine.switch.write_text("1\n")
    machine.look()
    assert machine.fault("ftrace_off") == (0, 1)
    assert caplog.text.count("[ftrace_off]") == 2


def test_a_change_under_way_is_no_fault(machine: Watched) -> None:
    machine.files.write(f"{EVENTS}/open/enable", "0")
    with machine.agent._changing:
        machine.look()
    assert machine.fault("probe_disabled") == (0, 0)


def test_many_probes_take_turns(machine: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTS_A_LOOK", 1)
    for name in ("open", "read"):
        machine.files.write(f"{EVENTS}/{name}/enable", "0")
    machine.look(times=3)
    assert machine.fault("probe_disabled")[1] == 2
    assert {"open", "read"} <= set(machine.enabled())


def test_a_poller_stuck_in_the_kernel_stops_no_scrape(machine: Watched) -> None:
    """A scrape waits for a bounded time; the age of the hits grows, and events are still counted."""
    release = threading.Event()
    machine.fire("do_open", 3)
    machine.shows((3, "kprobe_hits_total", "open"))
    poller: Poller = machine.agent._probe_set.poller
    poller._read = lambda: release.wait(patience(60))  # type: ignore[assignment, return-value]
    machine.fire("do_open", 4)
    ages = []
    for _ in range(2):
        eventually(lambda: machine.value("kprobe_exporter_events_total", "open") == 7)
        ages.append(machine.value("kprobe_exporter_kernel_read_age_seconds"))
    assert machine.value("kprobe_hits_total", "open") == 3
    assert 0 < ages[0] < ages[1]
    release.set()


def test_what_interrupts_recording_casts_doubt_before_it_is_mended(
    machine: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each interruption are on record the probe's name, and whether recording was on again by then."""
    on_record: list[tuple[str, bool]] = []
    tracing_on, enable = f"instances/{GROUP}/tracing_on", f"{EVENTS}/open/enable"

    def interrupted(name: str) -> None:
        enabled = machine.files.exists(enable) and machine.read_file(enable).startswith(b"1")
        on_record.append((name, machine.real_read(tracing_on) == b"1" and enabled))

    monkeypatch.setattr(machine.agent._probe_set, "interrupted", interrupted)
    machine.look()
    assert on_record == []
    machine.files.write(tracing_on, "0")
    machine.look()
    assert on_record == [("", False)]
    machine.look()
    machine.files.write(enable, "0")
    machine.look()
    assert on_record[1:] == [("open", False)]
    machine.delete("open")
    machine.look()
    assert on_record[2:] == [("", False)]
    machine.look()
    machine.switch.write_text("0\n")
    machine.look(times=3)
    assert on_record[3:] == [("", True)]


def test_no_pair_spans_it(machine: Watched) -> None:
    pair = "{pair: {from: 'kprobe:do_open', to: 'kprobe:do_read', key: tid}}"
    assert machine.reload(f"{{name: pair, attach: {pair}}}") is None
    for name, unpaired in ((["another"], 0), (["pair"], 1), ([], 2)):
        machine.fire("do_open")
        machine.agent._probe_set.interrupted(*name)
        machine.fire("do_read")
        machine.shows(
            (unpaired, "kprobe_exporter_events_lost_total", "unpaired"),
            (1, "kprobe_exporter_events_total", "pair"),
        )


@pytest.mark.parametrize("change", ["disable", "enable", "reload"])
def test_no_descriptor_for_a_change_ends_nothing(machine: Watched, change: str) -> None:
    """Without a free descriptor the agent continues, and tries again to install the probe."""
    if change == "enable":
        machine.agent.disable("open", "too loud")
    real = machine.files.read

    def read(path: str) -> bytes:
        if path in ("kprobe_events", "dynamic_events", "uprobe_events"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path)

    machine.files.read = read  # type: ignore[method-assign]
    if change == "reload":
        assert machine.reload(OPEN.replace("opens", "others"), READ, COUNTED) is None
    elif change == "disable":
        machine.agent.disable("open", "too loud")
    else:
        assert not machine.agent.enable("open")
    machine.files.read = real  # type: ignore[method-assign]
    assert not machine.stop.is_set()
    if change == "disable":
        return
    assert machine.value("kprobe_up", "open") == 0
    machine.look(times=12)
    assert machine.value("kprobe_up", "open") == 1


def test_no_reload_while_tracefs_is_gone(machine: Watched) -> None:
    machine.broken = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    assert "No such file or directory" in (machine.reload(OPEN, READ) or "")
    machine.broken = None
    assert machine.value("kprobe_up", "counted") == 1
    assert machine.reload(OPEN, READ) is None
    assert machine.value("kprobe_up", "counted") is None


def test_a_pair_with_a_full_table_begins_anew_at_most_every_ten_minutes(machine: Watched) -> None:
    pair = SimpleNamespace(is_full=False)
    probe: Any = SimpleNamespace(name="p", state="up", attached=SimpleNamespace(pair=pair))
    interference = Interference(machine.instance, lambda name: None)
    assert [*interference._full([probe], 5.0)] == []
    pair.is_full = True
    assert [*interference._full([probe], 6.0)] == [Repair("p", "replace")]
    assert [*interference._full([probe], 6.0 + RENEWED - 1)] == []
    assert [*interference._full([probe], 6.0 + RENEWED)] == [Repair("p", "replace")]


def test_pair_without_a_trigger_begins_anew(machine: Watched) -> None:
    pair = SimpleNamespace(are_whole=lambda: True)
    probe: Any = SimpleNamespace(name="p", state="up", attached=SimpleNamespace(pair=pair))
    interference = Interference(machine.instance, lambda name: None)
    assert [*interference._broken_pairs([probe], 5.0)] == []
    pair.are_whole = lambda: False
    repairs = [*interference._broken_pairs([probe], 6.0)]
    assert repairs == [Repair("p", "replace")]
    assert [one.action for n in range(7, 10) for one in interference._broken_pairs([probe], n)][-1] == "leave"


def test_recording_that_was_changed_is_repaired(machine: Watched, caplog: pytest.LogCaptureFixture) -> None:
    one = "{name: slow, probes: [open]}"
    machine.head = f"record: {{directory: {machine.config.parent}/files, recordings: [{one}]}}\n"
    assert machine.reload(OPEN, READ, COUNTED) is None
    machine.look()
    assert machine.fault("recording_changed") == (0, 0)
    [running] = vars(machine.agent.recorder)["_running"].values()
    begun = running.begun
    path = f"instances/{GROUP}.slow.a"
    machine.files.write(f"{path}/tracing_on", "0")
    machine.look()
    assert machine.real_read(f"{path}/tracing_on") == b"1"
    assert machine.fault("recording_changed") == (1, 1)
    assert f"changed in a recording: {path}: tracing_on" in caplog.text
    assert running.begun > begun  # events before it may be missing
    machine.look()
    assert machine.fault("recording_changed") == (0, 1)
    machine.head = ""
    assert machine.reload(OPEN, READ, COUNTED) is None
