"""Plans of calls and pairs: what each event records, how events are joined, and what is impossible."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import DURATION_BUCKETS, Probe
from kprobe_exporter.elf import Code
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.definition import parse_definition
from kprobe_exporter.grammar.evaluate import in_nanoseconds
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.grammar.target import Target
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.condition import parts
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import MetricSpec, ProbeSpec, Unsupported
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan import JoinedSpec, Kernel, ProbePlan, plan_probe, wants_tgid
from kprobe_exporter.plan.joined import MEASURED
from kprobe_exporter.plan.metric import residual, where
from tests.support.conditions import meets
from tests.support.planned import formats

SP, STACK_POINTER = "stack_pointer=$stack:u64", Arg("stack_pointer", "int", unsigned=64)
DURATION = Arg("duration", "int")
SCHED = "tracepoint:sched:sched"
RUNQ = f"""attach: {{pair: {{key: task, from: [
    {{to: '{SCHED}_process_exec', fetch: {{task: pid}}}},
    {{to: '{SCHED}_switch', fetch: {{task: prev_pid}}, filter: prev_state == 0}}],
    to: {{to: '{SCHED}_switch', fetch: {{task: next_pid, who: next_comm}}}}}}}}"""

REAL = Kernel(formats, counts_tracepoints=True, binary=True, locate=lambda target: Code(0x1234, "EM_X86_64"))

Plans = Callable[..., ProbePlan]


@pytest.fixture
def load_probe(tmp_path: Path) -> Callable[[str], Probe]:
    """Return a function that loads the probe ``p`` with the given keys."""

    def run(rest: str) -> Probe:
        file = tmp_path / "c.yaml"
        file.write_text(f"probes: [{{name: p, {rest}}}]")
        [probe] = load([file], DECODERS).probes
        return probe

    return run


@pytest.fixture
def plan(load_probe: Callable[[str], Probe]) -> Plans:
    def run(rest: str, kernel: Kernel = REAL) -> ProbePlan:
        return plan_probe(load_probe(rest), "ns", DECODERS, kernel, itertools.count())

    return run


@pytest.fixture
def joined(plan: Plans) -> Callable[..., JoinedSpec]:
    """Return a function that plans a probe with one alternative, a call or a pair."""

    def run(rest: str, kernel: Kernel = REAL) -> JoinedSpec:
        [spec] = plan(rest, kernel).alternatives
        assert isinstance(spec, JoinedSpec)
        return spec

    return run


def first(spec: JoinedSpec) -> list[ProbeSpec]:
    """Return the way that is tried first, for each event."""
    ways = [half[0] for half in spec.ways]
    assert all(isinstance(way, ProbeSpec) for way in ways)
    return [way for way in ways if isinstance(way, ProbeSpec)]


def lines(spec: JoinedSpec) -> list[str]:
    """Return the definitions for the kernel; for a tracepoint's own event, its name."""
    found = [way.line("g", way.layout.event) if way.file else way.event for way in first(spec)]
    for line in (line for line, way in zip(found, first(spec), strict=True) if way.file):
        parse_definition(line)  # our own grammar accepts it, as the kernel would
    return found


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (
            "attach: 'call:vfs_read', returns: int",
            [f"p:g/p vfs_read {SP}", f"r1024:g/p_return vfs_read {SP} return=$retval:s32"],
        ),
        (
            "attach: 'call:ext4:f', returns: void, maxactive: 7",
            [f"p:g/p ext4:f {SP}", f"r7:g/p_return ext4:f {SP}"],
        ),
        (
            "attach: 'call:vfs_read', fetch: {path: '+0($arg1):string', n: '$arg3:u64'}, returns: ssize_t,"
            " filter: 'comm == \"x\" && n > 3', metrics: [{counter: a_total, labels: [comm, caller]}]",
            [
                f"p:g/p vfs_read n=$arg3:u64 {SP} path=+0($arg1):string comm=$comm:string",
                f"r1024:g/p_return vfs_read {SP} return=$retval:s64",
            ],
        ),
        (
            "attach: 'ucall:/bin/x:f', fetch: {n: $arg2}, returns: u32",
            [f"p:g/p /bin/x:0x1234 n=%si {SP}", f"r:g/p_return /bin/x:0x1234 {SP} return=$retval:u32"],
        ),
        (
            "attach: 'syscall:openat', fetch: {path: filename}, returns: int,"
            " metrics: [{counter: a_total, labels: [comm]}]",
            ["e:g/p syscalls.sys_enter_openat path=$filename:u64 comm=$comm:string", "sys_exit_openat"],
        ),
        (
            "attach: {pair: {from: ['kprobe:f', 'kprobe:g'], to: 'kretprobe:h', key: tid}}, returns: u8,"
            " fetch: {n: '$arg1:u8'}",
            ["p:g/p f n=$arg1:u8", "p:g/p g n=$arg1:u8", "r1024:g/p_end h return=$retval:u8"],
        ),
        (
            "attach: {pair: {from: {to: 'kretprobe:alloc', fetch: {at: $retval}},"
            " to: {to: 'kprobe:free', fetch: {at: $arg1}}, key: at}}",
            ["r1024:g/p alloc at=$retval:x64", "p:g/p_end free at=$arg1"],
        ),
        (
            RUNQ,
            [
                "sched_process_exec",
                "e:g/p sched.sched_switch task=$prev_pid:s32 prev_state=$prev_state:s64",
                "sched_switch",
            ],
        ),
    ],
)
def test_what_the_kernel_is_told(joined: Callable[..., JoinedSpec], rest: str, expected: list[str]) -> None:
    assert lines(joined(rest)) == expected


THROUGH = f"""attach: {{pair: {{from: {{to: '{SCHED}_process_exec', fetch: {{task: pid}}}}, key: task,
    through: {{moved: {{to: '{SCHED}_switch', fetch: {{task: next_pid}}}},
              held: {{to: 'kprobe:f', fetch: {{task: $arg1}}}}}},
    to: {{to: 'kprobe:g', fetch: {{task: $arg1}}}}}}}}"""


def test_events_in_between_are_no_hits(joined: Callable[..., JoinedSpec]) -> None:
    """Each is installed, counts nothing, and gives the joined record its time."""
    spec = joined(f"{THROUGH}, metrics: [{{counter: a_total, where: moved > 1ms && held < 0.5}}]")
    ways = first(spec)
    assert [way.role for way in ways] == ["begin", "end", "end", "end"]
    assert lines(spec)[1:3] == ["sched_switch", "p:g/p_step2 f task=$arg1"]
    join = spec.join([way.layout for way in ways])
    assert join.parts == tuple(way.layout for way in ways)
    assert (join.layout.steps, join.through) == (("moved", "held"), join.parts[1:3])
    assert [arg.name for arg in join.layout.args] == ["task", "duration", "moved", "held"]


def test_an_event_and_the_next_are_one_event_in_the_kernel(joined: Callable[..., JoinedSpec]) -> None:
    switch = f"{{to: '{SCHED}_switch', fetch: {{task: next_pid, was: prev_pid}}}}"
    spec = joined(
        f"attach: {{pair: {{from: {switch}, to: {switch}, key: was}}}},"
        " metrics: [{counter: a_total, labels: [previous_task, comm]}]"
    )
    [way] = first(spec)
    assert way.role == "begin"
    join = spec.join([way.layout])
    assert join.again
    assert join.parts == (way.layout,)
    names = [arg.name for arg in join.layout.args]
    assert names[-1] == "duration"
    assert {"task", "was", "comm", "previous_task", "previous_was"} < set(names)


def test_the_weight_of_what_is_outstanding_is_recorded(joined: Callable[..., JoinedSpec]) -> None:
    spec = joined(
        f"attach: {{pair: {{from: '{SCHED}_switch', to: 'kprobe:f', key: tid}}}},"
        " fetch: {prio: prev_prio}, outstanding: {older_than: 2s, weigh: prio}"
    )
    begin, end = first(spec)
    join = spec.join([begin.layout, end.layout])
    assert join.outstanding == (2_000_000_000, "prio")
    assert begin.layout.place("prio") is not None


def test_times_are_compared_in_nanoseconds(plan: Plans) -> None:
    metrics = plan(
        f"{THROUGH}, filter: held > 1us, let: {{late: duration - moved}}, metrics: ["
        "{counter: a_total, where: moved > 1ms && late < 2ms}, {histogram: moved_seconds, value: moved}]"
    )
    [spec], (a, b) = metrics.alternatives, metrics.metrics.metrics
    assert isinstance(spec, JoinedSpec)
    assert spec.residual_filter == Where(("held",), ("number", "held", ">", 1000.0))
    assert a.where
    assert ("number", "moved", ">", 1e6) in parts(a.where.condition)
    assert (b.value, b.scale) == ("moved", 1e-9)


def test_the_parts_of_a_call(joined: Callable[..., JoinedSpec]) -> None:
    spec = joined(
        "attach: 'call:f', stack: true, filter: 'common_pid == 3 && common_cpu == 1',"
        " metrics: [{counter: a_total, labels: [comm, caller, pid]}]"
    )
    entry, back = first(spec)
    assert (entry.role, back.role) == ("begin", "end")
    assert (entry.plan, back.plan, spec.plan) == ("events", "events", "events")
    assert (entry.because, back.because, spec.because) == (MEASURED, MEASURED, MEASURED)
    assert (entry.filter, back.filter) == ("common_pid == 3", "common_pid == 3")
    assert (entry.layout.event, back.layout.event) == ("p", "p_return")
    assert (entry.layout.form, back.layout.form) == ("entry", "return")
    assert back.layout.caller
    # The thread's name is read only at the entry, and a stack is taken there, where it is deepest.
    assert [arg.name for arg in entry.layout.args] == ["stack_pointer", "comm"]
    assert [arg.name for arg in back.layout.args] == ["stack_pointer", "return"]
    assert (entry.stack, entry.layout.stack) == (True, True)
    assert (back.stack, back.layout.stack) == (False, False)
    assert (spec.probe, spec.kind, spec.target, spec.symbol) == ("p", "call", "call:f", "f")
    assert (spec.by, spec.key) == ("stack", ())


@pytest.mark.parametrize(
    ("rest", "kind", "target", "symbol", "by", "key"),
    [
        ("attach: 'ucall:/x:f'", "ucall", "ucall:/x:f", "f", "stack", ()),
        ("attach: 'ucall:/x:0x12'", "ucall", "ucall:/x:0x12", "ucall:/x:0x12", "stack", ()),
        ("attach: 'syscall:openat'", "syscall", "syscall:openat", "openat", "key", ("tid",)),
        (
            "attach: {pair: {from: ['kprobe:f', 'kprobe:g'], to: 'kprobe:h', key: [tid, cpu]}}",
            "pair",
            "kprobe:f | kprobe:g -> kprobe:h",
            "kprobe:f | kprobe:g -> kprobe:h",
            "key",
            ("tid", "cpu"),
        ),
    ],
)
def test_what_it_is_called_and_joined_by(
    joined: Callable[..., JoinedSpec],
    rest: str,
    kind: str,
    target: str,
    symbol: str,
    by: str,
    key: tuple[str, ...],
) -> None:
    spec = joined(rest)
    assert (spec.kind, spec.target, spec.symbol, spec.by, spec.key) == (kind, target, symbol, by, key)
    # The stack pointer is read only where it pairs the events.
    reads = [STACK_POINTER in way.layout.args for way in first(spec)]
    assert reads == [by == "stack"] * len(reads)


def test_a_probe_that_would_only_be_counted_is_recorded(joined: Callable[..., JoinedSpec]) -> None:
    """Both events are recorded, because the kernel does not measure the time between them."""
    spec = joined("attach: 'call:f', returns: void")
    assert [way.plan for way in first(spec)] == ["events", "events"]
    spec = joined(f"attach: {{pair: {{from: '{SCHED}_switch', to: '{SCHED}_process_exec', key: cpu}}}}")
    assert [way.plan for half in spec.ways for way in half if isinstance(way, ProbeSpec)] == ["events"] * 4


def test_all_slots_are_different(load_probe: Callable[[str], Probe]) -> None:
    layout_ids = itertools.count(5)
    plans = plan_probe(load_probe(RUNQ), "ns", DECODERS, REAL, layout_ids)
    [spec] = plans.alternatives
    assert isinstance(spec, JoinedSpec)
    found = [way.layout.layout_id for half in spec.ways for way in half if isinstance(way, ProbeSpec)]
    found.append(spec.layout_id)
    assert len(set(found)) == len(found)
    assert next(layout_ids) > max(found)


# How events are joined.


def join_args(spec: JoinedSpec) -> list[str]:
    layouts = [way.layout for way in first(spec)]
    return [arg.name for arg in spec.join(layouts).layout.args]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("attach: 'call:f', returns: void", ["duration"]),
        ("attach: 'call:f', fetch: {b: $arg2, a: $arg1}", ["b", "a", "return", "duration"]),
        (
            "attach: 'call:f', fetch: {s: '+0($arg1):string', n: $arg1}, filter: comm == \"x\"",
            ["n", "s", "comm", "return", "duration"],
        ),
        (
            "attach: {pair: {key: k, from: [{to: 'kprobe:f', fetch: {a: $arg1, k: $arg2, b: $arg3}},"
            " {to: 'kprobe:g', fetch: {k: $arg1, c: $arg2, b: $arg3}}],"
            " to: {to: 'kretprobe:h', fetch: {d: $arg1, b: $arg4, k: $arg2}}}}",
            ["k", "b", "d", "return", "duration"],  # without a and c, which only one begin event has
        ),
        (RUNQ, ["task", "duration"]),  # of a tracepoint's own event, only fields in use
    ],
)
def test_what_a_joined_record_holds(
    joined: Callable[..., JoinedSpec], rest: str, expected: list[str]
) -> None:
    assert join_args(joined(rest)) == expected


def test_a_join_is_of_the_layouts_that_were_installed(joined: Callable[..., JoinedSpec]) -> None:
    """The layouts have the installed events' names, which differ if the planned ones were taken."""
    spec = joined("attach: 'call:f', fetch: {n: $arg1}, returns: int")
    entry, back = (replace(way.layout, event=f"{way.layout.event}_2") for way in first(spec))
    join = spec.join([entry, back])
    assert (join.begins, join.end, join.by, join.key) == ((entry,), back, "stack", ())
    assert join.layout == Layout(
        spec.layout_id,
        "p",
        "p",
        "joined",
        "f",
        (Arg("n", "int", pointer=True, unsigned=64), Arg("return", "int"), DURATION),
        back.returns,
    )
    assert join.layout.returns
    assert join.layout.returns.name == "int"


@pytest.mark.parametrize(
    ("rest", "only"),
    [
        ("filter: 'n > 3'", ("n",)),
        ("filter: 'n > 3 && return < 0 && comm == \"x\" && duration > 1'", ("comm", "n")),
        ("filter: 'n > 3 || return < 0'", None),
        ("filter: 'common_cpu == 1'", ("common_cpu",)),
        ("filter: 'common_pid == 3'", None),  # the kernel filters both events
        ("", None),
    ],
)
def test_what_the_first_event_decides_of_the_filter(
    joined: Callable[..., JoinedSpec], rest: str, only: tuple[str, ...] | None
) -> None:
    spec = joined(f"attach: 'call:f', fetch: {{n: '$arg1:u64'}}, returns: int, {rest}")
    decided = spec.join([way.layout for way in first(spec)]).only
    assert (decided and decided.fields) == only


def test_a_tracepoints_own_event_has_the_key_too(joined: Callable[..., JoinedSpec]) -> None:
    """Without eprobes, only the fields that a metric or the pair's key needs are read."""
    spec = joined(RUNQ.replace("who: next_comm", "who: next_comm, prio: next_prio"))
    ways = [[way for way in half if isinstance(way, ProbeSpec) and way.file is None] for half in spec.ways]
    assert [[way.filter for way in half] for half in ways] == [[None], ["prev_state == 0", None], [None]]
    assert [way.residual_filter and way.residual_filter.fields for way in ways[1]] == [("prev_state",)] * 2
    layouts = [half[0].layout for half in ways]
    names = [[arg.name for arg in layout.args] for layout in layouts]
    assert names == [["task"], ["task", "prev_state"], ["task"]]
    assert [layout.args[0].field for layout in layouts] == ["pid", "prev_pid", "next_pid"]
    assert [layout.event for layout in layouts] == ["sched_process_exec", "sched_switch", "sched_switch"]
    assert [arg.name for arg in spec.join(layouts).layout.args] == ["task", "duration"]


@pytest.mark.parametrize(
    ("more", "binary", "files"),
    [
        ("", True, [None, None]),
        ("", False, ["dynamic_events", "dynamic_events"]),  # only an eprobe's text quotes strings
        (", filter: common_pid == 3", True, ["dynamic_events", "dynamic_events"]),
        (", stack: true", True, ["dynamic_events", None]),
        (", metrics: [{counter: a_total, labels: [comm]}]", True, ["dynamic_events", None]),
        (", metrics: [{counter: a_total, labels: [return]}]", True, [None, None]),
    ],
)
def test_a_tracepoints_own_event_comes_first_if_it_tells_as_much(
    joined: Callable[..., JoinedSpec], more: str, binary: bool, files: list[str | None]
) -> None:
    """An eprobe costs the call more; it comes first for what the tracepoint's own event lacks."""
    spec = joined(f"attach: 'syscall:openat', returns: int{more}", replace(REAL, binary=binary))
    assert [way.file for way in first(spec)] == files
    others = {way.file for half in spec.ways for way in half if isinstance(way, ProbeSpec)}
    assert others == {None, "dynamic_events"}


def test_what_only_the_last_event_has_is_read_there(joined: Callable[..., JoinedSpec]) -> None:
    spec = joined(f"{RUNQ}, metrics: [{{counter: a_total, labels: [who, task]}}]")
    own = [way for way in spec.ways[-1] if isinstance(way, ProbeSpec) and way.file is None]
    assert [arg.name for arg in own[0].layout.args] == ["task", "who"]


def test_a_system_call_without_eprobes(joined: Callable[..., JoinedSpec]) -> None:
    spec = joined("attach: 'syscall:openat', filter: common_pid == 3, returns: int")
    ways = [[way for way in half if isinstance(way, ProbeSpec) and way.file is None] for half in spec.ways]
    assert [[way.filter for way in half] for half in ways] == [["common_pid == 3", None]] * 2
    layouts = [half[0].layout for half in ways]
    assert [arg.name for arg in spec.join(layouts).layout.args] == ["return", "duration"]


def test_the_process_id_is_recorded_if_it_is_the_key(load_probe: Callable[[str], Probe]) -> None:
    ends = "from: 'kprobe:f', to: 'kprobe:g'"
    assert wants_tgid([load_probe(f"attach: {{pair: {{{ends}, key: pid}}}}")])
    assert wants_tgid([load_probe(f"attach: {{pair: {{{ends}, key: tid}}}}, filter: pid == 3")])
    assert not wants_tgid([load_probe(f"attach: {{pair: {{{ends}, key: tid}}}}")])


# What is impossible.


def cannot(target: Target) -> tuple[Target, str]:
    raise ProbeRefused(f"there is no function '{target.symbol}'.")


@pytest.mark.parametrize(
    ("rest", "target", "reason"),
    [
        ("attach: 'syscall:nope'", "syscall:nope", "this kernel has no tracepoint syscalls:sys_enter_nope"),
        (
            "attach: 'syscall:openat', fetch: {a: nope}",
            "syscall:openat",
            "the tracepoint sys_enter_openat has no field 'nope' (for 'a'); it has ",
        ),
        (
            f"attach: {{pair: {{from: 'kprobe:f', to: '{SCHED}_nope', key: tid}}}}",
            f"kprobe:f -> {SCHED}_nope",
            "this kernel has no tracepoint sched:sched_nope",
        ),
        (
            f"attach: {{pair: {{from: ['{SCHED}_switch', '{SCHED}_nope'], to: 'kprobe:f', key: tid}}}}",
            f"{SCHED}_switch | {SCHED}_nope -> kprobe:f",
            "this kernel has no tracepoint sched:sched_nope",
        ),
        (
            f"attach: {{pair: {{from: '{SCHED}_switch', to: '{SCHED}_process_exec', key: prev_pid}}}}",
            f"{SCHED}_switch -> {SCHED}_process_exec",
            "the tracepoint sched_process_exec has no field 'prev_pid'; it has filename",
        ),
        (
            "attach: 'ucall:/x:f', stack: true",
            "ucall:/x:f",
            "the kernel has no stack behind a program's code",
        ),
    ],
)
def test_without_one_of_its_events_there_is_none(plan: Plans, rest: str, target: str, reason: str) -> None:
    [unfit] = plan(rest).alternatives
    assert isinstance(unfit, Unsupported)
    assert unfit.target == target
    assert unfit.reason.startswith(reason)


def test_a_function_that_is_not_there(plan: Plans) -> None:
    kernel = replace(REAL, place=cannot)
    [unfit] = plan("attach: 'call:f'", kernel).alternatives
    assert unfit == Unsupported("call:f", "there is no function 'f'")


def test_the_reasons_of_all_ways_are_one_sentence(plan: Plans) -> None:
    text = "name: e\n\tfield:u32 x[4];\toffset:8;\tsize:16;\tsigned:0;\n"
    kernel = Kernel(lambda *_: text, counts_tracepoints=True)
    [unfit] = plan(
        "attach: {pair: {from: 'tracepoint:s:e', to: 'tracepoint:s:f', key: x}}", kernel
    ).alternatives
    assert isinstance(unfit, Unsupported)
    assert unfit.reason.startswith("its field 'x' is an array, which this version cannot read; ")
    assert not unfit.reason.endswith(".")


def test_the_agent_filters_a_half_that_the_kernel_does_not_count(joined: Callable[..., JoinedSpec]) -> None:
    """Hits are firings of the begin event, as with an eprobe. A fetched field has one name in a record."""
    bare = replace(REAL, counts_tracepoints=False)
    begin = f"{{to: '{SCHED}_switch', fetch: {{task: prev_pid}}, filter: prev_pid == 3 && common_pid > 1}}"
    end = f"{{to: '{SCHED}_switch', fetch: {{task: next_pid}}}}"
    spec = joined(f"attach: {{pair: {{from: {begin}, to: {end}, key: task}}}}", bare)
    eprobe, by_agent, by_kernel = spec.ways[0]
    assert isinstance(eprobe, ProbeSpec)
    assert isinstance(by_agent, ProbeSpec)
    assert isinstance(by_kernel, ProbeSpec)
    assert (eprobe.file, eprobe.residual_filter) == ("dynamic_events", None)
    assert (by_agent.filter, by_agent.role) == (None, "begin")
    assert by_agent.residual_filter
    assert by_agent.residual_filter.fields == ("common_pid", "task")
    assert [arg.name for arg in by_agent.layout.args] == ["task"]
    assert (by_kernel.filter, by_kernel.residual_filter) == ("prev_pid == 3 && common_pid > 1", None)


# What the joined records feed.


@pytest.mark.parametrize(
    ("text", "passing", "failing"),
    [
        ("duration > 0.5", (500_000_001, 10**12), (500_000_000, 0, None)),
        ("duration >= 0.5", (500_000_000,), (499_999_999,)),
        ("duration == 1e-6", (1000,), (999, 1001)),
        ("duration == 1.1e-6", (1100,), (1099, 1101)),
        ("duration < 3", (2_999_999_999,), (3_000_000_000,)),
        ("!(duration <= 0.001)", (1_000_001,), (1_000_000,)),
        ("duration > 1 || duration == 0.25", (10**9 + 1, 250_000_000), (10**9, 1)),
        ("duration > 1 && duration < 2", (1_500_000_000,), (10**9, 2 * 10**9)),
        ("duration > 0.5e-9", (1,), (0,)),
    ],
)
def test_seconds_are_nanoseconds_in_records(
    joined: Callable[..., JoinedSpec], text: str, passing: tuple[int, ...], failing: tuple[int | None, ...]
) -> None:
    residual_filter = joined(f"attach: 'call:f', filter: '{text}'").residual_filter
    assert residual_filter
    assert residual_filter.fields == ("duration",)
    assert all(meets(residual_filter, {"duration": took}) for took in passing)
    assert not any(meets(residual_filter, {"duration": took}) for took in failing)


@given(st.integers(0, 10**15))
def test_every_whole_nanosecond_can_be_named_in_seconds(took: int) -> None:
    text = f"{took // 10**9}.{took % 10**9:09}"
    equal = where(parse_formula(f"duration == {text}"))
    assert meets(equal, {"duration": took})
    below = where(parse_formula(f"duration < {text}"))
    assert not meets(below, {"duration": took})
    assert meets(below, {"duration": took - 1})


def test_the_agent_filters_by_the_rest(joined: Callable[..., JoinedSpec]) -> None:
    spec = joined(
        "attach: 'call:f', fetch: {n: '$arg1:u32'}, filter: 'common_pid == 1 && n > 0 && duration > 2'"
    )
    assert spec.residual_filter
    assert spec.residual_filter.fields == ("duration", "n")
    assert spec.residual_filter.condition == (
        "all",
        (("number", "n", ">", 0), ("number", "duration", ">", 2_000_000_000)),
    )
    assert [way.residual_filter for way in first(spec)] == [None, None]
    assert joined("attach: 'call:f'").residual_filter is None
    assert joined("attach: 'call:f', filter: common_pid == 1").residual_filter is None


def test_only_durations_are_in_seconds() -> None:
    """A tracepoint's own field ``duration`` may have any unit, so it is not converted."""
    assert meets(residual(parse_filter("duration > 5")), {"duration": 6})
    both = parse_filter('n == 5 && comm == "5" && duration == 5').change(in_nanoseconds)
    assert [part.value for part in both.comparisons] == [5, "5", 5_000_000_000]


def metric(found: ProbePlan) -> MetricSpec:
    return found.metrics.metrics[0]


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        ("{histogram: a_seconds, value: duration}", 1e-9),
        ("{counter: a_seconds_total, value: duration}", 1e-9),
        ("{gauge: a_seconds, value: duration, scale: 1000}", 1e-6),
        ("{counter: a_total}", 1),
        ("{counter: a_total, value: return, scale: 512, where: duration > 0.5}", 512),
    ],
)
def test_a_duration_is_measured_in_seconds(plan: Plans, text: str, scale: float) -> None:
    assert metric(plan(f"attach: 'call:f', metrics: [{text}]")).scale == scale


def test_a_metric_may_ask_how_long_it_took(plan: Plans) -> None:
    spec = metric(plan("attach: 'call:f', metrics: [{counter: slow_total, where: duration > 0.5}]"))
    assert isinstance(spec.where, Where)
    assert [meets(spec.where, {"duration": took}) for took in (500_000_000, 500_000_001)] == [False, True]


@pytest.mark.parametrize(
    ("rest", "buckets"),
    [
        ("attach: 'call:f'", DURATION_BUCKETS),
        ("attach: ['kprobe:f', 'call:g'], duration_buckets: [1, 2]", (1.0, 2.0)),
        (RUNQ, DURATION_BUCKETS),
        ("attach: 'kprobe:f'", ()),
        ("attach: ['kretprobe:f', 'tracepoint:sched:sched_switch']", ()),
    ],
)
def test_who_has_a_histogram_of_durations(plan: Plans, rest: str, buckets: tuple[float, ...]) -> None:
    assert plan(rest).metrics.duration_buckets == buckets


@pytest.mark.parametrize(
    ("rest", "returns"),
    [
        ("attach: 'call:f', returns: u32", "u32"),
        ("attach: 'syscall:openat', returns: int", "int"),
        ("attach: {pair: {from: 'kretprobe:f', to: 'kretprobe:g', key: tid}}, returns: u8", "u8"),
        ("attach: {pair: {from: 'kretprobe:f', to: 'kprobe:g', key: tid}}", None),
        (RUNQ, None),
    ],
)
def test_what_it_returns_is_what_its_end_returns(plan: Plans, rest: str, returns: str | None) -> None:
    found = plan(rest).metrics.returns
    assert (found.name if found else None) == returns


def test_what_both_events_lack_is_absent_in_the_joined_record(plan: Plans) -> None:
    pair = "{pair: {from: 'kprobe:f', to: 'kprobe:g', key: tid}}"
    [spec] = plan(f"attach: {pair}, fetch: {{x: null, y: '$arg1'}}").alternatives
    assert isinstance(spec, JoinedSpec)
    made = [way.layout for half in spec.ways for way in half if isinstance(way, ProbeSpec)]
    assert spec.join(made).layout.absent == {"x"}
