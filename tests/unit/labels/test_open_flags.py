"""labels.open_flags: the constants of Python's os module are the oracle."""

import os
import platform
import re
from functools import reduce
from operator import or_
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.open_flags import decode_for

decode = decode_for(platform.machine())
ARM = Path("/usr/aarch64-linux-gnu/include/asm/fcntl.h")

PYTHONS = {
    "FASYNC": os.O_ASYNC,
    "O_LARGEFILE": 0o100000,
    **{name: getattr(os, name) for name in dir(os) if name.startswith("O_")},
}


@given(st.sets(st.sampled_from(sorted(PYTHONS.keys() - {"O_ACCMODE"}))))
def test_names_of_python(names: set[str]) -> None:
    """The names that are shown stand for the same bits."""
    flags = reduce(or_, (PYTHONS[name] for name in names), 0)
    shown = decode(flags)
    assert shown is not None
    assert reduce(or_, (PYTHONS[name] for name in shown.split("|"))) == flags


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "O_RDONLY"),
        (os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, "O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC"),
        (b"0x80000", "O_RDONLY|O_CLOEXEC"),
        (os.O_RDWR | os.O_SYNC | os.O_TMPFILE, "O_RDWR|O_SYNC|O_TMPFILE"),
        (os.O_DSYNC | os.O_DIRECTORY, "O_RDONLY|O_DSYNC|O_DIRECTORY"),
        (1 << 40 | 3, "O_ACCMODE|0x10000000000"),
        (b"x", None),
        (None, None),
    ],
)
def test_text(value: int | bytes | None, text: str | None) -> None:
    assert decode_for("x86_64")(value) == text
    assert DECODERS["open_flags"](None)(0) == "O_RDONLY"


def test_header_of_arm() -> None:
    if not ARM.exists():
        pytest.skip("no headers of arm64")
    theirs = dict(re.findall(r"^#define (O_\w+)\s+(0\d+)", ARM.read_text(), re.MULTILINE))
    assert len(theirs) == 4
    for name, octal in theirs.items():
        assert decode_for("aarch64")(int(octal, 8)) == f"O_RDONLY|{name}"
    assert decode_for("aarch64")(0o20040000) == "O_RDONLY|O_TMPFILE"
