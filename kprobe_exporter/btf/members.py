"""Members of structures from BTF: a path such as ``sk->__sk_common.skc_dport`` becomes offsets and a type."""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from kprobe_exporter.btf import types as btf
from kprobe_exporter.btf.structures import STRUCTURES, Row, Structures, nearest
from kprobe_exporter.btf.types import Record, damaged
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.fetch import LARGEST_ARRAY
from kprobe_exporter.grammar.lexis import fail, part_of
from kprobe_exporter.grammar.members import MemberPath, Step

MOST_NAMED = 12
"""Members that a message lists."""

MARKERS = "__cacheline_group_"  # marks of include/linux/cache.h, which hold nothing
_SHORT = 3  # characters; many structures have members with such names
_ADDRESSES = ("x64", "u64", "s64")
_TEXT = ("string", "ustring")
_BITS = (8, 16, 32, 64)


class Member(NamedTuple):
    """The position of a value, and the way to read it.

    ``offsets`` are in bytes, one for each read of memory, from the path's root outwards. ``fetch`` is the
    kernel's fetch type, and ``length`` that of an array, else None. ``network`` is the width in bytes of a
    number, or of an array's elements, in network byte order, 0 for other values. ``type`` is the C type.
    """

    offsets: tuple[int, ...]
    fetch: str
    length: int | None
    network: int
    type: str

    def reads(self, root: str) -> tuple[str, ...]:
        """Return the fetch expressions from the ``root`` to the value; all but the last are pointers."""
        found = [root]
        for offset in self.offsets:
            found.append(f"{offset:+}({found[-1]})")
        return tuple(found)


def resolve(
    structures: Structures,
    path: MemberPath,
    type_of: Callable[[str], int | None],
    written: str | None = None,
    text: str | None = None,
    of_module: Callable[[str], Structures] | None = None,
) -> Member:
    """Return where a path leads. Raises GrammarError with a sentence and its column.

    ``type_of`` returns the type's number of the path's root, None where it is not known; it may raise
    GrammarError. ``written`` is the fetch type in the configuration, and ``text`` the path as written there.
    ``of_module`` returns the structures for a cast ``(MODULE:NAME)``, or raises GrammarError.
    """
    walk = _Walk(structures, text or str(path), of_module)
    spot = walk.end(path, type_of)
    return _Reading(walk.of, path, spot, walk.text).member(written)


@dataclass(frozen=True, slots=True)
class _Spot:
    """A place on the way: the ``offsets`` so far, and the type that stands there.

    If there are no offsets, it is a register, from which nothing was read yet. ``bit`` and ``width`` are
    those of a bit field; ``bit`` counts from the last offset.
    """

    type: int
    offsets: tuple[int, ...] = ()
    bit: int = 0
    width: int = 0

    def moved(self, offset: int, type_: int) -> "_Spot":
        *before, last = self.offsets
        return replace(self, type=type_, offsets=(*before, last + offset))


class _Walk:
    """Follows one path. The columns of its errors count in ``text``.

    ``of`` are the structures that number the types from here on: a cast may lead to those of a module.
    """

    def __init__(
        self, structures: Structures, text: str, of_module: Callable[[str], Structures] | None
    ) -> None:
        self.of, self.text, self._of_module = structures, text, of_module

    def end(self, path: MemberPath, type_of: Callable[[str], int | None]) -> _Spot:
        """Return where the path ends."""
        if isinstance(path.base, str):
            known = None
            # What is cast needs no type: BTF lacks many static functions.
            with suppress(GrammarError) if path.cast else nullcontext():
                known = type_of(path.base)
            spot, what = _Spot(known or 0), path.base
        else:
            spot, what = self.end(path.base, type_of), str(path.base)
            known = spot.type
        steps = list(path.steps)
        if path.cast:
            if known is not None and (spot.width or self.of.number(known) not in _ADDRESSES):
                self._fail(f"{what} is {self.of.spelled(known)}, no address that could be cast", path.column)
            module, _, name = path.cast.rpartition(":")
            if module and self._of_module is not None:
                with part_of(self.text, path.column + 1):
                    self.of = self._of_module(module)
            structures = self.of.named(name)
            if not structures:
                near = self.of.near(name)
                self._fail(f"these types have no structure {path.cast!r}{near}", path.column + 1)
            if not steps:
                self._fail(f"a cast needs a member: write ({path.cast}){what}->MEMBER", path.column)
            first = steps.pop(0)
            if first.operator != "->":
                self._fail(f"{what} is a pointer here: write ->{first.name or 'MEMBER'}", first.column)
            spot = self._cast(structures, spot.offsets, path, first)
            what = f"({path.cast}){what}{first}"
        elif known is None:
            self._fail(f"the type of {what} is not known: cast it, as (STRUCT){what}->MEMBER")
        for step in steps:
            if spot.width:
                self._fail(f"{what} is a bit field, which leads no further", step.column)
            spot = self._element(spot, step, what) if step.operator == "[]" else self._step(spot, step, what)
            what += str(step)
        return spot

    def _cast(
        self, structures: tuple[int, ...], offsets: tuple[int, ...], path: MemberPath, step: Step
    ) -> _Spot:
        """Step to a member of the structure that a cast names, or of the only one of several that has it."""
        having = [one for one in structures if any(row.name == step.name for row in self.of.rows(one))]
        spots = [self._member(_Spot(one, (*offsets, path.shift)), step) for one in having or structures[:1]]
        spot, *others = dict.fromkeys(spots)
        if others:
            places = " or ".join(
                f"{self.of.spelled(one.type)} at byte {one.offsets[-1]}" for one in (spot, *others)
            )
            several = f"these types have {len(structures)} structures {path.cast!r}, whose"
            self._fail(f"{several} {step.name!r} is {places}: read it by its offset", path.column + 1)
        return spot

    def _fail(self, message: str, column: int = 0) -> NoReturn:
        fail(message, self.text, column)

    def _step(self, spot: _Spot, step: Step, what: str) -> _Spot:
        """Follow ``->NAME`` or ``.NAME``."""
        record = self.of.record(spot.type)
        is_what = f"{what} is {self.of.spelled(spot.type)}"
        if record is not None and record.kind in STRUCTURES:
            if step.operator == "->":
                self._fail(f"{is_what}, no pointer: write .{step.name}", step.column)
            if not spot.offsets:
                self._fail(f"{is_what} in a register, whose members cannot be read", step.column)
            return self._member(spot, step)
        pointer = record is not None and record.kind == btf.PTR
        inner = self.of.complete(record.value) if pointer and record else 0
        target = self.of.record(inner)
        if pointer and target is None:
            base = what if what.isidentifier() else f"({what})"
            self._fail(
                f"{is_what}, which has no members: cast it, as (STRUCT){base}->{step.name}", step.column
            )
        if target is not None and target.kind == btf.FWD:
            self._fail(f"{is_what}, which these types do not describe", step.column)
        if target is None or target.kind not in STRUCTURES:
            self._fail(f"{is_what}, which has no members", step.column)
        if step.operator == ".":
            self._fail(f"{is_what}, a pointer: write ->{step.name}", step.column)
        return self._member(_Spot(inner, (*spot.offsets, 0)), step)

    def _member(self, spot: _Spot, step: Step) -> _Spot:
        """Step to a member of the structure at ``spot``."""
        rows = self.of.rows(spot.type)
        row = next((row for row in rows if row.name == step.name), None)
        if row is None:
            self._fail(self._no_member(self.of.spelled(spot.type), step.name, rows), step.column)
        if not row.width and row.offset % 8:
            raise damaged(f"the member {row.name} does not begin at a byte")
        return replace(spot.moved(row.offset // 8, row.type), bit=row.offset % 8, width=row.width)

    def _no_member(self, structure: str, name: str, rows: Sequence[Row]) -> str:
        """Return the sentence for an unknown member, with the nearest names and the members.

        A member of an embedded structure may be meant, as ``__sk_common.skc_dport`` by ``skc_dport``.
        """
        rows = [row for row in rows if not row.name.startswith(MARKERS)]
        inner = {
            within.name: f"{row.name}.{within.name}"
            for row in rows
            if self.of.is_structure(row.type)
            for within in self.of.rows(row.type)
            if len(within.name) > _SHORT
        }
        words = {row.name: row.name for row in rows}
        near = nearest(name, {**inner, **words})
        listed = ", ".join(list(words)[:MOST_NAMED]) or "none"
        more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
        return f"{structure} has no member {name!r}{f'{near} It' if near else '; it'} has {listed}{more}"

    def _element(self, spot: _Spot, step: Step, what: str) -> _Spot:
        """Follow ``[INDEX]`` of an array, or of a pointer to its first element."""
        record = self.of.record(spot.type)
        is_what = f"{what} is {self.of.spelled(spot.type)}"
        if record is None or record.kind not in (btf.ARRAY, btf.PTR) or not (spot.offsets or record.value):
            self._fail(f"{is_what}, which has no elements", step.column)
        array = record.kind == btf.ARRAY
        number, _, count = record.words[record.at : record.at + 3] if array else (record.value, 0, 0)
        if count and step.element >= count:
            self._fail(f"{is_what}, so its last element is [{count - 1}]", step.column)
        size = self.of.size(number)
        if size is None:
            self._fail(f"{is_what}, and the size of its elements is not known", step.column)
        offset = step.element * size
        return spot.moved(offset, number) if array else _Spot(number, (*spot.offsets, offset))


class _Reading:
    """How the value at the end of a path is read."""

    def __init__(self, structures: Structures, path: MemberPath, spot: _Spot, text: str) -> None:
        self._of, self._spot, self._text = structures, spot, text
        self._record = structures.record(spot.type)
        self._type = structures.spelled(spot.type)
        self._is_what = f"{path} is {self._type}"
        self._path = str(path)

    def member(self, written: str | None) -> Member:
        """Return where the value is. ``written`` is the fetch type of the configuration."""
        if written in _TEXT:
            return self._text_as(written)
        if written is not None:
            if written.startswith("b") and self._kind == btf.PTR:
                hint = "an address, which has no bit field: read it as x64"
                fail(f"{self._is_what}, {hint}", self._text, len(self._text))
            return self._found(written)
        if self._spot.width:
            return self._found(self._bit_field())
        if self._kind == btf.ARRAY:
            return self._array()
        if self._record is not None and self._kind == btf.PTR and self._of.is_char(self._record.value):
            return self._text_as("string")
        fetch = self._of.number(self._spot.type)
        if fetch is None:
            more = ": name one of its members" if self._kind in STRUCTURES else ", which is not a number"
            fail(f"{self._is_what}{more}", self._text)
        return self._found(fetch, network=self._of.network_bytes(self._spot.type))

    @property
    def _kind(self) -> int:
        return self._record.kind if self._record is not None else 0

    def _found(self, fetch: str, length: int | None = None, *, network: int = 0) -> Member:
        return Member(self._spot.offsets, fetch, length, network, self._type)

    def _text_as(self, read: str) -> Member:
        """Return a text: behind a pointer, or in the structure itself."""
        found = self._found(read)
        if self._kind == btf.PTR:
            return found._replace(offsets=(*found.offsets, 0))
        if self._kind not in (btf.ARRAY, *STRUCTURES) or self._spot.width:
            fail(f"{self._is_what}, which is no {read}", self._text)
        return found

    def _array(self) -> Member:
        record: Record | None = self._record
        assert record is not None
        element, _, count = record.words[record.at : record.at + 3]
        if self._of.is_char(element):
            return self._found("string")
        fetch = self._of.number(element)
        if fetch is None or not 0 < count <= LARGEST_ARRAY:
            most = f"only an array of 1 to {LARGEST_ARRAY} numbers can be read, name an element"
            fail(f"{self._is_what}: {most}", self._text)
        return self._found(fetch, count, network=self._of.network_bytes(element))

    def _bit_field(self) -> str:
        """Return ``bWIDTH@OFFSET/SIZE``, which the kernel reads without a sign."""
        bit, width, what = self._spot.bit, self._spot.width, f"{self._path} is a bit field"
        size = next((bits for bits in _BITS if bit + width <= bits), None)
        signed = self._of.signed(self._spot.type)
        if signed is None:
            fail(f"{what} of {self._type}, which is not a number", self._text)
        if size is None or sys.byteorder != "little":
            fail(f"{what} that the kernel cannot read", self._text)
        found = f"b{width}@{bit}/{size}"
        if signed and width > 1:
            hint = f"write {self._path}:{found} to read it without"
            fail(f"{what} with a sign, which the kernel would ignore: {hint}", self._text)
        return found
