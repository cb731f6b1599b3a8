"""No bytes of a web configuration or of a certificate end in a traceback."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.web.access import WebSettings
from kprobe_exporter.web.config.context import CIPHERS, CLIENT_AUTH, CURVES, VERSIONS
from kprobe_exporter.web.config.read import Outcome, read_web_config
from tests.unit.web.config.conftest import CLIENTS, HASH, PAIR, tls

TLS_KEYS = (
    "cert cert_file key key_file client_ca client_ca_file client_auth_type client_allowed_sans min_version"
    " max_version cipher_suites curve_preferences prefer_server_cipher_suites"
).split()
FILES = "server.pem server.key both.pem junk.pem gone.pem authority.pem".split()
WORDS = st.sampled_from(
    [
        *(*FILES, ".", "\0", "", HASH, "deny", "nosniff", "1s", "0"),
        *(*VERSIONS, *CLIENT_AUTH, *CURVES, *sorted(CIPHERS)[:3]),
    ]
)
SCALARS = WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(SCALARS, SCALARS, max_size=2)


def section(*keys: str) -> st.SearchStrategy[object]:
    return st.dictionaries(st.sampled_from(keys) | SCALARS, VALUES, max_size=6) | VALUES


DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "tls_server_config": section(*TLS_KEYS),
        "http_server_config": section("http2", "headers"),
        "basic_auth_users": st.dictionaries(SCALARS, VALUES, max_size=3),
        "rate_limit": section("interval", "burst"),
        "more": VALUES,
    },
)
NO_CLEANING = [HealthCheck.function_scoped_fixture]


def sound(outcome: Outcome) -> bool:
    """Return whether there are either settings or problems. Each problem is one printable line."""
    lines = [str(problem) for problem in outcome.problems]
    assert all(line.isprintable() for line in lines)
    return isinstance(outcome.settings, WebSettings) is not bool(lines)


@settings(max_examples=150, suppress_health_check=NO_CLEANING, deadline=None)
@given(document=DOCUMENTS)
def test_documents(directory: Path, document: object) -> None:
    file = directory / "web.yml"
    file.write_text(yaml.safe_dump(document, allow_unicode=True), errors="surrogatepass")
    assert sound(read_web_config(file))


@settings(max_examples=150, suppress_health_check=NO_CLEANING, deadline=None)
@given(content=st.binary(max_size=200))
def test_bytes(directory: Path, content: bytes) -> None:
    file = directory / "web.yml"
    file.write_bytes(content)
    assert sound(read_web_config(file))


@pytest.mark.parametrize("name", ["server.pem", "server.key", "authority.pem"])
@settings(max_examples=50, suppress_health_check=NO_CLEANING, deadline=None)
@given(cut=st.integers(0, 2000), junk=st.binary(max_size=30), again=st.booleans())
def test_damaged_certificates(directory: Path, name: str, cut: int, junk: bytes, again: bool) -> None:
    whole = (directory / name).read_bytes()
    file = directory / "web.yml"
    file.write_text(tls(f"{PAIR}, {CLIENTS}"))
    try:
        (directory / name).write_bytes(whole[:cut] + junk + (whole[cut:] if again else b""))
        assert sound(read_web_config(file))
    finally:
        (directory / name).write_bytes(whole)
