"""Layouts, the records of their events, batches of records, and how two records become one."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.aggregation import RecordFilter, Refused, Tally, Where
from kprobe_exporter.model.condition import Computed
from kprobe_exporter.model.stacks import Addresses, Stack, StackTally
from kprobe_exporter.model.thread_times import ThreadTime
from kprobe_exporter.model.values import Arg, ReturnType, Words


@dataclass(frozen=True, slots=True)
class Layout:
    """The values that an event of one installed probe carries, and the way to parse its text.

    ``layout_id`` is the layout's number in its agent; records refer to their layout by it. ``pattern`` is a
    regular expression for the text of a static tracepoint, with one group per argument; None for probe
    events, which the kernel prints in one form. ``stack``: the kernel's stack follows each event, and with
    ``user_stack`` the program's.
    ``user``: the addresses are a program's, so the caller is unknown. ``caller``: the configuration uses
    the function that a return goes back to, for which the kernel's symbols have to be loaded. ``absent`` are
    the fields that the configuration uses and this event lacks: their labels are empty. ``computed`` are
    fields that the agent computes of those that a record holds. ``names`` are fields with words for numbers.
    ``steps`` are the arguments that are nanoseconds from the first event of a pair to one in between.
    """

    layout_id: int
    probe: str
    event: str
    form: Literal["entry", "return", "eprobe", "tracepoint", "joined"]
    symbol: str
    args: tuple[Arg, ...] = ()
    returns: ReturnType | None = None
    pattern: bytes | None = None
    stack: bool = False
    user_stack: bool = False
    user: bool = False
    caller: bool = False
    absent: frozenset[str] = frozenset()
    computed: tuple[Computed, ...] = ()
    names: tuple[tuple[str, Words], ...] = ()
    steps: tuple[str, ...] = ()

    @property
    def hidden(self) -> frozenset[str]:
        """The arguments that the agent itself needs, and nothing shows."""
        return frozenset((STACK_POINTER, *(guard for arg in self.args for guard in arg.guards)))

    @property
    def unsigned(self) -> frozenset[str]:
        """The arguments that are unsigned 64-bit numbers. An error in a return value is made negative."""
        wraps = self.returns is not None and self.returns.wrap
        return frozenset(
            arg.name for arg in self.args if arg.unsigned == 64 and not (wraps and arg.name == "return")
        )

    def place(self, name: str) -> int | None:
        """Return the index of the argument ``name`` in a record of this layout, None if it has none.

        If it has no argument ``common_comm``, that is ``comm``, unless this is a field of the event itself.
        """
        places = {arg.name: number for number, arg in enumerate(self.args, VALUES)}
        if name == COMMON_COMM and name not in places and (place := places.get("comm")) is not None:
            return None if self.args[place - VALUES].field == "comm" else place
        return places.get(name)

    def index(self, name: str) -> int:
        """Return the index of an argument that a record of this layout has."""
        found = self.place(name)
        assert found is not None
        return found


Record: TypeAlias = tuple[Any, ...]
"""One event as the sources deliver it: a flat tuple, since this is the hot path. Its indexes:

LAYOUT_ID is the layout's number; TIME counts nanoseconds of the instance's clock; then CPU follows. TID and
TGID are in the initial pid namespace; TGID is None if it was not recorded. CALLER is the name, in bytes, of
the function that a return goes back to, None if it is unknown. From VALUES on come the layout's ``args``.
"""


LAYOUT_ID, TIME, CPU, TID, TGID, CALLER, VALUES = range(7)


COMMON_COMM = "common_comm"

COMMON = {COMMON_COMM: "comm", "common_pid": "tid", "common_tgid": "pid", "common_cpu": "cpu"}
"""Names that always mean the thread, even if the event has such fields, and their short names. A tracepoint
may have a field with the short name. Then that field is meant, as in the kernel's filters: the ``comm`` of
sched_wakeup is the woken thread's."""


PLACES = {"cpu": CPU, "tid": TID, "pid": TGID, "caller": CALLER}
PLACES |= {name: PLACES[short] for name, short in COMMON.items() if short in PLACES}
"""The indexes of the fields that every record has, where the event has no argument of the name."""


OF_THREADS = 1 << 16
"""Added to a CPU's number for its second buffer, in which events about threads are: it is read as a CPU."""


class Loss(NamedTuple):
    """An interval in which events of one CPU were lost, in nanoseconds of the instance's clock."""

    cpu: int
    start: int
    end: int


@dataclass(slots=True)
class Batch:
    """The result of one read: records in the order in which the kernel printed them, sums, stacks and losses.

    ``lost`` is the sum of the kernel's LOST lines. Per-CPU ``overrun`` counts the same events, so the two
    are never added. ``stacks`` pair frames, innermost first, as printed, with the record that they belong
    to. The kernel writes an event before its stack, and events do not wait for their stacks: the record
    may be from an earlier batch, and the last frames may come with the next batch. ``user_stacks`` are those
    of programs, with the process' id, or in text the thread's, and come before the kernel's.

    ``repeated`` are records of layouts with a recipe, each with the number of those that it stands for: they
    are equal in all that the recipe uses.

    ``tallies`` are the sums over the records of layouts with a recipe. Those in ``by_thread`` hold a thread's
    id where its cgroup is the key, each with the moment of its first record: that was its cgroup for all of
    the sum. ``arrived`` counts these records by
    layout_id, and those of layouts whose records the source filters; ``passed`` counts those that passed the
    filter, where the agent evaluates it. ``begun`` counts
    the first halves of calls and pairs, by the joined layout's id. ``own`` counts the records of the agent's
    own threads, by layout_id: they are hits, and were discarded.

    ``losses`` say when events went missing. A reader of pages delivers a loss before any record later than
    its start; a reader of text, only where the next event of that CPU is printed. ``unpaired`` counts the
    events of pairs whose other half is missing, by the joined layout's id. ``evicted`` counts those of them
    that were dropped because too many were open. ``table_full`` counts those that found no room in a hist
    table, by layout_id.

    ``stack_tallies`` are the stacks of layouts whose recipe counts them; ``without_stack`` is the number of
    records that have none, or no value to weigh it by, by layout_id.

    ``outstanding`` counts the open first halves of joins that ask for it, by the joined layout's id, and sums
    their field, None without one.

    ``thread_times`` are parts of the time of threads, with their states.

    ``reached`` is a moment up to which all records were delivered, with this batch or before it.

    ``emissions`` are the records that a recipe chooses to export; ``limited`` counts those that a limit
    stopped, by layout_id.
    """

    records: list[Record] = field(default_factory=list)
    repeated: list[tuple[Record, int]] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)
    by_thread: list[tuple[int, Tally]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    arrived: dict[int, int] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    own: Counter[int] = field(default_factory=Counter)
    unparsed: int = 0
    lost: int = 0
    stacks: list[tuple[Record, Stack]] = field(default_factory=list)
    user_stacks: list[tuple[Record, int, Addresses]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    unpaired: Counter[int] = field(default_factory=Counter)
    evicted: Counter[int] = field(default_factory=Counter)
    table_full: Counter[int] = field(default_factory=Counter)
    stack_tallies: list[StackTally] = field(default_factory=list)
    without_stack: Counter[int] = field(default_factory=Counter)
    emissions: list["Emission"] = field(default_factory=list)
    limited: Counter[int] = field(default_factory=Counter)
    outstanding: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    thread_times: list[ThreadTime] = field(default_factory=list)
    reached: int = field(default=0, compare=False)

    def passes(self, record: Record, filters: Mapping[int, RecordFilter]) -> bool:
        """Return whether a record passes the filter of its layout, if it has one, and count it then."""
        layout_id = record[LAYOUT_ID]
        if (only := filters.get(layout_id)) is None:
            return True
        passed = only.test(record)
        self.arrived[layout_id] = self.arrived.get(layout_id, 0) + 1
        self.passed[layout_id] = self.passed.get(layout_id, 0) + passed
        return passed


STACK_POINTER = "stack_pointer"
"""The argument that holds ``$stack`` in both halves of a call; the halves are paired by it."""


CALLER_ADDRESS = "caller_address"
"""The field of a probe in a program from which its label ``caller`` is made."""


class Outstanding(NamedTuple):
    """Which first halves count as outstanding: those that were open for so many nanoseconds.

    ``weigh`` is a field of theirs to sum.
    """

    older_than: int
    weigh: str | None = None


PREVIOUS = "previous_"
"""Begins the names of the earlier event's fields, of a pair of an event and the next one of it."""


def is_nested(by: str, key: tuple[str, ...]) -> bool:
    """Return whether what is joined so lies in each other on its thread."""
    return by == "stack" or key == ("tid",)


class Join(NamedTuple):
    """How two events become one record: an event of ``begins``, and then one of ``end``.

    ``layout`` is the joined record's: TIME, CPU, TID and TGID are the first event's, CALLER the second's.
    An argument is the first event's if that has it, else the second's; ``duration`` is the nanoseconds
    between the two. ``by`` says how events are paired: ``stack`` pairs a function's entry and return by
    thread and STACK_POINTER; ``key`` pairs an end with the latest first event that has equal values of the
    fields ``key``. ``only`` is the part of the joined records' filter that the first event decides: a first
    event that does not pass it is not counted as lost if its second event is missing. ``through`` are the
    events in between, one for each of the layout's ``steps``; the latest of each counts.

    ``time`` joins none of them: the source adds up the time of threads from the scheduler's events.

    If the only first event is also ``end``, each event ends the pair that the one before it began. Then an
    argument NAME is the later event's, and ``previous_NAME`` the earlier one's; CPU, TID and TGID are the
    later event's, too.
    """

    layout: Layout
    begins: tuple[Layout, ...]
    end: Layout
    by: Literal["stack", "key", "time"]
    key: tuple[str, ...] = ()
    only: Where | None = None
    through: tuple[Layout, ...] = ()
    outstanding: Outstanding | None = None

    @property
    def parts(self) -> tuple[Layout, ...]:
        """The layouts of all its events, the last one at the end."""
        return self.begins if self.again else (*self.begins, *self.through, self.end)

    @property
    def again(self) -> bool:
        """Whether its first event and its last are the same one."""
        return self.begins == (self.end,)


class Emission(NamedTuple):
    """One event to export. It is kept small, since it may wait in a queue and be dropped there.

    ``record`` has the layout whose id is ``record[LAYOUT_ID]``. ``trace`` and ``span`` are the ids of a span;
    a log record has the ``span`` 0. ``parent`` is the span of ``trace`` that it belongs to, 0 for none.
    ``stack`` holds frames, innermost first. ``attributes`` describe the container and the pod of the
    thread; None where they were not recorded or the thread was in none.
    """

    record: Record
    trace: int = 0
    span: int = 0
    parent: int = 0
    stack: tuple[bytes, ...] = ()
    attributes: Mapping[str, str] | None = None
