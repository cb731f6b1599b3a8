"""A probe of a function, of the kernel or of a program; how an event of any kind becomes a ProbeSpec."""

from dataclasses import replace

from kprobe_exporter.config.model import NO_STACK, Attach, Probe, Reading
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.expression import FetchSite
from kprobe_exporter.grammar.fetch import MOST_ARGS, FetchArg, parse_fetch
from kprobe_exporter.grammar.place import Symbol
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.model.records import CALLER_ADDRESS, STACK_POINTER, Layout
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.values import Arg, ArgKind
from kprobe_exporter.plan.kernel import Kernel, aggregated, argument_keys, with_upper_halves
from kprobe_exporter.plan.metric import COUNTED, events_for, filter_fields
from kprobe_exporter.plan.read_members import unlike, where_all_are_there
from kprobe_exporter.plan.typed import ARGUMENT, in_registers

UNCOUNTED = "this kernel counts an fprobe in no other way"
"""No profile file lists fprobes. Only a hist trigger counts their hits without writing events."""

CALLERS = {"EM_X86_64": ("+0($stack):u64", "%ip:u64"), "EM_AARCH64": ("%x30:u64", "%pc:u64")}
"""By the processor, as elf.h names it: what to fetch at the entry and at the return. The kernel's names of
registers are in arch/*/kernel/ptrace.c."""


def function_spec(
    probe: Probe, attach: Attach, wanted: set[str], kernel: Kernel, layout_id: int, max_series: int
) -> ProbeSpec | Unsupported:
    """Return the probe definition and the layout of its events.

    ``wanted`` are the fields that metrics and the export use. ``max_series`` is how many label sets a
    metric may have.
    """
    target = attach.target
    fprobe = target.kind in (Kind.FENTRY, Kind.FEXIT)
    if fprobe and kernel.no_fprobes is not None:
        instead = replace(target, kind=Kind.KRETPROBE if target.kind.is_return else Kind.KPROBE)
        reason = f"{kernel.no_fprobes}: use {instead}, or list it as an alternative"
        return Unsupported(str(target), reason)
    args = [parse_fetch(text, name=name) for name, text in attach.fetch.items()]
    place = _fprobe(target, probe.maxactive) if fprobe else _kprobe(target, probe.maxactive)
    return defined(probe, attach, wanted, kernel, layout_id, max_series, args, place)


def user_spec(
    probe: Probe, attach: Attach, wanted: set[str], kernel: Kernel, layout_id: int, max_series: int
) -> ProbeSpec | Unsupported:
    """Return the same for a uprobe or uretprobe: one line in uprobe_events.

    Observed on Linux 6.1, 6.12 and 6.18, for both kinds:

    - The trigger that soft-enables an event (tracefs/probes.py) makes uprobe_profile count without events,
      and no filter narrows that count. So a probe that only counts is planned like a kprobe.
    - A uretprobe's hits are entries of its function. Before 6.13 the counter is a plain ``nhit++``, which
      may miss a hit when several CPUs hit it at once. Its hist triggers count returns instead: a call in
      which a process forks has one entry and two returns.
    - Misses and MAXACTIVE do not exist for it. ``caller`` is the address to which the function returns.
    - ``$stack`` is the stack pointer, which on x86-64 is 8 higher at the return than at the entry.
    - The kernel accepts wrong offsets: one within an instruction breaks the program, one outside the code is
      never hit. So every offset is checked against the file's code; one inside a function is trusted.
    """
    target = attach.target
    if (bare := without_kernel_stack(probe)) is None:
        return Unsupported(str(target), NO_STACK)
    try:
        code = kernel.locate(target)
        fetch = dict(attach.fetch)
        if "caller" in wanted:
            fetch[CALLER_ADDRESS] = _caller(target, code.machine)
        args = [_in_program(name, text, target, code.machine) for name, text in fetch.items()]
    except GrammarError as error:
        return Unsupported(str(target), error.message)
    place = (
        "uprobe_events",
        "r" if target.kind.is_return else "p",
        f"{code.path or target.path}:{code.offset:#x}",
    )
    spec = defined(bare, attach, wanted, kernel, layout_id, max_series, args, place)
    return spec if isinstance(spec, Unsupported) else in_file(spec, code.inode, code.path)


def without_kernel_stack(probe: Probe) -> Probe | None:
    """Return the probe as it is planned in a program; None if it is to have stacks of the kernel."""
    if not probe.user_stack and (probe.stack or probe.stacks is not None):
        return None
    return replace(probe, stack=False)


def in_file(spec: ProbeSpec, inode: tuple[int, int] | None, path: str | None) -> ProbeSpec:
    """Return the spec with the file's inode, and the ``path`` of a library that was named by its soname."""
    if path is None:
        return replace(spec, inode=inode)
    note = f"{parse_target(spec.target).path} is {path}"
    return replace(spec, inode=inode, because=f"{spec.because}; {note}", note=note)


def defined(
    probe: Probe,
    attach: Attach,
    wanted: set[str],
    kernel: Kernel,
    layout_id: int,
    max_series: int,
    fetched: list[FetchArg],
    place: tuple[str, str, str],
) -> ProbeSpec | Unsupported:
    """Return the probe at a ``place`` in the kernel or in a file: its definition's file, verb and place."""
    target, returns = attach.target, attach.target.kind.is_return
    by_tables = probe.aggregate == "kernel" and kernel.counts_tracepoints
    written = args = _event_args(fetched, probe, attach, wanted)
    if by_tables:
        returned = attach.returns if returns else None
        written = with_upper_halves(args, probe, returned, user=target.kind.in_file)
    if reason := too_many(len(written)):
        return Unsupported(str(target), reason)
    layout = Layout(
        layout_id,
        probe.name,
        probe.name,
        "return" if returns else "entry",
        target.symbol or f"{target.offset:#x}",
        tuple(layout_arg(arg, attach.read.get(arg.name)) for arg in args),
        attach.returns,
        stack=probe.stack,
        user_stack=probe.user_stack,
        user=target.kind.in_file,
        caller="caller" in wanted and not target.kind.in_file,
    )
    file, verb, where = place
    spec = described(attach, layout, file, verb, " ".join([where, *(arg.render() for arg in written)]))
    if by_tables:
        left_out = unlike(attach)
        keys = {name: key for name, key in argument_keys(written).items() if name not in left_out}
        return aggregated(spec, probe, where_all_are_there(attach), keys, {}, max_series)
    fprobe = target.kind in (Kind.FENTRY, Kind.FEXIT)
    uncounted = UNCOUNTED if fprobe and not kernel.counts_tracepoints else None
    reason = events_for(probe, attach, wanted) or uncounted
    return replace(spec, plan="events" if reason else "count", because=reason or COUNTED)


def too_many(args: int) -> str | None:
    """Return why an event cannot have so many arguments. Linux 6.1 drops further ones without an error."""
    if args <= MOST_ARGS:
        return None
    return f"with those that the agent adds it has {args} arguments, of {MOST_ARGS} at most: fetch less"


def described(
    attach: Attach, layout: Layout, file: str | None = None, verb: str = "", body: str = ""
) -> ProbeSpec:
    """Return the description of an event: without a ``file``, a tracepoint's own, still without a filter."""
    target, layout = attach.target, replace(layout, absent=attach.absent)
    return ProbeSpec(
        probe=layout.probe,
        kind=target.kind.value,
        target=str(target),
        symbol=layout.symbol,
        file=file,
        verb=verb,
        body=body,
        filter=attach.filter if file else None,
        layout=layout,
        system="" if file else target.system,
        event="" if file else target.event,
        stack=layout.stack,
    )


def _kprobe(target: Target, maxactive: int) -> tuple[str, str, str]:
    """Return the file, the verb and the probed place of a definition."""
    verb = f"r{maxactive}" if target.kind.is_return else "p"
    return "kprobe_events", verb, str(Symbol(target.symbol, target.module, target.offset))


def _fprobe(target: Target, maxactive: int) -> tuple[str, str, str]:
    """Return the same for an fprobe, which takes no module name (kernel/trace/trace_fprobe.c).

    An fprobe fires in every function of its name, whether or not the kprobes blacklist has it. It sees
    only the arguments, so no ``%REG``. Its event has the fields and the text of a kprobe or kretprobe.
    """
    if target.kind.is_return:
        return "dynamic_events", f"f{maxactive}", f"{target.symbol}%return"
    return "dynamic_events", "f", target.symbol


def _event_args(fetched: list[FetchArg], probe: Probe, attach: Attach, wanted: set[str]) -> list[FetchArg]:
    """Return all arguments of an event, in order: the fetched ones, the return value, the thread's name."""
    args = [*fetched]
    if attach.target.kind.is_return and attach.returns is not None and attach.returns.fetch is not None:
        args.append(parse_fetch(f"$retval:{attach.returns.fetch}", name="return"))
    if "comm" in wanted | filter_fields(attach.filter):
        args.append(parse_fetch("$comm:string", name="comm"))
    if probe.aggregate == "kernel":
        # Without a type, some kernels take one from BTF. How a key is read must be known beforehand, and
        # without hist triggers the agent adds up the same numbers.
        args = [
            replace(arg, type="x64") if arg.type is None and arg.value_kind == "int" else arg for arg in args
        ]
    # Strings go last, since their text may imitate the argument that follows.
    return sorted(args, key=lambda arg: arg.element_kind == "str")


def layout_arg(arg: FetchArg, reading: Reading | None = None) -> Arg:
    """Return the argument in the form of a layout.

    It is an address if it is fetched as x64, as BTF's pointers are, and arguments without a type. An event's
    ``format`` omits how an array prints, and which numbers are a char or a symbol.
    """
    kind: ArgKind = arg.element_kind
    omitted = arg.type if arg.type in ("char", "symbol") else ""
    if arg.count:
        kind = "texts" if kind == "str" else "bare"
        omitted = f"{arg.type or 'x64'}[{arg.count}]"
    address = kind in ("int", "bare") and arg.name != STACK_POINTER and arg.type in (None, "x64", "symbol")
    unsigned = arg.size * 8 if arg.value_kind == "int" and not (arg.count or arg.signed) else 0
    found = Arg(arg.name, kind, type=omitted, pointer=address and not arg.count, unsigned=unsigned)
    return found._replace(network=reading.network, guards=reading.guards) if reading else found


def _caller(target: Target, machine: str) -> str:
    """Return what to fetch for the address to which a function returns. Raises GrammarError.

    At its first instruction that is on the stack of x86-64, and in the register x30 of arm64. When it
    returns, the instruction pointer has it (handle_trampoline() of kernel/events/uprobes.c).
    """
    at_entry, at_return = CALLERS.get(machine, ("", ""))
    if not at_entry:
        raise GrammarError(f"where a function's caller is on {machine} is not known: leave 'caller' out")
    if target.kind.is_return:
        return at_return
    if target.offset:
        raise GrammarError("the caller is known only at a function's first instruction: leave 'caller' out")
    return at_entry


def _in_program(name: str, text: str, target: Target, machine: str) -> FetchArg:
    """Parse an argument, with a register in place of ``$argN``. Raises GrammarError.

    The kernel's own ``$argN`` works only in functions of the kernel.
    """
    found = parse_fetch(text, name=name)
    if not found.is_text and ARGUMENT.search(found.expression):
        arguments = f"the arguments in '{found.expression}' are"
        if target.kind.is_return:
            raise GrammarError(f"{arguments} gone when the function returns: fetch them on entry")
        if target.symbol and target.offset:
            raise GrammarError(f"{arguments} there only at a function's first instruction")
        found = replace(found, expression=in_registers(found.expression, machine))
    return parse_fetch(found.body, FetchSite("user", returns=target.kind.is_return), name=name)
