"""rate_limit: a probe that fires too often for some time is tripped, and retried after growing pauses."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.agent.rate_limit import (
    BURST,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    RECOVERED,
    Budget,
    Trip,
    Verdict,
    firings,
)


class Watch:
    """A budget that is watched once a second."""

    def __init__(self, limits: Mapping[str, float | None], limit: float | None = None) -> None:
        self.now = 1000.0
        self.limits = limits
        self.hits = dict.fromkeys(limits, 5)
        self.limit = limit
        self.budget = Budget()
        self.off: set[str] = set()
        self.critical: set[str] = set()
        self.shares: dict[str, float] | None = None
        self.budget.watch(self.now, self.hits, limits, limit)

    def second(self, **rates: int) -> Verdict:
        """Let one second pass, in which each probe that is on fires at its rate."""
        self.now += 1
        for name, rate in rates.items():
            if name not in self.off:
                self.hits[name] += rate
        verdict = self.budget.watch(
            self.now, self.hits, self.limits, self.limit, critical=self.critical, shares=self.shares
        )
        self.off |= {trip.probe for trip in verdict.tripped}
        self.off -= set(verdict.again)
        return verdict

    def until_tripped(self, **rates: int) -> tuple[int, Trip]:
        for seconds in range(1, 1000):
            if tripped := self.second(**rates).tripped:
                [trip] = tripped
                return seconds, trip
        raise AssertionError("never")

    def until_again(self) -> int:
        for seconds in range(1, 1000):
            if self.second().again:
                return seconds
        raise AssertionError("never")


@pytest.mark.parametrize(
    ("rate", "one_in"), [(5000, 8), (8000, 8), (8001, 16), (100_000, 128), (10**9, 1024)]
)
def test_a_critical_probe_is_sampled_for_the_shortest_pause_each_time(rate: int, one_in: int) -> None:
    watch = Watch({"a": 1000})
    watch.critical = {"a"}
    for _ in range(3):
        assert watch.until_tripped(a=rate)[1] == Trip("a", rate, 1000, FIRST_PAUSE, one_in=one_in)
        assert watch.until_again() == FIRST_PAUSE


def test_a_critical_probe_that_fires_most_of_all_is_sampled_by_its_own_rate() -> None:
    watch = Watch({"a": None, "b": None}, limit=1000)
    watch.critical = {"a"}
    _, trip = watch.until_tripped(a=30_000, b=500)
    assert trip == Trip("a", 30_500, 1000, FIRST_PAUSE, 30_000, 32)
    assert str(trip).endswith("for 10 s only the events of one thread in 32 are recorded")


@pytest.mark.parametrize(("rate", "seconds"), [(1010, 301), (1500, 7), (2000, 4), (4000, 2), (10_000, 1)])
def test_the_more_the_sooner(rate: int, seconds: int) -> None:
    assert Watch({"a": 1000}).until_tripped(a=rate) == (seconds, Trip("a", rate, 1000, FIRST_PAUSE))


def test_at_the_limit_for_ever() -> None:
    watch = Watch({"a": 1000})
    assert not any(watch.second(a=1000).tripped for _ in range(5000))


def test_a_burst_is_put_up_with_and_again_after_a_while() -> None:
    watch = Watch({"a": 1000})
    for _ in range(10):
        assert not watch.second(a=3500).tripped
        for _ in range(3):
            watch.second(a=0)


def test_pauses_grow_to_the_longest_and_start_anew_after_a_good_time() -> None:
    watch, pauses = Watch({"a": 1000}), []
    for _ in range(9):
        pauses.append(watch.until_tripped(a=50_000)[1].pause)
        assert watch.until_again() == pauses[-1]
    assert pauses == [10, 20, 40, 80, 160, 320, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    for _ in range(int(RECOVERED) + 1):
        watch.second(a=10)
    assert watch.until_tripped(a=50_000)[1].pause == FIRST_PAUSE


def test_one_without_a_limit() -> None:
    watch = Watch({"a": None})
    assert not any(watch.second(a=10**9).tripped for _ in range(50))


def test_of_all_together_the_one_that_fires_most_goes_one_at_a_time() -> None:
    watch = Watch({"a": None, "b": 5000, "c": None}, 1000)
    _, trip = watch.until_tripped(a=600, b=1800, c=300)
    assert trip == Trip("b", 2700, 1000, FIRST_PAUSE, most=1800)
    assert "this one fired most, 1,800 times" in str(trip)
    for _ in range(int(FIRST_PAUSE)):
        assert not watch.second(a=600, b=1800, c=300).tripped
    assert watch.until_tripped(a=600, b=1800, c=300)[1].probe == "b"


def test_when_one_goes_for_its_own_limit_the_others_are_looked_at_without_it() -> None:
    watch = Watch({"a": None, "b": 1000}, 2000)
    assert watch.second(a=1000, b=50_000).tripped == (Trip("b", 50_000, 1000, FIRST_PAUSE),)
    assert not any(watch.second(a=1000, b=50_000).tripped for _ in range(9))


def test_late_hits_of_a_tripped_probe_trip_no_other() -> None:
    """The kernel takes some time to disable a probe; what fires until then is in the next reading."""
    watch = Watch({"loud": None, "quiet": None}, 2000)
    assert watch.until_tripped(loud=100_000, quiet=10)[1].probe == "loud"
    watch.hits["loud"] += 50_000
    assert not watch.second(quiet=10).tripped


def test_unknown_for_a_while() -> None:
    watch = Watch({"a": 1000})
    watch.now += 20
    assert watch.budget.watch(watch.now, {}, watch.limits) == Verdict()
    assert not watch.second(a=20_000).tripped


def test_counts_begin_where_they_are() -> None:
    budget = Budget()
    assert budget.watch(5, {"a": 10**9}, {"a": 10}, 10) == Verdict()
    assert budget.watch(6, {"a": 10**9 + 5, "b": 10**9}, {"a": 10, "b": 10}, 10) == Verdict()


@pytest.mark.parametrize("limit", [None, 100_000.0])
def test_a_higher_limit_is_tried_at_once(limit: float | None) -> None:
    watch = Watch({"a": 1000})
    watch.until_tripped(a=50_000)
    watch.limits = {"a": limit}
    assert watch.second() == Verdict(again=("a",))
    assert not any(watch.second(a=90_000).tripped for _ in range(10))


def test_a_lower_limit_changes_nothing_about_a_pause() -> None:
    watch = Watch({"a": 1000})
    assert watch.until_tripped(a=50_000)[1].pause == FIRST_PAUSE
    assert watch.until_again() == FIRST_PAUSE
    assert watch.until_tripped(a=50_000)[1].pause == 2 * FIRST_PAUSE
    watch.limits = {"a": 10}
    assert watch.until_again() == 2 * FIRST_PAUSE
    assert watch.until_tripped(a=20)[1] == Trip("a", 20, 10, 4 * FIRST_PAUSE)


def test_another_limit_counts_on() -> None:
    watch = Watch({"a": 100_000})
    watch.limits = {"a": 1000}
    assert watch.second(a=5000).tripped == (Trip("a", 5000, 1000, FIRST_PAUSE),)


def test_a_higher_limit_of_all_tries_those_that_it_had_switched_off() -> None:
    watch = Watch({"a": 1000, "b": None}, 2000)
    assert watch.until_tripped(a=50_000)[1].probe == "a"
    assert watch.until_tripped(b=50_000)[1].probe == "b"
    watch.limit = 1000
    assert watch.second() == Verdict()
    watch.limit = None
    assert watch.second() == Verdict(again=("b",))


def test_a_removed_one_is_forgotten_and_another_limit_begins_anew() -> None:
    watch = Watch({"a": 1000})
    watch.until_tripped(a=50_000)
    watch.limits = {}
    assert watch.second() == Verdict()
    watch.limits, watch.off = {"a": 100_000}, set()
    watch.second(a=0)
    assert not watch.second(a=90_000).tripped


def test_a_probe_that_was_enabled_elsewhere() -> None:
    watch = Watch({"a": 1000})
    watch.until_tripped(a=50_000)
    watch.off = set()
    watch.now += 1
    assert watch.budget.watch(watch.now, watch.hits, watch.limits, up=["a", "b"]) == Verdict()
    assert not watch.second(a=3500).tripped
    assert watch.second(a=3500).tripped[0].pause == 2 * FIRST_PAUSE


def test_another_limit_of_all() -> None:
    watch = Watch({"a": None}, 10)
    watch.limit = None
    assert not watch.second(a=10**6).tripped
    watch.limit = 10
    assert watch.second(a=10**6).tripped


@pytest.mark.parametrize(
    ("share", "cost", "cpus", "rate"),
    [(0.01, 180e-9, 2, 111_111), (0.01, 180e-9, 64, 3_555_556), (0.005, 3e-6, 1, 1667), (0.01, 0.0, 4, None)],
)
def test_a_share_of_time_in_firings(share: float, cost: float, cpus: int, rate: int | None) -> None:
    found = firings(share, cost, cpus)
    assert (found if found is None else round(found)) == rate


def test_of_all_together_the_one_that_takes_most_time_goes() -> None:
    """By time, few firings of an expensive probe are more than many of a cheap one."""
    watch = Watch({"a": None, "b": None}, 0.02)
    watch.shares = {"a": 1e-6, "b": 1e-8}
    assert not any(watch.second(a=10_000, b=1_000_000).tripped for _ in range(100))
    _, trip = watch.until_tripped(a=50_000, b=1_000_000)
    assert (trip.probe, trip.limit, trip.pause, trip.of_time) == ("a", 0.02, FIRST_PAUSE, True)
    assert trip.rate == pytest.approx(0.06)
    assert trip.most == pytest.approx(0.05)
    assert str(trip) == (
        "all probes together took an estimated 6 % of the CPUs' time, and their limit is 2 %;"
        " this one took most, 5 %: it is off for 10 s"
    )


def test_a_critical_probe_that_takes_most_time_is_sampled_by_its_own_share() -> None:
    watch = Watch({"a": None}, 0.02)
    watch.shares, watch.critical = {"a": 1e-6}, {"a"}
    assert watch.until_tripped(a=500_000)[1].one_in == 32


@given(st.lists(st.integers(0, 5000), max_size=200), st.integers(1, 3000))
def test_any_course(rates: list[int], limit: int) -> None:
    """Between two trips, firings do not exceed the bucket's tokens; a probe within its limit never trips."""
    watch = Watch({"a": limit})
    fired, seconds = 0, 0
    for rate in rates:
        on = "a" not in watch.off
        verdict = watch.second(a=rate)
        if not on:
            fired, seconds = 0, 0
            continue
        fired, seconds = fired + rate, seconds + 1
        if verdict.tripped:
            assert max(rates) > limit
        else:
            assert fired <= limit * (seconds + BURST)
