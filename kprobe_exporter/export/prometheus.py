"""Renders a snapshot in Prometheus' text format or in OpenMetrics, as the client's headers ask for it."""

import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import accumulate, chain
from typing import cast

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as ClientExemplar
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.values import Exemplar, Family, HistogramValue, Snapshot

_generate_openmetrics: Callable[..., bytes] = openmetrics.generate_latest

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EOF = b"# EOF\n"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


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
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)

    def render(self, accept: str = "", names: Collection[str] = ()) -> tuple[bytes, str]:
        """Return the body and its content type for an Accept header and the values of ``name[]``."""
        start = self._clock()
        as_openmetrics = wants_openmetrics(accept)
        generate: Callable[[Collector], bytes] = generate_text
        if as_openmetrics:
            # All our names use the old character set, so every escaping gives the same bytes. The
            # default one walks each sample's name by characters, which takes a third more time.
            generate = partial(_generate_openmetrics, escaping=openmetrics.ALLOWUTF8)
        # The families are written one by one: the library holds all lines of what it writes.
        metrics = self._metrics(frozenset(names), as_openmetrics)
        body = b"".join(generate(_One(metric)).removesuffix(EOF) for metric in metrics)
        self._duration = self._clock() - start
        return (body + EOF, OPENMETRICS_TYPE) if as_openmetrics else (body, TEXT_TYPE)

    def _metrics(self, names: frozenset[str], as_openmetrics: bool) -> Iterator[Metric]:
        """Yield the metrics of the snapshot and of the process that ``name[]`` selects.

        A family's name selects all its samples, a sample's name only that sample.
        """
        about = "Time to prepare the last finished scrape."
        duration = Family("kprobe_exporter_scrape_duration_seconds", "gauge", about, (), {(): self._duration})
        ours = (
            _metric(family, as_openmetrics)
            for family in (*self._snapshot().families, duration)
            # The names of a family's samples begin with the family's.
            if not names or any(name.startswith(_stem(family)) for name in names)
        )
        for metric in chain(ours, self._process.collect()):
            if names and metric.name not in names:
                metric.samples = [sample for sample in metric.samples if sample.name in names]
                if not metric.samples:
                    continue
            yield metric


class _One(Collector):
    """A collector of a single family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


class _Samples:
    """The samples of a family, made while they are written. A list of them would take 400 bytes a sample."""

    def __init__(self, family: Family, as_openmetrics: bool) -> None:
        self._family, self._openmetrics = family, as_openmetrics

    def __iter__(self) -> Iterator[Sample]:
        family = self._family
        for values, value in family.samples.items():
            labels = dict(zip(family.labels, map(one_line, values), strict=True))
            if isinstance(value, HistogramValue):
                yield from _histogram(family.name, labels, value, self._openmetrics)
            else:
                yield Sample(family.name, labels, value)


def _stem(family: Family) -> str:
    """OpenMetrics, and so the client library, names a counter's family without the ``_total``."""
    return family.name.removesuffix("_total") if family.type == "counter" else family.name


def _metric(family: Family, as_openmetrics: bool) -> Metric:
    # No encoder accepts lone surrogates, and one would fail the whole scrape.
    text = family.help.encode("utf-8", "backslashreplace").decode()
    metric = Metric(_stem(family), text, family.type)
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


def accepted(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the entries of an Accept or Accept-Encoding header (RFC 9110 §12.5), in the header's order.

    ``text/plain;version=0.0.4;q=0.5`` is a name, its parameters and a quality, which is 0 if it is invalid.
    Names are in lower case.
    """
    for entry in header.split(","):
        name, *rest = entry.split(";")
        pairs = (parameter.partition("=") for parameter in rest)
        parameters = {key.strip().lower(): text.strip(' \t"') for key, _, text in pairs}
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0.0
        # The comparison is also false for NaN.
        yield name.strip().lower(), parameters, quality if 0 <= quality <= 1 else 0.0


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding header names gzip with a quality above 0."""
    return any(name == "gzip" and quality > 0 for name, _, quality in accepted(header))


def wants_openmetrics(accept: str) -> bool:
    """Whether the client prefers OpenMetrics 1.0 to the text format, or accepts both equally.

    The client library's choose_encoder is not used: it ignores q-values, promises any version that is
    requested, and raises TypeError for a version that is not a number.
    """
    text = wanted = 0.0
    for name, parameters, quality in accepted(accept):
        if name == "application/openmetrics-text":
            if parameters.get("version", "1.0.0") == "1.0.0":
                wanted = max(wanted, quality)
        elif name in ("text/plain", "text/*", "*/*"):
            text = max(text, quality)
    return wanted > 0 and wanted >= text
