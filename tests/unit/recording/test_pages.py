"""Pages are cut to a window of time: what is left is compared with a walk of the whole page."""

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.model.record_layout import Geometry
from kprobe_exporter.recording.pages import pages_since

FORM = Geometry(commit=8, commit_size=8, data=16, page=4096)
LOST = 1 << 31
EXTENDED = 1 << 27
"""The least delta that does not fit into an event's header."""


def event(delta: int, number: int) -> bytes:
    """An event with its number, after more time if its delta is large."""
    if delta >= EXTENDED:
        return struct.pack("=II", (delta & EXTENDED - 1) << 5 | 30, delta >> 27) + event(0, number)
    return struct.pack("=IQ", delta << 5 | 2, number)


def page(begin: int, events: bytes, flags: int = 0) -> bytes:
    return (struct.pack("=QQ", begin, len(events) | flags) + events).ljust(4096, b"\0")


def walk(data: bytes) -> list[tuple[int, int]]:
    """The times and numbers of a page's events."""
    time, length = struct.unpack_from("=QQ", data)
    at, found = 16, []
    while at < 16 + (length & ~(3 << 30)):
        word, more = struct.unpack_from("=II", data, at)
        if word & 31 == 30:
            time += more << 27 | word >> 5
            at += 8
        elif word & 31 == 31:
            time = more << 27 | word >> 5
            at += 8
        elif word & 31 in (0, 29):
            time += word >> 5
            if word & 31 == 0:
                found.append((time, struct.unpack_from("=Q", data, at + 8)[0]))
            at += 4 + more
        else:
            time += word >> 5
            found.append((time, struct.unpack_from("=Q", data, at + 4)[0]))
            at += 12
    return found


deltas = st.integers(0, 50) | st.integers(EXTENDED, EXTENDED + 50)


@given(st.lists(st.lists(deltas, min_size=1, max_size=20), max_size=5), st.integers(0, 3 * EXTENDED))
def test_exactly_the_events_from_then_on_are_left(drawn: list[list[int]], since: int) -> None:
    pages, begin, number = [], 0, 0
    for each in drawn:
        data = b""
        for delta in each:
            data += event(delta, number)
            number += 1
        pages.append(page(begin, data))
        begin = [*accumulate(each, initial=begin)][-1]
    every = [one for each in pages for one in walk(each)]
    left = list(pages_since(pages, since, FORM))
    assert [one for each in left for one in walk(each)] == [one for one in every if one[0] >= since]
    assert {len(each) for each in left} <= {4096}


@pytest.mark.parametrize(
    "before",
    [
        struct.pack("=II", 5 << 5 | 29, 12) + bytes(8),  # a discarded event
        struct.pack("=IIQ", 5 << 5, 12, 1),  # an event whose length is in a word of its own
        struct.pack("=II", 5 << 5 | 31, 0) + event(0, 1),  # the whole time
    ],
)
def test_other_records_before_the_window(before: bytes) -> None:
    [left] = pages_since([page(0, before + event(7, 2))], 12, FORM)
    assert walk(left) == [(12, 2)]


def test_a_loss_before_the_window_is_not_marked() -> None:
    lost = page(10, event(0, 1) + event(5, 2), LOST)
    [whole] = pages_since([lost], 10, FORM)
    assert whole == lost
    [cut] = pages_since([lost], 11, FORM)
    assert struct.unpack_from("=Q", cut, 8)[0] == 12


def test_a_loss_within_the_window_stays_marked() -> None:
    pages = [page(10, event(0, 1)), page(20, event(0, 2), LOST)]
    assert [struct.unpack_from("=Q", one, 8)[0] & LOST for one in pages_since(pages, 5, FORM)] == [0, LOST]


def test_the_rest_of_a_page_is_no_event() -> None:
    assert list(pages_since([page(1, event(0, 1) + bytes([29, 0, 0, 0]))], 2, FORM)) == []
