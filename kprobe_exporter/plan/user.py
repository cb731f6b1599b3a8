"""A uprobe or uretprobe: one line in uprobe_events.

Observed on Linux 6.1, 6.12 and 6.18, for both kinds:

- The trigger that soft-enables an event (tracefs/probes.py) makes uprobe_profile count without events,
  and no filter narrows that count. So a probe that only counts is planned like a kprobe.
- A uretprobe's hits are entries of its function. Before 6.13 the counter is a plain ``nhit++``, which
  may miss a hit when several CPUs hit it at once.
- There are no misses and no MAXACTIVE. ``caller`` is unknown: a return has an address in a program.
- ``$stack`` is the stack pointer, which on x86-64 is 8 higher at the return than at the entry.
- The kernel accepts wrong offsets: one within an instruction breaks the program, one outside the code is
  never hit. So every offset is checked against the file's code; one inside a function is trusted.
"""

from collections.abc import Callable
from dataclasses import replace

from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.elf import Code
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.expression import FetchSite
from kprobe_exporter.grammar.fetch import FetchArg, parse_fetch
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.model.values import Layout, ProbeSpec, Unsupported
from kprobe_exporter.plan.function import event_args, layout_args
from kprobe_exporter.plan.kernel import NO_HIST, aggregated, argument_keys, with_upper_halves
from kprobe_exporter.plan.metric import COUNTED, events_for
from kprobe_exporter.plan.registers import ARGUMENT, in_registers


def user_spec(
    probe: Probe,
    attach: Attach,
    wanted: set[str],
    layout_id: int,
    max_series: int,
    *,
    hist: bool,
    locate: Callable[[Target], Code],
) -> ProbeSpec | Unsupported:
    """Return the probe definition and the layout of its events, as ``function_spec`` does.

    ``locate`` finds the place in the file, and raises GrammarError where there is none.
    """
    target = attach.target
    if probe.aggregate == "kernel" and not hist:
        return Unsupported(str(target), NO_HIST)
    if probe.stack:
        return Unsupported(
            str(target), "stack: true is the kernel's stack, and there is none behind a program's code"
        )
    is_return = target.kind is Kind.URETPROBE
    try:
        code = locate(target)
        args = [_fetched(name, text, target, code.machine) for name, text in attach.fetch.items()]
    except GrammarError as error:
        return Unsupported(str(target), error.message)
    args = event_args(args, probe, attach, wanted, is_return=is_return)
    written = with_upper_halves(args, probe, attach.returns if is_return else None)
    because = events_for(probe, attach, wanted)
    symbol = target.symbol or f"{target.offset:#x}"
    made = ProbeSpec(
        probe=probe.name,
        kind=target.kind.value,
        target=str(target),
        symbol=symbol,
        file="uprobe_events",
        verb="r" if is_return else "p",
        body=" ".join([f"{target.path}:{code.offset:#x}", *(arg.render() for arg in written)]),
        filter=attach.filter,
        layout=Layout(
            layout_id,
            probe.name,
            probe.name,
            "return" if is_return else "entry",
            symbol,
            layout_args(args),
            attach.returns,
            user=True,
        ),
        plan="events" if because else "count",
        because=because or COUNTED,
        inode=code.inode,
    )
    if probe.aggregate != "kernel":
        return made
    return aggregated(made, probe, attach.filter, argument_keys(written), {}, max_series)


def _fetched(name: str, text: str, target: Target, machine: str) -> FetchArg:
    """Parse an argument, with a register in place of ``$argN``. Raises GrammarError.

    The kernel's own ``$argN`` works only in functions of the kernel.
    """
    found = parse_fetch(text, name=name)
    if not found.is_text and ARGUMENT.search(found.expression):
        found = replace(found, expression=_in_registers(found.expression, target, machine))
    return parse_fetch(found.body, FetchSite("user", returns=target.kind is Kind.URETPROBE), name=name)


def _in_registers(expression: str, target: Target, machine: str) -> str:
    if target.kind is Kind.URETPROBE:
        raise GrammarError(
            f"the arguments in '{expression}' are gone when the function returns: fetch them on entry"
        )
    if target.symbol and target.offset:
        raise GrammarError(
            f"the arguments in '{expression}' are there only at a function's first instruction"
        )
    return in_registers(expression, machine)
