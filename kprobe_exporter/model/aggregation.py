"""Recipes say what to add up from a layout's records; tallies are the sums, delivered instead of records."""

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
    """What one metric adds up from a layout's records, grouped by the raw values of ``keys``.

    ``value`` is the field whose values are summed, put into buckets or kept; None counts the records.
    A histogram's ``bounds`` hold, for each of its buckets, the greatest whole number that falls into it.
    ``last`` keeps the value of the last record. ``positive`` refuses values below 0. Records that do not
    meet ``where`` change nothing.
    """

    keys: tuple[str, ...] = ()
    value: str | None = None
    bounds: tuple[int, ...] | None = None
    last: bool = False
    positive: bool = False
    where: Condition | None = None


class Recipe(NamedTuple):
    """Everything to add up from a layout's records. The agent, not the kernel, tests ``residual_filter``."""

    groups: tuple[Group, ...]
    residual_filter: Condition | None = None


RawKey: TypeAlias = tuple[int | bytes | None, ...]


class Tally(NamedTuple):
    """The sums over the ``events`` records of one key. Depending on the group, ``sum`` is the sum of their
    values or the last value (of ``time``, in ns); ``buckets`` are counts (the last is +Inf)."""

    layout_id: int
    group: int
    key: RawKey
    events: int
    sum: int
    time: int = 0
    buckets: tuple[int, ...] | None = None


class Refused(NamedTuple):
    """The numbers of values that a group refused: those below 0, and those that were unreadable."""

    layout_id: int
    group: int
    negative: int
    unreadable: int
