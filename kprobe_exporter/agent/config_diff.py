"""The difference between two configurations, and the changes that need a restart. Pure functions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from kprobe_exporter.config.model import Config, Metric, Probe

RESTART = ("namespace", "tracefs_instance", "source", "buffer_size", "buffer_total", "nested_containers")
"""The keys of ``global`` that affect the instance, its buffer, how that is read, all metric names, or which
container a thread is in."""


class Difference(NamedTuple):
    """The names of probes in the new configuration's order; ``removed`` is in the old one's order.

    ``kept`` probes are collected as before; settings that do not affect this may differ. ``reset`` are the
    metrics, by their configured names, whose numbers have another meaning than before.
    """

    kept: tuple[str, ...]
    changed: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    reset: frozenset[str]

    def __str__(self) -> str:
        counts = {"added": self.added, "changed": self.changed, "removed": self.removed, "kept": self.kept}
        return ", ".join(f"{len(names)} {what}" for what, names in counts.items())


def difference(old: Config, new: Config) -> Difference:
    """Compare two configurations whose patterns are expanded, so that each probe has one target.

    A metric is reset if none of its definitions, by any probe that feeds it, is in both.
    """
    before = {probe.name: probe for probe in old.probes}
    names = [probe.name for probe in new.probes]
    # max_series determines the size of hist tables, which the kernel allocates when they are created.
    roomy = old.settings.max_series == new.settings.max_series
    kept = {
        probe.name
        for probe in new.probes
        if probe.name in before
        and _in_kernel(before[probe.name]) == _in_kernel(probe)
        and (roomy or probe.aggregate != "kernel")
    }
    earlier, later = _metrics(old.probes), _metrics(new.probes)
    return Difference(
        tuple(name for name in names if name in kept),
        tuple(name for name in names if name in before and name not in kept),
        tuple(name for name in names if name not in before),
        tuple(name for name in before if name not in names),
        frozenset(
            name
            for name in earlier.keys() & later.keys()
            if not any(metric in earlier[name] for metric in later[name])
        ),
    )


def needs_restart(old: Config, new: Config) -> str | None:
    """Return, as a sentence, why the new configuration needs a restart; None if it does not."""
    keys = [f"global.{key}" for key in RESTART if getattr(old.settings, key) != getattr(new.settings, key)]
    keys += [key for key in ("otlp", "lines") if getattr(old, key) != getattr(new, key)]
    if not keys:
        return None
    return (
        f"{' and '.join(keys)} cannot be changed while the agent runs: restart it to have this configuration."
    )


def _in_kernel(probe: Probe) -> Probe:
    """Return the probe without the settings that do not affect how it is collected."""
    return replace(probe, help="", optional=False, limit=None, critical=False)


def _metrics(probes: Iterable[Probe]) -> Mapping[str, list[Metric]]:
    """Return metrics by name, each with its probes' definitions. The help is omitted: it may differ."""
    found: defaultdict[str, list[Metric]] = defaultdict(list)
    for probe in probes:
        for metric in probe.metrics:
            found[metric.name].append(replace(metric, help=""))
    return found
