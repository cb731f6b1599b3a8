"""Material that is made once in a checkout, so that a seed always gives the same input."""

import ssl
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.fuzz.target import KEPT
from tests.support.certificates import Authority
from tests.support.compiling import compiled
from tests.support.crafted_elf import DYNAMIC, DYNSYM, NAMES, SYMTAB, VERDEF, VERSYM, elf, symbol
from tests.support.programs import GO, LIBRARY, PROGRAM, VERSIONS


def certificates() -> Path:
    """A directory with a ``.pem`` and a ``.key`` of each of ``authority``, ``server`` and ``client``."""
    return _once("certificates", _sign)


def programs() -> list[bytes]:
    """The bytes of programs and of a library, in several forms."""
    return [file.read_bytes() for file in sorted(_once("programs", _compile).iterdir())]


def crafted() -> bytes:
    """A file of a few hundred bytes with each kind of section that is read: most changes hit one of them."""
    version = struct.pack("<HHHHIII", 1, 0, 2, 1, 0, 20, 0) + struct.pack("<II", 6, 0)
    with tempfile.TemporaryDirectory() as directory:
        path = elf(
            Path(directory) / "crafted",
            (NAMES, b"\0main\0VERS_1\0libc.so.6\0puts\0", 0, 0),
            (DYNSYM, symbol(1) + symbol(23, section=0), 1, 0),
            (VERSYM, struct.pack("<HH", 2, 0), 2, 0),
            (VERDEF, version, 1, 1),
            (DYNAMIC, struct.pack("<qQ", 1, 13), 1, 0),
            (SYMTAB, symbol(1), 1, 0),
        )
        return path.read_bytes()


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
