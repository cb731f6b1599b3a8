"""Examples of the kernel's own work: softirqs, timers, system calls, memory, BPF, PCI, UNIX sockets."""

import ctypes
import os
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.conftest import READ_EVERY
from tests.kernel.ebpf_exporter.counted import TIMES, Grown, calls, firings
from tests.support.agent_process import AgentProcess
from tests.support.provoked_calls import getppid

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = (
    "bpf-jit",
    "pci",
    "percpu-softirq",
    "raw-tracepoints",
    "regexp",
    "shrinklat",
    "softirq-latency",
    "softirq-latency-net-rx",
    "syscalls",
    "timers",
    "unix-accept-latency",
    "unix-socket-backlog",
)


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
    metrics = agent.scrape()
    most = softirqs() - longer
    assert least["NET_RX", "1"] >= TIMES
    for (kind, cpu), count in least.items():
        assert count <= grown.of(metrics, "softirqs_total", vec=kind, cpu=cpu) <= most[kind, cpu], (kind, cpu)
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
    """Both examples read the same tracepoint in different ways."""
    with firings("timer", "timer_start") as made:
        before = grown.agent.scrape()
        least = made()
        connections(TIMES)
        least = made() - least
        after = grown.agent.scrape()

    def growth(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    assert least >= TIMES
    assert growth("kprobe_timer_starts_total") >= least
    functions = {labels["function"] for labels in after.labels("kprobe_raw_timer_starts_total")}
    assert "tcp_write_timer" in functions
    raw = growth("kprobe_raw_timer_starts_total", function="tcp_write_timer")
    assert raw >= TIMES
    assert growth("kprobe_timer_starts_total", function="tcp_write_timer") == raw


def test_system_calls_by_name(grown: Grown) -> None:
    getppid()
    assert grown.until(TIMES, "syscalls_total", syscall="getppid") == TIMES


def test_caches_of_the_kernel_are_asked_for_memory(grown: Grown) -> None:
    """The name of the program is cut to what the pattern takes: all of it, or a prefix."""
    comm = Path("/proc/self/comm")
    name = comm.read_text()
    with firings("vmscan", "mm_shrink_slab_end") as made:
        comm.write_text("systemd-shrinks")
        try:
            Path("/proc/sys/vm/drop_caches").write_text("2")
        finally:
            comm.write_text(name)
        counted = made()
    assert counted > 0
    assert grown("mm_shrink_slab_events_total", comm="systemd") == counted


def test_memory_of_a_node_is_freed(grown: Grown) -> None:
    keep = Path("/proc/sys/vm/min_free_kbytes")
    before = keep.read_text()
    begun = time.monotonic()
    with calls("shrink_node") as made:
        free = int(Path("/proc/meminfo").read_text().partition("MemFree:")[2].split()[0])
        try:
            keep.write_text(str(free + 64 * 1024))
            bytes(4 << 20)
        finally:
            keep.write_text(before)
        grown.until(1, "shrink_node_latency_seconds_count")
        counted = made()["shrink_node"]
    metrics = grown.agent.scrape()
    assert abs(grown.of(metrics, "shrink_node_latency_seconds_count") - counted) <= 1 + counted // 10
    seconds = 2 * (time.monotonic() - begun)  # on two CPUs
    assert 0 < grown.of(metrics, "shrink_node_latency_seconds_sum") < seconds


ACCEPT_ALL = struct.pack("HBBI", 6, 0, 0, 0xFFFFFFFF)
SO_ATTACH_FILTER = 26


def test_bpf_programs_are_translated(grown: Grown) -> None:
    """A socket's filter is a BPF program. The kernel's list of its memory has what it allocated for them."""
    code = ctypes.create_string_buffer(ACCEPT_ALL)
    fprog = struct.pack("HxxxxxxP", 1, ctypes.addressof(code))
    with ExitStack() as stack:
        for _ in range(TIMES):
            one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)
        metrics = grown.agent.scrape()
    assert grown.of(metrics, "bpf_jit_compilations_total") == TIMES
    limit = int(Path("/proc/sys/net/core/bpf_jit_limit").read_text())
    assert 0 < metrics.value("kprobe_bpf_jit_allocated") <= limit


def test_reads_of_the_configuration_of_pci(grown: Grown) -> None:
    device = sorted(Path("/sys/bus/pci/devices").iterdir())[0]
    vendor, number, code = (int((device / name).read_text(), 16) for name in ("vendor", "device", "class"))
    fd = os.open(device / "config", os.O_RDONLY)
    for _ in range(TIMES):
        assert len(os.pread(fd, 4, 0)) == 4  # a dword
        assert len(os.pread(fd, 1, 1)) == 1
    os.close(fd)
    comm = Path("/proc/self/comm").read_text().strip()
    labels = {
        "vendor": hex(vendor),
        "device": hex(number),
        "class": hex(code >> 16),
        "subclass": hex(code >> 8 & 255),
        "comm": comm,
    }
    assert grown("pci_user_read_config_ops_total", **labels) == 2 * TIMES


def test_connections_to_unix_sockets(grown: Grown, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    least = most = 0.0
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(path)
        server.listen(128)
        times: list[tuple[float, float]] = []
        for _ in range(TIMES):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            begun = time.monotonic()
            client.connect(path)
            times.append((begun, time.monotonic()))
        for early, late in times:
            least += time.monotonic() - late
            stack.enter_context(server.accept()[0])
            most += time.monotonic() - early
    metrics = grown.agent.scrape()
    assert grown.of(metrics, "unix_accept_latency_seconds_count", path=path) == TIMES
    assert least <= grown.of(metrics, "unix_accept_latency_seconds_sum", path=path) <= most
    assert grown.of(metrics, "unix_socket_backlog_count", path=path) == TIMES
    assert grown.of(metrics, "unix_socket_backlog_sum", path=path) == sum(range(TIMES))
    assert grown.of(metrics, "unix_socket_backlog_bucket", path=path, le="0.0") == 1


def test_a_waiting_server_of_a_unix_socket(grown: Grown, tmp_path: Path) -> None:
    """A server that waits in accept(2) has each connection at once."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        thread = threading.Thread(target=lambda: [server.accept()[0].close() for _ in range(TIMES)])
        thread.start()
        for _ in range(TIMES):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
        thread.join()
    assert grown("unix_accept_latency_seconds_count", path=path) == TIMES
