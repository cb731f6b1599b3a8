"""Runs saved trace text through the stages of the agent, without a kernel.

file ──► source (saved) ──► aggregate ──► export
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.self_metrics import PREFIX, agent_families
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.model import GUESSED_RETURN, RETURN_BUCKETS, Config, Settings
from kprobe_exporter.export.prometheus import Exposition
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.snapshot import Family, HistogramValue, KernelCounts, Snapshot
from kprobe_exporter.model.specs import ProbeMetrics
from kprobe_exporter.model.values import ReturnType
from kprobe_exporter.plan import metric_spec, worst_spec
from kprobe_exporter.replay.parser import SavedBatch, SavedParser

OWN = tuple(
    f"{PREFIX}_{name}_total" for name in ("events", "events_lost", "series_overflow", "decode_failures")
)
"""The agent's own metrics that say something about a file."""


@dataclass(slots=True)
class Summary:
    """The contents of the text.

    ``unclear`` counts return values that only the definition could explain; ``swallowed`` counts lines that
    appear to be within others.
    """

    lines: int = 0
    events: Counter[str] = field(default_factory=Counter)
    stacks: int = 0
    cut: int = 0
    lost: int = 0
    rejected: int = 0
    unclear: int = 0
    swallowed: int = 0


class Replay:
    """Counts the events of saved text by their names.

    Events feed the configured probe of their name; of all other events, return values and errors are counted.
    It has no hits and misses, because the text holds only delivered events. Not thread-safe.
    """

    def __init__(self, config: Config | None = None) -> None:
        settings = config.settings if config else Settings()
        self.summary = Summary()
        self._namespace = settings.namespace
        # A replay covers one period: nothing expires.
        limits = SeriesLimits(settings.max_series, settings.max_series_total)
        self._aggregator = Aggregator(settings.namespace, limits, name_of)
        self._names: list[str] = []
        self._returns: dict[str, ReturnType | None] = {}
        self._parser = SavedParser(self._learnt)
        for probe in config.probes if config else ():
            returns = next((a.returns for a in probe.attach if a.returns is not None), None)
            specs = tuple(metric_spec(metric, self._namespace, DECODERS) for metric in probe.metrics)
            self._returns[probe.name] = returns
            worst = worst_spec(probe, DECODERS)
            self._aggregator.declare(
                ProbeMetrics(probe.name, specs, probe.return_buckets, returns, worst=worst)
            )
        self._configured = frozenset(self._returns)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the text."""
        self._count(self._parser.feed(data))

    def finish(self) -> None:
        """Take in what is left when the text has ended."""
        self._count(self._parser.finish())

    def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        numbers = self._aggregator.copy()
        own = (family for family in agent_families(numbers, {}, {}, 0, 0) if family.name in OWN)
        families = tuple(f for f in map(self._seen, (*numbers.families, *own)) if f.samples)
        exposition = Exposition(lambda: Snapshot(families, ()))
        return exposition.render(names=[family.name for family in families])[0]

    def _learnt(self, layout: Layout) -> None:
        """Prepare for a layout that the parser has met."""
        if layout.event not in self._returns:
            returns = self._returns[layout.event] = GUESSED_RETURN
            self._aggregator.declare(ProbeMetrics(layout.event, (), RETURN_BUCKETS, returns))
        self._aggregator.attach(replace(layout, returns=self._returns[layout.event]))
        self._names.append(layout.event)

    def _count(self, batch: SavedBatch) -> None:
        summary = self.summary
        summary.lines += batch.lines
        summary.events.update(self._names[record[0]] for record in batch.records)
        summary.stacks += len(batch.stacks)
        summary.cut += len(batch.cut)
        summary.rejected += batch.unparsed
        summary.unclear += batch.ambiguous
        summary.swallowed += batch.swallowed
        summary.lost += batch.lost
        self._aggregator.consume(batch)
        self._aggregator.update_kernel(KernelCounts(lost={"overrun": summary.lost}))

    def _seen(self, family: Family) -> Family:
        """Return the metric without the empty return-value histograms of probes that are not configured."""
        if family.name != f"{self._namespace}_return_value":
            return family
        samples = {
            labels: value
            for labels, value in family.samples.items()
            if not isinstance(value, HistogramValue) or any(value.counts) or labels[0] in self._configured
        }
        return family._replace(samples=samples)
