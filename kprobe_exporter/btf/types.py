"""The types in a file of /sys/kernel/btf, by number: include/uapi/linux/btf.h.

A kernel has about 100,000 types, of variable length and numbered by their order. One walk notes where each
begins, and only the types that are asked for are decoded.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from mmap import mmap
from struct import calcsize, unpack_from
from typing import Final, NamedTuple, TypeAlias

from kprobe_exporter.errors import GrammarError

Data: TypeAlias = bytes | mmap
"""A file of /sys/kernel/btf: what was read of it, or mapped."""

INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF = range(1, 9)
VOLATILE, CONST, RESTRICT, FUNC, FUNC_PROTO, VAR, DATASEC, FLOAT = range(9, 17)
DECL_TAG, TYPE_TAG, ENUM64 = range(17, 20)

_HEADER = "=HBBIIIII"
_MAGIC, _SWAPPED, _VERSION = 0xEB9F, 0x9FEB, 1

_LENGTHS: Mapping[int, tuple[int, int]] = {
    **dict.fromkeys(range(INT, ENUM64 + 1), (0, 0)),
    **dict.fromkeys((INT, VAR, DECL_TAG), (1, 0)),
    **dict.fromkeys((STRUCT, UNION, DATASEC, ENUM64), (0, 3)),
    **dict.fromkeys((ENUM, FUNC_PROTO), (0, 2)),
    ARRAY: (3, 0),
}
"""The words that follow a type's first three, by kind: a number of words, and a number for each member."""

_LONGEST_NAME: Final = 512
"""KSYM_NAME_LEN of include/linux/kallsyms.h, the limit that the kernel enforces for BTF."""

_BUCKETS: Final = 1 << 16
"""Of the index by name: about half as many as a kernel has types."""


def damaged(what: str) -> GrammarError:
    """Return the error to raise for invalid BTF."""
    return GrammarError(f"the kernel's BTF cannot be read: {what}")


MANY = 64  # The number of names from which on they are not searched for one by one


class Record(NamedTuple):
    """A type as stored: ``struct btf_type``, and the ``words`` in which its data starts at ``at``.

    ``name`` is the offset of a string. ``value`` is, by kind, the size in bytes or a type's number.
    """

    kind: int
    flag: bool
    vlen: int
    name: int
    value: int
    words: memoryview
    at: int


class Types:
    """The types of ``data``, which may continue those of ``base``, as a module's continue the kernel's.

    The functions of ``names`` are found while the types are walked. Raises GrammarError, whose message is a
    sentence, for data that is damaged or of an unknown form.
    """

    def __init__(self, data: Data, names: Collection[str] = (), base: "Types | None" = None) -> None:
        header, types, strings = _sections(data)
        if len(types) % 4 or (strings and data[strings[-1]]) or not (strings or base):
            raise damaged("its types or its strings do not end where they should")
        self._data = data
        self._base = base
        self._words = memoryview(data)[types.start : types.stop].cast("I")
        self._strings = strings
        self._first_string: int = base._end_of_strings if base else 0
        self._end_of_strings: int = self._first_string + len(strings)
        self._starts = array("I")
        self._first: int = base._first + len(base._starts) if base else 1
        self._functions: dict[str, set[int]] = {name: set() for name in names}
        self._walk(_Strides({**_lengths_told(data, header), **_LENGTHS}), names)

    def record(self, number: int) -> Record:
        """Return the type of this number, counted from 1."""
        if self._base and number < self._first:
            return self._base.record(number)
        if not self._first <= number < self._first + len(self._starts):
            raise damaged(f"there is no type {number}")
        at = self._starts[number - self._first]
        name, info, value = self._words[at : at + 3]
        return Record(_kind(info), bool(info >> 31), _vlen(info), name, value, self._words, at + 3)

    def text(self, offset: int) -> str:
        """Return the string at this offset. Bytes that are not ASCII are escaped."""
        if self._base and offset < self._first_string:
            return self._base.text(offset)
        if not self._first_string <= offset < self._end_of_strings:
            raise damaged(f"there is no string {offset}")
        at = offset - self._first_string + self._strings.start
        end = self._data.find(b"\0", at, at + _LONGEST_NAME)
        if end < 0:
            raise damaged(f"the name at {offset} is too long")
        return self._data[at:end].decode("ascii", "backslashreplace")

    def find(self, name: str, kinds: Collection[int]) -> list[int]:
        """Return the numbers of the types of this name and of these kinds.

        The first call costs a pass over all types; an agent with 200 members makes 200 more.
        """
        found = self._base.find(name, kinds) if self._base else []
        heads, following = self._named
        words, starts = self._words, self._starts
        for offset in self.offsets(name):
            count = heads[offset & _BUCKETS - 1]
            while count:
                at = starts[count - 1]
                if words[at] == offset and _kind(words[at + 1]) in kinds:
                    found.append(self._first + count - 1)
                count = following[count - 1]
        return sorted(found)

    def is_own(self, number: int) -> bool:
        """Whether it is the number of a type that is not of ``base``."""
        return number >= self._first

    def prototypes(self, function: str) -> set[int]:
        """Return the numbers of the prototypes of the functions of this name, not those of ``base``."""
        if function not in self._functions:
            numbers = (number for number in self.find(function, (FUNC,)) if self.is_own(number))
            self._functions[function] = {self.record(number).value for number in numbers}
        return self._functions[function]

    @cached_property
    def _named(self) -> tuple["array[int]", "array[int]"]:
        """The types, chained by the low bits of their names' offsets, as ELF's hash tables chain symbols.

        The first array holds the last type of each bucket, the second for each type the one before in
        the same bucket; both count from 1, and 0 is the end. They take less than 1 MB.
        """
        heads, following = array("I", bytes(4 * _BUCKETS)), array("I", bytes(4 * len(self._starts)))
        words = self._words
        for index, at in enumerate(self._starts):
            if name := words[at]:
                bucket = name & _BUCKETS - 1
                following[index] = heads[bucket]
                heads[bucket] = index + 1
        return heads, following

    @cached_property
    def marks_signs(self) -> bool:
        """Whether enums with a sign are marked, as they are since Linux 6.0."""
        return any(self.record(number).flag for number in self.numbers((ENUM, ENUM64)))

    def numbers(self, kinds: Collection[int]) -> Iterator[int]:
        """Yield the numbers of all types of these kinds. Costs a pass over all types."""
        if self._base:
            yield from self._base.numbers(kinds)
        words = self._words
        for count, at in enumerate(self._starts):
            if _kind(words[at + 1]) in kinds:
                yield self._first + count

    def names(self, kinds: Collection[int]) -> list[str]:
        """Return the names of all types of these kinds, each once. Costs as much as reading them all."""
        before = self._base.names(kinds) if self._base else []
        words = self._words
        offsets = {words[at]: None for at in self._starts if _kind(words[at + 1]) in kinds}
        return list(dict.fromkeys([*before, *(self.text(offset) for offset in offsets if offset)]))

    def _walk(self, strides: "_Strides", names: Collection[str]) -> None:
        """Note where each type begins, and which functions are wanted. This loop takes most of the time."""
        wanted: dict[int, str] = (
            {offset: name for name in names for offset in self.offsets(name)}
            if len(names) < MANY
            else _Wanted(self, names)
        )
        words, start = self._words, self._starts.append
        at, end = 0, len(words)
        try:
            while at < end:
                start(at)
                info = words[at + 1]
                if info >> 24 == FUNC and words[at] in wanted:
                    self._functions[wanted[words[at]]].add(words[at + 2])
                at += strides[info]
        except IndexError:
            at = end + 1
        if at != end:
            raise damaged("it ends in the middle of a type")

    def offsets(self, name: str) -> Iterator[int]:
        """Yield every offset of a name, which may be the end of a longer string: BTF does not forbid that."""
        if self._base:
            yield from self._base.offsets(name)
        ended = name.encode() + b"\0"
        at = self._data.find(ended, self._strings.start, self._strings.stop)
        while at >= 0:
            yield at - self._strings.start + self._first_string
            at = self._data.find(ended, at + 1, self._strings.stop)


class _Wanted(dict[int, str]):
    """The wanted names by offset, found by reading the name of each function that the walk meets. For
    many names this is much faster than a search for each."""

    def __init__(self, types: "Types", names: Collection[str]) -> None:
        super().__init__()
        self._types = types
        self._names = frozenset(names)

    def __contains__(self, offset: object) -> bool:
        assert isinstance(offset, int)
        name = self._types.text(offset)
        if name in self._names:
            self[offset] = name
        return name in self._names


class _Strides(dict[int, int]):
    """The length of a type in words, by its ``info``. It is computed once for each ``info``."""

    def __init__(self, lengths: Mapping[int, tuple[int, int]]) -> None:
        super().__init__()
        self._lengths = lengths

    def __missing__(self, info: int) -> int:
        if _kind(info) not in self._lengths:
            raise damaged(f"it has types of kind {_kind(info)}, which are not known here")
        once, each = self._lengths[_kind(info)]
        self[info] = words = 3 + once + each * _vlen(info)
        return words


def _kind(info: int) -> int:
    """Return bits 24 to 30. Older kernels use bits up to 28; the others are 0."""
    return info >> 24 & 0x7F


def _vlen(info: int) -> int:
    """Return bits 0 to 23. Older kernels use bits up to 15; the others are 0."""
    return info & 0xFFFFFF


def _sections(data: Data) -> tuple[int, range, range]:
    """Return the header's length, and where the types and the strings are."""
    if len(data) < calcsize(_HEADER):
        raise damaged("it is shorter than its header")
    magic, version, _, header, *sections = unpack_from(_HEADER, data)
    if magic == _SWAPPED:
        raise damaged("it is of a machine with another byte order")
    if (magic, version) != (_MAGIC, _VERSION):
        raise damaged(f"it begins with {magic:#x} and version {version}, not with {_MAGIC:#x} and {_VERSION}")
    if header < calcsize(_HEADER):
        raise damaged(f"its header has {header} bytes")
    return header, _span(data, header, *sections[:2]), _span(data, header, *sections[2:])


def _span(data: Data, header: int, offset: int, length: int) -> range:
    """Return where a section is. Its offset counts from the end of the header."""
    span = range(header + offset, header + offset + length)
    if span.stop > len(data):
        raise damaged("it is shorter than its header says")
    return span


def _lengths_told(data: Data, header: int) -> dict[int, tuple[int, int]]:
    """Return the lengths that newer BTF itself states (``struct btf_layout``), to skip unknown kinds by."""
    if header < calcsize(_HEADER) + 8:
        return {}
    span = _span(data, header, *unpack_from("=II", data, calcsize(_HEADER)))
    lengths = {}
    for kind, at in enumerate(span[: 4 * 0x80 : 4][: len(span) // 4]):
        once, each = unpack_from("=BB", data, at)
        if kind and not (once % 4 or each % 4):
            lengths[kind] = once // 4, each // 4
    return lengths
