"""Examples of softirqs and timers."""

import socket
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.conftest import READ_EVERY
from tests.kernel.ebpf_exporter.counted import TIMES, Grown, firings
from tests.support.agent_process import AgentProcess, Metrics

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = ("percpu-softirq", "raw-tracepoints", "softirq-latency", "softirq-latency-net-rx", "timers")


def softirqs() -> Counter[tuple[str, str]]:
    """The kernel's own counts, by kind and CPU (/proc/softirqs)."""
    head, *rows = Path("/proc/softirqs").read_text().splitlines()
    cpus = [name.removeprefix("CPU") for name in head.split()]
    return Counter(
        {
            (kind, cpu): int(value)
            for row in rows
            for kind, _, values in [row.strip().partition(":")]
            for cpu, value in zip(cpus, values.split(), strict=False)
        }
    )


def datagrams(times: int) -> None:
    with ExitStack() as stack:
        receiver, sender = (
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)
        )
        receiver.bind(("127.0.0.1", 0))
        for _ in range(times):
            sender.sendto(b"x", receiver.getsockname())
            receiver.recv(1)


def test_softirqs_by_kind_and_cpu(agent: AgentProcess) -> None:
    """The counts of a shorter and of a longer time enclose the agent's, which may be READ_EVERY old."""
    longer = softirqs()
    time.sleep(READ_EVERY)
    grown = Grown(agent)
    shorter = softirqs()
    datagrams(TIMES)
    least = softirqs() - shorter
    time.sleep(READ_EVERY)

    def enough(metrics: Metrics) -> bool:
        return all(
            grown.of(metrics, "softirqs_total", vec=kind, cpu=cpu) >= count
            for (kind, cpu), count in least.items()
        )

    metrics = agent.scrape_until(enough)
    most = softirqs() - longer
    assert least["NET_RX", "1"] >= TIMES
    for kind, cpu in least:
        assert grown.of(metrics, "softirqs_total", vec=kind, cpu=cpu) <= most[kind, cpu], (kind, cpu)
    for kind in ("NET_RX", "TIMER", "SCHED"):
        seen = grown.of(metrics, "softirq_serviced_total", kind=kind)
        assert of_kind(least, kind) <= seen <= of_kind(most, kind), kind


def of_kind(counts: Counter[tuple[str, str]], kind: str) -> int:
    return sum(count for key, count in counts.items() if key[0] == kind)


def test_softirqs_take_time(grown: Grown) -> None:
    """Each datagram to this machine makes a softirq, on the CPU of the sender."""
    before = softirqs()
    datagrams(TIMES)
    counted = of_kind(softirqs() - before, "NET_RX")
    metrics = grown.agent.scrape()
    for name in ("softirq_entry_latency_seconds", "softirq_service_latency_seconds"):
        assert grown.of(metrics, f"{name}_count", kind="NET_RX") >= TIMES
    for name in ("net_rx_entry_latency_seconds", "net_rx_service_latency_seconds"):
        assert grown.of(metrics, f"{name}_count") >= TIMES
        assert 0 < grown.of(metrics, f"{name}_sum") < 60
    assert grown.until(counted, "hits_total", probe="net_rx_serviced") >= counted
    assert grown("hits_total", probe="net_rx_raised") >= counted
    assert grown("softirq_raised_total", kind="NET_RX") >= counted


def connections(times: int) -> None:
    """Make connections, which start timers of TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(times):
            client = socket.create_connection(server.getsockname())
            server.accept()[0].close()
            client.close()


def test_timers_by_function(grown: Grown) -> None:
    """Both examples read the same tracepoint: one by its events, one by a table in the kernel.

    The sums of the kernel may be READ_EVERY old in a scrape, so each scrape is that much later than the last.
    """
    with firings("timer", "timer_start") as made:
        time.sleep(READ_EVERY)
        before = grown.agent.scrape()
        least = made()
        connections(TIMES)
        least = made() - least
        time.sleep(READ_EVERY)
        after = grown.agent.scrape()

    def growth(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    assert least >= TIMES
    assert growth("kprobe_timer_starts_total") >= least
    functions = {labels["function"] for labels in after.labels("kprobe_raw_timer_starts_total")}
    assert "tcp_write_timer" in functions
    raw = growth("kprobe_raw_timer_starts_total", function="tcp_write_timer")
    assert raw >= TIMES
    # The kernel's table has those of the agent's own threads, too, which answer each scrape.
    assert growth("kprobe_timer_starts_total", function="tcp_write_timer") >= raw
