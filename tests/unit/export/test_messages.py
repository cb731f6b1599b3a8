"""Families in protobuf say what the family says, read by the protobuf library."""

import math
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import one_line
from kprobe_exporter.export.messages import delimited
from kprobe_exporter.model.values import Exemplar, Family, HistogramValue
from tests.support.client_model import TYPES, read

TEXTS = st.text(st.characters(), max_size=200)
NAMES = st.lists(st.sampled_from(["a", "comm", "kind", "probe"]), unique=True, max_size=3).map(tuple)
NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**64))
EXEMPLARS = st.builds(
    Exemplar,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.floats(allow_nan=False),
    st.floats(0, 2e9),
)


@st.composite
def histograms(draw: st.DrawFn) -> HistogramValue:
    bounds = sorted(draw(st.sets(st.floats(allow_nan=False, allow_infinity=False), max_size=4)))
    counts = draw(st.lists(st.integers(0, 2**60), min_size=len(bounds) + 1, max_size=len(bounds) + 1))
    exemplars = draw(st.dictionaries(st.integers(0, len(bounds)), EXEMPLARS))
    return HistogramValue(tuple(bounds), tuple(counts), draw(st.floats()), exemplars)


@st.composite
def families(draw: st.DrawFn) -> Family:
    kind = draw(st.sampled_from(["counter", "gauge", "histogram"]))
    labels = draw(NAMES)
    samples = st.dictionaries(
        st.tuples(*[TEXTS for _ in labels]), histograms() if kind == "histogram" else NUMBERS, max_size=4
    )
    return Family("kprobe_x_total", kind, draw(TEXTS), labels, draw(samples))  # type: ignore[arg-type]


def same(one: float, other: float) -> bool:
    return one == float(other) or (math.isnan(one) and math.isnan(other))


@given(families())
def test_a_message_says_what_the_family_says(family: Family) -> None:
    if not family.samples:
        assert delimited(family) == b""
        return
    [message] = read(delimited(family))
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


def check_histogram(message: Any, value: HistogramValue) -> None:
    assert message.sample_count == sum(value.counts)
    assert same(message.sample_sum, value.sum)
    assert [bucket.upper_bound for bucket in message.bucket] == [*value.bounds, math.inf]
    assert [bucket.cumulative_count for bucket in message.bucket] == [*accumulate(value.counts)]
    for index, bucket in enumerate(message.bucket):
        assert bucket.HasField("exemplar") == (index in value.exemplars)
        if bucket.HasField("exemplar"):
            exemplar, expected = bucket.exemplar, value.exemplars[index]
            ids = {label.name: label.value for label in exemplar.label}
            assert ids == {"trace_id": f"{expected.trace:032x}", "span_id": f"{expected.span:016x}"}
            assert exemplar.value == expected.value
            assert exemplar.timestamp.ToNanoseconds() == pytest.approx(expected.time * 1e9, abs=300)
