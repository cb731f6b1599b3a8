"""Known faults, of the agent or of a kernel, which the drawing of cases therefore leaves out."""

from collections.abc import Mapping
from types import MappingProxyType

KNOWN: Mapping[str, str] = MappingProxyType(
    {
        "empty_texts": "Linux 6.1 stores a program's empty string, read by a kprobe, as an unreadable one.",
        "large_records": "An event whose record is larger than a page vanishes: a path of 4,000 bytes.",
        "wide_sums": "With `aggregate: kernel`, sums of a tracepoint's own fields wrap at 2^64 in a poll.",
    }
)
"""Names of exclusions, each with the fault in a sentence. `--draw NAME` draws what one of them leaves out."""
