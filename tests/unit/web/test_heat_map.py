"""Heat maps on a probe's page: a row a bucket, its sum, and cells with their number and age."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.model.snapshot import HeatMap
from kprobe_exporter.web.heat_map import render_heat_map

HEAT = HeatMap(
    "duration_seconds",
    (4e-6, 0.016, 1.0),
    ((0, 1, 0, 0), (), (0, 64, 8, 0)),
    15.0,
)


def test_rows_from_the_highest_to_the_lowest_that_has_anything() -> None:
    shown = render_heat_map(HEAT)
    assert re.findall(r"<dt>(.*?)</dt>", shown) == ["≤ 1 s", "≤ 16 ms"]
    assert re.findall(r"<i>(.*?)</i>", shown) == ["8", "65"]
    assert "<h3>Durations</h3>" in shown
    assert "at most 64 in one" in shown


def test_title_of_a_metric_is_its_name() -> None:
    shown = render_heat_map(HEAT._replace(kind="kprobe_run_queue_seconds"))
    assert "<h3><code>kprobe_<wbr>run_<wbr>queue_<wbr>seconds</code></h3>" in shown


def test_cells_tell_their_number_and_when_it_was() -> None:
    shown = render_heat_map(HEAT)
    assert re.findall(r"<title>(.*?)</title>", shown) == [
        "8, 15 to 0 s ago",
        "1, 45 to 30 s ago",
        "64, 15 to 0 s ago",
    ]
    assert re.findall(r'x="(\d)" .*?fill-opacity="(.*?)"', shown) == [
        ("2", "0.60"),
        ("0", "0.20"),
        ("2", "1.00"),
    ]


@pytest.mark.parametrize(
    ("kind", "bounds", "label"),
    [
        ("return_value", (1024.0,), "≤ 1,024"),
        ("duration_seconds", (16.777216,), "≤ 16.8 s"),
        ("duration_seconds", (1e-9,), "≤ 1 ns"),
        ("kprobe_run_queue_seconds", (0.001,), "≤ 1 ms"),
        ("kprobe_ratio", (0.25,), "≤ 0.25"),
    ],
)
def test_labels(kind: str, bounds: tuple[float, ...], label: str) -> None:
    assert f"<dt>{label}</dt>" in render_heat_map(HeatMap(kind, bounds, ((1, 0),), 15.0))
    assert f"<dt>{label.replace('≤', '&gt;')}</dt>" in render_heat_map(HeatMap(kind, bounds, ((0, 1),), 15.0))


@given(st.lists(st.one_of(st.just(()), st.tuples(*[st.integers(0, 2**50)] * 3)), min_size=1, max_size=60))
def test_it_is_well_formed(columns: list[tuple[int, ...]]) -> None:
    shown = render_heat_map(HeatMap("return_value", (1.0, 2.0), tuple(columns), 15.0))
    root = ElementTree.fromstring(f"<main>{shown}</main>")
    cells = sum(number > 0 for column in columns for number in column)
    assert len(list(root.iter("rect"))) == cells
