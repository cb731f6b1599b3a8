"""Unix sockets with a path: the mode of the file, and the process at the other end."""

import os
import socket
import stat
from pathlib import Path

import pytest

from kprobe_exporter.util.unix_socket import Peer, listen_at, peer_of


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0)
    try:
        with listen_at(tmp_path / "s", mode, 1):
            status = (tmp_path / "s").stat()
            assert (stat.S_ISSOCK(status.st_mode), stat.S_IMODE(status.st_mode)) == (True, mode)
            assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert not (tmp_path / "s").exists()


def test_peer_is_this_process(tmp_path: Path) -> None:
    own = Peer(os.getpid(), os.geteuid(), os.getegid())
    with listen_at(tmp_path / "s", 0o600, 1) as server, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
        accepted, _ = server.accept()
        with accepted:
            assert peer_of(accepted) == peer_of(client) == own
