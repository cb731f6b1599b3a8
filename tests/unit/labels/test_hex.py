"""labels.hex: numbers of every sign, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.hex import decode
from kprobe_exporter.model.values import Value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0x0"),
        (255, "0xff"),
        (2**64 - 1, "0xffffffffffffffff"),
        (-1, "0xffffffffffffffff"),
        (-(2**63), "0x8000000000000000"),
        (b"255", None),
        (None, None),
    ],
)
def test_values(value: Value, text: str | None) -> None:
    assert decode(value) == text


@given(st.integers(-(2**63), 2**64 - 1))
def test_the_bits_are_kept(value: int) -> None:
    assert int(decode(value) or "", 16) == value & (2**64 - 1)
