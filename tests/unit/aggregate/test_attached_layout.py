"""aggregate.attached_layout: how the attributes of an exported event are read, as a metric's labels are."""

import pytest

from kprobe_exporter.aggregate.attached_layout import attribute_readers
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.records import Layout, Record
from kprobe_exporter.model.specs import LabelSpec
from kprobe_exporter.model.values import Arg, Value

ARGS = (Arg("dev", "int"), Arg("error", "int", unsigned=32), Arg("port", "int", network=2), Arg("why", "int"))
WORDS = (("why", lambda number: f"why {number}"),)
LAYOUT = Layout(1, "io", "io", "tracepoint", "io", ARGS, absent=frozenset({"gone"}), names=WORDS)


def record(dev: Value = 266338304, error: Value = 2**32 - 5, port: Value = 0x01BB, why: Value = 3) -> Record:
    return (1, 5, 0, 11, 10, None, dev, error, port, why)


def label(field: str, decoder: str, *, network: bool = False, named: bool = False) -> LabelSpec:
    return LabelSpec("x", field, ((decoder, DECODERS[decoder](None)),) if decoder else (), network, named)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (label("dev", "majorminor"), "254:0"),
        (label("dev", ""), "266338304"),
        (label("error", "errno"), "EIO"),
        (label("port", "port", network=True), "443"),
        (label("gone", ""), None),
        (label("cpu", ""), "0"),
    ],
)
def test_a_value_as_a_metrics_label_shows_it(spec: LabelSpec, text: str | None) -> None:
    [(name, read)] = attribute_readers([spec], LAYOUT)
    assert (name, read(record())) == ("x", text)


def test_a_value_that_could_not_be_read_has_no_text() -> None:
    [(_, read)] = attribute_readers([label("dev", "majorminor")], LAYOUT)
    assert read(record(dev=None)) is None


def test_the_words_of_the_layout_are_used() -> None:
    [(_, read)] = attribute_readers([LabelSpec("x", "why", named=True)], LAYOUT)
    assert read(record()) == "why 3"
