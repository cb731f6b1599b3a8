"""Attempts: when a request is tried again, after what pause, and that all attempts take bounded time."""

from collections.abc import Callable
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.export.otlp.retry import (
    MAX_BACKOFF,
    MAX_PAUSE,
    TIMED_OUT,
    RequestOutcome,
    Retries,
    root_of,
)

TAKEN = RequestOutcome(True)
BUSY = RequestOutcome(False, "busy", retry=True)
REFUSED = RequestOutcome(False, "refused")


class Time:
    """A clock that waits and attempts advance. It notes when each attempt was made, and which were empty.

    ``delays`` are the reasons for which a request was retried for longer than its timeout.
    """

    def __init__(self, stopped_at: float = float("inf"), retry: float = 0.0) -> None:
        self.now = 1000.0
        self.stopped_at = 1000 + stopped_at
        self.attempts = Retries(retry, lambda: self.now, self.wait, lambda low, high: (low + high) / 2)
        self.made: list[float] = []
        self.left: list[float] = []
        self.empty: list[float] = []
        self.delays: list[str] = []
        self.attempts.delayed = lambda answer: self.delays.append(answer.reason)

    def wait(self, seconds: float) -> bool:
        assert seconds >= 0
        self.now = min(self.now + seconds, max(self.now, self.stopped_at))
        if self.now < self.stopped_at:
            return False
        self.attempts.stop(5)
        return True

    def answering(
        self, *answers: RequestOutcome, takes: float = 0.0
    ) -> Callable[[float, bool], RequestOutcome]:
        """Return an attempt that takes ``takes`` seconds, and its whole time if it has no answer; the last
        answer is given again and again."""
        given = iter([*answers, *repeat(answers[-1], 10_000)])

        def once(left: float, empty: bool) -> RequestOutcome:
            (self.empty if empty else self.made).append(self.now - 1000)
            self.left.append(left)
            answer = next(given)
            self.now += left if answer.unanswered else min(takes, left)
            return answer

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


MINUTES = 300.0


@pytest.mark.parametrize(
    ("answers", "taken", "made", "delays"),
    [
        ([REFUSED], False, [0], 0),
        # A collector that is away for four minutes.
        ([*[BUSY] * 11, TAKEN], True, [0, 1, 3, 7, 15, 31, 61, 91, 121, 151, 181, 211], 8),
        ([BUSY], False, [0, 1, 3, 7, 15, 31, 61, 91, 121, 151, 181, 211, 241, 271, 301], 11),
        ([BUSY._replace(after=60), TAKEN], True, [0, 60], 1),
        # Requested pauses do not lengthen our own.
        ([BUSY._replace(after=5), BUSY._replace(after=5), BUSY, TAKEN], True, [0, 5, 10, 11], 2),
        # A requested pause is followed by an attempt, whatever the request's age.
        ([*[BUSY] * 6, BUSY._replace(after=299), TAKEN], True, [0, 1, 3, 7, 15, 31, 61, 360], 4),
        ([BUSY._replace(after=1e9)], False, [0, 300], 1),
    ],
)
def test_within_minutes(answers: list[RequestOutcome], taken: bool, made: list[float], delays: int) -> None:
    time = Time(retry=MINUTES)
    assert time.attempts.run(time.answering(*answers), 10) is taken
    assert time.made == made
    assert time.delays == ["busy"] * delays


def test_pauses_grow_to_a_bound_with_jitter() -> None:
    waited: list[float] = []
    now = 0.0

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        waited.append(seconds)
        return False

    attempts = Retries(86400, lambda: now, wait)
    assert not attempts.run(lambda *_: BUSY, 10)
    assert max(waited) <= 1.2 * MAX_BACKOFF
    assert min(waited[5:]) >= 0.8 * MAX_BACKOFF
    assert len(set(waited)) == len(waited)
    assert sum(waited) < 86400 + 1.2 * MAX_BACKOFF


def test_a_collector_that_hangs_for_a_minute_gets_a_request_at_most_twice() -> None:
    """It may have stored the first copy unseen, so only empty requests follow until it answers one."""
    time = Time(retry=MINUTES)
    answers = [TIMED_OUT] * 4 + [RequestOutcome(False, "empty: invalid"), TAKEN]
    assert time.attempts.run(time.answering(*answers), 10)
    assert time.empty == [10 + 1, 21 + 2, 33 + 4, 47 + 8]
    assert time.made == [0, 55]
    assert time.attempts.answer == TAKEN


def test_an_answer_to_an_empty_request_is_none_to_the_request() -> None:
    time = Time(retry=MINUTES)
    assert not time.attempts.run(time.answering(TIMED_OUT, TAKEN, REFUSED), 10)
    assert time.attempts.answer == REFUSED
    stopped = Time(stopped_at=10.5, retry=MINUTES)
    assert not stopped.attempts.run(stopped.answering(TIMED_OUT, TAKEN, takes=5), 10)
    assert (stopped.made, stopped.empty) == ([0], [10.5])


@given(
    st.lists(
        st.builds(
            RequestOutcome,
            st.booleans(),
            retry=st.booleans(),
            after=st.none() | st.floats(0, 1e9),
            unanswered=st.booleans(),
        )
    ),
    st.floats(0, 100),
    st.floats(0.01, 3600),
    st.floats(0.01, 86400),
)
def test_it_is_retried_until_it_is_old_whatever_the_answers(
    answers: list[RequestOutcome], takes: float, timeout: float, retry: float
) -> None:
    """The one that is given up was tried when it was as old as ``retry``, and not much later."""
    time = Time(retry=retry)
    taken = time.attempts.run(time.answering(*answers, BUSY, takes=takes + 1), timeout)
    assert all(0 < left <= timeout for left in time.left)
    age = time.now - 1000
    assert age <= retry + MAX_PAUSE + 3 * timeout + 1e-6
    last = time.attempts.answer
    assert last is not None
    assert taken or not last.retry or age >= retry - 1e-6


def test_stopped_during_a_pause() -> None:
    """There is one more attempt, unless the collector asked for the pause."""
    for retry in (0, MINUTES):
        for answer, made in ((BUSY, [0, 0.5]), (BUSY._replace(after=5), [0])):
            time = Time(stopped_at=0.5, retry=retry)
            assert not time.attempts.run(time.answering(answer), 10)
            assert time.made == made
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
    def once(left: float, empty: bool) -> RequestOutcome:
        raise ValueError("metadata was invalid")

    attempts = Retries()
    assert not attempts.run(once, 10)
    assert attempts.answer == RequestOutcome(False, "metadata was invalid")


def test_the_root_of_an_error() -> None:
    outer = RuntimeError("HTTPConnectionPool(…): Max retries exceeded")
    outer.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert root_of(outer) == "Connection refused"
    assert root_of(TimeoutError()) == "TimeoutError"
