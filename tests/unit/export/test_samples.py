"""Samples are written as the client library writes them."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Literal, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as ClientExemplar
from prometheus_client.utils import floatToGoString

from kprobe_exporter.errors import one_line
from kprobe_exporter.export.samples import encoded
from kprobe_exporter.model.snapshot import Exemplar, Family, HistogramValue

# The client library has no type annotations for these functions.
generate_openmetrics: Callable[[Collector], bytes] = openmetrics.generate_latest
go_string: Callable[[float], str] = floatToGoString

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

LABELS = st.lists(st.sampled_from(["a", "comm", "kind", "lf", "probe", "zone"]), unique=True, max_size=4)
NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**64), st.sampled_from([999_999.5, 1e6, -1e6, 1e-7]))
EXEMPLARS = st.builds(
    Exemplar,
    st.dictionaries(st.sampled_from(["comm", "file", "trace_id"]), st.text()).map(
        lambda one: tuple(one.items())
    ),
    st.floats(allow_nan=False),
    st.floats(0, 2e9),
)


class One(Collector):
    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self.metric


def written_by_the_library(family: Family, as_openmetrics: bool) -> list[str]:
    metric = Metric(family.name.removesuffix("_total"), "", family.type)
    for values, value in family.samples.items():
        labels = {name: one_line(text) for name, text in zip(family.labels, values, strict=True)}
        if not isinstance(value, HistogramValue):
            metric.add_sample(family.name, labels, value)
            continue
        totals = [*accumulate(value.counts)]
        for index, bound in enumerate([*map(go_string, value.bounds), "+Inf"]):
            shown = value.exemplars.get(index)
            exemplar = None
            if shown:
                texts = {name: one_line(text) for name, text in shown.labels}
                exemplar = ClientExemplar(texts, shown.value, shown.time)
            name, number = f"{family.name}_bucket", totals[index]
            metric.add_sample(name, {**labels, "le": bound}, number, None, exemplar)
        if not (as_openmetrics and value.bounds[0] < 0):
            metric.add_sample(f"{family.name}_sum", labels, value.sum)
            metric.add_sample(f"{family.name}_count", labels, totals[-1])
    body = (generate_openmetrics if as_openmetrics else generate_text)(One(metric)).decode()
    return [line for line in body.split("\n") if not line.startswith("#")]


def written(family: Family, as_openmetrics: bool) -> list[str]:
    return b"".join(encoded(family, as_openmetrics)).decode().split("\n")


@st.composite
def histograms(draw: st.DrawFn) -> HistogramValue:
    bounds = draw(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=4, unique=True).map(sorted))
    count = len(bounds) + 1
    counts = draw(st.lists(st.integers(0, 2**40), min_size=count, max_size=count))
    exemplars = draw(st.dictionaries(st.integers(0, len(bounds)), EXEMPLARS, max_size=2))
    return HistogramValue(tuple(bounds), tuple(counts), draw(NUMBERS), exemplars)


@st.composite
def families(draw: st.DrawFn, kind: Kind, values: st.SearchStrategy[float | HistogramValue]) -> Family:
    labels = tuple(draw(LABELS))
    texts = st.one_of(st.text(max_size=8), st.sampled_from(['"', "\\n", "%s", "\0", "}", "é", "\udcff"]))
    samples = draw(st.dictionaries(st.tuples(*[texts] * len(labels)), values, max_size=4))
    return Family("kprobe_x_total" if kind == "counter" else "kprobe_x", kind, "", labels, samples)


@pytest.mark.parametrize("as_openmetrics", [False, True])
@pytest.mark.parametrize("kind", ["counter", "gauge"])
@given(st.data())
def test_numbers(as_openmetrics: bool, kind: Kind, data: st.DataObject) -> None:
    family = data.draw(families(kind, NUMBERS))
    assert written(family, as_openmetrics) == written_by_the_library(family, as_openmetrics)


@pytest.mark.parametrize("as_openmetrics", [False, True])
@given(families("histogram", histograms()))
def test_histograms(as_openmetrics: bool, family: Family) -> None:
    plain = {
        values: value
        if as_openmetrics or not isinstance(value, HistogramValue)
        else value._replace(exemplars={})
        for values, value in family.samples.items()
    }
    expected = written_by_the_library(family._replace(samples=plain), as_openmetrics)
    assert written(family, as_openmetrics) == expected


def test_labels_of_an_exemplar_are_in_the_order_of_their_names() -> None:
    exemplar = Exemplar((("file", "f"), ("comm", "c")), 0.5, 0)
    value = HistogramValue((1.0,), (1, 0), 0.5, exemplars={0: exemplar})
    family = Family("kprobe_x", "histogram", "", (), {(): value})
    assert ' # {comm="c",file="f"} 0.5 ' in "\n".join(written(family, as_openmetrics=True))


def test_more_samples_than_are_held_at_once() -> None:
    family = Family("x", "gauge", "", ("n",), {(str(number),): number for number in range(2500)})
    pieces = list(encoded(family, as_openmetrics=False))
    assert len(pieces) == 3
    assert b"".join(pieces).decode() == "".join(f'x{{n="{number}"}} {number}.0\n' for number in range(2500))
