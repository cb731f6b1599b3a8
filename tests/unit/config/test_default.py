"""config/default.yaml: right, and of use on a kernel without kprobes."""

from pathlib import Path

import pytest

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import load
from kprobe_exporter.config.values import Probe
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.labels import DECODERS

PROBES = load([DEFAULT], DECODERS).probes
EVENTS = Path("/sys/kernel/tracing/events")


def test_there_are_enough_probes() -> None:
    assert len(PROBES) >= 6


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_probe_prefers_the_function_and_ends_in_a_tracepoint(probe: Probe) -> None:
    *kprobes, last = (one.target.kind for one in probe.attach)
    assert kprobes
    assert {*kprobes} <= {Kind.KPROBE, Kind.KRETPROBE}
    assert last is Kind.TRACEPOINT


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_probe_says_what_it_watches(probe: Probe) -> None:
    assert probe.help
    assert all(metric.help.endswith(".") for metric in probe.metrics)


@pytest.mark.needs("events")
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_tracepoint_is_here_with_its_fields(probe: Probe) -> None:
    one = probe.attach[-1]
    format_ = (EVENTS / one.target.system / one.target.event / "format").read_text()
    filtered = parse_filter(one.filter).fields - {"return"} if one.filter else frozenset()
    for name in {*one.fetch.values(), *(filtered - one.fetch.keys())}:
        assert f" {name};" in format_
