"""Trying to have one request taken: again after a while, within a bounded time, until told to stop."""

import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

MAX_PAUSE = 300.0
"""Seconds: a collector may ask for so long a silence, and no longer."""


class Answer(NamedTuple):
    """What came of one request.

    ``taken``: the collector has it, but for ``rejected`` of its items. Else ``retry`` says whether it
    may be sent once more, and ``after`` how many seconds the collector asks for until then, None if it
    says nothing. ``reason`` is a clause for a person: why not, or why not all.
    """

    taken: bool
    reason: str = ""
    rejected: int = 0
    retry: bool = False
    after: float | None = None


class NotTaken(Exception):
    """Raised through the SDK's exporter when all attempts failed, so that it does not try on its own."""


TIMED_OUT = Answer(False, "no answer within the timeout")


def root_of(error: BaseException) -> str:
    """The reason at the root of a library's error, without what each layer says around it."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class Attempts:
    """Sends requests until each is taken, refused for good, or out of time.

    One thread calls ``run``; ``stop`` may be called from any. ``answer`` is the last request's, None if
    there was none since ``clear``.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.answer: Answer | None = None
        self._clock = clock
        self._jitter = jitter
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._end = float("inf")
        self._not_before = float("-inf")

    def clear(self) -> None:
        self.answer = None

    def run(self, once: Callable[[float], Answer], timeout: float) -> bool:
        """Call ``once`` with the seconds that are left, until it has an answer that is final.

        All attempts and the pauses between them take ``timeout`` seconds at the most. A pause that the
        collector asks for and that does not fit in holds for the next request: see ``pause``.
        """
        deadline = self._clock() + timeout
        attempt = 0
        self.answer = TIMED_OUT
        while (left := min(deadline, self._end) - self._clock()) > 0:
            try:
                answer = once(left)
            except Exception as error:  # whatever a library raises of a request, it is not taken
                answer = Answer(False, root_of(error))
            self.answer = answer
            if not answer.retry:
                break
            if answer.after is None:
                # As OTLP asks for: exponential, and not all agents at the same time.
                delay = 2.0**attempt * self._jitter(0.8, 1.2)
            else:
                delay = min(answer.after, MAX_PAUSE)
                self._not_before = self._clock() + delay
            if self._clock() + delay >= deadline or self._stopped.is_set() or self._wait(delay):
                break
            attempt += 1
        return self.answer.taken

    def pause(self) -> float:
        """Seconds for which the collector wants to hear nothing; 0 or less if it may be sent to."""
        return self._not_before - self._clock()

    def stop(self, timeout: float) -> None:
        """From now on try only once, and nothing at all after ``timeout`` seconds."""
        self._end = min(self._end, self._clock() + timeout)
        self._stopped.set()
