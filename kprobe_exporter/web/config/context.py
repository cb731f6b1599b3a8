"""Makes a context of Python's ssl from TLS settings as Prometheus' exporters name them.

The names are Go's (crypto/tls). A setting that Python's ssl lacks is refused, never silently ignored.
"""

import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

VERSIONS: Mapping[str, ssl.TLSVersion] = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
OLD_VERSIONS = frozenset(["TLS10", "TLS11"])

CLIENT_AUTH: Mapping[str, ssl.VerifyMode] = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
UNVERIFIED = frozenset(["RequestClientCert", "RequireAnyClientCert", "RequireClientCert"])

# set_ecdh_curve() takes a single curve, which cannot be a Montgomery curve such as X25519.
CURVES: Mapping[str, str | None] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": None,
}

_OPENSSL_CIPHERS: Mapping[str, str] = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
}
# Suites of TLS 1.3: Go and Python's ssl offer all three and do not allow a choice.
_TLS13_CIPHERS = frozenset(
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
)
CIPHERS = frozenset(_OPENSSL_CIPHERS) | _TLS13_CIPHERS

# A flag of memfd_create(2) since Linux 6.3. Where sysctl vm.memfd_noexec is 2, no memfd is made without it.
_MFD_NOEXEC_SEAL = 8


class RefusedSetting(Exception):
    """OpenSSL does not accept a setting, ``part`` of the section; the text is a sentence for a person."""

    def __init__(self, part: str, sentence: str) -> None:
        super().__init__(sentence)
        self.part = part


def make_context(
    certificate: bytes,
    key: bytes,
    *,
    client_ca: bytes | None = None,
    client_auth: ssl.VerifyMode = ssl.CERT_NONE,
    lowest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
    highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    ciphers: Sequence[str] = (),
    prefer_ours: bool = True,
    curve: str | None = None,
) -> ssl.SSLContext:
    """Return a server's context. ``certificate``, ``key`` and ``client_ca`` are PEM.

    Raises RefusedSetting, and OSError if the PEM data cannot be passed to OpenSSL now, for example because
    no descriptor is free.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = lowest, highest
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _set_ciphers(context, ciphers, prefer_ours=prefer_ours)
    if curve is not None:
        context.set_ecdh_curve(curve)
    _load_certificate(context, certificate, key)
    context.verify_mode = client_auth
    if client_ca is not None:
        # As in Go, every certificate in the file is trusted, even if it is not self-signed.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        with _refused("client_ca", "OpenSSL finds no certificate in PEM here"), _file_of(client_ca) as file:
            context.load_verify_locations(cafile=file)
    return context


def _set_ciphers(context: ssl.SSLContext, ciphers: Sequence[str], *, prefer_ours: bool) -> None:
    if not prefer_ours:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if not ciphers:
        return
    names = [_OPENSSL_CIPHERS[cipher] for cipher in ciphers if cipher in _OPENSSL_CIPHERS]
    if names:
        try:
            context.set_ciphers(":".join(names))
        except ssl.SSLError:
            sentence = "this machine's OpenSSL has none of these: choose others"
            raise RefusedSetting("cipher_suites", sentence) from None
    elif context.maximum_version is ssl.TLSVersion.TLSv1_3:
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # as in Go, no suite is left for TLS 1.2
    else:
        sentence = "these are all of TLS 1.3, and max_version is TLS12: add one of TLS 1.2"
        raise RefusedSetting("cipher_suites", sentence)


def _load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    if b"-----BEGIN CERTIFICATE-----" not in certificate:
        raise RefusedSetting("cert", "there is no certificate in PEM here (-----BEGIN CERTIFICATE-----)")
    if b"PRIVATE KEY-----" not in key:
        raise RefusedSetting("key", "there is no private key in PEM here (-----BEGIN PRIVATE KEY-----)")
    if b"ENCRYPTED" in key:
        sentence = "the key is encrypted, and the agent cannot ask for its password: decrypt it"
        raise RefusedSetting("key", sentence)
    refused = _refused("cert", "OpenSSL refuses the certificate or its key")
    with refused, _file_of(certificate) as certificate_file, _file_of(key) as key_file:
        # A password is given so that OpenSSL never asks for one on the terminal.
        context.load_cert_chain(certificate_file, key_file, password="")


@contextmanager
def _refused(part: str, sentence: str) -> Iterator[None]:
    """Add OpenSSL's reason to the sentence."""
    try:
        yield
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise RefusedSetting("key", "this is the key of another certificate") from None
        why = (error.reason or str(error)).replace("_", " ").lower()
        raise RefusedSetting(part, f"{sentence}: {why}") from None
    except ValueError as error:
        raise RefusedSetting(part, f"{sentence}: {error}") from None


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """Yield the path of an in-memory file, as Python's ssl reads keys only from files. Raises OSError."""
    try:
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError:
        descriptor = os.memfd_create("pem")
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
