"""tools.columns: how values are written, hostile ones too."""

import pytest

from kprobe_exporter.tools.columns import Cell, Column, column_of, header, line
from kprobe_exporter.tools.tool_model import ColumnModel, column_key


def column(**how: object) -> Column:
    return column_of("T", ColumnModel(**{"value": "x", **how}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "value", "text", "plain"),
    [
        ({}, 1500, "1500", 1500),
        ({"unit": "ms"}, 1_234_567, "1.235", 1.235),
        ({"unit": "us"}, 1500, "2", 2),
        ({"unit": "s", "digits": 1}, 1_250_000_000, "1.2", 1.2),
        ({"unit": "KB"}, 2048, "2", 2),
        ({"unit": "hex"}, -1, "0xffffffffffffffff", "0xffffffffffffffff"),
        ({"scale": 0.01}, 9876, "98.76", 98.76),
        ({"per_second": True}, 2.5, "2.50", 2.5),
        ({}, None, "-", None),
        ({}, "", "-", ""),
        ({}, "a\x1b[31m\n", "a\\x1b[31m\\n", "a\x1b[31m\n"),
        ({}, b"a\x1b\xff\n", "a\\x1b\\xff\\n", "a\\x1b\\xff\\n"),
    ],
)
def test_a_value(how: dict[str, object], value: Cell, text: str, plain: object) -> None:
    assert column(**how).text(value) == text
    assert column(**how).plain(value) == plain


def test_widths_and_sides() -> None:
    """A name is on the left, and a number with a unit on the right; the last column is not filled up."""
    columns = [column_of("COMM", "comm"), column(unit="ms", width=6), column_of("FILE", "file")]
    assert header(columns) == "COMM                  T FILE"
    assert line(columns, ["sh", "1.000", "x"]) == "sh                1.000 x"


def test_a_long_value_is_kept() -> None:
    columns = [column_of("PID", "pid"), column_of("FILE", "file")]
    assert line(columns, ["123456789", "x"]) == "123456789 x"


@pytest.mark.parametrize(
    ("title", "key"), [("LAT(ms)", "lat_ms"), ("READ_HIT%", "read_hit_pct"), ("2ND", "_2nd"), ("I/O", "i_o")]
)
def test_the_name_in_json(title: str, key: str) -> None:
    assert column_key(title) == key
