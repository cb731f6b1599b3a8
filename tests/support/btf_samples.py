"""Types of a kernel, as BTF has them."""

import struct
from collections.abc import Collection, Iterable

from kprobe_exporter.btf.prototypes import Prototype, prototypes_in, symbols_of
from kprobe_exporter.btf.types import (
    ARRAY,
    CONST,
    ENUM,
    FUNC,
    FUNC_PROTO,
    FWD,
    INT,
    PTR,
    STRUCT,
    TYPE_TAG,
    TYPEDEF,
    UNION,
    VOLATILE,
    Data,
    Types,
)

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

    def struct(
        self, name: str, size: int, *members: tuple[str, int, int], kind: int = STRUCT, bits: bool = False
    ) -> int:
        """Add a structure. A member is its name, type and offset in bits; ``bits`` sets BTF's kind_flag."""
        named = [(self.string(name) if name else 0, number, at) for name, number, at in members]
        words = [word for member in named for word in member]
        return self.add(kind, name, size, *words, vlen=len(members), flag=bits)

    def array(self, number: int, count: int) -> int:
        return self.add(ARRAY, "", 0, number, number, count)

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


def structures() -> Blob:
    """Return types like those of a socket, a disk and a file, with known offsets."""
    blob = Blob()
    char = blob.int_("char", 8, SIGNED)
    byte = blob.add(TYPEDEF, "u8", blob.int_("unsigned char", 8))
    short = blob.int_("short unsigned int", 16)
    word = blob.int_("unsigned int", 32)
    number = blob.int_("int", 32, SIGNED)
    long_ = blob.int_("long unsigned int", 64)
    be16 = blob.add(TYPEDEF, "__be16", short)
    be32 = blob.add(TYPEDEF, "__be32", blob.add(TYPEDEF, "__u32", word))
    state = blob.add(ENUM, "state", 4, blob.string("ON"), 1, vlen=1)
    pair = blob.struct("", 4, ("skc_dport", be16, 0), ("skc_num", short, 16))
    ports = blob.struct("", 4, ("skc_portpair", word, 0), ("", pair, 0), kind=UNION)
    bits = [("skc_reuse", byte, 4 << 24 | 152), ("skc_ipv6only", byte, 1 << 24 | 157)]
    common = blob.struct(
        "sock_common",
        136,
        ("skc_daddr", be32, 0),
        ("", ports, 96),
        ("skc_state", blob.to(byte, VOLATILE), 144),
        *bits,
        ("skc_signed", number, 3 << 24 | 160),
        ("skc_wide", long_, 60 << 24 | 199),
        ("skc_prot", blob.to(blob.add(FWD, "proto", 0)), 320),
        bits=True,
    )
    words = blob.array(be32, 4)
    sock = blob.struct(
        "sock",
        760,
        ("__sk_common", common, 0),
        ("sk_state_enum", state, 1088),
        ("sk_user_data", blob.to(0), 1152),
        ("sk_words", words, 1216),
        ("sk_socket", blob.to(blob.add(FWD, "socket", 0)), 1344),
        ("sk_fn", blob.to(blob.proto(0)), 1408),
        ("sk_big", blob.array(word, 65), 1472),
        ("sk_cookie", long_, 4096),
        ("sk_square", blob.array(blob.array(number, 3), 2), 4160),
    )
    blob.struct("socket", 16, ("type", short, 32), ("sk", blob.to(sock), 64))
    disk = blob.struct(
        "gendisk", 100, ("disk_name", blob.array(char, 32), 96), ("label", blob.to(char, CONST, PTR), 512)
    )
    blob.add(TYPEDEF, "disk_t", disk)
    disks = blob.to(blob.to(disk))
    tagged = blob.to(blob.add(TYPE_TAG, "rcu", sock))
    params = ("sk", blob.to(sock)), ("disks", disks), ("tagged", tagged), ("count", number)
    blob.function("f", blob.to(disk), *params, ("addr", blob.to(0)))
    return blob


SAMPLE = sample().data()


def with_an_unknown_type() -> Blob:
    """Return types of which one is of a kind that is not known."""
    blob = Blob()
    number = blob.int_("int", 32, SIGNED)
    blob.add(UNKNOWN, "new", 0, 7, 1, 2, 3, 4, 5, 6, vlen=3)
    blob.function("f", number)
    return blob


def read_prototypes(data: Data, names: Collection[str], base: Data | None = None) -> dict[str, Prototype]:
    """Return prototypes in a file of /sys/kernel/btf; if it is a module's, ``base`` is the kernel's."""
    symbols = symbols_of(names)
    return prototypes_in(Types(data, symbols, Types(base) if base is not None else None), symbols)
