"""A probe of a kernel function: a kprobe or kretprobe in kprobe_events, an fprobe in dynamic_events."""

from dataclasses import replace

from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.grammar.fetch import FetchArg, parse_fetch
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.model.values import STACK_POINTER, Arg, ArgKind, Layout, ProbeSpec, Unsupported
from kprobe_exporter.plan.kernel import NO_HIST, aggregated, argument_keys, with_upper_halves
from kprobe_exporter.plan.metric import COUNTED, events_for, filter_fields

UNCOUNTED = "this kernel counts an fprobe in no other way"
"""No profile file lists fprobes. Only a hist trigger counts their hits without writing events."""


def function_spec(
    probe: Probe,
    attach: Attach,
    wanted: set[str],
    layout_id: int,
    max_series: int,
    *,
    hist: bool,
    no_fprobes: str | None = None,
) -> ProbeSpec | Unsupported:
    """Return the probe definition and the layout of its events.

    ``wanted`` are the fields that metrics and the export use. ``max_series`` is how many label sets a
    metric may have. ``hist`` says whether the kernel has hist triggers. ``no_fprobes`` says in a clause
    why this kernel cannot have fprobes; it is None where it can.
    """
    target = attach.target
    fprobe = target.kind in (Kind.FENTRY, Kind.FEXIT)
    if fprobe and no_fprobes is not None:
        return Unsupported(str(target), f"{no_fprobes}: {_instead(target)}")
    if probe.aggregate == "kernel" and not hist:
        return Unsupported(str(target), NO_HIST)
    is_return = target.kind.is_return
    args = [parse_fetch(text, name=name) for name, text in attach.fetch.items()]
    args = event_args(args, probe, attach, wanted, is_return=is_return)
    written = with_upper_halves(args, probe, attach.returns if is_return else None)
    because = events_for(probe, attach, wanted) or (UNCOUNTED if fprobe and not hist else None)
    file, verb, place = _fprobe(target, probe.maxactive) if fprobe else _kprobe(target, probe.maxactive)
    made = ProbeSpec(
        probe=probe.name,
        kind=target.kind.value,
        target=str(target),
        symbol=target.symbol,
        file=file,
        verb=verb,
        body=" ".join([place, *(arg.render() for arg in written)]),
        filter=attach.filter,
        layout=Layout(
            layout_id,
            probe.name,
            probe.name,
            "return" if is_return else "entry",
            target.symbol,
            layout_args(args),
            attach.returns,
            stack=probe.stack,
            caller="caller" in wanted,
        ),
        stack=probe.stack,
        plan="events" if because else "count",
        because=because or COUNTED,
    )
    if probe.aggregate != "kernel":
        return made
    return aggregated(made, probe, attach.filter, argument_keys(written), {}, max_series)


def _kprobe(target: Target, maxactive: int) -> tuple[str, str, str]:
    """Return the file, the verb and the probed place of a definition."""
    module = f"{target.module}:" if target.module else ""
    offset = f"+{target.offset}" if target.offset else ""
    verb = f"r{maxactive}" if target.kind.is_return else "p"
    return "kprobe_events", verb, f"{module}{target.symbol}{offset}"


def _fprobe(target: Target, maxactive: int) -> tuple[str, str, str]:
    """Return the same for an fprobe, which takes no module name (kernel/trace/trace_fprobe.c).

    An fprobe fires in every function of its name, whether or not the kprobes blacklist has it. It sees
    only the arguments, so no ``%REG``. Its event has the fields and the text of a kprobe or kretprobe.
    """
    if target.kind.is_return:
        return "dynamic_events", f"f{maxactive}", f"{target.symbol}%return"
    return "dynamic_events", "f", target.symbol


def _instead(target: Target) -> str:
    kind = Kind.KRETPROBE if target.kind.is_return else Kind.KPROBE
    return f"use {replace(target, kind=kind)}, or list it as an alternative"


def event_args(
    fetched: list[FetchArg], probe: Probe, attach: Attach, wanted: set[str], *, is_return: bool
) -> list[FetchArg]:
    """Return all arguments of an event, in order: the fetched ones, the return value, the thread's name."""
    args = [*fetched]
    if is_return and attach.returns is not None and attach.returns.fetch is not None:
        args.append(parse_fetch(f"$retval:{attach.returns.fetch}", name="return"))
    if "comm" in wanted | filter_fields(attach.filter):
        args.append(parse_fetch("$comm:string", name="comm"))
    if probe.aggregate == "kernel":
        # Without a type, some kernels take one from BTF. How a key is read must be known beforehand.
        args = [replace(arg, type="x64") if _is_untyped(arg) else arg for arg in args]
    return sorted(args, key=_is_string)


def layout_args(args: list[FetchArg]) -> tuple[Arg, ...]:
    """Return the arguments in the form of a layout."""
    return tuple(
        Arg(arg.name, _arg_kind(arg), type=_fetch_type(arg), pointer=_is_pointer(arg)) for arg in args
    )


def _is_pointer(arg: FetchArg) -> bool:
    """Whether it is an address: BTF's pointers are fetched as x64, and so are arguments without a type."""
    number = arg.value_kind in ("int", "bare")
    return number and arg.name != STACK_POINTER and arg.type in (None, "x64", "symbol")


def _is_string(arg: FetchArg) -> bool:
    """Whether it is a string. Strings go last, since their text may imitate the argument that follows."""
    return arg.element_kind == "str"


def _is_untyped(arg: FetchArg) -> bool:
    return arg.type is None and arg.value_kind == "int"


def _fetch_type(arg: FetchArg) -> str:
    """What the event's ``format`` omits: how an array prints, and which numbers are a char or a symbol."""
    if arg.count:
        return f"{arg.type or 'x64'}[{arg.count}]"
    return arg.type if arg.type in ("char", "symbol") else ""


def _arg_kind(arg: FetchArg) -> ArgKind:
    kind = arg.value_kind
    if kind == "array" and arg.element_kind == "str":
        return "texts"
    return kind if kind in ("int", "char", "str") else "bare"
