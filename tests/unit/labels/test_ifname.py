"""Interfaces by name, looked up again after a while; the machine's own interfaces are the oracle."""

import errno
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.ifname import FRESH, HIGHEST, MOST_CACHED, decoder
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value


class World:
    """Interfaces that come and go, a clock, and the indexes that were looked up."""

    def __init__(self, **names: int) -> None:
        self.names = {index: name.encode() for name, index in names.items()}
        self.now = 0.0
        self.asked: list[int] = []

    def look_up(self, index: int) -> bytes:
        self.asked.append(index)
        if index not in self.names:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return self.names[index]

    def decoder(self) -> Decoder:
        return decoder(None, self.look_up, lambda: self.now)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (1, "lo"),
        *((value, "eth0") for value in (2, b"2", b"0x2")),
        *((value, "none") for value in (0, b"0")),
        *((value, None) for value in (3, -1, HIGHEST + 1, 2**64, b"eth0", None)),
    ],
)
def test_values(value: Value, name: str | None) -> None:
    assert World(lo=1, eth0=2).decoder()(value) == name


def test_the_machine_s_own() -> None:
    decode = decoder(None)
    for index, name in socket.if_nameindex():
        assert decode(index) == name
    assert decode(HIGHEST) is None


def test_an_answer_is_kept_for_a_while() -> None:
    world = World(eth0=2)
    decode = world.decoder()
    assert [decode(2), decode(3)] * 3 == ["eth0", None] * 3
    assert world.asked == [2, 3]
    world.names = {2: b"wan0", 3: b"veth1"}
    world.now = FRESH - 0.1
    assert (decode(2), decode(3)) == ("eth0", None)
    world.now = FRESH
    assert (decode(2), decode(3)) == ("wan0", "veth1")
    world.names = {}
    assert (decode(2), decode(3)) == ("wan0", "veth1")
    world.now = 2 * FRESH
    assert (decode(2), decode(3)) == (None, None)
    assert world.asked == [2, 3] * 3


def test_what_is_kept_is_bounded() -> None:
    world = World(eth0=1)
    decode = world.decoder()
    for index in range(1, MOST_CACHED + 1):
        decode(index)
    decode(1)
    assert world.asked.count(1) == 1
    decode(MOST_CACHED + 1)
    decode(1)
    assert world.asked.count(1) == 2


def test_a_name_that_is_no_text() -> None:
    world = World()
    world.names = {1: b"\x1b[31m\xff"}
    assert world.decoder()(1) == r"\x1b[31m\xff"


@given(st.integers() | st.integers(0, 5) | st.binary(), st.binary(max_size=15))
def test_any_value(value: int | bytes, name: bytes) -> None:
    text = decoder(None, lambda index: name)(value)
    assert text is None or (text.isprintable() and len(text) <= 60)
