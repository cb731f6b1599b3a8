"""Fuzzes one target in a child process. After a crash or a hang the input is kept, and the run continues.

Each input is made from its number alone, so that any input can be made again.
"""

import multiprocessing
import multiprocessing.sharedctypes
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from ctypes import c_uint64
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.fuzz.target import KEPT, ROOT, Target

HANG = 30.0
"""Seconds for one input, after which it counts as endless; none takes a hundredth of that."""

MEMORY = 4 << 30
"""Bytes of the child's address space."""

MOST_CRASHES = 20
"""Different crashes after which a target is given up."""

PROGRESS = 10.0
NUMBER, INPUTS, ACCEPTED, CRASHED, SLOWEST, READY = range(6)
"""Indexes in the memory that parent and child share: the number of the current input, the counts of inputs
read, accepted and crashed, the longest time of an input in nanoseconds, and whether the child is prepared."""

PACKAGE = f"{ROOT}/kprobe_exporter/"


class Limit(NamedTuple):
    """A target ends after this many seconds, or inputs."""

    seconds: float
    inputs: int | None = None


@dataclass(frozen=True)
class Crash:
    """``number`` is the input's; ``sentence`` says what happened and where, and is equal for equal faults."""

    number: int
    sentence: str
    details: str = ""


@dataclass(frozen=True)
class Result:
    """The result of a target: ``crashed`` counts inputs, ``crashes`` are the different ones; in seconds."""

    target: str
    first: int
    inputs: int
    accepted: int
    crashed: int
    seconds: float
    slowest: float
    crashes: tuple[Crash, ...]

    @property
    def refused(self) -> int:
        return self.inputs - self.accepted - self.crashed


def fuzz(
    target: Target,
    first: int,
    limit: Limit,
    say: Callable[[str], None] = lambda _: None,
    kept: Path = KEPT,
    hang: float = HANG,
) -> Result:
    """Feed the target with the inputs from number ``first`` on, and keep those that crash in ``kept``."""
    began = time.monotonic()
    shared = multiprocessing.sharedctypes.RawArray(c_uint64, 6)
    crashes: dict[str, Crash] = {}
    following, told = first, began

    def take_in(crash: Crash) -> None:
        if crash.sentence not in crashes:
            crashes[crash.sentence] = crash
            say(_told(target, crash, kept))

    while (left := began + limit.seconds - time.monotonic()) > 0 and len(crashes) < MOST_CRASHES:
        most = None if limit.inputs is None else first + limit.inputs - following
        if most == 0:
            break
        watch = _Watch(target, following, Limit(left, most), shared, hang)
        for crash in watch.crashes():
            if crash is not None:
                take_in(crash)
            if len(crashes) >= MOST_CRASHES:
                watch.stop()
                break
            if time.monotonic() - told >= PROGRESS:
                told = time.monotonic()
                say(f"{target.name}: {shared[INPUTS]:,} inputs, {len(crashes)} crashes")
        if watch.ended:
            break
        following = shared[NUMBER] + 1
    seconds = time.monotonic() - began
    return Result(
        target.name,
        first,
        shared[INPUTS],
        shared[ACCEPTED],
        shared[CRASHED],
        seconds,
        shared[SLOWEST] / 1e9,
        tuple(crashes.values()),
    )


class _Watch:
    """One child, from its start to its end. ``ended`` tells whether it completed its work."""

    def __init__(self, target: Target, first: int, limit: Limit, shared: Any, hang: float) -> None:
        # Forked, since a target may hold objects that cannot be sent to another process.
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe(duplex=False)
        shared[NUMBER] = first
        self._shared, self._hang, self.ended = shared, hang, False
        self._process = context.Process(target=_child, args=(target, first, limit, shared, theirs))
        self._process.start()
        theirs.close()

    def crashes(self) -> Iterator[Crash | None]:
        """Yield each crash when it happens, and None from time to time."""
        seen, since = -1, time.monotonic()
        try:
            while True:
                if self._pipe.poll(0.2):
                    crash = self._pipe.recv()
                    if crash is None:
                        self.ended = True
                        break
                    yield crash
                    continue
                if self._shared[INPUTS] != seen:
                    seen, since = self._shared[INPUTS], time.monotonic()
                elif time.monotonic() - since > self._hang:
                    self._process.kill()
                    yield self._died(f"it did not end within {self._hang:g} s")
                    return
                yield None
        except EOFError:  # the child did not send the None that ends its work
            self._process.join()
            yield self._died(_ending(self._process.exitcode))
        finally:
            self._process.join()
            self._pipe.close()

    def stop(self) -> None:
        """Kill the child."""
        self._process.kill()

    def _died(self, sentence: str) -> Crash:
        if not self._shared[READY]:
            raise RuntimeError("the target could not be prepared")
        self._shared[INPUTS] += 1
        self._shared[CRASHED] += 1
        return Crash(self._shared[NUMBER], sentence)


def _child(target: Target, first: int, limit: Limit, shared: Any, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    end = time.monotonic() + limit.seconds
    known: set[str] = set()
    with target.taking() as take:
        shared[READY] = True
        for number in count(first) if limit.inputs is None else range(first, first + limit.inputs):
            if time.monotonic() > end:
                break
            shared[NUMBER] = number
            made = target.make(Random(number))
            began = time.perf_counter_ns()
            try:
                shared[ACCEPTED] += bool(take(made))
            except Exception as error:
                shared[CRASHED] += 1
                sentence = where(error)
                if sentence not in known:
                    known.add(sentence)
                    pipe.send(Crash(number, sentence, traceback.format_exc()))
            shared[SLOWEST] = max(shared[SLOWEST], time.perf_counter_ns() - began)
            shared[INPUTS] += 1
    pipe.send(None)


def where(error: BaseException) -> str:
    """The type of an error, and the innermost line of the package in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(PACKAGE)] or frames
    place = f"{os.path.relpath(ours[-1].filename, ROOT)}:{ours[-1].lineno}" if ours else "nowhere"
    return f"{type(error).__name__} at {place}"


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with status {code}"


def _told(target: Target, crash: Crash, kept: Path) -> str:
    """Keep the input; return what happened and the command that repeats it."""
    made = target.make(Random(crash.number))
    kept.mkdir(parents=True, exist_ok=True)
    file = kept / f"{target.name}-{made.what}-{crash.number}"
    file.write_bytes(made.data)
    shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    again = f'make fuzz ARGS="{target.name} --seed {crash.number} --inputs 1"'
    return f"{crash.details}CRASH of {target.name}, {made.what}: {crash.sentence}; {shown}; {again}"
