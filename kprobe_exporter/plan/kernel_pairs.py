"""A call or a pair that the kernel joins: by which keys and fields, and what hist triggers add up of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.hist import HistEvent, HistKey, HistTable, bucket_form
from kprobe_exporter.model.joins import DISTANCE
from kprobe_exporter.model.pairs import DURATION, LESS, KernelPair, PairField
from kprobe_exporter.model.records import COMMON_COMM, STACK_POINTER, Layout
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan.joined import JoinedSpec, Single, joined_spec
from kprobe_exporter.plan.kernel import COMMON as COMMON_KEYS
from kprobe_exporter.plan.kernel import CPU, ROWS, SECOND, Kernel, aggregated, in_kernel

MAX_KEYS = 3
"""TRACING_MAP_KEYS_MAX of kernel/trace/tracing_map.h."""

NOT_JOINED = "this kernel does not join events (no hist triggers or synthetic events), so the agent does"
REFUSED = "this kernel refused to join them, so the agent does"


def kernel_joined(
    probe: Probe,
    attach: Attach,
    wanted: set[str],
    layout_ids: Iterator[int],
    single: Single,
    kernel: Kernel,
    max_series: int,
) -> list[JoinedSpec | Unsupported]:
    """Plan a call or a pair that the kernel joins, and after it one that the agent joins instead.

    The kernel finds a call by its stack pointer, which no other call has meanwhile. So recursion, interrupts
    and migration pair as they are. It finds the latest first event of a pair's key, as the agent does, but
    knows no end of a thread.
    """
    by_agent = joined_spec(probe, attach, wanted, layout_ids, single)
    if isinstance(by_agent, Unsupported):
        return [by_agent]
    if not (kernel.counts_tracepoints and kernel.joins):
        return [replace(by_agent, because=f"{by_agent.because}; {NOT_JOINED}")]
    bare = replace(probe, metrics=(), return_buckets=(), duration_buckets=(), stacks=None)
    found = joined_spec(bare, attach, wanted, layout_ids, single, plan="kernel")
    if isinstance(found, Unsupported):
        return [found]
    ways = [[way for way in half if isinstance(way, ProbeSpec)] for half in found.ways]
    for first, last in ((first, last) for first in ways[0] for last in ways[-1]):
        try:
            pair = _pair(found, first, last, probe, attach, wanted, max_series)
        except GrammarError as error:
            refusal = Unsupported(found.target, error.message)
            continue
        halves = tuple((replace(one, tables=(), tables_count_hits=False),) for one in (first, last))
        by_kernel = replace(found, ways=halves, residual_filter=None, pair=pair, because="aggregate: kernel")
        return [by_kernel, replace(by_agent, because=f"{by_agent.because}; {REFUSED}")]
    return [refusal]


def _pair(
    found: JoinedSpec,
    first: ProbeSpec,
    last: ProbeSpec,
    probe: Probe,
    attach: Attach,
    wanted: Iterable[str],
    max_series: int,
) -> KernelPair:
    """Return the pair of two events. Raises GrammarError if the kernel cannot have a part of it."""
    begin, end = first.hist_event or HistEvent(), last.hist_event or HistEvent()
    entered, ended = _keys(begin), _keys(end)
    fields: dict[str, PairField] = {}
    known: dict[str, HistKey] = {}
    absent = {*attach.absent, DURATION}
    for name in sorted({*wanted} - absent):
        source = entered.get(name) or ended.get(name)
        if source is None:
            raise GrammarError(f"its field '{name}' is not a plain number, and cannot be carried over")
        made = "comm" if not source.bits else f"field{len(fields)}"
        type_ = f"{'s' if source.signed else 'u'}{source.bits}" if source.bits else "char"
        fields[name] = PairField(made, type_, source.name, name in entered)
        known[name] = source._replace(field=name, name=made, high="")
    if sum(field.type == "char" for field in fields.values()) > 1:
        raise GrammarError("the kernel carries over one name at most")
    less = _has_steps(probe)
    known[DURATION] = HistKey(DURATION, DURATION, less=LESS if less else "")
    if found.by == "stack":
        begin_key, end_key = STACK_POINTER, f"{STACK_POINTER}-{DISTANCE}" if DISTANCE else STACK_POINTER
    else:
        begin_key, end_key = _key(found.key, entered, ended)
    layout = Layout(
        found.layout_id,
        probe.name,
        probe.name,
        "joined",
        found.symbol,
        returns=last.layout.returns,
        absent=attach.absent,
        names=tuple({**dict(last.layout.names), **dict(first.layout.names)}.items()),
    )
    whole = ProbeSpec(
        probe.name,
        found.kind,
        first.target,
        found.symbol,
        None,
        "",
        "",
        None,
        layout,
        "synthetic",
        role="sum",
    )
    names = {name: key.name for name, key in known.items()}
    only = None
    if attach.filter:
        tree = in_kernel(parse_filter(attach.filter, fractions=True), {DURATION})
        if missing := sorted(tree.fields - names.keys()):
            raise GrammarError(f"its field '{missing[0]}' is not a plain number, and cannot be filtered by")
        only = tree.rename(names).render()
    sums = aggregated(whole, probe, only, known, names, max_series)
    if isinstance(sums, Unsupported):
        raise GrammarError(sums.reason)
    if all(table.condition for table in sums.tables):  # it counts all that is joined
        sums = replace(sums, tables=(*sums.tables, HistTable((CPU,), None, None, ROWS["cpu"], ())))
    sums = replace(sums, tables_count_hits=False)
    conditions = begin.condition, end.condition
    return KernelPair(begin_key, end_key, conditions, tuple(fields.values()), sums, found.by == "stack", less)


def _keys(event: HistEvent) -> dict[str, HistKey]:
    """Return the fields that an event has for the other one, and for a pair's key."""
    found = {**COMMON_KEYS, **{key.field: key for key in event.keys}}
    if COMMON_COMM in found:
        found.setdefault("comm", found[COMMON_COMM])
    return found


def _key(
    names: tuple[str, ...], entered: Mapping[str, HistKey], ended: Mapping[str, HistKey]
) -> tuple[str, str]:
    """Return the keys of both events. Raises GrammarError if they would never be equal."""
    if len(names) > MAX_KEYS:
        raise GrammarError(f"the kernel joins by {MAX_KEYS} fields at most")
    for name in names:
        first, last = entered.get(name), ended.get(name)
        if first is None or last is None or not (first.bits and last.bits):
            raise GrammarError(f"the kernel joins by numbers, and '{name}' is none")
        if first.bits != last.bits:
            widths = f"has {first.bits} bits at one event and {last.bits} at the other"
            raise GrammarError(f"the kernel joins by equal bytes, and '{name}' {widths}")
    begin, end = ([keys[name].name for name in names] for keys in (entered, ended))
    return ",".join(begin), ",".join(end)


def _has_steps(probe: Probe) -> bool:
    """Return whether a histogram of durations has linear buckets."""
    bounds = [
        (metric.buckets or (), metric.scale)
        for metric in probe.metrics
        if metric.value == DURATION and metric.kind == "histogram"
    ]
    forms = [bucket_form(one, scale / SECOND, 1) for one, scale in (*bounds, (probe.duration_buckets, 1.0))]
    return any(form is not None and form.width for form in forms)
