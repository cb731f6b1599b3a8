"""The kernel's own counts: kprobe_profile, uprobe_profile, and the ring buffer's per-CPU statistics."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from kprobe_exporter.tracefs.definitions import parse_definitions
from kprobe_exporter.tracefs.files import Tracefs


class Counts(NamedTuple):
    """A probe's hits and misses. ``misses`` is None if the kernel does not count them."""

    hits: int
    misses: int | None


PROFILE_LINE = re.compile(r"^ *(\S+) +(\d{1,20}) +(\d{1,20})$", re.MULTILINE | re.ASCII)

UPROBE_LINE = re.compile(r"^ *(\S+) +(\S+) +(\d{1,20})$", re.MULTILINE | re.ASCII)


def parse_profile(text: str) -> list[tuple[str, Counts]]:
    """Return the lines of kprobe_profile: event name, hits, misses (kernel/trace/trace_kprobe.c).

    The columns are padded, but a long name shifts them.
    """
    return [(name, Counts(int(hits), int(misses))) for name, hits, misses in PROFILE_LINE.findall(text)]


def parse_uprobe_profile(text: str) -> list[tuple[str, str, int]]:
    """Return the lines of uprobe_profile: path, event name, hits (kernel/trace/trace_uprobe.c).

    The path is as it was written to uprobe_events, and may hold any character but the kernel's blanks.
    """
    return [(path, name, int(hits)) for path, name, hits in UPROBE_LINE.findall(text)]


PROFILED = ("kprobe_events", "uprobe_events")
"""The files in which probes are defined that the kernel counts in a profile."""


def profile_counts(files: Tracefs, group: str, definitions: str) -> dict[str, Counts]:
    """Return hits and misses of our group's events of one of PROFILED, by event name. Raises OSError.

    The profile prints no group. If another program defines an event of the same name later, the lines are
    told apart by position: profile and definitions list the same events in the same order. If they differ,
    because an event was added or deleted between the two reads, events of that name are omitted from this
    result: a wrong count would never be corrected.
    """
    if definitions == "uprobe_events":
        uprobes = parse_uprobe_profile(_text(files, "uprobe_profile"))
        profile = [(name, Counts(hits, None)) for _, name, hits in uprobes]
    else:
        profile = parse_profile(_text(files, "kprobe_profile"))
    lines: defaultdict[str, list[Counts]] = defaultdict(list)
    for name, counts in profile:
        lines[name].append(counts)
    if all(len(counts) == 1 for counts in lines.values()):
        return {name: counts[0] for name, counts in lines.items()}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for defined in parse_definitions(_text(files, definitions)):
        groups[defined.event].append(defined.group)
    return {
        name: _sum(count for count, owner in zip(counts, groups[name], strict=True) if owner == group)
        for name, counts in lines.items()
        if len(counts) == len(groups[name]) and group in groups[name]
    }


def _sum(places: Iterable[Counts]) -> Counts:
    """Add up the counts of the places of one event."""
    hits, misses = zip(*places, strict=True)
    return Counts(sum(hits), None if None in misses else sum(misses))


def _text(files: Tracefs, path: str) -> str:
    return files.read(path).decode(errors="replace")


class CpuStats(NamedTuple):
    """One per-CPU buffer's ``per_cpu/cpuN/stats``: events, bytes, and what was lost since its start."""

    entries: int
    overrun: int
    commit_overrun: int
    bytes: int
    dropped: int
    read: int


STATS = ("entries", "overrun", "commit overrun", "bytes", "dropped events", "read events")
STAT_LINE = re.compile(r"^([a-z ]+): (\d{1,20})", re.MULTILINE)


def parse_stats(text: str) -> CpuStats:
    """Parse a ``stats`` file (tracing_stats_read, kernel/trace/trace.c). A missing number is 0."""
    found = {name: int(number) for name, number in STAT_LINE.findall(text)}
    return CpuStats(*(found.get(name, 0) for name in STATS))


def buffer_stats(files: Tracefs, instance: str) -> CpuStats:
    """Return the statistics of an instance's ring buffer, summed over its CPUs. Raises OSError."""
    per_cpu = f"{instance}/per_cpu"
    stats = [parse_stats(_text(files, f"{per_cpu}/{cpu}/stats")) for cpu in files.names(per_cpu)]
    return CpuStats(*map(sum, zip(parse_stats(""), *stats, strict=True)))
