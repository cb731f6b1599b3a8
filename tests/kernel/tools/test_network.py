"""The network's tools, over loopback connections whose addresses, bytes and times the load knows."""

import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ctypes import CDLL, Structure, byref, c_int, c_void_p
from functools import partial
from typing import Any

from tests.support.patience import eventually
from tests.support.tool_cases import SHOWN, Rows, ToolCase, compare, each_case, run_case
from tests.support.trace_process import StartTrace

FAMILIES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
AWAY = "127.0.77.3"
"""A loopback address that no other test uses."""

KIB = 1024
PROBES = ("kprobe_events",)


class Connection:
    """Both ends of a connection over loopback, and their addresses."""

    def __init__(self, stack: ExitStack, address: str) -> None:
        family = FAMILIES[address]
        server = stack.enter_context(socket.create_server((address, 0), family=family))
        self.client = stack.enter_context(socket.create_connection(server.getsockname()[:2]))
        self.peer = stack.enter_context(server.accept()[0])
        self.own, self.port = self.client.getsockname()[1], server.getsockname()[1]


@contextmanager
def connections() -> Iterator[list[tuple[int, str, Connection]]]:
    """Connect by IPv4 and by IPv6; yield the version and the address beside each connection."""
    with ExitStack() as stack:
        yield [
            (version, address, Connection(stack, address))
            for version, address in zip((4, 6), FAMILIES, strict=True)
        ]


def connects() -> Rows:
    """Connections that are accepted, and one that is refused."""
    with connections() as made, socket.socket() as refused, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.close()
        assert refused.connect_ex(("127.0.0.1", port)) != 0
        rows = [
            {"comm": SHOWN, "ip": version, "saddr": address, "daddr": address, "dport": one.port}
            for version, address, one in made
        ]
        return [*rows, {"comm": SHOWN, "ip": 4, "saddr": "127.0.0.1", "daddr": "127.0.0.1", "dport": port}]


def own_ports() -> Rows:
    with connections() as made:
        return [{"lport": one.own, "dport": one.port} for _, _, one in made]


def accepts() -> Rows:
    with connections() as made:
        return [
            {
                "comm": SHOWN,
                "ip": version,
                "raddr": address,
                "rport": one.own,
                "laddr": address,
                "lport": one.port,
            }
            for version, address, one in made
        ]


def sessions() -> Rows:
    """Each end of a connection that moves bytes both ways and stays for a while."""
    with connections() as made:
        rows = []
        for _, address, one in made:
            begun = time.monotonic()
            moved(one, 37 * KIB, 91 * KIB)
            time.sleep(0.05)
            for end in (one.client, one.peer):
                end.close()
            lasted = [50.0, (time.monotonic() - begun) * 1000 + 1000]
            here = {"comm": SHOWN, "laddr": address, "raddr": address, "ms": lasted}
            rows += [
                {**here, "lport": one.own, "rport": one.port, "tx_kb": 37, "rx_kb": 91},
                {**here, "lport": one.port, "rport": one.own, "tx_kb": 91, "rx_kb": 37},
            ]
        return rows


def moved(one: Connection, sent: int, received: int) -> None:
    """Send so many bytes from the client and back, and wait until they are acknowledged."""
    for begin, end, size in ((one.client, one.peer, sent), (one.peer, one.client, received)):
        begin.sendall(bytes(size))
        assert len(end.recv(size, socket.MSG_WAITALL)) == size
        eventually(partial(acknowledged, begin))


def acknowledged(end: socket.socket) -> bool:
    """Return whether no segment waits for the peer: ``tcpi_unacked`` of tcp_info is 0."""
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)[24:28] == bytes(4)


def ends_without_bytes() -> Rows:
    """The same on a kernel that only has the tracepoint, which knows no bytes."""
    return [{key: value for key, value in row.items() if key not in ("tx_kb", "rx_kb")} for row in sessions()]


def slow_connection() -> Rows:
    """A connection whose first request finds a full queue: it is sent again after 1 s."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((AWAY, 0), backlog=0))
        address = server.getsockname()
        stack.enter_context(socket.create_connection(address))
        eventually(lambda: select.select([server], [], [], 0)[0])
        late = stack.enter_context(socket.socket())
        late.setblocking(False)
        begun = time.monotonic()
        assert late.connect_ex(address) != 0
        time.sleep(0.2)
        stack.enter_context(server.accept()[0])
        eventually(lambda: select.select([], [late], [], 0)[1])
        took = (time.monotonic() - begun) * 1000
        own = late.getsockname()[1]
        return [
            {
                "comm": SHOWN,
                "ip": 4,
                "saddr": "127.0.0.1",
                "lport": own,
                "daddr": AWAY,
                "dport": address[1],
                "lat_ms": [900.0, took],
            }
        ]


def request_sent_again() -> Rows:
    [row] = slow_connection()
    return [
        {
            "ip": 4,
            "laddr": "127.0.0.1",
            "lport": row["lport"],
            "t": "R>",
            "raddr": AWAY,
            "rport": row["dport"],
            "state": "SYN_SENT",
        }
    ]


def transfers() -> Rows:
    with connections() as made:
        rows = []
        for _, address, one in made:
            for _ in range(3):
                moved(one, 32 * KIB, 64 * KIB)
            here = {"pid": os.getpid(), "comm": SHOWN, "laddr": address, "raddr": address}
            rows += [
                {**here, "lport": str(one.own), "rport": str(one.port), "tx_kb": 96, "rx_kb": 192},
                {**here, "lport": str(one.port), "rport": str(one.own), "tx_kb": 192, "rx_kb": 96},
            ]
        return rows


def refused_segments() -> Rows:
    """Requests to ports at which no program listens, from known ports."""
    rows = []
    for version, (address, family) in zip((4, 6), FAMILIES.items(), strict=True):
        with socket.create_server((address, 0), family=family) as server:
            closed = server.getsockname()[:2]
        with socket.socket(family) as client:
            client.bind((address, 0))
            assert client.connect_ex(closed) != 0
            own = client.getsockname()[1]
        here = {"ip": version, "saddr": address, "daddr": address}
        rows.append({**here, "sport": own, "dport": closed[1], "flags": "0x2", "reason": "NO_SOCKET"})
    return rows


class Hints(Structure):
    """The begin of struct addrinfo of netdb.h."""

    _fields_ = (("flags", c_int), ("rest", c_int * 11))


NUMERIC = 4
"""AI_NUMERICHOST of netdb.h: no server is asked."""

LIBC = CDLL(None)
HOST, SHOWN_HOST = b'a\x1b[31m\n\xff"', 'a\\x1b[31m\\n\\xff"'


def lookups() -> Rows:
    """Lookups that ask no server, one of a hostile name, which is no address."""
    rows = []
    for name, shown in ((b"127.0.0.1", "127.0.0.1"), (HOST, SHOWN_HOST)):
        begun = time.monotonic()
        LIBC.getaddrinfo(name, None, byref(Hints(flags=NUMERIC)), byref(c_void_p()))
        took = (time.monotonic() - begun) * 1000
        rows.append({"comm": SHOWN, "host": shown, "latms": [0.0, took]})
    LIBC.gethostbyname(b"127.0.0.2")
    return [*rows, {"comm": SHOWN, "host": "127.0.0.2"}]


def away(row: Mapping[str, Any], pid: int) -> bool:
    return AWAY in (row.get("daddr"), row.get("raddr"))


CASES = [
    ToolCase("tcpconnect", connects),
    ToolCase("tcpconnect", own_ports, ("-L",), needs=PROBES),
    ToolCase("tcpaccept", accepts, needs=PROBES),
    ToolCase("tcpconnlat", slow_connection, ("-L", "--min", "500ms"), only=away),
    ToolCase("tcplife", sessions, needs=PROBES),
    ToolCase("tcplife", ends_without_bytes),
    ToolCase("tcpretrans", request_sent_again, only=away),
    ToolCase("tcptop", transfers, ("-i", "300"), needs=PROBES, exact=False),
    ToolCase(
        "tcpdrop",
        refused_segments,
        needs=PROBES,
        only=lambda row, pid: row["flags"] == "0x2" and row["reason"] == "NO_SOCKET",
    ),
    ToolCase("gethostlatency", lookups),
]


@each_case(CASES)
def test_a_tool(case: ToolCase, trace: StartTrace) -> None:
    rows, expected = run_case(case, trace)
    compare(rows, expected, exact=case.exact)
