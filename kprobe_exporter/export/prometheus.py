"""Renders a snapshot in Prometheus' text format, or in OpenMetrics where the client asks for it."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import cast

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as ClientExemplar
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from kprobe_exporter.errors import one_line
from kprobe_exporter.export.negotiate import accepted
from kprobe_exporter.model.values import Exemplar, Family, HistogramValue, LabelValues, Snapshot

_generate_openmetrics: Callable[..., bytes] = openmetrics.generate_latest

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EOF = b"# EOF\n"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}


class Exposition:
    """Renders snapshots for scrapers.

    It needs no lock: any number of threads may render at once. The only state is the duration of the last
    finished scrape, one float that is replaced as a whole.
    """

    def __init__(
        self, snapshot: Callable[[], Snapshot], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._snapshot = snapshot
        self._clock = clock
        self._duration = 0.0
        # Our own registry: other code in the process may use the client library's global one.
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def render(self, accept: str = "", names: Collection[str] = ()) -> tuple[bytes, str]:
        """Return the body and its content type for an Accept header and the values of ``name[]``."""
        start = self._clock()
        families = (*self._snapshot().families, self._duration_family())
        as_openmetrics = wants_openmetrics(accept)
        scrape = _Scrape(families, self._process, frozenset(names), as_openmetrics)
        if as_openmetrics:
            # All our names use the old character set, so every escaping gives the same bytes. The
            # default one walks each sample's name by characters, which takes a third more time.
            generate = partial(_generate_openmetrics, escaping=openmetrics.ALLOWUTF8)
            body, content_type = _written(generate, scrape) + EOF, OPENMETRICS_TYPE
        else:
            body, content_type = _written(generate_text, scrape), TEXT_TYPE
        self._duration = self._clock() - start
        return body, content_type

    def _duration_family(self) -> Family:
        return Family(
            "kprobe_exporter_scrape_duration_seconds",
            "gauge",
            "Time to prepare the last finished scrape.",
            (),
            {(): self._duration},
        )


class _One(Collector):
    """A collector of a single family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _written(generate: Callable[[Collector], bytes], scrape: Collector) -> bytes:
    """Return the text of all families, made one by one: the library holds all lines of what it writes."""
    return b"".join(generate(_One(metric)).removesuffix(EOF) for metric in scrape.collect())


class _Samples:
    """The samples of a family, made while they are written. A list of them would take 400 bytes a sample."""

    def __init__(self, family: Family, as_openmetrics: bool) -> None:
        self._family, self._openmetrics = family, as_openmetrics

    def __iter__(self) -> Iterator[Sample]:
        family = self._family
        for values, value in family.samples.items():
            labels = _labels(family, values)
            if isinstance(value, HistogramValue):
                yield from _histogram(family.name, labels, value, self._openmetrics)
            else:
                yield Sample(family.name, labels, value)


class _Scrape(Collector):
    """The collector for a single scrape, with the metrics of the snapshot and of the process.

    Each scrape needs its own collector, because the two formats differ in histograms of values below 0.
    """

    def __init__(
        self,
        families: Iterable[Family],
        process: Collector,
        names: frozenset[str],
        as_openmetrics: bool,
    ) -> None:
        self._families = families
        self._process = process
        self._names = names
        self._openmetrics = as_openmetrics

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            if not self._names or self._names & _names_of(family):
                yield from self._select(_metric(family, self._openmetrics))
        for metric in self._process.collect():
            yield from self._select(metric)

    def _select(self, metric: Metric) -> Iterator[Metric]:
        """Apply ``name[]``: a family's name selects all its samples, a sample's name only that sample."""
        if self._names and metric.name not in self._names:
            metric.samples = [s for s in metric.samples if s.name in self._names]
            if not metric.samples:
                return
        yield metric


def _names_of(family: Family) -> set[str]:
    stem = _stem(family)
    return {stem, *(stem + suffix for suffix in _SUFFIXES[family.type])}


def _stem(family: Family) -> str:
    """OpenMetrics, and so the client library, names a counter's family without the ``_total``."""
    return family.name.removesuffix("_total") if family.type == "counter" else family.name


def _metric(family: Family, as_openmetrics: bool) -> Metric:
    metric = Metric(_stem(family), _utf8(family.help), family.type)
    metric.samples = cast("list[Sample]", _Samples(family, as_openmetrics))
    return metric


def _histogram(
    name: str, labels: dict[str, str], value: HistogramValue, as_openmetrics: bool
) -> Iterator[Sample]:
    bounds = (*map(floatToGoString, value.bounds), "+Inf")
    total = 0
    for number, (bound, total) in enumerate(zip(bounds, accumulate(value.counts), strict=True)):
        shown = value.exemplars.get(number) if as_openmetrics else None
        yield Sample(name + "_bucket", {**labels, "le": bound}, total, None, shown and _exemplar(shown))
    # OpenMetrics forbids both if an observation may be negative, because the sum could then decrease.
    if not (as_openmetrics and value.bounds and value.bounds[0] < 0):
        yield Sample(name + "_sum", labels, value.sum)
        yield Sample(name + "_count", labels, total)


def _exemplar(one: Exemplar) -> ClientExemplar:
    """Use the label names and the hexadecimal form in which Grafana and Prometheus expect trace ids."""
    ids = {"trace_id": f"{one.trace:032x}", "span_id": f"{one.span:016x}"}
    return ClientExemplar(ids, one.value, one.time)


def _labels(family: Family, values: LabelValues) -> dict[str, str]:
    return dict(zip(family.labels, map(one_line, values), strict=True))


def _utf8(text: str) -> str:
    """Escape lone surrogates: no encoder accepts them, and one would fail the whole scrape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def wants_openmetrics(accept: str) -> bool:
    """Whether the client prefers OpenMetrics 1.0 to the text format, or accepts both equally.

    The client library's choose_encoder is not used: it ignores q-values, promises any version that is
    requested, and raises TypeError for a version that is not a number.
    """
    text = wanted = 0.0
    for entry in accepted(accept):
        if entry.value == "application/openmetrics-text":
            if entry.parameters.get("version", "1.0.0") == "1.0.0":
                wanted = max(wanted, entry.quality)
        elif entry.value in ("text/plain", "text/*", "*/*"):
            text = max(text, entry.quality)
    return wanted > 0 and wanted >= text
