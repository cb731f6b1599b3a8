"""Block devices by number and by name, from links as in sysfs; the machine's own sysfs is the oracle."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.majorminor import decoder
from kprobe_exporter.model.values import Value

SDA1 = 8 << 20 | 1


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    (tmp_path / "8:0").symlink_to("../../devices/pci0000:00/host0/block/sda")
    (tmp_path / "8:1").symlink_to("../../devices/pci0000:00/host0/block/sda/sda1")
    (tmp_path / "104:0").symlink_to("../../devices/pci0000:00/block/cciss!c0d0")
    (tmp_path / "9:0").mkdir()
    (tmp_path / "9:1").symlink_to(os.fsdecode(b"../block/\x1b[31m\xff"))
    return tmp_path


@pytest.mark.parametrize(
    ("value", "text", "name"),
    [
        *((value, "8:1", "sda1") for value in (SDA1, b"8388609", b"0x800001", b"8,1", b"8:1", b"08:01")),
        (8 << 20, "8:0", "sda"),
        (104 << 20, "104:0", "cciss/c0d0"),
        (253 << 20 | 300, "253:300", "253:300"),
        (9 << 20, "9:0", "9:0"),
        (9 << 20 | 1, "9:1", r"\x1b[31m\xff"),
        (0, "0:0", "0:0"),
        *((value, "4095:1048575", "4095:1048575") for value in (2**32 - 1, -1)),
        *((value, None, None) for value in (2**32, -(2**31) - 1, b"4096:0", b"0:1048576", None)),
        *((text, None, None) for text in (b"8:1\n", b"8:../8:1", b"sda1")),
    ],
)
def test_values(value: Value, text: str | None, name: str | None, devices: Path) -> None:
    assert decoder(None, devices)(value) == text
    assert decoder("name", devices)(value) == name


def test_a_device_that_comes_gets_its_name(devices: Path) -> None:
    decode = decoder("name", devices)
    assert decode(7 << 20) == "7:0"
    (devices / "7:0").symlink_to("../../devices/virtual/block/loop0")
    assert decode(7 << 20) == "loop0"


def test_the_machine_s_own() -> None:
    devices = Path("/sys/dev/block")
    if not devices.is_dir():
        pytest.skip("no sysfs")
    decode = decoder("name")
    for link in devices.iterdir():
        major, minor = map(int, link.name.split(":"))
        assert decode(major << 20 | minor) == link.resolve().name.replace("!", "/")


@given(st.integers(0, 4095), st.integers(0, 2**20 - 1))
def test_no_bit_is_lost(major: int, minor: int) -> None:
    assert decoder(None)(major << 20 | minor) == f"{major}:{minor}"


@pytest.mark.parametrize("options", ["names", "", True, 8, {}, {"name": True}, ["name"]])
def test_refused(options: object) -> None:
    with pytest.raises(
        ValueError, match=r"no option but name: write 'decode: majorminor', or \{majorminor: name\}"
    ):
        decoder(options)


@given(st.integers() | st.integers(-1, 2**32) | st.binary() | st.from_regex(rb"\d+[:,]\d+"))
def test_any_value(value: int | bytes) -> None:
    for options in (None, "name"):
        text = decoder(options)(value)
        assert text is None or (text.isprintable() and 0 < len(text) <= 1020)
