"""A collector of otlp_faults.py in a separate process, for tests that fork agents or measure time.

A process in which gRPC runs cannot be forked, and gRPC's threads would disturb a test that measures time.
"""

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tests.support.otlp_faults import Fault, collector
from tests.support.patience import patience


class Saw(NamedTuple):
    """What a Collector got so far: the number of requests, and how many items of each signal it accepted."""

    requests: int
    size: Counter[str]


class Apart:
    """A collector in another process; ``saw`` queries it."""

    def __init__(self, endpoint: str, pipe: "Connection[Any, Any]") -> None:
        self.endpoint = endpoint
        self._pipe = pipe

    def saw(self) -> Saw:
        self._pipe.send(True)
        answer: Saw = self._pipe.recv()
        return answer


@contextmanager
def collector_apart(protocol: str, *faults: Fault) -> Iterator[Apart]:
    """Run ``collector`` in a process of its own until the context is left."""
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
