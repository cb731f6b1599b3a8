"""What the records of a layout are wanted for, and what they came to: adding up without a record each."""

from typing import Literal, NamedTuple, TypeAlias

Number: TypeAlias = int | float
Condition: TypeAlias = (
    tuple[Literal["all", "any"], tuple["Condition", ...]]
    | tuple[Literal["not"], "Condition"]
    | tuple[Literal["number"], str, str, Number]
    | tuple[Literal["text"], str, str, bytes]
)
"""A filter as plain values: ``("number", FIELD, OPERATOR, NUMBER)`` and so on."""


class Group(NamedTuple):
    """What one metric wants of the records of a layout: added up by the raw values of ``keys``.

    ``value`` is the field that is added, put into buckets or kept; None counts. A histogram's
    ``bounds`` are, for each of its buckets, the greatest whole number that falls into it. ``last`` keeps
    the value of the last record. ``positive``: values below 0 are refused. Records that do not meet
    ``where`` change nothing.
    """

    keys: tuple[str, ...] = ()
    value: str | None = None
    bounds: tuple[int, ...] | None = None
    last: bool = False
    positive: bool = False
    where: Condition | None = None


class Recipe(NamedTuple):
    """All that a layout's records are wanted for. ``only`` is the filter that the kernel left to us."""

    groups: tuple[Group, ...]
    only: Condition | None = None


RawKey: TypeAlias = tuple[int | bytes | None, ...]


class Tally(NamedTuple):
    """What the records of one key came to: their number, and by the group's sort the sum of their
    values (or the last one, with its time in ns) and the counts of its buckets (the last is +Inf)."""

    slot: int
    group: int
    key: RawKey
    events: int
    sum: int
    time: int = 0
    buckets: tuple[int, ...] | None = None


class Refused(NamedTuple):
    """Values that a group could not take: below 0, or unreadable."""

    slot: int
    group: int
    negative: int
    unreadable: int
