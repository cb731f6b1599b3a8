"""source.values: arrays of strings up to a null pointer, read from records that are built here."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.model.record_layout import Field
from kprobe_exporter.source.values import Names, reader

START = 24
ADDRESS = 0x7F0000001000


class NoNames(Names):
    """Fails if it is asked."""


def value(strings: list[bytes | None], pointers: list[int]) -> object:
    """Return what is read of these strings, of which None is unreadable, and of the pointers before them."""
    count = len(strings)
    assert len(pointers) == count + 1
    at = 8 + 8 * len(pointers) + 4 * count
    places, tail = [], b""
    for string in strings:
        data = b"" if string is None else string + b"\0"
        places.append(len(data) << 16 | (at + len(tail)))
        tail += data
    record = bytes(8) + struct.pack(f"={len(pointers)}Q{count}I", *pointers, *places) + tail
    field = Field("vector", 8 + 8 * len(pointers), 4 * count, length=count, fault=True, guards=(8,))
    page = bytes(START) + record + b"behind"
    return reader(field, NoNames())(page, START, START + len(record), 0)  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("strings", "there", "text"),
    [
        ([b"ls", b"-l", None], 2, b"ls -l"),
        ([b"ls", b"-l", b"/"], 3, b"ls -l /"),
        ([b"ls", b"-l", b"/"], 4, b"ls -l / ..."),
        ([b"sh", b"", b"x"], 3, b"sh  x"),
        ([b"ls", b"behind", b"the end"], 1, b"ls"),
        ([b"ls", None, b"/"], 3, b"ls ? /"),
        ([None, b"-l", b"/"], 3, b"? -l /"),
        ([None, None], 2, None),
        ([b"no", b"argument", b"at all"], 0, None),
        ([b'"a"}\n', b"\xff", b"(fault)"], 3, b'"a"}\n \xff (fault)'),
    ],
)
def test_joined_up_to_null(strings: list[bytes | None], there: int, text: bytes | None) -> None:
    pointers = [ADDRESS + 64 * i for i in range(there)] + [0] + [ADDRESS] * 4
    assert value(strings, pointers[: len(strings) + 1]) == text


@given(st.lists(st.binary(max_size=9).map(lambda text: text.replace(b"\0", b"")), min_size=1, max_size=8))
def test_same_as_program_says(argv: list[bytes]) -> None:
    padded: list[bytes | None] = [*argv, *[None] * (8 - len(argv))]
    assert value(padded, [ADDRESS] * len(argv) + [0] * (9 - len(argv))) == b" ".join(argv)
