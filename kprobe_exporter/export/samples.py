"""The lines of a family's samples, the same in Prometheus' text format and in OpenMetrics but for exemplars.

They are written here, not by the client library, which makes an object and a dictionary for each sample and
takes five times as long. A test compares both.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import cast

from prometheus_client.utils import floatToGoString

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.snapshot import Exemplar, Family, HistogramValue, LabelValues

# The client library has no type annotations for this function.
_go_string: Callable[[float], str] = floatToGoString

SUFFIXES = ("_bucket", "_sum", "_count")
"""Suffixes of a histogram's samples, in their order."""

_CHUNK = 1000
"""As many lines are held as text, which takes three times the memory of their bytes."""


def encoded(family: Family, as_openmetrics: bool, suffixes: Collection[str] = SUFFIXES) -> Iterator[bytes]:
    """Yield the lines in pieces; of a histogram those with these suffixes alone."""
    if family.type != "histogram":
        yield from _numbers(family)
        return
    lines = _histograms(family, as_openmetrics, suffixes)
    while piece := "".join(islice(lines, _CHUNK)):
        yield piece.encode()


def _numbers(family: Family) -> Iterator[bytes]:
    names = sorted(family.labels)
    template = _braces(family.name, [_pair(name) for name in names]) + " %s\n"
    ordered = _in_order(family.labels, names)
    samples = iter(family.samples.items())
    while chunk := [*islice(samples, _CHUNK)]:
        rows = [ordered(values) for values, _ in chunk]
        # Looking at all values at once takes a third of the time of looking at each.
        text = "".join(chain.from_iterable(rows))
        if _escaped(text) != text:
            rows = [tuple(map(_escaped, row)) for row in rows]
        numbers = [_number(cast("float", value)) for _, value in chunk]
        yield "".join([template % (*row, number) for row, number in zip(rows, numbers, strict=True)]).encode()


def _histograms(family: Family, as_openmetrics: bool, suffixes: Collection[str]) -> Iterator[str]:
    names = sorted(family.labels)
    before = [_pair(name) for name in names if name < "le"]
    after = [_pair(name) for name in names if name > "le"]
    # The label `le` stands between them.
    start, end = _braces(f"{family.name}_bucket", [*before, 'le="\0"', *after]).split("\0")
    whole = _braces("", [*before, *after])
    ordered = _in_order(family.labels, names)
    bounds: tuple[float, ...] | None = None
    texts: list[str] = []
    for values, value in family.samples.items():
        assert isinstance(value, HistogramValue)
        if value.bounds is not bounds:
            bounds, texts = value.bounds, [*map(_go_string, value.bounds), "+Inf"]
        labels = tuple(map(_escaped, ordered(values)))
        if "_bucket" in suffixes:
            head, tail = start % labels[: len(before)], f"{end % labels[len(before) :]} "
            shown = value.exemplars if as_openmetrics else {}
            total = 0
            for index, (bound, count) in enumerate(zip(texts, value.counts, strict=True)):
                total += count
                exemplar = _exemplar(shown[index]) if index in shown else ""
                yield f"{head}{bound}{tail}{_number(total)}{exemplar}\n"
        # OpenMetrics forbids both if an observation may be negative, because the sum could then decrease.
        if not (as_openmetrics and value.bounds and value.bounds[0] < 0):
            for suffix, number in (("_sum", value.sum), ("_count", sum(value.counts))):
                if suffix in suffixes:
                    yield f"{family.name}{suffix}{whole % labels} {_number(number)}\n"


def _pair(name: str) -> str:
    return f'{name}="%s"'


def _braces(name: str, pairs: list[str]) -> str:
    return f"{name}{{{','.join(pairs)}}}" if pairs else name


def _in_order(labels: tuple[str, ...], names: list[str]) -> Callable[[LabelValues], LabelValues]:
    """Return what puts the values of the labels into the order of the names."""
    if len(names) < 2 or [*labels] == names:
        return tuple  # of a tuple it is the tuple itself
    return itemgetter(*map(labels.index, names))


def _escaped(value: str) -> str:
    text = one_line(value)
    if "\\" in text or '"' in text:
        text = text.replace("\\", r"\\").replace('"', r"\"")
    return text


def _number(value: float) -> str:
    """As Go prints it, and so Prometheus' own exporters: repr() below a million."""
    return repr(float(value)) if -1e6 < value < 1e6 else _go_string(value)


def _exemplar(one: Exemplar) -> str:
    labels = ",".join([f'{name}="{_escaped(text)}"' for name, text in sorted(one.labels)])
    return f" # {{{labels}}} {_go_string(one.value)} {one.time}"
