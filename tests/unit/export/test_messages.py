"""Families in protobuf say what the family says, read by the protobuf library."""

import gc
import math
from itertools import accumulate
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import one_line
from kprobe_exporter.export.messages import Encoder
from kprobe_exporter.model.snapshot import Exemplar, Family, HistogramValue, NativeValue
from kprobe_exporter.util.protobuf import field
from tests.support.client_model import TYPES, read

TEXTS = st.text(st.characters(), max_size=200)
NAMES = st.lists(st.sampled_from(["a", "comm", "kind", "probe"]), unique=True, max_size=3).map(tuple)
NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**64))
EXEMPLARS = st.builds(
    Exemplar,
    st.dictionaries(st.sampled_from(["comm", "file", "trace_id"]), st.text()).map(
        lambda one: tuple(one.items())
    ),
    st.floats(allow_nan=False),
    st.floats(0, 2e9),
)


STEPS = st.dictionaries(st.integers(-600, 600), st.integers(1, 2**60), max_size=20)
NATIVE = st.builds(NativeValue, st.integers(-4, 8), st.integers(0, 2**60), STEPS, STEPS)


@st.composite
def histograms(draw: st.DrawFn) -> HistogramValue:
    bounds = sorted(draw(st.sets(st.floats(allow_nan=False, allow_infinity=False), max_size=4)))
    counts = draw(st.lists(st.integers(0, 2**60), min_size=len(bounds) + 1, max_size=len(bounds) + 1))
    exemplars = draw(st.dictionaries(st.integers(0, len(bounds)), EXEMPLARS))
    native = draw(st.none() | NATIVE)
    return HistogramValue(tuple(bounds), tuple(counts), draw(st.floats()), exemplars, native)


@st.composite
def families(draw: st.DrawFn) -> Family:
    kind = draw(st.sampled_from(["counter", "gauge", "histogram"]))
    labels = draw(NAMES)
    samples = st.dictionaries(
        st.tuples(*[TEXTS for _ in labels]), histograms() if kind == "histogram" else NUMBERS, max_size=4
    )
    found = draw(samples)
    created = {key: 1_700_000_000.25 for key in found if kind != "gauge" and draw(st.booleans())}
    return Family("kprobe_x_total", kind, draw(TEXTS), labels, found, created)  # type: ignore[arg-type]


def same(one: float, other: float) -> bool:
    return one == float(other) or (math.isnan(one) and math.isnan(other))


@given(families())
def test_a_message_says_what_the_family_says(family: Family) -> None:
    if not family.samples:
        assert Encoder().delimited(family) == b""
        return
    [message] = read(Encoder().delimited(family))
    assert (message.name, TYPES[message.type]) == (family.name, family.type)
    assert message.help == family.help.encode("utf-8", "backslashreplace").decode()
    for metric, (values, value) in zip(message.metric, family.samples.items(), strict=True):
        pairs = [(label.name, label.value) for label in metric.label]
        assert pairs == [*zip(family.labels, map(one_line, values), strict=True)]
        [(field, content)] = [one for one in metric.ListFields() if one[0].name != "label"]
        assert field.name == family.type
        if isinstance(value, HistogramValue):
            check_histogram(content, value)
        else:
            assert same(content.value, value)
        if values in family.created:
            assert content.created_timestamp.ToNanoseconds() == 1_700_000_000_250_000_000
        else:
            assert family.type == "gauge" or not content.HasField("created_timestamp")


@given(st.lists(st.lists(families(), max_size=3), max_size=4))
def test_what_was_kept_of_the_rendering_before_changes_nothing(renderings: list[list[Family]]) -> None:
    encoder = None
    for each in renderings:
        encoder = Encoder(encoder)
        assert [*map(encoder.delimited, each)] == [Encoder().delimited(family) for family in each]
        encoder.end()


def test_a_series_that_begins_anew_has_its_new_time() -> None:
    one = Family("x_total", "counter", "", ("of",), {("a",): 1.0, ("b",): 1.0}, {("a",): 10.0, ("b",): 10.0})
    again = one._replace(created={("a",): 20.0, ("b",): 10.0})
    first = Encoder()
    first.delimited(one)
    assert Encoder(first.end()).delimited(again) == Encoder().delimited(again) != Encoder().delimited(one)


@pytest.mark.parametrize("value", [1.0, HistogramValue((1.0,), (1, 0), 1.0)])
def test_nothing_is_kept_of_a_series_that_is_gone(value: float | HistogramValue) -> None:
    kind: Literal["gauge", "histogram"] = "histogram" if isinstance(value, HistogramValue) else "gauge"
    first, after = Encoder(), Family("x", kind, "", ("of",), {("stays",): value})
    first.delimited(after._replace(samples={("stays",): value, ("goes",): value}))
    second = Encoder(first.end())
    del first
    second.delimited(after)
    assert kept("stays") == 2
    assert kept("goes") == 1
    second.end()
    assert kept("stays") == 1
    assert kept("goes") == 0


def kept(value: str) -> int:
    """Return in how many places there is an encoded label of this value."""
    gc.collect()
    places = [each for each in gc.get_objects() if isinstance(each, list | dict)]
    encoded = ([*(each.values() if isinstance(each, dict) else each)] for each in places)
    label = field(1, field(1, b"of") + field(2, value.encode()))
    return sum(any(isinstance(one, bytes) and label in one for one in each) for each in encoded)


def check_histogram(message: Any, value: HistogramValue) -> None:
    assert message.sample_count == sum(value.counts)
    assert same(message.sample_sum, value.sum)
    assert [bucket.upper_bound for bucket in message.bucket] == [*value.bounds, math.inf]
    assert [bucket.cumulative_count for bucket in message.bucket] == [*accumulate(value.counts)]
    assert message.HasField("schema") == (value.native is not None)
    if value.native is not None:
        native = value.native
        assert (message.schema, message.zero_count, message.zero_threshold) == (
            native.schema,
            native.zero,
            2.0**-128,
        )
        assert buckets(message.positive_span, message.positive_delta) == native.positive
        assert buckets(message.negative_span, message.negative_delta) == native.negative
    for index, bucket in enumerate(message.bucket):
        assert bucket.HasField("exemplar") == (index in value.exemplars)
        if bucket.HasField("exemplar"):
            exemplar, expected = bucket.exemplar, value.exemplars[index]
            texts = {label.name: label.value for label in exemplar.label}
            assert texts == {name: one_line(text) for name, text in expected.labels}
            assert exemplar.value == expected.value
            assert exemplar.timestamp.ToNanoseconds() == pytest.approx(expected.time * 1e9, abs=300)


def buckets(spans: Any, deltas: Any) -> dict[int, int]:
    """Return the buckets as Prometheus reads them: https://prometheus.io/docs/specs/native_histograms/."""
    steps: list[int] = []
    step = 0
    for span in spans:
        step += span.offset
        steps += range(step, step + span.length)
        step += span.length
    return dict(zip(steps, accumulate(deltas), strict=True))
