"""The largest value of a sliding window: which one it is, its labels, and how it is shown."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.worst import PARTS, WorstValues
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.aggregation import WORST, RawKey, Tally
from kprobe_exporter.model.records import Batch, Layout, Record
from kprobe_exporter.model.snapshot import MAX_EXEMPLAR, HistogramValue, WorstEvent
from kprobe_exporter.model.specs import LabelSpec, ProbeMetrics, WorstSpec
from kprobe_exporter.model.values import Arg
from tests.support.aggregated import families
from tests.support.return_records import LONG

WINDOW = 128.0
SPEC = WorstSpec("return", (LabelSpec("comm", "comm"),), 1.0, WINDOW, is_time=False)
LAYOUT = Layout(7, "open", "open", "return", "f", (Arg("return", "int"), Arg("comm", "str")), LONG)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tally(value: int, key: RawKey = (b"cat",)) -> Tally:
    return Tally(7, WORST, key, 1, value)


def record(returned: int, comm: bytes = b"cat", time: int = 1000) -> Record:
    return (7, time, 0, 77, None, b"g", returned, comm)


def aggregator(spec: WorstSpec, clock: Clock | None = None) -> Aggregator:
    made = Aggregator("kprobe", SeriesLimits(1000, 20_000, clock=clock or Clock()), name_of)
    made.declare(ProbeMetrics("open", (), (1.0, 4.0), LONG, worst=spec))
    made.attach(LAYOUT)
    return made


def value_of(worst: WorstEvent | None) -> float | None:
    return None if worst is None else worst.value


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(-50, 50)), max_size=200))
def test_largest_of_window_against_plain_search(reads: list[tuple[int, int]]) -> None:
    """A value counts for the window, and for no more than a part of it longer."""
    clock = Clock()
    values = WorstValues(SPEC, clock)
    add = values.take(SPEC)
    seen: list[tuple[float, int]] = []
    for eighths, value in reads:
        clock.now += eighths / 8
        add(tally(value))
        seen.append((clock.now, value))
        clock.now += eighths / 16
        found = value_of(values.largest())
        must = [value for at, value in seen if clock.now - at <= WINDOW]
        may = [value for at, value in seen if clock.now - at <= WINDOW + WINDOW / PARTS]
        if found is None:
            assert must == []
        else:
            assert found in may
            assert found >= max(must, default=found)


@pytest.mark.parametrize("falling", [True, False])
def test_kept_values_are_bounded(falling: bool) -> None:
    """Ten reads a second for two windows, each smaller, or larger, than the one before."""
    clock = Clock()
    values = WorstValues(SPEC, clock)
    add = values.take(SPEC)
    for number in range(round(20 * WINDOW)):
        clock.now += 0.1
        add(tally(-number if falling else number))
        assert len(values._kept) <= PARTS + 2


def test_two_scrapers_see_the_same_value() -> None:
    clock = Clock()
    made = aggregator(SPEC, clock)
    made.consume(Batch([record(5), record(9, b"worst"), record(7)]))
    for _ in range(2):
        assert made.copy().worst["open"].labels == (("comm", "worst"),)
        assert families(made.copy())["kprobe_worst_value"].samples == {("open", "return"): 9}
    clock.now += WINDOW / 2
    made.consume(Batch([record(8, b"later")]))
    assert made.copy().worst["open"].value == 9
    clock.now += WINDOW / 2 + 0.1
    assert made.copy().worst["open"].labels == (("comm", "later"),)
    clock.now += WINDOW
    numbers = made.copy()
    assert numbers.worst == {}
    family = families(numbers)["kprobe_worst_value"]
    assert (family.type, family.labels, family.samples) == ("gauge", ("probe", "by"), {})


@pytest.mark.parametrize("reads", [1, 3])
def test_latest_of_equal_values_is_shown(reads: int) -> None:
    """CPUs are read one after the other, so that the latest event may be read first."""
    made = aggregator(SPEC)
    records = [record(9, b"late", 30), record(9, b"early", 20), record(9, b"between", 25)]
    for number in range(reads):
        made.consume(Batch(records[number::reads]))
    assert made.copy().worst["open"].labels == (("comm", "late"),)


def test_times_are_seconds() -> None:
    spec = SPEC._replace(value="duration", scale=1e-9, is_time=True)
    made = aggregator(spec)
    made.consume(Batch(tallies=[tally(1_234_567_891)]))
    numbers = made.copy()
    assert families(numbers)["kprobe_worst_seconds"].samples == {("open", "duration"): 1.234567891}
    assert "kprobe_worst_value" not in families(numbers)


def test_labels_are_decoded_and_escaped() -> None:
    labels = (
        LabelSpec("errno", "return", (("errno", DECODERS["errno"](None)),)),
        LabelSpec("comm", "comm"),
        LabelSpec("nothing", "nothing"),
    )
    made = aggregator(SPEC._replace(labels=labels))
    made.consume(Batch([record(-2, b'a\n"# \xff\x1b')]))
    found = dict(made.copy().worst["open"].labels)
    assert found == {"errno": "ENOENT", "comm": 'a\\n"# \\xff\\x1b', "nothing": "unknown"}


def test_exemplar_is_in_the_bucket_of_the_value() -> None:
    made = aggregator(SPEC)
    made.consume(Batch([record(1, b"a"), record(3, b"b"), record(2, b"c")]))
    shown = families(made.copy())["kprobe_return_value"].samples["open",]
    assert isinstance(shown, HistogramValue)
    assert {bucket: (one.labels, one.value) for bucket, one in shown.exemplars.items()} == {
        1: ((("comm", "b"),), 3)
    }


def test_exemplar_of_other_fields_is_not_shown() -> None:
    layout = replace(LAYOUT, args=(*LAYOUT.args, Arg("count", "int")))
    made = Aggregator("kprobe", SeriesLimits(1000, 20_000), name_of)
    made.declare(ProbeMetrics("open", (), (1.0, 4.0), LONG, worst=SPEC._replace(value="count")))
    made.attach(layout)
    made.consume(Batch([(*record(3), 8)]))
    numbers = made.copy()
    shown = families(numbers)["kprobe_return_value"].samples["open",]
    assert isinstance(shown, HistogramValue)
    assert (shown.exemplars, numbers.worst["open"].value) == ({}, 8)


@given(st.lists(st.tuples(st.sampled_from(["a", "file", "x" * 60]), st.text(max_size=200)), max_size=4))
def test_exemplar_labels_are_cut(labels: list[tuple[str, str]]) -> None:
    exemplar = WorstEvent(1.0, tuple(labels), 2.0).exemplar
    assert sum(len(name) + len(text) for name, text in exemplar.labels) <= MAX_EXEMPLAR
    for (name, text), (before, whole) in zip(exemplar.labels, labels, strict=False):
        assert name == before
        assert text == whole or (text.endswith("…") and whole.startswith(text[:-1]))


def test_value_outlives_a_new_declaration_alone_if_it_is_comparable() -> None:
    made = aggregator(SPEC)
    made.consume(Batch([record(9)]))
    labels = (*SPEC.labels, LabelSpec("tid", "tid"))
    made.redeclare([ProbeMetrics("open", (), (1.0, 4.0), LONG, worst=SPEC._replace(labels=labels))])
    assert made.copy().worst["open"].value == 9
    made.redeclare([ProbeMetrics("open", (), (1.0, 4.0), LONG, worst=SPEC._replace(window=60.0))])
    assert made.copy().worst == {}
    made.redeclare([ProbeMetrics("open", (), (1.0, 4.0), LONG)])
    assert "kprobe_worst_value" not in families(made.copy())
