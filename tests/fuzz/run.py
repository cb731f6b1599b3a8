"""Fuzzes one target, in a child process: a crash or a hang of it is caught, its input kept, and it goes on.

Each input is made of its own number, so any of them can be made again by itself.
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
"""Seconds of one input after which it is taken for endless; none takes a hundredth of that."""

MEMORY = 4 << 30
"""Bytes of address space of the child."""

MOST_CRASHES = 20
"""Different ones, after which a target is given up."""

PROGRESS = 10.0
NUMBER, INPUTS, ACCEPTED, CRASHED, SLOWEST, READY = range(6)
"""Places in the memory that parent and child share: the number of the input that is being taken, how many
were, how many of them were accepted and how many crashed, the longest time that one took, in nanoseconds,
and whether the child has prepared all."""

PACKAGE = f"{ROOT}/kprobe_exporter/"


class Limit(NamedTuple):
    """When a target is done: after so many seconds, or inputs."""

    seconds: float
    inputs: int | None = None


@dataclass(frozen=True)
class Crash:
    """``number`` is the input's; ``sentence`` what happened and where, the same for the same fault."""

    number: int
    sentence: str
    details: str = ""


@dataclass(frozen=True)
class Result:
    """What came of a target: ``crashed`` inputs, and the different ``crashes``. ``slowest`` in seconds."""

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
    """Feed the target with the inputs from the number ``first`` on; those that crash are kept in ``kept``."""
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
    """One child, from its start to its end. ``ended`` is whether it did all that it was to do."""

    def __init__(self, target: Target, first: int, limit: Limit, shared: Any, hang: float) -> None:
        # Forked: a target may hold what cannot be sent to another process.
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe(duplex=False)
        shared[NUMBER] = first
        self._shared, self._hang, self.ended = shared, hang, False
        self._process = context.Process(target=_child, args=(target, first, limit, shared, theirs))
        self._process.start()
        theirs.close()

    def crashes(self) -> Iterator[Crash | None]:
        """Each crash as it comes, and None now and then."""
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
        except EOFError:  # without having said that it is done
            self._process.join()
            yield self._died(_ending(self._process.exitcode))
        finally:
            self._process.join()
            self._pipe.close()

    def stop(self) -> None:
        """End it now."""
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
    """The kind of an error, and the innermost place of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(PACKAGE)] or frames
    place = f"{os.path.relpath(ours[-1].filename, ROOT)}:{ours[-1].lineno}" if ours else "nowhere"
    return f"{type(error).__name__} at {place}"


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with status {code}"


def _told(target: Target, crash: Crash, kept: Path) -> str:
    """Keep the input, and say what happened and how to have it again."""
    made = target.make(Random(crash.number))
    kept.mkdir(parents=True, exist_ok=True)
    file = kept / f"{target.name}-{made.what}-{crash.number}"
    file.write_bytes(made.data)
    shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    again = f'make fuzz ARGS="{target.name} --seed {crash.number} --inputs 1"'
    return f"{crash.details}CRASH of {target.name}, {made.what}: {crash.sentence}; {shown}; {again}"
