"""Accept and Accept-Encoding headers, valid and invalid."""

import pytest

from kprobe_exporter.export.negotiate import accepted, accepts_gzip


def test_entries_in_order() -> None:
    header = 'Text/Plain; Version="0.0.4" ;q=0.5, */*;q=0.1'
    assert list(accepted(header)) == [
        ("text/plain", {"version": "0.0.4"}, 0.5),
        ("*/*", {}, 0.1),
    ]


@pytest.mark.parametrize("q", ["", "x", "-1", "2", "nan", "inf", "1e999"])
def test_a_bad_quality_is_a_refusal(q: str) -> None:
    assert [entry.quality for entry in accepted(f"text/plain;q={q}")] == [0.0]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("not-gzip", False),
        ("", False),
    ],
)
def test_gzip(header: str, expected: bool) -> None:
    assert accepts_gzip(header) is expected
