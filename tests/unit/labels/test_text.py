"""What decoders share: numbers in text, the kernel's arrays, and names of odd bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels._text import MOST_ELEMENTS, array, number, printable, unsigned
from kprobe_exporter.model.values import Value


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (5, 5),
        (-5, -5),
        (None, None),
        (b"5", 5),
        (b"-5", -5),
        (b"010", 10),
        (b"0x1f", 31),
        (b"0X1F", 31),
        (b"-0x1f", -31),
        (b"", None),
        (b"-", None),
        (b"0x", None),
        (b"1f", None),
        (b" 5", None),
        (b"5\n", None),
        (b"1_000", None),
        ("\u0665".encode(), None),
        (b"9" * 20, 10**20 - 1),
        (b"9" * 21, None),
        (b"9" * 5000, None),
    ],
)
def test_numbers(value: Value, found: int | None) -> None:
    assert number(value) == found


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_number_s_text_is_the_number(value: int) -> None:
    assert number(b"%d" % value) == value
    assert number(b"%#x" % value) == value
    assert unsigned(value, 64) == value % 2**64


@pytest.mark.parametrize(
    ("value", "found"),
    [(0, 0), (-1, 255), (255, 255), (-128, 128), (-129, None), (256, None), (b"-1", 255), (None, None)],
)
def test_without_a_sign(value: Value, found: int | None) -> None:
    assert unsigned(value, 8) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"{127,0,0,1}", [127, 0, 0, 1]),
        (b"{0x7f,0x0,0x0,0x1}", [127, 0, 0, 1]),
        (b"{-1,2}", [-1, 2]),
        (b"{5}", [5]),
        (b"{}", None),
        (b"{1,}", None),
        (b"{1, 2}", None),
        (b"{'a','b'}", None),
        (b"1,2", None),
        (b"{1,2", None),
        (b"{", None),
        (b"", None),
    ],
)
def test_arrays(text: bytes, found: list[int] | None) -> None:
    assert array(text) == found


def test_an_array_has_as_many_elements_as_the_kernel_allows() -> None:
    longest = [-(2**63)] * MOST_ELEMENTS
    assert array(b"{" + b",".join(b"%d" % element for element in longest) + b"}") == longest
    assert array(b"{" + b"1," * 5000 + b"1}") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"eth0", "eth0"),
        ("Größe".encode(), "Größe"),
        (b"a b", "a b"),
        (b"a\xff", r"a\xff"),
        (b"a\n\x1b[31m", r"a\n\x1b[31m"),
        ("a\u202eb".encode(), r"a\u202eb"),
        ("a\u2028b\xa0".encode(), r"a\u2028b\xa0"),
    ],
)
def test_names(name: bytes, text: str) -> None:
    assert printable(name) == text


@given(st.binary())
def test_any_name_is_printable(name: bytes) -> None:
    text = printable(name)
    assert text.isprintable()
    assert len(text) <= 4 * len(name)
