"""Faults of the agent that are known, and that the drawing of cases therefore leaves out."""

from collections.abc import Mapping
from types import MappingProxyType

KNOWN: Mapping[str, str] = MappingProxyType(
    {
        "large_records": "An event whose record is larger than a page vanishes: a path of 4,000 bytes.",
        "wide_sums": "With `aggregate: kernel`, sums of a tracepoint's own fields wrap at 2^64 in a poll.",
    }
)
"""Names of exclusions, each with the fault in a sentence. `--draw NAME` draws what one of them leaves out."""
