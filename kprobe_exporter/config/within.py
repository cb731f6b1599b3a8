"""Checks for `container` and `pod`: what they select must be where a program's file is."""

from collections.abc import Iterator

from kprobe_exporter.config.schema import ProbeModel
from kprobe_exporter.config.sites import Alternatives
from kprobe_exporter.config.values import Within
from kprobe_exporter.config.wording import quote
from kprobe_exporter.config.yaml_source import Report
from kprobe_exporter.grammar.target import Target


def within_of(probe: ProbeModel, alternatives: Alternatives, report: Report) -> Within | None:
    """Return which containers a probe selects, None for one of the machine. Problems go to ``report``."""
    within = Within(probe.container, probe.pod)
    if not any(within):
        return None
    key = "pod" if within.container is None else "container"
    for target in (part.target for one in alternatives for part in one.attach.single):
        for sentence in _wrong(target):
            report((key,), sentence)
    return within


def _wrong(target: Target) -> Iterator[str]:
    if not target.kind.in_file:
        yield f"{quote(str(target))} is in the kernel, which all containers share: leave this key out"
    elif target.is_pattern:
        yield f"{quote(str(target))} is a pattern, for which a file has to be there: name one probe"
    elif ":" in target.path or target.path.startswith("/proc/"):
        yield f"{quote(target.path)} names a root: leave this key out, or write the path in the container"
