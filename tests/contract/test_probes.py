"""Probes are installed under unique names, counted, refused with one sentence, and removed."""

import os
import threading
from dataclasses import replace

import pytest

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.identity.threads import Threads
from kprobe_exporter.model.hist import HistKey, HistTable
from kprobe_exporter.model.records import TID, VALUES, Batch, Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.shape import geometry, shape
from kprobe_exporter.probing.event_source import KernelNames
from kprobe_exporter.source._pages import PageParser
from kprobe_exporter.source.binary import BinaryPipe
from kprobe_exporter.source.lines import LineParser
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.poller import read_counts
from kprobe_exporter.tracefs.probes import install, names_in_use
from kprobe_exporter.tracefs.profile import parse_stats, profile_counts
from tests.contract.conftest import Kernel
from tests.support.leftovers import list_probes
from tests.vm.kernels import HIST

NAME = "contract_test"


def entry(symbol: str, only: str | None = None) -> ProbeSpec:
    layout = Layout(0, "call", "call", "entry", symbol)
    return ProbeSpec("call", "kprobe", f"kprobe:{symbol}", symbol, "kprobe_events", "p", symbol, only, layout)


def failed(symbol: str, only: str | None = None) -> ProbeSpec:
    args = (Arg("return", "int"), Arg("comm", "str"))
    layout = Layout(1, "fail", "fail", "return", symbol, args)
    # Of 64 bits up to Linux 6.12, an int on 7.2, where the upper half of the register is undefined.
    body = f"{symbol} return=$retval:s32 comm=$comm:string"
    return ProbeSpec(
        "fail", "kretprobe", f"kretprobe:{symbol}", symbol, "kprobe_events", "r1024", body, only, layout
    )


def exec_eprobe() -> ProbeSpec:
    layout = Layout(2, "exec", "exec", "eprobe", "sched_process_exec", (Arg("pid", "int"),))
    body = "sched.sched_process_exec pid=$pid:s32"
    target = "tracepoint:sched:sched_process_exec"
    return ProbeSpec(
        "exec", "tracepoint", target, "sched_process_exec", "dynamic_events", "e", body, None, layout
    )


def test_hits_and_events_agree(kernel: Kernel) -> None:
    with Instance.acquire(kernel.files, NAME) as instance:
        instance.set_up(256, record_tgid=False)
        probe = install(instance, entry(kernel.symbol), names_in_use(instance))
        kernel.call()
        probe.enable()
        pipe = instance.open_pipe()
        for _ in range(23):
            kernel.call()
        probe.disable()
        kernel.call()
        counts = read_counts(instance, [probe])
        text = _read(pipe)
        os.close(pipe)
    batch = LineParser([probe.layout]).feed(text)
    assert (len(batch.records), batch.unparsed) == (23, 0)
    assert counts.hits == {"call": 23}
    assert counts.misses == {"call": 0}


def test_return_values_and_names(kernel: Kernel) -> None:
    with Instance.acquire(kernel.files, NAME) as instance:
        instance.set_up(256, record_tgid=False)
        probe = install(instance, failed(kernel.fails, "return < 0"), names_in_use(instance))
        probe.enable()
        pipe = instance.open_pipe()
        for _ in range(23):
            kernel.fail()
        probe.disable()
        text = _read(pipe)
        os.close(pipe)
    batch = LineParser([probe.layout]).feed(text)
    own = [record for record in batch.records if record[VALUES] == -2]
    assert len(own) >= 23
    assert all(isinstance(record[VALUES + 1], bytes) for record in own)


def test_pages_hold_the_same_records(kernel: Kernel) -> None:
    batches: list[Batch] = []
    with Instance.acquire(kernel.files, NAME) as instance:
        instance.set_up(256, record_tgid=False)
        probe = install(instance, failed(kernel.fails, "return < 0"), names_in_use(instance))
        probe.enable()
        pipes = instance.open_raw()
        for _ in range(23):
            kernel.fail()
        probe.disable()
        page, header = (instance.read(f"events/{name}").decode() for name in ("header_page", "header_event"))
        form = instance.event_format(probe.system, probe.event)
        assert form is not None
        names = KernelNames(Threads(instance.files), Symbols(instance.files))
        layout = geometry(page, header)
        parser = PageParser(layout, [shape(probe.layout, form)], names)
        pipe = BinaryPipe(pipes, parser, batches.append, 1000, layout.page)
        pipe.empty(last=True)
        pipe.close()
    records = [record for batch in batches for record in batch.records]
    own = [record for record in records if record[TID] == threading.get_native_id()]
    assert {record[VALUES] for record in own} == {-2}
    assert len(own) == 23
    assert all(isinstance(record[VALUES + 1], bytes) for record in own)
    assert sum(batch.unparsed for batch in batches) == 0


def test_names_taken_by_others_are_left_to_them(kernel: Kernel) -> None:
    kernel.files.write("kprobe_events", f"p:foreign_group/call {kernel.symbol}")
    try:
        with Instance.acquire(kernel.files, NAME) as instance:
            taken = names_in_use(instance)
            first = install(instance, entry(kernel.symbol), taken)
            second = install(instance, entry(kernel.symbol), taken)
            assert (first.event, second.event) == ("call_2", "call_3")
        assert [d.group for d in list_probes(kernel.files) if d.event == "call"] == ["foreign_group"]
    finally:
        kernel.files.write("kprobe_events", "-:foreign_group/call")


def test_a_name_that_was_taken_since_is_passed_over(kernel: Kernel) -> None:
    """Another process took the name after the list of names was read."""
    with Instance.acquire(kernel.files, NAME) as instance:
        kernel.files.write("kprobe_events", f"p:{NAME}/call {kernel.symbol}")
        probe = install(instance, entry(kernel.symbol), set())
        names = [d.event for d in list_probes(kernel.files) if d.group == NAME]
        assert probe.event in names


def test_counts_of_a_name_that_two_groups_have(kernel: Kernel) -> None:
    with Instance.acquire(kernel.files, NAME) as instance:
        kernel.files.mkdir(f"instances/{NAME}_other")
        probe = install(instance, entry(kernel.symbol), names_in_use(instance))
        kernel.files.write("kprobe_events", f"p:foreign_group/call {kernel.symbol}")
        try:
            enable = f"instances/{NAME}_other/events/foreign_group/call/enable"
            kernel.files.write(enable, "1")
            kernel.call()
            probe.enable()
            kernel.call()
            kernel.files.write(enable, "0")
            assert profile_counts(kernel.files, NAME, "kprobe_events")["call"].hits == 1
            assert profile_counts(kernel.files, "foreign_group", "kprobe_events")["call"].hits == 2
        finally:
            probe.disable()
            kernel.files.rmdir(f"instances/{NAME}_other")
            kernel.files.write("kprobe_events", "-:foreign_group/call")


def test_an_unknown_function_is_refused(kernel: Kernel) -> None:
    with Instance.acquire(kernel.files, NAME) as instance:
        with pytest.raises(ProbeRefused, match=r"Invalid probed address or symbol, at \^ in .*\^no_such"):
            install(instance, entry("no_such_function"), names_in_use(instance))
        assert not [d for d in list_probes(kernel.files) if d.group == NAME]


def test_a_bad_filter_is_refused_and_nothing_stays(kernel: Kernel) -> None:
    with Instance.acquire(kernel.files, NAME) as instance:
        with pytest.raises(ProbeRefused, match="the filter 'nothing == 1' is refused"):
            install(instance, entry(kernel.symbol, "nothing == 1"), names_in_use(instance))
        assert not [d for d in list_probes(kernel.files) if d.group == NAME]


def test_a_tracepoint_has_no_probe_that_is_not_there(kernel: Kernel) -> None:
    spec = ProbeSpec(
        "x", "tracepoint", "t", "x", None, "", "", None, Layout(0, "x", "x", "tracepoint", "x"), "sched", "x"
    )
    with Instance.acquire(kernel.files, NAME) as instance:
        with pytest.raises(ProbeRefused, match="no tracepoint sched:x"):
            install(instance, spec, set())
        assert instance.event_format("sched", "x") is None
        assert "sched_process_exec" in (instance.event_format("sched", "sched_process_exec") or "")


def test_an_eprobe_counts_by_a_trigger(kernel: Kernel) -> None:
    """Its hit counter exists before the eprobe is enabled, and ends before the eprobe is removed."""
    kernel.needs(HIST)
    with Instance.acquire(kernel.files, NAME) as instance:
        probe = install(instance, exec_eprobe(), names_in_use(instance))
        assert probe.hits is not None
        probe.enable()
        assert read_counts(instance, [probe]).hits == {probe.spec.probe: 0}
        probe.remove()
        assert read_counts(instance, [probe]).hits == {}
        assert not [d for d in list_probes(kernel.files) if d.group == NAME]


def test_a_definition_in_use_stays(kernel: Kernel) -> None:
    """A definition that another instance has enabled (EBUSY) is not forced away when the agent ends."""
    kernel.files.mkdir("instances/foreign")
    try:
        with Instance.acquire(kernel.files, NAME) as instance:
            install(instance, entry(kernel.symbol), names_in_use(instance))
            kernel.files.write(f"instances/foreign/events/{NAME}/call/enable", "1")
        assert [d.event for d in list_probes(kernel.files) if d.group == NAME] == ["call"]
        kernel.files.write(f"instances/foreign/events/{NAME}/call/enable", "0")
    finally:
        kernel.files.rmdir("instances/foreign")
    Instance.acquire(kernel.files, NAME).close()


def _read(pipe: int) -> bytes:
    text = b""
    while True:
        try:
            text += os.read(pipe, 65536)
        except BlockingIOError:
            return text


def entries(kernel: Kernel) -> list[int]:
    """The number of events in each ring buffer of the instance."""
    per_cpu = f"instances/{NAME}/per_cpu"
    return [
        parse_stats(kernel.files.read(f"{per_cpu}/{cpu}/stats").decode()).entries
        for cpu in kernel.files.names(per_cpu)
    ]


def test_a_probe_that_only_counts_records_nothing(kernel: Kernel) -> None:
    with Instance.acquire(kernel.files, NAME) as instance:
        instance.set_up(256, record_tgid=False)
        probe = install(instance, replace(entry(kernel.symbol), plan="count"), names_in_use(instance))
        probe.enable()
        before = entries(kernel)
        for _ in range(23):
            kernel.call()
        assert read_counts(instance, [probe]).hits == {"call": 23}
        assert entries(kernel) == before
        probe.disable()
        kernel.call()
        assert read_counts(instance, [probe]).hits == {"call": 23}


def test_hits_begin_with_the_tables_that_count_events(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call between the attaching of two tables is in the first one and in the profile, but no hit."""
    kernel.needs(HIST)
    keys = (HistKey("cpu", "common_cpu", 32),)
    first, all_ = HistTable(keys, None, "common_pid >= 0", 128, ()), HistTable(keys, None, None, 128, ())
    with Instance.acquire(kernel.files, NAME) as instance:
        instance.set_up(256, record_tgid=False)
        tables = (first, all_._replace(passed=True))
        spec = replace(entry(kernel.symbol), plan="kernel", tables=tables, tables_count_hits=True)

        def write(path: str, text: str) -> None:
            Instance.write(instance, path, text)
            if text == first.trigger:
                kernel.call()

        monkeypatch.setattr(instance, "write", write)
        probe = install(instance, spec, names_in_use(instance))
        probe.enable()
        for _ in range(23):
            kernel.call()
        counts = read_counts(instance, [probe])
        assert [reading.hits for reading in counts.tables[0]] == [24, 23]
        assert counts.hits == {"call": 23}


def test_a_probe_that_the_kernel_aggregates_records_nothing(kernel: Kernel) -> None:
    """Its hist triggers alone enable it, and its profile counts."""
    kernel.needs(HIST)
    keys = (HistKey("cpu", "common_cpu", 32),)
    none, all_ = HistTable(keys, None, "common_pid < 0", 128, ()), HistTable(keys, None, None, 128, ())
    with Instance.acquire(kernel.files, NAME) as instance:
        instance.set_up(256, record_tgid=False)
        spec = replace(entry(kernel.symbol), plan="kernel", tables=(all_,))
        probe = install(instance, spec, names_in_use(instance))
        probe.enable()
        before = entries(kernel)
        for _ in range(23):
            kernel.call()
        counts = read_counts(instance, [probe])
        (reading,) = counts.tables[0]
        assert (reading.hits, reading.dropped) == (23, 0)
        assert sum(hits for hits, _ in reading.rows.values()) == 23
        assert counts.hits == {"call": 23}
        assert [one.dropped for readings in counts.tables.values() for one in readings] == [0]
        assert entries(kernel) == before
        assert probe.tables is not None
        probe.disable()
        kernel.call()
        assert read_counts(instance, [probe]).hits == {"call": 23}
        assert read_counts(instance, [probe]).tables == {}
        with pytest.raises(ProbeRefused, match="another probe has the same hist trigger"):
            install(instance, replace(spec, tables=(none, none)), names_in_use(instance))
        assert [d.event for d in list_probes(kernel.files) if d.group == NAME] == ["call"]
