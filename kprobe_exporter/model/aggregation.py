"""Recipes say what to add up from a layout's records; tallies are the sums, delivered instead of records."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

Number: TypeAlias = int | float
Condition: TypeAlias = (
    tuple[Literal["all", "any"], tuple["Condition", ...]]
    | tuple[Literal["not"], "Condition"]
    | tuple[Literal["number"], str, str, Number]
    | tuple[Literal["text"], str, str, bytes]
)
"""A filter as plain values: ``("number", FIELD, OPERATOR, NUMBER)`` and so on."""

RawKey: TypeAlias = tuple[int | bytes | None, ...]

RETURN_ERRORS, RETURN_VALUES, DURATIONS = -1, -2, -3
"""What a group feeds that is not one of the probe's metrics: a built-in metric of every probe."""


class Where(NamedTuple):
    """A filter that is evaluated in the agent: the fields it reads, and the test of their values.

    ``condition`` is the same test as plain values; None where the filter contains string patterns.
    """

    fields: tuple[str, ...]
    test: Callable[[Mapping[str, int | bytes | None]], bool]
    condition: Condition | None = None


class Group(NamedTuple):
    """What one metric adds up from a layout's records, grouped by the raw values of ``keys``.

    ``feeds`` is the index of the metric in the probe's metrics, or a built-in metric. ``value`` is the field
    whose values are summed, put into buckets or kept; None counts the records. A histogram's ``bounds``
    hold, for each of its buckets, the greatest whole number that falls into it. ``last`` keeps the value of
    the last record. ``positive`` refuses values below 0. Records that do not meet ``where`` change nothing.
    ``cgroups`` are the indexes of keys that name a thread: the path of its cgroup is the key.
    """

    feeds: int
    keys: tuple[str, ...] = ()
    value: str | None = None
    bounds: tuple[int, ...] | None = None
    last: bool = False
    positive: bool = False
    where: Where | None = None
    cgroups: tuple[int, ...] = ()


class Recipe(NamedTuple):
    """Everything to add up from a layout's records. The agent, not the kernel, tests ``residual_filter``."""

    groups: tuple[Group, ...]
    residual_filter: Where | None = None


class Tally(NamedTuple):
    """The sums over the ``events`` records of one key. Depending on the group, ``sum`` is the sum of their
    values or the last value (of ``time``, in ns); ``buckets`` are counts (the last is +Inf). ``feeds`` is
    the group's."""

    layout_id: int
    feeds: int
    key: RawKey
    events: int
    sum: int
    time: int = 0
    buckets: tuple[int, ...] | None = None


class Refused(NamedTuple):
    """The numbers of values that a group refused: those below 0, and those that were unreadable."""

    layout_id: int
    feeds: int
    negative: int
    unreadable: int
