"""A seed always draws the same case, and every drawn configuration is valid."""

from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from tests.kernel.differential.cases import LAST, MOST_AT_ONCE, THREADS, draw, joint, merged
from tests.kernel.differential.known import KNOWN
from tests.kernel.differential.load import Firing, Operation, parse, script
from tests.kernel.differential.probes import configuration

SEEDS = range(1, 201)


def test_a_seed_draws_one_case() -> None:
    assert [draw(seed, fprobes=True) for seed in SEEDS] == [draw(seed, fprobes=True) for seed in SEEDS]
    assert len({draw(seed, fprobes=True).phases for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("excluded", [frozenset(KNOWN), frozenset[str]()], ids=["usual", "all"])
def test_configurations_are_valid(tmp_path: Path, excluded: frozenset[str]) -> None:
    path = tmp_path / "config.yaml"
    cases = [draw(seed, fprobes=True, excluded=excluded) for seed in SEEDS]
    for phase in (0, 1):
        probes = [probe for case in cases for probe in case.phases[phase].probes]
        path.write_text(configuration(probes, "/opt/load"))
        path.chmod(0o600)
        assert len(load([path], DECODERS).probes) == len(probes) + 1


def test_without_fprobes_there_are_none() -> None:
    cases = [draw(seed, fprobes=False) for seed in SEEDS]
    kinds = {probe.kind for case in cases for phase in case.phases for probe in phase.probes}
    assert kinds == {
        *("kprobe", "kretprobe", "call", "syscall", "enter", "exit"),
        *("uprobe", "uretprobe", "ucall", "pair"),
    }


@pytest.mark.parametrize("eprobes", [True, False])
def test_names_of_a_tracepoints_threads_are_drawn_with_eprobes_only(eprobes: bool) -> None:
    cases = [draw(seed, fprobes=True, eprobes=eprobes) for seed in SEEDS]
    probes = [probe for case in cases for phase in case.phases for probe in phase.probes]
    named = {
        probe.kind
        for probe in probes
        for metric in probe.metrics
        if any(label.field == "comm" for label in metric.labels)
    }
    assert named >= {"kprobe", "uprobe", "syscall"}
    assert named & {"enter", "exit"} == ({"enter", "exit"} if eprobes else set())


def test_cases_share_a_load_but_no_thread() -> None:
    cases = [draw(seed, fprobes=True) for seed in range(1, MOST_AT_ONCE + 1)]
    operations = merged(cases, 0).operations
    assert operations[-1] == LAST
    assert len(operations) == 1 + sum(len(case.phases[0].operations) for case in cases)
    assert LAST.thread not in {operation.thread for operation in operations[:-1]}
    assert {operation.thread for operation in merged(cases[:1], 0).operations[:-1]} <= set(range(THREADS))
    keys = {(operation.a, operation.thread) for operation in operations if operation.name.startswith("pair_")}
    assert len(keys) == len({key for key, _ in keys})


def test_several_cases_as_one_have_the_same_load() -> None:
    cases = [draw(seed, fprobes=True) for seed in range(1, 6)]
    for phase in (0, 1):
        assert merged([joint(cases)], phase) == merged(cases, phase)


def test_a_known_fault_is_drawn_when_it_is_asked_for() -> None:
    def longest(excluded: frozenset[str]) -> int:
        cases = [draw(seed, fprobes=True, excluded=excluded) for seed in SEEDS]
        operations = [one for case in cases for phase in case.phases for one in phase.operations]
        return max(len(one.text) for one in operations)

    assert longest(frozenset(KNOWN)) < 4000 <= longest(frozenset(KNOWN) - {"large_records"})


def test_a_record_is_read_in_the_order_of_begin() -> None:
    operations = [Operation(0, "take_value", 5, text=b"a b"), Operation(1, "go_deeper", 0, 7)]
    assert script(operations) == "0 take_value 5 0 612062\n1 go_deeper 0 7 -\n"
    record = (
        "1 go_deeper call 0 7 11 0 200 10 230 8 6c6f6164\n"
        "0 take_value call 5 0 10 1 100 0 120 5 \n"
        "-1 execve call 0 0 9 0 50 0 60 0 6c6f6164\n"
    )
    first, second, third = parse(record, operations)
    assert first.point == "execve"
    assert second == Firing("take_value", "call", 5, 0, b"a b", 10, 1, 100, 0, 120, 5, b"")
    assert (third.point, third.least, third.comm) == ("go_deeper", 10, b"load")
