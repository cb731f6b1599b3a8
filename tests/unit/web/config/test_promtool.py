"""Our reader accepts and refuses what `promtool check web-config` accepts and refuses.

Intended differences have tables of their own: ``STRICTER`` holds texts that only our reader refuses, and
``NEWER`` texts that the installed promtool (2.42) does not know yet.
"""

import subprocess
from pathlib import Path

import pytest

from tests.unit.web.config.conftest import CLIENTS, HASH, PAIR, Read, headers, tls

TAKEN = [
    "",
    "# nothing",
    "{}",
    "tls_server_config: {}",
    "tls_server_config:\nhttp_server_config:\nbasic_auth_users:\n",
    tls(PAIR),
    tls(f"{PAIR}, client_auth_type: NoClientCert"),
    tls(f"{PAIR}, {CLIENTS}"),
    tls(f"{PAIR}, client_ca_file: authority.pem, client_auth_type: VerifyClientCertIfGiven"),
    tls(f"{PAIR}, min_version: TLS12, max_version: TLS13"),
    tls(f"{PAIR}, min_version: TLS13"),
    tls(f"{PAIR}, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]"),
    tls(f"{PAIR}, cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]"),
    tls(f"{PAIR}, cipher_suites: []"),
    tls(f"{PAIR}, prefer_server_cipher_suites: false"),
    tls(f"{PAIR}, curve_preferences: [CurveP256]"),
    tls(f"{PAIR}, curve_preferences: [CurveP521]"),
    tls("cert_file: both.pem, key_file: both.pem"),
    *(f"http_server_config: {{http2: {word}}}" for word in ("true", "false", "yes", "off", "On", "n")),
    headers("Strict-Transport-Security: max-age=1, X-Frame-Options: sameorigin"),
    headers('X-Content-Type-Options: nosniff, X-XSS-Protection: ""'),
    headers("Content-Security-Policy: default-src 'none'"),
    f"basic_auth_users: {{alice: {HASH}, bob: {HASH.replace('2y', '2a')}}}",
    f"basic_auth_users: {{alice: {HASH.replace('$10$', '$31$')}}}",
    f"basic_auth_users: {{'': {HASH}}}",
    "basic_auth_users: {}",
]

REFUSED = [
    "[]",
    "a: 1",
    "a: [",
    "tls_server_config: 1",
    "tls_server_config: {}\ntls_server_config: {}",
    tls(f"{PAIR}, cert: x, unknown: y"),
    tls("cert_file: server.pem"),
    tls("key_file: server.key"),
    tls("cert_file: gone.pem, key_file: server.key"),
    tls("cert_file: server.pem, key_file: client.key"),
    tls("cert_file: junk.pem, key_file: server.key"),
    tls("cert_file: empty.pem, key_file: server.key"),
    tls("cert_file: server.pem, key_file: server.pem"),
    tls("cert_file: server.pem, key_file: locked.key"),
    tls("cert_file: [server.pem], key_file: server.key"),
    tls("client_auth_type: NoClientCert"),
    tls(f"{PAIR}, client_auth_type: Sometimes"),
    tls(f"{PAIR}, client_ca_file: authority.pem"),
    tls(f"{PAIR}, client_ca_file: gone.pem, client_auth_type: RequireAndVerifyClientCert"),
    tls(f"{PAIR}, min_version: TLS14"),
    tls(f'{PAIR}, min_version: ""'),
    tls(f"{PAIR}, cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]"),
    tls(f"{PAIR}, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256]"),
    tls(f"{PAIR}, curve_preferences: [CurveP224]"),
    tls(f"{PAIR}, prefer_server_cipher_suites: perhaps"),
    "http_server_config: {http2: perhaps}",
    "http_server_config: {http3: true}",
    headers("Server: x"),
    headers("x-frame-options: deny"),
    headers("X-Frame-Options: DENY"),
    headers('X-Content-Type-Options: ""'),
    "basic_auth_users: {alice: secret}",
    "basic_auth_users: {alice: }",
    f"basic_auth_users: {{alice: {HASH[:-2]}}}",
    f"basic_auth_users: {{alice: {HASH.replace('$10$', '$03$')}}}",
    f"basic_auth_users: {{alice: {HASH.replace('$10$', '$32$')}}}",
    f"basic_auth_users: [{HASH}]",
]

STRICTER = {
    "no TLS would come of it": tls("min_version: TLS13"),
    "the certificate is not verified": tls(f"{PAIR}, client_auth_type: RequireAnyClientCert"),
    "the certificate is not looked at": tls(f"{PAIR}, client_auth_type: RequestClientCert"),
    "any public authority would do": tls(f"{PAIR}, client_auth_type: RequireAndVerifyClientCert"),
    "no client would be let in": tls(f"{PAIR}, {CLIENTS}".replace("authority.pem", "junk.pem")),
    "others may write the key": tls("cert_file: server.pem, key_file: open.key"),
    "RFC 8996": tls(f"{PAIR}, min_version: TLS10"),
    "no version is left": tls(f"{PAIR}, min_version: TLS13, max_version: TLS12"),
    "no cipher is left": tls(f"{PAIR}, max_version: TLS12, cipher_suites: [TLS_AES_128_GCM_SHA256]"),
    "Python's ssl does not choose it": tls(f"{PAIR}, curve_preferences: [X25519]"),
    "Python's ssl takes one": tls(f"{PAIR}, curve_preferences: [CurveP256, CurveP384]"),
    "bcrypt has no such version": f"basic_auth_users: {{alice: {HASH.replace('2y', '2c')}}}",
    "bcrypt has no such letter": f"basic_auth_users: {{alice: '{HASH[:-1]}?'}}",
    "no such name can be sent": f"basic_auth_users: {{'a:b': {HASH}}}",
    "a name is text": f"basic_auth_users: {{1: {HASH}}}",
    "no header can hold it": headers('X-XSS-Protection: "a\\nb"'),
    "our YAML has no anchors": tls(f"{PAIR}, cipher_suites: &none []"),
}

NEWER = [tls(f"{PAIR}, {CLIENTS}, client_allowed_sans: [x]"), "rate_limit: {interval: 1s, burst: 5}"]


class Judge:
    """Judges one text with our reader and with promtool."""

    def __init__(self, read: Read, directory: Path, promtool: str) -> None:
        self._read = read
        self._command = [promtool, "check", "web-config", str(directory / "web.yml")]

    def __call__(self, text: str) -> tuple[bool, bool]:
        """Return whether our reader accepts the text, and whether promtool does."""
        ours = self._read(text).settings is not None
        run = subprocess.run(self._command, capture_output=True, text=True, check=False)
        assert run.returncode in (0, 1, 3), run.stderr
        return ours, run.returncode == 0


@pytest.fixture
def judge(read: Read, directory: Path, promtool: str) -> Judge:
    return Judge(read, directory, promtool)


@pytest.mark.parametrize("text", TAKEN)
def test_what_both_take(judge: Judge, text: str) -> None:
    assert judge(text) == (True, True)


@pytest.mark.parametrize("text", REFUSED)
def test_what_both_refuse(judge: Judge, text: str) -> None:
    assert judge(text) == (False, False)


@pytest.mark.parametrize("text", STRICTER.values(), ids=STRICTER)
def test_where_we_are_stricter(judge: Judge, text: str) -> None:
    assert judge(text) == (False, True)


@pytest.mark.parametrize("text", NEWER)
def test_what_came_after_promtool(judge: Judge, text: str) -> None:
    assert judge(text) == (True, False)


def test_certificates_in_the_file_came_after_promtool(judge: Judge, directory: Path) -> None:
    lines = (directory / "server.pem").read_text().splitlines()
    cert = "".join(f"    {line}\n" for line in lines)
    assert judge(f"tls_server_config:\n  cert: |\n{cert}  key_file: server.key\n") == (True, False)
