"""Renders a snapshot as Prometheus' text, its protobuf format or OpenMetrics, as the client's headers ask."""

import time
from collections.abc import Callable, Collection, Iterator
from typing import Literal, TypeAlias, cast

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from kprobe_exporter.export.messages import Encoder
from kprobe_exporter.export.samples import SUFFIXES, encoded
from kprobe_exporter.model.snapshot import Family, Snapshot

_generate_openmetrics: Callable[..., bytes] = openmetrics.generate_latest

Format: TypeAlias = Literal["text", "openmetrics", "protobuf"]

EOF = b"# EOF\n"

CONTENT_TYPES: dict[Format, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
    "protobuf": (
        "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
    ),
}


class Exposition:
    """Renders snapshots for scrapers.

    It needs no lock: any number of threads may render at once. Its state are the duration of the last
    finished scrape, the encoder of the last rendering in protobuf and the names in the last snapshot. Each of
    these is replaced as a whole.
    """

    def __init__(
        self, snapshot: Callable[[], Snapshot], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._snapshot = snapshot
        self._clock = clock
        self._duration = 0.0
        self._encoder = Encoder()
        self._names: frozenset[str] = frozenset()
        # Our own registry: other code in the process may use the client library's global one.
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)

    def render(self, accept: str = "", names: Collection[str] = ()) -> tuple[bytes, str]:
        """Return the body and its content type for an Accept header and the values of ``name[]``."""
        start = self._clock()
        form = negotiated(accept)
        if form == "protobuf":
            pieces = self._messages(frozenset(names))
        else:
            pieces = self._pieces(frozenset(names), form == "openmetrics")
        body = b"".join(pieces)
        self._duration = self._clock() - start
        return (body + EOF if form == "openmetrics" else body), CONTENT_TYPES[form]

    def known_names(self, names: frozenset[str]) -> frozenset[str]:
        """Return those of the names that a family or sample of the last snapshot had."""
        return names & self._names

    def _families(self) -> Iterator[Family]:
        """Yield the families of the snapshot, and the one about scrapes."""
        families = self._snapshot().families
        self._names = frozenset(name for family in families for name in _all_names(family))
        yield from families
        about = "Time to prepare the last finished scrape."
        yield Family("kprobe_exporter_scrape_duration_seconds", "gauge", about, (), {(): self._duration})

    def _messages(self, names: frozenset[str]) -> Iterator[bytes]:
        """Yield the same in protobuf. A histogram is one message: each of its names selects it whole."""
        encoder = Encoder(self._encoder)
        for family in self._families():
            if not names or _stem(family) in names or _selected(family, names):
                yield encoder.delimited(family)
        for metric in self._process.collect():
            family = _family(metric)
            if not names or metric.name in names or family.name in names:
                yield encoder.delimited(family)
        if not names:
            self._encoder = encoder.end()

    def _pieces(self, names: frozenset[str], as_openmetrics: bool) -> Iterator[bytes]:
        """Yield the metrics of the snapshot and of the process that ``name[]`` selects.

        A family's name selects all its samples, a sample's name only that sample.
        """
        for family in self._families():
            stem = _stem(family)
            selected = _selected(family, names)
            if names and stem not in names and not selected:
                continue
            samples = encoded(family, as_openmetrics, SUFFIXES if stem in names else selected)
            first = next(samples, b"")
            if first or not names or stem in names:
                yield _generated(_head(family), as_openmetrics)
                yield first
            yield from samples
        for metric in self._process.collect():
            if names and metric.name not in names:
                metric.samples = [sample for sample in metric.samples if sample.name in names]
                if not metric.samples:
                    continue
            yield _generated(metric, as_openmetrics)


class _One(Collector):
    """A collector of a single family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _generated(metric: Metric, as_openmetrics: bool) -> bytes:
    """The lines that the client library writes for a metric."""
    if as_openmetrics:
        return _generate_openmetrics(_One(metric)).removesuffix(EOF)
    return generate_text(_One(metric))


def _stem(family: Family) -> str:
    """OpenMetrics, and so the client library, names a counter's family without the ``_total``."""
    return family.name.removesuffix("_total") if family.type == "counter" else family.name


def _all_names(family: Family) -> set[str]:
    """Return the names that select the family or its samples."""
    return {_stem(family), *(f"{family.name}{suffix}" for suffix in _selected(family, frozenset()))}


def _selected(family: Family, names: frozenset[str]) -> Collection[str]:
    """The suffixes of the family's samples that are shown, which are "" unless it is a histogram."""
    suffixes = SUFFIXES if family.type == "histogram" else ("",)
    return [suffix for suffix in suffixes if not names or f"{family.name}{suffix}" in names]


def _family(metric: Metric) -> Family:
    """Return a metric of the process, of which each is a counter or a gauge whose samples have one name."""
    first = metric.samples[0] if metric.samples else None
    return Family(
        first.name if first else metric.name,
        cast("Literal['counter', 'gauge']", metric.type),
        metric.documentation,
        tuple(first.labels) if first else (),
        {tuple(sample.labels.values()): sample.value for sample in metric.samples},
    )


def _head(family: Family) -> Metric:
    """The metric without samples, for the lines HELP and TYPE."""
    # No encoder accepts lone surrogates, and one would fail the whole scrape.
    text = family.help.encode("utf-8", "backslashreplace").decode()
    return Metric(_stem(family), text, family.type)


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


def negotiated(accept: str) -> Format:
    """Return the format that the client prefers; of equals the first of protobuf, OpenMetrics 1.0 and text.

    The client library's choose_encoder is not used: it ignores q-values, promises any version that is
    requested, and raises TypeError for a version that is not a number.
    """
    qualities: dict[Format, float] = {"protobuf": 0.0, "openmetrics": 0.0, "text": 0.0}
    for name, parameters, quality in accepted(accept):
        if name == "application/openmetrics-text":
            if parameters.get("version", "1.0.0") == "1.0.0":
                qualities["openmetrics"] = max(qualities["openmetrics"], quality)
        elif name == "application/vnd.google.protobuf":
            asked = (parameters.get("proto"), parameters.get("encoding"))
            if asked == ("io.prometheus.client.MetricFamily", "delimited"):
                qualities["protobuf"] = max(qualities["protobuf"], quality)
        elif name in ("text/plain", "text/*", "*/*"):
            qualities["text"] = max(qualities["text"], quality)
    best = max(qualities, key=lambda form: qualities[form])
    return best if qualities[best] > 0 else "text"
