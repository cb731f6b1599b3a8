"""Exported data arrives complete and once at receivers of other projects, over both protocols."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kprobe_exporter.export.otlp import encode
from kprobe_exporter.export.otlp.channel import Channel
from kprobe_exporter.export.otlp.metrics import Conversion, Pusher, pack, size
from kprobe_exporter.export.otlp.settings import OtlpSettings, Signal
from kprobe_exporter.export.otlp.transport import connect
from kprobe_exporter.model.snapshot import Family, HistogramValue, Snapshot
from tests.support.patience import eventually, patience
from tests.support.receivers import MockServer, Rotel, attributes, mock_server, needs_mock_server, rotel

BOTH = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])

COUNT = 1100
"""More than two batches."""

BEGIN = 1_700_000_000_123_456_789

RESOURCE = Resource({"service.name": "kprobe_exporter", "host.name": "h"})
SCOPE = InstrumentationScope("kprobe_exporter", "0.1")

DURATIONS = HistogramValue((1e-06, 0.5), (2, 0, 1), 12.25)
BALANCE = HistogramValue((-1.0, 0.0), (1, 2, 3), -4)
SIZES = HistogramValue((1, 2, 4), (1, 2, 0, 4), 90)

SNAPSHOT = Snapshot(
    (
        Family("kprobe_hits_total", "counter", "Firings.", ("probe",), {("open",): 23, ("read",): 2**64}),
        Family("kprobe_up", "gauge", "Whether it works.", ("probe",), {("open",): 1.0}),
        Family("kprobe_duration_seconds", "histogram", "Of calls.", ("probe",), {("open",): DURATIONS}),
        Family("kprobe_balance", "histogram", "Below 0.", (), {(): BALANCE}),
        Family("kprobe_sizes_bytes", "histogram", "Powers.", (), {(): SIZES}),
        Family("kprobe_empty_total", "counter", "Nothing seen yet.", ("comm",), {}),
    ),
    (),
)
POINTS = 6


@pytest.fixture(scope="module")
def elastic() -> Iterator[MockServer]:
    needs_mock_server()
    with mock_server() as server:
        yield server


@pytest.fixture
def printing_rotel(tmp_path: Path) -> Iterator[Rotel]:
    with rotel(tmp_path) as server:
        yield server


def span(number: int) -> bytes:
    return encode.span(
        1 + number // 10,
        1 + number,
        number if number % 10 else 0,
        f"call {number}",
        BEGIN + number,
        BEGIN + number + 1000,
        {"kprobe.name": "open", "thread.id": number, "kprobe.return_value": -2, "text": "é\x00\u202e"},
        "" if number % 2 else None,
    )


def record(number: int) -> bytes:
    return encode.log_record(
        BEGIN + number,
        BEGIN,
        "kprobe.hit",
        f"open by {number}",
        {"kprobe.name": "open", "thread.id": number},
        0,
        0,
        error=False,
    )


BUILD: dict[Signal, Any] = {"traces": span, "logs": record}


def send(signal: Signal, server: MockServer | Rotel, protocol: Any, compression: Any = None) -> None:
    """Send COUNT items through a channel, and assert that all were accepted."""
    settings = OtlpSettings(
        server.endpoints[protocol], protocol, compression=compression, timeout=patience(10)
    )
    sender = connect(signal, settings, encode.Requests(RESOURCE, SCOPE))
    channel: Channel[int] = Channel(signal, BUILD[signal], sender, capacity=10_000)
    channel.start()
    for number in range(COUNT):
        assert channel.put(number)
    channel.close(patience(20))
    assert channel.counts() == (COUNT, 0, 0)


def push(server: MockServer | Rotel, protocol: Any) -> None:
    """Send the snapshot once, at the end."""
    transport = connect(
        "metrics",
        OtlpSettings(server.endpoints[protocol], protocol, timeout=patience(10)),
        partial(pack, RESOURCE, SCOPE),
        size,
    )
    pusher = Pusher(lambda: SNAPSHOT, transport, 3600, Conversion(BEGIN))
    pusher.start()
    pusher.close(patience(20))
    assert pusher.counts() == (POINTS, 0, 0)


@BOTH
def test_spans(elastic: MockServer, protocol: str) -> None:
    before = len(elastic.spans())
    send("traces", elastic, protocol)
    eventually(lambda: len(elastic.spans()) >= before + COUNT)
    got = {span["name"]: span for span in elastic.spans()[before:]}
    assert len(got) == len(elastic.spans()) - before == COUNT
    for number in range(COUNT):
        span = got[f"call {number}"]
        assert int(span["traceId"], 16) == 1 + number // 10
        assert int(span["spanId"], 16) == 1 + number
        assert int(span.get("parentSpanId") or "0", 16) == (number if number % 10 else 0)
        assert int(span["startTimeUnixNano"]) == BEGIN + number
        assert int(span["endTimeUnixNano"]) == BEGIN + number + 1000
        assert attributes(span) == {
            "kprobe.name": "open",
            "thread.id": str(number),
            "kprobe.return_value": "-2",
            "text": "é\x00\u202e",
        }
        assert span["status"].get("code") in (
            (2, "STATUS_CODE_ERROR") if number % 2 else (0, None, "STATUS_CODE_UNSET")
        )
    resource = elastic.requests("traces")[-1]["resourceSpans"][0]["resource"]
    assert attributes(resource) == {"service.name": "kprobe_exporter", "host.name": "h"}


@BOTH
def test_log_records(elastic: MockServer, protocol: str) -> None:
    before = len(elastic.log_records())
    send("logs", elastic, protocol)
    eventually(lambda: len(elastic.log_records()) >= before + COUNT)
    got = elastic.log_records()[before:]
    assert [int(attributes(record)["thread.id"]) for record in got] == list(range(COUNT))
    for number, record in enumerate(got):
        assert record["body"]["stringValue"] == f"open by {number}"
        assert int(record["timeUnixNano"]) == BEGIN + number
        assert attributes(record)["kprobe.name"] == "open"


@BOTH
def test_metrics(elastic: MockServer, protocol: str) -> None:
    before = len(elastic.metrics())
    push(elastic, protocol)
    eventually(lambda: len(elastic.metrics()) >= before + 5)
    got = {metric["name"]: metric for metric in elastic.metrics()[before:]}
    assert list(got) == [family.name for family in SNAPSHOT.families if family.samples]
    hits = got["kprobe_hits_total"]["sum"]
    assert hits["isMonotonic"]
    assert hits["aggregationTemporality"] in (2, "AGGREGATION_TEMPORALITY_CUMULATIVE")
    values = {attributes(p)["probe"]: p.get("asInt") or p.get("asDouble") for p in hits["dataPoints"]}
    assert {probe: float(value) for probe, value in values.items()} == {"open": 23, "read": 2.0**64}
    assert all(int(point["startTimeUnixNano"]) == BEGIN for point in hits["dataPoints"])
    [up] = got["kprobe_up"]["gauge"]["dataPoints"]
    assert up["asDouble"] == 1
    assert got["kprobe_duration_seconds"]["unit"] == "s"
    [duration] = got["kprobe_duration_seconds"]["histogram"]["dataPoints"]
    assert [*map(int, duration["bucketCounts"])] == [2, 0, 1]
    assert duration["explicitBounds"] == [1e-06, 0.5]
    assert (int(duration["count"]), duration["sum"]) == (3, 12.25)
    [balance] = got["kprobe_balance"]["histogram"]["dataPoints"]
    assert "sum" not in balance
    assert int(balance["count"]) == 6
    assert got["kprobe_sizes_bytes"]["unit"] == "By"
    [sizes] = got["kprobe_sizes_bytes"]["histogram"]["dataPoints"]
    assert [*map(int, sizes["bucketCounts"])] == [1, 2, 0, 4]
    assert sizes["explicitBounds"] == [1, 2, 4]
    assert (int(sizes["count"]), sizes["sum"]) == (7, 90)


@BOTH
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_rotel_gets_spans(printing_rotel: Rotel, protocol: str, compression: str) -> None:
    send("traces", printing_rotel, protocol, compression)
    eventually(lambda: len(printing_rotel.found(r"Name +: (call \d+)")) >= COUNT)
    assert printing_rotel.found(r"Name +: (call \d+)") == [f"call {n}" for n in range(COUNT)]
    assert printing_rotel.found(r"-> thread.id: Int\((\d+)\)") == [*map(str, range(COUNT))]
    assert printing_rotel.found(r"-> kprobe.name: Str\((.*)\)") == ["open"] * COUNT
    assert printing_rotel.found(r"Start time: (\d+)") == [str(BEGIN + n) for n in range(COUNT)]


@BOTH
def test_rotel_gets_log_records(printing_rotel: Rotel, protocol: str) -> None:
    send("logs", printing_rotel, protocol)
    eventually(lambda: len(printing_rotel.found(r"Body: Str\((.*)\)")) >= COUNT)
    assert printing_rotel.found(r"Body: Str\((.*)\)") == [f"open by {n}" for n in range(COUNT)]
    assert printing_rotel.found(r"EventName: (.*)") == ["kprobe.hit"] * COUNT
    assert printing_rotel.found(r"Timestamp: (\d+)") == [str(BEGIN + n) for n in range(COUNT)]


@BOTH
def test_rotel_gets_metrics(printing_rotel: Rotel, protocol: str) -> None:
    push(printing_rotel, protocol)
    eventually(lambda: "Buckets #3," in printing_rotel.output())
    families = [family for family in SNAPSHOT.families if family.samples]
    assert printing_rotel.found("-> Name: (.*)") == [family.name for family in families]
    assert printing_rotel.found("-> Description: (.*)") == [family.help for family in families]
    assert printing_rotel.found("-> DataType: (.*)") == ["Sum", "Gauge", *["Histogram"] * 3]
    assert printing_rotel.found("Sum: (.*)") == ["12.25", "90"]
    assert printing_rotel.found(r"ExplicitBounds #\d: (.*)")[-3:] == ["1", "2", "4"]
    assert printing_rotel.found(r"Buckets #\d, Count: (\d+)")[-4:] == ["1", "2", "0", "4"]
