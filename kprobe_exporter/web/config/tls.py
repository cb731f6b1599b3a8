"""Reads the section `tls_server_config` and the files that it names, and makes a context of them."""

import ssl
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from kprobe_exporter.config.files import Unusable
from kprobe_exporter.config.wording import listed
from kprobe_exporter.util.file_access import all_may_read, cannot_be_read, open_regular, who_may_change
from kprobe_exporter.web.config.context import (
    CIPHERS,
    CLIENT_AUTH,
    CURVES,
    OLD_VERSIONS,
    UNVERIFIED,
    VERSIONS,
    RefusedSetting,
    make_context,
)
from kprobe_exporter.web.config.document import WebDocument
from kprobe_exporter.web.settings import Tls

TLS = "tls_server_config"
KEYS = """cert cert_file key key_file client_ca client_ca_file client_auth_type client_allowed_sans
    min_version max_version cipher_suites prefer_server_cipher_suites curve_preferences""".split()

MAX_PEM_BYTES = 1 << 20


class TlsSection:
    """Reads the section. ``files`` are those that it names; relative paths start at ``directory``.
    ``warnings`` are sentences about files that are used all the same.

    ``unread``: something could not be read, so reading the unchanged files again may succeed.
    """

    def __init__(self, document: WebDocument, directory: FilePath) -> None:
        self._document = document
        self._directory = directory
        self.files: list[FilePath] = []
        self.warnings: list[str] = []
        self.unread = False

    def tls(self) -> Tls | None:
        """Return the section's settings; None if it is absent, empty or invalid."""
        section = self._document.mapping((TLS,), KEYS)
        if not any(value not in (None, "") for value in section.values()):
            return None
        before = len(self._document.problems)
        certificate, key = self._pem(section, "cert"), self._pem(section, "key")
        client_ca, client_auth = self._pem(section, "client_ca"), self._client_auth(section)
        for name, pem in (("cert", certificate), ("key", key)):
            if pem is None and len(self._document.problems) == before:
                sentence = f"{name}_file is missing: there is no TLS without cert_file and key_file"
                self._document.refuse((TLS,), sentence)
        if client_ca is not None and client_auth is ssl.CERT_NONE:
            sentence = "clients are not asked for one: add client_auth_type: RequireAndVerifyClientCert"
            self._document.refuse((TLS, self._written(section, "client_ca")), sentence)
        lowest, highest = self._version(section, "min_version"), self._version(section, "max_version")
        if lowest and highest and lowest > highest:
            self._document.refuse((TLS, "min_version"), "is above max_version: nothing is left")
        what = "cipher suite of Go's tls.CipherSuites()"
        ciphers = self._document.words((TLS, "cipher_suites"), CIPHERS, what)
        curve = self._curve(section)
        names = self._allowed(section, client_auth)
        prefer_ours = self._document.flag((TLS, "prefer_server_cipher_suites"), default=True)
        if len(self._document.problems) > before or certificate is None or key is None:
            return None
        try:
            context = make_context(
                certificate,
                key,
                client_ca=client_ca,
                client_auth=client_auth,
                lowest=lowest or ssl.TLSVersion.TLSv1_2,
                highest=highest or ssl.TLSVersion.TLSv1_3,
                ciphers=ciphers,
                prefer_ours=prefer_ours,
                curve=curve,
            )
        except RefusedSetting as error:
            name = {"certificate": "cert"}.get(error.part, error.part)
            self._document.refuse((TLS, self._written(section, name)), str(error))
            return None
        except OSError as error:
            self.unread = True
            self._document.refuse((TLS,), f"OpenSSL cannot read what is configured here: {error.strerror}")
            return None
        return Tls(context, names, curve)

    def _pem(self, section: Mapping[Any, Any], name: str) -> bytes | None:
        """Return the PEM in ``cert``, or in the file that ``cert_file`` names; other names work alike."""
        inline, file = (self._document.text((TLS, key)) for key in (name, f"{name}_file"))
        if inline and file:
            self._document.refuse((TLS, name), f"{name}_file is there as well: keep one")
        if inline:
            return inline.encode()
        if not file:
            return None
        if "-----BEGIN" in file:
            self._document.refuse(
                (TLS, f"{name}_file"), f"this is PEM itself, and no path: write it at {name}"
            )
            return None
        path = self._directory / file
        self.files.append(path)
        try:
            pem, for_all = _read_pem(path)
        except Unusable as error:
            self.unread = True
            self._document.refuse((TLS, f"{name}_file"), f"{str(path)!r} {error}")
            return None
        if for_all and b"PRIVATE KEY-----" in pem:
            self.warnings.append(f"every user of this machine may read the key in {path}: chmod o-r it")
        return pem

    @staticmethod
    def _written(section: Mapping[Any, Any], name: str) -> str:
        """Return the key that the configuration file uses for this: ``cert`` or ``cert_file``."""
        return f"{name}_file" if section.get(f"{name}_file") else name

    def _client_auth(self, section: Mapping[Any, Any]) -> ssl.VerifyMode:
        path = (TLS, "client_auth_type")
        name = self._document.text(path) or "NoClientCert"
        if name in UNVERIFIED:
            sentence = "an unverified certificate proves nothing: write RequireAndVerifyClientCert"
            self._document.refuse(path, sentence)
        elif name not in CLIENT_AUTH:
            self._document.refuse(path, f"must be {listed(CLIENT_AUTH)}")
        found = CLIENT_AUTH.get(name, ssl.CERT_NONE)
        if found is not ssl.CERT_NONE and not (section.get("client_ca") or section.get("client_ca_file")):
            sentence = "add client_ca_file: without it, a certificate of any public authority would do"
            self._document.refuse(path, sentence)
        return found

    def _allowed(self, section: Mapping[Any, Any], client_auth: ssl.VerifyMode) -> frozenset[str] | None:
        path = (TLS, "client_allowed_sans")
        names = self._document.texts(path)
        if names is None:
            return None
        if client_auth is not ssl.CERT_REQUIRED:
            self._document.refuse(path, "needs client_auth_type: RequireAndVerifyClientCert", at_key=True)
        return frozenset(names)

    def _version(self, section: Mapping[Any, Any], key: str) -> ssl.TLSVersion | None:
        if section.get(key) is None:
            return None
        name = section[key]
        if isinstance(name, str) and name in VERSIONS:
            return VERSIONS[name]
        old = isinstance(name, str) and name in OLD_VERSIONS
        why = "TLS 1.0 and 1.1 are not spoken here (RFC 8996): " if old else ""
        self._document.refuse((TLS, key), f"{why}must be {listed(VERSIONS)}")
        return None

    def _curve(self, section: Mapping[Any, Any]) -> str | None:
        path = (TLS, "curve_preferences")
        words = self._document.words(path, CURVES, "curve")
        if not words:
            return None
        if len(words) > 1 or CURVES[words[0]] is None:
            can = listed(name for name, curve in CURVES.items() if curve)
            sentence = f"Python's ssl sets one curve, {can}: write that, or leave it out for all"
            self._document.refuse(path, sentence)
            return None
        return CURVES[words[0]]


def _read_pem(path: FilePath) -> tuple[bytes, bool]:
    """Read the file of a certificate or a key; also return whether every user may read it.

    Raises Unusable; never waits for a writer.
    """
    try:
        with open_regular(path) as file:
            if (who := who_may_change(file.fileno())) is not None:
                raise Unusable(f"is not safe: {who}")
            for_all = all_may_read(file.fileno())
            content = file.read(MAX_PEM_BYTES + 1)
    except (OSError, ValueError) as error:
        raise Unusable(cannot_be_read(error)) from None
    if len(content) > MAX_PEM_BYTES:
        raise Unusable(f"is larger than {MAX_PEM_BYTES >> 20} MiB")
    return content, for_all
