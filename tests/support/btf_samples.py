"""Types of a kernel, as BTF has them."""

import struct
from collections.abc import Iterable

from kprobe_exporter.btf.types import CONST, ENUM, FUNC, FUNC_PROTO, INT, PTR, STRUCT, TYPEDEF

UNKNOWN = 0x55


SIGNED, CHAR, BOOL = 1, 2, 4


class Blob:
    """Makes a BTF file. Methods that add a type return its number; ``base`` is the file that it continues."""

    def __init__(self, base: "Blob | None" = None) -> None:
        self.base = base
        self.first: int = base.first + base.count if base else 1
        self.first_string: int = base.first_string + len(base.strings) if base else 0
        self.count: int = 0
        self.types = b""
        self.strings: bytes = b"" if base else b"\0"

    def string(self, text: str) -> int:
        ended = text.encode() + b"\0"
        if self.base and b"\0" + ended in self.base.strings:
            return self.base.first_string + self.base.strings.index(b"\0" + ended) + 1
        if b"\0" + ended not in b"\0" + self.strings:
            self.strings += ended
        return self.first_string + (b"\0" + self.strings).index(b"\0" + ended)

    def add(
        self, kind: int, name: str | int, value: int, *words: int, vlen: int = 0, flag: bool = False
    ) -> int:
        offset = self.string(name) if isinstance(name, str) and name else name or 0
        self.types += words_of(offset, flag << 31 | kind << 24 | vlen, value, *words)
        self.count += 1
        return self.first + self.count - 1

    def int_(self, name: str, bits: int, encoding: int = 0) -> int:
        return self.add(INT, name, bits // 8, encoding << 24 | bits)

    def to(self, number: int, *kinds: int) -> int:
        """Add a pointer, or types of the given kinds, the last of them outermost."""
        for kind in kinds or (PTR,):
            number = self.add(kind, "", number)
        return number

    def proto(self, returns: int, *params: tuple[str, int]) -> int:
        words = [word for name, number in params for word in (self.string(name) if name else 0, number)]
        return self.add(FUNC_PROTO, "", returns, *words, vlen=len(params))

    def function(self, name: str, returns: int, *params: tuple[str, int], linkage: int = 0) -> int:
        return self.add(FUNC, name, self.proto(returns, *params), vlen=linkage)

    def data(self, *, layout: Iterable[tuple[int, int]] = ()) -> bytes:
        told = b"".join(struct.pack("=BBH", *lengths, 0) for lengths in layout)
        header = [len(told), len(self.types), len(told) + len(self.types), len(self.strings)]
        if told:
            header += [0, len(told)]
        size = 8 + 4 * len(header)
        return struct.pack("=HBBI", 0xEB9F, 1, 0, size) + words_of(*header) + told + self.types + self.strings


def words_of(*words: int) -> bytes:
    return struct.pack(f"={len(words)}I", *(word & 0xFFFFFFFF for word in words))


def sample() -> Blob:
    """Return a file with an example of each type whose references the parser follows."""
    blob = Blob()
    number = blob.int_("int", 32, SIGNED)
    file = blob.add(STRUCT, "file", 8, blob.string("f_flags"), number, 0, vlen=1)
    name = blob.to(blob.int_("char", 8, SIGNED), CONST, PTR)
    size = blob.add(TYPEDEF, "size_t", blob.int_("long unsigned int", 64))
    callback = blob.to(blob.proto(number, ("file", blob.to(file)), ("", 0)))
    blob.add(ENUM, "state", 4, blob.string("ON"), 1, vlen=1)
    blob.function("f", number, ("file", blob.to(file)), ("name", name), ("call", callback), ("size", size))
    blob.function("g", blob.to(file))
    return blob


SAMPLE = sample().data()


def with_an_unknown_type() -> Blob:
    """Return types of which one is of a kind that is not known."""
    blob = Blob()
    number = blob.int_("int", 32, SIGNED)
    blob.add(UNKNOWN, "new", 0, 7, 1, 2, 3, 4, 5, 6, vlen=3)
    blob.function("f", number)
    return blob
