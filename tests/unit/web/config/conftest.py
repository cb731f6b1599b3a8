"""Fixtures: a directory of certificates, and a reader of one text."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kprobe_exporter.web.config.read import Outcome, read_web_config
from tests.support.certificates import Authority, Pair

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"

PAIR = "cert_file: server.pem, key_file: server.key"
CLIENTS = "client_ca_file: authority.pem, client_auth_type: RequireAndVerifyClientCert"

Read = Callable[[str], Outcome]


def tls(keys: str) -> str:
    return f"tls_server_config: {{{keys}}}"


def headers(pairs: str) -> str:
    return f"http_server_config: {{headers: {{{pairs}}}}}"


@pytest.fixture(scope="session")
def client_pair(authority: Authority) -> Pair:
    return authority.issue("client", "DNS:prometheus.example,email:a@b.example,URI:spiffe://x/y,IP:::1")


@pytest.fixture
def directory(tmp_path: Path, authority: Authority, server: Pair, client_pair: Pair) -> Iterator[Path]:
    """A directory with the files that the tests name: valid certificates and keys, and invalid ones.

    No other user may read a file of the test: that would be a warning.
    """
    before = os.umask(0o077)
    for pair in (authority, server, client_pair):
        for file in (pair.certificate, pair.key):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    key = server.key.read_text()
    (tmp_path / "both.pem").write_text(server.certificate.read_text() + key)
    (tmp_path / "junk.pem").write_text("-----BEGIN CERTIFICATE-----\njunk\n-----END CERTIFICATE-----\n")
    (tmp_path / "empty.pem").touch()
    lock = ["openssl", "pkey", "-in", str(server.key), "-aes256", "-passout", "pass:x"]
    subprocess.run([*lock, "-out", str(tmp_path / "locked.key")], check=True)
    (tmp_path / "open.key").write_text(key)
    (tmp_path / "open.key").chmod(0o666)
    (tmp_path / "read.key").write_text(key)
    (tmp_path / "read.key").chmod(0o644)
    yield tmp_path
    os.umask(before)


@pytest.fixture
def read(directory: Path) -> Read:
    """Return a function that reads one text as a web configuration file."""

    def run(text: str) -> Outcome:
        file = directory / "web.yml"
        file.write_text(text)
        return read_web_config(file)

    return run
