"""Material that is made once in a checkout, so that a seed always gives the same input."""

import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.fuzz.target import KEPT
from tests.support.certificates import Authority
from tests.support.compiling import compiled
from tests.support.programs import GO, LIBRARY, PROGRAM, VERSIONS


def certificates() -> Path:
    """A directory with a ``.pem`` and a ``.key`` of each of ``authority``, ``server`` and ``client``."""
    return _once("certificates", _sign)


def programs() -> list[bytes]:
    """The bytes of programs and of a library, in several forms."""
    return [file.read_bytes() for file in sorted(_once("programs", _compile).iterdir())]


def hello() -> bytes:
    """The first message of a TLS client, random numbers included."""
    return (_once("hello", _greet) / "hello").read_bytes()


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory that ``make`` fills if it does not exist yet."""
    kept = KEPT / name
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=KEPT))
        make(made)
        with suppress(OSError):  # another process was faster
            made.rename(kept)
    return kept


def _sign(directory: Path) -> None:
    authority = Authority(directory)
    authority.issue("server")
    authority.issue("client", "DNS:prometheus.example,email:a@b.example,URI:spiffe://x/y,IP:::1")


def _compile(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        script = scratch / "map"
        script.write_text(VERSIONS)
        for file in (
            compiled(scratch / "program", PROGRAM),
            compiled(scratch / "stripped", PROGRAM, "-s", "-rdynamic"),
            compiled(scratch / "library", LIBRARY, "-shared", "-fPIC", f"-Wl,--version-script={script}"),
            compiled(scratch / "go", GO),
        ):
            (directory / file.name).write_bytes(file.read_bytes())


def _greet(directory: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="x").do_handshake()
    (directory / "hello").write_bytes(outgoing.read())
