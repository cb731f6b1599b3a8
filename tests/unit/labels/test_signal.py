"""Signals by name; the shell's table is the oracle."""

import re
import shutil
import signal
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.signal import NAMES, decode
from kprobe_exporter.model.values import Value


def test_the_c_library_has_the_same_limits() -> None:
    assert (decode(signal.SIGRTMIN), decode(signal.SIGRTMAX)) == ("SIGRTMIN", "SIGRTMAX")


def test_the_shell_has_the_same_names() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    listed = subprocess.run([bash, "-c", "kill -l"], capture_output=True, text=True, check=True).stdout
    theirs = {int(number): name for number, name in re.findall(r"(\d+)\) (\S+)", listed)}
    assert len(theirs) == 62
    assert theirs == {number: decode(number) for number in theirs}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (0, "none"),
        *((value, "SIGKILL") for value in (9, b"9", b"0x9")),
        (17, "SIGCHLD"),
        (31, "SIGSYS"),
        (32, "SIG32"),
        (33, "SIG33"),
        (34, "SIGRTMIN"),
        (35, "SIGRTMIN+1"),
        (49, "SIGRTMIN+15"),
        (50, "SIGRTMAX-14"),
        (64, "SIGRTMAX"),
        *((value, None) for value in (65, -9, b"SIGKILL", None)),
    ],
)
def test_values(value: Value, name: str | None) -> None:
    assert decode(value) == name


def test_each_number_has_its_own_name() -> None:
    assert list(range(65)) == sorted(NAMES)
    assert len(set(NAMES.values())) == 65


@given(st.integers() | st.integers(-1, 70) | st.binary())
def test_any_value(value: int | bytes) -> None:
    assert decode(value) in {None, *NAMES.values()}
