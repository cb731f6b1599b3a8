"""Attempts: when a request is tried again, after what pause, and that all attempts take bounded time."""

from collections.abc import Callable
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.export.otlp.retry import MAX_PAUSE, RequestOutcome, Retries, root_of

TAKEN = RequestOutcome(True)
BUSY = RequestOutcome(False, "busy", retry=True)
REFUSED = RequestOutcome(False, "refused")


class Time:
    """A clock that waits and attempts advance. It notes when each attempt was made."""

    def __init__(self, stopped_at: float = float("inf")) -> None:
        self.now = 1000.0
        self.stopped_at = 1000 + stopped_at
        self.attempts = Retries(lambda: self.now, self.wait, lambda low, high: (low + high) / 2)
        self.made: list[float] = []
        self.left: list[float] = []

    def wait(self, seconds: float) -> bool:
        assert seconds >= 0
        self.now = min(self.now + seconds, max(self.now, self.stopped_at))
        return self.now >= self.stopped_at

    def answering(self, *answers: RequestOutcome, takes: float = 0.0) -> Callable[[float], RequestOutcome]:
        """Return an attempt that takes ``takes`` seconds; the last answer is given again and again."""
        given = iter([*answers, *repeat(answers[-1], 100)])

        def once(left: float) -> RequestOutcome:
            self.made.append(self.now - 1000)
            self.left.append(left)
            self.now += min(takes, left)
            return next(given)

        return once


@pytest.mark.parametrize(
    ("answers", "takes", "taken", "made"),
    [
        ([TAKEN], 0, True, [0]),
        ([REFUSED], 0, False, [0]),
        ([BUSY, TAKEN], 0, True, [0, 1]),
        ([BUSY, BUSY, REFUSED], 0, False, [0, 1, 3]),
        ([BUSY], 0, False, [0, 1, 3, 7]),
        ([BUSY], 1, False, [0, 2, 5]),
        ([BUSY], 10, False, [0]),
        ([BUSY._replace(after=0.5), TAKEN], 0, True, [0, 0.5]),
        ([BUSY._replace(after=9.5), TAKEN], 0, True, [0, 9.5]),
        ([BUSY._replace(after=10), TAKEN], 0, False, [0]),
        ([BUSY._replace(after=4)], 0, False, [0, 4, 8]),
        ([REFUSED._replace(after=1)], 0, False, [0]),
    ],
)
def test_within_ten_seconds(
    answers: list[RequestOutcome], takes: float, taken: bool, made: list[float]
) -> None:
    time = Time()
    assert time.attempts.run(time.answering(*answers, takes=takes), 10) is taken
    assert time.made == made
    assert time.attempts.answer == answers[min(len(made), len(answers)) - 1]


@given(
    st.lists(
        st.builds(RequestOutcome, st.booleans(), retry=st.booleans(), after=st.none() | st.floats(0, 1e9)),
        min_size=1,
    ),
    st.floats(0, 100),
    st.floats(0.01, 3600),
)
def test_it_is_bounded_whatever_the_answers(
    answers: list[RequestOutcome], takes: float, timeout: float
) -> None:
    time = Time()
    # A collector may ask for an immediate retry for ever, so each answer takes at least 0.1 s.
    time.attempts.run(time.answering(*answers, BUSY, takes=takes + 0.1), timeout)
    assert time.now - 1000 <= timeout + 1e-6
    assert all(0 < left <= timeout + 1e-6 for left in time.left)
    assert time.attempts.pause() <= MAX_PAUSE + 1e-6


def test_a_pause_that_is_too_long_holds_for_the_next_request() -> None:
    time = Time()
    assert time.attempts.pause() <= 0
    time.attempts.run(time.answering(BUSY._replace(after=60)), 10)
    assert time.attempts.pause() == 60
    time.now += 60
    assert time.attempts.pause() == 0


def test_a_collector_cannot_ask_for_endless_silence() -> None:
    time = Time()
    time.attempts.run(time.answering(BUSY._replace(after=1e9)), 10)
    assert time.attempts.pause() == MAX_PAUSE


def test_stopped_during_a_pause() -> None:
    time = Time(stopped_at=0.5)
    assert not time.attempts.run(time.answering(BUSY), 10)
    assert time.made == [0]
    assert time.now == 1000.5


def test_once_stopped_each_is_tried_once_and_in_time() -> None:
    time = Time()
    time.attempts.stop(2)
    for _ in range(3):
        time.attempts.run(time.answering(BUSY, takes=1.5), 10)
    assert time.made == [0, 1.5]
    assert time.left == [2, 0.5]


def test_once_stopped_the_first_that_has_no_answer_in_time_is_the_last() -> None:
    time = Time()
    time.attempts.stop(5)
    time.attempts.run(time.answering(BUSY, takes=1), 2)
    assert time.attempts.pause() <= 0
    time.attempts.run(time.answering(BUSY, takes=3), 2)
    assert time.attempts.pause() > 0


def test_before_that_one_without_an_answer_in_time_delays_none() -> None:
    time = Time()
    time.attempts.run(time.answering(BUSY, takes=3), 2)
    assert time.attempts.pause() <= 0


def test_an_exception_is_an_answer() -> None:
    def once(left: float) -> RequestOutcome:
        raise ValueError("metadata was invalid")

    attempts = Retries()
    assert not attempts.run(once, 10)
    assert attempts.answer == RequestOutcome(False, "metadata was invalid")
    attempts.clear()
    assert attempts.answer is None


def test_the_root_of_an_error() -> None:
    outer = RuntimeError("HTTPConnectionPool(…): Max retries exceeded")
    outer.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert root_of(outer) == "Connection refused"
    assert root_of(TimeoutError()) == "TimeoutError"
