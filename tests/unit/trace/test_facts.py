"""trace.facts: each record has the facts of its process at its place in the stream."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kprobe_exporter.config.model import Decode, Label
from kprobe_exporter.identity.processes import Processes
from kprobe_exporter.model.records import OF_THREADS, Batch, Layout, Loss, Record
from kprobe_exporter.model.values import Arg, Value
from kprobe_exporter.probing.thread_tracepoints import PROCESS_EVENTS
from kprobe_exporter.trace import facts as module
from kprobe_exporter.trace.facts import ProcessFacts, fact_reader, labels_of_facts

NEW_FIELDS = Arg("child", "int"), Arg("flags", "int"), Arg("name", "str")
STARTED = Layout(1, "own", "task_newtask", "tracepoint", "", NEW_FIELDS)
EXECUTED = Layout(2, "own", "sched_process_exec", "tracepoint", "", (Arg("path", "str"), Arg("old", "int")))
PARENT, CHILD = 7, 8


def record(layout_id: int, time_ns: int, tid: int, *values: object) -> Record:
    return (layout_id, time_ns, 0, tid, tid, None, *values)


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> ProcessFacts:
    parts = tuple(
        SimpleNamespace(layout=layout, event=followed.event, system=followed.system)
        for layout, followed in zip((STARTED, EXECUTED), PROCESS_EVENTS, strict=True)
    )

    class Own:
        def __init__(self, *_: object, wanted: bool, before_probes: bool = False) -> None:
            self.wanted, self.parts = wanted, parts if wanted else ()

        def follow(self, *_: object) -> None:
            return None

    monkeypatch.setattr(module, "OwnTracepoints", Own)
    made = ProcessFacts(("exe", "ppid"), Processes(Path("/nowhere"), lambda: 0, lambda time_ns: time_ns))
    no_threads: Any = SimpleNamespace(threads=None)
    assert made.install(no_threads, no_threads, iter(())) == {STARTED: "task", EXECUTED: "sched"}
    return made


def test_facts_before_and_after_an_exec(facts: ProcessFacts) -> None:
    early, late = record(9, 20, CHILD), record(9, 40, CHILD)
    other = record(9, 45, PARENT)
    own = [
        record(1, 5, 1, PARENT, 0, b"init"),
        record(1, 10, PARENT, CHILD, 0, b"sh"),
        record(2, 30, CHILD, b"/bin/ls", CHILD),
    ]
    batch = Batch(records=sorted([*own, early, late, other], key=lambda one: one[1]))
    facts.take(batch)
    assert batch.records == [early, late, other]
    assert [facts.of(one, "exe") for one in batch.records] == [None, b"/bin/ls", None]
    assert [facts.of(one, "ppid") for one in batch.records] == [PARENT, PARENT, None]
    facts.take(Batch())
    assert facts.of(late, "exe") == b"/bin/ls"  # a record may wait for its stack in the next batch
    facts.take(Batch())
    assert facts.of(late, "exe") is None


def test_starts_of_threads_are_told_while_they_are_read(facts: ProcessFacts) -> None:
    told: list[tuple[int, int, int]] = []
    filters = facts.starts(lambda *start: told.append(start))
    assert filters.keys() == {STARTED.layout_id}
    assert filters[1].test(record(1, 10, PARENT, CHILD, 0, b"sh"))
    assert told == [(PARENT, CHILD, 0)]


def test_facts_after_a_loss(facts: ProcessFacts) -> None:
    facts.take(Batch(records=[record(2, 30, CHILD, b"/bin/ls", CHILD)]))
    facts.take(Batch(losses=[Loss(0, 31, 32)]))
    kept = record(9, 33, CHILD)
    facts.take(Batch(records=[kept]))
    assert facts.of(kept, "exe") == b"/bin/ls"
    after = record(9, 35, CHILD)
    facts.take(Batch(records=[after], losses=[Loss(OF_THREADS, 33, 34)]))
    assert facts.of(after, "exe") is None


def test_no_facts_wanted() -> None:
    batch = Batch(records=[record(9, 20, CHILD)])
    ProcessFacts().take(batch)
    assert len(batch.records) == 1


def test_labels_that_show_facts_of_the_events_thread() -> None:
    """Each once, under its own name; those of another thread's id and of other decoders are none."""
    labels = (
        Label("user", "tid", (Decode("uid"), Decode("user"))),
        Label("uid", "tid", (Decode("uid"),)),
        Label("exe", "next_pid", (Decode("exe"),)),
        Label("signal", "sig", (Decode("signal"),)),
        Label("box", "tid", (Decode("container"),)),
        Label("comm", "comm"),
    )
    expected = [Label(name, "tid", (Decode(name),)) for name in ("uid", "container")]
    assert list(labels_of_facts(labels)) == expected


def test_facts_for_a_person() -> None:
    """Numbers stay numbers, an age is in seconds, and text is escaped."""
    known: dict[str, Value] = {
        "age": 1_500_400_000,
        "argv": b"a\x1b \xff",
        "uid": 7,
        "cgroup": b"/user.slice",
        "exe": None,
    }
    read = fact_reader(known, lambda record, name: known[name])
    assert read(record(9, 1, CHILD)) == {
        "age": 1.5,
        "argv": r"a\x1b \xff",
        "uid": 7,
        "cgroup": "/user.slice",
        "exe": None,
    }
