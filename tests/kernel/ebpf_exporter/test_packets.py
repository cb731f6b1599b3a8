"""Examples of packets that come in, are dropped, or come in pieces."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kernel.ebpf_exporter.counted import TIMES, Grown, network, network6
from tests.support.private_tracefs import TRACEFS

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = ("icmp-ip", "inet-frags", "kfree_skb", "udp-drops", "xdp")

PORT = 9005
HOSTS = {"127.0.0.1": ("udp4", socket.AF_INET), "::1": ("udp6", socket.AF_INET6)}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("host", HOSTS)
def test_datagrams_by_port(grown: Grown, stack: ExitStack, host: str) -> None:
    protocol, family = HOSTS[host]
    receiver = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
    receiver.bind((host, PORT))
    sender = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
    for _ in range(TIMES):
        sender.sendto(b"x", (host, PORT))
    assert grown("incoming_packets_total", protocol=protocol, port=str(PORT)) == TIMES


SEGMENTS_IN = 140
"""Where tcpi_segs_in is in struct tcp_info (include/uapi/linux/tcp.h). It counts the SYN."""


@pytest.mark.parametrize(("host", "protocol"), [("127.0.0.1", "tcp4"), ("::1", "tcp6")])
def test_segments_by_port(grown: Grown, stack: ExitStack, host: str, protocol: str) -> None:
    server = stack.enter_context(socket.create_server((host, PORT), family=HOSTS[host][1]))
    client = stack.enter_context(socket.create_connection((host, PORT)))
    accepted = stack.enter_context(server.accept()[0])
    for _ in range(TIMES):
        client.sendall(b"x")
        assert accepted.recv(1) == b"x"
    information = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (segments,) = struct.unpack_from("I", information, SEGMENTS_IN)
    assert segments > TIMES
    assert grown("incoming_packets_total", protocol=protocol, port=str(PORT)) == segments


def test_datagrams_to_a_port_of_no_socket_are_dropped(grown: Grown, stack: ExitStack) -> None:
    before = network("snmp", "Udp", "NoPorts")
    sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    for _ in range(TIMES):
        sender.sendto(b"x", ("127.0.0.1", PORT))
    assert network("snmp", "Udp", "NoPorts") == before + TIMES
    if "reason;" in (TRACEFS / "events/skb/kfree_skb/format").read_text():
        labels = {"port": str(PORT), "reason": "NO_SOCKET"}
    else:  # before Linux 5.17
        labels = {"location": "__udp4_lib_rcv"}
    assert grown("kfree_skb_total", protocol="ipv4", **labels) == TIMES


@pytest.mark.parametrize(("port", "shown"), [(PORT, str(PORT)), (PORT + 100, "0")])
def test_datagrams_find_a_full_socket(grown: Grown, stack: ExitStack, port: int, shown: str) -> None:
    """The kernel raises the size of the buffer to its minimum."""
    before = network("snmp", "Udp", "RcvbufErrors")
    receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
    receiver.bind(("127.0.0.1", port))
    sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    for _ in range(2 * TIMES):
        sender.sendto(bytes(1000), ("127.0.0.1", port))
    dropped = network("snmp", "Udp", "RcvbufErrors") - before
    assert dropped >= TIMES
    assert grown("udp_fail_queue_rcv_skbs_total", port=shown) == dropped


def checksum(data: bytes) -> int:
    """The Internet checksum of an even number of bytes (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def test_pings_of_ipv4(grown: Grown, stack: ExitStack) -> None:
    """The kernel answers each: both messages come in here."""
    before = network("snmp", "Icmp", "InMsgs")
    raw = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
    message = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, 1)
    message = message[:2] + struct.pack("!H", checksum(message)) + message[4:]
    for _ in range(TIMES):
        raw.sendto(message, ("127.0.0.1", 0))
    received = network("snmp", "Icmp", "InMsgs") - before
    assert received == 2 * TIMES
    metrics = grown.agent.scrape()
    labels = {"from": "127.0.0.1"}
    assert grown.of(metrics, "icmp4_received_packets_total", **labels) == received
    for kind in ("8", "0"):
        assert grown.of(metrics, "icmp4_received_messages_total", type=kind, code="0") == TIMES


def test_pings_of_ipv6(grown: Grown, stack: ExitStack) -> None:
    """The kernel computes the checksum of ICMPv6 itself."""
    before = network6("Icmp6InMsgs")
    raw = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6))
    for _ in range(TIMES):
        raw.sendto(struct.pack("!BBHHH", 128, 0, 0, os.getpid() & 0xFFFF, 1), ("::1", 0))
    received = network6("Icmp6InMsgs") - before
    assert received == 2 * TIMES
    metrics = grown.agent.scrape()
    labels = {"from": "::1"}
    assert grown.of(metrics, "icmp6_received_packets_total", **labels) == received
    for kind in ("128", "129"):
        assert grown.of(metrics, "icmp6_received_messages_total", type=kind, code="0") == TIMES


def test_fragments_of_ipv4(grown: Grown, stack: ExitStack) -> None:
    """Each datagram is sent as two packets; the kernel fills in the checksum of their headers."""
    before = network("snmp", "Ip", "ReasmReqds"), network("snmp", "Ip", "ReasmOKs")
    raw = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
    address = socket.inet_aton("127.0.0.1")
    for number in range(TIMES):
        for offset, more in ((0, 0x2000), (1, 0)):
            payload = struct.pack("!HHHH", 1234, PORT, 16, 0) if not offset else bytes(8)
            header = struct.pack("!BBHHHBBH", 0x45, 0, 28, 1 + number, more | offset, 64, 17, 0)
            raw.sendto(header + address + address + payload, ("127.0.0.1", 0))
    assert network("snmp", "Ip", "ReasmReqds") - before[0] == 2 * TIMES
    assert network("snmp", "Ip", "ReasmOKs") - before[1] == TIMES
    assert grown("inet_frags_total", interface="lo", ip_version="4") == 2 * TIMES


def test_fragments_of_ipv6(grown: Grown, stack: ExitStack) -> None:
    before = network6("Ip6ReasmReqds")
    raw = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW))
    raw.setsockopt(socket.IPPROTO_IPV6, 36, 1)  # IPV6_HDRINCL
    address = socket.inet_pton(socket.AF_INET6, "::1")
    for number in range(TIMES):
        for offset, more in ((0, 1), (8, 0)):
            payload = struct.pack("!HHHH", 1234, PORT, 16, 0) if not offset else bytes(8)
            header = struct.pack("!IHBB", 6 << 28, 16, 44, 64) + address + address
            fragment = struct.pack("!BBHI", 17, 0, offset | more, 1 + number)
            raw.sendto(header + fragment + payload, ("::1", 0))
    assert network6("Ip6ReasmReqds") - before == 2 * TIMES
    assert grown("inet_frags_total", interface="lo", ip_version="6") == 2 * TIMES
