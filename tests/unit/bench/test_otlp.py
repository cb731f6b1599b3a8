"""The table of OpenTelemetry: what an agent is told, what is lost, ratios and goals."""

from dataclasses import replace

import pytest

from kprobe_exporter.agent.otlp import Signal
from kprobe_exporter.grammar.target import Kind
from tests.bench import otlp
from tests.bench.otlp import PLURAL, PROTOCOLS, Carried, Rates, tabulated
from tests.bench.probes import configured
from tests.bench.sending import BUILT, OURS, QUEUE, USUAL, WAYS, Took

SENT = Carried(25_000, 25_000, 0, 0, 5.0, 0.5, 64.06)
OF_MANY = Carried(5_000, 5_000, 0, 0, 5.0, 0.2, 64.0, events=500_000)
CHOSEN: dict[Signal, Carried] = {"log": OF_MANY, "span": replace(OF_MANY, cpu=0.3)}
DOWN = Carried(25_000, 0, 14_000, 488, 5.0, 0.25, 70.0)

SECONDS = {OURS: 1.0, USUAL: 2.0, BUILT: 1.25}


def measured(ours: float = 1.0) -> Rates:
    return {
        (signal, protocol, way): Took(1000, seconds * (ours if way == OURS else 1), 0.5)
        for signal, ways in WAYS.items()
        for protocol in PROTOCOLS
        for way, seconds in SECONDS.items()
        if way in ways
    }


@pytest.mark.parametrize(("signal", "kind"), [("span", Kind.SYSCALL), ("log", Kind.TRACEPOINT)])
def test_what_the_agents_are_told(signal: Signal, kind: Kind) -> None:
    config = configured(otlp.config(7, "http://127.0.0.1:4318", signal))
    [probe] = config.probes
    [way] = probe.attach
    assert way.target.kind is kind
    assert [first.filter for first in way.begins or [way]] == ["common_pid == 7"]
    assert probe.export
    assert probe.export.signal == signal
    assert config.otlp
    assert config.otlp.queue == QUEUE
    assert config.otlp.max_per_second > 10 * otlp.RATE
    assert config.settings.tracefs_instance.startswith("bench_")
    assert config.settings.limit is probe.limit is None


@pytest.mark.parametrize(
    ("carried", "waiting", "lossless"),
    [
        (SENT, 0, True),
        (replace(SENT, exported=24_999), 1, False),
        (replace(SENT, exported=24_999, dropped=1), 0, False),
        (replace(SENT, exported=24_999, failed=1), 0, False),
        (replace(SENT, dropped=1), -1, False),
        (DOWN, 10_512, False),
    ],
)
def test_what_was_lost(carried: Carried, waiting: int, *, lossless: bool) -> None:
    assert (carried.waiting, carried.lossless) == (waiting, lossless)


def test_rows() -> None:
    table = tabulated(measured(), {"span": SENT, "log": SENT}, 61.0, DOWN, CHOSEN)
    assert all(len(row) == len(table.head) for row in table.rows)
    rows = {name: cells for name, *cells in table.rows}
    assert len(rows) == len(measured()) + 6
    of_chosen = ["1,000", "4.0 %", "0.4 µs", "", "5,000", "5,000", "0", "0", "64.0 MB"]
    assert rows["an agent, 100,000 events a second, of which 1 in 100 becomes a log record"] == of_chosen
    assert rows["an agent, 100,000 calls a second, of which 1 in 100 becomes a span"][1:3] == [
        "6.0 %",
        "0.6 µs",
    ]
    assert rows["spans, HTTP"] == ["1,000", "50 %", "500.0 µs", "2.00", *[""] * 5]
    assert rows["spans, gRPC, the SDK, without a tracer"][3] == "1.60"
    assert rows["log records, gRPC, the SDK: a logger"][3] == "1.00"
    of_agent = ["5,000", "10.0 %", "20.0 µs", "", "25,000", "25,000", "0", "0", "64.1 MB"]
    assert rows["an agent, 5,000 log records a second"] == of_agent
    assert rows["an agent, before the first span"][-1] == "61.0 MB"
    assert rows["the same, and no collector: 10,512 spans wait"][-4:] == ["0", "14,000", "488", "70.0 MB"]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (2.0, "Reached: 1.00 times over HTTP, 1.00 times over gRPC."),
        (4.0, "Missed: 0.50 times over HTTP, 0.50 times over gRPC."),
    ],
)
def test_the_goal_of_rates(ours: float, said: str) -> None:
    notes = tabulated(measured(ours), {}, 61.0, DOWN, CHOSEN).notes
    for name in PLURAL.values():
        assert f"Goal: {name} at the SDK's own rate at least. {said}" in notes


def test_the_goal_of_one_protocol_alone_is_missed() -> None:
    rates = {**measured(), ("span", "grpc", OURS): Took(1000, 2.5, 0.5)}
    notes = tabulated(rates, {}, 61.0, DOWN, CHOSEN).notes
    missed = "Missed: 2.00 times over HTTP, 0.80 times over gRPC."
    assert f"Goal: spans at the SDK's own rate at least. {missed}" in notes
    assert any("our rate is 1.25 times over HTTP, 0.50 times over gRPC." in note for note in notes)


def test_the_goal_of_agents() -> None:
    lossy = replace(SENT, exported=24_000, failed=1_000)
    notes = tabulated(measured(), {"span": SENT, "log": lossy}, 61.0, DOWN, CHOSEN).notes
    assert {
        "Goal: 5,000 spans a second through an agent without loss. Reached: 25,000 of 25,000 exported,"
        " 0 dropped, 0 failed, at 10 % of a core.",
        "Goal: 5,000 log records a second through an agent without loss. Missed: 24,000 of 25,000 exported,"
        " 0 dropped, 1,000 failed, at 10 % of a core.",
    } <= set(notes)
