"""The alternative that `run` would choose, on kernels with given features."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.config.model import Attach, Config, Label, Metric, Probe, Settings, Within
from kprobe_exporter.diagnose.dry_run import CUT_STACKS, DryRunRow, Known, look, resolve
from kprobe_exporter.diagnose.saved_kernel import load
from kprobe_exporter.elf import Code
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.identity.running import RunningContainers
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.joined import MEASURED
from kprobe_exporter.probing.container_files import ContainerFiles
from kprobe_exporter.symbols.functions import Answer
from kprobe_exporter.symbols.resolve import near_tracepoint
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.instance import Instance
from tests.support.container_processes import ContainerProcesses
from tests.support.fake_tracefs import EXEC_FORMAT
from tests.unit.captured import FIXTURES

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
        Kernel(event_format, counts_tracepoints=hist, near=lambda _, event: f", did you mean '{event}_2'?"),
        lambda path: path not in lacks,
        lambda target: (functions or {}).get(target.symbol, NO),
        eprobes,
    )


def probe(name: str, *to: str, only: str | None = None, **more: Any) -> Probe:
    ways = tuple(Attach(parse_target(text), {}, only, None) for text in to)
    return Probe(name, "help", ways, **more)


def rows(kernel: Known, *probes: Probe) -> list[DryRunRow]:
    return resolve(Config(Settings(), probes), kernel)


def row(kernel: Known, made: Probe) -> DryRunRow:
    (found,) = rows(kernel, made)
    return found


def test_the_first_that_works() -> None:
    made = probe("p", "kprobe:a", "kprobe:b", EXEC)
    assert row(known({"a": YES}), made) == DryRunRow("p", "up", "kprobe", "kprobe:a", "count", (HITS,))
    assert row(known({"b": YES}), made) == DryRunRow(
        "p", "up", "kprobe", "kprobe:b", "count", (HITS, "kprobe:a: it cannot")
    )
    found = row(known(lacks=("kprobe_events",)), made)
    assert (found.state, found.target) == ("up", EXEC)
    assert found.why[1].startswith("kprobe:a: this kernel was built without CONFIG_KPROBE_EVENTS")


def test_return_probes_in_programs_under_seccomp() -> None:
    here = replace(known({"a": YES}), uretprobes="a filter may kill", programs=False)
    for target in ("uretprobe:/bin/x:f", "ucall:/bin/x:f"):
        made = probe("p", target)
        assert row(here, made).why[-1] == "a filter may kill"
        assert "a filter may kill" not in row(replace(here, uretprobes=None), made).why
        assert "a filter may kill" not in row(replace(here, has=lambda path: False), made).why
    for target in ("uprobe:/bin/x:f", "kretprobe:a", "uprobe:/bin/uretprobe:f"):
        assert "a filter may kill" not in row(here, probe("p", target)).why


@pytest.mark.parametrize(("release", "warned"), [("6.12.9+bpo-amd64", 1), ("6.12.117+deb13-amd64", 0)])
def test_release_of_a_saved_kernel_decides_about_seccomp(release: str, warned: int) -> None:
    kernel = replace(load(FIXTURES / "kernels/6.12.tar.xz").kernel, release=release)
    made = Config(Settings(), (probe("p", "uretprobe:/bin/x:f"), probe("q", "kprobe:vfs_read")))
    found = look(made, kernel, lambda: True, programs=False)
    assert [len([why for why in one.why if "seccomp" in why]) for one in found] == [warned, 0]


@pytest.mark.parametrize("other", ["kretprobe:a", "call:a", "kretprobe:b", "kprobe:a", "fexit:a"])
def test_stacks_that_a_fexit_and_another_return_probe_cut(other: str) -> None:
    here = known({"a": YES, "b": YES})
    cut = other in ("kretprobe:a", "call:a")
    second = call("q", other) if other.startswith("call") else probe("q", other)
    found = rows(here, probe("p", "fexit:a", stack=True), second)
    assert [CUT_STACKS in row.why for row in found] == [cut, False]
    assert CUT_STACKS not in rows(here, probe("p", "fexit:a"), second)[0].why
    gone = rows(here, probe("p", "fexit:a", stack=True), replace(second, enabled=False))
    assert not any(CUT_STACKS in row.why for row in gone)


def test_none_that_works() -> None:
    made = probe("p", "kretprobe:a", "tracepoint:sched:no")
    why = ("it cannot", "tracepoint:sched:no: this kernel has no tracepoint sched:no, did you mean 'no_2'?")
    assert row(known(), made) == DryRunRow("p", "down", "kretprobe", "kretprobe:a", "", why)
    optional = probe("p", "kretprobe:a", optional=True)
    assert row(known(), optional).state == "absent"


def test_one_that_is_disabled_is_not_judged() -> None:
    made = probe("p", "kprobe:a", enabled=False)
    assert row(known(), made) == DryRunRow(
        "p", "disabled", "kprobe", "kprobe:a", "", ("'enabled: false' in the configuration",)
    )


def test_what_only_trying_tells() -> None:
    made = probe("p", "kprobe:a+4", "kprobe:b")
    alone = row(known({"a": TRY}), made)
    assert alone == DryRunRow(
        "p", "unsure", "kprobe", "kprobe:a+4", "count", (HITS, "only trying tells", "kprobe:b: it cannot")
    )
    sure = row(known({"a": TRY, "b": YES}), made)
    assert (sure.state, sure.target) == ("up", "kprobe:a+4")
    assert sure.why == (HITS, "only trying tells; else kprobe:b")


@pytest.mark.parametrize(
    ("fetched", "state", "why"),
    [
        ("%di", "up", None),
        ("+8(%sp):u32", "up", None),
        ("%zz", "unsure", "only trying tells whether the kernel knows the register %zz"),
        ("+0(+8(%zz)):string", "unsure", "only trying tells whether the kernel knows the register %zz"),
        ("@jiffies:u64", "up", None),
        ("+4(@nothing)", "unsure", "only trying tells"),
    ],
)
def test_fetched_register_or_symbol(fetched: str, state: str, why: str | None) -> None:
    way = Attach(parse_target("kprobe:a"), {"x": fetched}, None, None)
    metrics = (Metric("counter", "x_total", "help", labels=(Label("x", "x"),)),)
    here = replace(known({"a": YES}), variable={"jiffies": YES, "nothing": TRY}.__getitem__)
    found = row(here, Probe("p", "help", (way,), metrics))
    assert (found.state, found.kind) == (state, "kprobe")
    assert why is None or why in found.why


def test_register_of_an_unknown_machine() -> None:
    way = Attach(parse_target("kprobe:a"), {"x": "%di"}, None, None)
    metrics = (Metric("counter", "x_total", "help", labels=(Label("x", "x"),)),)
    found = row(replace(known({"a": YES}), machine="riscv64"), Probe("p", "help", (way,), metrics))
    assert found.state == "unsure"


def test_a_note_is_shown() -> None:
    found = row(known({"a": Answer(True, "it never fires")}), probe("p", "kprobe:a"))
    assert (found.state, found.why) == ("up", (HITS, "it never fires"))


def test_an_alternative_says_what_it_watches() -> None:
    made = probe("p", "kprobe:a", "kprobe:b")
    made = replace(made, attach=(made.attach[0], replace(made.attach[1], help="Less than a")))
    assert row(known({"a": YES}), made).why == (HITS,)
    assert row(known({"b": YES}), made).why == ("Less than a", HITS, "kprobe:a: it cannot")


@pytest.mark.parametrize("eprobes", [YES, NO, TRY])
@pytest.mark.parametrize("hist", [True, False])
def test_a_tracepoint(eprobes: Answer, hist: bool) -> None:
    """The target and the plan are the same with and without eprobes."""
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
    assert (found.state, found.plan) == ("up", "events")
    assert found.why[0].startswith("this kernel has no hist triggers (CONFIG_HIST_TRIGGERS)")


def test_two_on_one_tracepoint() -> None:
    """Two probes on one tracepoint need eprobes if the kernel is to filter."""
    pair = probe("p", EXEC, metrics=COMM), probe("q", EXEC, only='comm == "cron"')
    assert [found.state for found in rows(known(), *pair)] == ["up", "up"]
    _, second = rows(known(eprobes=NO, hist=False), *pair)
    assert second.state == "down"
    assert "the probe 'p' has this tracepoint already" in second.why[0]
    assert [found.state for found in rows(known(eprobes=TRY), *pair)] == ["up", "unsure"]


def call(name: str, to: str, only: str | None = None, **more: Any) -> Probe:
    """Return a probe on a call; the kernel filters both events of the call."""
    enter, leave = parse_target(to).halves
    halves = (Attach(enter, {}, only, None), Attach(leave, {}, only, None))
    whole = Attach(parse_target(to), {}, None, None, begins=halves[:1], end=halves[1])
    return Probe(name, "help", (whole, *more.pop("others", ())), **more)


def pair(name: str, *to: str, only: tuple[str | None, ...] = (None, None), **more: Any) -> Probe:
    """Return a probe on a pair; each event that begins or ends the pair has a filter of its own."""
    halves = tuple(
        Attach(parse_target(text), {}, filter_, None) for text, filter_ in zip(to, only, strict=True)
    )
    *begins, end = halves
    target = Target(Kind.PAIR, parts=tuple(half.target for half in halves))
    whole = Attach(target, {}, None, None, begins=tuple(begins), end=end, key=("cpu",))
    return Probe(name, "help", (whole, *more.pop("others", ())), **more)


def test_a_call() -> None:
    made = call("p", "call:a")
    assert row(known({"a": YES}), made) == DryRunRow("p", "up", "call", "call:a", "events", (MEASURED,))
    assert row(known(), made) == DryRunRow("p", "down", "call", "call:a", "", ("it cannot",))
    unsure = row(known({"a": TRY}), made)
    assert unsure == DryRunRow("p", "unsure", "call", "call:a", "events", (MEASURED, "only trying tells"))
    noted = row(known({"a": Answer(True, "it never fires")}), made)
    assert (noted.state, noted.why) == ("up", (MEASURED, "it never fires"))
    without = row(known({"a": YES}, lacks=("kprobe_events",)), made)
    assert without.state == "down"
    assert "CONFIG_KPROBE_EVENTS" in without.why[0]
    assert row(known(), replace(made, optional=True)).state == "absent"
    assert row(known(), replace(made, enabled=False)).state == "disabled"


@pytest.mark.parametrize(
    ("answers", "state", "why"),
    [
        ((YES, YES, YES), "up", (MEASURED,)),
        ((YES, NO, YES), "down", ("it cannot",)),
        ((TRY, YES, NO), "down", ("it cannot",)),
        ((YES, TRY, YES), "unsure", (MEASURED, "only trying tells")),
        ((Answer(True, "a note"), YES, TRY), "unsure", (MEASURED, "only trying tells")),
        ((YES, YES, Answer(True, "a note")), "up", (MEASURED, "a note")),
    ],
)
def test_a_pair_is_as_sure_as_the_least_sure_of_its_events(
    answers: tuple[Answer, ...], state: str, why: tuple[str, ...]
) -> None:
    made = pair("p", "kprobe:a", "kprobe:b", "kretprobe:c", only=(None, None, None))
    found = row(known(dict(zip("abc", answers, strict=True))), made)
    target = "kprobe:a | kprobe:b -> kretprobe:c"
    assert found == DryRunRow("p", state, "pair", target, "" if state == "down" else "events", why)  # type: ignore[arg-type]


def test_what_comes_after_a_call_in_the_list() -> None:
    single = Attach(parse_target("kprobe:b"), {}, None, None)
    made = call("p", "call:a", others=(single,))
    found = row(known({"b": YES}), made)
    assert found == DryRunRow("p", "up", "kprobe", "kprobe:b", "count", (HITS, "call:a: it cannot"))
    found = row(known({"a": TRY, "b": YES}), made)
    assert (found.state, found.target) == ("up", "call:a")
    assert found.why == (MEASURED, "only trying tells; else kprobe:b")


@pytest.mark.parametrize("eprobes", [YES, NO, TRY])
@pytest.mark.parametrize("hist", [True, False])
def test_a_pair_of_tracepoints_is_had_with_eprobes_or_without(eprobes: Answer, hist: bool) -> None:
    found = row(known({"a": YES}, eprobes=eprobes, hist=hist), pair("p", EXEC, "kprobe:a"))
    assert found == DryRunRow("p", "up", "pair", f"{EXEC} -> kprobe:a", "events", (MEASURED,))


@pytest.mark.parametrize(("eprobes", "state"), [(YES, "up"), (NO, "down"), (TRY, "unsure")])
def test_a_pair_with_a_filter_that_only_the_kernel_knows_needs_eprobes(eprobes: Answer, state: str) -> None:
    made = pair("p", EXEC, EXEC, only=("common_flags == 1", "pid == 2"))
    found = row(known(eprobes=eprobes), made)
    assert found.state == state
    assert ("has this tracepoint already" in found.why[-1]) == (eprobes is NO)


def test_a_probe_beside_a_pair_on_its_tracepoint() -> None:
    first, second = pair("p", EXEC, "kprobe:a"), probe("q", EXEC, only='comm == "cron"')
    states = [found.state for found in rows(known({"a": YES}, eprobes=NO, hist=False), first, second)]
    assert states == ["up", "down"]
    assert [found.state for found in rows(known({"a": YES}), first, second)] == ["up", "up"]
    # A probe that would be down does not occupy its tracepoint.
    states = [found.state for found in rows(known(eprobes=NO), first, probe("q", EXEC, only="pid == 1"))]
    assert states == ["down", "up"]


def test_a_system_call_that_is_not_there() -> None:
    found = row(known(), call("p", "syscall:nope"))
    why = ("this kernel has no tracepoint syscalls:sys_enter_nope, did you mean 'sys_enter_nope_2'?",)
    assert found == DryRunRow("p", "down", "syscall", "syscall:nope", "", why)


def test_a_tracepoint_of_a_pair_that_is_not_there() -> None:
    found = row(known({"a": YES}), pair("p", "kprobe:a", "tracepoint:sched:nope"))
    assert (found.state, found.target) == ("down", "kprobe:a -> tracepoint:sched:nope")
    assert found.why == ("this kernel has no tracepoint sched:nope, did you mean 'nope_2'?",)


@pytest.mark.parametrize("eprobes", [YES, NO])
def test_a_place_in_a_program(eprobes: Answer) -> None:
    """A function in a program needs neither eprobes nor a function of the kernel."""
    kernel = known(eprobes=eprobes)
    kernel = replace(kernel, kernel=replace(kernel.kernel, locate=lambda _: Code(16, "EM_X86_64")))
    assert row(kernel, call("p", "ucall:/x:f")).state == "up"
    assert row(kernel, probe("p", "uprobe:/x:f")).state == "up"
    lacks = replace(kernel, has=lambda path: path != "uprobe_events")
    found = row(lacks, call("p", "ucall:/x:f"))
    assert found.state == "down"
    assert "CONFIG_UPROBE_EVENTS" in found.why[0]


def test_a_program_in_containers(tmp_path: Path) -> None:
    """It is looked for where they run; a probe whose container does not run yet waits for it."""
    processes = ContainerProcesses(tmp_path)
    here = replace(known(), containers=ContainerFiles(RunningContainers(processes.proc)))
    here = replace(here, kernel=replace(here.kernel, locate=lambda _: Code(16, "EM_X86_64")))
    made = probe("p", "uprobe:/bin/x:f", within=Within("a1*"))
    assert row(here, made) == DryRunRow(
        "p", "absent", "uprobe", "uprobe:/bin/x:f", "", ("no container that runs fits 'container: a1*'",)
    )
    root = processes.start(20, 0xA1)
    (root / "bin").mkdir()
    (root / "bin/x").write_text("a program")
    again = replace(here, containers=ContainerFiles(RunningContainers(processes.proc)))
    found = row(again, made)
    assert (found.state, found.target) == ("up", f"uprobe:{processes.proc}/20/root/bin/x:f")


@pytest.mark.parametrize(
    ("made", "targets"),
    [
        (call("p", "call:ext4:f"), ["kprobe:ext4:f", "kretprobe:ext4:f"]),
        (probe("p", "kprobe:ext4:ext4_open+8"), ["kprobe:ext4:ext4_open+8"]),
    ],
)
def test_the_targets_that_are_asked_for(made: Probe, targets: list[str]) -> None:
    asked: list[Target] = []

    def function(target: Target) -> Answer:
        asked.append(target)
        return YES

    resolve(Config(Settings(), (made,)), replace(known(), function=function))
    assert asked == [parse_target(text) for text in targets]


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
    found = near_tracepoint(files, *name.split(":"))
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
