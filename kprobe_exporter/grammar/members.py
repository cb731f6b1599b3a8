"""Paths into the kernel's structures, such as ``sk->__sk_common.skc_dport``: their parser."""

import re
from typing import NamedTuple

from kprobe_exporter.grammar.lexis import fail, kernel_number

LONGEST_PATH = 255
"""Characters of a path. The kernel never sees it, only the offsets that it stands for."""

MAX_SHIFT = 1 << 16
"""The most bytes by which a pointer is moved."""

_BASE = re.compile(r"\$?[A-Za-z_]\w*", re.ASCII)
_CAST = re.compile(
    r"\((?:(?:struct|union) +)?((?:[A-Za-z_]\w*:)?[A-Za-z_]\w*)(?: *\*)?\)(?=[A-Za-z_$(])", re.ASCII
)
_MODULE = re.compile(r"(?<=\()[A-Za-z_]\w*:(?=[A-Za-z_]\w*\))", re.ASCII)
_STEP = re.compile(r"(->|\.)([A-Za-z_]\w*)|\[([^\]]*)\]", re.ASCII)
_SHIFT = re.compile(r"([+-])(\w+)(?=\))", re.ASCII)
_LOOKS_LIKE_ONE = re.compile(r"[$A-Za-z_(].*(->|[\w)\]]\.|\[)|\(", re.ASCII)


class Step(NamedTuple):
    """One step of a path: ``->NAME``, ``.NAME`` or ``[ELEMENT]``. ``column`` is where it begins."""

    operator: str
    name: str
    element: int
    column: int

    def __str__(self) -> str:
        return f"[{self.element}]" if self.operator == "[]" else f"{self.operator}{self.name}"


class MemberPath(NamedTuple):
    """A value behind another one. ``base`` is a parameter, ``$retval``, ``$argN``, or a path in parentheses.

    ``cast`` names the structure to which ``base`` is taken to point, as ``NAME`` or, among the types of a
    module, as ``MODULE:NAME``; "" for its declared type. ``shift`` is added to the address that is cast.
    """

    base: "str | MemberPath"
    steps: tuple[Step, ...]
    cast: str = ""
    column: int = 0
    shift: int = 0

    @property
    def root(self) -> str:
        """The value from which the path starts."""
        return self.base if isinstance(self.base, str) else self.base.root

    @property
    def module(self) -> str:
        """The module whose structure the first cast names, "" for none."""
        return self.cast.rpartition(":")[0] if isinstance(self.base, str) else self.base.module

    def __str__(self) -> str:
        shift = f"{self.shift:+}" if self.shift else ""
        base = self.base if isinstance(self.base, str) else f"({self.base}{shift})"
        return (f"({self.cast})" if self.cast else "") + base + "".join(map(str, self.steps))


def split_type(text: str) -> tuple[str, str, str]:
    """Split a fetch argument at the colon before its type, which is not that of a cast ``(MODULE:NAME)``."""
    at = len(_MODULE.sub(lambda found: found[0].replace(":", "."), text).partition(":")[0])
    return text[:at], text[at : at + 1], text[at + 1 :]


def is_path(text: str) -> bool:
    """Return whether a fetch argument without its type has a member, an element or a cast in it."""
    return _LOOKS_LIKE_ONE.match(text) is not None


def parse_path(text: str) -> MemberPath:
    """Parse a path without its type. Raises GrammarError with the column."""
    if len(text) > LONGEST_PATH:
        fail(f"a path can have {LONGEST_PATH} characters", text, LONGEST_PATH)
    path, end = _parse(text, 0)
    if end < len(text):
        fail(f"{text[end:]!r} is not a step: write ->MEMBER, .MEMBER or [INDEX]", text, end)
    if not path.steps:
        fail("a cast needs a member: write (STRUCT)VALUE->MEMBER", text, end)
    return path


def _parse(text: str, at: int) -> tuple[MemberPath, int]:
    start, cast, shift = at, "", 0
    if found := _CAST.match(text, at):
        cast, at = found[1], found.end()
    base: str | MemberPath
    if text[at : at + 1] == "(":
        base, at = _parse(text, at + 1)
        if cast and (found := _SHIFT.match(text, at)):
            parsed = kernel_number(found[2], 0, MAX_SHIFT)
            if parsed is None:
                fail(
                    f"{found[2]!r} is not a number of bytes: write at most {MAX_SHIFT}", text, found.start(2)
                )
            shift, at = (-parsed if found[1] == "-" else parsed), found.end()
        if text[at : at + 1] != ")":
            fail("this must end with ')'", text, at)
        at += 1
        if not (base.steps or base.cast or shift):
            base = base.base  # (a)->b is a->b
    else:
        name = _BASE.match(text, at)
        if not name:
            fail("a path begins with a parameter's name, $argN or $retval", text, at)
        base, at = name[0], name.end()
    steps = []
    while found := _STEP.match(text, at):
        operator, name_, index = found.groups()
        number = 0
        if operator is None:
            element = kernel_number(index, 0, 2**31 - 1)
            if element is None:
                fail(f"{index!r} is not an index: write a constant number", text, at + 1)
            number = element
        steps.append(Step(operator or "[]", name_ or "", number, at))
        at = found.end()
    return MemberPath(base, tuple(steps), cast, start, shift), at
