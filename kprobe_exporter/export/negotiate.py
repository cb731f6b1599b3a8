"""Content negotiation: Accept and Accept-Encoding headers with q-values (RFC 9110 §12.5)."""

from collections.abc import Iterator
from typing import NamedTuple


class Accepted(NamedTuple):
    """One entry of a header: ``text/plain;version=0.0.4;q=0.5``. Names are in lower case."""

    value: str
    parameters: dict[str, str]
    quality: float


def accepted(header: str) -> Iterator[Accepted]:
    """Yield the entries in the header's order; an entry with an invalid q-value has quality 0."""
    for entry in header.split(","):
        value, *rest = entry.split(";")
        pairs = (parameter.partition("=") for parameter in rest)
        parameters = {name.strip().lower(): text.strip(' \t"') for name, _, text in pairs}
        yield Accepted(value.strip().lower(), parameters, _quality(parameters.pop("q", "1")))


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding header names gzip with a quality above 0."""
    return any(entry.value == "gzip" and entry.quality > 0 for entry in accepted(header))


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    # The comparison is also false for NaN.
    return quality if 0 <= quality <= 1 else 0.0
