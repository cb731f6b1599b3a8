"""Probes of a configuration, planned and installed as the agent does, in an instance of our own."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.aggregation import Recipe
from kprobe_exporter.model.joins import Joins
from kprobe_exporter.model.records import Batch
from kprobe_exporter.model.specs import ProbeMetrics
from kprobe_exporter.plan import Kernel, plan_probe
from kprobe_exporter.probing import event_source
from kprobe_exporter.probing.attach import Attached, settle
from kprobe_exporter.source.reader import Pipe
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.features import no_fprobes
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.tracefs.mount import USUAL, mounted
from kprobe_exporter.tracefs.probes import Installed, names_in_use

INSTANCE = "kprobe_exporter_bench"
TRACEFS = USUAL


@dataclass(frozen=True)
class Put:
    """A probe in the kernel, and what its events feed."""

    attached: Attached
    metrics: ProbeMetrics

    @property
    def installed(self) -> Installed:
        """Its only event, or its first."""
        return self.attached.parts[0]


@contextmanager
def own_instance(buffer_kib: int) -> Iterator[Instance]:
    """The benchmarks' instance, ready to record; gone afterwards, and all that was defined for it."""
    with mounted(None) as root, Instance.acquire(MountedTracefs(root), INSTANCE) as instance:
        instance.set_up(buffer_kib, record_tgid=False)
        yield instance


def configured(text: str) -> Config:
    """A configuration, checked as the agent does."""
    with TemporaryDirectory() as directory:
        path = write_config(Path(directory), text)
        return load([path], DECODERS)


def write_config(directory: Path, text: str) -> Path:
    path = directory / "config.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return path


@contextmanager
def reading(
    instance: Instance,
    probe: Put,
    config: Config,
    wanted: Recipe | None,
    deliver: Callable[[Batch], None],
    buffer_kib: int,
    joins: Joins = event_source.NO_JOINS,
) -> Iterator[Pipe]:
    """The instance's buffers, as agent/agent.py wires them for one probe; closed afterwards."""
    layout, symbols = probe.installed.layout, Symbols(instance.files)
    layouts = {part.layout: part.system for part in probe.attached.parts}
    chosen = event_source.choose(instance, config.settings, symbols.visible, stacks_wanted=False)
    buffers = event_source.BufferReader(instance, chosen, deliver, buffer_kib)
    recipes = {layout.layout_id: wanted} if wanted else {}
    buffers.prepare(symbols, layouts, recipes, {}, joins, tgid=False)()
    if layout.stack:
        symbols.name(0)  # as the agent does: the first look reads all names
    try:
        yield buffers.pipe
    finally:
        buffers.pipe.close()


@contextmanager
def put(instance: Instance, config: Config, *, binary: bool = False) -> Iterator[list[Put]]:
    """All probes of the configuration installed, not enabled; taken out again afterwards."""
    kernel = Kernel(
        instance.event_format,
        instance.counts_tracepoints(),
        binary,
        no_fprobes=no_fprobes(running_kernel(instance.files)),
    )
    layout_ids, taken = itertools.count(), names_in_use(instance)
    done: list[Put] = []
    try:
        for probe in config.probes:
            plan = plan_probe(probe, config.settings.namespace, DECODERS, kernel, layout_ids)
            attached, refused = settle(instance, plan, taken, ())
            if attached is None:
                raise ProbeRefused(" ".join(f"{target}: {why}" for target, why in refused.items()))
            done.append(Put(attached, plan.metrics))
        yield done
    finally:
        for one in done:
            one.attached.remove()
