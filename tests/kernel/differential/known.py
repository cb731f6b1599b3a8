"""Faults of the agent that are known, and that the drawing of cases therefore leaves out."""

from collections.abc import Mapping
from types import MappingProxyType

KNOWN: Mapping[str, str] = MappingProxyType(
    {
        "large_records": "An event whose record is larger than a page vanishes: a path of 4,000 bytes.",
        "hits_before_recording": "Under load at a start or a reload, hits of tracepoints, system calls and"
        " `aggregate: kernel` count before recording begins.",
        "exec_of_a_thread": "The execve of a thread that is not its process' first has a wrong duration.",
        "exit_inside": "A call whose thread ends inside it is neither an event nor told as `unpaired`.",
        "fork_inside": "A fork inside a `ucall` is told as `unpaired`: the child returns without an entry.",
        "wide_sums": "With `aggregate: kernel`, sums of one poll wrap beyond 2^63.",
    }
)
"""Names of exclusions, each with the fault in a sentence. `--draw NAME` draws what one of them leaves out."""
