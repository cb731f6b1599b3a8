"""Spans and log records a second to a collector, beside the SDK's own way, and through a whole agent."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from kprobe_exporter.agent.otlp import Signal
from kprobe_exporter.export.otlp.channel import BATCH, LINGER
from kprobe_exporter.export.otlp.settings import Protocol
from tests.bench.checks import require_all_told
from tests.bench.load import LOST, RETURNS, TIMED, Agent, Workload, agent, workloads
from tests.bench.progress import say
from tests.bench.sending import BUILT, OURS, QUEUE, USUAL, WAYS, Took, sendings
from tests.bench.table import Table, reached
from tests.support.receivers import free_port, rotel

TITLE = "OpenTelemetry"
ITEMS = 30 * BATCH
ROUNDS = 3
PROTOCOLS: Mapping[Protocol, str] = {"http/protobuf": "HTTP", "grpc": "gRPC"}
PLURAL: Mapping[Signal, str] = {"span": "spans", "log": "log records"}
ATTACH: Mapping[Signal, str] = {"span": TIMED, "log": RETURNS}

RATE = 5_000
MANY, ONE_IN = 100_000, 100
CHOSEN: Mapping[Signal, str] = {
    "log": f"an agent, {MANY:,} events a second, of which 1 in {ONE_IN} becomes a log record",
    "span": f"an agent, {MANY:,} calls a second, of which 1 in {ONE_IN} becomes a span",
}
SECONDS = 5
UNLIMITED = 1_000_000
PATIENCE = 10.0
WHAT = ("exported", "dropped", "failed")

Rates = Mapping[tuple[Signal, Protocol, str], Took]
"""The best round, by what was sent, how, and by which way."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What became of the calls that were ``made`` in some seconds, in an agent that exports each.

    Where it chooses those that it exports, ``events`` are all that it got.
    """

    made: int
    exported: int
    dropped: int
    failed: int
    seconds: float
    cpu: float
    resident: float
    events: int = 0

    @property
    def waiting(self) -> int:
        """In the queues, or under way."""
        return self.made - self.exported - self.dropped - self.failed

    @property
    def lossless(self) -> bool:
        return self.made == self.exported and self.dropped == self.failed == 0

    def row(self, name: str) -> tuple[str, ...]:
        counts = (f"{count:,}" for count in (self.made, self.exported, self.dropped, self.failed))
        cpu = f"{100 * self.cpu / self.seconds:.1f} %"
        each = f"{1e6 * self.cpu / (self.events or self.made):.1f} µs"
        return name, f"{self.exported / self.seconds:,.0f}", cpu, each, "", *counts, f"{self.resident:.1f} MB"


def table() -> Table:
    with TemporaryDirectory() as directory, rotel(Path(directory), verbose=False) as collector:
        rates = {
            (signal, protocol, way): took
            for signal in WAYS
            for protocol in PROTOCOLS
            for way, took in best(signal, protocol, collector.endpoints[protocol]).items()
        }
        agents: dict[Signal, Carried] = {}
        for signal in WAYS:
            say(f"an agent, {RATE:,} {PLURAL[signal]} a second")
            with (
                workloads() as [workload],
                agent(config(workload.tid, collector.endpoints["http/protobuf"], signal)) as running,
            ):
                workload.start(RATE, 0.1)  # so that the connection is there
                accounted(running, workload.made())
                agents[signal] = carried(running, workload)
        chosen = {signal: one_of_many(signal, collector.endpoints["http/protobuf"]) for signal in CHOSEN}
    say("an agent, and no collector")
    nowhere = f"http://127.0.0.1:{free_port()}"
    with workloads() as [workload], agent(config(workload.tid, nowhere, "span")) as running:
        rest = running.resident()
        down = carried(running, workload, collector=False)
    return tabulated(rates, agents, rest, down, chosen)


def one_of_many(signal: Signal, endpoint: str) -> Carried:
    """By an agent whose filter lets few calls through."""
    say(CHOSEN[signal])
    only = f"{{as: {signal}, where: return % {ONE_IN} == 0}}"
    with workloads() as [workload], agent(config(workload.tid, endpoint, signal, only)) as running:
        workload.start(MANY, 0.1)
        accounted(running, ceil(workload.made() / ONE_IN))
        return carried(running, workload, rate=MANY, one_in=ONE_IN)


def best(signal: Signal, protocol: Protocol, endpoint: str) -> dict[str, Took]:
    """By way: the best of the rounds, taken in turn; the connections are there before them."""
    say(f"{PLURAL[signal]}, {PROTOCOLS[protocol]}")
    with sendings(signal, protocol, endpoint) as processes:
        for process in processes.values():
            process.send(BATCH)
        rounds = [{way: process.send(ITEMS) for way, process in processes.items()} for _ in range(ROUNDS)]
    return {way: min((each[way] for each in rounds), key=lambda took: took.seconds) for way in WAYS[signal]}


def config(tid: int, endpoint: str, signal: Signal, export: str = "") -> str:
    """Every lseek(2) of this thread is exported, over HTTP, unless ``export`` says which."""
    return f"""
global: {{tracefs_instance: bench_{os.getpid()}, limit: none}}
otlp: {{endpoint: "{endpoint}", protocol: http/protobuf, queue: {QUEUE}, max_per_second: {UNLIMITED}}}
probes:
  - name: lseek
    attach: {ATTACH[signal]}
    limit: none
    filter: "common_pid == {tid}"
    returns: long
    export: {export or signal}
"""


def carried(
    running: Agent, maker: Workload, *, collector: bool = True, rate: int = RATE, one_in: int = 1
) -> Carried:
    """With no scrape meanwhile; a ``collector`` is given the time to take what waits at the end.

    The calls return the numbers below ``one_in`` in turn, and those that return 0 are exported.
    """
    before, lost_before = counts(running), running.total(LOST)
    cpu, began = running.cpu(), time.monotonic()
    maker.start(rate, SECONDS, one_in)
    events = maker.made()
    made = ceil(events / one_in)
    taken = time.monotonic() - began
    if collector:
        time.sleep(2 * LINGER)
    cpu = running.cpu() - cpu
    if collector:
        accounted(running, sum(before.values()) + made)
    found = {what: count - before[what] for what, count in counts(running).items()}
    carried = Carried(made, **found, seconds=taken, cpu=cpu, resident=running.resident(), events=events)
    lost = running.total(LOST) - lost_before
    waiting = 0 if collector else max(0, carried.waiting)
    require_all_told(made, carried.exported, carried.dropped + carried.failed + waiting + lost)
    running.require_up()
    return carried


def counts(running: Agent) -> dict[str, int]:
    """What became of all items so far."""
    return {what: running.total(f"kprobe_exporter_otlp_{what}_total") for what in WHAT}


def accounted(running: Agent, items: int) -> None:
    """Wait until it is known what became of so many, or for as long as that may take."""
    end = time.monotonic() + PATIENCE
    while sum(counts(running).values()) < items and time.monotonic() < end:
        time.sleep(0.3)


def tabulated(
    rates: Rates,
    agents: Mapping[Signal, Carried],
    rest: float,
    down: Carried,
    chosen: Mapping[Signal, Carried],
) -> Table:
    rows = [rate_row(rates, *key) for key in rates]
    rows += [each.row(f"an agent, {RATE:,} {PLURAL[signal]} a second") for signal, each in agents.items()]
    rows += [each.row(CHOSEN[signal]) for signal, each in chosen.items()]
    rows.append(("an agent, before the first span", *[""] * 8, f"{rest:.1f} MB"))
    rows.append(down.row(f"the same, and no collector: {down.waiting:,} spans wait"))
    return Table(
        TITLE,
        f"At first {ITEMS:,} calls from memory to rotel, which throws them away, as spans and as log"
        " records of eleven attributes. They go over the loopback without compression, as fast as one"
        f" process can, and never so many ahead that one is dropped. The figure is the best of {ROUNDS}"
        " rounds, taken in turn. Then whole"
        f" agents, over HTTP. A process on a CPU of its own calls lseek(2) for {SECONDS} s. Each call is"
        f" exported, as a span of `{TIMED}` or as a log record of the"
        " tracepoint `syscalls:sys_exit_lseek`. CPU is the sender's user and system time, of one core; memory"
        " is VmRSS.",
        (
            "",
            "items/s",
            "CPU",
            "CPU per item",
            "times the SDK",
            "made",
            "exported",
            "dropped",
            "failed",
            "memory",
        ),
        tuple(rows),
        tuple(notes(rates, agents, down)),
    )


def rate_row(rates: Rates, signal: Signal, protocol: Protocol, way: str) -> tuple[str, ...]:
    took = rates[signal, protocol, way]
    names = {
        OURS: "",
        USUAL: f", the SDK: {'a tracer' if signal == 'span' else 'a logger'}",
        BUILT: ", the SDK, without a tracer",
    }
    return (
        f"{PLURAL[signal]}, {PROTOCOLS[protocol]}{names[way]}",
        f"{took.rate:,.0f}",
        f"{100 * took.cpu / took.seconds:.0f} %",
        f"{1e6 * took.cpu / took.items:.1f} µs",
        f"{took.rate / rates[signal, protocol, USUAL].rate:.2f}",
        *[""] * 5,
    )


def notes(rates: Rates, agents: Mapping[Signal, Carried], down: Carried) -> list[str]:
    alone = against(rates, "span", BUILT)
    made = [
        "Ours is the agent's Channel, Builder and Transport; reading and selecting come before, and are in"
        " the rows of agents.",
        "*The SDK* is its BatchSpanProcessor or BatchLogRecordProcessor with its OTLP exporter, the queue as"
        " long as ours. A tracer's spans have the attributes, times and status of ours, a logger's records"
        " are ours; the Resource is the SDK's.",
        "*Without a tracer* the processor gets ReadableSpans that were made directly; next to it, our"
        f" rate is {said(alone)}. The differences are the encoding, the queue, the reader of the answers,"
        " and the thread that builds. Ours is the one that sends, to spare the reader's, so none is built"
        " while it waits for an answer.",
        "Where CPU is far below 100 % the sender waited for the receiver.",
    ]
    for signal in WAYS:
        ratios = against(rates, signal, USUAL)
        made.append(
            reached(
                f"{PLURAL[signal]} at the SDK's own rate at least", said(ratios), ok=min(ratios.values()) >= 1
            )
        )
    made += [
        reached(
            f"{RATE:,} {PLURAL[signal]} a second through an agent without loss",
            f"{each.exported:,} of {each.made:,} exported, {each.dropped:,} dropped, {each.failed:,} failed,"
            f" at {100 * each.cpu / each.seconds:.0f} % of a core",
            ok=each.lossless,
        )
        for signal, each in agents.items()
    ]
    made.append(
        "Of many events of which few are exported, the compiled reader chooses these by `where`; CPU per item"
        " is that of an event or a call."
    )
    made.append(
        f"Without a collector the queue of {QUEUE:,} is full. A request of {BATCH} is tried again and again,"
        f" and other calls are dropped and counted: {down.dropped:,} of {down.made:,}."
    )
    return made


def against(rates: Rates, signal: Signal, way: str) -> dict[Protocol, float]:
    """Our rate as a multiple of another way's."""
    return {
        protocol: rates[signal, protocol, OURS].rate / rates[signal, protocol, way].rate
        for protocol in PROTOCOLS
    }


def said(ratios: Mapping[Protocol, float]) -> str:
    return ", ".join(f"{ratio:.2f} times over {PROTOCOLS[protocol]}" for protocol, ratio in ratios.items())
