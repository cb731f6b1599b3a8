"""A changed web configuration is read again; while it is wrong, the last valid one stays in force."""

import logging
import os
import resource
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kprobe_exporter.errors import ConfigError
from kprobe_exporter.web.access import WebSettings
from kprobe_exporter.web.config import reloader as module
from kprobe_exporter.web.config.reloader import RETRY, WebConfigReloader
from tests.support.certificates import Authority
from tests.support.patience import patience
from tests.unit.web.config.conftest import HASH

PLAIN = f"basic_auth_users: {{alice: {HASH}}}\n"
TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key}\n"
CERTIFICATE = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
CLIENTS = "  client_ca_file: authority.pem\n  client_auth_type: "
DEMANDED = f"{CERTIFICATE}{CLIENTS}RequireAndVerifyClientCert\n"
NAMED = f"{DEMANDED}  client_allowed_sans: [prometheus.example]"
RATE = "rate_limit:\n  burst: 30\n  interval: 1s\n"
SUITE = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"

Told = Callable[[], list[str]]
Exhausted = Callable[[int | None], None]


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Told]:
    with caplog.at_level(logging.INFO, "kprobe_exporter.web"):
        yield lambda: caplog.messages


@pytest.fixture
def file(directory: Path) -> Path:
    return directory / "web.yml"


def start(file: Path, text: str) -> WebConfigReloader:
    file.write_text(text)
    return WebConfigReloader(file)


def change(file: Path, content: str | bytes) -> None:
    """Write a file, and set a new modification time, because the file system's clock may be coarse."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(file, ns=(before + 1, before + 1))


def look(watch: WebConfigReloader, times: int = 2) -> WebSettings:
    for _ in range(times):
        watch.look()
    return watch.settings()


def test_nothing_changes(file: Path, told: Told) -> None:
    watch = start(file, PLAIN)
    before = watch.settings()
    assert look(watch, 10) is before
    assert told() == []


def test_a_wrong_file_is_refused_at_the_start(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"web\.yml:1:1: tls: unknown key 'tls'"):
        start(file, "tls: {}")


def test_users_change(file: Path, told: Told) -> None:
    watch = start(file, PLAIN)
    change(file, PLAIN.replace("alice", "bob"))
    assert [*look(watch).users] == [b"bob"]
    assert told() == [f"{file}: read again"]


def test_a_file_is_read_when_it_is_complete(file: Path) -> None:
    """An editor may write a file in pieces: an empty one must not switch the passwords off."""
    watch = start(file, PLAIN)
    change(file, PLAIN.replace("alice", "bob")[:-20])
    assert [*look(watch, 1).users] == [b"alice"]
    change(file, PLAIN.replace("alice", "bob"))
    assert [*look(watch, 1).users] == [b"alice"]
    assert [*look(watch, 1).users] == [b"bob"]


@pytest.mark.parametrize("text", ["basic_auth_users: {alice: secret}", "a: [", "b: 1\nc: 2"])
def test_a_wrong_file_changes_nothing(file: Path, told: Told, text: str) -> None:
    watch = start(file, PLAIN)
    before = watch.settings()
    change(file, text)
    assert look(watch, 10) is before
    (line,) = told()
    assert line.startswith("the web configuration has changed, and the old one holds: ")
    assert "web.yml:1:" in line
    assert "secret" not in line
    assert ("(and 1 more)" in line) is (text == "b: 1\nc: 2")
    change(file, PLAIN.replace("alice", "bob"))
    assert [*look(watch).users] == [b"bob"]


def test_a_file_that_goes_away(file: Path, told: Told) -> None:
    watch = start(file, PLAIN)
    before = watch.settings()
    file.unlink()
    assert look(watch, 10) is before
    assert len(told()) == 1
    change(file, PLAIN)
    assert look(watch).users == before.users
    assert told()[1:] == [f"{file}: read again"]


def test_a_certificate_is_renewed(file: Path, directory: Path, authority: Authority, told: Told) -> None:
    """The certificate may change first, and its key one look later."""
    watch = start(file, TLS)
    before = watch.settings()
    renewed = authority.issue("renewed")
    change(directory / "server.pem", renewed.certificate.read_bytes())
    assert look(watch, 5) is before
    assert [line.split("server.key")[-1] for line in told()] == [
        f"the web configuration has changed, and the old one holds: {file}:1:54: tls_server_config.key_file:"
        " this is the key of another certificate"
    ]
    change(directory / "server.key", renewed.key.read_bytes())
    after = look(watch).tls
    assert after
    assert before.tls
    assert after.context is not before.tls.context


@pytest.fixture
def exhausted() -> Iterator[Exhausted]:
    """Yield a function that leaves the given number of descriptors free, or all of them again for None."""
    held: list[int] = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def leave(free: int | None) -> None:
        for descriptor in held:
            os.close(descriptor)
        held.clear()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        if free is None:
            return
        most = max(map(int, os.listdir("/proc/self/fd"))) + 8
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(free):
            os.close(held.pop())

    yield leave
    leave(None)


@pytest.mark.parametrize("free", [0, 1, 2, 3])
def test_a_certificate_is_renewed_while_there_are_too_few_descriptors(
    file: Path, directory: Path, told: Told, exhausted: Exhausted, free: int
) -> None:
    """Once there are enough, the certificate is loaded without another change. The failure is logged once."""
    watch = start(file, TLS)
    before = watch.settings()
    change(directory / "server.pem", (directory / "server.pem").read_bytes())
    exhausted(free)
    look(watch, 20)
    exhausted(None)
    complaints = [line for line in told() if "Too many open files" in line]
    assert len(complaints) == (free < 3)
    assert (watch.settings() is before) is (free < 3)
    assert look(watch, RETRY) is not before
    assert told() == [*complaints, f"{file}: read again"]
    after = watch.settings()
    assert look(watch, 20) is after


def test_a_key_that_every_user_may_read_is_a_warning(
    file: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = start(file, TLS.replace("server.key", "read.key"))
    change(directory / "read.key", (directory / "read.key").read_bytes())
    look(watch, 3)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # at the start, and when it was read again
    assert all("every user of this machine may read the key in" in warning for warning in warnings)


def test_a_certificate_that_may_be_read_only_later(file: Path, directory: Path, told: Told) -> None:
    """A changed mode is not a change of the file, so the file is read again after ``RETRY`` looks."""
    watch = start(file, TLS)
    before = watch.settings()
    change(directory / "server.key", (directory / "server.key").read_bytes())
    (directory / "server.key").chmod(0o606)
    assert look(watch, 20) is before
    assert ["chmod o-w" in line for line in told()] == [True]
    (directory / "server.key").chmod(0o600)
    assert look(watch, RETRY) is not before


def test_a_volume_of_kubernetes_is_swapped(file: Path, directory: Path) -> None:
    """The file's name is a link through a directory that is itself a link, and this link is replaced."""
    for version, user in (("v1", "alice"), ("v2", "bob")):
        (directory / version).mkdir()
        (directory / version / "web.yml").write_text(PLAIN.replace("alice", user))
    (directory / "data").symlink_to("v1")
    (directory / "link.yml").symlink_to("data/web.yml")
    watch = WebConfigReloader(directory / "link.yml")
    (directory / "new").symlink_to("v2")
    (directory / "new").rename(directory / "data")
    assert [*look(watch).users] == [b"bob"]


def test_a_certificate_that_a_wrong_file_names_is_watched(
    file: Path, directory: Path, authority: Authority, told: Told
) -> None:
    watch = start(file, TLS)
    before = watch.settings()
    change(file, TLS.replace("server.", "later."))
    assert look(watch) is before
    later = authority.issue("later")
    for pem in (later.certificate, later.key):
        change(directory / pem.name, pem.read_bytes())
    assert look(watch) is not before
    assert told()[-1] == f"{file}: read again"


def weaker(setting: str) -> str:
    return f"a weaker {setting} takes effect"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (PLAIN, TLS, "TLS begins"),
        (TLS, PLAIN, "TLS ends"),
        (TLS, "", "TLS ends"),
        (PLAIN, "", "passwords end"),
        (TLS + PLAIN, TLS, "passwords end"),
        (PLAIN + RATE, PLAIN, "the rate limit ends"),
        (PLAIN + RATE, PLAIN + RATE[:-2], "the rate limit ends"),  # interval: 1, in nanoseconds
        (DEMANDED, CERTIFICATE, weaker("client_auth_type")),
        (DEMANDED, f"{CERTIFICATE}{CLIENTS}VerifyClientCertIfGiven", weaker("client_auth_type")),
        (f"{CERTIFICATE}{CLIENTS}VerifyClientCertIfGiven", CERTIFICATE, weaker("client_auth_type")),
        (NAMED, DEMANDED, weaker("client_allowed_sans")),
        (f"{CERTIFICATE}  min_version: TLS13", CERTIFICATE, weaker("min_version")),
        (f"{CERTIFICATE}  min_version: TLS13", f"{CERTIFICATE}  min_version: TLS12", weaker("min_version")),
        (f"{CERTIFICATE}  cipher_suites: [TLS_AES_128_GCM_SHA256]", CERTIFICATE, weaker("min_version")),
        (f"{CERTIFICATE}  cipher_suites: [{SUITE}]", CERTIFICATE, weaker("cipher_suites")),
        (f"{CERTIFICATE}  curve_preferences: [CurveP384]", CERTIFICATE, weaker("curve_preferences")),
    ],
)
def test_what_takes_a_restart(file: Path, told: Told, old: str, new: str, why: str) -> None:
    watch = start(file, old)
    before = watch.settings()
    change(file, new)
    assert look(watch, 5) is before
    assert told() == [f"{file}: {why} with a restart only; until then the old web configuration holds"]


def test_no_cut_of_a_file_drops_the_demand_for_client_certificates(file: Path, told: Told) -> None:
    """A disk that is full, or a copy that is interrupted, leaves the first bytes of a file."""
    whole = f"{NAMED}\n  min_version: TLS13"
    watch = start(file, whole)
    for size in range(len(whole)):
        change(file, whole[:size])
        tls = look(watch).tls
        assert tls is not None, whole[:size]
        assert tls.context.verify_mode is ssl.CERT_REQUIRED, whole[:size]
        assert tls.names == frozenset(["prometheus.example"]), whole[:size]
        assert tls.context.minimum_version is ssl.TLSVersion.TLSv1_3, whole[:size]
    assert any("client_auth_type" in line for line in told())
    assert f"{file}: read again" not in told()
    change(file, whole)
    look(watch)
    assert told()[-1] == f"{file}: read again"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (CERTIFICATE, DEMANDED),
        (CERTIFICATE, f"{CERTIFICATE}  min_version: TLS13"),
        (CERTIFICATE, f"{CERTIFICATE}  cipher_suites: [{SUITE}]"),
        (CERTIFICATE, f"{CERTIFICATE}  curve_preferences: [CurveP384]"),
        (f"{CERTIFICATE}  max_version: TLS12", CERTIFICATE),
        (DEMANDED, NAMED),
        (NAMED, NAMED.replace("]", ", other.example]")),
        (PLAIN, PLAIN + RATE),
        (PLAIN + RATE, PLAIN + RATE.replace("1s", "10ms")),
    ],
)
def test_what_takes_no_restart(file: Path, told: Told, old: str, new: str) -> None:
    watch = start(file, old)
    before = watch.settings()
    change(file, new)
    assert look(watch) is not before
    assert told() == [f"{file}: read again"]


def test_passwords_may_begin(file: Path) -> None:
    watch = start(file, TLS)
    change(file, TLS + PLAIN)
    assert [*look(watch).users] == [b"alice"]


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "web-config"]


def test_without_a_file() -> None:
    watch = WebConfigReloader(None)
    watch.start()
    assert watchers() == []
    assert look(watch) == WebSettings()
    watch.close()


@pytest.mark.parametrize("error", [None, RuntimeError("a bug")], ids=str)
def test_the_thread_checks_by_itself_whatever_goes_wrong(
    file: Path, monkeypatch: pytest.MonkeyPatch, told: Told, error: Exception | None
) -> None:
    looks = threading.Semaphore(0)

    def look(self: WebConfigReloader) -> None:
        looks.release()
        if error:
            raise error

    monkeypatch.setattr(module, "INTERVAL", 0.001)
    monkeypatch.setattr(WebConfigReloader, "look", look)
    watch = start(file, PLAIN)
    # The constructor starts no thread, as it runs before the agent's threads are excluded from recording.
    assert watchers() == []
    watch.start()
    assert all(looks.acquire(timeout=patience(10)) for _ in range(3))
    (thread,) = watchers()
    watch.close()
    thread.join(patience(10))
    assert not thread.is_alive()
    assert told() == ["the web configuration cannot be watched: a bug"] * bool(error)
