"""A call or a pair that the kernel joins, as a description: two hist triggers and a synthetic event."""

from typing import NamedTuple

from kprobe_exporter.model.specs import ProbeSpec

OPEN_ROWS = 1 << 15
"""Rows of the table of open calls, and of that of their ends. The kernel never removes a key. A thread has up
to 64 places for the stack pointer of a system call, where the kernel draws its offset
(CONFIG_RANDOMIZE_KSTACK_OFFSET)."""

DURATION, LESS = "duration", "less"
"""Fields of each synthetic event: the nanoseconds between both events, and these less 1 if that is needed."""


class PairField(NamedTuple):
    """A field of the synthetic event, and of the event that it comes from."""

    name: str
    """In the synthetic event."""
    type: str
    """As the kernel spells it."""
    source: str
    """In the event that it comes from."""
    first: bool
    """Whether that is the first event."""


class KernelPair(NamedTuple):
    """Two events that the kernel joins, and what is added up of them."""

    begin_key: str
    """The keys of the first event's hist trigger; numbers of the same size as those of ``end_key``."""
    end_key: str
    conditions: tuple[str | None, str | None]
    """The conditions of both triggers."""
    fields: tuple[PairField, ...]
    sums: ProbeSpec
    """The synthetic event, still without a name, with the tables on it."""
    each_end: bool
    """Whether each end has a first event, so that one without it is a loss."""
    less: bool = False
    """Whether the synthetic event has LESS."""


class PairLoss(NamedTuple):
    """The events of a pair that the kernel did not join, as read; both numbers only grow."""

    unpaired: int
    """A lower bound: a call may still be open."""
    table_full: int
    """First events that found no row."""
