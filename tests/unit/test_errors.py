"""errors: texts that stay on one line, and names that can be told apart."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import name_text, one_line

_CODED = re.compile(r"\\([nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_SHORT = {"n": "\n", "r": "\r", "t": "\t"}


def original(text: str) -> bytes:
    """Return the name that has this text: an escape that name_text() does not write stands for itself."""

    def char(found: re.Match[str]) -> str:
        code = found[1]
        number = ord(_SHORT[code]) if code in _SHORT else int(code[1:], 16)
        if code[0] == "x" and number >= 0x80:
            return chr(0xDC00 + number)
        if code[0] == "x" and chr(number).isprintable() and number != 0x5C:
            return found[0]
        return chr(number)

    return _CODED.sub(char, text).encode(errors="surrogateescape")


PIECES = st.sampled_from(
    ["\\", "n", "x9b", "x5c", "x2d", "u202e", "u009b", "\n", "\x1b", "\x9b", "\u202e", "\u3164", "a", "é"]
)


@given(st.lists(PIECES).map("".join).map(str.encode) | st.binary(max_size=40))
def test_a_name_can_be_read_back(name: bytes) -> None:
    text = name_text(name)
    assert text.isprintable()
    assert one_line(text) == text  # later stages leave it as it is
    assert original(text) == name


@given(st.lists(PIECES).map("".join).map(str.encode), st.lists(PIECES).map("".join).map(str.encode))
def test_different_names_stay_different(one: bytes, other: bytes) -> None:
    assert (name_text(one) == name_text(other)) is (one == other)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"dev-disk-by\\x2duuid", "dev-disk-by\\x2duuid"),
        (b"a\\b", "a\\b"),
        (b"\n", "\\n"),
        (b"\\n", "\\x5cn"),
        (b"\x9b", "\\x9b"),
        ("\x9b".encode(), "\\u009b"),
        (b"\\x9b", "\\x5cx9b"),
    ],
)
def test_names(name: bytes, text: str) -> None:
    assert name_text(name) == text


@pytest.mark.parametrize("char", ["\u3164", "\u2800", "\ufe0f", "\u034f", "\U000e0100"])
def test_letters_that_show_nothing(char: str) -> None:
    """The name of a process looks like that of another one."""
    assert one_line(f"sshd{char}") == name_text(f"sshd{char}".encode()) == f"sshd{ascii(char)[1:-1]}"
