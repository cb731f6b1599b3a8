"""trace.loops: the table has colours on a terminal that supports and allows them, and nowhere else."""

import os
from collections.abc import Iterator

import pytest

from kprobe_exporter.trace.loops import wants_color
from kprobe_exporter.trace.output import Interrupt, Output


@pytest.fixture
def descriptor() -> Iterator[int]:
    master, slave = os.openpty()
    yield slave
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(
    ("environment", "terminal", "wanted"),
    [
        ({"TERM": "xterm"}, True, True),
        ({}, True, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "0"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm"}, False, False),
    ],
)
def test_colors(
    descriptor: int,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    terminal: bool,
    wanted: bool,
) -> None:
    """A non-empty NO_COLOR, TERM, and whether the output is a terminal decide about colours."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_color(Output(descriptor, Interrupt(), terminal=terminal)) is wanted
