"""Strings that programs pass to system calls, and how a trace shows them."""

import json
from typing import Any, TypeAlias

from tests.kernel.workload import FORGED
from tests.support.trace_process import TraceProcess

MOST = 8
"""Words of an argv that a trace shows."""

HOSTILE = (
    FORGED,
    b'"',
    b"\xff\xfe",
    b"new\nline",
    b"(fault)",
    b"{1,2}",
    b'x" return=0',
    b"\\x41",
    b" ",
    b"\t",
)
Object: TypeAlias = dict[str, Any]


def text(value: bytes) -> str:
    """A string as JSON shows it."""
    return value.decode(errors="backslashreplace")


def objects(trace: TraceProcess) -> list[Object]:
    return [json.loads(line) for line in trace.output.splitlines()]
