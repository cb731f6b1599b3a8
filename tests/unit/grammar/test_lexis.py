"""Numbers as the kernel reads them, and errors in a part that point into the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.lexis import closest, fail, kernel_number, misspelt, part_of, refuse_forbidden


@pytest.mark.parametrize(
    ("word", "other", "near"),
    [
        *(("vfs_raed", "vfs_read", True), ("vfs_red", "vfs_read", True), ("vfs_reead", "vfs_read", True)),
        *(("vfs_rexd", "vfs_read", True), ("vfs_rea", "vfs_read", True), ("x", "y", True)),
        *(("vfs_read", "vfs_read", False), ("vfs_rxxd", "vfs_read", False), ("vfs_daer", "vfs_read", False)),
        *(("kmem_cache_flags", "kmem_cache_alloc", False), ("ab", "", False), ("ab", "cd", False)),
    ],
)
def test_one_letter_away(word: str, other: str, near: bool) -> None:
    assert misspelt(word, [other]) == (f", did you mean '{other}'?" if near else "")
    assert misspelt(other, [word]) == (f", did you mean '{word}'?" if near else "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("00", 0),
        ("10", 10),
        ("010", 8),
        ("0x10", 16),
        ("0XfF", 255),
        ("18446744073709551615", 2**64 - 1),
        ("01777777777777777777777", 2**64 - 1),
        *((text, None) for text in ("18446744073709551616", "-1", "08", "0x", "0b1", "1_0", "", "-")),
        *((text, None) for text in (" 1", "1\n", "+1", "٣", "9" * 5000)),
    ],
)
def test_numbers(text: str, value: int | None) -> None:
    assert kernel_number(text) == value


def test_signed_numbers() -> None:
    assert kernel_number("-0x8", -8, 7) == -8
    assert kernel_number("-9", -8, 7) is None
    assert kernel_number("8", -8, 7) is None


@given(st.integers(0, 2**64 - 1))
def test_every_number(value: int) -> None:
    for text in (str(value), hex(value), f"0{value:o}"):
        assert kernel_number(text) == value


def test_a_part_is_placed_in_the_whole() -> None:
    with pytest.raises(GrammarError, match="wrong") as caught, part_of("abcdef", 2):
        fail("wrong", "cd", 1)
    assert (caught.value.text, caught.value.column) == ("abcdef", 3)


@pytest.mark.parametrize("bad", "\n\r\0\x1b\x7f#\xa0é\ud800")
def test_what_no_text_may_hold(bad: str) -> None:
    with pytest.raises(GrammarError) as caught:
        refuse_forbidden(f"ok{bad}ok", 100)
    assert caught.value.column == 2


def test_closest() -> None:
    assert closest("cuont", ["count", "file"]) == ", did you mean 'count'?"
    assert closest("zzz", ["count"]) == ""
