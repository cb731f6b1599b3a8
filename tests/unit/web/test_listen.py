"""Addresses that the server can listen on, and the error messages for the others."""

import errno
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kprobe_exporter.errors import StartError
from kprobe_exporter.web import listen as module
from kprobe_exporter.web.listen import bound_address, link, listen

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")


@contextmanager
def listening(*addresses: str) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(sock) for sock in listen(addresses)]


def connects(host: str, sock: socket.socket) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as client:
        return client.connect_ex((host, sock.getsockname()[1])) == 0


@needs_ipv6
@pytest.mark.parametrize("address", [":0", "[::]:0"])
def test_without_a_host_it_is_everywhere(address: str) -> None:
    with listening(address) as (sock,):
        assert connects("127.0.0.1", sock)
        assert connects("::1", sock)
        assert bound_address(sock) == f"[::]:{sock.getsockname()[1]}"


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_without_ipv6_it_is_ipv4(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(host: str, port: int) -> socket.socket:
        raise OSError(code, "no IPv6")

    monkeypatch.setattr(module, "_listen_ipv6", refuse)
    with listening(":0") as (sock,):
        assert connects("127.0.0.1", sock)
        assert bound_address(sock).startswith("0.0.0.0:")


@needs_ipv6
def test_an_ipv6_address_is_that_one_alone() -> None:
    with listening("[::1]:0") as (sock,):
        assert connects("::1", sock)
        assert not connects("127.0.0.1", sock)
        assert bound_address(sock).startswith("[::1]:")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0"])
def test_ipv4_and_names(address: str) -> None:
    with listening(address) as (sock,):
        assert connects("127.0.0.1", sock)


def test_answers_in_pieces_do_not_wait_for_acknowledgements() -> None:
    with listening("127.0.0.1:0") as (one,):
        client = socket.create_connection(one.getsockname())
        accepted, _ = one.accept()
        with client, accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_several() -> None:
    with listening("127.0.0.1:0", "127.0.0.1:0") as (first, second):
        assert bound_address(first) != bound_address(second)


@pytest.mark.parametrize(
    "address",
    [
        *("", "10435", "localhost", "localhost:", ":x", ":655360", ":-1", "::1:10435", "[::1]"),
        *("[::1]10435", "http://localhost:10435", "a b:1", ":1\n", ":٣", "[]:1", ":1_0", "*:"),
    ],
)
def test_bad_syntax(address: str) -> None:
    with pytest.raises(StartError, match="expected HOST:PORT"):
        listen([address])


def test_a_port_that_is_none() -> None:
    with pytest.raises(StartError, match=re.escape("cannot listen on ':65536': a port is at most 65535")):
        listen([":65536"])


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("[::]:10435", "localhost:10435"),
        ("0.0.0.0:80", "localhost:80"),
        ("[::1]:10435", "[::1]:10435"),
        ("192.0.2.1:10435", "192.0.2.1:10435"),
    ],
)
def test_an_address_for_a_browser(address: str, shown: str) -> None:
    assert link(address) == shown


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no-such-host.invalid:0", "'no-such-host.invalid' is not known as a host name"),
        (f"{'x' * 300}:0", "is not known as a host name"),
        ("[localhost]:0", "'localhost' is no IPv6 address"),
        ("192.0.2.1:0", "this machine has no such address"),
    ],
)
def test_hosts_that_cannot_be(address: str, message: str) -> None:
    with pytest.raises(StartError, match=message) as caught:
        listen([address])
    assert "\n" not in str(caught.value)


def test_a_port_in_use() -> None:
    with listening("127.0.0.1:0") as (sock,):
        port = sock.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f":{port}"):
            with pytest.raises(StartError, match=f"cannot listen on {address}: the port is in use"):
                listen([address])


def test_none_is_left_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(StartError):
        listen([f"127.0.0.1:{port}", "nonsense"])
    with listening(f"127.0.0.1:{port}"):
        pass


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.EACCES, "port 80 needs root or CAP_NET_BIND_SERVICE"),
        (errno.EAFNOSUPPORT, "without IPv6"),
        (errno.ENOBUFS, "No buffer space"),
    ],
)
def test_what_root_on_this_machine_cannot_provoke(
    code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(code, "No buffer space")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(StartError, match=message):
        listen(["127.0.0.1:80"])
