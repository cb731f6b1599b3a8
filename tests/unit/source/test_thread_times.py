"""The time of threads that the engine adds up, beside the pieces of tests/model/thread_times.py."""

import struct
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kprobe_exporter.model.joins import Joins
from kprobe_exporter.model.record_layout import Field, Shape
from kprobe_exporter.model.records import Batch, Layout, Loss
from kprobe_exporter.model.stacks import Stack
from kprobe_exporter.model.thread_times import SchedulerEvent, ThreadState, ThreadTimesPlan, Watched
from kprobe_exporter.model.values import Arg
from tests.model.thread_times import Observed, ThreadTimes
from tests.support.page_material import STACKS, TID, Names, compiled
from tests.support.ring_buffer import GEOMETRY, Page, event
from tests.support.stacked_pages import kernel

RUNNING, WAITING, ASLEEP, UNKNOWN, RECLAIMING, THROTTLED = ThreadState
SLEEPING, PREEMPTED, DEAD = 1, 256, 32
CLONE_THREAD = 0x10000


def shape(number: int, *names: str, stack: bool = False) -> Shape:
    args = tuple(Arg(name, "int") for name in names)
    layout = Layout(number, f"p{number}", f"e{number}", "tracepoint", "", args, stack=stack)
    fields = tuple(Field("signed", 8 + 4 * place, 4) for place in range(len(names)))
    return Shape(number, layout, fields, TID, None, 8 + 4 * len(names))


SWITCH = shape(40, "prev", "next", "state", stack=True)
WAKING, CREATED, BORN = shape(41, "task", "to"), shape(42, "child", "flags"), shape(43, "task", "to")
MIGRATED, ENTERED, LEFT = shape(44, "task", "to"), shape(45), shape(46)
NAME_ROOM = 12


def throttles() -> Shape:
    """The event by which a CPU runs no thread of a cgroup any more: three numbers, and a name."""
    numbers = shape(47, "group", "to", "level")
    layout = replace(numbers.layout, args=(*numbers.layout.args, Arg("name", "str")))
    name = Field("text", numbers.size, NAME_ROOM)
    return numbers._replace(layout=layout, fields=(*numbers.fields, name), size=numbers.size + NAME_ROOM)


EVENTS = {
    40: SchedulerEvent("switched", ("prev", "next", "state")),
    41: SchedulerEvent("woken", ("task", "to")),
    42: SchedulerEvent("created", ("child", "flags")),
    43: SchedulerEvent("born", ("task", "to")),
    44: SchedulerEvent("migrated", ("task", "to")),
    45: SchedulerEvent("entered", ("common_pid",)),
    46: SchedulerEvent("left", ("common_pid",)),
    47: SchedulerEvent("throttled", ("group", "to", "level", "name")),
    48: SchedulerEvent("unthrottled", ("group", "to")),
}
SHAPES = [SWITCH, WAKING, CREATED, BORN, MIGRATED, ENTERED, LEFT, throttles(), shape(48, "group", "to")]


def numbers(kind: int, tid: int, *values: int) -> bytes:
    return event(kind, tid, struct.pack(f"={len(values)}i", *values))


class Threads:
    """Feeds an engine events of two CPUs, and adds up what it says of threads."""

    def __init__(self, *follows: str) -> None:
        self.parser = self.new_parser(*follows)
        self._follows = follows
        self._pages: dict[int, Page] = {}
        self.batch = Batch()
        self.hits: Counter[int] = Counter()

    @staticmethod
    def new_parser(*follows: str) -> compiled.PageParser:
        times = ThreadTimesPlan(EVENTS, frozenset(follows))  # type: ignore[arg-type]
        return compiled.PageParser(GEOMETRY, SHAPES, Names(), STACKS, joins=Joins(times=times))

    def watch(self, *threads: Watched) -> "Threads":
        self.parser.watch(threads)
        return self

    def add(self, time: int, *payloads: bytes, cpu: int = 0) -> None:
        for payload in payloads:
            self._pages.setdefault(cpu, Page(time)).add(time, payload)

    def switch(
        self, time: int, prev: int, after: int, state: int = SLEEPING, *stack: int, cpu: int = 0
    ) -> None:
        self.add(time, numbers(40, prev, prev, after, state), cpu=cpu)
        if stack:
            self.add(time, kernel(prev, *stack), cpu=cpu)

    def woken(self, time: int, tid: int, cpu: int = 0, to: int = 0) -> None:
        self.add(time, numbers(41, 1, tid, to), cpu=cpu)

    def throttled(self, time: int, group: int, cpu: int = 0, level: int = 2, name: bytes = b"job") -> None:
        payload = struct.pack(f"=3i{NAME_ROOM}s", group, cpu, level, name)
        self.add(time, event(47, 1, payload), cpu=cpu)

    def unthrottled(self, time: int, group: int, cpu: int = 0) -> None:
        self.add(time, numbers(48, 1, group, cpu), cpu=cpu)

    def read(self, until: int | None, *losses: Loss) -> None:
        for cpu, page in self._pages.items():
            self.parser.feed(page.render(), cpu)
        self._pages = {}
        batch = self.parser.take()
        batch.losses += losses
        self.parser.join(batch, until)
        self.batch.thread_times += batch.thread_times
        self.hits.update(batch.arrived)

    def until(self, now: int, *losses: Loss) -> dict[tuple[int, ThreadState, Stack | None], int]:
        """Return the nanoseconds of each thread by its state and stack, from the last call until now."""
        self.read(None, *losses)
        self.parser.cut_times(now)
        self.read(None)
        found: Counter[tuple[int, ThreadState, Stack | None]] = Counter()
        for one in self.batch.thread_times:
            other = one.reason.encode() or one.cgroup
            found[one.tid, one.state, (other,) if other else one.stack] += one.nanoseconds
        self.batch = Batch()
        return dict(found)


PIPE = (b"function_100",)
"""The stack of the address 0x1000."""


def test_a_cycle() -> None:
    threads = Threads().watch(Watched(7, 0))
    threads.switch(0, 3, 7)
    threads.switch(10, 7, 3, SLEEPING, 0x1000)
    threads.woken(30, 7)
    threads.switch(35, 3, 7)
    threads.switch(40, 7, 3, PREEMPTED, 0x1000)
    threads.switch(46, 3, 7)
    found = threads.until(50)
    assert found == {(7, RUNNING, None): 19, (7, ASLEEP, PIPE): 20, (7, WAITING, None): 11}
    assert threads.hits == {40: 5, 41: 1}
    assert threads.until(60) == {(7, RUNNING, None): 10}


def test_an_interval_cuts_a_sleep() -> None:
    threads = Threads().watch(Watched(7, 0, WAITING))
    threads.switch(10, 7, 0, SLEEPING, 0x1000)
    assert threads.until(100) == {(7, RUNNING, None): 10, (7, ASLEEP, PIPE): 90}
    threads.woken(130, 7)
    assert threads.until(140) == {(7, ASLEEP, PIPE): 30, (7, WAITING, None): 10}


def test_no_piece_is_later_than_the_events_that_were_joined() -> None:
    threads = Threads().watch(Watched(7, 0, WAITING))
    threads.switch(10, 7, 0, SLEEPING, 0x1000)
    threads.woken(130, 7)
    threads.read(100)
    threads.parser.cut_times(200)
    assert threads.until(140) == {
        (7, RUNNING, None): 10,
        (7, ASLEEP, PIPE): 120,
        (7, WAITING, None): 10,
    }


def test_a_thread_that_ends() -> None:
    threads = Threads().watch(Watched(7, 0, WAITING))
    threads.switch(10, 7, 0, DEAD)
    threads.switch(20, 0, 7)
    assert threads.until(100) == {(7, RUNNING, None): 10}
    assert threads.parser.watched() == set()


@pytest.mark.parametrize(
    ("follows", "flags", "expected"),
    [
        (("threads",), CLONE_THREAD, {(8, WAITING, None): 5, (8, RUNNING, None): 7}),
        (("threads",), 0, {}),
        (("processes",), 0, {(8, WAITING, None): 5, (8, RUNNING, None): 7}),
        (("processes",), CLONE_THREAD, {}),
        ((), 0, {}),
    ],
)
def test_new_threads(follows: tuple[str, ...], flags: int, expected: object) -> None:
    threads = Threads(*follows).watch(Watched(7, 1000))
    threads.add(30, numbers(42, 7, 8, flags))
    threads.add(40, numbers(43, 7, 8, 0))
    threads.switch(45, 3, 8)
    assert threads.until(52) == expected


def test_new_threads_of_others_are_not_followed() -> None:
    threads = Threads("threads", "processes").watch(Watched(7, 1000))
    threads.add(30, numbers(42, 6, 8, 0))
    threads.add(40, numbers(43, 7, 8, 0))
    assert threads.until(52) == {}


def test_all_threads_that_an_event_names() -> None:
    threads = Threads("all")
    threads.switch(10, 7, 8)
    threads.woken(30, 9)
    assert threads.until(40) == {(7, ASLEEP, None): 30, (8, RUNNING, None): 30, (9, WAITING, None): 10}


def test_a_thread_that_was_found_to_be_gone() -> None:
    threads = Threads().watch(Watched(7, 0))
    threads.switch(0, 3, 7)
    threads.read(None)
    threads.parser.end_thread(7, 30)
    threads.parser.end_thread(7, 40)
    assert threads.until(50) == {(7, UNKNOWN, None): 30}


def test_a_loss_leaves_the_state_unknown_until_the_first_event_after_it() -> None:
    threads = Threads().watch(Watched(7, 0), Watched(8, 0))
    threads.switch(0, 3, 7)
    threads.switch(0, 3, 8, cpu=1)
    threads.switch(20, 7, 3, SLEEPING, 0x1000)  # while the other CPU's events are lost
    threads.switch(40, 8, 3, SLEEPING, 0x1000, cpu=1)
    assert threads.until(50, Loss(1, 10, 30)) == {
        (7, RUNNING, None): 10,
        (7, UNKNOWN, None): 40,
        (8, RUNNING, None): 10,
        (8, UNKNOWN, None): 30,
        (8, ASLEEP, PIPE): 10,
    }
    threads.watch(Watched(7, 0, ASLEEP, 50, "pipe"))
    assert threads.until(60) == {(7, ASLEEP, (b"pipe",)): 10, (8, ASLEEP, PIPE): 10}


def test_a_later_loss_that_ends_earlier_leaves_the_first_one_as_it_was() -> None:
    threads = Threads().watch(Watched(7, 0))
    threads.switch(10, 3, 7)
    assert threads.until(15, Loss(1, 12, 60)) == {(7, UNKNOWN, None): 13, (7, RUNNING, None): 2}
    threads.switch(30, 7, 3, SLEEPING, 0x1000)  # its state is unknown again until 60
    assert threads.until(50, Loss(0, 20, 25)) == {(7, UNKNOWN, None): 35}


def test_what_happened_while_nothing_was_recorded_is_unknown() -> None:
    threads = Threads().watch(Watched(7, 0))
    threads.switch(10, 3, 7)
    threads.read(None)
    threads.parser.lose_times(30)
    assert threads.until(40) == {(7, UNKNOWN, None): 40}
    threads.switch(50, 7, 3, SLEEPING, 0x1000)
    assert threads.until(60) == {(7, UNKNOWN, None): 10, (7, ASLEEP, PIPE): 10}


def test_a_reload_goes_on() -> None:
    threads = Threads().watch(Watched(7, 0, ASLEEP, 0, "lock"))
    assert threads.until(10) == {(7, ASLEEP, (b"lock",)): 10}
    parser = threads.new_parser()
    parser.resume_from(threads.parser)
    threads.parser = parser
    threads.watch(Watched(8, 10, ASLEEP, 10, "pipe"))
    threads.woken(15, 7)
    assert threads.until(20) == {
        (7, ASLEEP, (b"lock",)): 5,
        (7, WAITING, None): 5,
        (8, ASLEEP, (b"pipe",)): 10,
    }


def test_a_parser_that_adds_up_no_time_ignores_threads() -> None:
    """A reload may come between a look at threads and its end."""
    parser = compiled.PageParser(GEOMETRY, [WAKING], Names(), STACKS)
    parser.watch([Watched(7, 0)])
    parser.end_thread(7, 5)
    parser.cut_times(5)
    parser.lose_times(5)
    assert parser.watched() == set()


def test_reclaim_while_running() -> None:
    """A sleep in it is a sleep, and what follows is a reclaim again."""
    threads = Threads().watch(Watched(7, 0))
    threads.switch(0, 3, 7)
    threads.add(10, event(45, 7, b""))
    threads.switch(14, 7, 3, SLEEPING, 0x1000)
    threads.woken(20, 7)
    threads.switch(21, 3, 7)
    threads.add(23, event(46, 7, b""))
    assert threads.until(30) == {
        (7, RUNNING, None): 10 + 7,
        (7, RECLAIMING, None): 4 + 2,
        (7, ASLEEP, PIPE): 6,
        (7, WAITING, None): 1,
    }


def test_a_loss_ends_a_reclaim() -> None:
    threads = Threads().watch(Watched(7, 0))
    threads.switch(0, 3, 7)
    threads.add(10, event(45, 7, b""))
    threads.read(None)
    assert threads.until(20, Loss(0, 12, 15)) == {
        (7, RUNNING, None): 10,
        (7, RECLAIMING, None): 2,
        (7, UNKNOWN, None): 8,
    }
    threads.switch(30, 7, 3)
    threads.switch(32, 3, 7)
    assert threads.until(40)[7, RUNNING, None] == 8


JOB = (b"2:job",)


def waiting(time: int = 10) -> Threads:
    """A thread that waits for CPU 0 since a moment."""
    threads = Threads().watch(Watched(7, 0))
    threads.switch(0, 3, 7)
    threads.switch(time, 7, 3, PREEMPTED)
    return threads


def test_wait_in_a_throttled_cgroup() -> None:
    threads = waiting()
    threads.throttled(20, 1)
    threads.throttled(22, 9, cpu=1)  # another CPU's
    threads.unthrottled(60, 1)
    threads.switch(70, 3, 7)
    assert threads.until(80) == {
        (7, RUNNING, None): 20,
        (7, WAITING, None): 60,
        (7, THROTTLED, JOB): 40,
    }


def test_cgroup_that_is_throttled_twice_over() -> None:
    """By its own quota and by that of a cgroup above; and an end whose beginning was not seen."""
    threads = waiting()
    threads.unthrottled(11, 1)
    threads.throttled(20, 1)
    threads.throttled(25, 1)
    threads.unthrottled(30, 1)
    threads.unthrottled(35, 1)
    threads.throttled(50, 1)
    threads.switch(60, 3, 7)
    assert threads.until(60)[7, THROTTLED, JOB] == 15 + 10


def test_interval_cuts_a_throttle() -> None:
    threads = waiting()
    threads.throttled(20, 1)
    assert threads.until(40) == {
        (7, RUNNING, None): 10,
        (7, WAITING, None): 30,
        (7, THROTTLED, JOB): 20,
    }
    threads.unthrottled(45, 1)
    assert threads.until(50) == {(7, WAITING, None): 10, (7, THROTTLED, JOB): 5}
    assert threads.until(60) == {(7, WAITING, None): 10}


def test_thread_that_moves_to_another_cpu() -> None:
    threads = waiting()
    threads.throttled(20, 1)
    threads.add(30, numbers(44, 1, 7, 1))
    threads.throttled(40, 1, cpu=1)
    threads.switch(50, 3, 7, cpu=1)
    assert threads.until(50)[7, THROTTLED, JOB] == 10 + 10


def test_thread_that_is_woken_for_another_cpu() -> None:
    threads = Threads().watch(Watched(7, 0))
    threads.switch(0, 7, 3, SLEEPING, 0x1000)
    threads.throttled(5, 1, cpu=1)
    threads.woken(10, 7, to=1)
    threads.switch(20, 3, 7, cpu=1)
    assert threads.until(20) == {(7, ASLEEP, PIPE): 10, (7, WAITING, None): 10, (7, THROTTLED, JOB): 10}


def test_loss_ends_all_throttles() -> None:
    threads = waiting()
    threads.throttled(20, 1)
    threads.read(None)
    assert threads.until(40, Loss(0, 25, 30))[7, THROTTLED, JOB] == 5
    threads.switch(50, 3, 7)
    threads.switch(52, 7, 3, PREEMPTED)
    assert (7, THROTTLED, JOB) not in threads.until(60)


def test_throttle_whose_end_was_not_seen() -> None:
    second = 1_000_000_000
    threads = waiting()
    threads.throttled(20, 1)
    assert threads.until(20 + 10 * second)[7, THROTTLED, JOB] == 10 * second
    threads.unthrottled(40 + 10 * second, 1)
    threads.throttled(60 + 10 * second, 1)
    assert threads.until(70 + 10 * second) == {(7, WAITING, None): 50, (7, THROTTLED, JOB): 10}


@given(st.randoms(use_true_random=True))
@settings(deadline=None, max_examples=100)
def test_drawn_throttles(random: Random) -> None:
    """A part is the nanoseconds in which a thread waits, and the cgroup is throttled on its CPU."""
    threads, expected = waiting(1), Counter[tuple[bytes, ...]]()
    waits, held, now = True, Counter[tuple[int, int]](), 1
    for _ in range(random.randrange(60)):
        passed = random.randrange(1, 5)
        for group in (1, 2):
            if waits and held[group, 0] > 0:
                expected[b"%d:job" % group,] += passed
        now += passed
        group, cpu, kind = random.choice([1, 2]), random.randrange(2), random.choice("tuwc")
        if kind == "t":
            threads.throttled(now, group, cpu, level=group)
            held[group, cpu] += 1
        elif kind == "u" and held[group, cpu]:
            threads.unthrottled(now, group, cpu)
            held[group, cpu] -= 1
        elif kind == "w":
            threads.switch(now, *((3, 7) if waits else (7, 3)), PREEMPTED)
            waits = not waits
        elif kind == "c":
            threads.read(None)
            threads.parser.cut_times(now)
    found = threads.until(now)
    assert {key[2]: value for key, value in found.items() if key[1] is THROTTLED} == +expected
    assert sum(value for key, value in found.items() if key[1] is not THROTTLED) == now


KINDS = ("away", "preempted", "dead", "to", "woken", "born", "cut")


@given(st.randoms(use_true_random=True), st.integers(0, 80), st.booleans())
@settings(deadline=None, max_examples=200)
def test_drawn_events(random: Random, steps: int, observed: bool) -> None:
    """Whatever comes, the parts add up, and they are those of the model."""
    threads, expected = Threads("threads", "processes"), Counter[tuple[int, ThreadState, Stack | None]]()
    names = {"running": (RUNNING, None), "waiting_for_cpu": (WAITING, None), "unaccounted": (UNKNOWN, None)}

    def add(tid: int, class_: str, nanoseconds: int) -> None:
        if nanoseconds:
            expected[tid, *names.get(class_, (ASLEEP, (class_.encode(),)))] += nanoseconds

    model, now = ThreadTimes(add), 0
    for tid in (7, 8, 9):
        moment = random.randrange(30)
        seen = random.choice([None, Observed(moment, "lock"), Observed(moment, ran=5)])
        if not observed or seen is None:
            model.watch(tid, 0)
            threads.watch(Watched(tid, 0))
        else:
            model.watch(tid, 0, seen)
            known = ASLEEP if seen.class_ else WAITING
            threads.watch(Watched(tid, 0, known, seen.at, seen.class_ or ""))
    for _ in range(steps):
        now += random.randrange(4)
        tid, cpu, kind = random.choice([7, 8, 9]), random.randrange(2), random.choice(KINDS)
        if kind in ("away", "preempted", "dead"):
            state = {"away": SLEEPING, "preempted": PREEMPTED, "dead": DEAD}[kind]
            stack = random.choice([0x1000, 0x2000])
            threads.switch(now, tid, 0, state, stack, cpu=cpu)
            model.switched_away(tid, now, state, f"function_{stack >> 4:x}")
        elif kind == "to":
            threads.switch(now, 0, tid, cpu=cpu)
            model.switched_to(tid, now)
        elif kind == "woken":
            threads.woken(now, tid, cpu=cpu)
            model.woken(tid, now)
        elif kind == "born" and tid not in model and 7 in model:
            threads.add(now, numbers(42, 7, tid, 0), numbers(43, 1, tid, 0), cpu=cpu)
            model.born(tid, now)
        elif kind == "cut":
            threads.read(None)
            threads.parser.cut_times(now)
            model.flush(now)
        now += 1
    model.flush(now)
    assert threads.until(now) == dict(expected)
