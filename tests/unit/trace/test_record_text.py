"""trace.record_text: one line a call in the kernel's style, which no name or string can imitate."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.config.model import return_type
from kprobe_exporter.model.records import Layout, Record
from kprobe_exporter.model.values import Arg, Value
from kprobe_exporter.trace.record_text import duration_text, show_line, value_text

CALL = Layout(
    1,
    "p",
    "p",
    "joined",
    "vfs_read",
    (
        Arg("count", "int", unsigned=64),
        Arg("file", "str"),
        Arg("buf", "int", pointer=True),
        Arg("comm", "str"),
        Arg("return", "int"),
        Arg("duration", "int"),
    ),
    returns=return_type("int"),
)


def line(record: Record, layout: Layout = CALL) -> str:
    return show_line("vfs_read", layout)(record, ())


def record(
    *,
    caller: bytes | None = b"ksys_read",
    file: Value = b"/etc/passwd",
    comm: Value = b"cat",
    returned: int = 7,
) -> Record:
    return (1, 86_249_616_789, 1, 299, None, caller, 512, file, 0xFFFF888000001000, comm, returned, 12_345)


def test_as_the_kernel_prints_its_events() -> None:
    assert line(record()) == (
        "             cat-299     [001] .....    86.249616: vfs_read: (ksys_read <- vfs_read) count=512"
        ' file="/etc/passwd" buf=0xffff888000001000 duration=12.345us return=7'
    )


def test_unknown_values() -> None:
    assert line(record(caller=None, file=None, comm=None, returned=-2)) == (
        "           <...>-299     [001] .....    86.249616: vfs_read: (vfs_read) count=512 file=(fault)"
        " buf=0xffff888000001000 duration=12.345us return=-2 error=ENOENT"
    )


@pytest.mark.parametrize(
    ("type_", "returned", "text"),
    [
        ("ptr", 0xFFFF888000001000, "return=0xffff888000001000"),
        ("ptr", -12, "return=-12 error=ENOMEM"),
        ("long", -70000, "return=-70000"),
    ],
)
def test_return_by_its_type(type_: str, returned: int, text: str) -> None:
    assert line(record(returned=returned), replace(CALL, returns=return_type(type_))).endswith(f" {text}")


def test_error_of_a_program_has_no_name() -> None:
    layout = replace(CALL, returns=return_type("int")._replace(errno=False))
    assert line(record(returned=-3), layout).endswith(" return=-3")


@given(st.binary(), st.binary(max_size=15))
def test_strings_stay_within_their_quotes(file: bytes, comm: bytes) -> None:
    text = line(record(file=file, comm=comm))
    assert text.isprintable()
    tail = text.rpartition(" buf=0xffff888000001000 duration=12.345us return=7")[0]
    assert tail.count('"') - tail.partition(": vfs_read: ")[0].count('"') == 2
    assert tail.endswith('"')


@given(st.binary(), st.binary())
def test_different_strings_look_different(one: bytes, other: bytes) -> None:
    arg = Arg("file", "str")
    assert (value_text(one, arg) == value_text(other, arg)) == (one == other)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0ns"),
        (999, "999ns"),
        (1000, "1us"),
        (12_345, "12.345us"),
        (10_520_000, "10.52ms"),
        (1_234_567_890, "1.235s"),
        (36_000_000_000_000, "36000s"),
    ],
)
def test_times_as_filters_take_them(nanoseconds: int, text: str) -> None:
    assert duration_text(nanoseconds) == text
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)?(ns|us|ms|s)", text)
