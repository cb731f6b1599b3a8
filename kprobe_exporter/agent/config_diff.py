"""What a new configuration changes: the difference of two, pure; and what only a restart can change."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from kprobe_exporter.config.values import Config, Metric, Probe

RESTART = ("namespace", "tracefs_instance", "source", "buffer_size", "buffer_total")
"""The keys of ``global`` that are about the instance, its buffer and how that is read, or every name."""


class Difference(NamedTuple):
    """The names of probes, in the new configuration's order; those that are removed in the old one's.

    ``kept`` ones are collected as before; what else a probe has may differ. ``anew`` are the metrics, as
    they are configured, whose numbers mean something else than before.
    """

    kept: tuple[str, ...]
    changed: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    anew: frozenset[str]

    def __str__(self) -> str:
        counts = {"added": self.added, "changed": self.changed, "removed": self.removed, "kept": self.kept}
        return ", ".join(f"{len(names)} {what}" for what, names in counts.items())


def difference(old: Config, new: Config) -> Difference:
    """How to get from the one to the other. Their patterns are expanded, so that each probe is one."""
    before = {probe.name: probe for probe in old.probes}
    names = [probe.name for probe in new.probes]
    # Hist tables have room for so many label sets: the kernel allots it when they are made.
    roomy = old.settings.max_series == new.settings.max_series
    kept = {
        probe.name
        for probe in new.probes
        if probe.name in before
        and _in_kernel(before[probe.name]) == _in_kernel(probe)
        and (roomy or probe.aggregate != "kernel")
    }
    return Difference(
        tuple(name for name in names if name in kept),
        tuple(name for name in names if name in before and name not in kept),
        tuple(name for name in names if name not in before),
        tuple(name for name in before if name not in names),
        frozenset(_anew(old.probes, new.probes)),
    )


def needs_restart(old: Config, new: Config) -> str | None:
    """Why the new configuration cannot be had without a restart, as a sentence; None if it can."""
    keys = [f"global.{key}" for key in RESTART if getattr(old.settings, key) != getattr(new.settings, key)]
    keys += ["otlp"] if old.otlp != new.otlp else []
    if not keys:
        return None
    return (
        f"{' and '.join(keys)} cannot be changed while the agent runs: restart it to have this configuration."
    )


def _in_kernel(probe: Probe) -> Probe:
    """The probe without what changes nothing about how it is collected."""
    return replace(probe, help="", optional=False, limit=None)


def _anew(old: Iterable[Probe], new: Iterable[Probe]) -> Iterator[str]:
    """The metrics of both that have not one definition in common, of all the probes that feed them."""
    before, after = _metrics(old), _metrics(new)
    for name in before.keys() & after.keys():
        if not any(metric in before[name] for metric in after[name]):
            yield name


def _metrics(probes: Iterable[Probe]) -> dict[str, list[Metric]]:
    """Metrics by name, each as its probes define it; the help is for people."""
    found: dict[str, list[Metric]] = {}
    for probe in probes:
        for metric in probe.metrics:
            metrics = found.setdefault(metric.name, [])
            if (plain := replace(metric, help="")) not in metrics:
                metrics.append(plain)
    return found
