"""port: socket.ntohs() is the oracle for numbers, and the bytes of the number for arrays."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.port import decode
from kprobe_exporter.model.values import Value


@given(st.integers(0, 65535))
def test_a_number_from_memory(port: int) -> None:
    seen = socket.htons(port)
    signed = seen - (1 << 16) if seen >= 1 << 15 else seen
    for value in (seen, signed, b"%d" % seen, b"0x%x" % seen, b"{%d,%d}" % divmod(port, 256)):
        assert decode(value) == str(port)


@pytest.mark.parametrize(
    "value", [-40_000, 65_536, b"", b"http", b"{1}", b"{1,2,3}", b"{256,1}", b"{1,x}", b"80 "]
)
def test_what_is_no_port(value: Value) -> None:
    assert decode(value) is None
