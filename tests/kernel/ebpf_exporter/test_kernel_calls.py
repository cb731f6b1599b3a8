"""Examples of system calls, memory, BPF, PCI and UNIX sockets."""

import ctypes
import os
import socket
import struct
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.ebpf_exporter.counted import TIMES, Grown, calls, firings
from tests.support.provoked_calls import getppid
from tests.vm.kernels import STATIC_DATA

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = (
    "bpf-jit",
    "pci",
    "regexp",
    "shrinklat",
    "syscalls",
    "unix-accept-latency",
    "unix-socket-backlog",
)


def test_system_calls_by_name(grown: Grown) -> None:
    getppid()
    assert grown.until(TIMES, "syscalls_total", syscall="getppid") == TIMES


def test_caches_of_the_kernel_are_asked_for_memory(grown: Grown) -> None:
    """The name of the program is cut to what the pattern takes: all of it, or a prefix."""
    comm = Path("/proc/self/comm")
    name = comm.read_text().strip()
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
    """kswapd begins below the low watermark, a quarter above the least that is to be kept free. What is kept
    free is still less than there is: nothing is killed for want of memory."""
    keep = Path("/proc/sys/vm/min_free_kbytes")
    before = keep.read_text()
    begun = time.monotonic()
    with calls("shrink_node") as made:
        free = int(Path("/proc/meminfo").read_text().partition("MemFree:")[2].split()[0])
        try:
            keep.write_text(str(free * 9 // 10))
            bytes(4 << 20)
            grown.until(1, "shrink_node_latency_seconds_count")  # kswapd may have to wait for a processor
        finally:
            keep.write_text(before)
        metrics = grown.agent.scrape()
        most = made()["shrink_node"]
    # The agent's own threads free memory as well, of which it records nothing.
    assert 0 < grown.of(metrics, "shrink_node_latency_seconds_count") <= most
    seconds = 2 * (time.monotonic() - begun)  # on two CPUs
    assert 0 < grown.of(metrics, "shrink_node_latency_seconds_sum") < seconds


ACCEPT_ALL = struct.pack("HBBI", 6, 0, 0, 0xFFFFFFFF)
SO_ATTACH_FILTER = 26


@pytest.mark.needs(STATIC_DATA)
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

        def serve() -> None:
            for _ in range(TIMES):
                server.accept()[0].close()

        thread = threading.Thread(target=serve)
        thread.start()
        for _ in range(TIMES):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
        thread.join()
    assert grown("unix_accept_latency_seconds_count", path=path) == TIMES
