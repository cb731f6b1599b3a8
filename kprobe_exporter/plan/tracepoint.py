"""A tracepoint: an eprobe on it where the kernel has eprobes, else the tracepoint's own event."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import EventFormat, FormatField, parse_format, read_as, text_pattern
from kprobe_exporter.grammar.fetch import INTEGERS
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.hist import HistKey
from kprobe_exporter.model.values import Arg, ArgKind, Layout, ProbeSpec, Unsupported
from kprobe_exporter.plan.function import described
from kprobe_exporter.plan.kernel import NO_HIST, Kernel, aggregated
from kprobe_exporter.plan.metric import COUNTED, events_for, filter_fields, where

COMMON_FIELDS = {"common_pid": "tid", "common_cpu": "cpu", "CPU": "cpu", "cpu": "cpu"}
"""Fields of every event: their names in the kernel's filters, and those in our records."""

LOOKED_UP = Arg("comm", "comm")
OWN_NAMES = {
    ("sched", "sched_process_exec"): Arg("comm", "program", field="filename"),
    ("sched", "sched_process_exit"): Arg("comm", "str", field="comm"),
    ("sched", "sched_process_fork"): Arg("comm", "str", field="parent_comm"),
    ("sched", "sched_switch"): Arg("comm", "str", field="prev_comm"),
}
"""Tracepoints that record the name of the thread that they happen in (include/trace/events/sched.h). When
others are read, a process that lived shortly has ended, and its name is unknown."""


def tracepoint_specs(
    probe: Probe, attach: Attach, wanted: set[str], kernel: Kernel, layout_ids: Iterator[int], max_series: int
) -> list[ProbeSpec | Unsupported]:
    """Return what to try, in order.

    An eprobe records the thread's name with the event, and one tracepoint may have two. A kernel without
    eprobes has the tracepoint's own event: a page has all its fields, text those of its ``print fmt``. If
    the kernel does not count, filtering by the agent goes first: hits are firings, filtered or not.
    """
    system, name, counted = attach.target.system, attach.target.event, kernel.counts_tracepoints
    text = kernel.event_format(system, name)
    if text is None:
        reason = f"this kernel has no tracepoint {system}:{name}{kernel.near(system, name)}"
        return [Unsupported(str(attach.target), reason)]
    try:
        form = _typed(parse_format(text), attach)
        used = _fields(attach, form)
    except GrammarError as error:
        return [Unsupported(str(attach.target), error.message)]
    tracepoint = _Tracepoint(probe, attach, wanted, form, used, layout_ids, kernel.binary)
    if probe.aggregate == "kernel":
        return tracepoint.in_kernel(max_series) if counted else [Unsupported(str(attach.target), NO_HIST)]
    because = events_for(probe, attach, wanted)
    first = [tracepoint.counted()] if counted and because is None else []
    ways = [tracepoint.eprobe(), tracepoint.own(wanted)]
    if attach.filter is not None:
        eprobe, own = ways
        by_kernel = own if isinstance(own, Unsupported) else tracepoint.kernel_filters(attach.filter, own)
        own = tracepoint.own(wanted | filter_fields(attach.filter))
        by_agent = own if isinstance(own, Unsupported) else _agent_filters(attach.filter, own)
        ways = [eprobe, by_kernel, by_agent] if counted else [eprobe, by_agent, by_kernel]
    reason = because or "this kernel counts a tracepoint in no other way"
    return first + [way if isinstance(way, Unsupported) else replace(way, because=reason) for way in ways]


@dataclass(frozen=True, slots=True)
class _Tracepoint:
    """One tracepoint, and the ways to use it. ``used`` maps our names to its fields."""

    probe: Probe
    attach: Attach
    wanted: set[str]
    form: EventFormat
    used: dict[str, str]
    layout_ids: Iterator[int]
    binary: bool

    def in_kernel(self, max_series: int) -> list[ProbeSpec | Unsupported]:
        """Plan hist triggers on the tracepoint itself, which costs least, and then on an eprobe.

        It has the thread's name, and the arguments that an event has too wide. Another probe may also have
        the same triggers.
        """
        keys = {
            name: HistKey(name, field, found.size * 8, found.signed)
            for name, field in self.used.items()
            if not (found := self.form.fields[field]).array and found.size in (1, 2, 4, 8) and field != "comm"
        }
        on_eprobe = self.eprobe()
        if isinstance(on_eprobe, ProbeSpec):
            named = {name: key._replace(name=name) for name, key in keys.items()}
            named |= {"comm": HistKey("comm", "comm", 0)} if self.comm else {}
            on_eprobe = aggregated(on_eprobe, self.probe, self.attach.filter, named, {}, max_series)
        if self.comm or any(self.form.fields[field].narrow for field in self.used.values()):
            return [on_eprobe]
        only = parse_filter(self.attach.filter).rename(self.used).render() if self.attach.filter else None
        bare = self.counted()
        bare = replace(bare, layout=replace(bare.layout, returns=self.attach.returns))
        return [aggregated(bare, self.probe, only, keys, self.used, max_series), on_eprobe]

    @property
    def comm(self) -> bool:
        """Whether the thread's name is needed."""
        return "comm" in self.wanted | filter_fields(self.attach.filter)

    def counted(self) -> ProbeSpec:
        """Return the tracepoint's own event with nothing but a hist trigger that counts."""
        probe, event = self.probe.name, self.attach.target.event
        layout = Layout(next(self.layout_ids), probe, event, "tracepoint", event, pattern=b"[^\n]*")
        return replace(described(self.attach, layout), plan="count", because=COUNTED)

    def eprobe(self) -> ProbeSpec | Unsupported:
        """Return an eprobe, which has a definition and a filter of its own."""
        target, layout_id, probe = self.attach.target, next(self.layout_ids), self.probe.name
        args: list[tuple[str, Arg]] = []
        for name, field in self.used.items():
            kind = self.form.fields[field].fetch_type
            if kind is None:
                reason = f"its field '{field}' is an array, which this version cannot read."
                return Unsupported(str(target), reason)
            pointer = _is_pointer(self.form.fields[field])
            arg = Arg(name, "str" if kind == "string" else "int", pointer=pointer)
            args.append((f"{name}=${field}:{kind}", arg))
        if self.comm:
            args.append(("comm=$comm:string", Arg("comm", "str")))
        args.sort(key=lambda arg: arg[1].kind == "str")  # strings last: see function._event_args
        recorded, returns, stack = tuple(arg for _, arg in args), self.attach.returns, self.probe.stack
        layout = Layout(layout_id, probe, probe, "eprobe", target.event, recorded, returns, stack=stack)
        body = " ".join([f"{target.system}.{target.event}", *(text for text, _ in args)])
        return described(self.attach, layout, "dynamic_events", "e", body)

    def own(self, wanted: set[str]) -> ProbeSpec | Unsupported:
        """Return the tracepoint's own event, still without a filter. Only the ``wanted`` fields are read."""
        event, layout_id, probe = self.attach.target.event, next(self.layout_ids), self.probe.name
        shown = {name: field for name, field in self.used.items() if name in wanted | {"return"}}
        try:
            pattern, args = (b"", self._in_page(shown, wanted)) if self.binary else self._in_text(shown)
        except GrammarError as error:
            return Unsupported(str(self.attach.target), error.message)
        returns, stack = self.attach.returns, self.probe.stack
        layout = Layout(layout_id, probe, event, "tracepoint", event, args, returns, pattern, stack)
        return described(self.attach, layout)

    def _in_text(self, shown: dict[str, str]) -> tuple[bytes, tuple[Arg, ...]]:
        """Return the pattern of the event's text, and the arguments that the text shows."""
        ours = {field: name for name, field in shown.items()}
        if len(ours) < len(shown):
            raise GrammarError("one field under two names takes an eprobe, which this kernel lacks")
        pattern, found = text_pattern(self.form, set(shown.values()))
        return pattern, tuple(arg._replace(name=ours[arg.name], field=arg.name) for arg in found)

    def _in_page(self, shown: dict[str, str], wanted: set[str]) -> tuple[Arg, ...]:
        """Return the arguments that the event's record holds, and the thread's name."""
        args = []
        for name, field in shown.items():
            found = self.form.fields[field]
            kind: ArgKind = "str" if found.text else "bare" if found.array else "int"
            element = _element(found)
            read = f"{element}[{found.length}]" if kind == "bare" else element if found.narrow else ""
            args.append(Arg(name, kind, type=read, field=field, pointer=_is_pointer(found)))
        if "comm" in wanted - shown.keys():
            target = self.attach.target
            comm = OWN_NAMES.get((target.system, target.event), LOOKED_UP)
            args.append(comm if comm.field in self.form.fields else LOOKED_UP)
        return tuple(args)

    def kernel_filters(self, text: str, spec: ProbeSpec) -> ProbeSpec | Unsupported:
        """Return the tracepoint's own event, with the filter in its fields' own names."""
        parsed = parse_filter(text).rename(self.attach.fetch)
        for name in sorted(parsed.fields & self.form.fields.keys()):
            if self.form.fields[name].narrow:
                read = _element(self.form.fields[name])
                reason = f"the kernel would compare '{name}' as it is recorded, not as {read}"
                return Unsupported(spec.target, reason)
        return replace(spec, filter=parsed.render())


def _typed(form: EventFormat, attach: Attach) -> EventFormat:
    """Return the form with the field that is the return value read by its declared type.

    The field of a system call's return is a ``long``, whatever its C type is.
    """
    field = form.fields.get(attach.fetch.get("return", ""))
    typed = INTEGERS.get(attach.returns.fetch or "") if attach.returns else None
    if field is None or field.array or typed is None:
        return form
    if typed[0] > field.size or typed == (field.size, field.signed):
        return form
    return form._replace(fields={**form.fields, field.name: read_as(field, *typed)})


def _fields(attach: Attach, form: EventFormat) -> dict[str, str]:
    """Map our names to the tracepoint's fields: the fetched ones, and the others that the filter names."""
    used = dict(attach.fetch)
    others = filter_fields(attach.filter) - used.keys() - {"comm"}  # ours: the thread's name of every event
    used |= {name: name for name in sorted(others) if name in form.fields}
    for name, field in used.items():
        if field not in form.fields:
            has = ", ".join(form.fields) or "none"
            raise GrammarError(
                f"the tracepoint {form.name} has no field '{field}' (for '{name}'); it has {has}"
            )
    return used


def _is_pointer(found: FormatField) -> bool:
    """Whether a field is an address, by its C type. The text behind a ``__data_loc`` is not one."""
    return not found.text and "*" in found.type


def _element(found: FormatField) -> str:
    """Return the fetch type of an array's elements."""
    return f"{'s' if found.signed else 'u'}{found.size * 8 // max(1, found.length)}"


def _agent_filters(text: str, spec: ProbeSpec) -> ProbeSpec | Unsupported:
    ours = parse_filter(text).rename(COMMON_FIELDS)
    known = {arg.name for arg in spec.layout.args} | set(COMMON_FIELDS.values())
    if unknown := ours.fields - known:
        return Unsupported(spec.target, f"its filter names '{min(unknown)}', which only the kernel knows")
    return replace(spec, residual_filter=where(ours))


def cannot_share(spec: ProbeSpec, others: Iterable[ProbeSpec]) -> str | None:
    """Return why ``spec`` cannot be installed beside the others, as a sentence; None if it can.

    Two probes share a tracepoint's own event, which has one filter in an instance, only if the kernel
    filters for neither of them.
    """
    for other in others:
        same = spec.file is None and (other.system, other.event) == (spec.system, spec.event)
        if same and (spec.kernel_filter or other.kernel_filter):
            return (
                f"this kernel has no eprobes, and the probe '{other.probe}' has this tracepoint "
                "already: put the metrics of both into one probe."
            )
    return None
