"""The kernel's own counts: kprobe_profile, uprobe_profile, and the ring buffer's per-CPU statistics."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from kprobe_exporter.tracefs.definitions import parse_definitions
from kprobe_exporter.tracefs.files import Tracefs

T = TypeVar("T")


class Counts(NamedTuple):
    """Firings of a probe, and firings that the kernel had to miss: None where it does not count those."""

    hits: int
    misses: int | None


PROFILE_LINE = re.compile(r"^ *(\S+) +(\d{1,20}) +(\d{1,20})$", re.MULTILINE | re.ASCII)

UPROBE_LINE = re.compile(r"^ *(\S+) +(\S+) +(\d{1,20})$", re.MULTILINE | re.ASCII)


def parse_profile(text: str) -> list[tuple[str, Counts]]:
    """The lines of kprobe_profile: event name, hits, misses (kernel/trace/trace_kprobe.c).

    The columns are padded but a long name pushes them.
    """
    return [(name, Counts(int(hits), int(misses))) for name, hits, misses in PROFILE_LINE.findall(text)]


def parse_uprobe_profile(text: str) -> list[tuple[str, str, int]]:
    """The lines of uprobe_profile: path, event name, hits (kernel/trace/trace_uprobe.c).

    The path is as it was written to uprobe_events: it may hold whatever is no blank to the kernel.
    """
    return [(path, name, int(hits)) for path, name, hits in UPROBE_LINE.findall(text)]


def kprobe_counts(files: Tracefs, group: str) -> dict[str, Counts]:
    """Hits and misses of our group's kprobe events, by event name.

    The profile prints no group. Should somebody else make an event of the same name later, its
    lines are told apart by their place: profile and kprobe_events list the same events in the same
    order. Where they do not, since one came or went between the two reads, an event of that name
    is left out this time: a wrong count would stay for ever. Raises OSError if the files cannot be
    read.
    """
    return _ours(files, group, "kprobe_events", parse_profile(_text(files, "kprobe_profile")))


def uprobe_counts(files: Tracefs, group: str) -> dict[str, Counts]:
    """Hits of our group's uprobe events, by event name, told apart in the same way. Raises OSError."""
    lines = parse_uprobe_profile(_text(files, "uprobe_profile"))
    return _ours(files, group, "uprobe_events", [(name, Counts(hits, None)) for _, name, hits in lines])


PROFILES = {"kprobe_events": kprobe_counts, "uprobe_events": uprobe_counts}
"""By the file in which a probe is defined, how the kernel's counts of it are read."""


def _ours(
    files: Tracefs, group: str, definitions: str, profile: Iterable[tuple[str, Counts]]
) -> dict[str, Counts]:
    lines = _by_name(profile)
    if all(len(counts) == 1 for counts in lines.values()):
        return {name: counts[0] for name, counts in lines.items()}
    listed = parse_definitions(_text(files, definitions))
    groups = _by_name((defined.event, defined.group) for defined in listed)
    return {
        name: counts[groups[name].index(group)]
        for name, counts in lines.items()
        if len(counts) == len(groups[name]) and group in groups[name]
    }


def _text(files: Tracefs, path: str) -> str:
    return files.read(path).decode(errors="replace")


def _by_name(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for name, value in pairs:
        found[name].append(value)
    return found


class CpuStats(NamedTuple):
    """One ring buffer's ``per_cpu/cpuN/stats``: events, and bytes, and what was lost, since its start."""

    entries: int
    overrun: int
    commit_overrun: int
    bytes: int
    dropped: int
    read: int


STAT_LINE = re.compile(r"^([a-z ]+): (\d{1,20})", re.MULTILINE)


def parse_stats(text: str) -> CpuStats:
    """One ``stats`` file (tracing_stats_read, kernel/trace/trace.c); what a kernel lacks is 0."""
    found = {name: int(number) for name, number in STAT_LINE.findall(text)}
    return CpuStats(
        found.get("entries", 0),
        found.get("overrun", 0),
        found.get("commit overrun", 0),
        found.get("bytes", 0),
        found.get("dropped events", 0),
        found.get("read events", 0),
    )


def buffer_stats(files: Tracefs, instance: str) -> CpuStats:
    """The statistics of an instance's ring buffers, summed over its CPUs. Raises OSError."""
    per_cpu = f"{instance}/per_cpu"
    all_cpus = [
        parse_stats(files.read(f"{per_cpu}/{cpu}/stats").decode(errors="replace"))
        for cpu in files.names(per_cpu)
    ]
    return CpuStats(*map(sum, zip(*all_cpus, strict=True))) if all_cpus else CpuStats(*[0] * 6)
