"""A collector of tests/otlp_faults.py in a process of its own, for tests that fork agents or measure time.

A process in which gRPC runs cannot be forked, and its threads would be in the way of whoever measures.
"""

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tests.otlp_faults import Fault, collector
from tests.support.patience import patience


class Saw(NamedTuple):
    """What a Collector saw so far: how many requests, and how much it took of each signal."""

    requests: int
    size: Counter[str]


class Apart:
    """A collector elsewhere; ``saw`` asks it."""

    def __init__(self, endpoint: str, pipe: "Connection[Any, Any]") -> None:
        self.endpoint = endpoint
        self._pipe = pipe

    def saw(self) -> Saw:
        self._pipe.send(True)
        answer: Saw = self._pipe.recv()
        return answer


@contextmanager
def collector_apart(protocol: str, *faults: Fault) -> Iterator[Apart]:
    """The same as ``collector``."""
    ours, theirs = multiprocessing.Pipe()

    def be_the_collector() -> None:
        ours.close()
        with collector(protocol, *faults) as seen:
            theirs.send(seen.endpoint)
            while theirs.recv():
                theirs.send(Saw(len(seen.times), seen.size.copy()))

    process = multiprocessing.get_context("fork").Process(target=be_the_collector, daemon=True)
    process.start()
    theirs.close()
    try:
        yield Apart(ours.recv(), ours)
    finally:
        with suppress(OSError):
            ours.send(False)
        process.join(patience(10))
        process.kill()
        process.join()
        ours.close()
