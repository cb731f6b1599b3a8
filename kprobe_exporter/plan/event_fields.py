"""Which of a tracepoint's fields our names mean, and which of them mean the thread that the event happens in.

As in the kernel's filters, an event's own field wins: the ``comm`` of sched_wakeup is the woken thread's name
(trace_find_event_field() of kernel/trace/trace_events.c). In an eprobe $comm is that field, too, and $COMM is
the thread's name (trace_eprobe_tp_arg_update() of kernel/trace/trace_eprobe.c).
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

from kprobe_exporter.config.model import Attach
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.evaluate import COMMON_FIELDS
from kprobe_exporter.grammar.event_format import EventFormat
from kprobe_exporter.grammar.filter import KERNEL_WORDS, parse_filter
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.model.records import COMMON_COMM
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import filter_fields

GENERIC = {"COMM": COMMON_COMM, "CPU": "common_cpu", "cpu": "common_cpu"}
"""Words of the kernel's filters for the thread, unless the event has a field of the name, and ours for it."""

IN_FILTERS = {"tid": "common_pid", "cpu": "CPU", **KERNEL_WORDS}
"""Our names for the thread, and the words of the kernel's filters for it."""

INSTEAD = {
    "comm": {COMMON_COMM: "the thread's name"},
    "tid": {"common_pid": "the thread"},
    "pid": {"common_pid": "the thread", "common_tgid": "its process"},
    "cpu": {"common_cpu": "the thread's CPU"},
}
"""Names that mean the thread unless the event has a field of the name; and those that always mean it."""

LOOKED_UP = Arg("comm", "comm")
OWN_NAMES = {
    ("sched", "sched_process_exec"): Arg("comm", "program", field="filename"),
    ("sched", "sched_process_exit"): Arg("comm", "str", field="comm"),
    ("sched", "sched_process_fork"): Arg("comm", "str", field="parent_comm"),
    ("sched", "sched_switch"): Arg("comm", "str", field="prev_comm"),
}
"""Tracepoints that record the name of the thread that they happen in (include/trace/events/sched.h). When
others are read, a process that lived shortly has ended, and its name is unknown."""


@dataclass(frozen=True, slots=True)
class EventFields:
    """The fields of one tracepoint under our names.

    ``attach`` has a filter in which the kernel's words mean the thread.
    ``wanted`` are the fields that metrics and the export use. ``used`` maps our names to the event's fields:
    those that are fetched, and those that the filter or ``wanted`` names.
    """

    attach: Attach
    form: EventFormat
    wanted: Set[str]
    used: Mapping[str, str]

    @classmethod
    def of(cls, attach: Attach, form: EventFormat, wanted: Set[str], behind: Set[str]) -> "EventFields":
        """Find the fields. Raises GrammarError if one that is fetched or filtered by is missing.

        ``behind`` are the values that an eprobe fetches from behind fields.
        """
        if attach.filter is not None:
            ours = attach.fetch.keys() | attach.read.keys() | form.fields.keys()
            words = {name: word for name, word in IN_FILTERS.items() if name not in ours}
            attach = replace(attach, filter=parse_filter(attach.filter).rename(words).render())
        comms = {COMMON_COMM} if "comm" in form.fields else {COMMON_COMM, "$comm"}
        used = {name: field.removeprefix("$") for name, field in attach.fetch.items() if field not in comms}
        others = (filter_fields(attach.filter) | (wanted & INSTEAD.keys())) - attach.fetch.keys()
        used |= {name: name for name in sorted(others) if name in form.fields}
        has = f"; it has {', '.join(form.fields) or 'none'}"
        for name, field in used.items():
            if field not in form.fields:
                purpose = "" if name == field else f" (for '{name}')"
                hint = closest(field, form.fields) or has
                raise GrammarError(f"the tracepoint {form.name} has no field '{field}'{purpose}{hint}")
        known = form.fields.keys() | attach.fetch.keys() | behind | COMMON_FIELDS.keys()
        for name in sorted(filter_fields(attach.filter) - known):
            hint = closest(name, form.fields) or has
            raise GrammarError(f"the tracepoint {form.name} has no field '{name}' to filter on{hint}")
        return cls(attach, form, wanted, used)

    @property
    def named(self) -> Set[str]:
        """The fields to record: those that metrics, the export and the filter name, and the fetched ones.

        The kernel's filters know the thread's name without them.
        """
        return self.wanted | (filter_fields(self.attach.filter) - {"COMM"}) | self.attach.fetch.keys()

    @property
    def has_comm(self) -> bool:
        """Whether the event has a field ``comm`` of its own."""
        return "comm" in self.form.fields

    def thread_names(self, names: Set[str]) -> list[str]:
        """Return which of our arguments hold the thread's name, if those that ``names`` has are recorded."""
        fetched = sorted({name for name in self.attach.fetch if name not in self.used} & names)
        usual = COMMON_COMM if self.has_comm else "comm"
        return fetched if not names & {COMMON_COMM, usual} or usual in fetched else [*fetched, usual]

    def thread_name(self) -> Arg:
        """Return the argument that holds the thread's name in the tracepoint's own record."""
        found = OWN_NAMES.get((self.attach.target.system, self.attach.target.event))
        return found if found is not None and found.field in self.form.fields else LOOKED_UP

    def agent_names(self) -> dict[str, str]:
        """Map the names in a filter to those of our records, in which a fetched field has only one name.

        But for a return value, which may be read by another type than the kernel's filter reads its field.
        """
        generic = {word: ours for word, ours in GENERIC.items() if word not in self.form.fields}
        fetched = {field: name for name, field in self.attach.fetch.items() if name != "return"}
        return {name: ours for name, ours in (generic | fetched).items() if name not in self.attach.fetch}

    def kernel_names(self) -> dict[str, str]:
        """Map our names to those that the kernel's filter on the tracepoint itself has."""
        return {**dict.fromkeys(self.attach.fetch, KERNEL_WORDS[COMMON_COMM]), **self.used}

    def meanings(self) -> Iterator[str]:
        """Yield a clause on each of our names that means a field of the event, and might mean the thread.

        A configuration that fetches the field or names both is explicit.
        """
        named = self.wanted | {GENERIC.get(name, name) for name in filter_fields(self.attach.filter)}
        explicit = {self.thread_name().field, *self.attach.fetch}
        for name, instead in INSTEAD.items():
            if name in self.used.keys() - explicit and not named & instead.keys():
                others = " and ".join(f"{what} is '{other}'" for other, what in instead.items())
                yield f"'{name}' is a field of the event ({others})"


def recorded(name: str) -> str:
    """Return the name that an argument has in an eprobe. The kernel's word for the thread's name is its."""
    return KERNEL_WORDS.get(name, name)
