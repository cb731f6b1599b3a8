"""The sections of a web configuration: values and problems; `tls_server_config` and the files it names."""

import ssl
from collections.abc import Iterable
from pathlib import Path as FilePath
from typing import Any

from kprobe_exporter.config.files import Unusable
from kprobe_exporter.config.wording import Path, listed, nearest, quote
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.errors import Problem
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
from kprobe_exporter.web.handshake import Tls

TLS = "tls_server_config"
KEYS = """cert cert_file key key_file client_ca client_ca_file client_auth_type client_allowed_sans
    min_version max_version cipher_suites prefer_server_cipher_suites curve_preferences""".split()

MAX_PEM_BYTES = 1 << 20

# YAML 1.1, which the exporter-toolkit reads, has more words for booleans than our YAML reader.
_YES = frozenset("y yes on".split())
_NO = frozenset("n no off".split())


class Section:
    """The mapping at a path of the file, empty if absent. Keys that are not in ``known`` are refused.

    Problems are added to ``problems``, those of the whole file, and reading goes on.
    """

    def __init__(
        self, source: YamlSource, problems: list[Problem], path: Path, known: Iterable[str] | None
    ) -> None:
        self.problems = problems
        self._source, self._path = source, path
        found: Any = source.data
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        self.values: dict[Any, Any] = found if isinstance(found, dict) else {}
        if found is not None and not isinstance(found, dict):
            self.refuse("must be a mapping of KEY: VALUE")
        names = None if known is None else [*known]
        for key in self.values:
            if names is not None and key not in names:
                self.refuse(f"unknown key {quote(key)}{nearest(key, names)}", key, at_key=True)

    def refuse(self, message: str, *path: str | int, at_key: bool = False) -> None:
        """Record a problem with the section, with a value in it, or with the value's key."""
        self.problems.append(self._source.problem((*self._path, *path), message, at_key=at_key))

    def text(self, key: str) -> str | None:
        """Return the text of a key, or None if there is none."""
        found = self.values.get(key)
        if found is None or isinstance(found, str):
            return found
        self.refuse("must be text", key)
        return None

    def texts(self, key: str) -> list[str] | None:
        """Return the list of texts of a key, or None if there is none."""
        found = self.values.get(key)
        if found is None:
            return None
        if not isinstance(found, list):
            self.refuse("must be a list", key)
            return []
        for index, one in enumerate(found):
            if not isinstance(one, str):
                self.refuse("must be text", key, index)
        return [one for one in found if isinstance(one, str)]

    def words(self, key: str, known: Iterable[str], what: str) -> list[str]:
        """Return the list of words of a key, empty if there is none; ``what`` names what they must be."""
        words, names = self.texts(key) or [], [*known]
        for index, word in enumerate(words):
            if word not in names:
                self.refuse(f"{quote(word)} is no {what}{nearest(word, names)}", key, index)
        return [word for word in words if word in names]

    def flag(self, key: str, *, default: bool) -> bool:
        """Return the boolean of a key."""
        found = self.values.get(key)
        if found is None:
            return default
        word = found.lower() if isinstance(found, str) else ""
        if isinstance(found, bool) or word in _YES | _NO:
            return found is True or word in _YES
        self.refuse("must be true or false", key)
        return default


class TlsSection(Section):
    """The section. ``files`` are those that it names; relative paths start at ``directory``.

    ``warnings`` are sentences about files that are used all the same. ``unread``: something could not be
    read, so reading the unchanged files again may succeed.
    """

    def __init__(self, source: YamlSource, problems: list[Problem], directory: FilePath) -> None:
        super().__init__(source, problems, (TLS,), KEYS)
        self._directory = directory
        self.files: list[FilePath] = []
        self.warnings: list[str] = []
        self.unread = False

    def tls(self) -> Tls | None:
        """Return the section's settings; None if it is absent, empty or invalid."""
        if not any(value not in (None, "") for value in self.values.values()):
            return None
        before = len(self.problems)
        certificate, key = self._pem("cert"), self._pem("key")
        client_ca, client_auth = self._pem("client_ca"), self._client_auth()
        for name, pem in (("cert", certificate), ("key", key)):
            if pem is None and len(self.problems) == before:
                self.refuse(f"{name}_file is missing: there is no TLS without cert_file and key_file")
        if client_ca is not None and client_auth is ssl.CERT_NONE:
            sentence = "clients are not asked for one: add client_auth_type: RequireAndVerifyClientCert"
            self.refuse(sentence, self._written("client_ca"))
        lowest = self._version("min_version", ssl.TLSVersion.TLSv1_2)
        highest = self._version("max_version", ssl.TLSVersion.TLSv1_3)
        if lowest > highest:
            self.refuse("is above max_version: nothing is left", "min_version")
        ciphers = self.words("cipher_suites", CIPHERS, "cipher suite of Go's tls.CipherSuites()")
        curve = self._curve()
        names = self.texts("client_allowed_sans")
        if names is not None and client_auth is not ssl.CERT_REQUIRED:
            sentence = "needs client_auth_type: RequireAndVerifyClientCert"
            self.refuse(sentence, "client_allowed_sans", at_key=True)
        prefer_ours = self.flag("prefer_server_cipher_suites", default=True)
        if len(self.problems) > before or certificate is None or key is None:
            return None
        try:
            context = make_context(
                certificate,
                key,
                client_ca=client_ca,
                client_auth=client_auth,
                lowest=lowest,
                highest=highest,
                ciphers=ciphers,
                prefer_ours=prefer_ours,
                curve=curve,
            )
        except RefusedSetting as error:
            self.refuse(str(error), self._written(error.part))
            return None
        except OSError as error:
            self.unread = True
            self.refuse(f"OpenSSL cannot read what is configured here: {error.strerror}")
            return None
        return Tls(context, None if names is None else frozenset(names), curve)

    def _pem(self, name: str) -> bytes | None:
        """Return the PEM in ``cert``, or in the file that ``cert_file`` names; other names work alike."""
        inline, file = self.text(name), self.text(f"{name}_file")
        if inline and file:
            self.refuse(f"{name}_file is there as well: keep one", name)
        if inline:
            return inline.encode()
        if not file:
            return None
        if "-----BEGIN" in file:
            self.refuse(f"this is PEM itself, and no path: write it at {name}", f"{name}_file")
            return None
        path = self._directory / file
        self.files.append(path)
        try:
            pem, for_all = _read_pem(path)
        except Unusable as error:
            self.unread = True
            self.refuse(f"{str(path)!r} {error}", f"{name}_file")
            return None
        if for_all and b"PRIVATE KEY-----" in pem:
            self.warnings.append(f"every user of this machine may read the key in {path}: chmod o-r it")
        return pem

    def _written(self, name: str) -> str:
        """Return the key that the configuration file uses for this: ``cert`` or ``cert_file``."""
        return f"{name}_file" if self.values.get(f"{name}_file") else name

    def _client_auth(self) -> ssl.VerifyMode:
        key = "client_auth_type"
        name = self.text(key) or "NoClientCert"
        if name in UNVERIFIED:
            self.refuse("an unverified certificate proves nothing: write RequireAndVerifyClientCert", key)
        elif name not in CLIENT_AUTH:
            self.refuse(f"must be {listed(CLIENT_AUTH)}", key)
        found = CLIENT_AUTH.get(name, ssl.CERT_NONE)
        if found is not ssl.CERT_NONE and not self.values.get(self._written("client_ca")):
            self.refuse("add client_ca_file: without it, a certificate of any public authority would do", key)
        return found

    def _version(self, key: str, default: ssl.TLSVersion) -> ssl.TLSVersion:
        value = self.values.get(key)
        name = value if isinstance(value, str) else ""
        if value is not None and name not in VERSIONS:
            why = "TLS 1.0 and 1.1 are not spoken here (RFC 8996): " if name in OLD_VERSIONS else ""
            self.refuse(f"{why}must be {listed(VERSIONS)}", key)
        return VERSIONS.get(name, default)

    def _curve(self) -> str | None:
        key = "curve_preferences"
        curves = [CURVES[word] for word in self.words(key, CURVES, "curve")]
        if len(curves) > 1 or None in curves:
            can = listed(name for name, curve in CURVES.items() if curve)
            self.refuse(f"Python's ssl sets one curve, {can}: write that, or leave it out for all", key)
        return curves[0] if curves else None


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
