"""config.names: names that promtool would object to, and names that are already taken."""

import pytest

from kprobe_exporter.config.model import Label, Metric, MetricKind
from kprobe_exporter.config.names import MetricNames, wrong_with_label, wrong_with_metric, wrong_with_space


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("counter", name) for name in ("open_errors_total", "read_bytes_total", "total")),
        *(("histogram", name) for name in ("read_seconds", "thermometers", "latency_count")),
        *(("gauge", name) for name in ("queue_length", "temperature_celsius", "LOUD")),
    ],
)
def test_good_names(kind: str, name: str) -> None:
    assert list(wrong_with_metric(kind, name)) == []


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        ("counter", "opens", "a counter's name must end in _total"),
        ("gauge", "opens_total", "only a counter's name may end in _total, and this is a gauge"),
        ("histogram", "total", "only a counter's name may end in _total"),
        ("gauge", "a_count", "a name that ends in _count is taken for a part of a histogram"),
        ("gauge", "sum", "a name that ends in _sum is taken for a part of a histogram"),
        ("gauge", "a_bucket", "a name that ends in _bucket is taken for a part of a histogram"),
        ("counter", "fooBar_total", "write the name in snake_case, foo_bar_total"),
        ("counter", "read_kilobytes_total", "use the base unit 'bytes' instead of 'kilobytes'"),
        ("histogram", "wait_minutes", "use the base unit 'seconds' instead of 'minutes'"),
        ("histogram", "wait_ms", "'ms' reads as an abbreviated unit"),
        ("histogram", "wait_Sec", "'sec' reads as an abbreviated unit"),
        ("counter", "kb_total", "'kb' reads as an abbreviated unit"),
        ("histogram", "read_histogram", "leave the type 'histogram' out of the name"),
        ("counter", "gauge_total", "leave the type 'gauge' out of the name"),
    ],
)
def test_bad_names(kind: str, name: str, sentence: str) -> None:
    [found] = wrong_with_metric(kind, name)
    assert found.startswith(sentence)


@pytest.mark.parametrize("name", ["kprobe", "node", "seconds", "my_host"])
def test_good_namespaces(name: str) -> None:
    assert list(wrong_with_space(name)) == []


@pytest.mark.parametrize(
    "name", ["kprobe_exporter", "kprobe_exporter_x", "process", "python", "fooBar", "x_ms"]
)
def test_bad_namespaces(name: str) -> None:
    assert len(list(wrong_with_space(name))) == 1


def test_labels() -> None:
    assert list(wrong_with_label("errno")) == []
    for name in ("le", "quantile", "job", "instance", "__name__", "__x", "fooBar"):
        assert len(list(wrong_with_label(name))) == 1


def metric(kind: MetricKind, name: str, *labels: str, help_: str = "h") -> Metric:
    buckets = (1.0,) if kind == "histogram" else None
    return Metric(kind, name, help_, None, tuple(Label(one, one) for one in labels), buckets)


@pytest.mark.parametrize(
    "one",
    [
        *(metric("counter", f"{name}_total") for name in ("hits", "misses", "up", "return_errors")),
        *(metric("gauge", name) for name in ("up", "info", "hits", "return_value_sum")),
        *(metric("histogram", name) for name in ("return_value", "duration_seconds")),
    ],
)
def test_built_in_names_are_taken(one: Metric) -> None:
    assert "is taken by the built-in kprobe_" in (MetricNames("kprobe").add(one, "here") or "")


def test_names_of_the_exporter_itself() -> None:
    one = metric("counter", "exporter_events_total")
    assert "the exporter's own" in (MetricNames("kprobe").add(one, "here") or "")
    assert MetricNames("other").add(one, "here") is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (metric("histogram", "x"), metric("counter", "x_total")),
        (metric("counter", "x_total"), metric("gauge", "x")),
        (metric("histogram", "x"), metric("gauge", "x_sum")),
        (metric("histogram", "x"), metric("gauge", "x_bucket")),
        (metric("histogram", "x_count"), metric("histogram", "x")),
    ],
)
def test_series_that_would_be_there_twice(first: Metric, second: Metric) -> None:
    taken = MetricNames("kprobe")
    assert taken.add(first, "there") is None
    assert "there: choose another name" in (taken.add(second, "here") or "")


def test_sharing() -> None:
    taken = MetricNames("kprobe")
    assert taken.add(metric("counter", "a_total", "x"), "there") is None
    assert taken.add(metric("counter", "a_total", "x"), "here") is None
    assert taken.add(metric("counter", "a_total", "y", help_="other"), "here") == (
        "it shares its name with there, but differs in help and labels"
    )
    assert "differs in kind" in (taken.add(metric("gauge", "a_total", "x"), "here") or "")
