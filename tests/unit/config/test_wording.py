"""config.wording: any quoted value is printed on one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.config.wording import listed, nearest, path_text, quote


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("on", "'on'"),
        ("a\nb", r"'a\nb'"),
        ("\ud800", r"'\ud800'"),
        ("x" * 100, repr("x" * 60 + "…")),
        (None, "nothing"),
        (True, "true"),
        (3, "3"),
        ({"a": 1}, "a mapping"),
        ([1], "a list"),
    ],
)
def test_quote(value: object, expected: str) -> None:
    assert quote(value) == expected


@given(st.text())
def test_a_quoted_text_is_one_printable_line(text: str) -> None:
    assert quote(text).isprintable()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ((), "(file)"),
        (("probes", 2, "metrics", 0, "labels", "errno"), "probes[2].metrics[0].labels.errno"),
        (("a b",), "'a b'"),
        (("a", "x\ny", 1.5), r"a.'x\ny'.1.5"),
    ],
)
def test_path_text(path: tuple[str | int | float, ...], expected: str) -> None:
    assert path_text(path) == expected


def test_listed() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b or c"


def test_nearest_names_one_or_a_few_or_none() -> None:
    assert nearest("atach", ["attach", "name"]) == ", did you mean 'attach'?"
    assert nearest("zzz", ["b", "a"]) == ", there is a or b"
    assert nearest("zzz", map(str, range(30))) == ""
