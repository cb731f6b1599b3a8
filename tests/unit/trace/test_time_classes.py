"""`tool time`: which threads are watched, their labels, the classes of an interval, and /proc."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from kprobe_exporter.aggregate.stack_classes import class_of_seen
from kprobe_exporter.errors import UsageError
from kprobe_exporter.identity.thread_files import ThreadFiles
from kprobe_exporter.identity.threads import CLONE_THREAD
from kprobe_exporter.model.records import Batch, Join, Layout, Record
from kprobe_exporter.model.thread_times import ThreadState, ThreadTime, Watched
from kprobe_exporter.model.values import Arg
from kprobe_exporter.probing.scope import Scope
from kprobe_exporter.tools.load import FOLDER, load_tool
from kprobe_exporter.trace.class_table import families, fetching, show_classes
from kprobe_exporter.trace.rows import Display
from kprobe_exporter.trace.run_tool import read_tool
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.threads_in_scope import ScopeOfThreads
from kprobe_exporter.trace.time_classes import FIELDS, MIN_RUN_NS, NEW, RENAMED, TimeClasses

RUNNING, WAITING, ASLEEP, UNKNOWN, *_ = ThreadState
MAIN, OTHER_THREAD, NEWCOMER = 7, 8, 20
START = 1_000
SCHEDULER = ("sched_switch", "sched_waking", "sched_wakeup_new")
NUMBERS = {name: number for number, name in enumerate([*SCHEDULER, *FIELDS])}


def layout(name: str) -> Layout:
    args = tuple(Arg(field, "int") for field in FIELDS.get(name, ()))
    return Layout(NUMBERS[name], name, name, "tracepoint", name, args)


JOIN = Join(
    Layout(9, "time", "time", "joined", ""), tuple(map(layout, SCHEDULER[:-1])), layout(SCHEDULER[-1]), "time"
)


class Files(ThreadFiles):
    """The process MAIN with the threads MAIN and OTHER_THREAD, in these states."""

    def __init__(self, **states: ThreadState) -> None:
        super().__init__(None, class_of_seen)
        self._states, self.dead, self.run_time = states, set[int](), 5

    def observed(self, tid: int, since: int) -> Watched:
        state = self._states.get(f"thread_{tid}", ASLEEP)
        return Watched(tid, since, state, since, "pipe" if state is ASLEEP else "")

    def ran(self, tid: int) -> int | None:
        return self.run_time

    def lives(self, tid: int) -> bool:
        return tid not in self.dead

    def process(self, tid: int) -> int:
        return MAIN if tid in (MAIN, OTHER_THREAD) else tid

    def name(self, tid: int) -> bytes:
        return b"started"


class Members:
    """A scope with MAIN and OTHER_THREAD in it."""

    follows = frozenset(("threads", "processes"))

    def __init__(self) -> None:
        self.listed = {MAIN, OTHER_THREAD}

    def threads(self) -> set[int]:
        return {*self.listed}


class Watcher:
    """Stands for a source: the threads that it watches, and its calls."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.calls: list[tuple[object, ...]] = []

    def watch(self, threads: Iterable[Watched]) -> None:
        for one in threads:
            self.threads.add(one.tid)
            self.calls.append(("watch", one))

    def watched(self) -> set[int]:
        return {*self.threads}

    def end_thread(self, tid: int, now: int) -> None:
        self.threads.discard(tid)
        self.calls.append(("end", tid, now))

    def cut_times(self, now: int) -> None:
        self.calls.append(("cut", now))

    def lose_times(self, until: int) -> None:
        self.calls.append(("lose", until))


class Stream:
    """The classes that batches become."""

    def __init__(self, *labels: str, **states: ThreadState) -> None:
        self.members, self.files, self.pipe = Members(), Files(**states), Watcher()
        self.classes = TimeClasses(cast("ScopeOfThreads", self.members), self.files, labels)
        self.plan = self.classes.plan(JOIN, {name: layout(name) for name in FIELDS})
        self.classes.begin(self.pipe, START)
        self.batch = Batch()
        self.pipe.calls.clear()

    def put(self, name: str, *values: object, tid: int = MAIN) -> None:
        record: Record = (NUMBERS[name], START, 0, tid, None, None, *values)
        self.batch.records.append(record)

    def part(self, tid: int, state: ThreadState = RUNNING, nanoseconds: int = 10) -> None:
        self.batch.thread_times.append(ThreadTime(tid, state, nanoseconds, 0))

    def deliver(self) -> None:
        self.classes.consume(self.batch)
        self.batch = Batch()

    def until(self, time: int, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], int]:
        monkeypatch.setattr("time.monotonic_ns", lambda: START + time)
        assert self.classes.flush(self.pipe, self.deliver) == START + time
        return dict(self.classes.take())


def test_the_plan_names_each_event_and_whom_to_follow() -> None:
    plan = Stream().plan
    assert [(plan.events[number].kind, len(plan.events[number].fields)) for number in range(4)] == [
        ("switched", 3),
        ("woken", 2),
        ("born", 2),
        ("created", 2),
    ]
    assert plan.follows == Members.follows


def test_parts_add_up_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.part(MAIN, RUNNING, 10)
    stream.part(OTHER_THREAD, RUNNING, 20)
    stream.part(MAIN, WAITING, 30)
    assert stream.until(100, monkeypatch) == {("running",): 30, ("waiting_for_cpu",): 30}
    assert stream.pipe.calls == [("cut", START + 100)]
    assert stream.until(200, monkeypatch) == {}


@pytest.mark.parametrize(("flags", "process"), [(CLONE_THREAD, MAIN), (0, NEWCOMER)])
def test_the_process_and_the_name_of_a_new_thread(
    flags: int, process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream("tid", "pid", "comm")
    stream.put(NEW, NEWCOMER, flags, b"parent")
    stream.pipe.threads.add(NEWCOMER)
    stream.members.listed.add(NEWCOMER)
    stream.part(NEWCOMER)
    assert set(stream.until(100, monkeypatch)) == {("20", str(process), "parent", "running")}
    stream.put(RENAMED, NEWCOMER, b"child")
    stream.part(NEWCOMER)
    assert set(stream.until(200, monkeypatch)) == {("20", str(process), "child", "running")}


def test_the_name_of_a_process_is_its_first_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream("pid", "comm")
    stream.put(RENAMED, OTHER_THREAD, b"other")
    stream.part(OTHER_THREAD)
    assert set(stream.until(100, monkeypatch)) == {("7", "started", "running")}


def test_a_thread_that_left_the_scope_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.members.listed = {MAIN}
    stream.until(100, monkeypatch)
    assert stream.pipe.calls == [("end", OTHER_THREAD, START + 100), ("cut", START + 100)]


def test_a_thread_that_came_without_an_event_is_watched_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream()
    stream.members.listed |= {NEWCOMER, NEWCOMER + 1}
    stream.files.dead = {NEWCOMER + 1}
    stream.until(100, monkeypatch)
    assert stream.pipe.calls == [("cut", START + 100), ("watch", Watched(NEWCOMER, START + 100))]


@pytest.mark.parametrize(("run_time", "state"), [(5, WAITING), (6, RUNNING)])
def test_a_runnable_thread_without_an_event(
    run_time: int, state: ThreadState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run time tells what it did, once the kernel has accounted for it."""
    stream = Stream(thread_8=WAITING)
    stream.files.run_time = run_time
    stream.until(MIN_RUN_NS - 1, monkeypatch)
    stream.until(MIN_RUN_NS, monkeypatch)
    known = Watched(OTHER_THREAD, START, state, START, certain=True)
    cuts = [("cut", START + MIN_RUN_NS + late) for late in (-1, 0)]
    assert stream.pipe.calls == [cuts[0], ("watch", known), cuts[1]]


def test_both_numbers_have_the_same_keys() -> None:
    found = families(["pid"], Counter({("1", "pipe"): 5, ("1", "lock"): 7, ("2", "pipe"): 1}))
    parts, whole = found
    assert parts.labels == whole.labels == ("pid", "class")
    assert whole.samples == {("1", "pipe"): 12, ("1", "lock"): 12, ("2", "pipe"): 1}


class TestThreadFiles:
    def files(self, directory: Path, state: str, **contents: str) -> ThreadFiles:
        (directory / "7").mkdir()
        for name, content in {"stat": f"7 (a) R) {state} 1 2", **contents}.items():
            (directory / "7" / name).write_text(content)
        return ThreadFiles(directory, class_of_seen)

    def test_asleep(self, tmp_path: Path) -> None:
        stack = "[<0>] anon_pipe_read+0x34d/0x430\n[<0>] vfs_read+0x2f/0x90\n"
        found = self.files(tmp_path, "S", stack=stack).observed(7, 5)
        assert (found.since, found.state, found.reason) == (5, ASLEEP, "pipe")

    def test_asleep_where_no_stack_may_be_read(self, tmp_path: Path) -> None:
        assert self.files(tmp_path, "D").observed(7, 5)[2::2] == (ASLEEP, "unaccounted")

    def test_runnable(self, tmp_path: Path) -> None:
        files = self.files(tmp_path, "R", schedstat="123 45 6\n")
        assert (files.observed(7, 5).state, files.ran(7)) == (WAITING, 123)

    def test_facts(self, tmp_path: Path) -> None:
        files = self.files(tmp_path, "Z", status="Name:\ta\nTgid:\t5\n", comm="a b\n")
        assert (files.process(7), files.name(7), files.lives(7)) == (5, b"a b", False)

    def test_a_thread_that_has_ended(self, tmp_path: Path) -> None:
        files = ThreadFiles(tmp_path, class_of_seen)
        assert files.observed(9, 5).state is UNKNOWN
        assert (files.process(9), files.name(9), files.lives(9), files.ran(9)) == (9, b"", False, None)


def test_the_tool_fetches_what_is_read() -> None:
    _, probes = read_tool(load_tool(FOLDER / "time.yaml"))
    found = {probe.name: tuple(probe.attach[0].fetch) for probe in map(fetching, probes)}
    assert found == {"time": (), **FIELDS}
    assert [probe.name for probe in map(fetching, probes) if probe.stack] == ["time"]


def test_names_choose_no_threads() -> None:
    session = cast("TraceSession", None)
    with pytest.raises(UsageError, match="--comm: another thread wakes a thread"):
        show_classes(session, [], (), None, Display(), Scope(comm="nginx"))
