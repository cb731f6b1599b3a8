"""How each probe is collected: definitions that a kernel accepts, and layouts that match its output."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kprobe_exporter.config.model import Attach, Decode, Label, Metric, Probe, return_type
from kprobe_exporter.grammar.definition import parse_definition
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import LabelSpec, MetricSpec, ProbeMetrics, ProbeSpec, Unsupported
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan import Kernel, ProbePlan, fields_used, metric_spec, plan_probe, wants_tgid
from kprobe_exporter.plan.shape import shape
from tests.support.conditions import meets
from tests.support.planned import EXEC, EXIT, SWITCH, attach, counter, formats, probe
from tests.unit.captured import KERNELS, Captured

REAL = Kernel(formats, counts_tracepoints=True)


def plan(made: Probe, layout_ids: Iterator[int] | None = None, kernel: Kernel = REAL) -> ProbePlan:
    return plan_probe(made, "ns", DECODERS, kernel, layout_ids or itertools.count())


def specs(made: Probe) -> list[ProbeSpec]:
    found = plan(made).alternatives
    assert not [way for way in found if isinstance(way, Unsupported)]
    return [way for way in found if isinstance(way, ProbeSpec)]


@pytest.mark.parametrize(
    ("way", "metrics", "line", "args"),
    [
        (attach("kprobe:vfs_read"), (), "p:g/e vfs_read", ()),
        (attach("kprobe:vfs_read+16"), (), "p:g/e vfs_read+16", ()),
        (attach("kprobe:ext4:ext4_open"), (), "p:g/e ext4:ext4_open", ()),
        (attach("kprobe:vfs_read"), (counter("cpu", "tid", "pid", "symbol"),), "p:g/e vfs_read", ()),
        (
            attach("kprobe:vfs_read", path="+0($arg1):string", count="$arg3:u64"),
            (counter("comm"),),
            "p:g/e vfs_read count=$arg3:u64 path=+0($arg1):string comm=$comm:string",
            (Arg("count", "int", unsigned=64), Arg("path", "str"), Arg("comm", "str")),
        ),
        (
            attach("kprobe:f", names="+0($arg1):string[2]", sym="$arg2:symbol", c="$arg3:char", n="$arg4:u8"),
            (),
            "p:g/e f sym=$arg2:symbol c=$arg3:char n=$arg4:u8 names=+0($arg1):string[2]",
            (
                Arg("sym", "bare", type="symbol", pointer=True),
                Arg("c", "char", type="char"),
                Arg("n", "int", unsigned=8),
                Arg("names", "texts", type="string[2]"),
            ),
        ),
        (
            attach("kretprobe:vfs_read", "long"),
            (),
            "r1024:g/e vfs_read return=$retval:s64",
            (Arg("return", "int"),),
        ),
        (
            attach("kretprobe:vfs_read", "int", 'return < 0 && comm == "x"'),
            (),
            "r1024:g/e vfs_read return=$retval:s32 comm=$comm:string",
            (Arg("return", "int"), Arg("comm", "str")),
        ),
        (attach("kretprobe:vfs_read", "void"), (), "r1024:g/e vfs_read", ()),
        (
            attach("kretprobe:vfs_read", "ptr"),
            (),
            "r1024:g/e vfs_read return=$retval:x64",
            (Arg("return", "int", pointer=True, unsigned=64),),
        ),
    ],
)
def test_functions(way: Attach, metrics: tuple[Metric, ...], line: str, args: tuple[Arg, ...]) -> None:
    (spec,) = specs(probe(way, metrics=metrics))
    assert spec.line("g", "e") == line
    assert spec.layout.args == args
    assert spec.file == "kprobe_events"
    assert spec.target == str(way.target)
    assert spec.filter == way.filter
    assert spec.layout.form == ("return" if line.startswith("r") else "entry")
    parse_definition(line)  # our own grammar accepts it, as the kernel would


@pytest.mark.parametrize("name", ["exit_code", "exit_signal", "exe"])
def test_kernel_without_exit_codes(name: str) -> None:
    how = Metric("counter", "x_total", "help", None, (Label("how", "tid", (Decode(name),)),))
    made = probe(attach(f"tracepoint:{EXEC}"), metrics=(how,))
    planned = plan(made, kernel=replace(REAL, no_exit_codes="nothing shows it"))
    assert plan(made).refusals == ""
    assert planned.refusals == ("" if name == "exe" else "nothing shows it")


def test_maxactive() -> None:
    (spec,) = specs(probe(attach("kretprobe:f", "int"), maxactive=7))
    assert spec.line("g", "e").startswith("r7:g/e ")


def test_a_tracepoint_is_an_eprobe_or_else_itself() -> None:
    made = probe(
        attach(f"tracepoint:{EXIT}", "long", "return < 0", **{"return": "ret"}), metrics=(counter("comm"),)
    )
    eprobe, static, unfiltered = specs(made)
    assert eprobe.line("g", "e") == "e:g/e syscalls.sys_exit_openat return=$ret:s64 comm=$comm:string"
    assert (eprobe.file, eprobe.filter) == ("dynamic_events", "return < 0")
    assert eprobe.layout.args == (Arg("return", "int"), Arg("comm", "str"))
    assert eprobe.layout.form == "eprobe"
    assert (static.file, static.filter) == (None, "ret < 0")
    assert (static.system, static.event) == ("syscalls", "sys_exit_openat")
    assert static.layout.args == (Arg("return", "hex", 64, field="ret"),)
    assert static.layout.form == "tracepoint"
    assert static.layout.pattern is not None
    assert (unfiltered.filter, unfiltered.layout.args) == (None, static.layout.args)
    assert unfiltered.residual_filter is not None
    assert [meets(unfiltered.residual_filter, {"return": value}) for value in (-2, 3, None)] == [
        True,
        False,
        False,
    ]


def test_the_agent_filters_a_tracepoint_that_the_kernel_does_not_count() -> None:
    """Hits count every firing, and a filter in the kernel would exclude some."""
    made = probe(attach(f"tracepoint:{EXEC}", filter_text="new > 1 && common_pid == 7", new="pid"))
    _, late, early = plan(made, kernel=Kernel(formats, counts_tracepoints=False)).alternatives
    assert isinstance(late, ProbeSpec)
    assert isinstance(early, ProbeSpec)
    assert (late.filter, early.filter) == (None, "pid > 1 && common_pid == 7")
    assert late.residual_filter is not None
    assert late.residual_filter.fields == ("common_pid", "new")
    assert early.residual_filter is None


def test_a_system_calls_argument_has_the_width_and_sign_of_its_type() -> None:
    """The event holds a whole register, of which a program sets only the 32 bits of an int."""
    made = probe(attach("tracepoint:syscalls:sys_enter_openat", None, "dfd == -100", dfd="dfd"))
    eprobe, by_kernel, by_agent = plan(made).alternatives
    assert isinstance(eprobe, ProbeSpec)
    assert eprobe.body == "syscalls.sys_enter_openat dfd=$dfd:s32"
    assert eprobe.filter == "dfd == -100"
    assert isinstance(by_agent, ProbeSpec)
    assert by_agent.filter is None
    assert by_agent.residual_filter is not None
    assert meets(by_agent.residual_filter, {"dfd": -100})
    assert by_kernel == Unsupported(
        "tracepoint:syscalls:sys_enter_openat", "the kernel would compare 'dfd' as it is recorded, not as s32"
    )


def test_a_system_calls_return_value_is_read_by_its_type() -> None:
    """The event holds a long, whatever the system call's C type is."""
    way = attach("tracepoint:syscalls:sys_exit_openat", "u32", "return > 7", **{"return": "ret"})
    pages = Kernel(formats, counts_tracepoints=True, binary=True)
    eprobe, by_kernel, by_agent = plan(probe(way, metrics=(counter("return"),)), kernel=pages).alternatives
    assert isinstance(eprobe, ProbeSpec)
    assert eprobe.body == "syscalls.sys_exit_openat return=$ret:u32"
    assert isinstance(by_kernel, Unsupported)
    assert isinstance(by_agent, ProbeSpec)
    assert by_agent.layout.args == (Arg("return", "int", type="u32", field="ret", unsigned=32),)
    place = shape(by_agent.layout, formats("syscalls", "sys_exit_openat") or "").fields[0]
    assert (place.kind, place.size) == ("unsigned", 4)


def test_strings_go_last() -> None:
    """Strings go last, because a process that chooses a string can forge the text after it."""
    made = probe(
        attach(f"tracepoint:{SWITCH}", name="next_comm", prev="prev_comm", pid="next_pid"),
        metrics=(counter("name", "pid", "prev", "comm"),),
    )
    kinds = [arg.kind for arg in specs(made)[0].layout.args]
    assert kinds == ["int", "str", "str", "str"]


def test_the_text_is_read_for_what_is_used_alone() -> None:
    way = attach(f"tracepoint:{EXEC}", file="filename", new="pid")
    eprobe, static = specs(probe(way, metrics=(counter("new"),)))
    assert eprobe.line("g", "e") == "e:g/e sched.sched_process_exec new=$pid:s32 file=$filename:string"
    assert static.layout.args == (Arg("new", "int", field="pid"),)
    assert specs(probe(way))[-1].layout.args == ()


def test_what_a_filter_names_is_recorded_by_an_eprobe_alone() -> None:
    made = probe(attach(f"tracepoint:{SWITCH}", filter_text="prev_state == 0 && who == 7", who="next_pid"))
    eprobe, static, unfit = plan(made).alternatives
    assert isinstance(eprobe, ProbeSpec)
    assert isinstance(static, ProbeSpec)
    assert isinstance(unfit, Unsupported)
    assert set(eprobe.line("g", "e").split()[2:]) == {"prev_state=$prev_state:s64", "who=$next_pid:s32"}
    assert static.filter == "prev_state == 0 && next_pid == 7"
    assert static.layout.args == ()


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (attach("tracepoint:sched:absent"), "this kernel has no tracepoint sched:absent"),
        (
            attach(f"tracepoint:{EXEC}", x="absent"),
            "the tracepoint sched_process_exec has no field 'absent' (for 'x'); "
            "it has filename, pid, old_pid",
        ),
        (
            attach(f"tracepoint:{EXEC}", filname="filname"),
            "the tracepoint sched_process_exec has no field 'filname', did you mean 'filename'?",
        ),
        (
            attach(f"tracepoint:{EXEC}", filter_text="parent > 0"),
            "the tracepoint sched_process_exec has no field 'parent' to filter on; "
            "it has filename, pid, old_pid",
        ),
        (
            attach(f"tracepoint:{EXEC}", filter_text='old_pdi == 1 && comm != "x" && common_type > 0'),
            "the tracepoint sched_process_exec has no field 'old_pdi' to filter on, did you mean 'old_pid'?",
        ),
    ],
)
def test_what_this_kernel_cannot_do_is_known_before_it_is_tried(way: Attach, reason: str) -> None:
    assert plan(probe(way, metrics=(counter("x"),))).alternatives == (Unsupported(str(way.target), reason),)


def test_a_field_that_is_an_array_is_not_read() -> None:
    text = "name: e\n\tfield:u32 x[4];\toffset:8;\tsize:16;\tsigned:0;\n"
    made = probe(attach("tracepoint:s:e", x="x"), metrics=(counter("x"),))
    ways = plan_probe(
        made, "ns", DECODERS, Kernel(lambda *_: text, counts_tracepoints=True), itertools.count()
    ).alternatives
    assert [type(way) for way in ways] == [Unsupported, Unsupported]


def test_what_the_text_does_not_show_takes_an_eprobe() -> None:
    made = probe(attach(f"tracepoint:{SWITCH}", state="prev_state"), metrics=(counter("state"),))
    eprobe, static = plan(made).alternatives
    assert isinstance(eprobe, ProbeSpec)
    assert isinstance(static, Unsupported)
    assert "does not show the field 'prev_state'" in static.reason


def test_one_field_under_two_names_takes_an_eprobe() -> None:
    """The text's pattern has one group for a field, so the text cannot give it two names."""
    made = probe(attach(f"tracepoint:{EXEC}", a="pid", b="pid"), metrics=(counter("a", "b"),))
    eprobe, static = plan(made).alternatives
    assert isinstance(eprobe, ProbeSpec)
    assert [arg.name for arg in eprobe.layout.args] == ["a", "b"]
    assert isinstance(static, Unsupported)


def test_every_alternative_has_a_slot_of_its_own() -> None:
    layout_ids = itertools.count(5)
    made = probe(attach("kprobe:f"), attach(f"tracepoint:{EXEC}"), attach("kprobe:g"))
    found = [way for way in plan(made, layout_ids).alternatives if isinstance(way, ProbeSpec)]
    assert [spec.target for spec in found] == [
        "kprobe:f",
        f"tracepoint:{EXEC}",
        f"tracepoint:{EXEC}",
        f"tracepoint:{EXEC}",
        "kprobe:g",
    ]
    assert len({spec.layout.layout_id for spec in found}) == len(found)
    assert next(layout_ids) > max(spec.layout.layout_id for spec in found)


@pytest.mark.parametrize(
    ("way", "more", "how"),
    [
        (attach("kprobe:f"), {}, "count"),
        (attach("kprobe:f", x="$arg1"), {}, "count"),
        (attach("kprobe:f", filter_text="common_pid == 7"), {}, "events"),
        (attach("kprobe:f"), {"stack": True}, "events"),
        (attach("kprobe:f"), {"metrics": (counter(),)}, "events"),
        (attach("kretprobe:f", "int"), {}, "events"),
        (attach("kretprobe:f", "void"), {}, "count"),
        (attach(f"tracepoint:{EXEC}"), {}, "count"),
        (attach(f"tracepoint:{EXEC}", filter_text="pid == 7"), {}, "events"),
        (attach(f"tracepoint:{EXIT}", "long", **{"return": "ret"}), {}, "events"),
    ],
)
def test_nothing_is_recorded_where_counts_suffice(way: Attach, more: dict[str, Any], how: str) -> None:
    first = plan(probe(way, **more)).alternatives[0]
    assert isinstance(first, ProbeSpec)
    assert first.plan == how
    if how == "count" and way.target.event:
        assert (first.file, first.system, first.event) == (None, "sched", "sched_process_exec")


def test_a_tracepoint_that_the_kernel_does_not_count_is_read() -> None:
    kernel = Kernel(formats, counts_tracepoints=False)
    ways = plan(probe(attach(f"tracepoint:{EXEC}")), kernel=kernel).alternatives
    assert [way.plan for way in ways if isinstance(way, ProbeSpec)] == ["events", "events"]


def test_the_metrics_are_one_for_all_alternatives() -> None:
    metric = Metric("histogram", "size", "Sizes.", "return", (), (1.0, 2.0))
    made = probe(attach("kprobe:f"), attach("kretprobe:f", "int"), metrics=(metric,), return_buckets=(5.0,))
    assert plan(made).metrics == ProbeMetrics(
        "p",
        (MetricSpec("ns_size", "histogram", "Sizes.", "return", (), (1.0, 2.0)),),
        (5.0,),
        return_type("int"),
    )


def test_decoders_are_made_from_their_options() -> None:
    steps = (Decode("map", {0: "good"}), Decode("map", {"good": "ok"}))
    metric = Metric("counter", "x_total", "help", None, (Label("e", "return", steps), Label("c", "comm")))
    spec = metric_spec(metric, "ns", DECODERS)
    decoded, plain = spec.labels
    assert [(name, decode(0)) for name, decode in decoded.decoders] == [("map", "good"), ("map", None)]
    assert decoded.decoders[1][1](b"good") == "ok"
    assert plain == LabelSpec("c", "comm")


def test_what_a_probe_uses() -> None:
    made = probe(attach("kprobe:f"), metrics=(counter("comm", value="count"), counter("cpu")))
    assert fields_used(made) == {"comm", "count", "cpu"}
    assert not wants_tgid([made])
    assert wants_tgid([made, probe(attach("kprobe:f"), metrics=(counter("pid"),))])
    assert not wants_tgid([])


def test_the_fixtures_are_what_this_test_needs() -> None:
    for name in (EXIT, EXEC, SWITCH):
        system, event = name.split(":")
        assert Captured(KERNELS[0], f"format/{system}/{event}", {}).text == formats(system, event)
