"""The loops of ``--json``, ``--count`` and calls in text: they read pages, write lines and draw the table."""

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from kprobe_exporter.config.model import Probe
from kprobe_exporter.errors import TracefsError, counted
from kprobe_exporter.model.records import Batch, Layout
from kprobe_exporter.symbols.programs import Programs
from kprobe_exporter.trace.capture import Capture, collected, each_event
from kprobe_exporter.trace.count import ProbeCounts, TraceCounts, counting
from kprobe_exporter.trace.facts import FactsOf, ProcessFacts, fact_reader, facts_of, labels_of_facts
from kprobe_exporter.trace.objects import ShowAs
from kprobe_exporter.trace.output import Gone, Output
from kprobe_exporter.trace.record_lines import Lines, Show, name_programs
from kprobe_exporter.trace.record_text import HEADER, show_line
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.table import columns, draw
from kprobe_exporter.tracefs.poller import counted_by_trigger, read_counts
from kprobe_exporter.tracefs.profile import buffer_stats

log = logging.getLogger(__name__)

TURN = 0.1
"""Seconds between two reads at most: poll wakes only when a CPU's buffer is half full."""

REDRAW = 1.0


def write_lines(session: TraceSession, probes: Sequence[Probe], title: str, *, header: bool) -> int:
    """Write each event as a line in the kernel's style; return the number of lost events."""
    out, seconds = session.out, session.seconds

    def started() -> None:
        out.say(f"Tracing {title}{'. Ctrl-C to end.' if seconds is None else f' for {seconds:g} seconds...'}")
        if header:
            out.say(HEADER)

    def show_as(event: str, layout: Layout, kind: str, target: str, facts: FactsOf | None) -> Show:
        return show_line(event, layout)

    lost = write_events(session, probes, show_as, stacks=False, started=started)
    with suppress(Gone):
        out.say("\nEnding tracing...")
    return lost


def write_events(
    session: TraceSession,
    probes: Sequence[Probe],
    show_as: ShowAs,
    *,
    stacks: bool,
    user_stacks: bool = False,
    started: Callable[[], None] = lambda: None,
) -> int:
    """Write each event, as ``show_as`` has it, with one kind of stack; return the number of lost events.

    An event comes with the facts of its process that the labels of its probe show.
    """
    lines = Lines(session.out.write_raw, stacks=stacks or user_stacks)
    wanted = [each_event(probe, stacks=stacks, user_stacks=user_stacks) for probe in probes]
    programs = ProgramStacks(Programs)
    facts = ProcessFacts(facts_of(label for probe in wanted for label in probe.labels))

    def consume(batch: Batch) -> None:
        name_programs(programs, batch)
        lines.consume(batch)

    with (
        closing(programs),
        collected(session, wanted, consume, single=True, all_fields=True, facts=facts) as capture,
    ):
        for plan, attached in zip(capture.plans, capture.attached, strict=True):
            spec = attached.spec
            names = [label.name for label in labels_of_facts(plan.probe.labels)]
            shown = fact_reader(names, facts.of) if names else None
            show = show_as(plan.probe.name, attached.layout, spec.kind, spec.target, shown)
            lines.add(attached.layout, show, attached.residual_filter)
        with suppress(Gone):
            run_until_end(session, capture, lambda passed: None, started=started)
            lines.finish()
        stats = buffer_stats(session.instance.files, session.instance.path)
    return stats.overrun + stats.dropped


def show_counts(
    session: TraceSession, probes: Sequence[Probe], title: str, *, narrowed: bool, each: bool
) -> None:
    """Draw the table each second on a terminal, elsewhere once, at the end.

    ``narrowed``: count the events that pass a filter, not each hit. ``each``: only some threads are
    traced, so every event has to be recorded.
    """
    counts = TraceCounts(title, narrowed)
    wanted = [counting(probe, narrowed=each) for probe in probes]
    screen = Screen(session.out)
    with collected(session, wanted, counts.consume) as capture:
        counts.attach(capture)

        def redraw(passed: float, *, last: bool = False) -> None:
            read_hits(session, capture, counts)
            table = counts.table(passed, last=last)
            if session.out.terminal or last:
                width, height = screen.size() or (max(100, columns(table) + 1) - 1, 999)
                screen.draw(draw(table, width, height, color=wants_color(session.out)))

        with suppress(Gone):
            redraw(run_until_end(session, capture, redraw), last=True)


def read_hits(session: TraceSession, capture: Capture, counts: ProbeCounts) -> None:
    """Have the kernel's counts taken over. Raises TracefsError."""
    try:
        kernel = read_counts(session.instance, capture.parts)
        counts.update(kernel, counted_by_trigger(capture.parts))
    except OSError as error:
        raise TracefsError(f"the kernel's counts cannot be read: {error.strerror}.") from None


class Screen:
    """Writes blocks of lines; on a terminal each ``over`` the previous one."""

    def __init__(self, out: Output, *, over: bool = True) -> None:
        self._out, self._over = out, over and out.terminal
        self._lines = 0

    def size(self) -> tuple[int, int] | None:
        """Return the columns and the lines that a block may have on a terminal; None elsewhere."""
        if not self._out.terminal:
            return None
        width, height = shutil.get_terminal_size()
        return max(20, width - 1), max(4, height - 1)

    def draw(self, lines: Sequence[str]) -> None:
        up = f"\x1b[{self._lines}A" if self._lines else ""
        over = f"\r{up}\x1b[J" if self._over else ""
        self._out.write_raw((over + "".join(f"{line}\n" for line in lines)).encode(errors="backslashreplace"))
        self._lines = len(lines)


def run_until_end(
    session: TraceSession,
    capture: Capture,
    every_interval: Callable[[float], None],
    paused: Callable[[], None] = lambda: None,
    interval: float | None = REDRAW,
    started: Callable[[], None] = lambda: None,
    before_pause: Callable[[], None] = lambda: None,
) -> float:
    """Enable, read until the session ends, disable, read the rest; return the seconds it was enabled.

    ``started`` is called once events are recorded, ``before_pause`` while they still are, at the end.
    ``paused`` is called when nothing is recorded any more, and the kernel's hist triggers still are there.
    """
    seconds, out = session.seconds, session.out
    capture.enable()
    for plan, attached in zip(capture.plans, capture.attached, strict=True):
        log.info("%s is traced at %s: %s", plan.probe.name, attached.spec.target, attached.spec.because)
    log.info("%s traced", counted(len(capture.attached), "probe"))
    started()
    session.begin()
    begun = time.monotonic()
    drawn = passed = 0.0
    while not out.stop.is_set() and (seconds is None or passed < seconds):
        ends = [] if interval is None else [drawn + interval]
        ends += [] if seconds is None else [seconds]
        left = min([TURN, *(end - passed for end in ends)])
        out.stop.wait_for(capture.pipe.descriptors if capture.pipe else (), left, out.watched)
        if capture.pipe is not None:
            capture.pipe.empty(last=False)
        session.look()
        passed = time.monotonic() - begun
        ending = seconds is not None and passed >= seconds
        if interval is not None and passed - drawn >= interval and not ending:
            every_interval(passed)
            drawn += interval * ((passed - drawn) // interval)
    before_pause()
    for attached in capture.attached:
        attached.pause()
    paused()
    for attached in capture.attached:
        attached.disable()
    passed = time.monotonic() - begun
    if capture.pipe is not None:
        capture.pipe.empty(last=True)
    return passed


def wants_color(out: Output) -> bool:
    """Whether the table may be coloured (https://no-color.org)."""
    return out.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
