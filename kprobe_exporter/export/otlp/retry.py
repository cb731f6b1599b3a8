"""Sends one request with retries and pauses, until it is accepted, refused, too old or stopped."""

import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

MAX_PAUSE = 300.0
"""Seconds: the longest pause that a collector can request."""

FIRST_BACKOFF, MAX_BACKOFF = 1.0, 30.0
"""Seconds of our own pauses, which double. OTLP requires jitter, so that agents retry at different times."""


class RequestOutcome(NamedTuple):
    """The outcome of one request.

    ``taken`` says that the collector accepted the request, except for ``rejected`` of its items. Otherwise
    ``retry`` says whether the request may be sent again, and ``after`` is the pause in seconds that the
    collector requests, or None. ``reason`` is a readable clause that says why items were not accepted.
    ``unanswered`` says that the collector may have received the request, but did not answer in time.
    """

    taken: bool
    reason: str = ""
    rejected: int = 0
    retry: bool = False
    after: float | None = None
    unanswered: bool = False


TIMED_OUT = RequestOutcome(False, "no answer within the timeout", retry=True, unanswered=True)


def cause_of(error: BaseException) -> BaseException:
    """Return an error's root cause."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def root_of(error: BaseException) -> str:
    """Return the message of an error's root cause, without the messages of the layers around it."""
    cause = cause_of(error)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


class Retries:
    """Sends each request until it is accepted, refused for good, or older than ``retry`` seconds.

    One thread calls ``run``; any thread may call ``stop``. ``answer`` belongs to the last request.
    ``delayed`` is called after a failed attempt, if the request is retried for longer than its timeout.
    """

    def __init__(
        self,
        retry: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.answer = TIMED_OUT
        self.delayed: Callable[[RequestOutcome], object] = lambda _: None
        self._retry = retry
        self._clock = clock
        self._jitter = jitter
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._end = float("inf")
        self._not_before = float("-inf")

    def run(self, once: Callable[[float, bool], RequestOutcome], timeout: float) -> bool:
        """Call ``once`` until it returns a final answer or the request is too old; True if it is ``taken``.

        Its arguments are the seconds that the attempt may take, and whether to send an empty request. A
        collector that hangs may have the request, and would get a copy with each attempt. So after an attempt
        without an answer, empty requests are sent until the collector answers one, even with an error.

        Each attempt takes at most ``timeout`` seconds. The request is given up after an attempt that fails
        when it is older than ``retry``. If ``retry`` is 0, all attempts and the pauses between them take at
        most ``timeout``. Then a requested pause that does not fit delays the next request: see ``pause``.
        """
        begun = self._clock()
        deadline = float("inf") if self._retry else begun + timeout
        backoff, empty = FIRST_BACKOFF, False
        self.answer = TIMED_OUT
        while (left := min(timeout, min(deadline, self._end) - (sent := self._clock()))) > 0:
            try:
                answer = once(left, empty)
            except Exception as error:  # any error of a library means that it was not accepted
                answer = RequestOutcome(False, root_of(error))
            if empty and not answer.retry:
                empty = False
                continue
            if not empty:
                self.answer = answer
            now = self._clock()
            if self._stopped.is_set() and not answer.taken and now - sent >= left:
                # This collector does not answer in time, so the rest would only delay the end.
                self._not_before = float("inf")
            if not answer.retry or self._stopped.is_set():
                break
            empty = empty or answer.unanswered
            if answer.after is None:
                delay = backoff * self._jitter(0.8, 1.2)
                backoff = min(2 * backoff, MAX_BACKOFF)
            else:
                delay = min(answer.after, MAX_PAUSE)
                self._not_before = now + delay
            if now + delay >= begun + timeout:
                if now >= begun + self._retry:
                    break
                self.delayed(answer)
            if self._wait(delay) and answer.after is not None:
                break  # stopped while the collector wants silence
        return self.answer.taken

    def pause(self) -> float:
        """Remaining seconds of the pause that the collector requested; 0 or less if sending is allowed."""
        return self._not_before - self._clock()

    def stop(self, timeout: float) -> None:
        """Allow one more attempt of each request, and no attempts at all after ``timeout`` seconds.

        The first request that then gets no answer in time is the last one.
        """
        self._end = min(self._end, self._clock() + timeout)
        self._stopped.set()
