"""Tracepoints that the agent records for itself, in its own instance and without definitions."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.model.values import Layout, ProbeSpec
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.tracepoint import tracepoint_specs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed, install


class Followed(NamedTuple):
    """A tracepoint about threads. ``fields`` maps our names of its fields to the kernel's."""

    system: str
    event: str
    fields: dict[str, str]


class OwnTracepoints:
    """Tracepoints that are installed together, and enabled on demand. Raises ProbeRefused if one is missing.

    ``layouts`` go to the source with the probes' own. They need pages: in text, an unprivileged user could
    forge these events by a file's name. ``without`` says what the agent does without them.
    """

    without = ""

    def __init__(
        self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int], followed: Iterable[Followed]
    ) -> None:
        self.parts: tuple[Installed, ...] = ()
        self.enabled = False
        self.layouts: dict[Layout, str] = {}
        self.by_event: dict[str, Layout] = {}
        try:
            for one in followed:
                part = install(instance, _spec(one, kernel, layout_ids), set())
                self.parts += (part,)
                self.layouts[part.layout] = part.system
                self.by_event[one.event] = part.layout
        except BaseException:
            self.disable()
            raise

    @property
    def specs(self) -> list[ProbeSpec]:
        """The specifications of what is installed."""
        return [part.spec for part in self.parts]

    def enable(self) -> None:
        """Start recording; call ``begin`` afterwards. Raises ProbeRefused."""
        for part in self.parts:
            part.enable()
        self.enabled = True

    def begin(self) -> None:
        """Take note that recording has begun. The reader's thread calls it."""

    def disable(self) -> None:
        """Stop recording. Never raises."""
        for part in self.parts:
            part.disable()


def _spec(followed: Followed, kernel: Kernel, layout_ids: Iterator[int]) -> ProbeSpec:
    """Plan the tracepoint itself: an eprobe on it would only copy its event."""
    target = Target(Kind.TRACEPOINT, system=followed.system, event=followed.event)
    attach = Attach(target, followed.fields, None, None)
    probe = Probe(followed.event, "", (attach,), aggregate="events")
    uncounted = replace(kernel, counts_tracepoints=False)
    for way in tracepoint_specs(probe, attach, set(followed.fields), uncounted, layout_ids, 1):
        if isinstance(way, ProbeSpec) and way.file is None:
            return replace(way, role="own")
    raise ProbeRefused(f"this kernel has no {target} that can be read.")
