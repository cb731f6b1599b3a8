"""The number of firings that a hist trigger counted."""

import errno

import pytest

from kprobe_exporter.tracefs.hist import HitCounter
from kprobe_exporter.tracefs.hist_tables import parse_hist
from kprobe_exporter.tracefs.instance import Instance
from tests.unit.tracefs.conftest import Table

EVENT = "events/sched/sched_process_exec"
TABLE = b"""\
# event histogram
#
# trigger info: hist:keys=common_cpu:vals=hitcount:sort=hitcount:size=2048 [active]
#

{ common_cpu:          0 } hitcount:          7
{ common_cpu:          1 } hitcount:         16

Totals:
    Hits: 23
    Entries: 2
    Dropped: 0
"""
FILTERED = TABLE.replace(b" [active]", b" if ret < 0 [active]").replace(b"23", b"99")


@pytest.fixture
def counter(table: Table) -> HitCounter:
    table.files[f"instances/i/{EVENT}/hist"] = b""
    made = HitCounter.attach(Instance(table, "i", None), EVENT)
    assert made is not None
    assert table.written == [(f"instances/i/{EVENT}/trigger", "hist:keys=common_cpu")]
    made.begin()
    return made


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        (TABLE, 23),
        (TABLE.replace(b"Hits: 23", b"Hits: 18446744073709551615"), 2**64 - 1),
        (TABLE.replace(b"Dropped: 0", b"Dropped: 5"), 28),
        (FILTERED + b"\n\n" + TABLE, 23),
        (TABLE + b"\n\n" + FILTERED, 23),
        (FILTERED, None),
        (b"", None),
        (TABLE[: TABLE.index(b"Entries")], None),
        (TABLE.replace(b"Hits: 23", b"Hits: -1"), None),
    ],
)
def test_the_total(counter: HitCounter, table: Table, text: bytes, hits: int | None) -> None:
    table.files[f"instances/i/{EVENT}/hist"] = text
    assert counter.read() == counter.total(parse_hist(text)) == hits


def test_an_event_that_is_gone(counter: HitCounter, table: Table) -> None:
    table.files.clear()
    assert counter.read() is None
    assert HitCounter.attach(Instance(table, "i", None), EVENT) is None


def test_two_probes_count_by_one_trigger(counter: HitCounter, table: Table) -> None:
    """The kernel has one trigger for both: the second counts from its own start; the last one removes it."""
    instance = counter._instance
    table.files[f"instances/i/{EVENT}/hist"] = TABLE
    table.refused[f"instances/i/{EVENT}/trigger"] = errno.EEXIST
    second = HitCounter.attach(instance, EVENT)
    table.refused.clear()
    assert second is not None
    second.begin()
    assert (counter.read(), second.read()) == (23, 0)
    table.files[f"instances/i/{EVENT}/hist"] = TABLE.replace(b"Hits: 23", b"Hits: 30")
    assert (counter.read(), second.read()) == (30, 7)
    table.written.clear()
    counter.detach()
    counter.detach()
    assert table.written == []
    second.detach()
    assert table.written == [(f"instances/i/{EVENT}/trigger", "!hist:keys=common_cpu")]


def test_it_counts_while_its_event_is_recorded(counter: HitCounter, table: Table) -> None:
    """What the trigger counts before recording begins, or after it ended, is no hit."""
    second = HitCounter.attach(counter._instance, EVENT)
    assert second is not None
    table.files[f"instances/i/{EVENT}/hist"] = TABLE
    assert second.read() == 0
    second.begin()
    table.files[f"instances/i/{EVENT}/hist"] = TABLE.replace(b"Hits: 23", b"Hits: 30")
    second.begin()
    assert second.read() == 7
    second.freeze()
    table.files[f"instances/i/{EVENT}/hist"] = TABLE.replace(b"Hits: 23", b"Hits: 40")
    second.freeze()
    assert (counter.read(), second.read()) == (40, 7)
    unbegun = HitCounter.attach(counter._instance, EVENT)
    assert unbegun is not None
    unbegun.freeze()
    assert unbegun.read() == 0


def test_it_goes_as_it_came(counter: HitCounter, table: Table) -> None:
    table.written.clear()
    counter.detach()
    assert table.written == [(f"instances/i/{EVENT}/trigger", "!hist:keys=common_cpu")]
