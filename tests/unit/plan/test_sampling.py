"""sampling: each thread is in one of the samples, and a plan is narrowed by nothing else."""

from collections import Counter
from dataclasses import replace

import pytest

from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeMetrics, ProbeSpec, Unsupported
from kprobe_exporter.plan import JoinedSpec, ProbePlan, Sample, narrowed
from kprobe_exporter.plan.probe import NO_THREAD
from tests.support.conditions import compile_filter
from tests.support.planned import attach, probe

SPEC = ProbeSpec(
    probe="open",
    kind="kprobe",
    target="kprobe:do_open",
    symbol="do_open",
    file="kprobe_events",
    verb="p",
    body="do_open",
    filter=None,
    layout=Layout(0, "open", "open", "entry", "do_open"),
)
ABSENT = Unsupported("kprobe:do_gone", "it is gone")
SAMPLE = Sample(8, 5)


def joined(by: str, *key: str) -> JoinedSpec:
    ways = ((SPEC, ABSENT), (replace(SPEC, role="end", filter="ret < 0"),))
    return JoinedSpec("open", "pair", "a to b", "a", 7, ways, by, key, None)  # type: ignore[arg-type]


def plan(*alternatives: ProbeSpec | JoinedSpec | Unsupported) -> ProbePlan:
    return ProbePlan(probe(attach("kprobe:do_open")), ProbeMetrics("open", (), (), None), alternatives)


@pytest.mark.parametrize("one_in", [8, 16, 1024])
def test_each_thread_is_in_exactly_one_of_the_samples(one_in: int) -> None:
    """The agent's own evaluation of the kernel's grammar is the oracle."""
    passes = [compile_filter(parse_filter(Sample(one_in, chosen).condition)) for chosen in range(one_in)]
    for tid in (*range(0, 3 * one_in, 7), 2**22 - 1, 2**22):
        assert [passed({"common_pid": tid}) for passed in passes].count(True) == 1
        assert passes[tid % one_in]({"common_pid": tid})


def test_the_threads_cannot_be_foretold() -> None:
    drawn = Counter(Sample.drawn(8).chosen for _ in range(800))
    assert drawn.keys() == set(range(8))
    assert max(drawn.values()) < 200


def test_events_are_narrowed_and_the_users_filter_stays() -> None:
    found = narrowed(plan(SPEC, ABSENT, replace(SPEC, filter="fd < 0 || fd > 9")), SAMPLE).alternatives
    first, absent, filtered = found
    assert isinstance(first, ProbeSpec)
    assert isinstance(filtered, ProbeSpec)
    assert absent is ABSENT
    assert first.kernel_filter == "common_pid & 1 && !(common_pid & 2) && common_pid & 4"
    assert filtered.kernel_filter == f"(fd < 0 || fd > 9) && {first.kernel_filter}"
    assert (first.filter, filtered.filter) == (None, "fd < 0 || fd > 9")
    assert replace(first, sample=None) == SPEC
    parse_filter(filtered.kernel_filter)
    assert SAMPLE.ratio(first) == 1 / 8


@pytest.mark.parametrize("kind", ["count", "kernel"])
def test_what_writes_no_events_stays_whole(kind: str) -> None:
    counted = replace(SPEC, plan=kind)  # type: ignore[arg-type]
    assert narrowed(plan(counted), SAMPLE).alternatives == (counted,)
    assert SAMPLE.ratio(counted) == 1


@pytest.mark.parametrize(
    ("by", "key", "ratio"),
    [("stack", (), 1 / 8), ("key", ("tid",), 1 / 8), ("key", ("dev", "sector"), 0.0)],
)
def test_both_halves_of_a_call_are_recorded_or_none(by: str, key: tuple[str, ...], ratio: float) -> None:
    [found] = narrowed(plan(joined(by, *key)), SAMPLE).alternatives
    assert isinstance(found, JoinedSpec)
    halves = [way for half in found.ways for way in half if isinstance(way, ProbeSpec)]
    assert {half.sample for half in halves} == {SAMPLE.condition if ratio else NO_THREAD}
    assert [half.filter for half in halves] == [None, "ret < 0"]
    assert SAMPLE.ratio(found) == ratio
