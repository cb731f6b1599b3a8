"""The agent on a fake kernel: what a reload changes, what it leaves alone, and that nothing accumulates."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kprobe_exporter.agent import otlp, probe_set
from kprobe_exporter.config.model import Config
from kprobe_exporter.errors import SourceError
from kprobe_exporter.model.stacks import Weight
from kprobe_exporter.plan import Sample
from tests.support.keeping_sender import KeepingSender
from tests.support.machine import COUNTED, GROUP, OPEN, READ, TID, Machine
from tests.support.patience import patience

OPEN_BY_TID = OPEN.replace("opens_total", "opens_total, labels: [tid]")
OPEN_TWICE = OPEN.replace("[{", "[{counter: more_total}, {")
OPEN_WITH_STACK_POINTER = OPEN.replace("do_open'", "do_open', fetch: {sp: '$stack:u64'}")
OPEN_FILTERED = OPEN.replace("do_open'", "do_open', filter: 'common_pid > 0'")
GONE = "{name: gone, attach: 'kprobe:not_there'}"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every request for the kernel's counts read them again."""
    monkeypatch.setattr("kprobe_exporter.tracefs.poller.MAX_AGE", 0.0)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()
    assert made.files.events == []
    assert made.files.instances == {}


def opens(machine: Machine, times: int) -> None:
    """Wait for the hits, the events and the metric of the probe "open"."""
    machine.shows(
        (times, "kprobe_hits_total", "open"),
        (times, "kprobe_exporter_events_total", "open"),
        (times, "kprobe_opens_total"),
        (0, "kprobe_exporter_events_lost_total", "unparsed"),
    )


def test_a_probe_that_stays_is_not_touched(machine: Machine) -> None:
    machine.start(OPEN, READ)
    machine.fire("do_open", 23)
    before = len(machine.files.writes)
    assert machine.reload(OPEN, COUNTED) is None
    machine.fire("do_open", 24)
    assert [w for w in machine.files.writes[before:] if "open" in f"{w}".replace("kprobe_open", "")] == []
    opens(machine, 47)


def test_a_probe_that_is_removed_is_gone(machine: Machine) -> None:
    machine.start(OPEN, READ)
    machine.fire("do_read", 5)
    machine.shows((5, "kprobe_reads_total"))
    assert machine.reload(OPEN) is None
    machine.fire("do_read", 5)
    snapshot = machine.agent.snapshot()
    assert [probe.name for probe in snapshot.probes] == ["open"]
    assert "kprobe_reads_total" not in [family.name for family in snapshot.families]
    for family in snapshot.families:
        assert all("read" not in labels for labels in family.samples)
    assert machine.enabled() == ["open"]
    assert machine.defined() == ["open", "read"]  # retired, because deleting it wipes unread events


@pytest.mark.parametrize(
    ("changed", "body"), [(OPEN_TWICE, ""), (OPEN_FILTERED, ""), (OPEN_WITH_STACK_POINTER, " sp=0x7")]
)
def test_the_numbers_of_a_changed_probe_go_on(machine: Machine, changed: str, body: str) -> None:
    machine.start(OPEN, READ)
    machine.fire("do_open", 23)
    assert machine.reload(changed, READ) is None
    machine.shows((23, "kprobe_hits_total", "open"), (23, "kprobe_opens_total"))
    machine.fire("do_open", 24, body)
    opens(machine, 47)
    assert len(machine.enabled()) == 2


def test_a_probe_that_never_fires_is_said_to(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine.files.functions.add("do_sys_open")
    lists = b"do_sys_open\ndo_sys_openat2\n"
    read = machine.files.read
    monkeypatch.setattr(
        machine.files, "read", lambda path: lists if path == "available_filter_functions" else read(path)
    )
    machine.start("{name: silent, attach: 'kprobe:do_sys_open'}")
    why = "it will never fire: open(2) does not go through it, name do_sys_openat2"
    assert f"the probe 'silent': {why}" in caplog.text
    [probe] = machine.agent.snapshot().probes
    assert (probe.state, probe.reason) == ("up", f"kprobe:do_sys_open: {why}.")


def test_events_that_were_unread_are_counted_by_what_they_were_of(machine: Machine) -> None:
    """Without a scrape before the reload, unread events and counts still belong to the old metrics."""
    machine.start(OPEN, READ)
    machine.fire("do_open", 500)
    assert machine.reload(OPEN_TWICE, READ) is None
    machine.shows((500, "kprobe_hits_total", "open"), (500, "kprobe_opens_total"), (0, "kprobe_more_total"))


def test_a_metric_that_means_something_else_begins_anew(machine: Machine) -> None:
    machine.start(OPEN)
    machine.fire("do_open", 23)
    machine.shows((23, "kprobe_opens_total"))
    assert machine.reload(OPEN_BY_TID) is None
    machine.fire("do_open", 5)
    machine.shows((5, "kprobe_opens_total", str(TID)), (28, "kprobe_exporter_events_total", "open"))
    assert machine.value("kprobe_opens_total") is None


def test_lost_stacks_are_a_metric(machine: Machine) -> None:
    """A reload that keeps the stacks keeps the count; a probe without stacks has none."""
    name = "kprobe_exporter_stack_hits_lost_total"
    counted = OPEN.replace("attach", "stacks: {max: 1}, attach")
    machine.start(counted, READ)
    counts = machine.agent._stacks.of("open")
    assert counts is not None
    assert (machine.value(name, "open"), machine.value(name, "read")) == (0, None)
    for stack, hits in ((b"a", 1), (b"b", 3), (b"c", 4)):
        counts.add((stack,), Weight(hits, 0))
    assert machine.value(name, "open") == 7
    assert machine.reload(counted) is None
    assert machine.value(name, "open") == 7
    assert machine.reload(READ) is None
    assert machine.value(name, "open") is None


def test_a_new_probe_counts(machine: Machine) -> None:
    machine.start(OPEN)
    assert machine.reload(OPEN, READ, COUNTED) is None
    machine.fire("do_read", 3)
    machine.fire("do_write", 4)
    machine.shows(
        (3, "kprobe_reads_total"), (3, "kprobe_hits_total", "read"), (4, "kprobe_hits_total", "counted")
    )


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("probes: [{name: open}]", "config.yaml:1:10: probes[0]"),
        ("probes: []", "there is no probe"),
        (f"global: {{source: binary}}\nprobes: [{READ}]", "global.source cannot be changed"),
        (f"global: {{buffer_size: 8MiB}}\nprobes: [{READ}]", "global.buffer_size cannot be changed"),
        (f"otlp: {{endpoint: 'http://x:1'}}\nprobes: [{READ}]", "otlp cannot be changed"),
        ("{", "config.yaml:"),
    ],
)
def test_what_cannot_be_had_leaves_the_old_one_whole(
    machine: Machine, broken: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine.start(OPEN, COUNTED)
    assert machine.successful()[0] == 1
    started = machine.successful()[1]
    before = len(machine.files.writes)
    machine.config.write_text(broken)
    answer = machine.agent.reload(machine.read)
    assert answer is not None
    assert reason in answer
    assert all(line in caplog.text for line in answer.splitlines())
    assert machine.files.writes[before:] == []
    assert machine.successful() == (0, started)
    machine.fire("do_open", 23)
    machine.fire("do_write", 23)
    machine.shows((23, "kprobe_opens_total"), (23, "kprobe_hits_total", "counted"))
    assert machine.reload(READ) is None
    assert machine.successful()[0] == 1
    assert machine.successful()[1] > started


def test_what_the_kernel_refuses_is_down_and_tried_again(machine: Machine) -> None:
    machine.start(OPEN)
    assert machine.reload(OPEN, GONE) is None
    machine.shows((0, "kprobe_up", "gone"), (1, "kprobe_up", "open"))
    assert machine.successful()[0] == 1
    machine.files.functions.add("not_there")
    assert machine.reload(OPEN, GONE) is None
    machine.fire("not_there", 3)
    machine.shows((1, "kprobe_up", "gone"), (3, "kprobe_hits_total", "gone"))


def test_the_order_is_the_configurations(machine: Machine) -> None:
    machine.start(OPEN, READ)
    before = len(machine.files.writes)
    assert machine.reload(READ, OPEN) is None
    assert [probe.name for probe in machine.agent.snapshot().probes] == ["read", "open"]
    assert machine.files.writes[before:] == []


def test_limits_apply(machine: Machine) -> None:
    machine.start(OPEN_BY_TID, settings="max_series: 10")
    assert machine.reload(OPEN_BY_TID, settings="max_series: 2") is None
    for tid in range(1, 8):
        machine.files.fire("do_open", tid=tid)
    machine.shows((5, "kprobe_opens_total", "__overflow__"))
    assert machine.reload(OPEN_BY_TID, settings="max_series: 3") is None
    machine.files.fire("do_open", tid=7)
    machine.shows((5, "kprobe_opens_total", "__overflow__"), (1, "kprobe_opens_total", "7"))


def test_what_was_removed_makes_room(machine: Machine) -> None:
    machine.start(OPEN_BY_TID, settings="max_series: 2, max_series_total: 2")
    for tid in (1, 2):
        machine.files.fire("do_open", tid=tid)
    machine.shows((1, "kprobe_opens_total", "2"))
    reads = READ.replace("reads_total", "reads_total, labels: [tid]")
    assert machine.reload(reads, settings="max_series: 2, max_series_total: 2") is None
    for tid in (1, 2):
        machine.files.fire("do_read", tid=tid)
    machine.shows((1, "kprobe_reads_total", "1"), (1, "kprobe_reads_total", "2"))


def test_a_long_life_between_two_configurations_gathers_nothing(machine: Machine) -> None:
    machine.start(OPEN, READ, COUNTED)
    texts = [(OPEN_WITH_STACK_POINTER, COUNTED, GONE), (OPEN, READ, COUNTED)]
    for text in texts * 2:
        assert machine.reload(*text) is None
    gc.collect()  # free the garbage of other tests now, so that it does not change the numbers
    definitions, threads = machine.defined(), threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))

    def sizes() -> tuple[int, int]:
        return len(machine.agent._aggregator._attached), len(machine.agent._pipeline._flows)

    before = sizes()
    for number in range(30):
        machine.fire("do_open", body=["", " sp=0x7"][number % 2])
        assert machine.reload(*texts[number % 2]) is None
    assert machine.defined() == definitions
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert sizes() == before
    opens(machine, 30)


def test_retired_definitions_are_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_set, "MOST_RETIRED", 8)
    monkeypatch.setattr(probe_set, "KEPT", 4)
    machine.start(OPEN, COUNTED)
    for number in range(40):
        machine.fire("do_open")
        fetches = READ.replace("do_read'", f"do_read', fetch: {{a{number}: '$stack'}}")
        assert machine.reload(OPEN, COUNTED, fetches) is None
        assert len(machine.defined()) <= 3 + 8
    assert machine.files.instances[GROUP].values["tracing_on"] == "1"
    opens(machine, 40)


def test_the_help_is_that_of_the_alternative(machine: Machine) -> None:
    ways = "attach: ['kprobe:not_there', {to: 'kprobe:do_open', help: Less than that}]"
    machine.start(f"{{name: a, help: All, {ways}}}", "{name: b, help: All, attach: 'kprobe:do_read'}")
    assert [probe.help for probe in machine.agent.snapshot().probes] == ["Less than that", "All"]


def test_a_probe_is_switched_off_and_on(machine: Machine) -> None:
    machine.start(OPEN, READ)
    machine.fire("do_open", 3)
    assert machine.agent.disable("open", "it fires too often")
    assert not machine.agent.disable("open", "again")
    machine.fire("do_open", 100)
    machine.shows((0, "kprobe_up", "open"), (3, "kprobe_hits_total", "open"), (3, "kprobe_opens_total"))
    status = machine.status("open")
    assert (status.state, status.reason) == ("tripped", "it fires too often")
    assert machine.reload(OPEN, READ) is None  # it stays off, because its configuration did not change
    machine.shows((0, "kprobe_up", "open"))
    assert machine.agent.enable("open")
    assert not machine.agent.enable("open")
    machine.fire("do_open", 4)
    machine.shows((1, "kprobe_up", "open"))
    opens(machine, 7)
    assert machine.defined() == ["open", "read"]


CRITICAL = OPEN.replace("}]}", "}], critical: true}")
SAMPLING = "kprobe_exporter_probe_sampling_ratio"


def test_a_critical_probe_is_sampled_and_whole_again(machine: Machine) -> None:
    """The fake kernel evaluates no filter: what is fired stands for the events that pass it."""
    machine.start(CRITICAL, READ)
    machine.shows((1.0, SAMPLING, "open"), (None, SAMPLING, "read"))
    assert machine.agent.sample("open", Sample(8, 3), "it fires too often")
    machine.fire("do_open", 5)
    machine.shows((0.125, SAMPLING, "open"), (1, "kprobe_up", "open"), (5, "kprobe_opens_total"))
    status = machine.status("open")
    assert (status.state, status.reason, status.lost) == ("up", "it fires too often.", None)
    [name] = {"open", "open_2"} & set(machine.enabled())
    values = machine.files.instances[GROUP].values
    assert values[f"events/{GROUP}/{name}/filter"] == Sample(8, 3).condition
    assert machine.reload(CRITICAL, READ) is None  # it stays sampled: its configuration is the same
    machine.shows((0.125, SAMPLING, "open"))
    assert machine.agent.enable("open")
    assert not machine.agent.enable("open")
    [name] = {"open", "open_2"} & set(machine.enabled())
    assert values.get(f"events/{GROUP}/{name}/filter", "0") == "0"
    machine.fire("do_open", 4)
    machine.shows((1.0, SAMPLING, "open"), (9, "kprobe_opens_total"), (9, "kprobe_hits_total", "open"))


def test_who_is_not_there_is_not_switched(machine: Machine) -> None:
    machine.start(OPEN, COUNTED.replace("}", ", enabled: false}"))
    assert not machine.agent.disable("nobody", "why")
    assert not machine.agent.enable("nobody")
    assert not machine.agent.enable("counted")
    assert machine.enabled() == ["open"]


EXECS = "{name: %s, attach: 'tracepoint:sched:sched_process_exec', metrics: [{counter: %s_total}]}"


@pytest.mark.parametrize("order", [0, 1])
def test_what_two_probes_share_stays_as_long_as_one_needs_it(tmp_path: Path, order: int) -> None:
    """A tracepoint's own event has one ``enable`` file in an instance, for all probes that use it."""
    machine = Machine(tmp_path, eprobes=False)
    both = [EXECS % (name, name) for name in ("first", "second")]
    machine.start(*both)
    try:
        enable = "events/sched/sched_process_exec/enable"
        values = machine.files.instances[GROUP].values
        assert values[enable] == "1"
        assert machine.reload(both[order]) is None
        assert values[enable] == "1"
        assert machine.reload(OPEN) is None
        assert values[enable] == "0"
    finally:
        machine.agent.__exit__()


def test_one_reload_after_the_other(machine: Machine) -> None:
    machine.start(OPEN)
    inside, most = [0], [0]
    gate = threading.Event()

    def read() -> Config:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        assert gate.wait(patience(10))
        inside[0] -= 1
        return machine.read()

    machine.write(OPEN, READ)
    threads = [threading.Thread(target=machine.agent.reload, args=(read,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    machine.shows((1, "kprobe_up", "read"))


def test_a_scrape_does_not_wait_for_a_kernel_that_is_slow_to_enable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.start(OPEN)
    entered, gate = threading.Event(), threading.Event()
    write = machine.files.write

    def slow(path: str, text: str) -> None:
        if path.endswith("/read/enable") and text == "1":
            entered.set()
            assert gate.wait(patience(10))
        write(path, text)

    monkeypatch.setattr(machine.files, "write", slow)
    machine.write(OPEN, READ)
    thread = threading.Thread(target=machine.agent.reload, args=(machine.read,))
    thread.start()
    assert entered.wait(patience(10))
    machine.fire("do_open", 5)
    machine.shows((5, "kprobe_opens_total"), (1, "kprobe_up", "open"), (0, "kprobe_up", "read"))
    gate.set()
    thread.join()
    machine.shows((1, "kprobe_up", "read"))


def test_an_agent_that_stops_reloads_no_more(machine: Machine) -> None:
    machine.start(OPEN)
    machine.stop.set()
    assert machine.reload(READ) == "the agent stops."
    machine.agent.__exit__()
    assert machine.reload(READ) == "the agent stops."


def test_a_stop_in_the_middle_of_a_reload_is_heeded(machine: Machine) -> None:
    machine.start(OPEN)

    def read() -> Config:
        machine.stop.set()
        return machine.read()

    machine.write(OPEN, READ, COUNTED)
    before = len(machine.files.writes)
    # The stop was requested before the configuration was read, so none of its probes is installed.
    machine.agent.reload(read)
    assert [path for path, text in machine.files.writes[before:] if text.startswith("p:")] == []


def test_a_kernel_that_cannot_be_asked_leaves_the_old_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.start(OPEN)

    def broken(*_: object, **__: object) -> object:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("kprobe_exporter.agent.installer.known_kernel", broken)
    assert (machine.reload(OPEN, READ) or "").startswith("unexpected error from the kernel")
    machine.fire("do_open", 3)
    machine.shows((3, "kprobe_opens_total"), (1, "kprobe_up", "open"))
    assert machine.successful()[0] == 0


def test_exports_come_and_go(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint is known from the start; a reload may change what is exported."""
    collected = KeepingSender()
    monkeypatch.setattr(otlp, "connect", lambda *_: collected)
    machine.head = "otlp: {endpoint: 'http://localhost:4318'}\n"
    exported = READ.replace("}]}", "}], export: log}")
    machine.start(OPEN, READ)
    machine.fire("do_read")
    assert machine.reload(OPEN, exported) is None
    machine.fire("do_read", 3, ' comm="a"')
    machine.shows((4, "kprobe_reads_total"), (3, "kprobe_exporter_otlp_exported_total", "logs"))
    assert machine.reload(OPEN, READ) is None
    machine.fire("do_read", 5)
    machine.shows((9, "kprobe_reads_total"), (3, "kprobe_exporter_otlp_exported_total", "logs"))
    assert machine.reload(OPEN, exported.replace("log}", "{as: log, where: 'tid > 1'}}")) is None
    machine.fire("do_read", 7, ' comm="a"')
    machine.shows((16, "kprobe_reads_total"), (3, "kprobe_exporter_otlp_exported_total", "logs"))
    assert len(collected.items) == 3


def test_a_change_that_cannot_be_finished_ends_the_agent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent ends rather than run half a configuration: a new start is better."""
    machine.start(OPEN)

    def broken(*_: object) -> None:
        raise SourceError("no events are read any more.")

    monkeypatch.setattr("kprobe_exporter.agent.pipeline.Pipeline.switch", broken)
    assert machine.reload(READ) == "no events are read any more."
    assert machine.stop.is_set()
    assert isinstance(machine.agent.error, SourceError)
