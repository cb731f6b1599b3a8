"""Fixed names for single values."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.series import Series, SeriesLimits
from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.values import Value
from kprobe_exporter.plan.metric import metric_spec

decoder = DECODERS["map"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((value, "ok") for value in (0, b"0", b"0x0")),
        *((value, "failed") for value in (-1, b"-1")),
        (b"bash", "shell"),
        ("Größe".encode(), "5"),
        (b"", "empty"),
        *((value, None) for value in (1, b"1", b"0 ", b"\xff", None)),
    ],
)
def test_values(value: Value, text: str | None) -> None:
    decode = decoder({0: "ok", -1: "failed", "bash": "shell", "Größe": 5, "": "empty"})
    assert decode(value) == text


@pytest.mark.parametrize("value", [7, b"7"])
def test_a_string_of_digits_as_key_is_only_itself(value: Value) -> None:
    decode = decoder({"7": "text", 7: "number"})
    assert decode(value) == ("text" if value == b"7" else "number")


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_number_and_its_text_have_one_name(number: int) -> None:
    """A number and its text have the same name, because an earlier decoder of a chain gives text."""
    decode = decoder({number: "it"})
    assert decode(number) == decode(str(number).encode()) == "it"


@pytest.mark.parametrize(
    ("chain", "value", "text"),
    [
        ("[{regexp: '(\\d+)'}, {map: {1: one}}]", b"a1b", "one"),
        ("[{regexp: '(\\d+)'}, {map: {'1': one}}]", b"a1b", "one"),
        ("[{regexp: '(\\d+)'}, {map: {1: one}}]", b"a2b", "unknown"),
        ("[hex, {map: {0x1f: all}}]", 31, "all"),
        ("[{map: {1: 2}}, {map: {2: two}}]", 1, "two"),
    ],
)
def test_behind_another_decoder(tmp_path: Path, chain: str, value: Value, text: str) -> None:
    """The chain is loaded from a configuration, and applied by the aggregator's series."""
    file = tmp_path / "c.yaml"
    metric = f"{{counter: seen_total, help: h, labels: {{what: {{field: a, decode: {chain}}}}}}}"
    file.write_text(
        f"probes: [{{name: p, attach: kprobe:vfs_open, fetch: {{a: $arg1}}, metrics: [{metric}]}}]"
    )
    [probe] = load([file], DECODERS).probes
    labels = metric_spec(probe.metrics[0], "ns", DECODERS).labels
    series = Series(labels, object, SeriesLimits(9, 9), Counter())
    series.cell((value,))
    assert list(series.cells) == [(text,)]


def test_later_changes_of_the_options_do_not_matter() -> None:
    options = {0: "ok"}
    decode = decoder(options)
    options[0] = "changed"
    assert decode(0) == "ok"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (None, "wants a mapping"),
        ({}, "wants a mapping"),
        ([0, "ok"], "wants a mapping"),
        ("ok", "wants a mapping"),
        ({True: "ok"}, "numbers and strings as keys, not True"),
        ({1.5: "ok"}, "numbers and strings as keys, not 1.5"),
        ({None: "ok"}, "numbers and strings as keys, not None"),
        ({0: None}, "a name for 0, not None"),
        ({0: True}, "a name for 0, not True"),
        ({0: ["ok"]}, "a name for 0"),
    ],
)
def test_what_is_refused(options: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        decoder(options)
