"""The facts that a plan has about the kernel; aggregation in it by hist triggers, for which no event is
written, and by which of the two a probe's stacks are counted: a trigger, or the agent from each event.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.config.model import Attach, Metric, Probe
from kprobe_exporter.elf import Code, UsdtProbe, locate, locate_usdt
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.evaluate import in_nanoseconds
from kprobe_exporter.grammar.fetch import LONGEST, LONGEST_NAME, FetchArg
from kprobe_exporter.grammar.formula import DURATION, Comparison, Node, as_filter
from kprobe_exporter.grammar.target import Target
from kprobe_exporter.model.aggregation import DURATIONS, RETURN_ERRORS, RETURN_VALUES
from kprobe_exporter.model.hist import HistEvent, HistFeed, HistKey, HistTable, HistUse, bucket_form
from kprobe_exporter.model.records import COMMON_COMM
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.stacks import StackTable
from kprobe_exporter.model.values import MAX_ERRNO, ReturnType, decimal
from kprobe_exporter.plan.event_fields import IN_FILTERS
from kprobe_exporter.plan.typed import Prototypes

CPU = HistKey("cpu", "common_cpu", 32)
TID = HistKey("tid", "common_pid", 32, signed=True)
COMMON = {"cpu": CPU, "common_cpu": CPU, "tid": TID, "common_pid": TID}
"""Keys that hist triggers have for every event (kernel/trace/trace_events_hist.c, parse_field)."""

WIDE_ERRORS = (2**32 - MAX_ERRNO, 2**32 - 1)  # those of a C ``int`` that was read as 64 bits

SECOND = 10**9  # nanoseconds, the unit of durations

MIN_ROWS, MAX_ROWS = 1 << 7, 1 << 17  # TRACING_MAP_BITS_MIN and _MAX of kernel/trace/tracing_map.h
ROWS = {"cpu": 1 << 10, "log2": MIN_ROWS, "value": 1 << 9}
"""Rows of a table without labels, by kind. Its keys: one per CPU, 65 powers of two, error values."""

HIGH = "b32@32/64"  # the upper half of 64 bits, as a type of Documentation/trace/kprobetrace.rst

SIZES = frozenset({"size_t", "ssize_t"})
"""Types in which the kernel's functions return at most MAX_RW_COUNT, below 2^31: sums never overflow."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The facts that a plan needs about the kernel.

    ``event_format`` returns the text of ``events/SYSTEM/EVENT/format``, None if there is no such event.
    ``counts_tracepoints``: hist triggers count a tracepoint's firings, which no filter narrows. ``binary``:
    events are read as pages, in which every field can be read, not as text. ``prototypes`` are those of BTF,
    by module and name. ``place`` returns the target that a written one means here, and a clause on how they
    differ; it raises ProbeRefused. ``locate`` finds a target in a file, and raises GrammarError;
    ``locate_usdt`` finds a USDT probe. ``no_fprobes`` says in a clause why there are no fprobes.
    ``machine``, as elf.h names it, tells the argument registers; it is None where the kernel has ``$argN``
    itself (since 4.20). ``no_user_stacks`` says in a clause why it records no stacks of programs;
    ``no_exit_codes`` why nothing shows how a process ends. ``near`` takes the system and the event of a
    tracepoint that does not exist, and returns ``, did you mean …?`` or nothing. ``types`` are the kernel's
    structures, read when they are needed. ``eprobes`` is False if the kernel surely has none. ``joins``:
    it has synthetic events, by which hist triggers join two events.
    """

    event_format: Callable[[str, str], str | None]
    counts_tracepoints: bool
    binary: bool = False
    prototypes: Prototypes = field(default_factory=dict)
    place: Callable[[Target], tuple[Target, str]] = lambda target: (target, "")
    locate: Callable[[Target], Code] = locate
    locate_usdt: Callable[[Target], UsdtProbe] = locate_usdt
    no_fprobes: str | None = None
    machine: str | None = None
    no_user_stacks: str | None = None
    no_exit_codes: str | None = None
    near: Callable[[str, str], str] = lambda system, event: ""
    types: KernelTypes = field(default_factory=lambda: KernelTypes(_no_types))
    eprobes: bool = True
    joins: bool = True


def _no_types(name: str) -> bytes:
    raise FileNotFoundError(name)


def with_upper_halves(
    args: list[FetchArg], probe: Probe, returns: ReturnType | None, *, user: bool
) -> list[FetchArg]:
    """Return what the event records for hist triggers: also the upper half of each summed argument.

    The kernel's sums have 64 bits, and those of 64-bit values may overflow. ``user`` says whether it is the
    function of a program.
    """
    summed = {metric.value for metric in probe.metrics if metric.value is not None}
    if returns is not None and not returns.pointer:
        summed.add("return")
    if returns is not None and returns.name in SIZES and not user:
        summed.discard("return")
    names = {arg.name for arg in args}
    halves = [
        FetchArg(_high(arg.name), arg.expression, HIGH)
        for arg in args
        if arg.name in summed and arg.value_kind == "int" and arg.size == 8 and arg.type != HIGH
    ]
    return [*args, *(half for half in halves if half.name not in names and len(half.body) <= LONGEST)]


def _high(name: str) -> str:
    return f"{name}_high"[:LONGEST_NAME]


def argument_keys(args: list[FetchArg]) -> dict[str, HistKey]:
    """Return the arguments of a probe event that can be keys, and the thread's name if it is recorded."""
    halves = {arg.name for arg in args if arg.type == HIGH}
    keys: dict[str, HistKey] = {}
    for arg in args:
        if arg.value_kind == "int" and arg.name not in halves:
            high = _high(arg.name) if _high(arg.name) in halves else ""
            keys[arg.name] = HistKey(arg.name, arg.name, arg.size * 8, arg.signed, high=high)
    if any(arg.name == "comm" for arg in args):
        keys["comm"] = keys[COMMON_COMM] = HistKey("comm", "comm", 0)
    return keys


def aggregated(
    spec: ProbeSpec,
    probe: Probe,
    only: str | None,
    known: Mapping[str, HistKey],
    names: Mapping[str, str],
    max_series: int,
) -> ProbeSpec | Unsupported:
    """Return the same probe with hist tables in place of events: for its metrics and its return value.

    ``known`` holds the fields of our records that can be keys: plain numbers of the event, and ``comm``.
    ``names`` gives the event's own names for fields. ``only`` is the probe's filter in the event's own
    names; every condition repeats it, because an event's filter does not apply to its hist triggers.
    """
    returns = spec.layout.returns
    absent = spec.layout.absent
    given = {**COMMON, **known}, {**IN_FILTERS, **names}, absent, returns, max_series
    tables = _Tables(only, *given, frozenset({DURATION} if spec.role == "sum" else ()))
    try:
        for number, metric in enumerate(probe.metrics):
            tables.metric(number, metric)
        if returns is not None and "return" in known:
            tables.returned(returns, probe.return_buckets)
        tables.durations(probe.duration_buckets)
    except GrammarError as error:
        return Unsupported(spec.target, error.message)
    # A uretprobe's hits are entries, and its tables count returns.
    uretprobe = spec.layout.user and spec.layout.form == "return"
    made = replace(spec, filter=None, plan="kernel", because="aggregate: kernel", tables=tables.all())
    event = HistEvent(tuple(known.values()), only)
    return replace(made, tables_count_hits=only is None and not uretprobe, hist_event=event)


@dataclass
class _Tables:
    """Collects the tables of one probe. Equal triggers become one table."""

    only: str | None
    known: Mapping[str, HistKey]
    names: Mapping[str, str]
    absent: frozenset[str]
    returns: ReturnType | None
    max_series: int
    times: frozenset[str] = frozenset()
    found: dict[tuple[tuple[HistKey, ...], str | None, str | None], HistTable] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)  # the triggers that together count each event once

    def metric(self, number: int, metric: Metric) -> None:
        """Add the tables of one metric."""
        fields = [label.field for label in metric.labels]
        labels = [None if field in self.absent else self._key(field) for field in fields]
        texts = {key.name: field for field, key in zip(fields, labels, strict=True) if key and not key.bits}
        if len(texts) > 1:  # one takes 256 bytes, and HIST_KEY_SIZE_MAX is 384
            both = " and ".join(texts.values())
            raise GrammarError(f"the kernel counts by one name at once, and not by {both}")
        by_fields, _ = metric.where_parts
        where = in_kernel(by_fields, self.times).rename(self.names).render() if by_fields else None
        if metric.value is None:
            self._add(number, "add", labels, where)
            return
        value = self._key(metric.value)
        wide = metric.value == "return" and self.returns is not None and self.returns.wide
        if metric.kind == "counter":
            positive = no_error(f"{value.name} >= 0", value, wide) if value.signed else None
            self._add(number, "add", labels, where, positive, summed=value)
            if value.signed:
                self._add(number, "negative", [], where, _or_error(f"{value.name} < 0", value, wide))
            return
        if metric.value in self.times:
            scale = float(decimal(metric.scale) / SECOND)
            above = self._above_0(number, labels, value, False, metric.buckets or (), scale, where)
            if where is None and not self.whole:
                self.whole = above
            return
        # ``.log2`` loses the sign and puts 0 and 1 into one row, so values of 0 and below get a row each.
        above = self._above_0(number, labels, value, wide, metric.buckets or (), metric.scale, where)
        rest = self._add(number, "spread", labels, where, _at_most_0(value, wide), kept=value)
        if where is None and not self.whole:
            self.whole = [*above, rest]

    def _above_0(
        self,
        number: int,
        labels: Sequence[HistKey | None],
        value: HistKey,
        wide: bool,
        bounds: tuple[float, ...],
        scale: float,
        where: str | None = None,
    ) -> list[str]:
        """Add the tables of a histogram's values above 0. Returns their triggers.

        Linear buckets end at the last bound: a table without the value's key counts all values above it.
        """
        offset, timed = int(value.less != ""), value.field in self.times
        if (form := bucket_form(bounds, scale, offset)) is None:
            raise GrammarError("its buckets are neither powers of 2 of the value nor a few equal steps")
        positive = None if timed else no_error(f"{value.name} > 0", value, wide)
        if not form.width:
            return [self._add(number, "spread", labels, where, positive, summed=value, log2=True)]
        upper = f"{value.name} <= {form.last}"
        within = upper if timed else no_error(f"{value.name} > 0 && {upper}", value, wide)
        beyond = no_error(f"{value.name} > {form.last}", value, wide)
        steps = value._replace(name=value.less or value.name, width=form.width, offset=offset)
        return [
            self._add(number, "spread", labels, where, within, summed=value, kept=steps, rows=form.rows),
            self._add(number, "spread", labels, where, beyond, summed=value),
        ]

    def durations(self, bounds: tuple[float, ...]) -> None:
        """Add the built-in histogram of durations, if it has ``bounds`` and the event has durations."""
        if bounds and DURATION in self.times:
            above = self._above_0(DURATIONS, [], self.known[DURATION], False, bounds, 1 / SECOND)
            if not self.whole:
                self.whole = above

    def returned(self, returns: ReturnType, bounds: tuple[float, ...]) -> None:
        """Add the built-in metrics of a return value: errors by number, and a histogram with ``bounds``."""
        key = self.known["return"]
        if returns.pointer:
            self._add(RETURN_ERRORS, "errors", [], f"{key.name} >= {2**64 - MAX_ERRNO}", kept=key)
            return
        few = _few(key, returns.wide)
        if bounds:
            self._above_0(RETURN_VALUES, [], key, returns.wide, bounds, 1.0)
            self._add(RETURN_VALUES, "spread", [], few, kept=key)
        if key.signed:
            self._add(RETURN_ERRORS, "errors", [], few, kept=key)

    def all(self) -> tuple[HistTable, ...]:
        """Return all tables. One of them, or two complementary ones, count what passes the probe's filter."""
        if not self.whole:
            self._add(0, None, [])
        return tuple(table._replace(passed=table.trigger in self.whole) for table in self.found.values())

    def _add(
        self,
        metric: int,
        use: HistUse | None,
        labels: Sequence[HistKey | None],
        *conditions: str | None,
        summed: HistKey | None = None,
        kept: HistKey | None = None,
        log2: bool = False,
        rows: int = 0,
    ) -> str:
        """Add a table, or another use of an equal one. Returns its trigger.

        A table with linear buckets has ``rows`` of each label set.
        """
        value = summed._replace(log2=True) if summed and log2 else kept
        keys = tuple(dict.fromkeys(key for key in (*labels, value) if key)) or (CPU,)
        own = [condition for condition in conditions if condition]
        parts = [self.only, *own] if self.only else own
        condition = " && ".join(f"({part})" if len(parts) > 1 else part for part in parts) or None
        same = (keys, summed.name if summed else None, condition)
        if same not in self.found:
            kind = "log2" if log2 else "value" if kept else "cpu"
            size = max(_rows(any(labels), kind, self.max_series), _power_of_2(rows))
            self.found[same] = HistTable(*same, size, (), high=summed.high if summed else "")
            if not own:
                self.whole = [self.found[same].trigger]
        made = self.found[same]
        if use:
            places = tuple(None if label is None else keys.index(label) for label in labels)
            nowhere = None if use == "spread" else 0
            feed = HistFeed(metric, use, places, keys.index(value) if value else nowhere)
            self.found[same] = made._replace(feeds=(*made.feeds, feed))
        return made.trigger

    def _key(self, field: str) -> HistKey:
        try:
            return self.known[field]
        except KeyError:
            raise GrammarError(
                f"its field '{field}' is not a plain number, and cannot be counted by"
            ) from None


def in_kernel(tree: Node, times: Collection[str]) -> Node:
    """Return a condition as the kernel evaluates it, with ``times`` in nanoseconds. Raises GrammarError."""

    def whole(part: Comparison) -> Comparison:
        made = in_nanoseconds(part, times)
        if made is part:
            return part
        if not float(made.value).is_integer():
            raise GrammarError(f"the kernel compares '{part.name}' with whole nanoseconds", "", part.column)
        return replace(made, value=int(made.value), written="", time="")

    return as_filter(tree).change(whole)


def _rows(labelled: bool, kind: str, max_series: int) -> int:
    """Return the number of rows of a table. The kernel allocates all at once, and never removes a key.

    A metric's table has four times as many rows as the metric may have label sets: values that come and
    go keep their rows, and decoders map many raw values to one label set. A histogram's table has four
    times that again, since the values of a label set seldom fall into more than four powers of two.
    """
    if not labelled:
        return ROWS[kind]
    return _power_of_2(max_series * (4 if kind == "cpu" else 16))


def _power_of_2(rows: int) -> int:
    """Return the size of a table that has room for so many rows, or the largest."""
    return max(MIN_ROWS, 1 << (min(rows, MAX_ROWS) - 1).bit_length())


def _at_most_0(key: HistKey, wide: bool) -> str:
    return _or_error(f"{key.name} <= 0", key, wide) if key.signed else f"{key.name} == 0"


def _few(key: HistKey, wide: bool) -> str:
    """Match 0 and errors. 8-bit fields need no lower bound: the kernel would cut -4095 to their width."""
    if not key.signed or key.bits < 16:
        return _at_most_0(key, wide)
    few = f"{key.name} <= 0 && {key.name} >= -{MAX_ERRNO}"
    return _or_error(f"({few})" if wide else few, key, wide)


def _or_error(condition: str, key: HistKey, wide: bool) -> str:
    """Let a wide return value pass the condition, too, if it is an error."""
    lowest, highest = WIDE_ERRORS
    return condition + (f" || ({key.name} >= {lowest} && {key.name} <= {highest})" if wide else "")


def no_error(condition: str, key: HistKey, wide: bool) -> str:
    """Let a wide return value pass the condition only if it is not an error."""
    lowest, highest = WIDE_ERRORS
    return condition + (f" && ({key.name} < {lowest} || {key.name} > {highest})" if wide else "")


def recorded(probe: Probe, *, counted_by_kernel: bool) -> Probe:
    """Return the probe as it is planned: with each event's stack recorded, if the agent counts its stacks.

    It does so for calls and pairs, whose duration only the agent knows, and for the program's stacks, which
    no trigger knows. It also does so where there are no hist triggers, or where each stack is recorded
    anyway.
    """
    if probe.stacks is None:
        return probe
    joined = any(attach.end is not None for attach in probe.attach)
    if not (joined or probe.stacks.user) and counted_by_kernel:
        return probe
    of_kernel = any(not one.target.kind.in_file for attach in probe.attach for one in attach.single)
    return replace(probe, stack=probe.stack or of_kernel, user_stack=probe.stacks.user)


def with_trigger(way: ProbeSpec | Unsupported, probe: Probe, attach: Attach) -> ProbeSpec | Unsupported:
    """Return the way with the hist trigger that counts its stacks.

    A trigger sees each firing, even those that the event's filter rejects, so it repeats the kernel's filter.
    """
    if probe.stacks is None or probe.stack or probe.user_stack or isinstance(way, Unsupported):
        return way
    if way.file is None and way.residual_filter is not None and way.filter is None:
        return Unsupported(way.target, "the kernel counts its stacks, and cannot evaluate its filter")
    value, condition = probe.stacks.weigh, way.filter
    if value is not None:
        if way.file is None:
            value = attach.fetch.get(value, value)
        # The kernel adds up bits: an error, a negative number, would be an immense one.
        returns = way.layout.returns
        wide = probe.stacks.weigh == "return" and returns is not None and returns.wide
        positive = no_error(f"{value} >= 0", HistKey(value, value), wide)
        condition = f"({condition}) && ({positive})" if condition else positive
    # A table that is nearly full finds a place for a new key only by trying many.
    size = max(MIN_ROWS, 1 << (2 * probe.stacks.most - 1).bit_length())
    because = f"{way.because}; a hist trigger counts its stacks"
    return replace(way, stack_table=StackTable(value, condition, size), because=because)
