"""The log has one line per message, for any text in the message."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import one_line
from kprobe_exporter.service import logs

HOSTILE = 'x"\n2026 ERROR forged\r\x1b[31m\u202e\u2028\x00\udcff\\n'


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """Yield the package's logger, and restore it afterwards."""
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


def failure(message: str, text: str) -> logging.LogRecord:
    """Return a record with an exception that was raised."""
    try:
        raise ValueError(text)
    except ValueError as error:
        return record(message, error=error)


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
    assert one_line(text) == escaped


@given(st.text(st.characters()))
def test_a_message_stays_one_line_that_can_be_printed(text: str) -> None:
    escaped = one_line(text)
    assert escaped.isprintable()
    assert one_line(escaped) == escaped


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
        "message": "at " + one_line(HOSTILE),
    }


@given(st.text(st.characters()))
def test_json_holds_nothing_that_a_terminal_or_a_parser_minds(text: str) -> None:
    line = logs.JsonFormatter().format(record("%s", text))
    message = json.loads(line)["message"]
    assert message.isprintable()
    message.encode()  # no lone surrogate


def test_an_exception_is_shown() -> None:
    shown = failure("failed", "a bug")
    line = logs.TextFormatter().format(shown)
    assert line.isprintable()
    assert line.startswith("2026-01-31T12:00:00.123Z WARNING tracefs.mount: failed Traceback (most recent")
    assert line.endswith(r"\nValueError: a bug")
    exception = json.loads(logs.JsonFormatter().format(shown))["exception"]
    assert exception.endswith("\nValueError: a bug")


@given(st.text(st.characters()))
def test_a_hostile_exception_is_a_line(text: str) -> None:
    shown = failure("failed", text)
    assert logs.TextFormatter().format(shown).isprintable()
    exception = json.loads(logs.JsonFormatter().format(shown))["exception"]
    assert exception.replace("\n", "").isprintable()


def test_a_long_message_is_cut() -> None:
    endless = "x" * 10 * logs.MAX_LENGTH
    assert logs.TextFormatter().format(record(endless)).endswith("xxx…")
    shown = failure(endless, endless + "the end")
    for formatter in (logs.TextFormatter(), logs.JsonFormatter()):
        line = formatter.format(shown)
        assert len(line) < 3 * logs.MAX_LENGTH
        assert "the end" in line


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 3)],
)
def test_a_line_for_the_journal(level: int, priority: int) -> None:
    shown = record("at %s", HOSTILE)
    shown.levelno, shown.levelname = level, logging.getLevelName(level)
    text = logs.JournalFormatter(logs.TextFormatter(timed=False)).format(shown)
    assert text.startswith(f"<{priority}>{shown.levelname} tracefs.mount: at ")
    assert text.isprintable()
    line = logs.JournalFormatter(logs.JsonFormatter()).format(shown)
    assert line.startswith(f"<{priority}>")
    assert json.loads(line[3:])["time"] == "2026-01-31T12:00:00.123Z"


def test_what_is_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream, (tmp_path / "other").open("w") as other:
        status = os.fstat(stream.fileno())
        environment = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert logs.is_journal(environment, stream.fileno())
        assert not logs.is_journal(environment, other.fileno())  # redirected after the start
        assert not logs.is_journal({}, stream.fileno())
        assert not logs.is_journal({"JOURNAL_STREAM": "x"}, stream.fileno())
        number = other.fileno()
    assert not logs.is_journal(environment, number)  # closed


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--config", "/nonexistent/a", "--config", "/nonexistent/b"], 2),
        (["--web.listen-address", "nonsense"], 2),
        (["--web.listen-address", "192.0.2.1:1"], 1),  # no address of this machine
    ],
)
def test_what_ends_the_agent_is_json_too(arguments: list[str], status: int) -> None:
    """A collector that takes lines of JSON must also get the reason why an agent does not start."""
    command = [sys.executable, "-m", "kprobe_exporter", "run", "--log.format", "json", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == status
    entries = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [entry["level"] for entry in entries] == ["error"] * len(entries)
    assert len(entries) == (arguments.count("--config") or 1)


@pytest.mark.parametrize("form", logs.FORMATS)
@pytest.mark.parametrize("level", logs.LEVELS)
def test_set_up(log: logging.Logger, monkeypatch: pytest.MonkeyPatch, level: str, form: str) -> None:
    stream = io.StringIO()
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    for _ in range(2):  # a second time replaces the first
        logs.set_up(level, form)
    child = logging.getLogger("kprobe_exporter.agent.agent")
    for name in logs.LEVELS:
        child.log(getattr(logging, name.upper()), "said %s", name)
    shown = logs.LEVELS[logs.LEVELS.index(level) :]
    lines = stream.getvalue().splitlines()
    assert len(lines) == len(shown)
    for line, name in zip(lines, shown, strict=True):
        message = json.loads(line)["message"] if form == "json" else line.split(": ", 1)[1]
        assert message == f"said {name}"
