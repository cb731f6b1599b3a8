"""The engine matches patterns of strings as grammar/evaluate.py does, which a model of the kernel checks."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kprobe_exporter.aggregate.recipes import record_filters
from kprobe_exporter.grammar.evaluate import matcher, pattern
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import VALUES
from tests.support.page_material import RETURN, STACKS, Names, back, compiled
from tests.support.ring_buffer import GEOMETRY, Page

NAME = VALUES + 1
PIECES = ("a", "b", "ab", "*", "?", "[", "]", "[ab]", "[!a]", "[a-c]", "[]-a]", "!", "-", "\\", "1", "é")
TEXTS = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)


def passing(text: str, names: list[bytes | None]) -> list[bytes | None]:
    """Return the names of the records that the engine lets through."""
    where = Where(("name",), ("match", "name", pattern(text)))
    parser = compiled.PageParser(
        GEOMETRY, [RETURN], Names(), STACKS, filters=record_filters([{RETURN.layout: where}])
    )
    page = Page(1000)
    for name in names:
        page.add(page.time + 1, back(0, 5, name))
    parser.feed(page.render(), 0)
    batch = parser.take()
    assert batch.arrived == {RETURN.layout.layout_id: len(names)}
    return [record[NAME] for record in batch.records]


@given(TEXTS, st.lists(TEXTS.map(str.encode), min_size=1, max_size=8))
@settings(deadline=None)
@example("a*\\", [b"ab", b"b"])
@example("*[", [b"[", b"a["])
@example("!1*", [b"1*", b"12"])
def test_same_as_python(text: str, names: list[bytes]) -> None:
    matches = matcher(text, True)
    assert passing(text, [*names]) == [name for name in names if matches(name)]


@pytest.mark.parametrize("text", ["*", "!a*"])
def test_unreadable_string_matches_nothing(text: str) -> None:
    assert passing(text, [None, b"b"]) == [b"b"]


def test_time_is_bounded() -> None:
    assert passing("a*" * 60 + "b?c", [b"a" * 900] * 4) == []
