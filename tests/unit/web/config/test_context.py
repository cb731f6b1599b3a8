"""A TLS context follows the configuration: versions, ciphers, curves and clients' certificates."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from kprobe_exporter.web.config.context import CIPHERS, CURVES, RefusedSetting, make_context
from kprobe_exporter.web.handshake import Tls
from tests.support.certificates import Authority, Pair

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
ECDSA = "TLS_ECDHE_ECDSA_WITH_"


def context(pair: Pair, **options: object) -> ssl.SSLContext:
    make: Callable[..., ssl.SSLContext] = make_context
    return make(pair.certificate.read_bytes(), pair.key.read_bytes(), **options)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends after a handshake in memory. Raise SSLError if it fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(ends)
    for _ in range(10):
        for end in waiting[:]:
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not waiting
    return ends


@pytest.fixture
def client(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.certificate)


def test_the_best_by_default(server: Pair, client: ssl.SSLContext) -> None:
    end, _ = shake_hands(context(server), client)
    assert end.version() == "TLSv1.3"


def test_only_http_1_is_offered(server: Pair, client: ssl.SSLContext) -> None:
    client.set_alpn_protocols(["h2", "http/1.1"])
    end, _ = shake_hands(context(server), client)
    assert end.selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize(
    ("lowest", "highest", "offered", "agreed"),
    [
        (TLS12, TLS13, TLS12, "TLSv1.2"),
        (TLS12, TLS12, TLS13, "TLSv1.2"),
        (TLS13, TLS13, TLS13, "TLSv1.3"),
        (TLS13, TLS13, TLS12, None),
    ],
)
def test_versions(
    server: Pair,
    client: ssl.SSLContext,
    lowest: ssl.TLSVersion,
    highest: ssl.TLSVersion,
    offered: ssl.TLSVersion,
    agreed: str | None,
) -> None:
    client.maximum_version = offered
    ours = context(server, lowest=lowest, highest=highest)
    if agreed is None:
        with pytest.raises(ssl.SSLError):
            shake_hands(ours, client)
    else:
        assert shake_hands(ours, client)[0].version() == agreed


@pytest.mark.parametrize("prefer_ours", [True, False])
def test_ciphers_and_who_prefers(server: Pair, client: ssl.SSLContext, prefer_ours: bool) -> None:
    client.maximum_version = TLS12
    client.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384")
    names = [f"{ECDSA}AES_256_GCM_SHA384", f"{ECDSA}AES_128_GCM_SHA256"]
    end, _ = shake_hands(context(server, ciphers=names, prefer_ours=prefer_ours), client)
    cipher = end.cipher()
    assert cipher
    assert cipher[0] == f"ECDHE-ECDSA-AES{256 if prefer_ours else 128}-GCM-SHA{384 if prefer_ours else 256}"


def test_a_cipher_that_is_not_listed(server: Pair, client: ssl.SSLContext) -> None:
    client.maximum_version = TLS12
    client.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError):
        shake_hands(context(server, ciphers=[f"{ECDSA}AES_256_GCM_SHA384"]), client)


def test_ciphers_of_tls_1_3_leave_nothing_to_1_2(server: Pair, client: ssl.SSLContext) -> None:
    ours = context(server, ciphers=["TLS_AES_128_GCM_SHA256"])
    assert shake_hands(ours, client)[0].version() == "TLSv1.3"
    client.maximum_version = TLS12
    with pytest.raises(ssl.SSLError):
        shake_hands(ours, client)


@pytest.mark.parametrize("cipher", sorted(CIPHERS))
def test_openssl_knows_every_cipher(server: Pair, cipher: str) -> None:
    context(server, ciphers=[cipher])


@pytest.mark.parametrize("curve", [curve for curve in CURVES.values() if curve])
def test_curves(server: Pair, client: ssl.SSLContext, curve: str) -> None:
    ours = context(server, curve=curve)
    shake_hands(ours, client)
    client.set_ecdh_curve("secp384r1" if curve != "secp384r1" else "secp521r1")
    with pytest.raises(ssl.SSLError):
        shake_hands(ours, client)


@pytest.mark.parametrize("key", [("rsa:2048",), ("ed25519",), ("ec", "-pkeyopt", "ec_paramgen_curve:P-384")])
def test_kinds_of_keys(authority: Authority, client: ssl.SSLContext, key: tuple[str, ...]) -> None:
    shake_hands(context(authority.issue("other", key=key)), client)


def test_a_weak_key_is_refused(authority: Authority) -> None:
    with pytest.raises(
        RefusedSetting, match=r"^OpenSSL refuses the certificate or its key: ee key too small$"
    ):
        context(authority.issue("weak", key=("rsa:1024",)))


@pytest.mark.parametrize("asked", [ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED])
@pytest.mark.parametrize("shown", ["none", "ours", "foreign"])
def test_clients_certificates(
    authority: Authority,
    server: Pair,
    client: ssl.SSLContext,
    tmp_path: Path,
    asked: ssl.VerifyMode,
    shown: str,
) -> None:
    client.maximum_version = TLS12  # in TLS 1.3 the client's handshake may end before the server refuses it
    ours = context(server, client_ca=authority.certificate.read_bytes(), client_auth=asked)
    if shown != "none":
        pair = (authority if shown == "ours" else Authority(tmp_path)).issue("someone")
        client.load_cert_chain(pair.certificate, pair.key)
    if shown == "ours" or (shown == "none" and asked is ssl.CERT_OPTIONAL):
        assert bool(shake_hands(ours, client)[1].getpeercert()) is (shown == "ours")
    else:
        with pytest.raises(ssl.SSLError):
            shake_hands(ours, client)


def test_a_client_may_be_trusted_by_its_own_certificate(server: Pair, authority: Authority) -> None:
    """As in Go, a certificate in the file is trusted without an authority above it."""
    someone = authority.issue("someone")
    ours = context(server, client_ca=someone.certificate.read_bytes(), client_auth=ssl.CERT_REQUIRED)
    for pair, right in ((someone, True), (authority.issue("other"), False)):
        client = ssl.create_default_context(cafile=authority.certificate)
        client.maximum_version = TLS12
        client.load_cert_chain(pair.certificate, pair.key)
        if right:
            shake_hands(ours, client)
        else:
            with pytest.raises(ssl.SSLError):
                shake_hands(ours, client)


@pytest.mark.parametrize(
    ("names", "admitted"),
    [
        (None, True),
        (["prometheus.example"], True),
        (["a@b.example"], True),
        (["spiffe://x/y"], True),
        (["::1"], True),
        (["client"], False),  # the common name is not among the names
        (["x", "PROMETHEUS.example"], False),
        ([], False),
    ],
)
def test_names_of_clients(
    authority: Authority, server: Pair, client_pair: Pair, names: list[str] | None, admitted: bool
) -> None:
    ours = context(server, client_ca=authority.certificate.read_bytes(), client_auth=ssl.CERT_REQUIRED)
    client = ssl.create_default_context(cafile=authority.certificate)
    client.load_cert_chain(client_pair.certificate, client_pair.key)
    _, end = shake_hands(ours, client)
    tls = Tls(ours, None if names is None else frozenset(names))
    assert tls.admits(end.getpeercert()) is admitted


def test_a_client_without_a_certificate_has_no_name(server: Pair) -> None:
    assert not Tls(context(server), frozenset(["x"])).admits(None)


def test_it_works_where_memory_files_may_not_be_executable(
    server: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels before 6.3 do not know MFD_NOEXEC_SEAL: the memory file is created without it there."""
    create, flags = os.memfd_create, list[int]()

    def old(name: str, flag: int = os.MFD_CLOEXEC) -> int:
        flags.append(flag)
        if flag & ~os.MFD_CLOEXEC:
            raise OSError(22, "Invalid argument")
        return create(name, flag)

    monkeypatch.setattr(os, "memfd_create", old)
    context(server)
    assert flags == [9, 1, 9, 1]


def test_no_file_is_left_open(server: Pair) -> None:
    before = os.listdir("/proc/self/fd")
    context(server)
    with pytest.raises(RefusedSetting):
        make_context(server.certificate.read_bytes(), b"-----BEGIN PRIVATE KEY-----\n")
    assert os.listdir("/proc/self/fd") == before
