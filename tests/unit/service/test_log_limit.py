"""Repeated messages are left out of the log and summed up; different ones are shown, up to a limit."""

import io
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.service.log_limit import BURST, MAX_MESSAGES, RATE, SAME, WINDOW, Repeats
from kprobe_exporter.service.logs import Handler


def record(message: str, *, line: int = 1, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("kprobe_exporter.agent.agent", level, "", line, "%s", (message,), None)


class Log:
    """A handler whose clock and timer the test controls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        self.handler = Handler(
            self.stream, lambda: self.now, lambda seconds, call: self.waiting.append((seconds, call))
        )

    def say(self, message: str, times: int = 1, *, line: int = 1, level: int = logging.WARNING) -> None:
        for _ in range(times):
            self.handler.handle(record(message, line=line, level=level))

    def wait(self) -> None:
        """Let the running timer expire."""
        [(seconds, call)] = self.waiting
        self.waiting.clear()
        self.now += seconds
        call()

    def lines(self) -> list[str]:
        lines = self.stream.getvalue().splitlines()
        self.stream.seek(0)
        self.stream.truncate()
        return lines


@pytest.fixture
def log() -> Log:
    return Log()


def no_thread(seconds: float, call: Callable[[], None]) -> object:
    raise RuntimeError("can't start new thread")


def test_one_message_again_and_again(log: Log) -> None:
    log.say("no probe", 1000)
    assert log.lines() == ["no probe"] * SAME
    log.wait()
    assert log.lines() == [f"no probe … repeated {1000 - SAME} more times"]
    assert not log.waiting  # a quiet log needs no timer thread
    log.say("no probe")
    assert log.lines() == ["no probe"]


def test_a_message_that_goes_on_is_summed_up_each_minute(log: Log) -> None:
    for second in range(121):
        log.now = float(second)
        log.say("no probe")
    log.handler.close()
    assert log.lines() == [
        *["no probe"] * SAME,
        f"no probe … repeated {60 - SAME} more times",
        *["no probe"] * SAME,
        f"no probe … repeated {60 - SAME} more times",
        "no probe",
    ]


def test_seldom_is_not_repeated(log: Log) -> None:
    for _ in range(50):
        log.say("no probe")
        log.now += WINDOW / SAME
    assert log.lines() == ["no probe"] * 50


def test_levels_and_values_are_told_apart(log: Log) -> None:
    for _ in range(SAME):
        log.say("x")
        log.say("x", level=logging.ERROR)
        log.say("y")
    assert len(log.lines()) == 3 * SAME


def test_each_of_many_probes_may_complain(log: Log) -> None:
    log.say("this one repeats", 10_000)
    for probe in range(BURST - 1):
        log.say(f"the probe {probe} is down")
    lines = log.lines()
    assert lines[SAME:] == [f"the probe {probe} is down" for probe in range(BURST - 1)]


def test_a_flood_of_messages_that_all_differ(log: Log) -> None:
    """A bounded number of different messages passes, as of names that users choose; other places do log."""
    for n in range(10_000):
        log.say(f"bad name {n}")
        log.now += 0.001
    shown = log.lines()
    assert BURST <= len(shown) <= BURST + 10 * RATE + 1
    log.say("another place", line=2)
    assert log.lines() == ["another place"]
    log.wait()
    assert log.lines() == [f"{10_000 - len(shown)} more messages like this one were omitted: bad name 9999"]
    log.now += BURST / RATE
    log.say("bad name again")
    assert log.lines() == ["bad name again"]


def test_the_end_sums_up(log: Log) -> None:
    log.say("no probe", SAME + 2)
    log.handler.close()
    assert log.lines()[SAME:] == ["no probe … repeated 2 more times"]


def test_what_is_forgotten_is_summed_up(log: Log) -> None:
    log.say("no probe", SAME + 2)
    log.lines()
    for n in range(MAX_MESSAGES):
        log.say(f"other {n}", line=n)
    log.wait()
    assert "no probe … repeated 2 more times" in log.lines()


def test_a_message_that_cannot_be_made(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    log.handler.handle(logging.LogRecord("x", logging.INFO, "", 1, "%d", ("no number",), None))
    assert "Logging error" in capsys.readouterr().err
    log.say("after it")
    assert log.lines() == ["after it"]


def test_many_threads(log: Log) -> None:
    """No message is lost: the shown and the summed up messages are all."""
    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(log.say, "no probe", 500)
    log.handler.close()
    assert log.lines() == [*["no probe"] * SAME, f"no probe … repeated {8 * 500 - SAME} more times"]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 30), st.floats(0, 100), st.integers(1, 200)), max_size=30
    )
)
def test_each_record_is_shown_or_counted(said: list[tuple[int, int, float, int]]) -> None:
    repeats = Repeats()
    now, shown, told, total = 0.0, 0, 0, 0
    for line, message, pause, times in said:
        now += pause
        for _ in range(times):
            told += sum(map(count, repeats.due(now)))
            shown += repeats.admit(record(f"message {message}", line=line), now)
            total += 1
    told += sum(map(count, repeats.due(float("inf"))))
    assert shown + told == total
    assert not repeats.pending
    assert repeats.due(float("inf")) == []


def count(summary: logging.LogRecord) -> int:
    """Return how many records a summary stands for."""
    return next(
        int(word) for word in summary.getMessage().replace("message ", "message").split() if word.isdigit()
    )


def test_memory_is_bounded() -> None:
    repeats = Repeats()
    for n in range(5 * MAX_MESSAGES):
        repeats.admit(record(f"{n}" * 1000, line=n), float(n) / 1000)
    assert len(repeats._messages) <= MAX_MESSAGES
    assert max(len(message) for _, _, message in repeats._messages) <= 1000


def test_without_a_thread_to_wait_in(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging does not fail if no timer thread starts; the next message reports what was left out."""
    with monkeypatch.context() as patch:
        patch.setattr(log.handler, "_later", no_thread)
        log.say("no probe", SAME + 3)
        assert log.lines() == ["no probe"] * SAME
        log.now += WINDOW
        log.say("another", line=2)
        assert log.lines() == ["no probe … repeated 3 more times", "another"]
    log.say("no probe", SAME + 1)
    log.lines()
    log.wait()
    assert log.lines() == ["no probe … repeated 1 more times"]


def test_without_a_thread_to_wait_in_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.say("first", SAME + 1)
    log.now += WINDOW / 2
    log.say("second", SAME + 1, line=2)
    log.lines()
    log.now -= WINDOW / 2
    with monkeypatch.context() as patch:
        patch.setattr(log.handler, "_later", no_thread)
        log.wait()
    assert log.lines() == ["first … repeated 1 more times"]
    log.say("second", line=2)
    log.wait()
    assert log.lines() == ["second … repeated 2 more times"]
