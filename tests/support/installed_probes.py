"""Probes in an instance of their own; their events as text and as pages, compared."""

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from kprobe_exporter.config.load import load
from kprobe_exporter.identity.threads import Threads
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.records import CPU, TGID, TIME, Batch, Layout, Record
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import Kernel, plan_probe
from kprobe_exporter.plan.shape import geometry, shape, stacks
from kprobe_exporter.probing.event_source import KernelNames
from kprobe_exporter.source.binary import BinaryPipe
from kprobe_exporter.source.lines import LineParser
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed, install, names_in_use


@contextmanager
def installed(instance: Instance, tmp_path: Path, text: str, *, own: bool) -> Iterator[list[Installed]]:
    """Install a configuration's probes; ``own`` prefers tracepoints themselves to eprobes on them."""
    path = tmp_path / "probes.yaml"
    path.write_text(text)
    path.chmod(0o600)
    kernel = Kernel(instance.event_format, counts_tracepoints=True)
    layout_ids, specs = count(), []
    for probe in load([path], DECODERS).probes:
        plan = plan_probe(probe, "ns", DECODERS, kernel, layout_ids)
        ways = [way for way in plan.alternatives if isinstance(way, ProbeSpec)]
        (spec, *_) = [way for way in ways if way.plan == "events" and (way.file is None) == own] or ways
        specs.append(replace(spec, filter=None))
    with enabled(instance, *specs) as probes:
        yield probes


@contextmanager
def enabled(instance: Instance, *specs: ProbeSpec) -> Iterator[list[Installed]]:
    """Install these probes and enable them; remove them at the end."""
    taken = names_in_use(instance)
    probes: list[Installed] = []
    try:
        for spec in specs:
            probes.append(install(instance, spec, taken))
            probes[-1].enable()
        yield probes
    finally:
        for one in probes:
            one.remove()


def by_text(instance: Instance, layouts: list[Layout]) -> Iterator[Record]:
    """Yield the records that ``trace`` prints, without consuming them."""
    parser = LineParser(layouts)
    with open(f"/sys/kernel/tracing/{instance.path}/trace", "rb", buffering=0) as trace:
        while data := trace.read(1 << 20):
            batch = parser.feed(data)
            assert batch.unparsed == 0
            yield from batch.records


def by_pages(instance: Instance, probes: list[Installed], kind: Any) -> list[Record]:
    """Return the records of the raw pages, in the order in which they are delivered."""
    return [record for batch in batches(instance, probes, kind) for record in batch.records]


def batches(instance: Instance, probes: list[Installed], kind: Any) -> list[Batch]:
    """Read the raw pages to the end; return what they hold."""
    headers = [instance.read(f"events/{name}").decode() for name in ("header_page", "header_event")]
    form = instance.event_format("ftrace", "kernel_stack")
    assert form is not None
    shapes = []
    for probe in probes:
        text = instance.event_format(probe.system, probe.event)
        assert text is not None
        shapes.append(shape(probe.layout, text))
    names = KernelNames(Threads(instance.files), Symbols(instance.files))
    form_of_page = geometry(*headers)
    parser = kind(form_of_page, shapes, names, stacks(form, None))
    found: list[Batch] = []
    pipe = BinaryPipe(instance.open_raw(), parser, found.append, budget=1 << 20, page=form_of_page.page)
    pipe.empty(last=True)
    pipe.close()
    assert sum(batch.unparsed for batch in found) == 0
    return found


def compare(instance: Instance, probes: list[Installed], kind: Any) -> dict[str, int]:
    """Assert that text and pages give the same records; return the number of events of each probe."""
    lines = by_text(instance, [probe.layout for probe in probes])
    expected: defaultdict[int, deque[Record]] = defaultdict(deque)
    for record in lines:
        expected[record[CPU]].append(record)
    names = {probe.layout.layout_id: probe.spec.probe for probe in probes}
    found: dict[str, int] = dict.fromkeys(names.values(), 0)
    before = 0
    for record in by_pages(instance, probes, kind):
        cells = list(record)
        assert cells[TIME] >= before
        before = cells[TIME]
        cells[TIME] = (cells[TIME] + 500) // 1000 * 1000  # ns2usecs() of kernel/trace/trace.h
        cells[TGID] = None
        assert tuple(cells) == expected[record[CPU]].popleft()
        found[names[record[0]]] += 1
    assert not any(expected.values())
    return found
