"""Numbers and fields are encoded as the protobuf library decodes them."""

from google.protobuf.wrappers_pb2 import BytesValue, UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.util.protobuf import field, varint


@given(st.integers(0, 2**64 - 1))
def test_a_number(value: int) -> None:
    assert UInt64Value.FromString(b"\x08" + varint(value)).value == value


@given(st.binary(max_size=300))
def test_a_field_with_a_length(value: bytes) -> None:
    assert BytesValue.FromString(field(1, value)).value == value
