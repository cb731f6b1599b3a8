"""What `run` would settle on, of kernels that are said to be so and so."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.config.values import Attach, Config, Label, Metric, Probe, Settings
from kprobe_exporter.grammar.target import Target, parse_target
from kprobe_exporter.live import Known, Row, near_tracepoint, resolve
from kprobe_exporter.plan import Kernel
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.functions import Answer
from kprobe_exporter.tracefs.instance import Instance
from tests.fake_tracefs import EXEC_FORMAT

EXEC = "tracepoint:sched:sched_process_exec"
COMM = (Metric("counter", "x_total", "help", labels=(Label("comm", "comm"),)),)
HITS = "nothing but hits is asked for"
YES, NO, TRY = Answer(True), Answer(False, "it cannot"), Answer(None, "only trying tells")


def known(
    functions: dict[str, Answer] | None = None,
    eprobes: Answer = YES,
    hist: bool = True,
    lacks: tuple[str, ...] = (),
) -> Known:
    def event_format(system: str, event: str) -> str | None:
        return EXEC_FORMAT if (system, event) == ("sched", "sched_process_exec") else None

    return Known(
        Kernel(event_format, counts_tracepoints=hist),
        lambda path: path not in lacks,
        lambda target: (functions or {}).get(target.symbol, NO),
        eprobes,
        lambda target: f", did you mean '{target.event}_2'?",
    )


def probe(name: str, *to: str, only: str | None = None, **more: Any) -> Probe:
    ways = tuple(Attach(parse_target(text), {}, only, None) for text in to)
    return Probe(name, "help", ways, **more)


def rows(kernel: Known, *probes: Probe) -> list[Row]:
    return resolve(Config(Settings(), probes), kernel)


def row(kernel: Known, made: Probe) -> Row:
    (found,) = rows(kernel, made)
    return found


def test_the_first_that_works() -> None:
    made = probe("p", "kprobe:a", "kprobe:b", EXEC)
    assert row(known({"a": YES}), made) == Row("p", "up", "kprobe", "kprobe:a", "count", (HITS,))
    assert row(known({"b": YES}), made) == Row(
        "p", "up", "kprobe", "kprobe:b", "count", (HITS, "kprobe:a: it cannot")
    )
    found = row(known(lacks=("kprobe_events",)), made)
    assert (found.state, found.target) == ("up", EXEC)
    assert found.why[1].startswith("kprobe:a: this kernel was built without CONFIG_KPROBE_EVENTS")


def test_none_that_works() -> None:
    made = probe("p", "kretprobe:a", "tracepoint:sched:no")
    why = (
        "it cannot",
        "tracepoint:sched:no: this kernel has no tracepoint sched:no, did you mean 'no_2'?",
    )
    assert row(known(), made) == Row("p", "down", "kretprobe", "kretprobe:a", "", why)
    optional = probe("p", "kretprobe:a", optional=True)
    assert row(known(), optional).state == "absent"


def test_one_that_is_disabled_is_not_judged() -> None:
    made = probe("p", "kprobe:a", enabled=False)
    assert row(known(), made) == Row(
        "p", "disabled", "kprobe", "kprobe:a", "", ("'enabled: false' in the configuration",)
    )


def test_what_only_trying_tells() -> None:
    made = probe("p", "kprobe:a+4", "kprobe:b")
    alone = row(known({"a": TRY}), made)
    assert alone == Row(
        "p", "unsure", "kprobe", "kprobe:a+4", "count", (HITS, "only trying tells", "kprobe:b: it cannot")
    )
    sure = row(known({"a": TRY, "b": YES}), made)
    assert (sure.state, sure.target) == ("up", "kprobe:a+4")
    assert sure.why == (HITS, "only trying tells; else kprobe:b")


def test_a_note_is_shown() -> None:
    found = row(known({"a": Answer(True, "it never fires")}), probe("p", "kprobe:a"))
    assert (found.state, found.why) == ("up", (HITS, "it never fires"))


@pytest.mark.parametrize("eprobes", [YES, NO, TRY])
@pytest.mark.parametrize("hist", [True, False])
def test_a_tracepoint(eprobes: Answer, hist: bool) -> None:
    """The same target and plan, whether the kernel has eprobes or not."""
    counted = row(known(eprobes=eprobes, hist=hist), probe("p", EXEC))
    assert (counted.state, counted.target) == ("up", EXEC)
    assert counted.plan == ("count" if hist else "events")
    named = row(known(eprobes=eprobes, hist=hist), probe("p", EXEC, metrics=COMM))
    assert (named.state, named.target, named.plan) == ("up", EXEC, "events")
    because = "the metric x_total takes its events"
    assert named.why == ((because, "only trying tells") if eprobes is TRY else (because,))


@pytest.mark.parametrize("to", ["kprobe:a", EXEC])
def test_one_that_the_kernel_aggregates(to: str) -> None:
    made = probe("p", to, aggregate="kernel")
    found = row(known({"a": YES}), made)
    assert (found.state, found.plan, found.why) == ("up", "kernel", ("aggregate: kernel",))
    found = row(known({"a": YES}, hist=False), made)
    assert (found.state, found.plan) == ("down", "")
    assert "CONFIG_HIST_TRIGGERS" in found.why[0]


def test_two_on_one_tracepoint() -> None:
    """They need eprobes, if the kernel is to filter."""
    pair = probe("p", EXEC, metrics=COMM), probe("q", EXEC, only='comm == "cron"')
    assert [found.state for found in rows(known(), *pair)] == ["up", "up"]
    _, second = rows(known(eprobes=NO, hist=False), *pair)
    assert second.state == "down"
    assert "the probe 'p' has this tracepoint already" in second.why[0]
    assert [found.state for found in rows(known(eprobes=TRY), *pair)] == ["up", "unsure"]


def test_a_tracepoint_that_cannot_be_enabled() -> None:
    lacks = ("events/sched/sched_process_exec/enable",)
    found = row(known(eprobes=NO, lacks=lacks), probe("p", EXEC, metrics=COMM))
    assert found.state == "down"


def touch(root: Path, *events: str) -> ReadOnlyTracefs:
    for event in events:
        (root / "events" / event).mkdir(parents=True)
        (root / "events" / event / "format").touch()
        (root / "events" / event).with_name("enable").touch()
    (root / "events" / "enable").touch()
    return ReadOnlyTracefs(root)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sched:sched_swich", "'sched_switch'"),
        ("sched:sys_enter_openat", "'syscalls:sys_enter_openat'"),
        ("shced:other", "'sched'"),
        ("sched:zzzzzz", ""),
        ("zzzzz:zzzzzz", ""),
    ],
)
def test_a_tracepoint_of_nearly_that_name(tmp_path: Path, name: str, words: str) -> None:
    files = touch(tmp_path, "sched/sched_switch", "syscalls/sys_enter_openat")
    found = near_tracepoint(files, parse_target(f"tracepoint:{name}"))
    assert found == (f", did you mean {words}?" if words else "")


def test_a_tracefs_that_is_looked_at_is_not_changed(tmp_path: Path) -> None:
    files = touch(tmp_path, "sched/sched_switch")
    changes: list[Callable[[str], object]] = [
        *(files.mkdir, files.rmdir, files.open_pipe, files.lock),
        lambda path: files.write(path, "1"),
    ]
    for change in changes:
        with pytest.raises(OSError, match="Read-only") as refused:
            change("events/enable")
        assert refused.value.errno == errno.EROFS
    instance = Instance.top(files)
    assert instance.event_format("sched", "sched_switch") == ""
    assert instance.event_format("sched", "no") is None
    instance.close()
    assert files.exists("events/sched/sched_switch")


def test_the_target_that_is_asked_for() -> None:
    asked: list[Target] = []

    def function(target: Target) -> Answer:
        asked.append(target)
        return YES

    kernel = known()
    resolve(
        Config(Settings(), (probe("p", "kprobe:ext4:ext4_open+8"),)),
        Known(kernel.kernel, kernel.has, function, kernel.eprobes, kernel.near),
    )
    assert [(t.module, t.symbol, t.offset) for t in asked] == [("ext4", "ext4_open", 8)]
