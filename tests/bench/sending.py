"""A process that sends spans or log records as fast as one can, by our way or by the SDK's own.

Run as a program it is that process: a number of items on stdin, what they took on stdout.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from kprobe_exporter.agent.otlp import NAMES, Signal
from kprobe_exporter.aggregate.recipes import getter
from kprobe_exporter.export.otlp.build import DURATION, HIT, SCOPE, Builder, Description
from kprobe_exporter.export.otlp.channel import BATCH, Channel, Sender
from kprobe_exporter.export.otlp.clock import WallClock
from kprobe_exporter.export.otlp.encode import Requests
from kprobe_exporter.export.otlp.resource import resource
from kprobe_exporter.export.otlp.settings import OtlpSettings, Protocol
from kprobe_exporter.export.otlp.transport import connect
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.records import TIME, Emission, Layout
from kprobe_exporter.model.values import Arg, ReturnType

OURS, USUAL, BUILT = "ours", "usual", "built"
"""The agent's way; the SDK's as a program uses it, with a tracer or a logger; the SDK's processor and
exporter with the SDK's spans made without a tracer."""

WAYS: Mapping[Signal, tuple[str, ...]] = {"span": (OURS, USUAL, BUILT), "log": (OURS, USUAL)}

QUEUE = 10_000
"""The agent's by default, and given to the SDK's processors."""

AHEAD = 16 * BATCH
"""Items that are handed over and not yet taken, at the most: none is dropped."""

PATIENCE = 60.0

LSEEK = Layout(
    1,
    "lseek",
    "lseek",
    "joined",
    "lseek",
    (
        Arg("fd", "int"),
        Arg("offset", "int"),
        Arg("whence", "int"),
        Arg("comm", "comm"),
        Arg("return", "int"),
        Arg("duration", "int"),
    ),
    ReturnType("long", "s64", signed=True),
)
DESCRIBED = {1: Description(LSEEK, "syscall", name_of, returned=getter(LSEEK, "return"))}

ERRORS = 16
"""Of so many calls one fails."""


class Took(NamedTuple):
    """What so many items took: seconds, and seconds of user and system time, of all threads."""

    items: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.items / self.seconds


class Way(NamedTuple):
    """How items are sent: ``put`` one; how many were ``exported`` so far; ``close`` at the end."""

    put: Callable[[Emission], object]
    exported: Callable[[], int]
    close: Callable[[], object]


def calls(count: int) -> list[Emission]:
    """Calls of lseek(2), each a trace of its own, as the reader's thread selects them."""
    now = time.monotonic_ns()
    made = []
    for number in range(1, count + 1):
        returned = -22 if number % ERRORS == 0 else number
        record = (1, now + number, 3, 71, 70, None, 3, number, 0, b"postgres", returned, 1_000 + number)
        made.append(Emission(record, number << 64 | number, number))
    return made


def send(way: Way, emissions: Sequence[Emission], count: int) -> Took:
    """Put so many of them, in turn and never too many ahead, until all are taken.

    A multiple of BATCH, for the last ones would wait for others. AssertionError if they are not taken.
    """
    assert count % BATCH == 0
    items, before = cycle(emissions), way.exported()
    began, cpu = time.perf_counter(), time.process_time()
    put = 0
    while (waiting := put - (way.exported() - before)) or put < count:
        assert time.perf_counter() - began < PATIENCE, f"{waiting} of {put} items were not taken"
        if put < count and waiting <= AHEAD - BATCH:
            for item in islice(items, BATCH):
                way.put(item)
            put += BATCH
        else:
            time.sleep(0.0005)
    return Took(count, time.perf_counter() - began, time.process_time() - cpu)


def ours(signal: Signal, sender: Sender) -> Way:
    """As ``agent.otlp`` has it: a channel, and what it builds on its own thread."""
    builder = Builder(DESCRIBED, WallClock())
    build: Callable[[Emission], object] = builder.span if signal == "span" else builder.log
    channel = Channel(NAMES[signal], build, sender, QUEUE)
    channel.start()
    return Way(channel.put, lambda: channel.counts().exported, partial(channel.close, 5))


class Counted:
    """An exporter of the SDK, and how many items it says were taken."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self.exported = 0

    def export(self, batch: Sequence[Any]) -> Any:
        result = self._exporter.export(batch)
        if result.name == "SUCCESS":
            self.exported += len(batch)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def usual(signal: Signal, exporter: Any) -> Way:
    """A tracer's spans or a logger's records, with what ours tell, through the SDK's batch processor."""
    counted: Any = Counted(exporter)
    told, clock = Resource(resource().attributes), WallClock()
    if signal == "log":
        loggers = LoggerProvider(told)
        loggers.add_log_record_processor(BatchLogRecordProcessor(counted, max_queue_size=QUEUE))
        emit = loggers.get_logger(SCOPE.name, SCOPE.version).emit
        return Way(
            lambda emission: emit(record_of(emission, clock)),
            lambda: counted.exported,
            loggers.shutdown,
        )
    tracers = TracerProvider(resource=told)
    tracers.add_span_processor(BatchSpanProcessor(counted, max_queue_size=QUEUE))
    start = tracers.get_tracer(SCOPE.name, SCOPE.version).start_span
    described = DESCRIBED[1]

    def put(emission: Emission) -> None:
        record, begin = emission.record, clock.unix_ns(emission.record[TIME])
        attributes, error = described.attributes(emission)
        span = start(described.name, attributes=attributes, start_time=begin)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(begin + record[LSEEK.place("duration") or 0])

    return Way(put, lambda: counted.exported, tracers.shutdown)


def record_of(emission: Emission, clock: WallClock) -> LogRecord:
    """The SDK's log record with what ours tell."""
    described, record = DESCRIBED[1], emission.record
    attributes, error = described.attributes(emission)
    took = described.duration(record) or 0
    severity = SeverityNumber.INFO if error is None else SeverityNumber.ERROR
    return LogRecord(
        timestamp=clock.unix_ns(record[TIME]) + took,
        observed_timestamp=clock.now(),
        context=Context(),
        severity_text=severity.name,
        severity_number=severity,
        body=described.line(attributes, record),
        attributes={**attributes, DURATION: took / 1e9},
        event_name=HIT,
    )


def built(exporter: Any) -> Way:
    """The SDK's spans without a tracer, built by the thread that ends them, through its batch processor."""
    counted: Any = Counted(exporter)
    told, clock = resource(), WallClock()
    processor = BatchSpanProcessor(counted, max_queue_size=QUEUE)
    return Way(
        lambda emission: processor.on_end(readable(emission, told, clock)),
        lambda: counted.exported,
        processor.shutdown,
    )


def readable(emission: Emission, told: Resource, clock: WallClock) -> ReadableSpan:
    """The SDK's span with what ours tell."""
    described, begin = DESCRIBED[1], clock.unix_ns(emission.record[TIME])
    attributes, error = described.attributes(emission)
    return ReadableSpan(
        described.name,
        SpanContext(emission.trace, emission.span, is_remote=False, trace_flags=TraceFlags(1)),
        None,
        told,
        attributes,
        status=Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, error),
        start_time=begin,
        end_time=begin + (described.duration(emission.record) or 0),
        instrumentation_scope=SCOPE,
    )


def opened(way: str, signal: Signal, protocol: Protocol, endpoint: str) -> Way:
    """A way to a collector; the SDK's exporters are as it makes them."""
    if way == OURS:
        encode = Requests(resource(), SCOPE)
        return ours(signal, connect(NAMES[signal], OtlpSettings(endpoint, protocol), encode))
    make: Callable[..., Any]
    if protocol == "grpc":
        make = GrpcSpans if signal == "span" else GrpcLogs
    else:
        make = HttpSpans if signal == "span" else HttpLogs
        endpoint += f"/v1/{NAMES[signal]}"
    exporter = make(endpoint=endpoint)
    return built(exporter) if way == BUILT else usual(signal, exporter)


class Sending:
    """The process, seen from outside."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def send(self, items: int) -> Took:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(items, file=self._process.stdin, flush=True)
        return Took(*json.loads(self._process.stdout.readline()))


@contextmanager
def sendings(signal: Signal, protocol: Protocol, endpoint: str) -> Iterator[Mapping[str, Sending]]:
    """A process for each way, until the context is left."""
    with ExitStack() as stack:
        made = {}
        for way in WAYS[signal]:
            command = [sys.executable, "-m", __name__, way, signal, protocol, endpoint]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.terminate)
            made[way] = Sending(process)
        yield made


def main(way: str, signal: Signal, protocol: Protocol, endpoint: str) -> None:
    found = opened(way, signal, protocol, endpoint)
    emissions = calls(AHEAD)
    for line in sys.stdin:
        print(json.dumps(send(found, emissions, int(line))), flush=True)
    found.close()


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
