"""A web configuration file gives its settings, or every problem in it with its place."""

import os
from pathlib import Path

import pytest

from kprobe_exporter.web.access import Rate, WebSettings
from kprobe_exporter.web.config.read import HTTP2, MAX_USERS, Outcome, read_web_config
from tests.support.acls import let_another_write
from tests.unit.web.config.conftest import CLIENTS, HASH, PAIR, Read, headers, tls


def told(outcome: Outcome) -> list[str]:
    """Return the problems as ``LINE:COLUMN: PATH: MESSAGE``."""
    return [str(problem).split("web.yml:", 1)[1] for problem in outcome.problems]


@pytest.mark.parametrize(
    "text", ["", "\n# nothing yet\n", "{}", "---\n", "tls_server_config:\nbasic_auth_users:\n", tls("")]
)
def test_nothing_is_asked_for(read: Read, text: str) -> None:
    outcome = read(text)
    assert (outcome.settings, outcome.problems) == (WebSettings(), ())


def test_everything(read: Read, directory: Path) -> None:
    outcome = read(f"""
tls_server_config:
  cert_file: server.pem
  key_file: {directory}/server.key
  client_ca_file: authority.pem
  client_auth_type: RequireAndVerifyClientCert
  client_allowed_sans: [prometheus.example, "::1"]
  min_version: TLS12
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [CurveP384]
http_server_config:
  http2: false
  headers: {{Strict-Transport-Security: max-age=3600, X-Frame-Options: deny, X-XSS-Protection: ""}}
basic_auth_users:
  alice: {HASH}
  "1": {HASH.replace("2y", "2b")}
rate_limit: {{interval: 1m1.5s, burst: 3}}
""")
    assert outcome.problems == ()
    assert outcome.notes == ()
    settings = outcome.settings
    assert settings is not None
    assert settings.tls is not None
    assert settings.tls.names == frozenset(["prometheus.example", "::1"])
    assert settings.headers == {"Strict-Transport-Security": "max-age=3600", "X-Frame-Options": "deny"}
    assert settings.users == {b"alice": HASH.encode(), b"1": HASH.replace("2y", "2b").encode()}
    assert settings.rate == Rate(61.5, 3)
    names = ["web.yml", "server.pem", "server.key", "authority.pem"]
    assert outcome.files == tuple(directory / name for name in names)


def test_certificates_in_the_file_itself(read: Read, directory: Path) -> None:
    def block(name: str) -> str:
        return "|\n" + "".join(f"    {line}\n" for line in (directory / name).read_text().splitlines())

    outcome = read(
        f"tls_server_config:\n  cert: {block('server.pem')}  key: {block('server.key')}"
        f"  client_ca: {block('authority.pem')}  client_auth_type: VerifyClientCertIfGiven\n"
    )
    assert outcome.problems == ()
    assert outcome.settings
    assert outcome.settings.tls
    assert outcome.files == (directory / "web.yml",)


def test_one_file_may_be_both(read: Read) -> None:
    assert read(tls("cert_file: both.pem, key_file: both.pem")).problems == ()


@pytest.mark.parametrize("word", ["true", "on", "yes", "Y"])
def test_http2_is_told_of(read: Read, word: str) -> None:
    assert read(f"http_server_config: {{http2: {word}}}").notes == (HTTP2,)


@pytest.mark.parametrize(
    ("interval", "rate"),
    [
        ("0", None),
        ("0s", None),
        ("1s", Rate(1, 2)),
        ("250ms", Rate(0.25, 2)),
        ("1h30m", Rate(5400, 2)),
        ("1000000", Rate(0.001, 2)),
    ],
)
def test_rates(read: Read, interval: str, rate: Rate | None) -> None:
    outcome = read(f"rate_limit: {{interval: {interval}, burst: 2}}")
    assert outcome.settings is not None
    assert outcome.settings.rate == rate


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("max-age=1 ", {"Strict-Transport-Security": "max-age=1"}),
        ("  max-age=1; preload", {"Strict-Transport-Security": "max-age=1; preload"}),
        (" ", {}),
    ],
)
def test_header_values_trimmed(read: Read, value: str, sent: dict[str, str]) -> None:
    """As Go's net/http does. h11 refuses to send blanks at an end."""
    settings = read(headers(f'Strict-Transport-Security: "{value}"')).settings
    assert settings is not None
    assert settings.headers == sent


NO_TLS = "cert_file is missing: there is no TLS without cert_file and key_file"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1", "1:1: a: unknown key 'a', there is basic_auth_users, http_server_config, rate_limit or"),
        ("tls_config: {}", "1:1: tls_config: unknown key 'tls_config'"),
        ("[]", "1:1: (file): must be a mapping of KEY: VALUE"),
        ("tls_server_config: [1]", "1:1: tls_server_config: must be a mapping of KEY: VALUE"),
        ("a: {\n", "2:1: (file): not valid YAML"),
        ("\xff", "1:1: "),
        (tls(f"{PAIR}, cert_fil: x"), "unknown key 'cert_fil', did you mean"),
        ("basic_auth_users: {}\nbasic_auth_users: {}", "2:1: basic_auth_users: this key is there already"),
        (tls("cert_file: server.pem"), "key_file is missing"),
        (tls("key_file: server.key"), NO_TLS),
        (tls("min_version: TLS13"), NO_TLS),
        (tls("cert_file: 1, key_file: server.key"), "cert_file: must be text"),
        (tls(f"{PAIR}, cert: x"), ".cert: cert_file is there as well: keep one"),
        (tls("cert_file: gone.pem, key_file: server.key"), "gone.pem' cannot be read: No such"),
        (tls("cert_file: ., key_file: server.key"), "is not a regular file"),
        (tls("cert_file: server.pem, key_file: open.key"), "others may write this file: chmod"),
        (tls("cert_file: empty.pem, key_file: server.key"), "there is no certificate in PEM"),
        (tls("cert_file: junk.pem, key_file: server.key"), "OpenSSL refuses the certificate"),
        (tls("cert_file: server.pem, key_file: junk.pem"), "there is no private key in PEM"),
        (tls("cert_file: server.pem, key_file: client.key"), "the key of another certificate"),
        (tls("cert_file: server.pem, key_file: locked.key"), "key_file: the key is encrypted"),
        (tls(f"{PAIR}, client_ca_file: authority.pem"), "clients are not asked for one"),
        (
            tls(f"{PAIR}, client_auth_type: RequireAndVerifyClientCert"),
            "client_auth_type: add client_ca_file",
        ),
        (
            tls(f"{PAIR}, client_ca_file: empty.pem, client_auth_type: VerifyClientCertIfGiven"),
            "client_ca_file: OpenSSL finds no certificate",
        ),
        (tls(f"{PAIR}, client_auth_type: RequireAnyClientCert"), "proves nothing"),
        (tls(f"{PAIR}, client_auth_type: Always"), "must be NoClientCert, VerifyClient"),
        (tls(f"{PAIR}, client_allowed_sans: [x]"), "needs client_auth_type: RequireAndV"),
        (tls(f"{PAIR}, min_version: TLS11"), "TLS 1.0 and 1.1 are not spoken here"),
        (tls(f"{PAIR}, min_version: 1.2"), "min_version: must be TLS12 or TLS13"),
        (tls(f"{PAIR}, min_version: TLS13, max_version: TLS12"), "is above max_version"),
        (tls(f"{PAIR}, cipher_suites: [RC4]"), "[0]: 'RC4' is no cipher suite of Go's"),
        (tls(f"{PAIR}, cipher_suites: RC4"), "cipher_suites: must be a list"),
        (
            tls(f"{PAIR}, max_version: TLS12, cipher_suites: [TLS_AES_128_GCM_SHA256]"),
            "these are all of TLS 1.3",
        ),
        (tls(f"{PAIR}, curve_preferences: [P1]"), "'P1' is no curve, there is CurveP256"),
        (tls(f"{PAIR}, curve_preferences: [X25519]"), "Python's ssl sets one curve"),
        (tls(f"{PAIR}, curve_preferences: [CurveP256, CurveP384]"), "sets one curve"),
        (tls(f"{PAIR}, prefer_server_cipher_suites: 1"), "must be true or false"),
        ("http_server_config: {http2: maybe}", "1:29: http_server_config.http2: must be true or false"),
        (headers("Server: x"), "headers.Server: unknown key 'Server'"),
        (headers("x-frame-options: deny"), "did you mean 'X-Frame-Options'"),
        (headers("X-Frame-Options: never"), "must be deny or sameorigin"),
        (headers("X-Content-Type-Options: ''"), "must be nosniff"),
        (headers("X-XSS-Protection: 1"), "is one line of printable ASCII; put it in"),
        (headers('Content-Security-Policy: "a\\nb"'), "one line of printable ASCII"),
        (headers("Content-Security-Policy: é"), "one line of printable ASCII"),
        ("basic_auth_users: {alice: secret}", "1:27: basic_auth_users.alice: must be a bcrypt hash"),
        (f"basic_auth_users: {{alice: '{HASH[:-1]}'}}", "must be a bcrypt hash"),
        (f"basic_auth_users: {{alice: '{HASH.replace('$10$', '$03$')}'}}", "must be a bcrypt hash"),
        (f"basic_auth_users: {{1: '{HASH}'}}", "1:20: basic_auth_users[1]: a user's name is text"),
        (f"basic_auth_users: {{'a:b': '{HASH}'}}", "a user's name has no colon"),
        ("basic_auth_users: {alice: }", "must be a bcrypt hash"),
        ("rate_limit: {interval: soon, burst: 1}", "interval: this is not a duration: write it as 500ms"),
        ("rate_limit: {interval: 1s}", "burst must be at least 1"),
        ("rate_limit: {interval: 1s, burst: 0}", "rate_limit.burst: burst must be at least 1"),
        ("rate_limit: {interval: 1s, burst: many}", "rate_limit.burst: burst must be a number"),
        ("a: &x 1\nb: *x", "anchors (&) are not read"),
    ],
)
def test_what_is_refused(read: Read, text: str, problem: str) -> None:
    outcome = read(text)
    assert outcome.settings is None
    (only,) = told(outcome) if "&x" not in text else told(outcome)[:1]
    assert problem in only
    assert "\n" not in only


def test_all_problems_at_once(read: Read) -> None:
    outcome = read(
        "basic_auth_users:\n  alice: secret\n  bob: secret\nhttp_server_config: {http3: true}\n"
        "tls_server_config:\n  cert_file: gone.pem\n  min_version: SSL3\n"
    )
    assert [problem.partition(":")[0] for problem in told(outcome)] == ["2", "3", "4", "6", "7"]
    assert "secret" not in "".join(told(outcome))


@pytest.mark.parametrize(
    "text",
    [
        "basic_auth_users: {'alice:s3cr3t'}",
        "basic_auth_users: {'alice s3cr3t': x}",
        "basic_auth_users: {'alice:s3cr3t': x, 'alice:s3cr3t': x}",
        "basic_auth_users: {alice: 's3cr3t'}",
        "basic_auth_users: {alice: [s3cr3t]}",
        "basic_auth_users: alice:s3cr3t",
        "basic_auth_users: {alice: *s3cr3t}",
        "basic_auth_users: {alice: !s3cr3t!x y}",
        tls("cert_file: server.pem, key_file: '-----BEGIN PRIVATE KEY-----s3cr3t'"),
        tls("cert_file: server.pem, key: '-----BEGIN PRIVATE KEY-----s3cr3t'"),
        tls("cert_file: server.pem, key: s3cr3t"),
    ],
)
def test_a_secret_is_not_shown(read: Read, text: str) -> None:
    outcome = read(text)
    assert told(outcome)
    assert "s3cr3t" not in "".join(told(outcome))


def test_too_many_users(read: Read) -> None:
    users = "".join(f"  user{number}: {HASH}\n" for number in range(MAX_USERS + 1))
    assert "more than 1000 users" in told(read(f"basic_auth_users:\n{users}"))[0]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    outcome = read_web_config(tmp_path / "web.yml")
    assert told(outcome) == ["1:1: (file): cannot be read: No such file or directory"]


def test_a_file_that_others_may_write(read: Read, directory: Path) -> None:
    read("{}")
    (directory / "web.yml").chmod(0o666)
    assert "others may write this file" in told(read_web_config(directory / "web.yml"))[0]


def test_a_key_that_every_user_may_read(read: Read, directory: Path) -> None:
    outcome = read(tls("cert_file: server.pem, key_file: read.key"))
    assert outcome.settings is not None
    assert outcome.warnings == (
        f"every user of this machine may read the key in {directory / 'read.key'}: chmod o-r it",
    )
    assert read(tls(PAIR)).warnings == ()


def test_passwords_that_every_user_may_read(read: Read, directory: Path) -> None:
    text = f"basic_auth_users: {{scraper: {HASH}}}"
    read(text)
    file = directory / "web.yml"
    file.chmod(0o644)
    assert read_web_config(file).warnings == (
        f"every user of this machine may read the hashes of passwords in {file}: chmod o-r it",
    )
    file.chmod(0o640)
    assert read_web_config(file).warnings == ()


@pytest.mark.parametrize("name", ["server.pem", "server.key", "authority.pem"])
def test_an_acl_lets_no_other_user_write(read: Read, directory: Path, name: str) -> None:
    let_another_write(directory / name)
    outcome = read(tls(f"{PAIR}, {CLIENTS}"))
    (problem,) = outcome.problems
    assert f"{name}' is not safe: an ACL lets user 54321 write this file: setfacl -x u:54321" in str(problem)


def test_a_key_of_another_user(read: Read, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        is_key = Path(f"/proc/self/fd/{descriptor}").readlink().name == "server.key"
        return os.stat_result((*status[:4], 1001, *status[5:])) if is_key else status

    monkeypatch.setattr(os, "fstat", fstat)
    outcome = read(tls(PAIR))
    (problem,) = outcome.problems
    assert "server.key' is not safe: this file belongs to user 1001, who is neither root" in str(problem)
