"""A USDT probe: one event at all of its places in a program, with the arguments that its notes tell."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kprobe_exporter.config.model import NO_STACK, Attach, Probe
from kprobe_exporter.elf import UsdtProbe, UsdtSite
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.expression import FetchSite
from kprobe_exporter.grammar.fetch import FetchArg, parse_fetch
from kprobe_exporter.grammar.usdt_argument import UsdtArgument, parse_usdt_arguments
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan.function import defined, in_file, without_kernel_stack
from kprobe_exporter.plan.kernel import Kernel
from kprobe_exporter.plan.typed import ARGUMENT

ADDRESS = 8  # Bytes of an address in the programs whose registers are known


def usdt_spec(
    probe: Probe, attach: Attach, wanted: set[str], kernel: Kernel, layout_id: int, max_series: int
) -> ProbeSpec | Unsupported:
    """Return one event with a definition for each place of the probe, all in uprobe_events.

    The definition gives the kernel the place of the probe's semaphore. The kernel adds 1 to it in each
    process that maps the file while the event is enabled, and subtracts it afterwards (update_ref_ctr() of
    kernel/events/uprobes.c). So nothing here writes to a program's memory.

    The kernel joins definitions to one event only if their arguments have the same names and types
    (trace_probe_compare_arg_type() of kernel/trace/trace_probe.c).
    """
    target = attach.target
    if (bare := without_kernel_stack(probe)) is None:
        return Unsupported(str(target), NO_STACK)
    try:
        found = kernel.locate_usdt(target)
        places = _fetched(found, attach.fetch)
    except GrammarError as error:
        return Unsupported(str(target), error.message)
    specs: list[ProbeSpec] = []
    for site, args in zip(found.sites, places, strict=True):
        place = "uprobe_events", "p", _place(found.path or target.path, site)
        spec = defined(bare, attach, wanted, kernel, layout_id, max_series, args, place)
        if isinstance(spec, Unsupported):
            return spec
        specs.append(spec)
    first, *others = specs
    return replace(in_file(first, found.inode, found.path), more=tuple(other.body for other in others))


def readable_arguments(found: UsdtProbe) -> dict[str, str]:
    """Return what to fetch for the arguments that the kernel can fetch at all places: ``arg1`` and so on."""
    most = min(len(parse_usdt_arguments(site.arguments, found.machine)) for site in found.sites)
    fetch = {f"arg{number}": f"$arg{number}" for number in range(1, most + 1)}
    return {name: text for name, text in fetch.items() if _is_readable(found, name, text)}


def _is_readable(found: UsdtProbe, name: str, text: str) -> bool:
    try:
        _fetched(found, {name: text})
    except GrammarError:
        return False
    return True


def _place(path: str, site: UsdtSite) -> str:
    counter = "" if site.counter is None else f"({site.counter:#x})"
    return f"{path}:{site.offset:#x}{counter}"


def _fetched(found: UsdtProbe, fetch: Mapping[str, str]) -> list[list[FetchArg]]:
    """Return the arguments at each place. Raises GrammarError."""
    sites = [parse_usdt_arguments(site.arguments, found.machine) for site in found.sites]
    by_name = [
        _Fetch(name, text, parse_fetch(text, name=name), sites).places() for name, text in fetch.items()
    ]
    return [[places[number] for places in by_name] for number in range(len(sites))]


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One entry of ``fetch``, to be read at all ``sites``, of which each has its own arguments."""

    name: str
    text: str
    arg: FetchArg
    sites: Sequence[Sequence[UsdtArgument]]

    def places(self) -> list[FetchArg]:
        """Return the argument at each place, everywhere with the same type. Raises GrammarError."""
        if self.arg.is_text or not ARGUMENT.search(self.arg.expression):
            return [parse_fetch(self.text, FetchSite("user"), name=self.name)] * len(self.sites)
        whole = ARGUMENT.fullmatch(self.arg.expression)
        type_ = self._type([self._argument(whole, site) for site in self.sites]) if whole else self.arg.type
        args = [
            replace(self.arg, expression=self._expression(site, as_address=not whole), type=type_)
            for site in self.sites
        ]
        return [parse_fetch(arg.body, FetchSite("user"), name=self.name) for arg in args]

    def _argument(self, found: re.Match[str], site: Sequence[UsdtArgument]) -> UsdtArgument:
        number = int(found[1])
        if not 1 <= number <= len(site):
            has = f"arguments up to $arg{len(site)}" if site else "no arguments"
            raise GrammarError(f"the USDT probe has {has}, and no {found[0]} (for '{self.name}')")
        return site[number - 1]

    def _expression(self, site: Sequence[UsdtArgument], *, as_address: bool) -> str:
        def operand(found: re.Match[str]) -> str:
            argument = self._argument(found, site)
            place = argument.fetched()
            if as_address and argument.size != ADDRESS:
                raise GrammarError(
                    f"{found[0]} has {argument.size} bytes ('{argument.text}'), so it is not an address (for "
                    f"'{self.name}')"
                )
            return place.expression

        return ARGUMENT.sub(operand, self.arg.expression)

    def _type(self, args: Sequence[UsdtArgument]) -> str:
        """Return the type in which the argument is read at all places. Raises GrammarError.

        The compiler may know the value at some of them: a constant has any type that can hold it.
        """
        variable = [one for one in args if one.fetched().constant is None]
        written = self.arg
        if written.type is not None:
            if wider := next((one for one in variable if one.size < written.size), None):
                raise GrammarError(
                    f"{written.expression} has {wider.size} bytes ('{wider.text}'), and {written.type} would "
                    f"read more (for '{self.name}')"
                )
            return written.type
        types = _unique(one.type for one in variable or args)
        if len(types) > 1 or not all(_holds(types[0], one) for one in args):
            listed = " and ".join(_unique(one.type for one in args))
            narrowest = f"{written.expression}:{min(variable or args, key=lambda one: one.size).type}"
            raise GrammarError(
                f"{written.expression} has the types {listed} at different places of the probe: choose one, "
                f"such as {narrowest} (for '{self.name}')"
            )
        return types[0]


def _unique(types: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(types))


def _holds(type_: str, argument: UsdtArgument) -> bool:
    """Whether the constant that an argument is has this type's range; true for one that is not a constant."""
    value, bits = argument.fetched().constant, int(type_[1:])
    if value is None:
        return True
    low, high = (-(1 << bits - 1), 1 << bits - 1) if type_[0] == "s" else (0, 1 << bits)
    return low <= value < high
