"""The spans and log records that records become, by example; and that every record can be sent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from opentelemetry.semconv._incubating.attributes import cpu_attributes, process_attributes, thread_attributes
from opentelemetry.semconv.attributes import code_attributes, error_attributes

from kprobe_exporter.aggregate.recipes import getter
from kprobe_exporter.export.otlp import build as names
from kprobe_exporter.export.otlp.build import MOST_BYTES, MOST_FRAMES, Builder, Description, plain, text
from kprobe_exporter.export.otlp.clock import WallClock
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.records import STACK_POINTER, Emission, Layout, Record
from kprobe_exporter.model.values import Arg, ReturnType, Value
from tests.support.otlp_spans import attributes_of, decoded

EPOCH = 1_700_000_000_000_000_000
INT = ReturnType("int", "s32", signed=True)
LONG = ReturnType("long", "s64", signed=True, wide=True)
POINTER = ReturnType("struct file *", "x64", pointer=True)

RESULTS = (Arg("return", "int"), Arg("duration", "int"))
CALL_ARGS = (Arg("file", "int"), Arg("name", "str"), Arg("comm", "str"), *RESULTS)
CALL = Layout(1, "fsync", "fsync", "joined", "vfs_fsync_range", CALL_ARGS, INT)
POINT_ARGS = (Arg("dfd", "int"), Arg("filename", "str"), Arg(STACK_POINTER, "int"), Arg("comm", "comm"))
POINT = Layout(2, "open", "open", "entry", "do_sys_openat2", POINT_ARGS)
BACK = Layout(3, "back", "back", "return", "f", (Arg("return", "int"),), INT)


def call(
    returned: Value = 0, name: Value = b"data", comm: Value = b"postgres", tgid: int | None = 70
) -> Record:
    return (1, 1_000, 3, 71, tgid, b"caller", 0xFFFF888012345678, name, comm, returned, 2_500)


def point(name: Value = b"/etc/passwd", comm: Value = b"cat", time: int = 1_000) -> Record:
    return (2, time, 3, 71, 70, None, -100, name, 0xFFFFC90000003E00, comm)


def builder(
    layout: Layout = CALL, kind: str = "call", *, pointers: tuple[str, ...] = (), named: tuple[str, ...] = ()
) -> Builder:
    returned = getter(layout, "return") if layout.place("return") is not None else None
    layout = replace(layout, args=tuple(arg._replace(pointer=arg.name in pointers) for arg in layout.args))
    descriptions = {layout.layout_id: Description(layout, kind, name_of, named, returned)}
    return Builder(descriptions, WallClock(lambda: 0, lambda: EPOCH))


def log_of(built: Builder, emission: Emission) -> Any:
    """Return a decoded log record."""
    return LogRecord.FromString(built.log(emission))


def span_attributes(built: Builder, record: Record, **more: Any) -> dict[str, Any]:
    return attributes_of(decoded(built.span(Emission(record, 5, 6, **more))).attributes)


def test_labels_are_attributes_and_replace_the_argument_of_their_name() -> None:
    readers: list[tuple[str, Callable[[Record], str | None]]] = [
        ("device", lambda record: "254:0"),
        ("name", lambda record: "x"),
        ("none", lambda record: None),
    ]
    described = Description(CALL, "call", name_of, labels=readers)
    attributes, _ = described.attributes(Emission(call()))
    assert (attributes["kprobe.arg.device"], attributes["kprobe.arg.name"]) == ("254:0", "x")
    assert "kprobe.arg.none" not in attributes
    assert 'device="254:0", name="x"' in described.line(attributes, call())


def test_a_programs_error_is_a_number() -> None:
    made = builder(replace(CALL, returns=INT._replace(errno=False)), "ucall")
    assert span_attributes(made, call(-3))["error.type"] == "-3"


def test_time_of_a_step_is_in_seconds() -> None:
    layout = replace(CALL, args=(*CALL_ARGS, Arg("sent", "int")), steps=("sent",))
    assert span_attributes(builder(layout), (*call(), 1_500_000))["kprobe.arg.sent"] == 0.0015
    assert "kprobe.arg.sent" not in span_attributes(builder(layout), (*call(), None))


class TestSpan:
    def test_all_of_it(self) -> None:
        emission = Emission(call(), 1 << 100, 77, 66, (b"a+0x1/0x2", b"b"), {"k8s.pod.name": "pod"})
        span = decoded(builder(pointers=("file",)).span(emission))
        times = span.start_time_unix_nano, span.end_time_unix_nano
        assert (span.name, span.kind, *times) == (
            "vfs_fsync_range",
            Span.SPAN_KIND_INTERNAL,
            EPOCH + 1_000,
            EPOCH + 3_500,
        )
        assert int.from_bytes(span.trace_id, "big") == 1 << 100
        assert [int.from_bytes(number, "big") for number in (span.span_id, span.parent_span_id)] == [77, 66]
        assert span.flags == SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
        assert span.status.code == Status.STATUS_CODE_UNSET
        assert attributes_of(span.attributes) == {
            "kprobe.name": "fsync",
            "kprobe.kind": "call",
            "code.function.name": "vfs_fsync_range",
            "process.pid": 70,
            "thread.id": 71,
            "thread.name": "postgres",
            "cpu.logical_number": 3,
            "kprobe.return_value": 0,
            "kprobe.arg.name": "data",
            "code.stacktrace": "a+0x1/0x2\nb",
            "k8s.pod.name": "pod",
        }

    def test_a_root_has_no_parent(self) -> None:
        assert not decoded(builder().span(Emission(call(), 5, 6))).parent_span_id

    @pytest.mark.parametrize(
        ("returns", "returned", "error", "shown"),
        [
            (INT, -5, "EIO", -5),
            (INT, -4095, "4095", -4095),
            (INT, -4096, None, -4096),
            (INT, 7, None, 7),
            (LONG, 2**32 - 2, "ENOENT", -2),
            (LONG, 2**32 - 4096, None, 2**32 - 4096),
            (POINTER, 2**64 - 12, "ENOMEM", -12),
            (POINTER, 0xFFFF888000000000, None, None),
            (POINTER, 0, None, None),
            (ReturnType("u64", "u64"), 2**64 - 5, None, str(2**64 - 5)),
            (INT, None, None, None),
        ],
    )
    def test_what_is_returned(
        self, returns: ReturnType, returned: Value, error: str | None, shown: object
    ) -> None:
        built = builder(replace(CALL, returns=returns))
        span = decoded(built.span(Emission(call(returned), 5, 6)))
        found = attributes_of(span.attributes)
        assert found.get("kprobe.return_value") == shown
        assert found.get("error.type") == error
        assert (span.status.code == Status.STATUS_CODE_ERROR) == (error is not None)
        assert span.status.message == (error or "")

    def test_a_returned_pointer_that_is_named(self) -> None:
        built = builder(replace(CALL, returns=POINTER), named=("return",))
        assert span_attributes(built, call(0xFFFF888000000000))["kprobe.return_value"] == "0xffff888000000000"
        assert span_attributes(built, call(2**64 - 12))["kprobe.return_value"] == -12

    def test_a_pointer_that_is_named(self) -> None:
        built = builder(pointers=("file",), named=("file",))
        assert span_attributes(built, call())["kprobe.arg.file"] == "0xffff888012345678"
        assert "kprobe.arg.file" not in span_attributes(builder(pointers=("file",)), call())

    def test_what_is_not_known_is_left_out(self) -> None:
        found = span_attributes(builder(), call(None, None, None, None))
        assert not {"kprobe.return_value", "kprobe.arg.name", "thread.name", "process.pid"} & found.keys()

    @pytest.mark.parametrize("symbol", ["tracepoint:a:b -> tracepoint:c:d", "uprobe:/bin/sh:0x123"])
    def test_what_is_no_function_is_not_called_one(self, symbol: str) -> None:
        built = builder(replace(CALL, symbol=symbol))
        assert "code.function.name" not in span_attributes(built, call())
        assert decoded(built.span(Emission(call(), 5, 6))).name == symbol

    def test_a_stack_is_bounded(self) -> None:
        found = span_attributes(builder(), call(), stack=(b"f",) * 1000)
        assert found["code.stacktrace"].count("f") == MOST_FRAMES

    def test_a_name_of_the_programs_own_choosing_stays_on_its_line(self) -> None:
        found = span_attributes(builder(), call(comm=b"a\nb\x1b[2J\xff\xe2\x80\xae"))
        assert found["thread.name"] == "a\\nb\\x1b[2J\\xff\\u202e"


class TestLog:
    def test_all_of_it(self) -> None:
        record = log_of(builder(POINT, "kprobe"), Emission(point()))
        assert (record.event_name, record.time_unix_nano, record.observed_time_unix_nano) == (
            "kprobe.hit",
            EPOCH + 1_000,
            EPOCH,
        )
        assert (record.severity_number, record.severity_text) == (SeverityNumber.SEVERITY_NUMBER_INFO, "INFO")
        assert (record.trace_id, record.span_id, record.flags) == (b"", b"", 0)
        assert (
            record.body.string_value == 'do_sys_openat2(dfd=-100, filename="/etc/passwd"), cat[71] on CPU 3'
        )
        assert attributes_of(record.attributes) == {
            "kprobe.name": "open",
            "kprobe.kind": "kprobe",
            "code.function.name": "do_sys_openat2",
            "process.pid": 70,
            "thread.id": 71,
            "thread.name": "cat",
            "cpu.logical_number": 3,
            "kprobe.arg.dfd": -100,
            "kprobe.arg.filename": "/etc/passwd",
        }

    def test_one_in_a_span(self) -> None:
        record = log_of(builder(POINT), Emission(point(), 5, 0, 6))
        assert (record.trace_id[-1], record.span_id[-1], record.flags) == (5, 6, 1)

    def test_one_of_an_error(self) -> None:
        record = log_of(builder(BACK, "kretprobe"), Emission((3, 1, 0, 7, 7, None, -2)))
        assert (record.severity_number, record.severity_text) == (
            SeverityNumber.SEVERITY_NUMBER_ERROR,
            "ERROR",
        )
        assert record.body.string_value == "f() = -2 ENOENT, [7] on CPU 0"

    def test_one_of_a_call(self) -> None:
        record = log_of(builder(pointers=("file",)), Emission(call(-5)))
        assert (
            record.body.string_value
            == 'vfs_fsync_range(name="data") = -5 EIO in 0.003 ms, postgres[71] on CPU 3'
        )
        assert record.time_unix_nano == EPOCH + 3_500  # its end
        assert attributes_of(record.attributes)["kprobe.duration"] == 2.5e-6

    def test_a_duration_of_ones_own_is_an_argument(self) -> None:
        layout = Layout(4, "p", "p", "entry", "f", (Arg("duration", "int"),))
        record = log_of(builder(layout), Emission((4, 1, 0, 7, 7, None, 9)))
        assert attributes_of(record.attributes)["kprobe.arg.duration"] == 9

    def test_the_body_is_one_bounded_line(self) -> None:
        layout = replace(POINT, args=tuple(Arg(f"a{n}", "str") for n in range(20)))
        record = log_of(builder(layout), Emission((2, 1, 0, 7, 7, None, *[b"\n" * 2000] * 20)))
        body = record.body.string_value
        assert len(body) == 4096
        assert body.isprintable()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (names.FUNCTION, code_attributes.CODE_FUNCTION_NAME),
        (names.STACKTRACE, code_attributes.CODE_STACKTRACE),
        (names.ERROR, error_attributes.ERROR_TYPE),
        (names.PROCESS, process_attributes.PROCESS_PID),
        (names.THREAD, thread_attributes.THREAD_ID),
        (names.THREAD_NAME, thread_attributes.THREAD_NAME),
        (names.PROCESSOR, cpu_attributes.CPU_LOGICAL_NUMBER),
    ],
)
def test_the_names_are_those_of_the_conventions(ours: str, theirs: str) -> None:
    assert ours == theirs


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, str(2**63)),
        (b"caf\xc3\xa9", "café"),
        (b"\xc3", "\\xc3"),
        (b"{1,2}", "{1,2}"),
        ("é".encode() * 2000, "é" * (MOST_BYTES // 2)),
        (b"x" + "é".encode() * 2000, "x" + "é" * (MOST_BYTES // 2 - 1)),
        ("😀".encode() * 400, "😀" * (MOST_BYTES // 4)),
    ],
)
def test_values(value: int | bytes, expected: object) -> None:
    assert plain(value) == expected


@given(st.binary(max_size=3000))
def test_text_is_bounded_and_printable(value: bytes) -> None:
    shown = text(value)
    assert len(shown.encode()) <= MOST_BYTES
    assert shown.isprintable()


BYTES = st.one_of(st.none(), st.binary(max_size=1200))
NUMBERS = st.one_of(st.none(), st.integers(-(2**64), 2**64))


@given(
    st.sampled_from([Builder.span, Builder.log]),
    st.integers(0, 10**21),
    NUMBERS,
    BYTES,
    BYTES,
    st.lists(st.binary(max_size=40), max_size=200),
)
def test_whatever_was_read_can_be_sent(
    build: Callable[[Builder, Emission], Any],
    time: int,
    returned: int | None,
    name: bytes | None,
    comm: bytes | None,
    stack: list[bytes],
) -> None:
    """Even a forged line of trace_pipe can be sent: a time of any length, a name of any bytes."""
    record = (1, time, 3, 71, 70, None, returned, name, comm, returned, time)
    built = build(builder(), Emission(record, 2**128 - 1, 2**64 - 1, 2**64 - 1, tuple(stack)))
    if build is Builder.span:
        assert decoded(built).name == "vfs_fsync_range"
    else:
        assert LogRecord.FromString(built).event_name == "kprobe.hit"
