"""The table of refused sources: files, processes, containers and paths that took more than their budget.

Each is refused for a while, so that it costs its budget once in that time, is logged once, and is counted.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Literal, TypeAlias, get_args

log = logging.getLogger(__name__)

Kind: TypeAlias = Literal["file", "process", "container", "path"]

REFUSED_S = 60.0  # Seconds for which a source is refused after it went over its budget
MOST_SOURCES = 1024  # Sources that are refused at a time; the oldest ones are forgotten


class Overruns:
    """The sources that went over their budget. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[tuple[Kind, Hashable], float] = {}
        self._counts: dict[Kind, int] = dict.fromkeys(get_args(Kind), 0)

    def add(self, kind: Kind, source: Hashable, message: str) -> None:
        """Refuse a source from now on, and count and log it, unless it is refused already."""
        with self._lock:
            now = self._clock()
            if now < self._until.pop((kind, source), now):
                self._until[kind, source] = now + REFUSED_S
                return
            while len(self._until) >= MOST_SOURCES:
                del self._until[next(iter(self._until))]
            self._until[kind, source] = now + REFUSED_S
            self._counts[kind] += 1
        log.warning("%s", message)

    def refused(self, kind: Kind, source: Hashable) -> bool:
        """Return whether a source is refused now."""
        return self._clock() < self._until.get((kind, source), 0.0)

    def sources(self, kind: Kind) -> set[Hashable]:
        """Return the sources of a kind that are refused now."""
        with self._lock:
            now = self._clock()
            return {source for (found, source), until in self._until.items() if found == kind and now < until}

    def counts(self) -> Mapping[str, int]:
        """Return how often a source of each kind went over its budget."""
        with self._lock:
            return {str(kind): count for kind, count in self._counts.items()}

    def clear(self) -> None:
        """Refuse none any more, and count from 0."""
        with self._lock:
            self._until.clear()
            self._counts = dict.fromkeys(self._counts, 0)


OVERRUNS = Overruns()
"""Those of this process."""
