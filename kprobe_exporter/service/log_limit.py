"""Limits for repeated messages: which of them the log omits, and the lines that sum them up."""

import logging
from dataclasses import dataclass

from kprobe_exporter.util.token_bucket import TokenBucket

WINDOW = 60.0
"""Seconds over which repetitions are counted together."""

SAME = 5
"""How many times the same message is shown in a window."""

BURST = 500
"""Different messages that one place in the code may log at once: more than a start has probes."""

RATE = 5.0
"""Different messages that one place may log per second in the long run."""

MAX_MESSAGES = 512
"""Messages that are remembered. The oldest is forgotten first, and its repetitions are summed up."""

MAX_LENGTH = 1000
"""Characters of a message that are remembered and compared."""

Key = tuple[str, int, str]
"""The logger, the level, and the message with its values."""


@dataclass(slots=True)
class _Message:
    """A message in its current window."""

    began: float
    shown: int = 1
    left_out: int = 0


@dataclass(slots=True)
class _Place:
    """The token bucket of a place in the code, and the messages that it omitted for lack of tokens."""

    bucket: TokenBucket
    began: float = 0.0  # when the first message was left out
    left_out: int = 0
    last: Key = ("", 0, "")


class Repeats:
    """Decides which records to show. It has no clock and no lock: one caller at a time, with rising times.

    There are two limits. The same message is shown SAME times in WINDOW seconds. Messages that differ,
    perhaps only in values that an attacker chose, cost their place in the code one token each. A known
    message costs none, so a flood of one message does not hide the others. Each omitted message is counted,
    and ``due`` sums it up when its window is over.
    """

    def __init__(self) -> None:
        self._messages: dict[Key, _Message] = {}  # in the order in which their windows began
        # By the logger and the line of the module: the code bounds their number, whatever is logged.
        self._places: dict[tuple[str, int], _Place] = {}
        self._summaries: list[logging.LogRecord] = []

    def admit(self, record: logging.LogRecord, now: float) -> bool:
        """Return whether to show the record. Call ``due`` first, which ends the windows that are over."""
        key = record.name, record.levelno, record.getMessage()[:MAX_LENGTH]
        if known := self._messages.get(key):
            if known.shown < SAME:
                known.shown += 1
                return True
            known.left_out += 1
            return False
        if not self._take_token((record.name, record.lineno), key, now):
            return False
        if len(self._messages) >= MAX_MESSAGES:
            self._forget_oldest()
        self._messages[key] = _Message(now)
        return True

    def due(self, now: float) -> list[logging.LogRecord]:
        """End the windows that are over by now, and return their summaries."""
        while self._messages and now - next(iter(self._messages.values())).began >= WINDOW:
            self._forget_oldest()
        for place in self._places.values():
            if place.left_out and now - place.began >= WINDOW:
                text = f"{place.left_out} more messages like this one were omitted: {place.last[2]}"
                self._sum_up(place.last, text)
                place.left_out = 0
        summaries, self._summaries = self._summaries, []
        return summaries

    @property
    def pending(self) -> bool:
        """Return whether any message was omitted that is not summed up yet."""
        counts: list[_Message | _Place] = [*self._messages.values(), *self._places.values()]
        return bool(self._summaries) or any(one.left_out for one in counts)

    def _take_token(self, place: tuple[str, int], key: Key, now: float) -> bool:
        known = self._places.get(place)
        if known is None:
            known = self._places[place] = _Place(TokenBucket(RATE, BURST, now))
        if known.bucket.take(now):
            return True
        if not known.left_out:
            known.began = now
        known.left_out += 1
        known.last = key
        return False

    def _forget_oldest(self) -> None:
        key = next(iter(self._messages))
        if left_out := self._messages.pop(key).left_out:
            self._sum_up(key, f"{key[2]} … repeated {left_out} more times")

    def _sum_up(self, key: Key, text: str) -> None:
        name, level, _ = key
        self._summaries.append(logging.LogRecord(name, level, "", 0, "%s", (text,), None))
