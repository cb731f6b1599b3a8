"""With a faulty collector, an agent loses no event, counts all items, and delays no scrape and no end.

The events are those of tracepoints, which every kernel has, at the rate that is sent by default.
"""

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import median
from typing import NamedTuple

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kprobe_exporter.agent.otlp import FLUSH
from tests.kernel.conftest import StartAgent
from tests.kernel.workload import Child, children
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.otlp_apart import Apart, collector_apart
from tests.support.otlp_faults import OK, Fault
from tests.support.patience import eventually, patience, within

HTTP, GRPC = "http/protobuf", "grpc"

CALLS = 1200
"""Calls of each of the two kinds, which make three batches of a signal."""

IDLE_SCRAPES = 9

MOST_TIMES = 10
"""The bound for the median time of scrapes during the export, as a multiple of an idle agent's median. With
1,000 events a second the multiple was 1 to 2. A scrape that waits for a request takes its timeout of 1 s or
more, which is a multiple of at least 30."""

END = 1.0
"""Seconds that an agent takes to end, in addition to the FLUSH seconds for its last sending."""

SIGNALS = {"group": "logs", "sync": "traces"}
ERRNOS = {"group": "ESRCH", "sync": "EINVAL"}
FATES = EXPORTED, DROPPED, FAILED = "exported", "dropped", "failed"

ONLY_SCRAPED = re.compile("process_|python_|kprobe_exporter_scrape_")
"""Metrics that are scraped but not pushed."""


class Case(NamedTuple):
    """A collector's faults, what the agent's log says of them, and the exact set of the items' fates.

    ``timeout`` is the time that the collector has to answer, ``queue`` the number of items that may wait, and
    ``retry`` the time for which a batch is sent again, 0 for the timeout.
    """

    name: str
    protocol: str
    faults: tuple[Fault, ...]
    said: str
    fates: set[str]
    timeout: str = "30s"
    queue: int = 10_000
    retry: str = "5m"


def calls() -> None:
    """Make CALLS failing calls of getpgid and of fsync, at most 1,000 a second of each."""
    _, pipe = os.pipe()
    for number in range(CALLS):
        with suppress(ProcessLookupError):
            os.getpgid(-1)
        with suppress(OSError):
            os.fsync(pipe)
        if number % 10 == 9:
            time.sleep(0.01)


def configuration(threads: list[Child], there: Apart, case: Case) -> str:
    ours = " || ".join(f"common_pid == {thread.tid}" for thread in threads)
    group = {"to": "tracepoint:syscalls:sys_exit_getpgid", "fetch": {"return": "ret"}}
    probes = [
        {"name": "group", "attach": group, "filter": ours, "export": "log"},
        {"name": "sync", "attach": "syscall:fsync", "filter": ours, "export": "span"},
    ]
    otlp = {
        "endpoint": there.endpoint,
        "protocol": case.protocol,
        "timeout": case.timeout,
        "queue": case.queue,
        "retry": case.retry,
        "max_per_second": 1_000_000,
        "metrics": {"interval": "1s"},
    }
    return json.dumps({"global": {"tracefs_instance": "otlp_faults"}, "otlp": otlp, "probes": probes})


def seen(metrics: Metrics, probe: str) -> float:
    return metrics.value("kprobe_exporter_events_total", probe=probe)


def fates(metrics: Metrics, signal: str) -> dict[str, float]:
    """Return how many items were exported, dropped and failed, without the counts that are 0."""
    found = {fate: metrics.value(f"kprobe_exporter_otlp_{fate}_total", signal=signal) for fate in FATES}
    return {fate: count for fate, count in found.items() if count}


def points(metrics: Metrics) -> int:
    """Return how many data points a push of these metrics has; a histogram is one, with all its buckets."""
    found = 0
    for family in text_string_to_metric_families(metrics.text):
        ours = [sample.name for sample in family.samples if not ONLY_SCRAPED.match(family.name)]
        found += ours.count(f"{family.name}_count") if family.type == "histogram" else len(ours)
    return found


def are_pushes(count: float, sizes: set[int], most: int) -> bool:
    """Return whether ``count`` data points may be whole pushes: at most ``most``, each within ``sizes``."""
    return any(number * min(sizes) <= count <= number * max(sizes) for number in range(most + 1))


def watch(agent: AgentProcess, thread: Child) -> Metrics:
    """Let the thread make its calls, and scrape until the fates of all items and of one push are decided.

    A push has all that a scrape then shows, and one fate. The median time of the scrapes is below MOST_TIMES
    the median before the calls.
    """
    before_it = [timed(agent) for _ in range(IDLE_SCRAPES)]
    idle = median(seconds for seconds, _ in before_it)
    took: list[float] = []
    sizes = {points(Metrics(text)) for _, text in before_it}
    begin = last = time.monotonic()
    pushed = sum(fates(agent.scrape(), "metrics").values())  # the agent pushes metrics from its start
    with ThreadPoolExecutor() as pool:
        called = pool.submit(thread.work)
        while True:
            asked = time.monotonic()
            seconds, text = timed(agent)
            now = time.monotonic()
            took.append(seconds)
            metrics = Metrics(text)
            sizes.add(points(metrics))
            before, pushed = pushed, sum(fates(metrics, "metrics").values())
            assert are_pushes(pushed - before, sizes, 2 + int(now - last))
            if called.done() and pushed and all(decided(metrics, probe) for probe in SIGNALS):
                break
            last = asked  # what this scrape shows may have held since then
            assert now < begin + patience(60), text
            time.sleep(0.05)
    usual = median(took)
    print(f"half of {len(took)} scrapes took {1000 * usual:.0f} ms, and {1000 * idle:.0f} ms before")
    assert usual < MOST_TIMES * idle
    return metrics


def timed(agent: AgentProcess) -> tuple[float, str]:
    """Scrape; return the seconds that it took, and the text."""
    asked = time.monotonic()
    text = agent.get()
    return time.monotonic() - asked, text


def decided(metrics: Metrics, probe: str) -> bool:
    return seen(metrics, probe) >= CALLS and sum(fates(metrics, SIGNALS[probe]).values()) >= CALLS


def ends_well(agent: AgentProcess) -> None:
    """Assert that SIGTERM ends the agent in time, with at most one log line a signal about the trouble."""
    with within(FLUSH + END):
        agent.signal(signal.SIGTERM)
        assert agent.wait(60) == 0
    # In a PID namespace, one tells what the host's ids are missing for.
    lines = [line for line in agent.output().splitlines() if "in a PID namespace" not in line]
    assert all(re.match(r"\S+Z (INFO|WARNING) ", line) for line in lines), agent.output()
    for name in ("logs", "traces", "metrics"):
        assert sum(f" {name} were not taken by the collector at " in line for line in lines) <= 1
        assert sum(f" {name} wait for the collector at " in line for line in lines) <= 1
        assert sum(f" {name} are taken again" in line for line in lines) <= 1
    assert sum(" are lost: " in line for line in lines) <= 1
    assert len(lines) <= 13


HANG = (Fault(hang=True),)
DRIPS = (Fault(drip=b"HTTP/1.1 200 O"),)
REFUSALS = tuple(Fault(status=status) for status in (400, 401, 404))
CODES = tuple(
    Fault(code=code)
    for code in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
)
LATER = Fault(status=429, code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=1)
CASES = [
    Case("down", HTTP, (), "Connection refused", {FAILED}, "1s", retry="0s"),
    Case("down", GRPC, (), "UNAVAILABLE", {FAILED}, "1s", retry="0s"),
    Case("slow", HTTP, HANG, "no answer|timed out", {DROPPED, FAILED}, "1s", queue=200, retry="0s"),
    Case("slow", GRPC, HANG, "DEADLINE_EXCEEDED", {DROPPED, FAILED}, "1s", queue=200, retry="0s"),
    Case("drips", HTTP, DRIPS, "no answer", {DROPPED, FAILED}, "1s", queue=200, retry="0s"),
    Case("refuses", HTTP, REFUSALS, "the collector answered 400 Bad Request: said why", {FAILED}),
    Case("refuses", GRPC, CODES, "INVALID_ARGUMENT: said why", {FAILED}),
    Case("throttles", HTTP, (LATER, OK), "", {EXPORTED}),
    Case("throttles", GRPC, (LATER, OK), "", {EXPORTED}),
    Case("resets", HTTP, (Fault(reset=True),), "reset|closed connection", {FAILED}, "1s", retry="0s"),
    Case("resets", GRPC, (Fault(reset=True),), "UNAVAILABLE", {FAILED}, "1s", retry="0s"),
    Case("rejects a part", HTTP, (Fault(rejected=7),), "no room", {EXPORTED, FAILED}),
    Case("rejects a part", GRPC, (Fault(rejected=7),), "no room", {EXPORTED, FAILED}),
]
HANGS = [
    Case("hangs", HTTP, HANG, "", set(), "60s"),
    Case("hangs", GRPC, HANG, "", set(), "60s"),
    Case("drips", HTTP, DRIPS, "", set(), "60s"),
    Case("wants silence", HTTP, (Fault(status=429, retry_after=3600),), "", set(), "60s"),
    Case("busy", HTTP, (Fault(status=503),), "", set(), "1s"),
    Case("busy", GRPC, (Fault(code=grpc.StatusCode.UNAVAILABLE),), "", set(), "1s"),
]


def label(case: Case) -> str:
    return f"{case.name}-{case.protocol[:4]}"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_what_a_collector_does(start_agent: StartAgent, case: Case) -> None:
    with children([calls]) as threads, collector_apart(case.protocol, *case.faults) as there:
        agent = start_agent(configuration(threads, there, case))
        metrics = watch(agent, threads[0])
        for probe, name in SIGNALS.items():
            assert seen(metrics, probe) == CALLS
            assert metrics.value("kprobe_return_errors_total", probe=probe, errno=ERRNOS[probe]) == CALLS
            found = fates(metrics, name)
            assert sum(found.values()) == CALLS
            assert set(found) == case.fates
        assert metrics.value("kprobe_duration_seconds_count", probe="sync") == CALLS
        lost = "kprobe_exporter_events_lost_total"
        assert {metrics.value(lost, **labels) for labels in metrics.labels(lost)} == {0}

        def told_as_it_was() -> bool:
            saw, now = there.saw().size, agent.scrape()
            return all(
                fates(now, name).get(EXPORTED, 0) == saw[name] for name in (*SIGNALS.values(), "metrics")
            )

        eventually(told_as_it_was)  # it holds between two pushes
        ends_well(agent)
        assert bool(
            re.search(f"not taken by the collector at [^ ]+: .*({case.said})", agent.output())
        ) == bool(case.said)


@pytest.mark.parametrize("case", HANGS, ids=label)
def test_the_end_does_not_wait_for_a_collector(start_agent: StartAgent, case: Case) -> None:
    """An agent ends in time while requests of all signals are under way, and counts the items that wait."""
    with children([calls]) as threads, collector_apart(case.protocol, *case.faults) as there:
        agent = start_agent(configuration(threads, there, case))
        threads[0].work()
        eventually(lambda: there.saw().requests >= 3)
        agent.scrape_until(lambda metrics: all(seen(metrics, probe) == CALLS for probe in SIGNALS))
        ends_well(agent)
        assert f"{CALLS} logs and {CALLS} traces are lost: " in agent.output()
