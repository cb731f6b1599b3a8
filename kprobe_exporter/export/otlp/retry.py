"""Sends one request with retries and pauses, within a bounded time and until it is stopped."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

MAX_PAUSE = 300.0
"""Seconds: the longest pause that a collector can request."""


class RequestOutcome(NamedTuple):
    """The outcome of one request.

    ``taken`` says that the collector accepted the request, except for ``rejected`` of its items. Otherwise
    ``retry`` says whether the request may be sent again, and ``after`` is the pause in seconds that the
    collector requests, or None. ``reason`` is a readable clause that says why items were not accepted.
    """

    taken: bool
    reason: str = ""
    rejected: int = 0
    retry: bool = False
    after: float | None = None


class NotTaken(Exception):
    """Raised through the SDK's exporter when all attempts failed, so that the exporter does not retry."""


TIMED_OUT = RequestOutcome(False, "no answer within the timeout")


def accepted(response: Any) -> RequestOutcome:
    """Return the outcome of an accepted request, whose response says how many items were rejected.

    Their field's name differs between the signals: ``rejected_spans``, ``rejected_log_records`` and so on.
    """
    said = response.partial_success
    rejected = [number for field, number in said.ListFields() if field.name.startswith("rejected_")]
    return RequestOutcome(True, said.error_message, rejected=max([0, *rejected]))


def root_of(error: BaseException) -> str:
    """Return the message of an error's root cause, without the messages of the layers around it."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class Retries:
    """Sends each request until it is accepted, refused for good, or out of time.

    One thread calls ``run``; any thread may call ``stop``. ``answer`` belongs to the last request; it is None
    if there was no request since ``clear``.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.answer: RequestOutcome | None = None
        self._clock = clock
        self._jitter = jitter
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._end = float("inf")
        self._not_before = float("-inf")

    def clear(self) -> None:
        self.answer = None

    def run(self, once: Callable[[float], RequestOutcome], timeout: float) -> bool:
        """Call ``once`` with the remaining seconds until it returns a final answer; True if it is ``taken``.

        All attempts and the pauses between them take at most ``timeout`` seconds. If a pause that the
        collector requests does not fit into this time, it delays the next request: see ``pause``.
        """
        deadline = self._clock() + timeout
        attempt = 0
        self.answer = TIMED_OUT
        while (left := min(deadline, self._end) - (begun := self._clock())) > 0:
            try:
                answer = once(left)
            except Exception as error:  # any error of a library means that it was not accepted
                answer = RequestOutcome(False, root_of(error))
            self.answer = answer
            if self._stopped.is_set() and not answer.taken and self._clock() - begun >= left:
                # This collector does not answer in time, so the rest would only delay the end.
                self._not_before = float("inf")
            if not answer.retry:
                break
            if answer.after is None:
                # OTLP requires exponential backoff with jitter, so that agents retry at different times.
                delay = 2.0**attempt * self._jitter(0.8, 1.2)
            else:
                delay = min(answer.after, MAX_PAUSE)
                self._not_before = self._clock() + delay
            if self._clock() + delay >= deadline or self._stopped.is_set() or self._wait(delay):
                break
            attempt += 1
        return self.answer.taken

    def pause(self) -> float:
        """Remaining seconds of the pause that the collector requested; 0 or less if sending is allowed."""
        return self._not_before - self._clock()

    def stop(self, timeout: float) -> None:
        """Allow no retries from now on, and no attempts at all after ``timeout`` seconds.

        The first request that then gets no answer in time is the last one.
        """
        self._end = min(self._end, self._clock() + timeout)
        self._stopped.set()
