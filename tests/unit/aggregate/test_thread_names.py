"""Records get the name that their thread had at that moment."""

import pytest

from kprobe_exporter.aggregate import thread_names
from kprobe_exporter.aggregate.thread_names import Naming, ThreadNames
from kprobe_exporter.model.aggregation import RecordFilter
from kprobe_exporter.model.records import OF_THREADS, VALUES, Batch, Loss, Record

NEW, CALL, OTHER = 1, 2, 3
NAMED = VALUES + 1


def names() -> ThreadNames:
    made = ThreadNames()
    made.begin({7: b"old"})
    made.follow({NEW: Naming(VALUES, NAMED)}, {CALL: (NAMED,)}, {})
    return made


def named(tid: int, name: bytes) -> Record:
    return (NEW, 0, 0, 1, None, None, tid, name)


def call(tid: int) -> Record:
    return (CALL, 0, 0, tid, None, None, 5, b"looked up")


def taken(names: ThreadNames, *records: Record, losses: tuple[Loss, ...] = ()) -> list[bytes]:
    batch = Batch(list(records), losses=list(losses))
    names.take(batch)
    return [record[NAMED] for record in batch.records]


def test_name_of_the_moment() -> None:
    found = taken(names(), call(7), named(7, b"new"), call(7), named(8, b"child"), call(8), call(9))
    assert found == [b"old", b"new", b"child", b"looked up"]


def test_other_records_stay() -> None:
    batch = Batch([(OTHER, 0, 0, 7, None, None, 5, b"x")])
    names().take(batch)
    assert batch.records == [(OTHER, 0, 0, 7, None, None, 5, b"x")]


def test_filter_compares_the_name_of_the_moment() -> None:
    made = names()
    made.follow(
        {NEW: Naming(VALUES, NAMED)},
        {CALL: (NAMED,)},
        {CALL: RecordFilter(lambda r: r[NAMED] == b"old", None)},
    )
    batch = Batch([call(7), named(7, b"new"), call(7)])
    made.take(batch)
    assert (len(batch.records), batch.arrived, batch.passed) == (1, {CALL: 2}, {CALL: 1})


def test_lost_events_about_threads_make_names_unknown() -> None:
    assert taken(names(), call(7), losses=(Loss(0, 1, 2),)) == [b"old"]
    assert taken(names(), call(7), losses=(Loss(OF_THREADS, 1, 2),)) == [b"looked up"]


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_names, "MAX_NAMES", 2)
    made = names()
    found = taken(made, named(8, b"b"), named(9, b"c"), call(7), call(8), call(9))
    assert found == [b"looked up", b"b", b"c"]
