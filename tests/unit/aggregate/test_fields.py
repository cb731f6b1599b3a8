"""A field of a record, with the width of its return value, and a filter on records."""

import pytest

from kprobe_exporter.aggregate.fields import getter, passes
from kprobe_exporter.grammar.evaluate import compile_filter
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.values import MAX_ERRNO, ReturnType
from tests.support.return_records import INT, LONG, PTR, U64, layout, record

WIDTHS = [
    (LONG, -2, -2),
    (LONG, 2**32 - 1, -1),
    (LONG, 2**32 - MAX_ERRNO, -MAX_ERRNO),
    (LONG, 2**32 - MAX_ERRNO - 1, 2**32 - MAX_ERRNO - 1),
    (LONG, 2**32, 2**32),
    (INT, 2**31 - 1, 2**31 - 1),
    (INT, -2, -2),
    (U64, 2**32 - 2, 2**32 - 2),
    (U64, 2**64 - 2, 2**64 - 2),
    (PTR, 2**64 - 2, -2),
    (PTR, 2**64 - MAX_ERRNO, -MAX_ERRNO),
    (PTR, 2**64 - MAX_ERRNO - 1, 2**64 - MAX_ERRNO - 1),
    (PTR, 2**32 - 2, 2**32 - 2),
    (PTR, 0, 0),
    (None, 2**32 - 2, 2**32 - 2),
    (LONG, None, None),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu", 2),
        ("tid", 77),
        ("pid", 66),
        ("caller", b"ksys_read"),
        ("symbol", b"vfs_read"),
        ("return", 5),
        ("count", 23),
        ("comm", b"bash"),
        ("absent", None),
        ("", None),
    ],
)
def test_a_field_of_a_record(field: str, value: object) -> None:
    assert getter(layout(), field)(record(5, 23)) == value


@pytest.mark.parametrize(("returns", "raw", "value"), WIDTHS)
def test_the_width_of_a_return_value(returns: ReturnType | None, raw: object, value: object) -> None:
    assert getter(layout(returns), "return")(record(raw)) == value


def test_a_filter_on_records() -> None:
    parsed = parse_filter('return < 0 && comm == "bash" && cpu != 3')
    test = passes(layout(LONG), Where(tuple(parsed.fields), compile_filter(parsed)))
    records = [record(-2), record(-2, comm=b"zsh"), record(2), record(None), record(2**32 - 22)]
    # The last record is the error -22, without its sign.
    assert [each for each in records if test(each)] == [records[0], records[4]]
