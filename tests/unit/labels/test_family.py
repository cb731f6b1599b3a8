"""labels.family: the constants of Python's socket module are the oracle."""

import socket

import pytest

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.family import decode

OTHERS = {"AF_ROUTE": "AF_NETLINK"}


def test_names_of_python() -> None:
    theirs = {name: int(getattr(socket, name)) for name in dir(socket) if name.startswith("AF_")}
    assert len(theirs) > 20
    assert {name: decode(number) for name, number in theirs.items()} == {
        name: OTHERS.get(name, name) for name in theirs
    }


@pytest.mark.parametrize(
    ("value", "name"), [(2, "AF_INET"), (b"10", "AF_INET6"), (45, "AF_MCTP"), (46, None), (b"x", None)]
)
def test_value(value: int | bytes, name: str | None) -> None:
    assert DECODERS["family"](None)(value) == name
