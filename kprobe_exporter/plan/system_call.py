"""The entry of a system call by a kprobe at its function, for a kernel without eprobes."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.event_format import EventFormat
from kprobe_exporter.grammar.fetch import FetchArg, parse_fetch
from kprobe_exporter.grammar.target import SYSTEM_CALL, SYSTEM_CALL_ENTRY, Kind, Target
from kprobe_exporter.model.records import COMMON
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan.function import function_spec
from kprobe_exporter.plan.kernel import Kernel
from kprobe_exporter.plan.typed import argument_of_system_call, in_registers

BY_KPROBE = "this kernel has no eprobes, so a kprobe reads the arguments"

FIELD = re.compile(r"\$([A-Za-z_]\w*)")


def function_of(target: Target) -> Target:
    """Return the function of the system call that a tracepoint ``sys_enter_NAME`` sees."""
    name = target.event.removeprefix(SYSTEM_CALL_ENTRY)
    return Target(Kind.KPROBE, symbol=f"{SYSTEM_CALL}{name}")


def entry_by_kprobe(
    probe: Probe,
    attach: Attach,
    form: EventFormat,
    used: Mapping[str, str],
    memory: Mapping[str, FetchArg],
    wanted: set[str],
    kernel: Kernel,
    layout_ids: Iterator[int],
    max_series: int,
) -> ProbeSpec | Unsupported:
    """Return a kprobe that reads the same as an eprobe on the tracepoint ``sys_enter_NAME`` does.

    ``used`` maps our names to the tracepoint's fields, and ``memory`` are the values to which they
    point. The fields are the arguments of the system call, in order.
    """
    function = function_of(attach.target)
    arguments = [name for name in form.fields if not name.startswith("__")]
    try:
        placed, _ = kernel.place(function)
        read = _reader(arguments, function.symbol, placed.symbol, kernel.machine)
        fetch = {name: read(f"${field}:{form.fields[field].fetch_type}") for name, field in used.items()}
        fetch |= {name: read(arg.body) for name, arg in memory.items()}
        fetch |= dict.fromkeys(attach.fetch.keys() - used.keys() - {"comm"}, "$comm:string")
    except (ProbeRefused, GrammarError) as error:
        return Unsupported(str(function), str(error).rstrip("."))
    here = Attach(placed, fetch, attach.filter, None, absent=attach.absent)
    known = {COMMON.get(name, name) for name in wanted | {*attach.fetch.keys() & {"comm"}}}
    found = function_spec(probe, here, known, kernel, next(layout_ids), max_series)
    if isinstance(found, Unsupported):
        return found._replace(target=str(function))
    layout = replace(found.layout, symbol=function.symbol)
    return replace(found, target=str(function), symbol=function.symbol, layout=layout, note=BY_KPROBE)


def _reader(arguments: list[str], name: str, function: str, machine: str | None) -> Callable[[str], str]:
    """Return what replaces the tracepoint's fields in a fetch argument by the ``function``'s arguments."""

    def number(found: re.Match[str]) -> str:
        if found[1] not in arguments:
            raise GrammarError(f"'{found[1]}' is not an argument of {name}: fetch it without strings")
        return f"$arg{arguments.index(found[1]) + 1}"

    def read(text: str) -> str:
        arg = parse_fetch(FIELD.sub(number, text))
        expression = argument_of_system_call(arg, name, function)
        return replace(arg, expression=in_registers(expression, machine) if machine else expression).body

    return read
