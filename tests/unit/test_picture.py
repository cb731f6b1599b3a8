"""The picture of a dashboard is well-formed SVG in which every line, bucket and name is where it belongs."""

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.picture import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, graph, heatmap, page, readable

SVG = "{http://www.w3.org/2000/svg}"

values = st.floats(1e-7, 1e12)
lines = st.lists(
    st.builds(
        Line, st.text("ab<&>\"'", max_size=8), st.lists(st.tuples(st.floats(0, 1e9), values), min_size=1)
    ),
    min_size=1,
    max_size=12,
)


def drawn(panel: str) -> ET.Element:
    return ET.fromstring(page("A & B", [("One", "1", "#fff")], [panel]))


@given(lines, st.booleans())
def test_lines_stay_within_their_plot(found: list[Line], logarithmic: bool) -> None:
    for line in drawn(graph("a < b", "s", found, logarithmic=logarithmic)).iter(f"{SVG}polyline"):
        for point in (line.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert LEFT - 1 <= x <= WIDTH - RIGHT + 1
            assert TOP - 1 <= y <= HEIGHT - BOTTOM + 1


def test_the_largest_line_comes_first() -> None:
    small, large = Line("small", [(0, 1), (1, 2)]), Line("large", [(0, 5), (1, 10)])
    picture = drawn(graph("Lines", "short", [small, large]))
    names = [text.text for text in picture.iter(f"{SVG}text") if text.text in ("small", "large")]
    assert names == ["large", "small"]
    ends = [(line.get("points") or "").split()[-1] for line in picture.iter(f"{SVG}polyline")]
    assert ends == [f"{WIDTH - RIGHT:.1f},{TOP:.1f}", f"{WIDTH - RIGHT:.1f},{HEIGHT - BOTTOM - 30.4:.1f}"]


def test_a_heatmap_shows_what_fell_between_two_bounds() -> None:
    buckets = [
        Line("+Inf", [(0, 4), (1, 9)]),
        Line("1", [(0, 4), (1, 9)]),
        Line("0.1", [(0, 4), (1, 0)]),
    ]
    cells = [
        (rect.get("x"), rect.get("fill"))
        for rect in drawn(heatmap("Heat", "s", buckets)).iter(f"{SVG}rect")
        if rect.get("x")
    ]
    # 4 up to 0.1 s at first, then 9 between 0.1 and 1 s, and nothing above.
    cells, scale = cells[:2], cells[2:]
    assert [x for x, _ in cells] == [f"{LEFT:.1f}", f"{(LEFT + WIDTH - RIGHT) / 2:.1f}"]
    assert {colour for _, colour in cells} <= {colour for _, colour in scale}
    assert cells[0][1] != cells[1][1]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00025, "s", "250 µs"),
        (0.25, "s", "250 ms"),
        (2, "s", "2 s"),
        (0.015, "percentunit", "1.5 %"),
        (1500, "cps", "1.5 Kc/s"),
        (3, "cps", "3 c/s"),
        (4096, "short", "4.1 K"),
        (math.inf, "s", "∞"),
    ],
)
def test_values_are_written_as_on_an_axis(value: float, unit: str, text: str) -> None:
    assert readable(value, unit) == text
