"""The syntax tree of an event filter: its nodes, how they render and how they combine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar, Literal, TypeAlias

Operator: TypeAlias = Literal["~", "!=", "==", "<=", "<", ">=", ">", "&"]


class Filter:
    """A parsed filter: a Comparison, or a Not, And or Or of filters."""

    __slots__ = ()

    @property
    def comparisons(self) -> "tuple[Comparison, ...]":
        """All comparisons, from left to right."""
        raise NotImplementedError

    @property
    def fields(self) -> frozenset[str]:
        """The names of all fields that are compared."""
        return frozenset(comparison.name for comparison in self.comparisons)

    def render(self) -> str:
        """The filter as one line that the kernel accepts and ``parse_filter`` parses into an equal filter."""
        raise NotImplementedError

    def change(self, one: Callable[["Comparison"], "Filter"]) -> "Filter":
        """The same filter with each comparison replaced by what ``one`` returns for it."""
        raise NotImplementedError

    def rename(self, names: Mapping[str, str]) -> "Filter":
        """The same filter with the fields in ``names`` renamed."""
        return self.change(lambda part: replace(part, name=names.get(part.name, part.name)))


@dataclass(frozen=True, slots=True)
class Comparison(Filter):
    """``FIELD OPERATOR VALUE``.

    ``written`` is a number's original spelling, such as ``0x40``. ``time`` is that of a number with a unit of
    time, such as ``10ms``, whose ``value`` is in seconds. ``column`` is where in the text the field begins,
    counted from 0.
    """

    name: str
    operator: Operator
    value: int | float | str
    written: str = field(default="", compare=False)
    time: str = field(default="", compare=False)
    column: int = field(default=0, compare=False)

    @property
    def comparisons(self) -> "tuple[Comparison, ...]":
        return (self,)

    def render(self) -> str:
        if isinstance(self.value, str):
            quote = "'" if '"' in self.value else '"'
            return f"{self.name} {self.operator} {quote}{self.value}{quote}"
        return f"{self.name} {self.operator} {self.written or self.value}"

    def change(self, one: Callable[["Comparison"], Filter]) -> Filter:
        return one(self)


@dataclass(frozen=True, slots=True)
class Not(Filter):
    """``!COMPARISON`` or ``!(FILTER)``."""

    operand: Filter

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return self.operand.comparisons

    def render(self) -> str:
        text = self.operand.render()
        return f"!{text}" if isinstance(self.operand, Comparison) else f"!({text})"

    def change(self, one: Callable[[Comparison], Filter]) -> Filter:
        return Not(self.operand.change(one))


@dataclass(frozen=True, slots=True)
class _Chain(Filter):
    operands: tuple[Filter, ...]
    sign: ClassVar[str]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return tuple(part for operand in self.operands for part in operand.comparisons)

    def render(self) -> str:
        parts = (f"({part.render()})" if isinstance(part, Or) else part.render() for part in self.operands)
        return f" {self.sign} ".join(parts)

    def change(self, one: Callable[[Comparison], Filter]) -> Filter:
        return replace(self, operands=tuple(operand.change(one) for operand in self.operands))


@dataclass(frozen=True, slots=True)
class And(_Chain):
    """``FILTER && FILTER …``, never with another And among its operands."""

    sign = "&&"


@dataclass(frozen=True, slots=True)
class Or(_Chain):
    """``FILTER || FILTER …``, never with another Or among its operands."""

    sign = "||"


def split_filter(whole: Filter, wanted: Callable[[Filter], bool]) -> tuple[Filter | None, Filter | None]:
    """Split a filter into the operands of ``&&`` that are ``wanted`` and the rest.

    An event passes ``whole`` if it passes both parts. A part without operands is None.
    """
    parts = _operands(whole, And)
    early = [part for part in parts if wanted(part)]
    late = [part for part in parts if not wanted(part)]
    return reduce(both, early) if early else None, reduce(both, late) if late else None


def both(left: Filter, right: Filter) -> Filter:
    """``LEFT && RIGHT``."""
    return And((*_operands(left, And), *_operands(right, And)))


def either(left: Filter, right: Filter) -> Filter:
    """``LEFT || RIGHT``."""
    return Or((*_operands(left, Or), *_operands(right, Or)))


def _operands(part: Filter, kind: type[_Chain]) -> tuple[Filter, ...]:
    return part.operands if isinstance(part, kind) else (part,)
