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

from dataclasses import replace

from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.expression import FetchSite
from kprobe_exporter.grammar.fetch import FetchArg, parse_fetch
from kprobe_exporter.grammar.target import Target
from kprobe_exporter.model.values import ProbeSpec, Unsupported
from kprobe_exporter.plan.function import defined
from kprobe_exporter.plan.kernel import NO_HIST, Kernel
from kprobe_exporter.plan.typed import ARGUMENT, in_registers


def user_spec(
    probe: Probe, attach: Attach, wanted: set[str], kernel: Kernel, layout_id: int, max_series: int
) -> ProbeSpec | Unsupported:
    """Return the probe definition and the layout of its events, as ``function_spec`` does."""
    target = attach.target
    if probe.aggregate == "kernel" and not kernel.counts_tracepoints:
        return Unsupported(str(target), NO_HIST)
    if probe.stack:
        return Unsupported(
            str(target), "stack: true is the kernel's stack, and there is none behind a program's code"
        )
    try:
        code = kernel.locate(target)
        args = [_fetched(name, text, target, code.machine) for name, text in attach.fetch.items()]
    except GrammarError as error:
        return Unsupported(str(target), error.message)
    place = "uprobe_events", "r" if target.kind.is_return else "p", f"{target.path}:{code.offset:#x}"
    spec = defined(probe, attach, wanted, layout_id, max_series, args, place)
    return spec if isinstance(spec, Unsupported) else replace(spec, inode=code.inode)


def _fetched(name: str, text: str, target: Target, machine: str) -> FetchArg:
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
