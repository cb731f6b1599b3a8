"""trace.objects: one JSON object an event, whatever bytes are in it, each with its own stack."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.model import Arg, Batch, Layout, Record
from kprobe_exporter.plan import ProbePlan
from kprobe_exporter.trace import objects as module
from kprobe_exporter.trace.objects import Objects, json_value

PLAN = cast("ProbePlan", SimpleNamespace(probe=SimpleNamespace(name="mine")))
ENTRY = Layout(0, "mine", "mine", "entry", "vfs_read", args=(Arg("name", "str"), Arg("comm", "str")))
JOINED = Layout(
    1,
    "mine",
    "mine",
    "joined",
    "vfs_read",
    args=(Arg("duration", "int"), Arg("return", "int"), Arg("comm", "str")),
)


def record(number: int, name: bytes | None = b"x") -> Record:
    return (0, number, 3, 11, 10, None, name, b"cat")


def shown(*batches: Batch, stacks: bool = False, finish: bool = True) -> list[dict[str, Any]]:
    """The objects of some batches."""
    written: list[bytes] = []
    objects = Objects(written.append, stacks=stacks)
    objects.add(PLAN, ENTRY, "kprobe", "kprobe:vfs_read")
    objects.add(PLAN, JOINED, "call", "call:vfs_read")
    for batch in batches:
        objects.consume(batch)
    if finish:
        objects.finish()
    assert all(part.endswith(b"\n") for part in written)
    return [json.loads(line) for line in b"".join(written).splitlines()]


def test_an_entry() -> None:
    assert shown(Batch([record(5, None)])) == [
        {
            "time_ns": 5,
            "event": "mine",
            "kind": "kprobe",
            "target": "kprobe:vfs_read",
            "cpu": 3,
            "tid": 11,
            "pid": 10,
            "comm": "cat",
            "args": {"name": None},
        }
    ]


def test_a_call() -> None:
    (found,) = shown(Batch([(1, 5, 3, 11, 10, b"ksys_read", 1500, -9, b"cat")]))
    assert found["caller"] == "ksys_read"
    assert (found["duration_ns"], found["return"], found["error"]) == (1500, -9, "EBADF")
    assert found["args"] == {}


@given(st.binary())
def test_bytes_stay_one_line(name: bytes) -> None:
    (found,) = shown(Batch([record(1, name)]))
    value = found["args"]["name"]
    assert isinstance(value, str | list)
    if isinstance(value, str) and b"\\" not in name:
        assert value.encode(errors="surrogateescape") == name or "\\x" in value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-2, -2),
        (None, None),
        (b"", ""),
        (b"a\xff\n", "a\\xff\n"),
        (b"{1,-2,0x10}", [1, -2, 16]),
        (b"{1,x}", "{1,x}"),
        (b'{"a","b"}', '{"a","b"}'),
    ],
)
def test_a_value(value: int | bytes | None, expected: object) -> None:
    assert json_value(value) == expected


@given(st.lists(st.lists(st.booleans())))
def test_each_event_has_its_stack_when_it_comes_with_it_or_in_the_next_batch(
    batches: list[list[bool]],
) -> None:
    """True: the stack comes with the event, False: with the batch after it."""
    number = 0
    made: list[Batch] = []
    late: list[tuple[Record, tuple[bytes, ...]]] = []
    for batch in batches:
        records: list[Record] = []
        stacks, later = late, list(late[:0])
        for at_once in batch:
            number += 1
            one = record(number)
            records.append(one)
            (stacks if at_once and not later else later).append((one, (b"f%d" % number,)))
        made.append(Batch(records, stacks=stacks))
        late = later
    made.append(Batch([], stacks=late))
    found = shown(*made, stacks=True)
    assert [each["time_ns"] for each in found] == [*range(1, number + 1)]
    assert [each["stack"] for each in found] == [[f"f{each['time_ns']}"] for each in found]


def test_events_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    found = shown(Batch([record(number) for number in range(10)]), stacks=True, finish=False)
    assert [each["time_ns"] for each in found] == [*range(7)]
