"""`tool time`: records become the times of threads, which threads count, labels, and /proc."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from kprobe_exporter.aggregate.thread_times import Observed
from kprobe_exporter.errors import UsageError
from kprobe_exporter.identity.threads import CLONE_THREAD
from kprobe_exporter.model.records import Batch, Layout, Loss, Record
from kprobe_exporter.model.stacks import Stack
from kprobe_exporter.model.values import Arg
from kprobe_exporter.probing.scope import Scope
from kprobe_exporter.tools.load import FOLDER, load_tool
from kprobe_exporter.trace.class_table import families, fetching, show_classes
from kprobe_exporter.trace.rows import Display
from kprobe_exporter.trace.run_tool import read_tool
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.threads_in_scope import ScopeOfThreads, ThreadFiles
from kprobe_exporter.trace.time_classes import NEW, STARTED, SWITCH, WAKEUP, WAKING, TimeClasses

MAIN, OTHER_THREAD, STRANGER = 7, 8, 99
START = 1_000
PIPE = (b"__schedule", b"schedule", b"pipe_read", b"vfs_read")

FIELDS = {
    SWITCH: ("prev", "state", "name", "next"),
    WAKING: ("task",),
    WAKEUP: ("task",),
    STARTED: ("task",),
    NEW: ("child", "flags"),
}
NUMBERS = {name: number for number, name in enumerate(FIELDS)}


class Files(ThreadFiles):
    """The process MAIN with the threads MAIN and OTHER_THREAD, of which nothing else is known."""

    def __init__(self, observed: Mapping[int, Observed]) -> None:
        super().__init__(None)
        self._observed, self.dead = observed, set[int]()

    def observed(self, tid: int) -> Observed:
        return self._observed.get(tid, Observed(START))

    def lives(self, tid: int) -> bool:
        return tid not in self.dead

    def process(self, tid: int) -> int:
        return MAIN if tid in (MAIN, OTHER_THREAD) else tid

    def name(self, tid: int) -> bytes:
        return b"started"


class Members:
    """A scope with MAIN and OTHER_THREAD in it."""

    follows_threads = follows_processes = True

    def __init__(self) -> None:
        self.listed = {MAIN, OTHER_THREAD}

    def threads(self) -> set[int]:
        return {*self.listed}


class Stream:
    """Records in the order of time, and the classes that they become."""

    def __init__(self, *labels: str, observed: Mapping[int, Observed] | None = None) -> None:
        self.members, self.files = Members(), Files(observed or {})
        self.classes = TimeClasses(cast("ScopeOfThreads", self.members), self.files, labels)
        for name, fields in FIELDS.items():
            args = tuple(Arg(field, "int") for field in fields)
            self.classes.add(name, Layout(NUMBERS[name], name, name, "tracepoint", name, args))
        self.classes.begin(START)
        self.batch = Batch()

    def put(self, time: int, name: str, *values: object, tid: int = MAIN, stack: Stack = ()) -> Record:
        record = (NUMBERS[name], START + time, 0, tid, None, None, *values)
        self.batch.records.append(record)
        if stack:
            self.batch.stacks.append((record, stack))
        return record

    def switch(self, time: int, prev: int, after: int, state: int = 1, stack: Stack = PIPE) -> Record:
        return self.put(time, SWITCH, prev, state, b"named %d" % prev, after, stack=stack)

    def deliver(self) -> None:
        self.classes.consume(self.batch)
        self.batch = Batch()

    def until(self, time: int, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], int]:
        monkeypatch.setattr("time.monotonic_ns", lambda: START + time)
        assert self.classes.flush(self.deliver) == START + time
        by_class, of_all = self.classes.totals.take()
        assert sum(by_class.values()) == sum(of_all.values())
        return dict(by_class)


def test_a_thread_and_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side of a switch may be a thread of another scope."""
    stream = Stream()
    stream.classes.times.left(OTHER_THREAD, START)
    stream.members.listed = {MAIN}
    stream.switch(10, MAIN, STRANGER)
    stream.put(20, WAKING, STRANGER)
    stream.put(30, WAKING, MAIN)
    stream.put(31, WAKEUP, MAIN)
    stream.switch(40, STRANGER, MAIN)
    assert stream.until(100, monkeypatch) == {
        ("running",): 10 + 60,
        ("pipe",): 20,
        ("waiting_for_cpu",): 10,
    }


def test_records_after_the_interval_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.switch(10, MAIN, OTHER_THREAD)
    stream.put(150, WAKING, MAIN)
    assert stream.until(100, monkeypatch) == {
        ("running",): 10 + 90,
        ("pipe",): 90,
        ("waiting_for_cpu",): 10,
    }
    assert stream.until(200, monkeypatch) == {
        ("running",): 100,
        ("pipe",): 50,
        ("waiting_for_cpu",): 50,
    }


def test_a_stack_that_comes_with_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    late = stream.switch(10, MAIN, OTHER_THREAD, stack=())
    stream.deliver()
    stream.batch.stacks.append((late, PIPE))
    stream.deliver()
    assert stream.until(100, monkeypatch)[("pipe",)] == 90


def test_a_sleep_whose_stack_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.switch(10, MAIN, OTHER_THREAD, stack=())
    assert stream.until(100, monkeypatch)[("unaccounted",)] == 90


def test_events_of_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.switch(-5, OTHER_THREAD, MAIN)
    assert stream.until(100, monkeypatch) == {("unaccounted",): 200}


def test_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.switch(10, MAIN, OTHER_THREAD)
    stream.batch.losses.append(Loss(0, START + 20, START + 50))
    stream.put(60, WAKING, MAIN)
    assert stream.until(100, monkeypatch) == {
        ("running",): 10 + 10,
        ("pipe",): 10,
        ("waiting_for_cpu",): 10 + 40,
        ("unaccounted",): 80 + 40,
    }


class TestNewThreads:
    @pytest.mark.parametrize(("flags", "process"), [(CLONE_THREAD, MAIN), (0, 20)])
    def test_of_the_scope(self, flags: int, process: int, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = Stream("pid")
        stream.put(10, NEW, 20, flags)
        stream.put(12, STARTED, 20)
        stream.switch(15, MAIN, 20)
        found = stream.until(100, monkeypatch)
        assert found[str(process), "running"] == 85 + (15 if process == MAIN else 0)
        assert found[str(process), "waiting_for_cpu"] >= 3

    def test_of_a_process_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel records the processes that it starts, too, until they are listed."""
        stream = Stream("pid")
        stream.members.follows_processes = False
        stream.put(10, NEW, 20, 0)
        stream.put(12, STARTED, 20)
        stream.switch(15, MAIN, 20)
        assert {pid for pid, _ in stream.until(100, monkeypatch)} == {str(MAIN)}

    def test_of_a_stranger(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = Stream("tid")
        stream.put(10, NEW, 20, CLONE_THREAD, tid=STRANGER)
        stream.put(12, STARTED, 20)
        stream.switch(15, MAIN, 20)
        assert "20" not in {tid for tid, _ in stream.until(100, monkeypatch)}

    def test_seen_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread that moved into the scope counts from when it is listed."""
        stream = Stream("tid")
        stream.members.listed.add(20)
        assert "20" not in {tid for tid, _ in stream.until(100, monkeypatch)}
        assert stream.until(150, monkeypatch)["20", "unaccounted"] == 50


def test_a_thread_that_left_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream("tid")
    stream.switch(10, MAIN, OTHER_THREAD)
    stream.until(100, monkeypatch)
    stream.members.listed = {MAIN}
    assert stream.until(200, monkeypatch)[str(OTHER_THREAD), "unaccounted"] == 100
    assert str(OTHER_THREAD) not in {tid for tid, _ in stream.until(300, monkeypatch)}


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread's name is the one with which it left its CPU last; that of a process is its first thread's."""
    stream = Stream("tid", "pid", "comm")
    stream.switch(10, MAIN, OTHER_THREAD)
    assert {key[:3] for key in stream.until(100, monkeypatch)} == {
        ("7", "7", "named 7"),
        ("8", "7", "started"),
    }
    stream = Stream("pid", "comm")
    stream.switch(10, OTHER_THREAD, MAIN)
    assert {key[:2] for key in stream.until(100, monkeypatch)} == {("7", "started")}


def test_both_numbers_have_the_same_keys() -> None:
    found = families(["pid"], {("1", "pipe"): 5, ("1", "lock"): 7, ("2", "pipe"): 1}, {("1",): 12, ("2",): 1})
    parts, whole = found
    assert parts.labels == whole.labels == ("pid", "class")
    assert whole.samples == {("1", "pipe"): 12, ("1", "lock"): 12, ("2", "pipe"): 1}


class TestThreadFiles:
    def files(self, directory: Path, state: str, **contents: str) -> ThreadFiles:
        (directory / "7").mkdir()
        for name, content in {"stat": f"7 (a) R) {state} 1 2", **contents}.items():
            (directory / "7" / name).write_text(content)
        return ThreadFiles(directory)

    def test_asleep(self, tmp_path: Path) -> None:
        stack = "[<0>] anon_pipe_read+0x34d/0x430\n[<0>] vfs_read+0x2f/0x90\n"
        assert self.files(tmp_path, "S", stack=stack).observed(7).class_ == "pipe"

    def test_asleep_where_no_stack_may_be_read(self, tmp_path: Path) -> None:
        assert self.files(tmp_path, "D").observed(7).class_ == "unaccounted"

    def test_runnable(self, tmp_path: Path) -> None:
        found = self.files(tmp_path, "R", schedstat="123 45 6\n").observed(7)
        assert (found.class_, found.ran) == (None, 123)

    def test_facts(self, tmp_path: Path) -> None:
        files = self.files(tmp_path, "Z", status="Name:\ta\nTgid:\t5\n", comm="a b\n")
        assert (files.process(7), files.name(7), files.lives(7)) == (5, b"a b", False)

    def test_a_thread_that_has_ended(self, tmp_path: Path) -> None:
        files = ThreadFiles(tmp_path)
        assert files.observed(9)[1:] == (None, None)
        assert (files.process(9), files.name(9), files.lives(9), files.ran(9)) == (9, b"", False, None)


def test_the_tool_fetches_what_is_read() -> None:
    _, probes = read_tool(load_tool(FOLDER / "time.yaml"))
    found = {probe.name: {*probe.attach[0].fetch} for probe in map(fetching, probes)}
    assert found == {name: {*fields} for name, fields in FIELDS.items()}
    assert [probe.name for probe in map(fetching, probes) if probe.stack] == [SWITCH]


def test_names_choose_no_threads() -> None:
    session = cast("TraceSession", None)
    with pytest.raises(UsageError, match="--comm: another thread wakes a thread"):
        show_classes(session, [], (), None, Display(), Scope(comm="nginx"))
