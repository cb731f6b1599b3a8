"""The facts that plans need about the running kernel, read before planning without installing anything."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.elf import locate, locate_usdt, matching_functions, matching_usdt
from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.expression import Need
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.typed import MACHINES, Prototypes, look_up
from kprobe_exporter.symbols.lists import SYMBOLS, attempt, symbols
from kprobe_exporter.symbols.resolve import Resolver, near_tracepoint, probe_name
from kprobe_exporter.tracefs.features import no_fprobes
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import KernelFiles, running_kernel
from kprobe_exporter.util.rooted_path import ProbedFiles

log = logging.getLogger(__name__)

USER_STACKS = "arch_stack_walk_user"
"""The function that follows a program's frame pointers (kernel/stacktrace.c); arm64's kernels lack it."""


def known_kernel(
    instance: Instance,
    probes: Iterable[Probe],
    resolver: Resolver,
    most: int,
    *,
    binary: bool,
    files: KernelFiles | None = None,
) -> Kernel:
    """Collect the facts of the kernel that these probes need. ``files`` are those of the running kernel."""
    files, probes = files or running_kernel(instance.files), list(probes)
    types = KernelTypes(files.btf, files.types)
    place = cache(partial(_place, resolver, most, instance.probed_files))
    return Kernel(
        instance.event_format,
        instance.counts_tracepoints(),
        binary,
        _prototypes(probes, place, types),
        place,
        partial(locate, files=instance.probed_files),
        partial(locate_usdt, files=instance.probed_files),
        no_fprobes=no_fprobes(files),
        machine=_machine(files),
        no_user_stacks=_no_user_stacks(probes, files),
        no_exit_codes=_no_exit_codes(files, binary=binary),
        near=partial(near_tracepoint, instance.files),
        types=types,
        eprobes=_reads_eprobes(files),
        joins=instance.files.exists("synthetic_events"),
    )


def _no_user_stacks(probes: Iterable[Probe], kernel: KernelFiles) -> str | None:
    """Return why the kernel records no stacks of programs; None if it does, or if no probe wants them.

    The option userstacktrace is there on every architecture, and does nothing where this function is not.
    """
    if not any(probe.user_stack or (probe.stacks is not None and probe.stacks.user) for probe in probes):
        return None
    found = attempt(lambda: symbols(kernel.blocks(SYMBOLS), {USER_STACKS.encode()}))
    if found is None or found:
        return None
    return (
        "this kernel cannot follow a program's stack (CONFIG_USER_STACKTRACE_SUPPORT): "
        "remove 'user: true' or -u"
    )


def _no_exit_codes(kernel: KernelFiles, *, binary: bool) -> str | None:
    """Return why the code of a thread's end is unknown; None if kprobe:do_exit shows it."""
    if not binary:
        return "exit codes are unknown where events are read as text: fetch '$arg1' at kprobe:do_exit"
    if kernel.tracefs.exists("kprobe_events"):
        return None
    return (
        "exit codes come from kprobe:do_exit, and this kernel was built without CONFIG_KPROBE_EVENTS: "
        "count the signals that end processes at tracepoint:signal:signal_deliver"
    )


def expanded(probes: Iterable[Probe], resolver: Resolver, most: int, programs: ProbedFiles) -> list[Probe]:
    """Replace each pattern by one probe per matching function or tracepoint, called NAME_FUNCTION.

    A pattern that matches nothing, or more than ``most``, stays; planning it reports why. The files of
    programs stay open in ``programs``.
    """
    found = list(probes)
    taken = {probe.name for probe in found}
    return [one for probe in found for one in _expanded(probe, resolver, most, programs, taken)]


def _expanded(
    probe: Probe, resolver: Resolver, most: int, programs: ProbedFiles, taken: set[str]
) -> Iterator[Probe]:
    first = probe.attach[0]
    targets: list[Target] = []
    if first.target.is_pattern and probe.enabled:
        try:
            targets = _matching(resolver, most, programs, first.target)
        except (ProbeRefused, GrammarError) as error:
            log.debug("%s: %s", probe.name, error)
    if not targets:
        yield probe
    for target in targets:
        name = probe_name(probe.name, target.event or target.symbol, taken)
        yield replace(probe, name=name, attach=(_at(first, target),))


def _at(attach: Attach, target: Target) -> Attach:
    """Return the same alternative, attached to one of the targets of its pattern."""
    if attach.end is None:
        return replace(attach, target=target)
    enter, leave = target.halves
    [begin] = attach.begins
    begins, end = (replace(begin, target=enter),), replace(attach.end, target=leave)
    return replace(attach, target=target, begins=begins, end=end)


def _matching(resolver: Resolver, most: int, programs: ProbedFiles, target: Target) -> list[Target]:
    """Return the matches of a pattern. Raises ProbeRefused and GrammarError."""
    if target.kind is Kind.USDT:
        return matching_usdt(target, most, programs)
    if target.kind.in_file:
        return matching_functions(target, most, programs)
    return resolver.matching(target, most)


def _place(resolver: Resolver, most: int, programs: ProbedFiles, target: Target) -> tuple[Target, str]:
    """Return where one target attaches. Raises ProbeRefused and GrammarError, also for a pattern that was not
    expanded.
    """
    if target.is_pattern:
        return _matching(resolver, most, programs, target)[0], ""
    return resolver.place(target)


def _machine(kernel: KernelFiles) -> str | None:
    """Return the machine if arguments must be read from registers: tracefs' README has no ``$argN``."""
    files = kernel.tracefs
    if not files.exists("README") or b"$arg<N>" in files.read("README"):
        return None
    return MACHINES.get(kernel.machine, kernel.machine)


def _reads_eprobes(kernel: KernelFiles) -> bool:
    """Return whether tracefs' README knows eprobes (since 5.15). A kernel that knows them may lack them."""
    files = kernel.tracefs
    return not files.exists("README") or Need.EPROBE.encode() in files.read("README")


def _prototypes(
    probes: Iterable[Probe], place: Callable[[Target], tuple[Target, str]], types: KernelTypes
) -> Prototypes:
    """Return the prototypes that BTF has of the functions, under their names in this kernel."""
    try:
        return look_up(_placed(probes, place), types.prototypes)
    except GrammarError as error:
        log.warning("%s: types are as they would be without it", error.message)
        return {}


def _placed(probes: Iterable[Probe], place: Callable[[Target], tuple[Target, str]]) -> Iterator[Attach]:
    for one in (one for probe in probes for attach in probe.attach for one in attach.single):
        with suppress(ProbeRefused):
            yield replace(one, target=place(one.target)[0])
