"""trace.rows: a line for each record, as text, JSON and CSV, whatever a name holds."""

import csv
import json
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.config.model import Decode, Label
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.records import Batch, Layout, Record
from kprobe_exporter.model.specs import LabelSpec
from kprobe_exporter.model.stacks import Stack
from kprobe_exporter.model.values import Arg, Value
from kprobe_exporter.plan.metric import label_spec
from kprobe_exporter.tools.columns import Column, column_of
from kprobe_exporter.tools.tool_model import ColumnModel
from kprobe_exporter.trace.record_lines import Lines, TraceClock
from kprobe_exporter.trace.rows import Display, Form, heading, row_lines

ARGS = Arg("sig", "int"), Arg("file", "str"), Arg("duration", "int"), Arg("comm", "str")
LAYOUT = Layout(1, "p", "p", "joined", "f", args=ARGS, absent=frozenset({"gone"}))

LABELS = [
    label_spec(label, DECODERS)
    for label in (
        Label("pid", "pid"),
        Label("comm", "comm"),
        Label("sig", "sig", (Decode("signal"),)),
        Label("gone", "gone"),
        Label("file", "file"),
    )
]

COLUMNS = [
    column_of("PID", "pid"),
    column_of("COMM", "comm"),
    column_of("SIG", ColumnModel(field="sig", width=8)),
    column_of("GONE", "gone"),
    column_of("OTHER", "other"),
    column_of("MS", ColumnModel(value="duration", unit="ms")),
    column_of("FILE", "file"),
]

HOSTILE = b'a\x1b[31m\n\xff,"'


def record(number: int = 5, file: bytes | None = b"/x", pid: int | None = 10) -> Record:
    return (1, number, 3, 11, pid, None, 9, file, 2_500_000, b"cat")


def shown(*records: Record, stacks: dict[int, bytes] | None = None, **how: object) -> list[str]:
    """Return the lines of some records; ``stacks`` are by the records' places."""
    written: list[bytes] = []
    options = Display(**how)._replace(stacks=stacks is not None)  # type: ignore[arg-type]
    lines = Lines(written.append, stacks=options.stacks, most=options.most)
    lines.add(LAYOUT, row_lines(LAYOUT, LABELS, COLUMNS, options, TraceClock(0)))
    frames: list[tuple[Record, Stack]] = [(records[place], (name,)) for place, name in (stacks or {}).items()]
    lines.consume(Batch([*records], stacks=frames))
    lines.finish()
    return b"".join(written).decode().splitlines()


def test_a_row() -> None:
    """A field that this kernel or this probe lacks is empty."""
    assert heading(COLUMNS, Display(), color=False) == (
        "PID     COMM             SIG      GONE     OTHER          MS FILE"
    )
    assert shown(record()) == ["10      cat              SIGKILL  -        -           2.500 /x"]


def test_an_object() -> None:
    (found,) = map(json.loads, shown(record(), form="json"))
    assert datetime.fromisoformat(found.pop("time")).timestamp() == 0.0025  # when the call ended
    assert found == {
        "pid": 10,
        "comm": "cat",
        "sig": "SIGKILL",
        "gone": None,
        "other": None,
        "ms": 2.5,
        "file": "/x",
    }


def test_comma_separated() -> None:
    head = heading(COLUMNS, Display("csv"), color=False)
    assert head == "TIME,PID,COMM,SIG,GONE,OTHER,MS,FILE"
    [(time, *values)] = csv.reader(shown(record(file=b'a,"b'), form="csv"))
    assert datetime.fromisoformat(time).timestamp() == 0.0025
    assert values == ["10", "cat", "SIGKILL", "", "", "2.5", 'a,"b']


@given(st.binary(max_size=20))
def test_any_name_stays_on_its_line(name: bytes) -> None:
    forms: tuple[Form, ...] = ("text", "json", "csv")
    for form in forms:
        (line,) = shown(record(file=name), form=form)
        assert line.isprintable()


def test_a_hostile_name() -> None:
    assert shown(record(file=HOSTILE))[0].endswith(' a\\x1b[31m\\n\\xff,"')


def test_a_narrow_terminal_cuts() -> None:
    assert heading(COLUMNS, Display(width=12), color=False) == "PID     COMM"
    assert heading(COLUMNS, Display(width=12), color=True) == "\x1b[1mPID     COMM\x1b[0m"
    assert shown(record(), width=12) == ["10      cat "]


def test_the_time_of_day() -> None:
    (line,) = shown(record(), timestamp=True)
    assert datetime.strptime(line[:12], "%H:%M:%S.%f").microsecond == 2000  # noqa: DTZ007 - a time alone
    assert line[12:].startswith(" 10 ")


def test_its_stack_is_below() -> None:
    records = [record(number) for number in (1, 2, 3)]
    found = shown(*records, stacks={0: b"f1", 2: b"f\n3"}, form="text")
    assert [line.strip() for line in found if line.startswith("  ")] == ["f1", "f\\n3"]
    assert found[1].strip() == "f1"
    objects = [json.loads(line) for line in shown(*records, stacks={1: b"f2"}, form="json")]
    assert [one.get("stack") for one in objects] == [None, ["f2"], None]


def test_an_unknown_process() -> None:
    assert shown(record(pid=None))[0].startswith("-  ")


def test_no_more_rows_than_asked_for() -> None:
    assert len(shown(*[record(number) for number in range(9)], most=4)) == 4


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_call_has_the_stack_of_its_entry(late: int) -> None:
    """It comes before the joined record, with it, or soon after it."""
    written: list[bytes] = []
    lines = Lines(written.append, stacks=True)
    lines.add(LAYOUT, row_lines(LAYOUT, LABELS, COLUMNS, Display("json"), TraceClock(0)))
    first, joined = (0, 1, 3, 11, 10, None), record()
    batches = [Batch(), Batch([joined]), Batch()]
    batches[late].stacks = [(first, (b"entry",))]
    for number, batch in enumerate(batches):
        if number == 1:
            lines.joined(first, joined)
        lines.consume(batch)
    lines.finish()
    assert json.loads(b"".join(written))["stack"] == ["entry"]


def facts(record: Record, name: str) -> Value:
    known = {"pid": 10, "name": b"sh", "ppid": 7, "exe": b"/bin/\x1b", "age": 1_500_000_000}
    value: Value = known.get(name)  # type: ignore[assignment]
    return value


def with_facts(labels: list[LabelSpec], columns: list[Column], one: Record) -> dict[str, object]:
    show = row_lines(LAYOUT, labels, columns, Display("json"), TraceClock(0), facts)
    found: dict[str, object] = json.loads(show(one, ()))
    del found["time"]
    return found


def test_facts_of_the_process() -> None:
    names = ("ppid", "exe", "age", "uid")
    labels = [label_spec(Label(name, "common_pid", (Decode(name),)), DECODERS) for name in names]
    found = with_facts(labels, [column_of(name.upper(), name) for name in names], record())
    assert found == {"ppid": 7, "exe": "/bin/\\x1b", "age": "1.500", "uid": None}


def test_a_process_that_the_record_lacks() -> None:
    """A thread that ended at once has no process in its record, and where there is no eprobe no name."""
    one = (*record(pid=None)[:-1], None)
    found = with_facts(LABELS, COLUMNS, one)
    assert (found["pid"], found["comm"]) == (10, "sh")


def test_a_time_in_between() -> None:
    """A pair with a step has its time, in nanoseconds, and other probes lack it."""
    stepped = replace(LAYOUT, args=(*ARGS, Arg("queued", "int")), steps=("queued",))
    columns = [column_of("QUE", ColumnModel(value="queued", unit="ms"))]
    for one, values, text in ((stepped, (500_000,), "0.500"), (LAYOUT, (), "-")):
        line = row_lines(one, LABELS, columns, Display(), TraceClock(0))((*record(), *values), ())
        assert line.strip() == text
