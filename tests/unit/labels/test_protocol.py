"""labels.protocol: the constants of Python's socket module and the kernel's headers are the oracles."""

import re
import socket
from pathlib import Path

import pytest

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.protocol import NAMES, decode

INCLUDE = Path("/usr/include/linux")
OTHERS = {"IPPROTO_HOPOPTS": "IPPROTO_IP"}


def test_names_of_python() -> None:
    theirs = {name: int(getattr(socket, name)) for name in dir(socket) if name.startswith("IPPROTO_")}
    assert len(theirs) > 20
    assert {name: decode(number) for name, number in theirs.items()} == {
        name: OTHERS.get(name, name) for name in theirs
    }


def test_names_of_the_headers() -> None:
    headers = [one for one in (INCLUDE / "in.h", INCLUDE / "in6.h") if one.exists()]
    if not headers:
        pytest.skip("no headers of the kernel")
    found = [
        re.findall(r"^(?:#define)?\s+(IPPROTO_\w+)(?: =|\s)\s*(\d+)", one.read_text(), re.M)
        for one in headers
    ]
    theirs = {int(number): name for some in reversed(found) for name, number in some}
    assert len(theirs) > 30
    assert theirs.items() <= NAMES.items()


@pytest.mark.parametrize(
    ("value", "name"), [(6, "IPPROTO_TCP"), (b"0x11", "IPPROTO_UDP"), (3, None), (b"x", None)]
)
def test_value(value: int | bytes, name: str | None) -> None:
    assert DECODERS["protocol"](None)(value) == name
