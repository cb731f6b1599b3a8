"""The total of a hist file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.tracefs.hist import parse_hits

TABLE = b"""\
# event histogram
#
# trigger info: hist:keys=common_cpu:vals=hitcount:sort=hitcount:size=2048 [active]
#

{ common_cpu:          0 } hitcount:          7
{ common_cpu:          1 } hitcount:         16

Totals:
    Hits: 23
    Entries: 2
    Dropped: 0
"""


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        (TABLE, 23),
        (TABLE.replace(b"Hits: 23", b"Hits: 18446744073709551615"), 2**64 - 1),
        (TABLE.replace(b"Dropped: 0", b"Dropped: 5"), 23),
        (b"# event histogram\n\n\nTotals:\n    Hits: 0\n    Entries: 0\n    Dropped: 0\n", 0),
        (TABLE + TABLE.replace(b"23", b"99"), 23),
        (b"", None),
        (b"Totals:\n", None),
        (TABLE[: TABLE.index(b"Entries")], None),
        (TABLE.replace(b"Hits: 23", b"Hits: -1"), None),
        (b"x Totals:\n    Hits: 1\n    Entries: 1\n    Dropped: 0\n", None),
    ],
)
def test_the_total(text: bytes, hits: int | None) -> None:
    assert parse_hits(text) == hits


@given(st.binary())
def test_any_bytes(text: bytes) -> None:
    assert parse_hits(text) is None
    assert parse_hits(text + b"\n" + TABLE) == 23
