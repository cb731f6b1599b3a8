"""Published documents on tracing (tests/fixtures/documents), also counted with an independent pattern."""

import re

import pytest

from kprobe_exporter.model.records import CALLER, TID, VALUES
from tests.support.replayed import Read
from tests.unit.captured import FIXTURES

DOCUMENTS = FIXTURES / "documents"

EVENT = re.compile(rb"^ +\S+-\d+ +\[\d+\] (?:\S{4} )?\d+\.\d+: \w+: \(", re.MULTILINE)
"""The pattern that a user would grep for."""


def text(name: str) -> bytes:
    return (DOCUMENTS / f"{name}.txt").read_bytes()


def test_the_examples_of_perf_tools() -> None:
    data = text("perf-tools-examples")
    read = Read(data)
    assert len(read.batch.records) == len(EVENT.findall(data)) == 131
    assert len(read.batch.stacks) == data.count(b"<stack trace>") == 3
    assert sum(len(frames) for _, frames in read.batch.stacks) == data.count(b"\n => ") == 30
    assert (read.batch.cut, read.batch.lost) == ([], 0)
    blank_or_comment = len(re.findall(rb"^[ \t]*(?:#.*)?$", data[:-1], re.MULTILINE))
    others = 131 + 3 + 30 + blank_or_comment
    assert read.batch.unparsed == data.count(b"\n") - others


def test_the_stacks_of_perf_tools() -> None:
    read = Read(text("perf-tools-examples"))
    assert [record[TID] for record, _ in read.batch.stacks] == [5121, 32219, 5121]
    assert {read.layout(record).event for record, _ in read.batch.stacks} == {"mytcp"}
    for _, frames in read.batch.stacks:
        assert (frames[0], frames[-1]) == (b"tcp_write_xmit", b"system_call_fastpath")


def test_the_values_of_perf_tools() -> None:
    """The values are of three eras: 0x numbers, strings, and hexadecimal ones without 0x, which stay text."""
    events = Read(text("perf-tools-examples")).events
    assert ("myopen", {"mode": 0x1A4}) in events
    assert ("myopen", {"filename": b"/etc/ld.so.cache"}) in events
    assert ("myopen", {"rval": 9, "return": 9}) in events
    assert ("myprobe", {"arg1": b"64acf948"}) in events
    registers = [found for name, found in events if name == "myprobe" and len(found) == 4]
    assert registers[2] == {
        "arg1": b"ffffffff",
        "arg2": b"ffff8800ad1f87b8",
        "arg3": b"ffff8800ba22c06c",
        "arg4": b"8",
    }


def test_on_one_line_it_is_one_rejected_line() -> None:
    read = Read(text("perf-tools-examples-on-one-line"))
    assert (read.events, read.batch.unparsed, read.batch.lines) == ([], 1, 1)


def test_a_comment_that_looks_like_an_event_is_none() -> None:
    data = text("tracepoints-and-probes")
    assert b"# nginx-1234 [001] 12345.678: sched_switch:" in data
    assert Read(data).events == []


def test_lines_that_a_terminal_cut() -> None:
    """Three lines end within a name, and one continues in the next line, within a number."""
    read = Read(text("tracing-in-linux"))
    cut = [read.events[number] for number in read.batch.cut]
    registers = {"dfd": 0xFFFFFFFF81216050, "filename": 0x88000}
    assert cut == [
        ("myprobe", {**registers, "flags": 1}),
        ("myprobe", registers),
        ("myprobe", {**registers, "flags": 0}),
        ("myprobe", {**registers, "filename": 0x8000, "flags": 0}),
    ]


def test_loss_by_the_header() -> None:
    assert b"# entries-in-buffer/entries-written: 4/951007 " in text("tracing-in-linux")
    assert Read(text("tracing-in-linux")).batch.lost == 951007 - 4


def test_system_calls() -> None:
    read = Read(text("tracing-in-linux"))
    calls = [event for event in read.events if event[0] != "myprobe"]
    assert len(calls) == len(
        re.findall(rb"^ *\S+-\d+ +\[000\] \S+ \S+: sys_", text("tracing-in-linux"), re.M)
    )
    assert calls[0] == ("sys_enter_open", {"filename": 0x55F45105D8A0, "flags": 0x80042, "mode": 0x1A0})
    assert ("sys_exit_open", {"ret": 3, "return": 3}) in calls


def test_probes_before_they_had_names() -> None:
    """Events are named by symbol, leading blanks are stripped, and all numbers are hexadecimal."""
    read = Read(text("kprobe-based-event-tracer"))
    assert [name for name, _ in read.events] == ["do_sys_open"] * 6
    assert read.events[0][1] == {"dfd": 3, "filename": 0x7FFFD1EC4440, "flags": 0x8000, "mode": 0}
    assert [found["return"] for _, found in read.events if "rv" in found] == [-2, 3, 3]
    assert [record[CALLER] for record in read.batch.records[1::2]] == [
        b"sys_openat",
        b"sys_open",
        b"sys_open",
    ]


@pytest.mark.parametrize("name", sorted(path.stem for path in DOCUMENTS.glob("*.txt")))
def test_with_leading_blanks_stripped_it_reads_the_same(name: str) -> None:
    data = text(name)
    stripped = re.sub(rb"^[ \t]+", b"", data, flags=re.MULTILINE)
    read, other = Read(data), Read(stripped)
    assert other.events == read.events
    assert [record[1:VALUES] for record in other.batch.records] == [
        record[1:VALUES] for record in read.batch.records
    ]
    assert [frames for _, frames in other.batch.stacks] == [frames for _, frames in read.batch.stacks]
