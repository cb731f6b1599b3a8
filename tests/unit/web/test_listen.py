"""Addresses that the server can listen on, and the error messages for the others."""

import errno
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kprobe_exporter.errors import StartError
from kprobe_exporter.web import listen as module
from kprobe_exporter.web.listen import bound_address, link, listen
from tests.support.patience import eventually, patience

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
        ("[::]:10435", ("localhost:10435", ", on all addresses")),
        ("0.0.0.0:80", ("localhost:80", ", on all addresses")),
        ("[::1]:10435", ("[::1]:10435", "")),
        ("192.0.2.1:10435", ("192.0.2.1:10435", "")),
        ("unix:/run/a.sock", ("localhost", ", on unix:/run/a.sock")),
    ],
)
def test_an_address_for_a_browser(address: str, shown: tuple[str, str]) -> None:
    assert link(address) == shown


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no-such-host.invalid:0", "'no-such-host.invalid' is not known as a host name"),
        (f"{'x' * 300}:0", "is not known as a host name"),
        ("[localhost]:0", "'localhost' is not an IPv6 address"),
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


def connects_to(path: Path | str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.mark.parametrize("slashes", ["/", "///"])
def test_unix_socket_of_owner_and_group(tmp_path: Path, slashes: str) -> None:
    path, mask = tmp_path / "a.sock", os.umask(0)
    try:
        with listening(f"unix:{slashes}{str(path)[1:]}") as (sock,):
            assert bound_address(sock) == f"unix:{path}"
            assert connects_to(path)
            assert path.lstat().st_mode & 0o7777 == 0o660
            assert os.umask(0) == 0
        assert not path.exists()
    finally:
        os.umask(mask)


def test_unix_socket_replaces_one_of_a_dead_process(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.is_socket()
    with listening(f"unix:{path}"):
        assert connects_to(path)


def test_unix_socket_in_use(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with listening(f"unix:{path}"):
        with pytest.raises(
            StartError, match=f"^cannot listen on unix:{path}: a process listens there already"
        ):
            listen([f"unix:{path}"])
        assert connects_to(path)


def test_unix_socket_of_full_queue_in_use(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with ExitStack() as stack:
        busy = stack.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(path))
        busy.listen(0)
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(str(path))
        with pytest.raises(StartError, match="a process listens there already"):
            listen([f"unix:{path}"])
        assert path.is_socket()


@pytest.mark.parametrize("kind", ["file", "directory", "link", "datagram"])
def test_unix_socket_replaces_nothing_else(tmp_path: Path, kind: str) -> None:
    path, aim = tmp_path / "a.sock", tmp_path / "aim"
    with ExitStack() as stack:
        if kind == "file":
            path.write_text("precious")
        elif kind == "directory":
            path.mkdir()
        elif kind == "link":
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(aim))
            path.symlink_to(aim)
        else:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            sock.bind(str(path))
        before = path.lstat()
        with pytest.raises(StartError, match=f"^cannot listen on unix:{path}: "):
            listen([f"unix:{path}"])
        assert path.lstat() == before


def test_unix_socket_of_another_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with listening(f"unix:{path}"):
        path.rename(tmp_path / "kept, so that its number is not used again")
        path.write_text("another's")
    assert path.read_text() == "another's"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("no/a.sock", "the directory /.*/no does not exist; make it before the start"),
        (f"{'x' * 108}", "a path has at most 107 bytes"),
    ],
)
def test_unix_socket_that_cannot_be(tmp_path: Path, place: str, message: str) -> None:
    with pytest.raises(StartError, match=f"^cannot listen on unix:{tmp_path}/{place}: {message}$"):
        listen([f"unix:{tmp_path}/{place}"])


@pytest.mark.parametrize("address", ["unix:", "unix:a.sock", "unix://", "unix:/a\0b", "fd://", "fd://x"])
def test_bad_syntax_of_other_sockets(address: str) -> None:
    with pytest.raises(StartError, match="expected HOST:PORT"):
        listen([address])


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_inherited_socket(tmp_path: Path, kind: str) -> None:
    """It is another process' to end: closing ours leaves it, and its file."""
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) if kind == "unix" else socket.socket() as passed:
        passed.bind(str(path) if kind == "unix" else ("127.0.0.1", 0))
        passed.listen()
        with listening(f"fd://{passed.fileno()}") as (sock,):
            assert bound_address(sock) == bound_address(passed)
            assert not sock.get_inheritable()
            if kind == "tcp":
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with socket.socket(passed.family) as client:
            client.connect(passed.getsockname())
        assert kind == "tcp" or path.is_socket()


@pytest.mark.parametrize("kind", ["closed", "file", "pipe", "connected", "bound", "datagram"])
def test_inherited_descriptor_that_does_not_listen(kind: str) -> None:
    with ExitStack() as stack:
        if kind == "file":
            number = stack.enter_context(open(__file__, "rb")).fileno()
        elif kind == "pipe":
            number, other = os.pipe()
            stack.callback(os.close, number)
            stack.callback(os.close, other)
        elif kind == "closed":
            number = os.dup(0)
            os.close(number)
        elif kind == "connected":
            for one in socket.socketpair():
                number = stack.enter_context(one).fileno()
        else:
            sort = socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM
            sock = stack.enter_context(socket.socket(type=sort))
            sock.bind(("127.0.0.1", 0))
            number = sock.fileno()
        with pytest.raises(StartError, match=f"^cannot listen on fd://{number}: "):
            listen([f"fd://{number}"])
        assert kind == "closed" or os.fstat(number)


ACTIVATED = """
import os
from kprobe_exporter.service.sdnotify import passed_descriptors
from kprobe_exporter.web.listen import bound_address, listen
for sock in listen(f"fd://{number}" for number in passed_descriptors(os.environ, os.getpid())):
    print(bound_address(sock))
print([name for name in os.environ if name.startswith("LISTEN_")])
"""


@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None,
    reason="no systemd-socket-activate: Debian's systemd has it",
)
def test_sockets_of_systemds_own_tool(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["systemd-socket-activate", "-l", str(path), "-l", address, "--fdname=a:b", "-E", "PYTHONPATH"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [*command, sys.executable, "-c", ACTIVATED],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as agent:
        eventually(lambda: connects_to(path))
        assert agent.communicate(timeout=patience(20))[0].splitlines() == [f"unix:{path}", address, "[]"]
