"""Certificates for tests, made by openssl: an authority, and the certificates that it signs."""

import ssl
import subprocess
from pathlib import Path

EC = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


class Pair:
    """A certificate and its key, as PEM files."""

    def __init__(self, directory: Path, name: str) -> None:
        self.certificate = directory / f"{name}.pem"
        self.key = directory / f"{name}.key"

    def context(self, authority: "Pair | None" = None) -> ssl.SSLContext:
        """Return a server's context; with ``authority``, clients need a certificate that it signed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if authority:
            context.load_verify_locations(authority.certificate)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Authority(Pair):
    """A certificate that signs others, with a directory of its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        super().__init__(directory, name)
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._make(self, f"/CN={name}", ["-addext", "basicConstraints=critical,CA:TRUE"])

    def issue(
        self, name: str, names: str = "DNS:localhost,IP:127.0.0.1,IP:::1", key: tuple[str, ...] = EC
    ) -> Pair:
        """Issue a certificate for these alternative names, with a new key."""
        pair = Pair(self._directory, name)
        signed = ["-CA", str(self.certificate), "-CAkey", str(self.key)]
        options = ["-addext", f"subjectAltName={names}", "-addext", "basicConstraints=CA:FALSE"]
        self._make(pair, f"/CN={name}", [*signed, *options], key)
        return pair

    @staticmethod
    def _make(pair: Pair, subject: str, options: list[str], key: tuple[str, ...] = EC) -> None:
        command = ["openssl", "req", "-x509", "-newkey", *key, "-nodes", "-days", "2", "-subj", subject]
        files = ["-keyout", str(pair.key), "-out", str(pair.certificate)]
        subprocess.run([*command, *files, *options], check=True, capture_output=True)
