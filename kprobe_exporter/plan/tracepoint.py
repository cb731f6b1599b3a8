"""A tracepoint: an eprobe on it where the kernel has eprobes, else the tracepoint's own event."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import (
    EventFormat,
    FormatField,
    parse_format,
    read_as,
    text_pattern,
)
from kprobe_exporter.grammar.fetch import INTEGERS
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.hist import HistKey
from kprobe_exporter.model.values import Arg, ArgKind, Layout, ProbeSpec, Unsupported
from kprobe_exporter.plan.kernel import NO_HIST, aggregated
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
    probe: Probe,
    attach: Attach,
    wanted: set[str],
    text: str,
    layout_ids: Iterator[int],
    max_series: int,
    *,
    counted: bool,
    binary: bool,
) -> list[ProbeSpec | Unsupported]:
    """Return what to try, in order. ``text`` is the event's ``format``.

    ``counted`` says whether the kernel counts firings regardless of the filter. An eprobe records the
    thread's name with the event, and one tracepoint may have two. A kernel without eprobes has the
    tracepoint's own event: a page (``binary``) has all its fields, text those of its ``print fmt``. If
    the kernel does not count, filtering by the agent goes first: hits are firings, filtered or not.
    """
    target = attach.target
    try:
        form = _typed(parse_format(text), attach)
        used = _fields(attach, form)
    except GrammarError as error:
        return [Unsupported(str(target), error.message)]
    if probe.aggregate == "kernel":
        if not counted:
            return [Unsupported(str(target), NO_HIST)]
        return _in_kernel(probe, attach, wanted, form, used, layout_ids, max_series)
    because = events_for(probe, attach, wanted)
    first = [_counted(probe, attach, next(layout_ids))] if counted and because is None else []
    comm = "comm" in wanted | filter_fields(attach.filter)
    eprobe = _eprobe(probe, attach, form, used, comm, next(layout_ids))
    own = partial(_own, probe, attach, form, used, binary=binary)
    own_event = own(wanted, next(layout_ids))
    if attach.filter is None:
        return [*first, *_because([eprobe, own_event], because)]
    by_kernel = _kernel_filters(attach, attach.filter, own_event, form)
    with_fields = own(wanted | filter_fields(attach.filter), next(layout_ids))
    by_agent = _agent_filters(attach.filter, with_fields)
    ways = [eprobe, by_kernel, by_agent] if counted else [eprobe, by_agent, by_kernel]
    return _because(ways, because)


def _because(ways: list[ProbeSpec | Unsupported], reason: str | None) -> list[ProbeSpec | Unsupported]:
    """Return the ways to read every event, with the reason for reading them."""
    because = reason or "this kernel counts a tracepoint in no other way"
    return [way if isinstance(way, Unsupported) else replace(way, because=because) for way in ways]


def _in_kernel(
    probe: Probe,
    attach: Attach,
    wanted: set[str],
    form: EventFormat,
    used: dict[str, str],
    layout_ids: Iterator[int],
    max_series: int,
) -> list[ProbeSpec | Unsupported]:
    """Plan hist triggers on the tracepoint itself, which costs least, and then on an eprobe: for the
    thread's name and the arguments that an event has too wide, or if another probe has the same triggers."""
    keys = {
        name: HistKey(name, field, found.size * 8, found.signed)
        for name, field in used.items()
        if not (found := form.fields[field]).array and found.size in (1, 2, 4, 8) and field != "comm"
    }
    comm = "comm" in wanted | filter_fields(attach.filter)
    eprobe = _eprobe(probe, attach, form, used, comm, next(layout_ids))
    on_eprobe = eprobe
    if isinstance(eprobe, ProbeSpec):
        named = {name: key._replace(name=name) for name, key in keys.items()}
        named |= {"comm": HistKey("comm", "comm", 0)} if comm else {}
        on_eprobe = aggregated(eprobe, probe, attach.filter, named, {}, max_series)
    if comm or any(form.fields[field].narrow for field in used.values()):
        return [on_eprobe]
    only = parse_filter(attach.filter).rename(used).render() if attach.filter else None
    bare = _counted(probe, attach, next(layout_ids))
    layout = replace(bare.layout, returns=attach.returns)
    return [
        aggregated(replace(bare, layout=layout), probe, only, keys, used, max_series),
        on_eprobe,
    ]


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
            raise GrammarError(
                f"the tracepoint {form.name} has no field '{field}' (for '{name}'); it has "
                f"{', '.join(form.fields) or 'none'}"
            )
    return used


def _counted(probe: Probe, attach: Attach, layout_id: int) -> ProbeSpec:
    """Return the tracepoint's own event with nothing but a hist trigger that counts."""
    target = attach.target
    return ProbeSpec(
        probe=probe.name,
        kind=target.kind.value,
        target=str(target),
        symbol=target.event,
        file=None,
        verb="",
        body="",
        filter=None,
        layout=Layout(layout_id, probe.name, target.event, "tracepoint", target.event, pattern=b"[^\n]*"),
        system=target.system,
        event=target.event,
        plan="count",
        because=COUNTED,
    )


def _eprobe(
    probe: Probe, attach: Attach, form: EventFormat, used: dict[str, str], comm: bool, layout_id: int
) -> ProbeSpec | Unsupported:
    target = attach.target
    args: list[tuple[str, str, ArgKind]] = []
    for name, field in used.items():
        kind = form.fields[field].fetch_type
        if kind is None:
            return Unsupported(
                str(target), f"its field '{field}' is an array, which this version cannot read."
            )
        args.append((name, f"{name}=${field}:{kind}", "str" if kind == "string" else "int"))
    if comm:
        args.append(("comm", "comm=$comm:string", "str"))
    args.sort(key=lambda arg: arg[2] == "str")  # strings last: see function._is_string
    return ProbeSpec(
        probe=probe.name,
        kind=target.kind.value,
        target=str(target),
        symbol=target.event,
        file="dynamic_events",
        verb="e",
        body=" ".join([f"{target.system}.{target.event}", *(text for _, text, _ in args)]),
        filter=attach.filter,
        layout=Layout(
            layout_id,
            probe.name,
            probe.name,
            "eprobe",
            target.event,
            tuple(Arg(name, kind, pointer=_is_pointer(form, used.get(name))) for name, _, kind in args),
            attach.returns,
            stack=probe.stack,
        ),
        stack=probe.stack,
    )


def _own(
    probe: Probe,
    attach: Attach,
    form: EventFormat,
    used: dict[str, str],
    wanted: set[str],
    layout_id: int,
    *,
    binary: bool,
) -> ProbeSpec | Unsupported:
    """Return the tracepoint's own event, still without a filter. Only the fields in use are read."""
    target = attach.target
    shown = {name: field for name, field in used.items() if name in wanted | {"return"}}
    try:
        comm = OWN_NAMES.get((target.system, target.event), LOOKED_UP)
        pattern, args = _page_args(form, shown, wanted, comm) if binary else _text_args(form, shown)
    except GrammarError as error:
        return Unsupported(str(target), error.message)
    return ProbeSpec(
        probe=probe.name,
        kind=target.kind.value,
        target=str(target),
        symbol=target.event,
        file=None,
        verb="",
        body="",
        filter=None,
        layout=Layout(
            layout_id,
            probe.name,
            target.event,
            "tracepoint",
            target.event,
            args,
            attach.returns,
            pattern,
            probe.stack,
        ),
        system=target.system,
        event=target.event,
        stack=probe.stack,
    )


def _text_args(form: EventFormat, shown: dict[str, str]) -> tuple[bytes, tuple[Arg, ...]]:
    """Return the pattern of the event's text, and the arguments that the text shows."""
    ours = {field: name for name, field in shown.items()}
    if len(ours) < len(shown):
        raise GrammarError("one field under two names takes an eprobe, which this kernel lacks")
    pattern, found = text_pattern(form, set(shown.values()))
    return pattern, tuple(arg._replace(name=ours[arg.name], field=arg.name) for arg in found)


def _page_args(
    form: EventFormat, shown: dict[str, str], wanted: set[str], comm: Arg
) -> tuple[bytes, tuple[Arg, ...]]:
    """Return the arguments that the event's record holds, and the thread's name. The pattern is empty."""
    args = []
    for name, field in shown.items():
        found = form.fields[field]
        kind: ArgKind = "str" if found.text else "bare" if found.array else "int"
        element = _element(found)
        read = f"{element}[{found.length}]" if kind == "bare" else element if found.narrow else ""
        args.append(Arg(name, kind, type=read, field=field, pointer=_is_pointer(form, field)))
    if "comm" in wanted - shown.keys():
        args.append(comm if comm.field in form.fields else LOOKED_UP)
    return b"", tuple(args)


def _is_pointer(form: EventFormat, field: str | None) -> bool:
    """Whether a field is an address, by its C type. The text behind a ``__data_loc`` is not one."""
    found = form.fields.get(field or "")
    return found is not None and not found.text and "*" in found.type


def _element(found: FormatField) -> str:
    """Return the fetch type of an array's elements."""
    return f"{'s' if found.signed else 'u'}{found.size * 8 // max(1, found.length)}"


def _kernel_filters(
    attach: Attach, text: str, spec: ProbeSpec | Unsupported, form: EventFormat
) -> ProbeSpec | Unsupported:
    if isinstance(spec, Unsupported):
        return spec
    parsed = parse_filter(text).rename(attach.fetch)
    for name in sorted(parsed.fields & form.fields.keys()):
        if form.fields[name].narrow:
            read = _element(form.fields[name])
            return Unsupported(
                spec.target, f"the kernel would compare '{name}' as it is recorded, not as {read}"
            )
    return replace(spec, filter=parsed.render())


def _agent_filters(text: str, spec: ProbeSpec | Unsupported) -> ProbeSpec | Unsupported:
    if isinstance(spec, Unsupported):
        return spec
    ours = parse_filter(text).rename(COMMON_FIELDS)
    known = {arg.name for arg in spec.layout.args} | set(COMMON_FIELDS.values())
    if unknown := ours.fields - known:
        return Unsupported(spec.target, f"its filter names '{min(unknown)}', which only the kernel knows")
    return replace(spec, residual_filter=where(ours))
