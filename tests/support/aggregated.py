"""An aggregator with one probe, and records for it."""

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.values import Arg, Layout, MetricSpec, ProbeMetrics, Record, ReturnType

LONG = ReturnType("long", "s64", signed=True, wide=True)

OPEN = Layout(7, "open", "open", "return", "f", (Arg("return", "int"), Arg("comm", "str")), LONG)


def probe(name: str, *metrics: MetricSpec, returns: ReturnType | None = LONG) -> ProbeMetrics:
    return ProbeMetrics(name, metrics, (1.0, 4.0), returns)


def record(returned: object, comm: object = b"bash", layout_id: int = 7) -> Record:
    return (layout_id, 1_000, 0, 77, None, b"g", returned, comm)


def aggregator(*metrics: MetricSpec, count_hits: bool = False, max_series: int = 1000) -> Aggregator:
    made = Aggregator("kprobe", SeriesLimits(max_series, 20_000), name_of)
    made.declare(probe("open", *metrics))
    made.attach(OPEN, count_hits=count_hits)
    return made
