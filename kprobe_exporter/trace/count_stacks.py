"""The stacks of a trace: counted until it ends, then written as a flame graph or as folded text."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from kprobe_exporter.aggregate.program_stacks import MOST_WAITING, ProgramStacks
from kprobe_exporter.aggregate.recorded_stacks import RecordedStacks
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.stack_counts import StackCounts, StackDeltas
from kprobe_exporter.config.model import Probe, Stacks
from kprobe_exporter.errors import TracefsError, counted, one_line
from kprobe_exporter.export.stacks.flame_graph import flame_graph
from kprobe_exporter.export.stacks.folded import folded
from kprobe_exporter.identity.procfs import HOST_IDS, host_proc
from kprobe_exporter.model.records import Batch, Join
from kprobe_exporter.model.stacks import Profile, StackLoss
from kprobe_exporter.symbols.programs import Programs
from kprobe_exporter.trace.capture import Capture, collected
from kprobe_exporter.trace.loops import run_until_end
from kprobe_exporter.trace.output import Gone, Output
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.tracefs.profile import buffer_stats
from kprobe_exporter.util.file_access import write_whole

MOST = 10_000
"""Stacks that are kept; a trace ends, so that more room is harmless."""


def count_stacks(
    session: TraceSession, probes: Sequence[Probe], title: str, *, each: bool, user: bool
) -> Profile:
    """Return the stacks until the session ends: of calls with their durations, of others with their hits.

    Those of a probe with ``outstanding`` are the stacks with which its open calls or pairs began.
    ``each``: only some threads are traced, so that every event has to be recorded. ``user``: the stacks go
    on in programs, as those of a place in a program always do.
    """
    attached = [attach for probe in probes for attach in probe.attach]
    user = user or all(one.target.kind.in_file for attach in attached for one in attach.single)
    if user and host_proc() is None:
        session.warn(
            f"functions of programs stay unknown because this PID namespace is not the host's. {HOST_IDS}."
        )
    written = next((probe.stacks for probe in probes if probe.stacks is not None), Stacks())
    weigh = written.weigh or ("duration" if any(one.end is not None for one in attached) else None)
    if opened := [probe.outstanding for probe in probes if probe.outstanding is not None]:
        weigh = opened[0].weigh
    stacks = written._replace(weigh=weigh, most=MOST, user=user or written.user)
    counts = StackCounts(
        title,
        weigh,
        MOST,
        SeriesLimits(1, 1, ttl=0),
        user=stacks.user,
        interrupted=stacks.interrupted,
        rooted=stacks.rooted,
    )
    programs = ProgramStacks(Programs)
    recorded = RecordedStacks(programs)
    bare = {"metrics": (), "return_buckets": (), "duration_buckets": (), "aggregate": "auto"}
    wanted = [replace(probe, stacks=stacks, stack=each, **bare) for probe in probes]  # type: ignore[arg-type]
    outstanding: list[Join] = []

    def take(batch: Batch) -> None:
        recorded.take(batch)
        for join in outstanding:
            counts.lose(batch.evicted[join.layout.layout_id], StackLoss.EVICTED)

    with closing(programs), collected(session, wanted, take) as capture:
        for part in capture.attached:
            if part.joined is not None and part.joined.outstanding is not None:
                outstanding.append(part.joined)
                continue
            if all(one.stacks is None for one in part.parts):
                recorded.add(part.layout, part.joined, counts, part.residual_filter)
            if part.joined is not None:
                capture.pairing.tell(part.joined, recorded.joined)
        with suppress(Gone):
            run_until_end(session, capture, lambda passed: None, lambda: _read(capture, counts))
        for join in outstanding:
            programs.add_open(counts, *capture.open_stacks(join))
        stats = buffer_stats(session.instance.files, session.instance.path)
        counts.lose(stats.overrun + stats.dropped, StackLoss.OVERRUN)
        return programs.profile(counts)._replace(until=time.time_ns())


def _read(capture: Capture, counts: StackCounts) -> None:
    """Read what the kernel counted. Raises TracefsError."""
    for part in capture.parts:
        if part.stacks is None:
            continue
        try:
            reading = part.stacks.read()
        except OSError as error:
            raise TracefsError(f"the stacks cannot be read: {error.strerror}.") from None
        if reading is not None:
            StackDeltas(counts).take(reading)


LESS = "trace fewer threads, as by -p"
"""The remedy that every command with stacks has."""

SENTENCES: Mapping[StackLoss, str] = {
    StackLoss.OVERRUN: f"{{number}} events were lost because the ring buffer was full: {LESS}.",
    StackLoss.ABSENT: "{number} hits are in no stack because none came with their events.",
    StackLoss.TABLE_FULL: "{number} hits are in no stack because the kernel's table of stacks was full: "
    f"{LESS}, which records each stack.",
    StackLoss.NO_ROOM: f"{{number}} hits are in no stack because {MOST:,} stacks are kept: {LESS}.",
    StackLoss.PROGRAMS: f"{{number}} hits are in no stack because {MOST_WAITING:,} stacks were waiting for "
    f"their places in programs: {LESS}.",
    StackLoss.EVICTED: "{number} that were open are in no stack because too many were open, and the oldest "
    f"were dropped (65,536 are kept, in 64 MiB): {LESS}, or for a shorter time, as by -d.",
}
"""The sentence about lost hits, by their cause."""


def loss_sentences(profile: Profile) -> list[str]:
    """Return a sentence for each cause by which hits of a profile were lost."""
    return [SENTENCES[cause].format(number=f"{number:,}") for cause, number in profile.losses.items()]


def write_profile(profile: Profile, out: Output, *, folded_text: bool, flame: Path | None) -> str:
    """Write the stacks to ``flame`` and as text, as asked for; return a sentence. Raises TracefsError."""
    if flame is not None:
        try:
            write_whole(flame, flame_graph(profile))
        except OSError as error:
            raise TracefsError(f"{one_line(str(flame))} cannot be written: {error.strerror}.") from None
    if folded_text:
        with suppress(Gone):
            out.write_raw(folded(profile))
    where = f", in {one_line(str(flame))}" if flame is not None else ""
    lost = f"; the stacks of {profile.lost:,} more hits are lost" if profile.lost else ""
    return f"{counted(profile.hits, 'hit')} in {counted(len(profile.stacks), 'stack')}{where}{lost}."
