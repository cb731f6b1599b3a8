"""otlp: selected records are built, sent and counted once, and calls become exemplars."""

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from kprobe_exporter.agent import otlp as telemetry
from kprobe_exporter.agent.otlp import FLUSH, OtlpExport, memory
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.config.model import Export, Otlp, return_type
from kprobe_exporter.export.otlp.channel import TURN
from kprobe_exporter.model.records import Batch, Emission, Join, Layout, Record
from kprobe_exporter.model.snapshot import Exemplar, Family, Snapshot
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan import JoinedSpec
from kprobe_exporter.probing.attach import Attached
from tests.support.keeping_sender import KeepingSender
from tests.support.otlp_spans import attributes_of, decoded
from tests.support.patience import eventually, patience

FETCHED = Arg("fd", "int"), Arg("buf", "int", pointer=True)
RETURNED = Arg("return", "int")
ENTRY = Layout(0, "read", "read", "eprobe", "sys_enter_read", FETCHED)
RETURN = Layout(1, "read", "read_return", "eprobe", "sys_exit_read", (RETURNED,))
VALUES = (*FETCHED, RETURNED, Arg("duration", "int"))
CALL = Layout(2, "read", "read", "joined", "read", VALUES, return_type("long"))
JOIN = Join(CALL, (ENTRY,), RETURN, "key", ("tid",))
BY_FD = JOIN._replace(by="key", key=("fd",))
SPEC = JoinedSpec("read", "syscall", "syscall:read", "read", 2, (), "key", ("tid",), None)
OPEN = Layout(5, "open", "open", "return", "do_sys_openat2", (RETURNED,), return_type("int"))


class Collector:
    """A collector that takes everything, or nothing."""

    def __init__(self) -> None:
        self.got: dict[str, list[Any]] = {"logs": [], "traces": [], "metrics": []}
        self.takes = True

    def connect(self, signal: str, *_: object) -> "_Sender":
        return _Sender(self, signal)


class _Sender(KeepingSender):
    def __init__(self, collector: Collector, signal: str) -> None:
        self.collector, self.signal = collector, signal
        self.items = collector.got[signal]

    def export(self, items: Sequence[Any]) -> int:
        taken = super().export(items)
        return taken if self.collector.takes else 0


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Collector:
    made = Collector()
    monkeypatch.setattr(telemetry, "connect", made.connect)
    return made


def single(layout: Layout) -> Attached:
    spec = SimpleNamespace(kind="kretprobe")
    return cast("Attached", SimpleNamespace(layout=layout, joined=None, residual_filter=None, spec=spec))


class Wired:
    """OtlpExport with a call and an event, as the agent wires it."""

    def __init__(self, otlp: Otlp, call: Export | None = None, event: Export | None = None) -> None:
        self.exemplars: list[tuple[str, Exemplar]] = []
        self.telemetry = OtlpExport(otlp, None, None, lambda *one: self.exemplars.append(one))
        self.pairing = Pairing(nested=True)
        if call is not None:
            attached = Attached(SPEC, (), JOIN)
            self.telemetry.add(attached, call, self.pairing)
        if event is not None:
            self.telemetry.add(single(OPEN), event, self.pairing)
        self.telemetry.start(lambda: Snapshot((), ()), 0)

    def feed(self, *records: Record) -> None:
        self.telemetry.consume(self.pairing.pair(Batch(list(records))))

    def close(self) -> dict[tuple[str, str], Any]:
        """Close it, and return the counts by outcome and signal."""
        self.telemetry.stop_pushing()
        self.telemetry.close()
        return {
            (family.name.split("_")[3], signal): count
            for family in self.telemetry.families()
            for (signal,), count in family.samples.items()
            if count
        }


def call(start: int, took: int, returned: int = 5, tid: int = 7) -> tuple[Record, Record]:
    return (0, start, 0, tid, 70, None, 3, 0xFFFF), (1, start + took, 1, tid, 70, None, returned)


def test_a_call_is_a_span(collector: Collector) -> None:
    made = Wired(Otlp(), call=Export("span"))
    made.feed(*call(1_000_000_000, 250_000, -2))
    assert made.close() == {("exported", "traces"): 1}
    (span,) = map(decoded, collector.got["traces"])
    assert (span.name, span.end_time_unix_nano - span.start_time_unix_nano) == ("read", 250_000)
    attributes = attributes_of(span.attributes)
    assert attributes["kprobe.arg.fd"] == 3
    assert "kprobe.arg.buf" not in attributes  # a pointer is left out
    assert attributes["error.type"] == "ENOENT"
    ((probe, exemplar),) = made.exemplars
    assert (probe, exemplar.value) == ("read", 250_000 / 1e9)
    assert dict(exemplar.labels) == {"trace_id": span.trace_id.hex(), "span_id": span.span_id.hex()}


def test_only_what_arrived_is_an_exemplar(collector: Collector) -> None:
    """A span that the collector did not take is no exemplar, although it was queued and sent."""
    collector.takes = False
    made = Wired(Otlp(), call=Export("span"))
    made.feed(*call(1_000_000_000, 250_000))
    assert made.close() == {("failed", "traces"): 1}
    assert len(collector.got["traces"]) == 1
    assert made.exemplars == []


def test_what_the_agent_tells_belongs_to_the_slowest_call(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the slowest of the last seconds, of one of the probes."""
    made = Wired(Otlp(), call=Export("span"))
    made.telemetry.open("log")
    made.telemetry.watch({"read"})

    def told(*probes: str) -> LogRecord:
        made.telemetry.announce("kprobe.recording", "a recording", {}, probes)
        eventually(lambda: len(collector.got["logs"]) == len(texts) + 1)
        texts.append(collector.got["logs"][-1])
        return cast("LogRecord", LogRecord.FromString(texts[-1]))

    texts: list[bytes] = []
    assert told("read").span_id == b""
    for took in (250_000, 900_000, 300_000):
        made.feed(*call(1_000_000_000, took))
    eventually(lambda: len(collector.got["traces"]) == 3)
    spans = [decoded(one) for one in collector.got["traces"]]
    slowest = max(spans, key=lambda one: one.end_time_unix_nano - one.start_time_unix_nano)
    assert (told("other").span_id, told().span_id) == (b"", b"")
    found = told("other", "read")
    assert (found.trace_id, found.span_id) == (slowest.trace_id, slowest.span_id)
    monkeypatch.setattr(telemetry, "RECENT", -1.0)  # all of them are too old
    assert told("read").span_id == b""
    made.feed(*call(1_000_000_000, 100))
    eventually(lambda: len(collector.got["traces"]) == 4)
    monkeypatch.setattr(telemetry, "RECENT", 10.0)
    assert told("read").span_id == decoded(collector.got["traces"][-1]).span_id
    made.close()


def test_a_thread_that_died_in_a_call_is_no_parent(collector: Collector) -> None:
    """Another thread has its id an hour later: the three calls of that thread are three whole traces."""
    made = Wired(Otlp(), call=Export("span"))
    layout = replace(CALL, layout_id=12, symbol="write")
    join = Join(layout, (replace(ENTRY, layout_id=10),), replace(RETURN, layout_id=11), "key", ("tid",))
    made.telemetry.add(Attached(SPEC, (), join), Export("span"), made.pairing)
    dead, _ = call(1_000_000_000, 0)
    hour = 3600 * 10**9
    made.feed((10, *dead[1:]), *(half for start in range(3) for half in call(hour + 1000 * start, 250)))
    assert made.close() == {("exported", "traces"): 3}
    spans = [decoded(span) for span in collector.got["traces"]]
    assert [span.parent_span_id for span in spans] == [b""] * 3
    assert len({span.trace_id for span in spans}) == 3


def test_an_event_is_a_log_record(collector: Collector) -> None:
    made = Wired(Otlp(), event=Export("log", where="return < 0"))
    made.feed((5, 1, 0, 7, 70, None, -2), (5, 2, 0, 7, 70, None, 4))
    assert made.close() == {("exported", "logs"): 1}
    (record,) = collector.got["logs"]
    assert attributes_of(LogRecord.FromString(record).attributes)["kprobe.return_value"] == -2
    assert made.exemplars == []


def test_each_is_counted_once(collector: Collector) -> None:
    """An item over the limit, one without room in the queue and a refused one are each counted once."""
    collector.takes = False
    made = Wired(Otlp(queue=10, max_per_second=20), event=Export("log"))
    made.feed(*((5, time, 0, 7, 70, None, 0) for time in range(100)))
    counts = made.close()
    assert counts["dropped", "logs"] >= 80
    assert counts["dropped", "logs"] + counts["failed", "logs"] == 100
    assert ("exported", "logs") not in counts


def test_metrics_are_pushed_once_more_at_the_end(collector: Collector) -> None:
    made = Wired(Otlp(metrics=3600))
    made.telemetry._pusher._snapshot = lambda: Snapshot(  # type: ignore[union-attr]
        (Family("kprobe_up", "gauge", "h", ("probe",), {("a",): 1.0}),), ()
    )
    assert made.close() == {("exported", "metrics"): 1}
    assert [metric.name for metric in collector.got["metrics"]] == ["kprobe_up"]


def test_it_may_be_closed_twice(collector: Collector) -> None:
    made = Wired(Otlp(), call=Export("span"))
    made.close()
    assert made.close() == {}


def test_the_end_takes_bounded_time(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log records and spans are flushed in parallel, in the time that the metrics left."""
    stops: dict[str, float] = {}
    both = Barrier(2)

    class Meeting(_Sender):
        def stop(self, timeout: float) -> None:
            stops[self.signal] = timeout
            if self.signal != "metrics":
                both.wait(patience(10))  # if one were flushed after the other, this would time out

    monkeypatch.setattr(telemetry, "connect", lambda signal, *_: Meeting(collector, signal))
    made = Wired(Otlp(metrics=3600), call=Export("span"), event=Export("log"))
    readings = iter([100.0, 102.0])
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: next(readings)))
    made.close()
    assert stops == {"metrics": FLUSH / 2, "logs": FLUSH - 2, "traces": FLUSH - 2}


def test_what_is_lost_at_the_end_is_one_line(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    collector.takes = False
    made = Wired(Otlp(), call=Export("span"), event=Export("log"))
    made.feed(*call(1_000_000_000, 250_000), (5, 1, 0, 7, 70, None, 0), (5, 2, 0, 7, 70, None, 0))
    made.close()
    assert [record.getMessage() for record in caplog.records] == [
        "1 traces and 2 logs are lost: the collector did not accept them before the agent stopped"
    ]


@pytest.mark.parametrize("depth", [0, 15, 126])
@pytest.mark.parametrize("text", [b"", b"x" * 4000])
def test_memory_of_what_waits(depth: int, text: bytes) -> None:
    """It is not underestimated, and not far overestimated, although each frame has its own name here."""

    def made(number: int) -> Emission:
        frames = tuple(f"some_function_{number}_{place}".encode() for place in range(depth))
        record = (9, 10**15 + number, 3, 71, 7000 + number, None, 5000 + number, text + b"%d" % number)
        return Emission(record, number << 90, number << 60, number << 61, frames)

    gc.collect()
    tracemalloc.start()
    try:
        queue = [made(number) for number in range(1000, 1200)]
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used <= sum(map(memory, queue)) <= 1.5 * used


def test_the_interpreter_is_as_it_was(collector: Collector) -> None:
    before = sys.getswitchinterval(), gc.get_freeze_count()
    made = Wired(Otlp(), call=Export("span"))
    assert sys.getswitchinterval() == pytest.approx(TURN)
    assert gc.get_freeze_count() > 0
    made.close()
    assert (sys.getswitchinterval(), gc.get_freeze_count()) == before


def test_exports_come_and_go_while_it_runs(collector: Collector) -> None:
    """Records selected before a removal are still sent; afterwards, nothing of the probe is remembered."""
    made = Wired(Otlp())
    attached = Attached(SPEC, (), JOIN)
    for _ in range(3):
        made.telemetry.open("span")
        made.telemetry.add(attached, Export("span"), made.pairing)
        made.feed(*call(1_000_000_000, 250_000))
        made.telemetry.remove(attached, made.pairing)
        made.feed(*call(2_000_000_000, 250_000))
    assert made.close() == {("exported", "traces"): 3}
    assert made.pairing._takes == {}
    assert made.telemetry._selector._traces._sources == {}


def test_what_went_is_forgotten_in_the_end(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MOST_REMOVED", 3)
    made = Wired(Otlp())
    for layout_id in range(10, 20):
        attached = single(replace(OPEN, layout_id=layout_id))
        made.telemetry.add(attached, Export("log"), made.pairing)
        made.feed((layout_id, 1, 0, 7, 70, None, -2))
        made.telemetry.remove(attached, made.pairing)
    assert set(made.telemetry._descriptions) == set(made.telemetry._probes) == {17, 18, 19}
    made.close()


@pytest.mark.parametrize(
    ("join", "export", "expected"),
    [
        (JOIN, Export("log", 0.5, 7.0, "duration > 1ms"), ("log", 0.5, 7.0, True)),
        (JOIN, Export("log", where='duration > 1ms && comm ~ "s*"'), ("log", 1.0, None, True)),
        (BY_FD, Export("span", 0.5, where="duration > 1ms"), ("span", 0.5, None, False)),
        (JOIN._replace(by="stack", key=()), Export("span"), ("span", 1.0, None, True)),
    ],
)
def test_source_chooses_exports(join: Join, export: Export, expected: tuple[Any, ...]) -> None:
    """Calls and pairs by the thread lie in other ones."""
    found = OtlpExport(Otlp(max_per_second=90.0), None, None, lambda *_: None).choice(
        Attached(SPEC, (), join), export
    )
    assert (found.signal, found.share, found.max_per_second, found.nested) == expected
    assert (found.together, found.system_call) == (90.0, True)
    assert (found.where is None) == (export.where is None)


def test_what_the_source_has_chosen_is_sent(collector: Collector) -> None:
    """With the ids that it has given, and what it has stopped is told as dropped."""
    made = Wired(Otlp())
    made.telemetry.add(Attached(SPEC, (), JOIN), Export("span"), made.pairing, chosen=True)
    made.telemetry.add(single(OPEN), Export("log"), made.pairing, chosen=True)
    record = (JOIN.layout.layout_id, 1_000_000_000, 0, 7, 70, None, 3, 0, 5, 250_000)
    batch = Batch(emissions=[Emission(record, 77, 88, 99)], limited=Counter({OPEN.layout_id: 3}))
    made.telemetry.consume(made.pairing.pair(batch))
    assert made.close() == {("exported", "traces"): 1, ("dropped", "logs"): 3}
    (span,) = map(decoded, collector.got["traces"])
    assert int.from_bytes(span.trace_id, "big") == 77
    assert [int.from_bytes(one, "big") for one in (span.span_id, span.parent_span_id)] == [88, 99]
