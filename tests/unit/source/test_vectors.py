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


def value(strings: list[bytes | None], pointers: list[int], stored: int | None = None) -> object:
    """Return what is read of these strings, of which None is unreadable, and of the pointers before them.

    A thread's name follows. With ``stored``, the kernel gives up after so many strings.
    """
    count = len(strings)
    assert len(pointers) == count + 1
    at = 8 + 8 * len(pointers) + 4 * count + 4
    places, tail, comm = list[int](), b"", b"python\0"
    for string in strings:
        data = b"" if string is None else string + b"\0"
        places.append(len(data) << 16 | (at + len(tail)))
        tail += data
    if stored is not None:
        left = places[:stored] or [len(comm) << 16 | at]
        places, tail = left + [0xDEAD0000] * (count - len(left)), b""
    places.append(len(comm) << 16 | (at + len(tail)))
    record = bytes(8) + struct.pack(f"={len(pointers)}Q{count + 1}I", *pointers, *places) + tail + comm
    field = Field(
        "vector", 8 + 8 * len(pointers), 4 * count, length=count, fault=True, guards=(8,), next=at - 4
    )
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


@pytest.mark.parametrize("stored", [0, 1, 2, 3])
def test_array_that_ends_at_memory_that_is_not_there(stored: int) -> None:
    assert value([b"ls", b"-l", b"/"], [ADDRESS] * 4, stored) is None


@pytest.mark.parametrize(
    ("words", "text"), [(1, b"ls"), (2, b"ls -l"), (3, b"ls -l /"), (4, b"ls -l / /var")]
)
def test_place_of_null_in_5_10(words: int, text: bytes) -> None:
    """The places of the null pointer, and of what follows it, are as long as the rest of the record."""
    argv = [b"ls", b"-l", b"/", b"/var"][:words]
    at, comm, places, tail = 8 + 8 * 5 + 4 * 5, b"python\0", list[int](), b""
    for word in argv:
        places.append((len(word) + 1) << 16 | (at + len(tail)))
        tail += word + b"\0"
    places += [(100 - len(tail)) << 16 | (at + len(tail))] * (4 - words)
    places.append(len(comm) << 16 | (at + len(tail)))
    pointers = [ADDRESS] * words + [0] * (5 - words)
    record = bytes(8) + struct.pack("=5Q5I", *pointers, *places) + tail + comm
    field = Field("vector", 48, 16, length=4, fault=True, guards=(8,), next=64)
    page = bytes(START) + record + b"behind"
    assert reader(field, NoNames())(page, START, START + len(record), 0) == text  # type: ignore[abstract]


@given(st.lists(st.binary(max_size=9).map(lambda text: text.replace(b"\0", b"")), min_size=1, max_size=8))
def test_same_as_program_says(argv: list[bytes]) -> None:
    padded: list[bytes | None] = [*argv, *[None] * (8 - len(argv))]
    assert value(padded, [ADDRESS] * len(argv) + [0] * (9 - len(argv))) == b" ".join(argv)
