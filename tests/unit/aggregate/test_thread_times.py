"""aggregate.thread_times: the pieces of a thread's time, what contradicts itself, losses, and the sum."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.stack_classes import RUNNING, UNACCOUNTED, WAITING
from tests.model.thread_times import MIN_RUN_NS, Observed, ThreadTimes, Totals

TID = 7
ASLEEP, PREEMPTED, DEAD = 1, 256, 32


class Case:
    """The times of one thread, which is watched from the moment 0."""

    def __init__(self, observed: Observed | None = None, *, watched: bool = True) -> None:
        self.found: Counter[str] = Counter()
        self.times = ThreadTimes(self.add)
        if watched:
            self.times.watch(TID, 0, observed)

    def add(self, tid: int, class_: str, nanoseconds: int) -> None:
        assert tid == TID
        assert nanoseconds >= 0
        self.found[class_] += nanoseconds

    def away(self, time: int, state: int = ASLEEP, class_: str = "pipe") -> None:
        self.times.switched_away(TID, time, state, class_)

    def to(self, time: int) -> None:
        self.times.switched_to(TID, time)

    def woken(self, time: int) -> None:
        self.times.woken(TID, time)

    def until(self, time: int, ran: int | None = None) -> dict[str, int]:
        self.times.flush(time, lambda _: ran)
        return {name: number for name, number in self.found.items() if number}


def running() -> Case:
    """A thread that has a CPU since the moment 0."""
    case = Case()
    case.to(0)
    return case


def test_a_cycle() -> None:
    case = running()
    case.away(10)
    case.woken(30)
    case.to(35)
    case.away(40, PREEMPTED)
    case.to(46)
    assert case.until(50) == {RUNNING: 10 + 5 + 4, "pipe": 20, WAITING: 5 + 6}


def test_an_interval_cuts_a_sleep() -> None:
    case = running()
    case.away(10)
    assert case.until(100) == {RUNNING: 10, "pipe": 90}
    case.found.clear()
    case.woken(130)
    assert case.until(130) == {"pipe": 30}


def test_a_thread_that_ends() -> None:
    case = running()
    case.away(10, DEAD)
    assert TID not in case.times
    case.to(20)
    assert case.until(100) == {RUNNING: 10}


def test_a_new_thread_waits_for_its_first_cpu() -> None:
    case = Case(watched=False)
    case.times.born(TID, 40)
    case.to(45)
    assert case.until(50) == {WAITING: 5, RUNNING: 5}


def test_both_events_of_a_wake_up() -> None:
    """sched_wakeup follows sched_waking, and is alone if the thread was still on its way off the CPU."""
    case = running()
    case.woken(9)
    case.away(10)
    case.woken(11)
    case.woken(12)
    case.to(20)
    assert case.until(20) == {RUNNING: 10, "pipe": 1, WAITING: 9}


def test_a_thread_with_a_pending_signal_stays_runnable() -> None:
    case = running()
    case.away(10)
    case.to(12)
    assert case.until(15) == {RUNNING: 13, WAITING: 2}


class TestContradictions:
    def test_a_cpu_is_left_twice(self) -> None:
        case = running()
        case.away(10)
        case.away(30)
        assert case.until(40) == {RUNNING: 10, UNACCOUNTED: 20, "pipe": 10}

    def test_a_cpu_is_had_twice(self) -> None:
        case = running()
        case.to(30)
        assert case.until(40) == {UNACCOUNTED: 30, RUNNING: 10}

    def test_a_sleep_without_a_stack(self) -> None:
        case = running()
        case.away(10, class_=UNACCOUNTED)
        case.woken(30)
        assert case.until(40) == {RUNNING: 10, UNACCOUNTED: 20, WAITING: 10}

    def test_times_that_fall(self) -> None:
        case = running()
        case.away(30)
        case.woken(20)
        case.to(25)
        assert case.until(40) == {RUNNING: 40}

    def test_a_thread_that_left_the_scope(self) -> None:
        case = running()
        case.times.left(TID, 30)
        case.times.left(TID, 40)
        assert case.until(50) == {UNACCOUNTED: 30}


class TestLosses:
    def test_until_the_next_event(self) -> None:
        case = running()
        case.times.lost(10)
        case.away(40)
        assert case.until(50) == {RUNNING: 10, UNACCOUNTED: 30, "pipe": 10}

    def test_a_wake_up(self) -> None:
        case = running()
        case.away(10)
        case.times.lost(20)
        case.woken(30)
        assert case.until(40) == {RUNNING: 10, "pipe": 10, UNACCOUNTED: 10, WAITING: 10}

    def test_before_the_first_event(self) -> None:
        case = Case(Observed(1, "lock"))
        case.times.lost(20)
        case.woken(30)
        assert case.until(30) == {"lock": 20, UNACCOUNTED: 10}


class TestStart:
    """The state of a thread at the start follows from its first event, and from /proc."""

    def test_who_leaves_a_cpu_has_been_running(self) -> None:
        case = Case(Observed(5, None, 100))
        case.away(10)
        assert case.until(10) == {RUNNING: 10}

    def test_who_gets_a_cpu_has_been_waiting(self) -> None:
        case = Case(Observed(5, None, 100))
        case.to(10)
        assert case.until(10) == {WAITING: 10}

    def test_who_is_woken_has_slept(self) -> None:
        case = Case(Observed(5, "network"))
        case.woken(10)
        assert case.until(10) == {"network": 10}

    def test_a_sleep_that_ended_before_it_was_seen(self) -> None:
        """What /proc shows later may be another sleep."""
        case = Case(Observed(50, "network"))
        case.woken(10)
        case.to(12)
        case.away(20)
        assert case.until(30) == {UNACCOUNTED: 10, WAITING: 2, RUNNING: 8, "pipe": 10}

    def test_who_wakes_itself_has_not_slept(self) -> None:
        case = Case(Observed(5, None, 100))
        case.woken(10)
        case.away(20)
        assert case.until(20) == {RUNNING: 20}

    def test_a_thread_of_which_nothing_is_known(self) -> None:
        case = Case()
        assert case.until(10) == {UNACCOUNTED: 10}
        case.woken(30)
        assert case.until(35) == {UNACCOUNTED: 30, WAITING: 5}

    def test_seen_asleep_and_then_on_a_cpu(self) -> None:
        case = Case(Observed(5, "network"))
        case.away(10)
        assert case.until(10) == {UNACCOUNTED: 10}

    def test_a_sleep_through_all(self) -> None:
        assert Case(Observed(5, "network")).until(100) == {"network": 100}

    @pytest.mark.parametrize(
        ("ran", "expected"), [(1_000, WAITING), (9_000, RUNNING), (None, UNACCOUNTED)], ids=str
    )
    def test_no_event_at_all(self, ran: int | None, expected: str) -> None:
        """It has had a CPU all the time, or never: what /proc says of its run time tells which."""
        case = Case(Observed(5, None, 1_000))
        end = 2 * MIN_RUN_NS
        assert case.until(end, ran) == {expected: end}

    def test_too_early_to_tell(self) -> None:
        case = Case(Observed(5, None, 1_000))
        assert case.until(100, 1_000) == {UNACCOUNTED: 100}
        case.away(200)
        assert case.until(200) == {UNACCOUNTED: 100, RUNNING: 100}


STEPS = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.sampled_from(["away", "preempted", "to", "woken", "lost", "flush"]),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from([None, Observed(3), Observed(3, "lock"), Observed(3, None, 5)]))
def test_the_classes_add_up(steps: list[tuple[int, str]], observed: Observed | None) -> None:
    """Whatever the events, all of the thread's time has a class, once."""
    case, now = Case(observed), 0
    for passed, step in steps:
        now += passed
        if step == "lost":
            case.times.lost(now)
        elif step == "flush":
            assert sum(case.until(now).values()) == now
        elif step == "preempted":
            case.away(now, PREEMPTED)
        else:
            {"away": case.away, "to": case.to, "woken": case.woken}[step](now)
    assert sum(case.until(now).values()) == now


def test_totals_by_labels() -> None:
    totals = Totals(lambda tid: ("even" if tid % 2 == 0 else "odd",))
    for tid in (1, 2, 3):
        totals.add(tid, RUNNING, tid)
    totals.add(3, "pipe", 10)
    by_class, of_all = totals.take()
    assert by_class == {("odd", RUNNING): 4, ("even", RUNNING): 2, ("odd", "pipe"): 10}
    assert of_all == {("odd",): 14, ("even",): 2}
    assert totals.take() == ({}, {})
