"""Recipes say what to add up from a layout's records; tallies are the sums, delivered instead of records."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.condition import Condition

RawKey: TypeAlias = tuple[int | bytes | None, ...]

RETURN_ERRORS, RETURN_VALUES, DURATIONS, STACKS, OPEN, WORST, TIMES = -1, -2, -3, -4, -5, -6, -7
"""The uses of a group besides the probe's metrics. The first three are built-in metrics of every probe. The
others are the stacks, the open first halves, the largest value, and the time of threads by state."""

RECORDED_STACK = "@stack"
"""The key of the group that feeds the stacks: the addresses that the kernel recorded with the event."""


class Where(NamedTuple):
    """A condition that is evaluated in the agent, and the fields it reads."""

    fields: tuple[str, ...]
    condition: Condition

    def __and__(self, other: "Where | None") -> "Where":
        """Return the filter that both filters let through."""
        if other is None:
            return self
        fields = tuple(sorted({*self.fields, *other.fields}))
        return Where(fields, ("all", (self.condition, other.condition)))


class RecordFilter(NamedTuple):
    """Which records of a layout the source delivers; it only counts the others.

    Several layouts may read one tracepoint, each its own part of the events. ``condition`` is the filter as
    plain values, None where only ``test`` can decide, which takes the record.
    """

    test: Callable[[tuple[Any, ...]], bool]
    condition: Condition | None


class ExponentialBucket(NamedTuple):
    """A bucket of a native histogram: above 2^((step - 1) / 2^schema), up to 2^(step / 2^schema).

    ``step`` is what Prometheus calls a bucket's index. ``sign`` is 1; -1 for the bucket of the opposite
    numbers, and 0 for that of 0.
    """

    sign: int
    step: int
    schema: int


class Exponential(NamedTuple):
    """The exponential buckets of whole numbers that are multiplied by a factor.

    The first has the step ``first``. ``bounds`` hold, for each bucket, the greatest whole number that falls
    into it. A number's code is its bucket's place among them, from 1, with the number's sign; 0 is that of 0.
    """

    schema: int
    first: int
    bounds: tuple[int, ...]

    def bucket(self, code: int) -> ExponentialBucket:
        """Return the bucket that has this code."""
        return ExponentialBucket((code > 0) - (code < 0), self.first + abs(code) - 1, self.schema)


class Group(NamedTuple):
    """The sums of one metric over a layout's records, grouped by the raw values of ``keys``.

    ``feeds`` is the index of the metric in the probe's metrics, or a built-in metric. ``value`` is the field
    whose values are summed, put into buckets or kept; None counts the records. A histogram's ``bounds``
    hold, for each of its buckets, the greatest whole number that falls into it; with ``exponential``, there
    is a tally for each of these buckets, too. ``last`` keeps the value of the last record. ``largest`` keeps
    the largest value, of equal ones the latest, and the key of its record, in one tally. ``positive``
    refuses values below 0. Records that do not meet ``where`` change nothing. Those for which the value or
    ``where`` is missing are unreadable. ``cgroups`` are the indexes of keys that name a thread: the path of
    its cgroup is the key, or the fact of its process that ``facts`` names for this key, "" for the cgroup.
    """

    feeds: int
    keys: tuple[str, ...] = ()
    value: str | None = None
    bounds: tuple[int, ...] | None = None
    last: bool = False
    positive: bool = False
    where: Where | None = None
    cgroups: tuple[int, ...] = ()
    facts: tuple[str, ...] = ()
    exponential: Exponential | None = None
    largest: bool = False


class RecordChoice(NamedTuple):
    """Which of the records are exported, although they are added up: those that meet ``where``.

    ``share``, from 0 to 1, is that of log records, or of whole traces of spans. ``max_per_second`` is the
    probe's limit, ``together`` that of all choices. ``nested``: the records of calls lie in other calls of
    their thread, and others in them; a thread is in one ``system_call`` at a time. A record that has no
    beginning lies in its thread's calls in any case.
    """

    signal: Literal["log", "span", "line"]
    where: Where | None = None
    share: float = 1.0
    max_per_second: float | None = None
    together: float | None = None
    nested: bool = False
    system_call: bool = False


class Recipe(NamedTuple):
    """Everything to add up from a layout's records. The agent, not the kernel, tests ``residual_filter``.

    If there is a ``choice``, some of the records that pass it are exported as well.
    """

    groups: tuple[Group, ...]
    residual_filter: Where | None = None
    choice: RecordChoice | None = None

    @property
    def by_cgroup(self) -> bool:
        """Whether a thread's cgroup is a key, so that the order of the records and of moves matters."""
        return any(group.cgroups for group in self.groups)

    @property
    def by_stack(self) -> bool:
        """Whether the stacks are counted, so that a record is added up only when its stack has come."""
        return any(group.feeds == STACKS for group in self.groups)


class Tally(NamedTuple):
    """The sums over the ``events`` records of one key. Depending on the group, ``sum`` is the sum of their
    values, the last value or the largest (of ``time``, in ns); ``buckets`` are counts (the last is +Inf), and
    all values are in the ``exponential`` bucket. ``feeds`` is the group's."""

    layout_id: int
    feeds: int
    key: RawKey
    events: int
    sum: int
    time: int = 0
    buckets: tuple[int, ...] | None = None
    exponential: ExponentialBucket | None = None


class Refused(NamedTuple):
    """The numbers of values that a group refused: those below 0, and those that were unreadable."""

    layout_id: int
    feeds: int
    negative: int
    unreadable: int
