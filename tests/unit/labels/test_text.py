"""What decoders share: numbers in text, the kernel's arrays, names of odd bytes, and no options."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels._text import MOST_ELEMENTS, array, number, printable, unsigned
from kprobe_exporter.model.values import Value


@pytest.mark.parametrize(
    ("value", "found"),
    [
        *((value, value) for value in (5, -5, None)),
        (b"5", 5),
        (b"-5", -5),
        (b"010", 10),
        (b"0x1f", 31),
        (b"0X1F", 31),
        (b"-0x1f", -31),
        (b"9" * 20, 10**20 - 1),
        *((text, None) for text in (b"", b"-", b"0x", b"1f", b" 5", b"5\n", b"1_000", "\u0665".encode())),
        *((b"9" * digits, None) for digits in (21, 5000)),
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
        *((text, None) for text in (b"{}", b"{1,}", b"{1, 2}", b"{'a','b'}", b"1,2", b"{1,2", b"{", b"")),
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
        ("a\u2028b\xa0".encode(), r"a\u2028b\u00a0"),
    ],
)
def test_names(name: bytes, text: str) -> None:
    assert printable(name) == text


@given(st.binary())
def test_any_name_is_printable(name: bytes) -> None:
    text = printable(name)
    assert text.isprintable()
    assert len(text) <= 4 * len(name)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cgroup", b"/a", "/a"),
        ("errno", -2, "ENOENT"),
        ("hex", 255, "0xff"),
        ("ifname", 0, "none"),
        ("namespace", b"/", ""),
        ("pod", b"/", ""),
        ("port", socket.htons(443), "443"),
        ("signal", 9, "SIGKILL"),
        ("user", -1, "unset"),
    ],
)
@pytest.mark.parametrize("options", [{}, {1: "x"}, "x", "", 9, False])
def test_a_decoder_that_takes_no_options(name: str, value: Value, text: str, options: object) -> None:
    assert DECODERS[name](None)(value) == text
    with pytest.raises(ValueError, match=f"the decoder {name} takes no options: write 'decode: {name}'"):
        DECODERS[name](options)
