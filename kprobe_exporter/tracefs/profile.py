"""The kernel's own counts: kprobe_profile (hits, misses) and the ring buffer's per-CPU statistics."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kprobe_exporter.tracefs.definitions import parse_definitions
from kprobe_exporter.tracefs.files import Tracefs


class Counts(NamedTuple):
    """Firings of a probe, and firings that the kernel had to miss."""

    hits: int
    misses: int


def parse_profile(text: str) -> list[tuple[str, Counts]]:
    """The lines of kprobe_profile: event name, hits, misses (kernel/trace/trace_kprobe.c).

    The columns are padded but a long name pushes them, so a line is split from its right end.
    """
    found = []
    for line in text.splitlines():
        fields = line.rsplit(None, 2)
        if len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit():
            found.append((fields[0].strip(), Counts(int(fields[1]), int(fields[2]))))
    return found


def kprobe_counts(files: Tracefs, group: str) -> dict[str, Counts]:
    """Hits and misses of our group's kprobe events, by event name.

    The profile prints no group. Should somebody else make an event of the same name later, its
    lines are told apart by their place: profile and kprobe_events list the same events in the same
    order. Raises OSError if the files cannot be read.
    """
    lines = parse_profile(files.read("kprobe_profile").decode(errors="replace"))
    names = [name for name, _ in lines]
    if len(set(names)) == len(names):
        return dict(lines)
    listed = parse_definitions(files.read("kprobe_events").decode(errors="replace"))
    groups: Mapping[str, list[str]] = _groups_by_name((d.event, d.group) for d in listed)
    seen: dict[str, int] = defaultdict(int)
    counts: dict[str, Counts] = {}
    for name, count in lines:
        owners = groups.get(name, [])
        owner = owners[seen[name]] if seen[name] < len(owners) else group
        seen[name] += 1
        if owner == group or len(owners) < 2:
            counts[name] = count
    return counts


def _groups_by_name(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for event, group in pairs:
        groups[event].append(group)
    return groups


class CpuStats(NamedTuple):
    """One ring buffer's ``per_cpu/cpuN/stats``: events, and bytes, and what was lost, since its start."""

    entries: int
    overrun: int
    commit_overrun: int
    bytes: int
    dropped: int
    read: int


STAT_LINE = re.compile(r"^([a-z ]+): (\d+)", re.MULTILINE)


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
