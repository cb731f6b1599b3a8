"""Checks a request against the kernel's lists and a file's symbols, before anything is installed."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.elf import locate, locate_usdt
from kprobe_exporter.errors import GrammarError, ProbeRefused, UsageError, sentence
from kprobe_exporter.grammar.definition import ProbeKind
from kprobe_exporter.grammar.fetch import parse_fetch
from kprobe_exporter.grammar.place import FileOffset, Symbol
from kprobe_exporter.grammar.target import Kind, Target, is_system_call
from kprobe_exporter.plan.typed import argument_of_system_call
from kprobe_exporter.plan.usdt import readable_arguments
from kprobe_exporter.symbols.functions import SILENT, Functions
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.symbols.resolve import Resolver, near_tracepoint, tracepoint_named
from kprobe_exporter.trace.request import TraceRequest
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.util.rooted_path import ProbedFiles


class ResolvedRequest(NamedTuple):
    """The request at its place in this kernel, and sentences for the user, shown before the trace starts.

    ``warnings`` say that the probe will never fire. ``notes`` say how it differs from what was written.
    ``refused`` says why the kernel will not accept it; None if no reason is known.
    """

    request: TraceRequest
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    refused: str | None = None


def resolve(
    request: TraceRequest,
    files: MountedTracefs,
    root: Path = Path("/"),
    probed_files: ProbedFiles | None = None,
) -> ResolvedRequest:
    """Find the place to attach to. Raises UsageError for a function that is not in its file.

    The file stays open in ``probed_files``.
    """
    if request.target is not None and request.definition is not None:
        return ResolvedRequest(located(request, probed_files))
    if request.target is not None and request.target.kind is Kind.USDT and not request.target.is_pattern:
        return ResolvedRequest(_with_usdt_arguments(request, request.target, probed_files))
    _check_tracepoints(request, files)
    function = request.function
    if function is None:
        return ResolvedRequest(request)
    found = _function(request, function, files, root)
    if found.refused and (there := tracepoint_named(files, function.symbol)):
        return found._replace(refused=f"{found.refused} A tracepoint has this name: {there}.")
    return found


def located(request: TraceRequest, probed_files: ProbedFiles | None) -> TraceRequest:
    """Return the request at its offset in its file, if it names a function of a file. Raises UsageError."""
    if request.target is None or request.definition is None:
        return request
    place = request.definition.place
    assert isinstance(place, FileOffset)
    try:
        code = locate(request.target, probed_files)
    except GrammarError as error:
        raise UsageError(sentence(error.message)) from None
    return request.at(FileOffset(code.path or place.path, code.offset, place.ref_counter))


def _check_tracepoints(request: TraceRequest, files: MountedTracefs) -> None:
    """Raise ProbeRefused if the kernel has no tracepoint of that name."""
    target = request.target
    if target is None or target.is_pattern or not target.kind.on_event:
        return
    for half in target.halves if target.is_call else (target,):
        if not files.exists(f"events/{half.system}/{half.event}/format"):
            near = near_tracepoint(files, half.system, half.event)
            raise ProbeRefused(sentence(f"this kernel has no tracepoint {half.system}:{half.event}{near}"))


def _with_usdt_arguments(
    request: TraceRequest, target: Target, probed_files: ProbedFiles | None
) -> TraceRequest:
    """Fetch all arguments that the kernel can fetch, unless some are named. Raises UsageError."""
    try:
        found = locate_usdt(target, probed_files)
    except GrammarError as error:
        raise UsageError(sentence(error.message)) from None
    return request if request.fetch else replace(request, fetch=tuple(readable_arguments(found).items()))


def _function(request: TraceRequest, function: Target, files: MountedTracefs, root: Path) -> ResolvedRequest:
    """Find the place of a kernel function, and what the kernel's lists say about it."""
    try:
        target, note = Resolver.of(running_kernel(files, root)).place(function)
    except ProbeRefused as error:
        return ResolvedRequest(request, refused=f"{function.symbol}: {error}")
    notes = (f"{note}.",) if note else ()
    if target != function:
        place = Symbol(target.symbol, target.module, target.offset)
        request = replace(request, target=target) if request.definition is None else request.at(place)
        if is_system_call(function, target):
            request = _with_arguments(request, function.symbol, target.symbol)
    if request.definition is not None and request.definition.kind is ProbeKind.FPROBE:
        # The resolver has already refused functions that an fprobe cannot take.
        return ResolvedRequest(request, notes)
    functions = Functions(Lists.of(running_kernel(files, root)), [target.symbol])
    offset = target.offset if target.kind is Kind.KPROBE else 0  # a return is one of the whole function
    can, why = functions.answer(target.module, target.symbol, offset)
    said = sentence(f"{target.symbol}: {why}")
    if can is False:
        return ResolvedRequest(request, notes, refused=said)
    if target.symbol in SILENT:
        return ResolvedRequest(request, notes, warnings=(said,) if why else ())
    return ResolvedRequest(request, (*notes, said) if why else notes)


def _with_arguments(request: TraceRequest, name: str, function: str) -> TraceRequest:
    """Read the arguments of the system call ``name``. Raises UsageError."""
    try:
        if request.definition is None:
            read = ((key, parse_fetch(text)) for key, text in request.fetch)
            fetch = [
                (key, replace(arg, expression=argument_of_system_call(arg, name, function)).body)
                for key, arg in read
            ]
            return replace(request, fetch=tuple(fetch))
        args = [
            replace(arg, expression=argument_of_system_call(arg, name, function))
            for arg in request.definition.args
        ]
    except GrammarError as error:
        raise UsageError(sentence(error.message)) from None
    return replace(request, definition=replace(request.definition, args=tuple(args)))
