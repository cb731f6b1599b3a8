"""Names that an event may have itself: their meaning in filters, labels and definitions, on saved kernels."""

import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan import JoinedSpec, Kernel, fields_used, plan_probe
from kprobe_exporter.plan.metric import filter_fields
from tests.reference.kernels import CONFIGURATIONS, shipped
from tests.support.kernel_formats import RELEASES, form, forms, saved

AMBIGUOUS = {"comm", "tid", "pid", "cpu"}
ALWAYS = {"common_comm", "common_pid", "common_tgid", "common_cpu"}
WAKEUP = "attach: 'tracepoint:sched:sched_wakeup'"


def kernel(release: str = "6.12", *, counts_tracepoints: bool = True) -> Kernel:
    def text(system: str, event: str) -> str | None:
        found = saved(release).get(f"tracefs/events/{system}/{event}/format")
        return None if found is None else found.decode()

    return Kernel(text, counts_tracepoints=counts_tracepoints, binary=True)


def configured(tmp_path: Path, text: str) -> Probe:
    path = tmp_path / "config.yaml"
    path.write_text(f"probes: [{{name: p, {text}}}]")
    [probe] = load([path], DECODERS).probes
    return probe


def ways(tmp_path: Path, text: str, where: Kernel | None = None) -> tuple[ProbeSpec, ...]:
    found = plan_probe(
        configured(tmp_path, text), "ns", DECODERS, where or kernel(), itertools.count()
    ).alternatives
    return tuple(way for way in found if isinstance(way, ProbeSpec))


def counting(*labels: str) -> str:
    return f"metrics: [{{counter: a_total, labels: [{', '.join(labels)}]}}]"


def tracepoints(probe: Probe) -> Iterator[Attach]:
    for attach in (one for way in probe.attach if way.target.kind is not Kind.SYSCALL for one in way.single):
        if attach.target.kind is Kind.TRACEPOINT and not attach.target.is_pattern:
            yield attach


@cache
def own_names(release: str) -> dict[str, set[str]]:
    """The ambiguous names that are fields of an event, by its SYSTEM/EVENT."""
    return {name: form.fields.keys() & AMBIGUOUS for name, form in forms(release)}


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
@pytest.mark.parametrize("release", RELEASES)
def test_shipped_configurations_are_explicit(release: str, path: Path) -> None:
    """Where an event of a kernel has a field of its own, they name the thread or fetch the field."""
    own = own_names(release)
    found = {
        (probe.name, str(attach.target), name)
        for probe in shipped(path).probes
        for attach in tracepoints(probe)
        for name in (fields_used(probe) | filter_fields(attach.filter)) - attach.fetch.keys()
        if name in own.get(f"{attach.target.system}/{attach.target.event}", ())
    }
    assert found == set()


def test_no_event_has_a_field_that_always_means_the_thread() -> None:
    words = {*ALWAYS, "COMM", "CPU"}
    assert [name for release in RELEASES for name, form in forms(release) if words & form.fields.keys()] == []


def test_many_events_have_fields_of_the_short_names() -> None:
    assert form("6.12", "signal/signal_generate").fields.keys() >= {"comm", "pid"}
    counts = {name: sum(name in one.fields for _, one in forms("6.12")) for name in sorted(AMBIGUOUS)}
    assert min(counts[name] for name in ("comm", "cpu", "pid")) > 30


def test_an_eprobe_records_both(tmp_path: Path) -> None:
    [eprobe, *_] = ways(tmp_path, f"{WAKEUP}, {counting('comm', 'pid', 'common_comm', 'common_pid')}")
    assert eprobe.body == "sched.sched_wakeup pid=$pid:s32 comm=$comm:string COMM=$COMM:string"
    assert [arg.name for arg in eprobe.layout.args] == ["pid", "comm", "common_comm"]
    assert [eprobe.layout.place(name) for name in ("pid", "comm", "common_comm", "common_pid")] == [
        6,
        7,
        8,
        None,
    ]


def test_without_a_field_of_its_own_the_name_is_the_threads(tmp_path: Path) -> None:
    [eprobe, own] = ways(
        tmp_path, f"attach: 'tracepoint:sched:sched_switch', {counting('comm', 'common_comm')}"
    )
    assert eprobe.body == "sched.sched_switch comm=$comm:string"
    assert own.layout.args == (Arg("comm", "str", field="prev_comm"),)
    for way in (eprobe, own):
        assert way.layout.place("common_comm") == way.layout.place("comm") == 6


def test_the_tracepoints_own_record(tmp_path: Path) -> None:
    [_, own] = ways(tmp_path, f"{WAKEUP}, {counting('comm', 'pid', 'common_comm')}", kernel("5.10"))
    assert own.layout.args == (
        Arg("comm", "str", field="comm"),
        Arg("pid", "int", type="", field="pid"),
        Arg("common_comm", "comm"),
    )


@pytest.mark.parametrize(
    ("written", "eprobe", "by_kernel", "by_agent"),
    [
        ('comm == "x" && pid == 3', 'comm == "x" && pid == 3', 'comm == "x" && pid == 3', {"comm", "own"}),
        ('common_comm == "x"', 'COMM == "x"', 'COMM == "x"', {"common_comm"}),
        ("common_cpu == 1 && cpu == 2", "CPU == 1 && CPU == 2", "CPU == 1 && CPU == 2", {"common_cpu"}),
        (
            "common_pid == 3 && own == 4",
            "common_pid == 3 && own == 4",
            "common_pid == 3 && pid == 4",
            {"common_pid", "own"},
        ),
    ],
)
def test_filters(tmp_path: Path, written: str, eprobe: str, by_kernel: str, by_agent: set[str]) -> None:
    text = f"{WAKEUP}, fetch: {{own: pid}}, filter: '{written}', {counting('own')}"
    found = ways(tmp_path, text, kernel("5.10", counts_tracepoints=False))
    assert found[0].filter == eprobe
    assert by_kernel in [way.filter for way in found]
    assert by_agent in [{*way.residual_filter.fields} for way in found if way.residual_filter]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("comm",), "'comm' is a field of the event (the thread's name is 'common_comm')"),
        (
            ("pid",),
            "'pid' is a field of the event (the thread is 'common_pid' and its process is 'common_tgid')",
        ),
        (("comm", "common_comm"), ""),
        (("common_comm", "common_pid", "cpu"), ""),
    ],
)
def test_an_ambiguous_name_is_told(tmp_path: Path, labels: tuple[str, ...], said: str) -> None:
    for way in ways(tmp_path, f"{WAKEUP}, {counting(*labels)}"):
        assert way.because.partition("; ")[2] == way.note == said


def test_a_fetched_name_is_explicit(tmp_path: Path) -> None:
    text = f"{WAKEUP}, fetch: {{comm: comm, pid: pid}}, filter: pid == 3, {counting('comm', 'pid')}"
    assert {way.note for way in ways(tmp_path, text)} == {""} | {ways(tmp_path, text)[-1].note}


@pytest.mark.parametrize(
    ("written", "body"),
    [
        ("comm=$comm:string", "comm=$comm:string"),
        ("comm=$COMM:string", "comm=$COMM:string"),
        ("who=$COMM:string pid=$pid", "pid=$pid:s32 who=$COMM:string"),
    ],
)
def test_a_definition_means_what_the_kernel_takes_it_for(tmp_path: Path, written: str, body: str) -> None:
    [eprobe, *_] = ways(tmp_path, f"definition: 'e:x sched.sched_wakeup {written}', stack: true")
    assert eprobe.body == f"sched.sched_wakeup {body}"
    [eprobe, *_] = ways(tmp_path, "definition: 'e:x sched.sched_switch comm=$comm:string', stack: true")
    assert eprobe.body == "sched.sched_switch comm=$comm:string"


@pytest.mark.parametrize(("label", "key"), [("comm", "comm"), ("common_comm", "COMM")])
def test_hist_triggers(tmp_path: Path, label: str, key: str) -> None:
    text = f"{WAKEUP}, aggregate: kernel, filter: 'common_comm == \"x\"', {counting(label)}"
    [eprobe] = ways(tmp_path, text)
    assert [table.trigger for table in eprobe.tables] == [f'hist:keys={key}:size=4096 if COMM == "x"']


def test_a_table_has_one_name_as_a_key(tmp_path: Path) -> None:
    """Each takes 256 bytes of a key's 384."""
    probe = configured(tmp_path, f"{WAKEUP}, aggregate: kernel, {counting('comm', 'common_comm')}")
    [way] = plan_probe(probe, "ns", DECODERS, kernel(), itertools.count()).alternatives
    assert isinstance(way, Unsupported)
    assert way.reason == "the kernel counts by one name at once, and not by comm and common_comm"


def test_a_field_cpu_is_a_key_of_hist_triggers(tmp_path: Path) -> None:
    attach = "attach: 'tracepoint:ipi:ipi_send_cpu', aggregate: kernel"
    where = "where: cpu == 1 && common_cpu == 2"
    text = f"{attach}, metrics: [{{counter: a_total, labels: [cpu, common_cpu], {where}}}]"
    for way in ways(tmp_path, text):
        trigger = "hist:keys=common_cpu,cpu:size=4096 if cpu == 1 && CPU == 2"
        assert way.tables[0].trigger == trigger


def test_other_events_have_only_the_threads(tmp_path: Path) -> None:
    text = f"attach: 'kprobe:f', filter: 'common_comm == \"x\" && common_cpu == 1', {counting('common_comm')}"
    [way] = ways(tmp_path, text)
    assert (way.body, way.filter) == ("f comm=$comm:string", 'COMM == "x" && CPU == 1')
    assert way.layout.place("common_comm") == 6


def test_a_system_calls_arguments_are_fetched_only_by_name(tmp_path: Path) -> None:
    """sys_enter_kill has a field ``pid``, which is no field of the call."""
    made = configured(tmp_path, f"attach: 'syscall:kill', {counting('pid', 'comm')}")
    [way] = plan_probe(made, "ns", DECODERS, kernel(), itertools.count()).alternatives
    assert isinstance(way, JoinedSpec)
    assert [arg.name for one in way.ways[0] if isinstance(one, ProbeSpec) for arg in one.layout.args] == [
        "comm",
        "comm",
    ]


def test_the_key_of_a_pair_is_each_events_own(tmp_path: Path) -> None:
    halves = "from: 'tracepoint:sched:sched_wakeup', to: 'tracepoint:sched:sched_process_exit'"
    made = configured(tmp_path, f"attach: {{pair: {{{halves}, key: pid}}}}, {counting('common_pid', 'comm')}")
    [way] = plan_probe(made, "ns", DECODERS, kernel(), itertools.count()).alternatives
    assert isinstance(way, JoinedSpec)
    layouts = [next(one.layout for one in half if isinstance(one, ProbeSpec)) for half in way.ways]
    assert [{arg.name for arg in layout.args} for layout in layouts] == [{"pid", "comm"}, {"pid"}]
    joined = way.join(layouts).layout
    assert [arg.name for arg in joined.args] == ["comm", "pid", "duration"]
    assert joined.place("common_comm") is None


def test_a_layout_with_the_events_name_alone() -> None:
    layout = Layout(1, "p", "e", "tracepoint", "e", (Arg("comm", "bare", field="comm"),))
    assert (layout.place("comm"), layout.place("common_comm")) == (6, None)


def test_tid_is_the_thread_where_the_event_has_no_such_field(tmp_path: Path) -> None:
    text = f"attach: 'tracepoint:syscalls:sys_enter_lseek', filter: 'tid == 7 && fd == 3', {counting('cpu')}"
    eprobe, own = ways(tmp_path, text)
    assert eprobe.filter == "common_pid == 7 && fd == 3"
    assert own.residual_filter is not None
    assert own.residual_filter.fields == ("common_pid", "fd")
