"""Tries how `run` would attach each probe, in an instance and a group of its own that are removed at once."""

import itertools
from collections.abc import Callable
from dataclasses import replace

from kprobe_exporter.config.model import Config
from kprobe_exporter.diagnose.dry_run import RETURNS, DryRunRow, row_of
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.identity.running import RunningContainers
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.snapshot import ShownState
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import Kernel, ProbePlan, plan_probe
from kprobe_exporter.probing.attach import Attached, settle
from kprobe_exporter.probing.container_files import ContainerFiles
from kprobe_exporter.probing.event_source import EventSource, choose, unreadable
from kprobe_exporter.probing.kernel_info import expanded, known_kernel
from kprobe_exporter.symbols.resolve import Resolver
from kprobe_exporter.tracefs.features import uretprobe_hazard
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import KernelFiles
from kprobe_exporter.tracefs.leftovers import acquire_for_trace, remove_dead_traces
from kprobe_exporter.tracefs.probes import Installed, names_in_use

BUFFER_KIB = 4
"""Per CPU, the smallest: nothing is recorded."""


def attempt(config: Config, kernel: KernelFiles, visible: Callable[[], bool]) -> list[DryRunRow]:
    """Attach and enable each probe for a moment, in the order of ``run``, and return what came of each.

    Raises OSError, and TracefsError if no agent could start. ``visible`` is as for ``look_each``.
    """
    remove_dead_traces(kernel.tracefs)
    with acquire_for_trace(kernel.tracefs) as instance:
        instance.set_up(BUFFER_KIB, record_tgid=False)
        instance.stop_recording()
        return _Trial(instance, config, kernel, visible).rows()


class _Trial:
    """A trial in its instance. ``_there`` are the events that are installed."""

    def __init__(
        self, instance: Instance, config: Config, files: KernelFiles, visible: Callable[[], bool]
    ) -> None:
        settings, self._instance = config.settings, instance
        self._hazard = uretprobe_hazard(files.release, files.machine)
        self._resolver = Resolver.of(files)
        found = expanded(config.probes, self._resolver, settings.max_matches, instance.probed_files)
        self._config = replace(config, probes=tuple(found))
        stacks = any(probe.stack for probe in found)
        self._source: EventSource = choose(instance, settings, visible, stacks_wanted=stacks)
        binary = self._source.geometry is not None
        self._kernel: Kernel = known_kernel(
            instance, found, self._resolver, settings.max_matches, binary=binary, files=files
        )
        self._taken = names_in_use(instance)
        self._there: list[ProbeSpec] = []

    def rows(self) -> list[DryRunRow]:
        """Return a row for each probe."""
        containers, layout_ids = ContainerFiles(RunningContainers()), itertools.count()
        settings = self._config.settings
        given = settings.namespace, DECODERS, self._kernel, layout_ids, settings.max_series
        rows = []
        for probe in self._config.probes:
            if probe.enabled:
                rows.append(self._row(containers.plan(probe, lambda placed: plan_probe(placed, *given))))
            else:
                rows.append(row_of(probe, "disabled", None, "'enabled: false' in the configuration", {}))
        return rows

    def _row(self, plan: ProbePlan) -> DryRunRow:
        attached, refused = settle(
            self._instance, plan, self._taken, self._there, self._resolver.explain, self._unreadable
        )
        if attached is not None:
            try:
                note = self._enabled(attached)
            except ProbeRefused as error:
                refused[attached.spec.target] = str(error)
            else:
                self._there += [part.spec for part in attached.parts]
                return row_of(plan.probe, "up", attached.spec, note, refused)
        state: ShownState = "absent" if plan.probe.optional or plan.waiting else "down"
        return row_of(plan.probe, state, None, "", refused)

    def _enabled(self, attached: Attached) -> str:
        """Enable it for a moment, unless that may kill programs. Return a note. Raises ProbeRefused."""
        if self._hazard and RETURNS.search(attached.spec.target):
            return f"it was defined and not enabled, as {self._hazard}"
        try:
            attached.enable()
        finally:
            attached.disable()
        targets = dict.fromkeys(part.spec.target for part in attached.parts)
        return "; ".join(filter(None, (self._resolver.never_fires(parse_target(one)) for one in targets)))

    def _unreadable(self, part: Installed) -> str | None:
        return unreadable(self._instance, self._source, part.system, part.layout)
