"""trace.objects: one JSON object per event, for any bytes in it, each with its own stack."""

import json
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from kprobe_exporter.config.model import return_type
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import Batch, Layout, Record
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import where
from kprobe_exporter.recording.describe import json_value
from kprobe_exporter.trace import record_lines as module
from kprobe_exporter.trace.objects import show_object, show_text
from kprobe_exporter.trace.record_lines import Lines
from tests.support.program_code import Code

ENTRY = Layout(0, "mine", "mine", "entry", "vfs_read", args=(Arg("name", "str"), Arg("comm", "str")))
RETURNED = Arg("duration", "int"), Arg("return", "int"), Arg("comm", "str")
PROGRAMS = return_type("int")._replace(errno=False)
JOINED = Layout(1, "mine", "mine", "joined", "vfs_read", args=RETURNED)


def record(number: int, name: bytes | None = b"x") -> Record:
    return (0, number, 3, 11, 10, None, name, b"cat")


def shown(
    *batches: Batch, stacks: bool = False, finish: bool = True, of_calls: Where | None = None
) -> list[dict[str, Any]]:
    """Return the objects written for some batches, whose calls pass the filter ``of_calls``."""
    written: list[bytes] = []
    objects = Lines(written.append, stacks=stacks)
    objects.add(ENTRY, show_object("mine", ENTRY, "kprobe", "kprobe:vfs_read"))
    objects.add(JOINED, show_object("mine", JOINED, "call", "call:vfs_read"), of_calls)
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


def test_times_of_steps_stand_beside_the_duration() -> None:
    written: list[bytes] = []
    objects = Lines(written.append, stacks=False)
    layout = replace(JOINED, args=(*JOINED.args, Arg("sent", "int")), steps=("sent",))
    objects.add(layout, show_object("mine", layout, "pair", "kprobe:f -> kprobe:g"))
    objects.consume(Batch([(1, 5, 3, 11, 10, None, 1500, -9, b"cat", 400)]))
    shown = json.loads(written[0])
    assert (shown["duration_ns"], shown["sent_ns"], shown["args"]) == (1500, 400, {})


def test_a_programs_error_is_a_number() -> None:
    written: list[bytes] = []
    objects = Lines(written.append, stacks=False)
    layout = replace(JOINED, returns=PROGRAMS)
    objects.add(layout, show_object("mine", layout, "ucall", "ucall:/bin/sh:f"))
    objects.consume(Batch([(1, 5, 3, 11, 10, b"main", 1500, -9, b"cat")]))
    objects.finish()
    assert json.loads(written[0])["error"] == "-9"


@given(st.binary())
def test_bytes_stay_one_line(name: bytes) -> None:
    (found,) = shown(Batch([record(1, name)]))
    value = found["args"]["name"]
    assert isinstance(value, str)
    if b"\\" not in name:
        assert value.encode(errors="surrogateescape") == name or "\\x" in value


TEXT = Arg("a", "str")


@pytest.mark.parametrize(
    ("value", "arg", "expected"),
    [
        (-2, Arg("a", "int"), -2),
        (None, TEXT, None),
        (b"", TEXT, ""),
        (b"a\xff\n", TEXT, "a\\xff\n"),
        (b"{1,2}", TEXT, "{1,2}"),
        (b"{7}", Arg("comm", "comm"), "{7}"),
        (b"{1,-2}", Arg("a", "bare", type="s32[2]"), [1, -2]),
        (b"{0x1,0x10}", Arg("a", "bare", type="x8[2]"), [1, 16]),
        (b"{1}", Arg("a", "bare", type="u16[1]"), [1]),
        (b"{1,2}", Arg("a", "bare", type="b4@2/8[2]"), [1, 2]),
        (b"{0x1,0x2}", Arg("a", "bare", type="symbol[2]"), "{0x1,0x2}"),
        (b"{'1','2'}", Arg("a", "bare", type="char[2]"), "{'1','2'}"),
        (b'{"a","b"}', Arg("a", "texts", type="string[2]"), '{"a","b"}'),
        (b"{1,x}", Arg("a", "bare", type="x8[2]"), "{1,x}"),
    ],
)
def test_a_value(value: int | bytes | None, arg: Arg, expected: object) -> None:
    assert json_value(value, arg) == expected


@given(st.binary())
def test_a_string_is_never_a_list(name: bytes) -> None:
    """A process can choose its own name and those of its files so that they look like a list."""
    comm = b"{%d}" % len(name)
    named = name if len(name) % 2 else b"{1,2}"
    (found,) = shown(Batch([(0, 1, 3, 11, 10, None, named, comm)]))
    assert found["comm"] == comm.decode()
    assert isinstance(found["args"]["name"], str)


@pytest.mark.parametrize("stacks", [False, True])
def test_what_the_kernel_could_not_filter(stacks: bool) -> None:
    """A filter on a call's return is applied here, because the return is known only from both events."""
    returned = enumerate([3, -9, 0, -2, None])
    calls = Batch([(1, at, 3, 11, 10, None, 1500, value, b"cat") for at, value in returned])
    found = shown(calls, Batch([record(9)]), stacks=stacks, of_calls=where(parse_formula("return < 0")))
    assert [each.get("return") for each in found] == [-9, -2, None]
    assert found[-1]["target"] == "kprobe:vfs_read"


@given(st.lists(st.lists(st.booleans())))
def test_each_event_has_its_stack_when_it_comes_with_it_or_in_the_next_batch(
    batches: list[list[bool]],
) -> None:
    """``True``: the stack comes with its event; ``False``: it comes with the next batch."""
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


def test_a_line_of_text() -> None:
    written: list[bytes] = []
    lines = Lines(written.append, stacks=True)
    lines.add(ENTRY, show_text("mine", ENTRY, "kprobe", "kprobe:vfs_read"))
    lines.add(JOINED, show_text("calls", JOINED, "call", "call:vfs_read"))
    one = record(1, b"a b\x1b\n")
    call = (1, 5, 3, 11, 10, b"main", 1_500_000, -9, b"cat")
    lines.consume(Batch([one, call], stacks=[(one, (b"f\x1b",))]))
    lines.finish()
    first, stack, second = b"".join(written).decode().splitlines()
    assert first.split(" ", 1)[1] == 'mine                 cat-11                   name="a b\\u001b\\n"'
    assert stack == "        f\\x1b"
    assert second.split(" ", 1)[1].split() == [
        *("calls", "cat-11", "return=-9", "error=EBADF", "caller=main", "in", "1.500", "ms")
    ]


def test_facts_of_the_process() -> None:
    """They stand in an object of their own, so that no field of an event looks like one."""

    def facts(record: Record) -> dict[str, int | float | str | None]:
        return {"ppid": record[2], "exe": "/a b\\x1b", "argv": None, "age": 0.005}

    written: list[bytes] = []
    for show_as in (show_object, show_text):
        lines = Lines(written.append, stacks=False)
        lines.add(ENTRY, show_as("mine", ENTRY, "kprobe", "kprobe:vfs_read", facts))
        lines.consume(Batch([record(1)]))
    as_object, as_text = (line.decode() for line in written)
    assert json.loads(as_object)["facts"] == {"ppid": 3, "exe": "/a b\\x1b", "argv": None, "age": 0.005}
    assert as_text.rstrip().endswith('  name=x ppid=3 exe="/a b\\\\x1b" argv=None age=0.005')


def test_steps_of_a_chain_in_text() -> None:
    layout = replace(
        JOINED, args=(*JOINED.args, Arg("sent", "int"), Arg("lost", "int")), steps=("sent", "lost")
    )
    show = show_text("mine", layout, "pair", "kprobe:f -> kprobe:g")
    line = show((1, 5, 3, 11, 10, None, 1_500_000, 0, b"cat", 400_000, None), ())
    assert line.endswith("return=0 sent after 0.400 ms in 1.500 ms")


def test_stacks_of_programs() -> None:
    """Each return address counts as the instruction before it, and an event is written with its stack."""
    first, second, ended = record(5), record(6), record(7)
    stacks = [(first, 7, (0x10, 0x20)), (second, 7, (0x10, 0x20)), (ended, 404, (0x10,))]
    batch = Batch([first, second, ended], user_stacks=stacks)
    with closing(ProgramStacks(Code)) as programs:
        module.name_programs(programs, batch)
    written = [one["stack"] for one in shown(batch, stacks=True)]
    assert written == [["prog`f1", "prog`f1"], ["prog`f1", "prog`f1"], ["[unknown]"]]


def test_program_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    code, hung = Code(), record(5)
    code.goes_on.clear()
    batch = Batch([hung], user_stacks=[(hung, 7, (0x10, 0x20))])
    with closing(ProgramStacks(lambda: code)) as programs:
        module.name_programs(programs, batch)
        assert shown(batch, stacks=True)[0]["stack"] == ["[unknown]"]
        code.goes_on.set()


def test_more_stacks_of_one_process_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.aggregate.program_stacks.MOST_ASKED", 2)
    records = [record(number) for number in range(9)]
    batch = Batch(records)
    batch.user_stacks += [(one, 7, (16 * number,)) for number, one in enumerate(records)]
    with closing(ProgramStacks(Code)) as programs:
        module.name_programs(programs, batch)
    assert [one["stack"] for one in shown(batch, stacks=True)] == [[f"prog`f{one}"] for one in range(9)]
