"""Addresses in every form that an event can hold; ``socket`` makes the texts, `struct` the values."""

import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.ip import decoder
from kprobe_exporter.model.values import Value

decode = decoder(None)
little = pytest.mark.skipif(sys.byteorder == "big", reason="the numbers are those of little-endian machines")


def written(numbers: tuple[int, ...], form: str = "%d") -> bytes:
    return ("{" + ",".join(form % number for number in numbers) + "}").encode()


@little
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0x0100007F, "127.0.0.1"),
        (0, "0.0.0.0"),
        (2**32 - 1, "255.255.255.255"),
        (-1, "255.255.255.255"),
        (-(2**31), "0.0.0.128"),
        *((number, None) for number in (2**32, -(2**31) - 1)),
        (b"16777343", "127.0.0.1"),
        (b"0x100007f", "127.0.0.1"),
        (b"{127,0}", "127.0.0.0"),
        (b"{127,256}", "127.0.0.1"),
        (b"{16777343}", "127.0.0.1"),
        (b"{33022,0,0,16777216}", "fe80::1"),
        (b"{0x80fe,0x0,0x0,0x1000000}", "fe80::1"),
        (b"{-1,0,0,16777216}", "ffff:ffff::1"),
        (b"{33022,0,0,0,0,0,0,256}", "fe80::1"),
        (b"{33022,72057594037927936}", "fe80::1"),
        (b"{0,72057594037927936}", "::1"),
    ],
)
def test_numbers_as_they_lie_in_memory(value: Value, text: str | None) -> None:
    assert decode(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"{127,0,0,1}", "127.0.0.1"),
        (b"{0x7f,0x0,0x0,0x1}", "127.0.0.1"),
        (b"{-64,-88,0,1}", "192.168.0.1"),
        (b"{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1}", "::1"),
        (b"{-2,-128,0,0,0,0,0,0,0,0,0,0,0,0,0,1}", "fe80::1"),
        (b"{0,0,0,0,0,0,0,0,0,0,-1,-1,127,0,0,1}", "127.0.0.1"),
        (b"{0,0,0,0}", "0.0.0.0"),
        (b"{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}", "::"),
        (b"127.0.0.1", "127.0.0.1"),
        (b"fe80::1", "fe80::1"),
        (b"FE80:0000:0000:0000:0000:0000:0000:0001", "fe80::1"),
        (b"::ffff:127.0.0.1", "127.0.0.1"),
        (b"::ffff:7f00:1", "127.0.0.1"),
        (b"::", "::"),
        *((text, None) for text in (b"127.0.0.1:80", b"fe80::1%eth0", b"127.0.0.1\n", b"1" * 46)),
        *((text, None) for text in (b"localhost", b"\xd9\xa1.0.0.1", b"\x7f\x00\x00\x01", b"")),
        *((array, None) for array in (b"{127,0,0}", b"{127,0,0,1", b"{4294967296,0,0,1}")),
        (b"{'1','2','3','4'}", None),
        (b"{256,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1}", None),
        (None, None),
    ],
)
def test_the_same_on_every_machine(value: Value, text: str | None) -> None:
    assert decode(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0x7F000001, "127.0.0.1"),
        (b"0x7f000001", "127.0.0.1"),
        (-0x3F57FFFF, "192.168.0.1"),
        (b"{0xfe800000,0,0,1}", "fe80::1"),
        (b"{127,0,0,1}", "127.0.0.1"),
        (b"127.0.0.1", "127.0.0.1"),
    ],
)
def test_numbers_in_host_order(value: Value, text: str) -> None:
    assert decoder("host")(value) == text


@given(st.binary(min_size=4, max_size=4))
def test_all_forms_of_an_ipv4_address_are_one(packed: bytes) -> None:
    expected = socket.inet_ntop(socket.AF_INET, packed)
    assert decode(*struct.unpack("=I", packed)) == expected
    assert decode(*struct.unpack("=i", packed)) == expected
    assert decode(b"%#x" % int.from_bytes(packed, sys.byteorder)) == expected
    for code in ("4B", "4b", "2H", "2h", "1I"):
        assert decode(written(struct.unpack(f"={code}", packed))) == expected
    assert decode(written(tuple(packed), "%#x")) == decode(expected.encode()) == expected
    assert decoder("host")(*struct.unpack(">I", packed)) == expected


@given(st.binary(min_size=16, max_size=16))
def test_all_forms_of_an_ipv6_address_are_one(packed: bytes) -> None:
    expected = decode(socket.inet_ntop(socket.AF_INET6, packed).encode())
    assert expected is not None
    assert socket.inet_pton(socket.AF_INET6, expected) == packed
    for code in ("16B", "16b", "8H", "8h"):
        assert decode(written(struct.unpack(f"={code}", packed))) == expected
    for code in ("4I", "4i", "2Q", "2q"):
        numbers = struct.unpack(f"={code}", packed)
        if max(map(abs, numbers)) >= 2**16:  # smaller numbers are read as elements of an IPv4 address
            assert decode(written(numbers)) == expected


@pytest.mark.parametrize("options", ["big", "", True, 4, {}, {"host": True}, ["host"]])
def test_refused(options: object) -> None:
    with pytest.raises(ValueError, match=r"takes no option but host: write 'decode: ip', or \{ip: host\}"):
        decoder(options)


@given(
    st.integers()
    | st.binary()
    | st.text("0123456789abcdefx.:{},-%", max_size=60).map(str.encode)
    | st.lists(st.integers(), min_size=1, max_size=17).map(lambda numbers: written(tuple(numbers)))
)
def test_any_value(value: int | bytes) -> None:
    for options in (None, "host"):
        text = decoder(options)(value)
        if text is not None:
            family = socket.AF_INET6 if ":" in text else socket.AF_INET
            assert socket.inet_ntop(family, socket.inet_pton(family, text))
