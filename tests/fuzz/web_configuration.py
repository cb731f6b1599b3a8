"""Fuzzes the web configuration: its text, its values, and the certificates and keys that it names.

A file that was cut short is read by an agent that has read the whole one: it must not protect less.
"""

import logging
import os
import shutil
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from kprobe_exporter.web.access import WebSettings
from kprobe_exporter.web.config.context import CIPHERS, CLIENT_AUTH, CURVES, VERSIONS
from kprobe_exporter.web.config.read import read_web_config
from kprobe_exporter.web.config.reloader import WebConfigReloader
from tests.fuzz.configuration import YAML
from tests.fuzz.material import certificates
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Input, Take, Target, scratch
from tests.fuzz.trees import Trees
from tests.unit.web.config.conftest import HASH

CERTIFICATES = {
    "tls_server_config": {
        "cert_file": "server.pem",
        "key_file": "server.key",
        "client_ca_file": "authority.pem",
        "client_auth_type": "RequireAndVerifyClientCert",
    }
}
WHOLE: Mapping[str, Any] = {
    "tls_server_config": {
        **CERTIFICATES["tls_server_config"],
        "client_allowed_sans": ["prometheus.example", "::1"],
        "min_version": "TLS12",
        "max_version": "TLS13",
        "cipher_suites": sorted(CIPHERS)[2:5],
        "prefer_server_cipher_suites": False,
        "curve_preferences": ["CurveP384"],
    },
    "http_server_config": {
        "http2": True,
        "headers": {"Strict-Transport-Security": "max-age=3600", "X-Frame-Options": "deny"},
    },
    "basic_auth_users": {"alice": HASH, "1": HASH.replace("2y", "2b")},
    "rate_limit": {"interval": "1m1.5s", "burst": 3},
}
DOCUMENTS = (WHOLE, CERTIFICATES, *({key: value} for key, value in WHOLE.items()))
VALUES = (
    *("server.pem", "server.key", "authority.pem", "client.key", "gone.pem", ".", "/dev/zero"),
    "/proc/self/mem",
    *(HASH, "nosniff", "0", "1ns", "9" * 13 + "h", *VERSIONS, *CLIENT_AUTH, *CURVES, *sorted(CIPHERS)),
    *("cert", "key", "client_ca", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"),
)
PEM = (
    *(b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n", b"-----BEGIN PRIVATE KEY-----\n"),
    *(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n", b"Proc-Type: 4,ENCRYPTED\nDEK-Info: DES-CBC,0\n\n"),
    *(b"AAAA", b"="),
)
FILES = ("server.pem", "server.key", "authority.pem")


@cache
def texts() -> Mutator:
    return Mutator([yaml.safe_dump(document).encode() for document in DOCUMENTS], YAML)


@cache
def trees() -> Trees:
    return Trees(DOCUMENTS, VALUES)


@cache
def pems() -> Mutator:
    return Mutator([(certificates() / name).read_bytes() for name in FILES], PEM)


def _whole(random: Random) -> bytes:
    """Return the whole configuration with its sections, and the keys in them, in any order."""
    document = {name: _shuffled(random, section) for name, section in _shuffled(random, WHOLE).items()}
    document["tls_server_config"]["min_version"] = random.choice((*VERSIONS,))
    style = random.choice((None, False, True))
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=style, width=1000).encode()


def _shuffled(random: Random, section: Mapping[str, Any]) -> dict[str, Any]:
    return dict(random.sample(list(section.items()), len(section)))


def make(random: Random) -> Input:
    what = random.choice(("text", "values", "values", "cut", *FILES))
    if what == "cut":
        whole = _whole(random)
        # The whole file is before a NUL, which no YAML has, and what remains of it behind.
        return Input(what, whole + b"\0" + whole[: random.randrange(len(whole))])
    if what == "values":
        return Input(what, trees()(random))
    return Input(what, (texts() if what == "text" else pems())(random))


@contextmanager
def taking() -> Iterator[Take]:
    logging.getLogger("kprobe_exporter.web").setLevel(logging.CRITICAL)  # in a process of its own
    with scratch() as directory:
        shutil.copytree(certificates(), directory, dirs_exist_ok=True)
        file, named = directory / "web.yml", yaml.safe_dump(CERTIFICATES).encode()

        def take(given: Input) -> bool:
            if given.what == "cut":
                return _take_cut(file, *given.data.split(b"\0"))
            changed = directory / given.what if given.what in FILES else None
            file.write_bytes(named if changed else given.data)
            before = changed.read_bytes() if changed else b""
            if changed:
                changed.write_bytes(given.data)
            try:
                outcome = read_web_config(file)
            finally:
                if changed:
                    changed.write_bytes(before)
            lines = [str(problem) for problem in outcome.problems]
            assert all(line.isprintable() for line in lines), lines
            assert isinstance(outcome.settings, WebSettings) is not bool(lines)
            return not lines

        yield take


def _take_cut(file: Path, whole: bytes, cut: bytes) -> bool:
    file.write_bytes(whole)
    reloader = WebConfigReloader(file)
    before = reloader.settings()
    file.write_bytes(cut)
    os.utime(file, ns=(1, 1))
    for _ in range(2):
        reloader.look()
    after = reloader.settings()
    assert before.tls
    assert after.tls
    assert before.rate
    assert after.rate
    assert after.tls.context.verify_mode is ssl.CERT_REQUIRED
    assert after.tls.context.minimum_version >= before.tls.context.minimum_version
    assert after.tls.names is not None
    assert after.tls.curve == before.tls.curve
    suites = [{suite["name"] for suite in tls.context.get_ciphers()} for tls in (before.tls, after.tls)]
    assert suites[1] <= suites[0]
    assert after.users
    assert after.users.items() <= before.users.items()
    assert after.rate.interval > before.rate.interval / 1000
    assert after.rate.burst <= before.rate.burst
    return after is not before


TARGET = Target("web-configuration", make, taking)
