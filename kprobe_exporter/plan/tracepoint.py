"""A tracepoint: an eprobe on it where the kernel has eprobes, else the tracepoint's own event."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import EventFormat, FormatField, parse_format, read_as, text_pattern
from kprobe_exporter.grammar.expression import FetchSite
from kprobe_exporter.grammar.fetch import INTEGERS, FetchArg, parse_fetch
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import Node
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.model.hist import HistKey
from kprobe_exporter.model.records import COMMON_COMM, VALUES, Layout
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.values import Arg, ArgKind
from kprobe_exporter.plan.event_fields import EventFields, recorded
from kprobe_exporter.plan.function import described, layout_arg, too_many
from kprobe_exporter.plan.kernel import Kernel, aggregated, argument_keys
from kprobe_exporter.plan.metric import COUNTED, events_for, residual
from kprobe_exporter.plan.names import named, of_event
from kprobe_exporter.plan.read_members import members_note, resolved, unlike, where_all_are_there
from kprobe_exporter.plan.system_call import FIELD, entry_by_kprobe, function_of
from kprobe_exporter.plan.vectors import as_texts, with_pointers

USER_TEXT = re.compile(r"\+u?0\(\$(\w+)\):ustring")
"""The fetch argument of a program's string to which a field points."""

ON_EVENT = FetchSite("event")
ADDRESS_BYTES = 8

TOLD_APART = "the agent evaluates the filter, as other probes may read this tracepoint's own event"


def tracepoint_specs(
    probe: Probe, attach: Attach, wanted: set[str], kernel: Kernel, layout_ids: Iterator[int], max_series: int
) -> list[ProbeSpec | Unsupported]:
    """Return what to try, in order.

    An eprobe records the thread's name with the event, and has a filter of its own. A kernel without eprobes
    (before 5.15) has the tracepoint's own event: a page has all its fields, text those of its ``print fmt``.
    It has one filter for all probes that read it, so the agent evaluates each probe's; the kernel's filter
    only saves events. If the kernel does not count, it must not filter: hits are firings, filtered or not.
    """
    system, name, counted = attach.target.system, attach.target.event, kernel.counts_tracepoints
    text = kernel.event_format(system, name)
    if text is None:
        reason = f"this kernel has no tracepoint {system}:{name}{kernel.near(system, name)}"
        return [Unsupported(str(attach.target), reason)]
    try:
        form = _typed(parse_format(text), attach)
        attach, memory = _behind_fields(attach, form, kernel.types)
        memory, pointers = with_pointers(memory, attach, pages=kernel.binary)
        fields = EventFields.of(attach, form, wanted, memory.keys())
        attach = fields.attach
    except GrammarError as error:
        return [Unsupported(str(attach.target), error.message)]
    tracepoint = _Tracepoint(probe, attach, form, fields, memory, layout_ids, kernel.binary)
    names = of_event(probe, form, fields.used, attach, kernel.types)
    names = names._replace(note="; ".join(filter(None, (*fields.meanings(), names.note))))
    if probe.aggregate == "kernel" and counted:
        return [named(way, names) for way in tracepoint.in_kernel(max_series)]
    because = events_for(probe, attach, wanted)
    first = [tracepoint.counted()] if counted and because is None else []
    ways, itself = [tracepoint.eprobe()], tracepoint.with_copied_strings()
    if attach.filter is None:
        ways.append(itself.own(wanted))
    else:
        ways += itself.filtered(attach.filter, wanted, counted=counted)
    if memory and not kernel.eprobes and attach.target.enters_system_call:
        used = {name: field for name, field in fields.used.items() if name not in memory}
        ways.append(
            entry_by_kprobe(probe, attach, form, used, memory, wanted, kernel, layout_ids, max_series)
        )
    reason = because or "this kernel counts a tracepoint in no other way"
    found = first + [way if isinstance(way, Unsupported) else _because(way, reason) for way in ways]
    return [as_texts(named(way, names), pointers) for way in found]


def _because(way: ProbeSpec, reason: str) -> ProbeSpec:
    note = way.note if way.residual_filter is None else TOLD_APART
    return replace(way, because="; ".join(filter(None, (reason, note))), note=note)


@dataclass(frozen=True, slots=True)
class _Tracepoint:
    """One tracepoint, and the ways to use it.

    ``memory`` are the values behind fields, and the pointers there.
    """

    probe: Probe
    attach: Attach
    form: EventFormat
    fields: EventFields
    memory: dict[str, FetchArg]
    layout_ids: Iterator[int]
    binary: bool

    def in_kernel(self, max_series: int) -> list[ProbeSpec | Unsupported]:
        """Plan hist triggers on the tracepoint itself, which costs least, and then on an eprobe.

        It has the thread's name, and the arguments that an event has too wide. Another probe may also have
        the same triggers.
        """
        used = self.fields.used
        keys = {
            name: HistKey(name, field, found.size * 8, found.signed)
            for name, field in used.items()
            if not (found := self.form.fields[field]).array and found.size in (1, 2, 4, 8)
        }
        on_eprobe, comms = self.eprobe(), self.fields.thread_names(self.fields.named)
        if isinstance(on_eprobe, ProbeSpec):
            named = {name: key._replace(name=name) for name, key in keys.items()}
            texts = (*comms, *(used.keys() & {"comm"}))
            named |= {name: HistKey(name, recorded(name), 0) for name in texts}
            named |= {COMMON_COMM: named[comms[-1]]} if comms else {}
            named |= argument_keys(
                [arg for arg in self.memory.values() if arg.name not in unlike(self.attach)]
            )
            only = where_all_are_there(self.attach)
            ours = {name: name for name in used}
            on_eprobe = aggregated(on_eprobe, self.probe, only, named, ours, max_series)
        retyped = any(self.form.fields[field].retyped for field in used.values())
        if self.memory or comms or retyped or "comm" in used:
            return [on_eprobe]
        only = parse_filter(self.attach.filter).rename(used).render() if self.attach.filter else None
        bare = self.counted()
        bare = replace(bare, layout=replace(bare.layout, returns=self.attach.returns))
        return [aggregated(bare, self.probe, only, keys, used, max_series), on_eprobe]

    def counted(self) -> ProbeSpec:
        """Return the tracepoint's own event with nothing but a hist trigger that counts."""
        probe, event = self.probe.name, self.attach.target.event
        layout = Layout(next(self.layout_ids), probe, event, "tracepoint", event, pattern=b"[^\n]*")
        return replace(described(self.attach, layout), plan="count", because=COUNTED)

    def eprobe(self) -> ProbeSpec | Unsupported:
        """Return an eprobe, which has a definition and a filter of its own."""
        target, layout_id, probe = self.attach.target, next(self.layout_ids), self.probe.name
        args: list[tuple[str, Arg]] = []
        for name, field in self.fields.used.items():
            kind = self.form.fields[field].fetch_type
            if kind is None:
                reason = f"its field '{field}' is an array, which this version cannot read."
                return Unsupported(str(target), reason)
            found = self.form.fields[field]
            pointer, unsigned = _is_pointer(found), found.unsigned
            arg = Arg(name, "str" if kind == "string" else "int", pointer=pointer, unsigned=unsigned)
            arg = arg._replace(field=name if name == "comm" else "")
            args.append((f"{name}=${field}:{kind}", arg))
        for name, fetched in self.memory.items():
            args.append((fetched.render(), layout_arg(fetched, self.attach.read.get(name))))
        comm = "COMM" if self.fields.has_comm else "comm"
        for name in self.fields.thread_names(self.fields.named):
            arg = Arg(name, "str", field=recorded(name) if recorded(name) != name else "")
            args.append((f"{arg.shown}=${comm}:string", arg))
        if refusal := too_many(len(args)):
            return Unsupported(str(target), refusal)
        args.sort(key=lambda arg: arg[1].kind in ("str", "texts"))  # strings last: see function._event_args
        layout = Layout(
            layout_id,
            probe,
            probe,
            "eprobe",
            target.event,
            tuple(arg for _, arg in args),
            self.attach.returns,
            stack=self.probe.stack,
            user_stack=self.probe.user_stack,
        )
        body = " ".join([f"{target.system}.{target.event}", *(text for text, _ in args)])
        spec = described(self.attach, layout, "dynamic_events", "e", body)
        return replace(
            spec, note=members_note({name: arg.body for name, arg in self.memory.items()}, self.attach)
        )

    def with_copied_strings(self) -> "_Tracepoint":
        """Return it with the strings that the event holds a copy of, as a system call's since Linux 7.0.

        The kernel cuts a copy at ``syscall_user_buf_size`` bytes, so an eprobe is tried first.
        """
        copies = {
            name: copy
            for name, arg in self.memory.items()
            if (read := USER_TEXT.fullmatch(arg.body)) and (copy := f"__{read[1]}_val") in self.form.fields
        }
        attach = replace(self.attach, fetch={**self.attach.fetch, **copies})
        fields = replace(self.fields, attach=attach, used={**self.fields.used, **copies})
        memory = {name: arg for name, arg in self.memory.items() if name not in copies}
        return replace(self, attach=attach, fields=fields, memory=memory)

    def own(self, wanted: set[str]) -> ProbeSpec | Unsupported:
        """Return the tracepoint's own event, still without a filter. Only the ``wanted`` fields are read."""
        event, layout_id, probe = self.attach.target.event, next(self.layout_ids), self.probe.name
        guards = {guard for reading in self.attach.read.values() for guard in reading.guards}
        if behind := sorted(self.memory.keys() & wanted - guards):
            reason = f"'{behind[0]}' is behind a field, which only an eprobe can follow: {self._instead()}"
            return Unsupported(str(self.attach.target), reason)
        shown = {name: field for name, field in self.fields.used.items() if name in wanted | {"return"}}
        try:
            pattern, args = (b"", self._in_page(shown, wanted)) if self.binary else self._in_text(shown)
        except GrammarError as error:
            return Unsupported(str(self.attach.target), error.message)
        layout = Layout(
            layout_id,
            probe,
            event,
            "tracepoint",
            event,
            args,
            self.attach.returns,
            pattern,
            stack=self.probe.stack,
            user_stack=self.probe.user_stack,
        )
        return described(self.attach, layout)

    def _instead(self) -> str:
        """Return what to attach to where no eprobe can be made."""
        if self.attach.target.enters_system_call:
            return f"attach to {function_of(self.attach.target)}, which has the arguments as $arg1 and so on"
        return "attach to a function that has the value, as kprobe:FUNCTION, and fetch its $arg1 and so on"

    def _in_text(self, shown: dict[str, str]) -> tuple[bytes, tuple[Arg, ...]]:
        """Return the pattern of the event's text, and the arguments that the text shows."""
        ours = {field: name for name, field in shown.items()}
        if len(ours) < len(shown):
            raise GrammarError("one field under two names takes an eprobe, which this kernel lacks")
        pattern, found = text_pattern(self.form, set(shown.values()))
        return pattern, tuple(arg._replace(name=ours[arg.name], field=arg.name) for arg in found)

    def _in_page(self, shown: dict[str, str], wanted: set[str]) -> tuple[Arg, ...]:
        """Return the arguments that the event's record holds, and the thread's name."""
        args = [_field_arg(name, self.form.fields[field]) for name, field in shown.items()]
        comm = self.fields.thread_name()
        return (*args, *(comm._replace(name=name) for name in self.fields.thread_names(wanted)))

    def filtered(self, text: str, wanted: set[str], *, counted: bool) -> list[ProbeSpec | Unsupported]:
        """Return the ways to filter the tracepoint's own event, in order.

        It can be shared with other probes unless the kernel alone filters. In text this is so for the name of
        a thread that the event does not hold: until the agent looks it up, the thread may have ended. If
        pages are read, the agent knows the name by the kernel's events about threads.
        """
        own = self.own(wanted)
        by_kernel = own if isinstance(own, Unsupported) else self.kernel_filters(text, own)
        ours = parse_filter(text).rename(self.fields.agent_names())
        own = self.own(wanted | ours.fields)
        by_agent = own if isinstance(own, Unsupported) else _agent_filters(ours, own)
        if not counted:
            return [by_agent, by_kernel]
        if isinstance(by_agent, Unsupported) or isinstance(by_kernel, Unsupported):
            return [by_kernel, by_agent]
        compared = {by_agent.layout.place(name) for name in ours.fields}
        if not self.binary and any(
            arg.kind == "comm" and place in compared for place, arg in enumerate(by_agent.layout.args, VALUES)
        ):
            return [by_kernel, by_agent]
        both = replace(by_agent.layout, layout_id=by_kernel.layout.layout_id)
        return [replace(by_agent, filter=by_kernel.filter, layout=both), by_agent]

    def kernel_filters(self, text: str, spec: ProbeSpec) -> ProbeSpec | Unsupported:
        """Return the tracepoint's own event, with the filter in its fields' own names."""
        parsed = parse_filter(text).rename(self.fields.kernel_names())
        for name in sorted(parsed.fields & self.form.fields.keys()):
            if self.form.fields[name].retyped:
                read = _element(self.form.fields[name])
                reason = f"the kernel would compare '{name}' as it is recorded, not as {read}"
                return Unsupported(spec.target, reason)
        return replace(spec, filter=parsed.render())


def whole_event(layout_id: int, form: EventFormat) -> Layout:
    """Return the layout of a tracepoint's own event with all its fields that can be read."""
    args = tuple(_field_arg(name, field) for name, field in form.fields.items() if is_readable(field))
    return Layout(layout_id, form.name, form.name, "tracepoint", form.name, args)


def is_readable(field: FormatField) -> bool:
    """Whether the field is a number, a string, or an array of numbers inside the record."""
    if field.fetch_type is not None:
        return True
    numbers = field.length and not field.type.startswith("__")
    return bool(numbers) and field.size // field.length in (1, 2, 4, 8)


def _field_arg(name: str, found: FormatField) -> Arg:
    """Return the argument that is a field of a record."""
    kind: ArgKind = "str" if found.text else "bare" if found.array else "int"
    element = _element(found)
    read = f"{element}[{found.length}]" if kind == "bare" else element if found.retyped else ""
    return Arg(name, kind, type=read, field=found.name, pointer=_is_pointer(found), unsigned=found.unsigned)


def _typed(form: EventFormat, attach: Attach) -> EventFormat:
    """Return the form with the field that is the return value read by its declared type.

    The field of a system call's return is a ``long``, even if its C type differs.
    """
    field = form.fields.get(attach.fetch.get("return", ""))
    typed = INTEGERS.get(attach.returns.fetch or "") if attach.returns else None
    if field is None or field.array or typed is None:
        return form
    if typed[0] > field.size or typed == (field.size, field.signed):
        return form
    return form._replace(fields={**form.fields, field.name: read_as(field, *typed)})


def _behind_fields(
    attach: Attach, form: EventFormat, types: KernelTypes
) -> tuple[Attach, dict[str, FetchArg]]:
    """Return the same without what is behind its fields, and the arguments of an eprobe that read that."""

    def root(name: str) -> str:
        field = name.removeprefix("$")
        found = form.fields.get(field)
        if found is None:
            raise GrammarError(
                f"the tracepoint {form.name} has no field '{field}'{closest(field, form.fields)}"
            )
        if found.size != ADDRESS_BYTES or found.array or found.text:
            raise GrammarError(f"the field '{field}' is {found.type}, no address")
        return f"${field}"

    found = resolved(attach, types, root, lambda name: None, ON_EVENT) if attach.paths else attach
    names = [name for name in found.fetch if name in found.read or name not in attach.fetch]
    names += [name for name, text in attach.fetch.items() if text.startswith(("+", "-"))]
    memory = {name: parse_fetch(found.fetch[name], ON_EVENT, name=name) for name in names}
    for arg in memory.values():
        if field := FIELD.search(arg.expression):
            root(field[1])
    return replace(found, fetch={k: v for k, v in attach.fetch.items() if k not in memory}), memory


def _is_pointer(found: FormatField) -> bool:
    """Whether a field is an address, by its C type. The text behind a ``__data_loc`` is not one."""
    return not found.text and "*" in found.type


def _element(found: FormatField) -> str:
    """Return the fetch type of an array's elements."""
    return f"{'s' if found.signed else 'u'}{found.size * 8 // max(1, found.length)}"


def _agent_filters(ours: Node, spec: ProbeSpec) -> ProbeSpec | Unsupported:
    others = ours.fields - {"common_pid", "common_cpu"}
    if unknown := [name for name in sorted(others) if spec.layout.place(name) is None]:
        return Unsupported(spec.target, f"its filter names '{unknown[0]}', which only the kernel knows")
    return replace(spec, residual_filter=residual(ours))


def cannot_share(spec: ProbeSpec, others: Iterable[ProbeSpec]) -> str | None:
    """Return why ``spec`` cannot be installed beside the others, as a sentence; None if it can.

    Probes share a tracepoint's own event, which has one filter in an instance, if the agent evaluates theirs
    too. An event has one trigger that records stacks.
    """
    for other in others:
        if spec.file is not None or (other.system, other.event) != (spec.system, spec.event):
            continue
        if any(one.filter is not None and one.residual_filter is None for one in (spec, other)):
            return (
                f"this kernel has no eprobes, and the probe '{other.probe}' has this tracepoint "
                "already: put the metrics of both into one probe."
            )
        if spec.stack and other.stack:
            return (
                f"the probe '{other.probe}' takes the stacks of this tracepoint already: put the metrics of "
                "both into one probe."
            )
    return None
