"""Choosing the source that reads this kernel's events, and setting it up."""

import logging
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from kprobe_exporter.config.model import Settings
from kprobe_exporter.errors import GrammarError, TracefsError
from kprobe_exporter.identity.threads import Threads
from kprobe_exporter.model.aggregation import Recipe, RecordFilter
from kprobe_exporter.model.joins import Joins
from kprobe_exporter.model.record_layout import Geometry, Shape
from kprobe_exporter.model.records import Batch, Layout
from kprobe_exporter.model.stacks import StackTally
from kprobe_exporter.plan.shape import geometry, shape, stacks
from kprobe_exporter.source.binary import BinaryPipe
from kprobe_exporter.source.reader import Pipe
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.thread_ids import OwnThreads

try:
    from kprobe_exporter.source._pages import PageParser
except ImportError as error:
    raise ImportError(
        f"the event engine is not compiled here: {error} (run 'make run', or install gcc and Python's headers"
        " and then the package)"
    ) from error

log = logging.getLogger(__name__)

Filters: TypeAlias = Mapping[int, RecordFilter]

NO_JOINS = Joins()


TRAMPOLINES = (b"arch_rethook_trampoline", b"__kretprobe_trampoline", b"kretprobe_trampoline")
"""Two return probes on one function: one of them sees such a return address, and its caller is unknown."""


class KernelNames:
    """The names of threads and functions, for the parser of pages. The reader's thread owns it.

    ``function`` returns the function at an address, ``symbol`` the address as the kernel prints it; None if
    it is unknown or if this process may not see addresses.
    """

    def __init__(self, threads: Threads, symbols: Symbols) -> None:
        visible = symbols.visible()
        self.function: Callable[[int], bytes | None] = symbols.name if visible else lambda _: None
        self.symbol: Callable[[int], bytes | None] = symbols.text if visible else lambda _: None
        self.tgid = threads.tgid
        self.comm = threads.comm

    def caller(self, address: int) -> bytes | None:
        """Return the function at a return address, None if that is the trampoline of another return probe."""
        name = self.function(address)
        return None if name in TRAMPOLINES else name


class EventSource(NamedTuple):
    """How events are read: as pages of ``geometry``, or as text if it is None, for the reason ``because``.

    The events of ``own_threads`` are discarded, unless an interrupt made them.
    """

    geometry: Geometry | None
    because: str = ""
    own_threads: Callable[[], Collection[int]] = tuple


def set_up(
    instance: Instance, settings: Settings, symbols: Symbols, *, stacks_wanted: bool
) -> tuple[EventSource, int]:
    """Set up the instance; return how to read it, and its buffer's KiB per CPU. Raises TracefsError."""
    cpus = max(1, len(instance.files.names(f"{instance.path}/per_cpu")))
    buffer_kib = max(4, min(settings.buffer_size, settings.buffer_total // cpus) // 1024)
    instance.set_up(buffer_kib, record_tgid=False)
    event_source = choose(instance, settings, symbols.visible, stacks_wanted=stacks_wanted)
    if event_source.geometry is None:
        log.info("events are read as text: %s", event_source.because)
        _exclude_in_kernel(instance)
        return event_source, buffer_kib
    try:
        own_threads = OwnThreads(instance, instance.own_tid())
    except OSError as error:
        log.warning(
            "events in interrupts are not counted while a thread of the agent runs: in a PID namespace this "
            "kernel does not list the agent's threads (%s); use the host's (hostPID: true, --pid host)",
            error,
        )
        _exclude_in_kernel(instance)
        return event_source, buffer_kib
    return event_source._replace(own_threads=own_threads), buffer_kib


def _exclude_in_kernel(instance: Instance) -> None:
    if not instance.exclude_own_threads():
        log.warning("this kernel cannot keep the agent's own threads out of its events")


def choose(
    instance: Instance, settings: Settings, visible: Callable[[], bool], *, stacks_wanted: bool
) -> EventSource:
    """Choose before any probe is planned. Raises TracefsError if 'binary' is configured but impossible.

    ``visible`` tells whether this process may see the addresses of the kernel's functions.
    """
    if settings.source == "text":
        return EventSource(None, "global.source is 'text'")
    try:
        page, event = (instance.read(f"events/{name}").decode() for name in ("header_page", "header_event"))
        found = EventSource(geometry(page, event))
    except (OSError, GrammarError) as error:
        found = EventSource(None, f"this kernel's pages cannot be read: {error}")
    if found.geometry and stacks_wanted and not visible():
        found = EventSource(None, "stacks are asked for, and this process may not see the kernel's symbols")
    if found.geometry is None and settings.source == "binary":
        raise TracefsError(f"global.source is 'binary', but {found.because}: set it to 'auto'.")
    return found


def unreadable(instance: Instance, event_source: EventSource, system: str, layout: Layout) -> str | None:
    """Return, as a clause, why an installed probe's events cannot be read in this way; None if they can."""
    if event_source.geometry is None:
        return None
    try:
        if (text := instance.event_format(system, layout.event)) is None:
            raise GrammarError(f"the event {system}/{layout.event} has no format that can be read")
        shape(layout, text)
    except GrammarError as error:
        return f"{error.message}: with global.source 'text' its events may be readable"
    # Only a reload can get here: at the start, choose() takes text in this case.
    if layout.stack and not Symbols(instance.files).visible():
        return (
            "its stacks are asked for, and this process may not see the kernel's symbols: restart the agent"
        )
    return None


def read_files(
    instance: Instance,
    geometry: Geometry,
    pages: Mapping[int, int],
    layouts: Mapping[Layout, str],
    filters: Filters,
    names: KernelNames,
    deliver: Callable[[Batch], None],
) -> None:
    """Deliver all records of pages that were copied from an instance, single events in the order of time.

    ``pages`` are descriptors of files by CPU, ``layouts`` map to the systems of their events. An event that
    is gone or redefined is omitted.
    """
    shapes = []
    for layout, system in layouts.items():
        with suppress(GrammarError):
            if (text := instance.event_format(system, layout.event)) is not None:
                shapes.append(shape(layout, text))
    formats = (instance.event_format("ftrace", name) for name in ("kernel_stack", "user_stack"))
    parser = PageParser(geometry, shapes, names, stacks(*formats), True, {}, filters, NO_JOINS)
    most = max((os.fstat(file).st_size // geometry.page for file in pages.values()), default=0)
    BinaryPipe(pages, parser, deliver, 1 + most, geometry.page).empty(last=True)


class BufferReader:
    """The ring buffer of an instance, open for reading, and its parser, which changes at each reload.

    The reader's thread owns ``pipe``. The thread that changes probes calls ``prepare``, and the reader's
    thread calls the function that it returns. At first no layout is known. Raises TracefsError if the
    kernel refuses reading.
    """

    def __init__(
        self, instance: Instance, event_source: EventSource, deliver: Callable[[Batch], None], buffer_kib: int
    ) -> None:
        self._instance = instance
        self._geometry = event_source.geometry
        self._threads = Threads(instance.files, searches=self._geometry is not None)
        self.thread_started = self._threads.started
        self._shapes: dict[Layout, tuple[str, Shape]] = {}  # each with its format text
        self._adopt_text: (
            Callable[[Mapping[Layout, str], Filters, Mapping[int, Recipe]], Callable[[], None]] | None
        ) = None
        self._pages: BinaryPipe | None = None
        self.pipe: Pipe
        if self._geometry is None:
            # Imported here, as an agent that reads pages never needs them: no reload changes the source.
            from kprobe_exporter.source.lines import LineParser, TextPipe  # noqa: PLC0415

            self.pipe = pipe = TextPipe(instance.open_pipe(), LineParser(), deliver)
            tgid = self._threads.tgid
            self._adopt_text = lambda layouts, filters, recipes: partial(
                pipe.adopt, LineParser(layouts, filters, recipes, tgid)
            )
            return
        page = self._geometry.page
        formats = (instance.event_format("ftrace", name) for name in ("kernel_stack", "user_stack"))
        self._stacks = stacks(*formats)
        # It knows stacks, as their trigger acts from when it is attached, before its event is enabled.
        names = KernelNames(self._threads, Symbols(instance.files))
        empty_parser = PageParser(self._geometry, (), names, self._stacks)
        budget = 2 + 2 * buffer_kib * 1024 // page
        self.pipe = self._pages = BinaryPipe(
            instance.open_raw(),
            empty_parser,
            deliver,
            budget,
            page,
            own_threads=event_source.own_threads,
        )

    @property
    def adds_up(self) -> bool:
        """Whether recipes and joins are followed, and choices made. If not, all records are delivered."""
        return self._pages is not None

    def prepare(
        self,
        symbols: Symbols,
        layouts: Mapping[Layout, str],
        recipes: Mapping[int, Recipe],
        filters: Filters,
        joins: Joins = NO_JOINS,
        *,
        tgid: bool,
        of_all_threads: Collection[int] = (),
        of_threads: Collection[Layout] = (),
    ) -> Callable[[], None]:
        """Make the parser of these layouts. The function that is returned puts it in place of the old one.

        ``layouts`` map to the systems of their events, ``recipes`` and ``filters`` are by layout_id. An event
        that another process deleted or redefined keeps its old shape or is omitted; the others are read all
        the same. A parser that does not add up or join delivers the records of recipes and joins instead.
        Events of the agent's own threads are read of the layouts ``of_all_threads`` alone. The layouts
        ``of_threads`` are those of the second instance, whose events no other layout of the same event has.
        """
        if self._adopt_text is not None:
            return self._adopt_text(layouts, filters, recipes)
        assert self._pages is not None
        assert self._geometry is not None
        found = {layout: self._shape(layout, system) for layout, system in layouts.items()}
        self._shapes = {layout: known for layout, known in found.items() if known is not None}
        names = KernelNames(self._threads, symbols)
        shapes = [
            shape._replace(of_threads=layout in of_threads) for layout, (_, shape) in self._shapes.items()
        ]
        parser = PageParser(
            self._geometry, shapes, names, self._stacks, tgid, recipes, filters, joins, of_all_threads
        )
        threads = self._instance.threads
        return partial(self._pages.adopt, parser, threads.pipes if threads is not None else None)

    def open_stacks(self, layout_id: int) -> tuple[list[StackTally], int]:
        """Return the stacks of what is outstanding of a join, and the number of those without one."""
        return self._pages.open_stacks(layout_id) if self._pages is not None else ([], 0)

    def drop(self, layout_id: int) -> None:
        """Drop the first halves that are open in the source, of the join with this joined layout."""
        if self._pages is not None:
            self._pages.drop(layout_id)

    def _shape(self, layout: Layout, system: str) -> tuple[str, Shape] | None:
        """Read the format each time: a definition that another process deleted returns with another id."""
        known = self._shapes.get(layout)
        text = self._instance.event_format(system, layout.event)
        if text is None or (known is not None and known[0] == text):
            return known
        try:
            return text, shape(layout, text)
        except GrammarError as error:
            log.warning("%s: its events are not counted until it is what it was", error.message)
            return known
