"""`where` on labels: what passes, from records and from tallies; what is missing is counted."""

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.records import Batch
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import Kernel, plan_probe

FORMAT = """name: event
ID: 7
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:int reason;	offset:8;	size:4;	signed:1;
	field:unsigned int len;	offset:12;	size:4;	signed:0;
	field:__data_loc char[] file;	offset:16;	size:4;	signed:0;

print fmt: "%s %u", __print_symbolic(REC->reason, { 1, "ONE" }, { 2, "TWO" }), REC->len
"""

Count = Callable[..., tuple[Mapping[tuple[str, ...], Any], Aggregator]]
LABELS = (
    "{reason: {field: reason, decode: name}, small: {field: reason, decode: {map: {1: little, 2: more}}}}"
)


@pytest.fixture
def counted(tmp_path: Path) -> Count:
    """Return a function that counts events of reason, length and file by a metric of these keys."""

    def run(
        keys: str, *events: tuple[int | None, int | None, bytes | None], labels: str = LABELS
    ) -> tuple[Mapping[tuple[str, ...], Any], Aggregator]:
        file = tmp_path / "c.yaml"
        metric = f"{{labels: {labels}, {keys}}}"
        fetch = "{reason: reason, len: len, file: file}"
        attach = "attach: 'tracepoint:sys:event'"
        file.write_text(f"probes: [{{name: p, {attach}, fetch: {fetch}, metrics: [{metric}]}}]")
        [probe] = load([file], DECODERS).probes
        kernel = Kernel(lambda *_: FORMAT, counts_tracepoints=True, binary=True)
        plan = plan_probe(probe, "kprobe", DECODERS, kernel, count())
        spec = next(way for way in plan.alternatives if isinstance(way, ProbeSpec) and way.file)
        made = Aggregator("kprobe", SeriesLimits(100, 100), name_of)
        made.declare(plan.metrics)
        made.attach(spec.layout)
        places = {arg.name: index for index, arg in enumerate(spec.layout.args)}
        records = []
        for event in events:
            values: list[Any] = [None] * len(places)
            for name, value in zip(("reason", "len", "file"), event, strict=True):
                if name in places:
                    values[places[name]] = value
            records.append((spec.layout.layout_id, 1, 0, 77, None, None, *values))
        made.consume(Batch(records=records))
        (family,) = (one for one in made.copy().families if one.name == "kprobe_seen_total")
        return {key: value for key, value in family.samples.items() if value}, made

    return run


@pytest.mark.parametrize(
    ("where", "passed"),
    [
        ('reason == "ONE"', [1]),
        ('reason != "ONE"', [2, 3]),
        ('reason ~ "T*"', [2]),
        ('small == "more" || reason == "ONE"', [1, 2]),
        ('small == "more" && len > 10', []),
        ('small == "more" || len > 20', [2, 3]),
        ('len > 5 && !(small == "little")', [2, 3]),
        ('reason > 1 && small == "more"', [2]),
        ("reason == 1", [1]),
    ],
)
def test_what_passes(counted: Count, where: str, passed: list[int]) -> None:
    events = [(1, 10, b"a"), (2, 10, b"b"), (3, 30, b"c"), (1, 10, b"a")]
    samples, _ = counted(f"counter: seen_total, where: '{where}'", *events)
    names = {1: ("ONE", "little"), 2: ("TWO", "more"), 3: ("3", "unknown")}
    assert samples == {names[number]: 2 if number == 1 else 1 for number in passed}


def test_a_label_of_text_hides_no_field(counted: Count) -> None:
    base = "{field: file, decode: {regexp: '([^/]*)$'}}"
    labels = f"{{file: {base}, base: {base}}}"
    events = [(1, 1, b"/bin/true"), (1, 1, b"true")]
    samples, _ = counted("counter: seen_total, where: 'file == \"true\"'", *events, labels=labels)
    assert samples == {("true", "true"): 1}
    samples, _ = counted("counter: seen_total, where: 'base == \"true\"'", *events, labels=labels)
    assert samples == {("true", "true"): 2}


def test_missing_values_are_counted(counted: Count) -> None:
    events: list[Any] = [(3, None, b"a"), (1, 0, b"b"), (3, 0, b"b"), (3, 3, b"b")]
    keys = "counter: seen_total, where: 'small == \"little\" || 12 / len > 3'"
    samples, made = counted(keys, *events)
    assert samples == {("3", "unknown"): 1, ("ONE", "little"): 1}
    numbers = made.copy()
    assert numbers.lost_of["p", "unreadable"] == 2
    assert numbers.decode_failures == {"map": 3}


def test_a_value_that_is_added_up_is_that_of_what_passes(counted: Count) -> None:
    events = [(1, 10, b"a"), (2, 20, b"b"), (1, 5, b"c")]
    samples, _ = counted("counter: seen_total, value: len, where: 'small == \"little\" && len > 5'", *events)
    assert samples == {("ONE", "little"): 10}
