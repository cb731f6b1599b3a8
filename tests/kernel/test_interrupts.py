"""What interrupts do while a thread of the agent runs is counted, by every kind of probe.

The kernel's own count of repeated TCP segments is the oracle: timers repeat unanswered SYNs.
"""

import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("kprobe_events")

FUNCTION, TRACEPOINT = "tcp_retransmit_skb", "tracepoint:tcp:tcp_retransmit_skb"
CLIENTS, APART = 150, 0.02
"""Sockets that connect, and seconds between two of them: each has a timer of its own."""
LEAST = 2 * CLIENTS
"""SYNs that are repeated: after 1 s and after 2 or 3 s."""
SCRAPERS = 3

BY_THREAD = "{counter: %s_total, help: h, labels: [tid]}"
CONFIG = f"""
global: {{series_ttl: 0}}
probes:
  - {{name: counted, attach: "kprobe:{FUNCTION}"}}
  - {{name: entry, attach: "kprobe:{FUNCTION}", metrics: [{BY_THREAD % "entry"}]}}
  - {{name: back, attach: "kretprobe:{FUNCTION}", returns: int, metrics: [{BY_THREAD % "back"}]}}
  - {{name: call, attach: "call:{FUNCTION}", metrics: [{BY_THREAD % "call"}]}}
  - {{name: point_counted, attach: "{TRACEPOINT}"}}
  - name: point
    attach: "{TRACEPOINT}"
    fetch: {{port: dport}}
    metrics: [{{counter: point_total, help: h, labels: [tid, port]}}]
"""
IN_KERNEL = f"""
  - name: table
    attach: "{TRACEPOINT}"
    fetch: {{port: dport}}
    aggregate: kernel
    metrics: [{{counter: table_total, help: h, labels: [port]}}]
"""
BY_EVENTS = ("entry", "back", "call", "point")
"""Probes whose events are read, with the thread that was current."""


def repeated() -> int:
    """The TCP segments that this machine has sent again so far (RetransSegs of /proc/net/snmp)."""
    names, numbers = [
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if "Tcp:" in line
    ]
    return int(dict(zip(names, numbers, strict=True))["RetransSegs"])


@contextmanager
def unanswered() -> Iterator[None]:
    """Connect to a socket whose queue is full, so that the kernel repeats each SYN."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as server, ExitStack() as stack:
        address = server.getsockname()
        stack.enter_context(socket.create_connection(address))
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(address)
            time.sleep(APART)
        yield


@contextmanager
def scraped(agent: AgentProcess) -> Iterator[None]:
    """Keep the agent busy from the other processor."""
    ended = threading.Event()

    def scrape() -> None:
        os.sched_setaffinity(0, {1})
        while not ended.is_set():
            with urllib.request.urlopen(f"{agent.address}/metrics", timeout=60) as answer:
                answer.read()

    threads = [threading.Thread(target=scrape) for _ in range(SCRAPERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_interrupts_over_the_agents_threads_count(start_agent: StartAgent) -> None:
    in_kernel = has("events/sched/sched_process_exec/hist")
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})  # the agent and the timers
    try:
        agent = start_agent(CONFIG + (IN_KERNEL if in_kernel else ""))
        before = repeated()
        with unanswered(), scraped(agent):
            eventually(lambda: repeated() - before >= LEAST, 60)
        sent = repeated() - before
        threads = set(os.listdir(f"/proc/{agent.pid}/task"))
    finally:
        os.sched_setaffinity(0, allowed)
    metrics = agent.scrape_until(lambda one: one.value("kprobe_hits_total", probe="counted") >= sent)
    hits = {probe: metrics.value("kprobe_hits_total", probe=probe) for probe in ("counted", "point_counted")}
    events = {probe: metrics.total(f"kprobe_{probe}_total") for probe in BY_EVENTS}
    tables = {"table": metrics.total("kprobe_table_total")} if in_kernel else {}
    ours = {
        probe: sum(metrics.total(f"kprobe_{probe}_total", tid=tid) for tid in threads) for probe in BY_EVENTS
    }
    print(f"{sent} repeated, over the agent's threads {ours}")
    assert hits | events | tables == dict.fromkeys([*hits, *events, *tables], sent)
    assert min(ours.values()) > sent // 10, "the agent ran too little for this to show anything"
