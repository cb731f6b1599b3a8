"""The log: one line a message, whatever is in it."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.cli import logs

HOSTILE = 'x"\n2026 ERROR forged\r\x1b[31m\u202e\u2028\x00\udcff\\n'


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """The package's logger, afterwards as it was."""
    package = logging.getLogger("kprobe_exporter")
    before = package.handlers[:], package.propagate, package.level
    yield package
    package.handlers[:], package.propagate = before[:2]
    package.setLevel(before[2])


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("kprobe_exporter.tracefs.mount", logging.WARNING, "", 1, message, args, info)
    made.created = 1_769_860_800.1234
    return made


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain text: é ☃", "plain text: é ☃"),
        ("a\nb", r"a\nb"),
        ("a\x00\x1b[31m", r"a\x00\x1b[31m"),
        ("\u2028\u202e", r"\u2028\u202e"),
        ("\udcff", r"\udcff"),
        ("\x85", r"\x85"),
        ("\U000e0001", r"\U000e0001"),
        ("\\n", "\\n"),
    ],
)
def test_escape(text: str, escaped: str) -> None:
    assert logs.escape(text) == escaped


@given(st.text(st.characters()))
def test_a_message_stays_one_line_that_can_be_printed(text: str) -> None:
    escaped = logs.escape(text)
    assert escaped.isprintable()
    assert logs.escape(escaped) == escaped


def test_a_line_of_text() -> None:
    assert logs.TextFormatter().format(record("at %s", "/x")) == (
        "2026-01-31T12:00:00.123Z WARNING tracefs.mount: at /x"
    )
    assert "\n" not in logs.TextFormatter().format(record("%s", HOSTILE))


def test_a_line_of_json() -> None:
    line = logs.JsonFormatter().format(record("at %s", HOSTILE))
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-31T12:00:00.123Z",
        "level": "warning",
        "logger": "kprobe_exporter.tracefs.mount",
        "message": f"at {HOSTILE}",
    }


def test_an_exception_is_shown() -> None:
    try:
        raise ValueError("a bug")
    except ValueError as error:
        shown = record("failed", error=error)
    assert logs.TextFormatter().format(shown).endswith("\nValueError: a bug")
    exception = json.loads(logs.JsonFormatter().format(shown))["exception"]
    assert exception.endswith("\nValueError: a bug")


@pytest.mark.parametrize("form", logs.FORMATS)
@pytest.mark.parametrize("level", logs.LEVELS)
def test_set_up(log: logging.Logger, monkeypatch: pytest.MonkeyPatch, level: str, form: str) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    for _ in range(2):  # a second time replaces the first
        logs.set_up(level, form)
    child = logging.getLogger("kprobe_exporter.agent")
    for name in logs.LEVELS:
        child.log(getattr(logging, name.upper()), "said %s", name)
    shown = logs.LEVELS[logs.LEVELS.index(level) :]
    lines = stream.getvalue().splitlines()
    assert len(lines) == len(shown)
    for line, name in zip(lines, shown, strict=True):
        message = json.loads(line)["message"] if form == "json" else line.split(": ", 1)[1]
        assert message == f"said {name}"
