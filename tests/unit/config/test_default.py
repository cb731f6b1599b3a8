"""config/default.yaml: it is valid, and its probes also work on a kernel without kprobes."""

from pathlib import Path

import pytest

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Probe
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.labels import DECODERS

PROBES = load([DEFAULT], DECODERS).probes
EXAMPLES = Path(__file__).parents[3] / "examples"
FUNCTIONS = {Kind.KPROBE, Kind.KRETPROBE, Kind.CALL}
EVENTS_OF_KERNEL = {Kind.TRACEPOINT, Kind.SYSCALL}
SAME = {"sigkill"}
"""Probes whose function and tracepoint see the same: send_signal_locked() has the tracepoint."""
EVENTS = Path("/sys/kernel/tracing/events")


def test_there_are_enough_probes() -> None:
    assert len(PROBES) >= 6


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_probe_prefers_the_function_and_ends_in_tracepoints(probe: Probe) -> None:
    *functions, last = (one.target for one in probe.attach)
    assert {one.kind for one in functions if one != last} <= FUNCTIONS
    assert {one.kind for one in last.parts or (last,)} <= EVENTS_OF_KERNEL | (
        FUNCTIONS if probe.optional else set()
    )


@pytest.mark.parametrize("file", [DEFAULT, *sorted(EXAMPLES.rglob("*.yaml"))], ids=lambda file: file.stem)
def test_an_alternative_that_watches_something_else_says_so(file: Path) -> None:
    """An alternative of another kind than the first is known to see the same, or has its own help."""
    for probe in load([file], DECODERS).probes:
        first, *others = probe.attach
        for one in others:
            alike = one.target.kind is first.target.kind or first.target.symbol == f"sys_{one.target.symbol}"
            assert alike or one.help or probe.name in SAME, str(one.target)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_probe_says_what_it_watches(probe: Probe) -> None:
    assert probe.help
    assert all(metric.help.endswith(".") for metric in probe.metrics)


@pytest.mark.needs("events")
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_tracepoint_is_here_with_its_fields(probe: Probe) -> None:
    if probe.optional:  # this kernel may be built without modules, or without kprobes
        assert probe.name in ("module_load", "tcp_connect")
        return
    for one in probe.attach[-1].single:
        fields = format_of(one.target)
        filtered = parse_filter(one.filter).fields - {"return"} if one.filter else frozenset()
        for name in {*one.fetch.values(), *(filtered - one.fetch.keys())}:
            assert f" {name};" in fields or name == "tid"


def format_of(target: Target) -> str:
    """Return the kernel's format of a tracepoint; for a system call, that of its entry tracepoint."""
    if target.kind is Kind.SYSCALL:
        return (EVENTS / f"syscalls/sys_enter_{target.symbol}/format").read_text()
    return (EVENTS / target.system / target.event / "format").read_text()
