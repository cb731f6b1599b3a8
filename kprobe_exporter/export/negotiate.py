"""What an HTTP client accepts: Accept and Accept-Encoding with their q-values (RFC 9110 §12.5)."""

from collections.abc import Iterator
from typing import NamedTuple


class Accepted(NamedTuple):
    """One entry of a list: ``text/plain;version=0.0.4;q=0.5``. Names are in lower case."""

    value: str
    parameters: dict[str, str]
    quality: float


def accepted(header: str) -> Iterator[Accepted]:
    """The entries in the order of the header; one whose q-value cannot be read is not wanted."""
    for entry in header.split(","):
        value, *rest = entry.split(";")
        pairs = (parameter.partition("=") for parameter in rest)
        parameters = {name.strip().lower(): text.strip(' \t"') for name, _, text in pairs}
        yield Accepted(value.strip().lower(), parameters, _quality(parameters.pop("q", "1")))


def accepts_gzip(header: str) -> bool:
    """An Accept-Encoding that names gzip, and not to refuse it."""
    return any(entry.value == "gzip" and entry.quality > 0 for entry in accepted(header))


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    # Also false for NaN.
    return quality if 0 <= quality <= 1 else 0.0
