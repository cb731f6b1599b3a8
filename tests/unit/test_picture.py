"""The picture of a dashboard is well-formed SVG in which every line, bucket and name is where it belongs."""

import math
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.picture import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Line,
    graph,
    heatmap,
    lively,
    page,
    readable,
)

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


@given(lines)
def test_the_legend_names_each_line_that_is_drawn_and_counts_the_others(found: list[Line]) -> None:
    names = [f"{'X' * (17 * number % 45)}{number}" for number in range(len(found))]
    picture = drawn(
        graph("Lines", "s", [Line(name, line.points) for name, line in zip(names, found, strict=True)])
    )
    strokes = [line.get("stroke") for line in picture.iter(f"{SVG}polyline")]
    assert strokes == [rect.get("fill") for rect in picture.iter(f"{SVG}rect") if rect.get("height") == "4"]
    assert len(set(strokes)) == len(strokes) >= 1
    said = [
        (text, text.text or "") for text in picture.iter(f"{SVG}text") if text.get("text-anchor") == "start"
    ]
    legend = [(float(text.get("x") or 0), float(text.get("y") or 0), words) for text, words in said[3:]]
    more = len(names) - len(strokes)
    assert [words for *_, words in legend[len(strokes) :]] == ([f"+ {more} more"] if more else [])
    assert len({(x, y) for x, y, _ in legend}) == len(legend)
    for x, y, words in legend:
        assert HEIGHT - BOTTOM < y <= HEIGHT - 6
        assert x + 6 * len(words) <= WIDTH
    for one, other in pairwise(legend):
        assert one[1] < other[1] or one[0] + 6 * len(one[2]) < other[0]


def test_colours_differ() -> None:
    for one, other in combinations(COLOURS, 2):
        assert math.dist(bytes.fromhex(one[1:]), bytes.fromhex(other[1:])) > 60


def test_what_changes_is_livelier() -> None:
    flat, slow = Line("flat", [(0, 5), (1, 5)]), Line("slow", [(0, 4), (1, 5)])
    fast = Line("fast", [(0, 1), (1, 5)])
    assert lively([]) == lively([flat]) == lively([Line("none", [(0, 0), (1, 0)])]) == 0
    assert lively([flat]) < lively([slow]) < lively([fast]) < lively([slow, fast])
    assert lively([flat], logarithmic=True) == 0
    assert lively([slow], logarithmic=True) == lively([fast], logarithmic=True) == 0.5


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
    # 4 values up to 0.1 s in the first interval, then 9 between 0.1 and 1 s, and none above.
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
