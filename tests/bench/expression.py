"""What expressions and native buckets cost an event: pages in memory, summed with one field as a value, with
two computed, and with one into a native histogram, too.

A kernel's buffer cannot be read twice, so the rounds of the other rows are few and long. Pages in memory are
read in slices of much less than a millisecond; the best one is free of what else the machine does. The second
field is 0, so that both values fall into the same buckets.
"""

import math
import struct
import time
from typing import Any

from kprobe_exporter.aggregate.recipes import source_recipe
from kprobe_exporter.grammar.evaluate import as_number
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.grammar.lexis import NAME
from kprobe_exporter.model.condition import Computed
from kprobe_exporter.model.record_layout import Field, Shape
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import LabelSpec, MetricSpec, ProbeMetrics
from kprobe_exporter.model.values import Arg
from tests.support.page_material import Names, compiled
from tests.support.ring_buffer import GEOMETRY, Page, event

ONE_FIELD, TWO_FIELDS, NATIVE = "first", "first + second", "first, native"
SLICES = 8000
PAGES = 1
BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def nanoseconds() -> dict[str, float]:
    """Return the least nanoseconds an event: of a field, of an expression, and of a native histogram."""
    page, events = Page(1000), 0
    while page.room(24):
        page.add(1000 + events, event(7, 77, struct.pack("=qq", events % 64, 0)))
        events += 1
    data = bytes(page.render())
    parsers = {value: _parser(value) for value in (ONE_FIELD, TWO_FIELDS)}
    parsers[NATIVE] = _parser(ONE_FIELD, native=True)
    best = dict.fromkeys(parsers, math.inf)
    for _ in range(SLICES):
        for value, parser in parsers.items():
            began = time.perf_counter_ns()
            for _ in range(PAGES):
                parser.feed(data, 0)
            taken = time.perf_counter_ns() - began
            best[value] = min(best[value], taken / PAGES / events)
            assert parser.take().arrived == {0: PAGES * events}
    return best


def _parser(value: str, *, native: bool = False) -> Any:
    tree = parse_formula(value)
    computed = (
        () if NAME.fullmatch(value) else (Computed(value, tuple(sorted(tree.fields)), as_number(tree)),)
    )
    args = (Arg("first", "int"), Arg("second", "int"))
    layout = Layout(0, "seek", "seek", "entry", "f", args, computed=computed)
    places = Field("signed", 8, 8), Field("signed", 16, 8)
    metric = MetricSpec("offset", "histogram", "", value, (LabelSpec("cpu", "cpu"),), BUCKETS, native=native)
    recipe = source_recipe(layout, ProbeMetrics("seek", (metric,), (), None), None)
    assert recipe is not None
    shape = Shape(7, layout, places, Field("signed", 4, 4), None, 24)
    return compiled.PageParser(GEOMETRY, [shape], Names(), recipes={0: recipe})
