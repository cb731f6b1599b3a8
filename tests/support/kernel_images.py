"""The types of kernels that are not running: taken out of the image from which one would boot."""

import lzma
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path


def _zstd(data: bytes) -> bytes:
    program = shutil.which("zstd")
    if program is None:
        raise OSError("zstd is not installed")
    return subprocess.run([program, "-dcq"], input=data, capture_output=True, check=False).stdout


COMPRESSED: Mapping[bytes, Callable[[bytes], bytes]] = {
    b"\xfd7zXZ\x00": lambda data: lzma.LZMADecompressor().decompress(data),
    b"\x1f\x8b\x08": lambda data: zlib.decompressobj(31).decompress(data),
    b"\x28\xb5\x2f\xfd": _zstd,
}


def types_of(image: Path) -> bytes:
    """Return the BTF of a kernel's image, a bzImage. Raises OSError if it cannot be taken out."""
    data = image.read_bytes()
    for magic, decompress in COMPRESSED.items():
        at = data.find(magic, 0x200)
        while at >= 0:
            try:
                kernel = decompress(data[at:])
            except (lzma.LZMAError, zlib.error):
                kernel = b""
            if kernel.startswith(b"\x7fELF"):
                return _section(kernel, ".BTF")
            at = data.find(magic, at + 1)
    raise OSError(f"{image} holds no kernel that can be decompressed here")


def _section(elf: bytes, name: str) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + size * number) for number in range(count)]
    strings = headers[names][4]
    for header in headers:
        start = strings + header[0]
        if elf[start : elf.index(b"\0", start)] == name.encode():
            return elf[header[4] : header[4] + header[5]]
    raise OSError(f"the kernel has no section {name}")
