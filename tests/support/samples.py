"""Reads the samples of Prometheus' text format, version 0.0.4, ten times as fast as prometheus_client.

Tests in a VM scrape thousands of times, and under emulation prometheus_client's parser takes 0.1 s a scrape.
"""

import re
from functools import lru_cache

Labels = frozenset[tuple[str, str]]

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?")
_PAIR = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\[\\n"])*)"(?:,|$)')
_ESCAPED = re.compile(r"\\(.)")
_MEANING = {"n": "\n"}


def samples(text: str) -> dict[tuple[str, Labels], float]:
    """Return the values by name and labels. Raises ValueError if a line is none or repeats another."""
    values: dict[tuple[str, Labels], float] = {}
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        if (found := _SAMPLE.fullmatch(line)) is None:
            raise ValueError(f"this is no sample: {line!r}")
        key = found[1], _labels(found[2] or "")
        if key in values:
            raise ValueError(f"this sample is there twice: {line!r}")
        values[key] = float(found[3])
    return values


@lru_cache(10_000)
def _labels(text: str) -> Labels:
    pairs = []
    at = 0
    while at < len(text):
        if (found := _PAIR.match(text, at)) is None:
            raise ValueError(f"these are no labels: {text!r}")
        value = found[2]
        if "\\" in value:
            value = _ESCAPED.sub(lambda escaped: _MEANING.get(escaped[1], escaped[1]), value)
        pairs.append((found[1], value))
        at = found.end()
    return frozenset(pairs)
