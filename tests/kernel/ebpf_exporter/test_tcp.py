"""Examples of TCP servers: queues, losses, segments sent again, windows."""

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kernel.ebpf_exporter.counted import TIMES, Grown, at_rest, calls, keep_on, network
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = (
    "accept-latency",
    "tcp-listen-drops",
    "tcp-retransmit",
    "tcp-syn-backlog",
    "tcp-syn-backlog-exp2zero",
    "tcp-window-clamps",
)

FAMILIES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
WAITING = sum(range(TIMES))
"""The sum of what TIMES connections find in the accept queue."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def serve(stack: ExitStack, host: str, backlog: int = 128) -> socket.socket:
    return stack.enter_context(socket.create_server((host, 0), family=FAMILIES[host], backlog=backlog))


@pytest.mark.parametrize("host", FAMILIES)
def test_connections_wait_to_be_accepted(grown: Grown, stack: ExitStack, host: str) -> None:
    """A clock of the test's own bounds the times. Each scrape makes a connection of its own."""
    server = serve(stack, host)
    port = str(server.getsockname()[1])
    least = most = 0.0
    times: list[tuple[float, float]] = []
    for _ in range(TIMES):
        begun = time.monotonic()
        stack.enter_context(socket.create_connection(server.getsockname()[:2]))
        times.append((begun, time.monotonic()))
    for early, late in times:
        least += time.monotonic() - late
        stack.enter_context(server.accept()[0])
        most += time.monotonic() - early
    metrics = grown.agent.scrape()
    assert grown.of(metrics, "accept_latency_seconds_count", port=port) == TIMES
    assert least <= grown.of(metrics, "accept_latency_seconds_sum", port=port) <= most
    assert grown.of(metrics, "accept_backlog_sum", port=port) == WAITING
    assert grown.of(metrics, "accept_backlog_bucket", port=port, le="8.0") == 9
    for name in ("tcp_syn_backlog", "tcp_syn_backlog_exp2zero"):
        assert grown.of(metrics, f"{name}_count") == TIMES + 1
        assert grown.of(metrics, f"{name}_sum") == WAITING
    assert grown.of(metrics, "tcp_syn_backlog_bucket", le="50.0") == TIMES + 1
    assert grown.of(metrics, "tcp_syn_backlog_exp2zero_bucket", le="0.0") == 2
    assert grown.of(metrics, "tcp_syn_backlog_exp2zero_bucket", le="16.0") == 17 + 1


def test_ipv4_to_a_socket_of_ipv6_counts_once(grown: Grown, stack: ExitStack) -> None:
    server = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
    for _ in range(TIMES):
        stack.enter_context(socket.create_connection(("127.0.0.1", server.getsockname()[1])))
    assert grown("tcp_syn_backlog_count") == TIMES + 1


def listen_drops() -> int:
    return network("netstat", "TcpExt", "ListenOverflows")


def test_a_full_accept_queue_drops_requests(grown: Grown) -> None:
    before = listen_drops()
    with ExitStack() as stack:
        server = serve(stack, "127.0.0.1", backlog=0)
        port = server.getsockname()[1]
        stack.enter_context(socket.create_connection(server.getsockname()))
        for _ in range(TIMES):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            assert waiting.connect_ex(server.getsockname()) != 0
    dropped = listen_drops() - before
    assert dropped >= TIMES
    shown = str(port if port < 32768 else 0)
    assert grown("tcp_listen_drops_total", port=shown, at="tcp_conn_request") == dropped


def test_an_accept_queue_that_fills_up_meanwhile_drops_the_rest(grown: Grown, stack: ExitStack) -> None:
    """With TCP_DEFER_ACCEPT a connection joins the queue when data arrive: here when it is shorter."""
    before = listen_drops()
    server = serve(stack, "127.0.0.1")
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
    clients = [stack.enter_context(socket.create_connection(server.getsockname())) for _ in range(3)]
    server.listen(0)
    for client in clients:
        client.send(b"x")
    stack.close()
    dropped = listen_drops() - before
    assert dropped >= 2
    assert grown("tcp_listen_drops_total", at="tcp_v4_syn_recv_sock") == dropped


DROP_ALL = struct.pack("HBBI", 6, 0, 0, 0)
"""A classic BPF program that returns 0 (linux/filter.h): the socket gets nothing."""


def attach_filter(one: socket.socket, program: bytes) -> None:
    """Attach a classic BPF program to a socket (struct sock_fprog)."""
    code = ctypes.create_string_buffer(program)
    fprog = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    one.setsockopt(socket.SOL_SOCKET, 26, fprog)  # SO_ATTACH_FILTER


RETRANSMITTED = 100
"""Where tcpi_total_retrans is in struct tcp_info (include/uapi/linux/tcp.h); loss probes are among them."""


SENDERS = {"retransmit": "tcp_retransmit_skb", "tlp": "tcp_send_loss_probe"}
"""The functions that send segments again, by the label."""


@pytest.mark.parametrize(("host", "version"), [("127.0.0.1", "ipv4"), ("::1", "ipv6")])
def test_segments_are_sent_again(grown: Grown, host: str, version: str) -> None:
    """The peer drops what comes in: the kernel sends a tail loss probe, and then the segment again.

    The calls of all connections are the most, since a timer may expire until the connection is closed. A call
    sends nothing while the answer to another loss probe may come (tcp_send_loss_probe() of tcp_output.c).
    Both ends are reset: one that closes would send its FIN again, since its filter drops the answers.
    """

    def again() -> int:
        information = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        (segments,) = struct.unpack_from("I", information, RETRANSMITTED)
        return int(segments)

    with calls(*SENDERS.values()) as made:
        with ExitStack() as stack:
            server = stack.enter_context(socket.create_server((host, 8765), family=FAMILIES[host]))
            client = stack.enter_context(socket.create_connection((host, 8765)))
            accepted = stack.enter_context(server.accept()[0])
            attach_filter(accepted, DROP_ALL)
            client.send(b"x")
            eventually(lambda: again() >= 3)
            segments = again()
            for end in (client, accepted):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        most = made()
    labels = {"saddr": host, "daddr": host, "port": "8765"}
    metric = f"tcp_retransmit_{version}_packets_total"
    metrics = grown.agent.scrape()
    for kind, function in SENDERS.items():
        assert 1 <= grown.of(metrics, metric, type=kind, **labels) <= most[function], metrics.text
    assert grown.of(metrics, metric, **labels) >= segments


def test_a_small_window_is_a_clamp(grown: Grown, stack: ExitStack) -> None:
    """With a small receive buffer, each segment that waits for a reader is one whose window is small.

    The agent is on another CPU: what arrives in an interrupt while it runs is not recorded.
    """
    keep_on(1, grown.agent.pid)
    before = os.sched_getaffinity(0)
    stack.callback(os.sched_setaffinity, 0, before)
    os.sched_setaffinity(0, {0})
    server = serve(stack, "127.0.0.1")
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    client = stack.enter_context(socket.create_connection(server.getsockname()))
    stack.enter_context(server.accept()[0])
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setblocking(False)
    with calls("tcp_try_rmem_schedule") as made:
        for _ in range(TIMES):
            try:
                client.send(b"x" * 500)
            except BlockingIOError:
                break
        counted = at_rest(made, "tcp_try_rmem_schedule")
        assert counted > 0
        assert grown("tcp_window_clamps_total") == counted
