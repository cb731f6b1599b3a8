"""labels.capability: the numbers of the C library's header."""

import re
from pathlib import Path

import pytest

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.capability import NAMES, decode

HEADER = Path("/usr/include/linux/capability.h")


def test_names_of_the_header() -> None:
    if not HEADER.exists():
        pytest.skip("no headers of the kernel")
    theirs = re.findall(r"^#define (CAP_\w+)\s+(\d+)$", HEADER.read_text(), re.MULTILINE)
    assert {int(number): name for name, number in theirs}.items() <= NAMES.items()


@pytest.mark.parametrize(
    ("value", "name"), [(0, "CAP_CHOWN"), (b"21", "CAP_SYS_ADMIN"), (40, "CAP_CHECKPOINT_RESTORE")]
)
def test_known(value: int | bytes, name: str) -> None:
    assert DECODERS["capability"](None)(value) == name


@pytest.mark.parametrize("value", [-1, 41, b"x", None])
def test_unknown(value: int | bytes | None) -> None:
    assert decode(value) is None
