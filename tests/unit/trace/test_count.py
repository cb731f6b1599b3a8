"""trace.count: the hits, the errors and the histogram of one probe are about the same events."""

from types import SimpleNamespace
from typing import Any

import pytest

from kprobe_exporter.config.model import return_type
from kprobe_exporter.model.records import Batch, Layout, Record
from kprobe_exporter.model.snapshot import KernelCounts
from kprobe_exporter.model.specs import ProbeMetrics
from kprobe_exporter.model.values import Arg
from kprobe_exporter.trace.count import DURATIONS, RETURNS, CountTable, TraceCounts
from kprobe_exporter.trace.facts import ProcessFacts

INT = return_type("int")
ARGS = (Arg("duration", "int"), Arg("return", "int"))
CALL = Layout(1, "read", "read", "joined", "vfs_read", ARGS, INT)


def call(returned: int) -> Record:
    return (1, 5, 0, 11, 10, b"ksys_read", 1500, returned)


def counted(plan: str, hits: int, *records: Record, narrowed: bool = False) -> CountTable:
    """Return the table of a probe whose kernel counts ``hits``, after these records."""
    counts = TraceCounts("call:vfs_read", narrowed)
    metrics = ProbeMetrics("read", (), RETURNS, INT, DURATIONS)
    attached = SimpleNamespace(
        spec=SimpleNamespace(target="call:vfs_read", plan=plan),
        layout=CALL,
        counted_by_kernel=True,
        residual_filter=None,
        tables=(),
        joined=True,
    )
    capture: Any = SimpleNamespace(
        plans=[SimpleNamespace(probe=SimpleNamespace(name="read"), metrics=metrics)],
        attached=[attached],
        facts=ProcessFacts(),
    )
    counts.attach(capture)
    counts.consume(Batch(list(records)))
    counts.update(KernelCounts({"read": hits}, {}, {}, 0), ())
    return counts.table(2.0, last=True)


def test_hits_of_a_call_are_those_of_its_histogram() -> None:
    """The kernel also counts this thread's calls, and those that have not returned."""
    table = counted("events", 122, *[call(0)] * 36, call(-9))
    [row] = table.rows
    assert (row.events, row.rate, dict(row.errors)) == (37, 18.5, {"EBADF": 1})
    assert table.histogram is not None
    assert sum(table.histogram.counts) == 37


@pytest.mark.parametrize(("narrowed", "events"), [(False, 122), (True, 0)])
def test_hits_that_are_only_counted_are_the_kernels(narrowed: bool, events: int) -> None:
    [row] = counted("count", 122, narrowed=narrowed).rows
    assert row.events == events
