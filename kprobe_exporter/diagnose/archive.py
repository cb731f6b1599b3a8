"""Files in memory to a compressed archive and back: tar in its oldest common form (POSIX ustar), in xz.

An archive comes from another machine, so it is read as hostile: nothing is written to a disk, names are only
compared, and what it unpacks to is bounded before it is unpacked. Python's tarfile is not used for reading,
as it follows extensions (sparse files, pax headers) whose sizes an archive can make up.
"""

import io
import lzma
import tarfile
from collections.abc import Mapping

from kprobe_exporter.errors import GrammarError

LARGEST = 64 << 20
"""Bytes of an archive. A distribution's kernel with all its modules loaded has about 5 MB."""

LARGEST_UNPACKED = 128 << 20  # That kernel has about 40 MB.
MOST_FILES = 50_000  # A kernel has about 2,500 tracepoints, each of which is one file
MEMORY = 256 << 20
"""Bytes that the decompressor may use: its dictionary, whose size the archive names."""

BLOCK = 512
REGULAR = (b"0", b"\0")
NAME = ((345, 155), (0, 100))  # Offsets and lengths of a name's two parts
PRESET = 1
"""The level of xz: 6 makes a file a sixth smaller in six times the time, 4 s of a processor."""


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of these files. Equal files give equal bytes: no time, user or mode is in it.

    Raises ValueError for a name that has no room in a header, of about 250 bytes.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return lzma.compress(buffer.getvalue(), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, preset=PRESET)


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the files of an archive. Raises GrammarError, with a clause after the archive's name."""
    tar = memoryview(_decompressed(data))
    files: dict[str, bytes] = {}
    at = 0
    while True:
        header = bytes(tar[at : at + BLOCK])
        if len(header) < BLOCK:
            raise GrammarError("ends in the middle of its tar archive")
        if not any(header):
            return files
        name, size = _entry(header)
        at += BLOCK
        if at + size > len(tar):
            raise GrammarError(f"has a file {name!r} that is longer than the archive")
        if name in files or len(files) >= MOST_FILES:
            raise GrammarError(f"has the file {name!r} twice" if name in files else "has too many files")
        files[name] = bytes(tar[at : at + size])
        at += -(-size // BLOCK) * BLOCK


def _decompressed(data: bytes) -> bytes:
    """Decompress one xz stream, in one step that ends where the limit is passed."""
    decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        tar = decompressor.decompress(data, max_length=LARGEST_UNPACKED + 1)
    except lzma.LZMAError as error:
        raise GrammarError(f"cannot be unpacked, as it is not a whole xz file: {error}") from None
    if len(tar) > LARGEST_UNPACKED:
        raise GrammarError(f"has more than {LARGEST_UNPACKED >> 20} MiB when it is unpacked")
    if not decompressor.eof or decompressor.unused_data:
        raise GrammarError("cannot be unpacked: it is cut short, or something follows it")
    return tar


def _entry(header: bytes) -> tuple[str, int]:
    """Return the name and the size of the file whose header this is (tar(5), struct posix_header)."""
    try:
        checksum = int(header[148:156].strip(b" \0"), 8)
        size = int(header[124:136].strip(b" \0") or b"0", 8)
        parts = [header[at : at + length].partition(b"\0")[0].decode("ascii") for at, length in NAME]
    except ValueError:
        raise GrammarError("has a damaged tar header") from None
    if checksum != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise GrammarError("has a damaged tar header")
    name = "/".join(filter(None, parts))
    if header[257:262] != b"ustar" or header[156:157] not in REGULAR:
        raise GrammarError(f"holds {name!r}, which is not a plain file: it was not made by 'doctor --save'")
    if size < 0:
        raise GrammarError("has a damaged tar header")
    return name, size
