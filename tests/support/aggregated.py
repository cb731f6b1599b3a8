"""An aggregator with one probe, records for it, and what the aggregator shows."""

from dataclasses import replace
from typing import Any

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import Layout, Record
from kprobe_exporter.model.snapshot import Family
from kprobe_exporter.model.specs import MetricSpec, ProbeMetrics
from kprobe_exporter.model.values import Arg, ReturnType
from tests.support.return_records import LONG

OPEN = Layout(7, "open", "open", "return", "f", (Arg("return", "int"), Arg("comm", "str")), LONG)


def probe(name: str, *metrics: MetricSpec, returns: ReturnType | None = LONG) -> ProbeMetrics:
    return ProbeMetrics(name, metrics, (1.0, 4.0), returns)


def record(returned: object, comm: object = b"bash", layout_id: int = 7) -> Record:
    return (layout_id, 1_000, 0, 77, None, b"g", returned, comm)


def aggregator(
    *metrics: MetricSpec,
    limits: SeriesLimits | None = None,
    returns: ReturnType | None = LONG,
    count_hits: bool = False,
    residual_filter: Where | None = None,
) -> Aggregator:
    made = Aggregator("kprobe", limits or SeriesLimits(1000, 20_000), name_of)
    made.declare(probe("open", *metrics, returns=returns))
    made.attach(replace(OPEN, returns=returns), count_hits=count_hits, residual_filter=residual_filter)
    return made


def families(numbers: Numbers) -> dict[str, Family]:
    return {family.name: family for family in numbers.families}


def samples(numbers: Numbers, name: str) -> dict[tuple[str, ...], Any]:
    return dict(families(numbers)[name].samples)
