"""A record gets the wall time of its own moment, even if the clocks were changed since."""

import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.export.otlp.clock import MOST_SAMPLES, WallClock

SECOND = 1_000_000_000
EPOCH = 1_700_000_000 * SECOND


@dataclass
class Machine:
    """Two clocks. ``step`` moves the wall clock alone, as setting it does, or a suspend."""

    monotonic: int = 50 * SECOND
    wall: int = EPOCH

    def pass_time(self, seconds: float) -> None:
        self.monotonic += round(seconds * SECOND)
        self.wall += round(seconds * SECOND)

    def step(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND)

    def clock(self) -> WallClock:
        return WallClock(lambda: self.monotonic, lambda: self.wall)


def test_nanoseconds_stay_what_they_are() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.unix_ns(50 * SECOND + 1) == EPOCH + 1
    assert clock.unix_ns(50 * SECOND - 1) == EPOCH - 1
    assert clock.now() == EPOCH


@pytest.mark.parametrize("change", [3600.0, -3600.0, 0.002], ids=["suspended or set", "set back", "slewed"])
def test_what_was_before_a_change_stays_and_what_is_after_it_follows(change: float) -> None:
    machine = Machine()
    clock = machine.clock()
    before, then = machine.monotonic, machine.wall
    machine.pass_time(5)
    clock.refresh()
    late, shown = machine.monotonic, machine.wall
    machine.step(change)
    machine.pass_time(5)
    assert clock.unix_ns(machine.monotonic - 1) == machine.wall - 1
    assert clock.unix_ns(before) == then
    assert clock.unix_ns(late) == shown
    assert clock.unix_ns(late + 2 * SECOND) == shown + 2 * SECOND
    assert clock.unix_ns(machine.monotonic - 2 * SECOND) == machine.wall - 2 * SECOND


def test_an_event_after_a_long_silence_has_the_time_of_now() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.pass_time(3600)
    machine.step(-7200)
    assert clock.unix_ns(machine.monotonic - SECOND // 10) == machine.wall - SECOND // 10


def test_the_clocks_are_looked_at_once_a_second() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.pass_time(0.999)
    machine.step(60)
    assert clock.unix_ns(machine.monotonic) == machine.wall - 60 * SECOND
    machine.pass_time(0.001)
    assert clock.unix_ns(machine.monotonic) == machine.wall


def test_a_read_that_is_interrupted_is_outvoted() -> None:
    """One of three reads of the wall clock takes 1 ms of the records' clock; the median ignores it."""
    monotonic, reads = [0], [0]

    def wall() -> int:
        reads[0] += 1
        if reads[0] == 2:
            monotonic[0] += 1_000_000
            return EPOCH + monotonic[0] - 1_000_000
        return EPOCH + monotonic[0]

    assert WallClock(lambda: monotonic[0], wall).unix_ns(5) == EPOCH + 5


def test_the_samples_are_bounded_and_the_oldest_serves_for_what_is_older() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(MOST_SAMPLES + 100):
        machine.pass_time(1)
        machine.step(1)
        clock.refresh()
    assert len(clock._samples) == MOST_SAMPLES
    oldest = clock._samples[0]
    assert clock.unix_ns(1) == 1 + oldest.offset


@given(st.lists(st.tuples(st.floats(1, 100), st.sampled_from([-3600.0, -1.5, 0.0, 0.0005, 86_400.0]))))
def test_every_moment_at_which_it_looked_is_exact_for_ever(changes: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    seen = []
    for seconds, step in changes:
        machine.pass_time(seconds)
        machine.step(step)
        clock.refresh()
        seen.append((machine.monotonic, machine.wall))
    assert all(clock.unix_ns(moment) == wall for moment, wall in seen)


def test_the_real_clocks() -> None:
    clock = WallClock()
    before = clock.now()
    assert before - SECOND < clock.unix_ns(time.monotonic_ns()) < before + 10 * SECOND
