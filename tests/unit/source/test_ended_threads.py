"""Sums by a fact of an ending thread keep its records before do_exit() apart from those after it."""

import itertools
import struct

from kprobe_exporter.model.aggregation import Group, Recipe
from kprobe_exporter.model.joins import Joins
from kprobe_exporter.model.records import LAYOUT_ID, TID, TIME
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.shape import shape
from kprobe_exporter.probing import thread_tracepoints
from kprobe_exporter.probing.thread_tracepoints import CHANGES_OF_THREADS, EXITING
from tests.support.kernel_formats import saved
from tests.support.page_material import Names, compiled
from tests.support.ring_buffer import GEOMETRY, Page, event

ENDED = saved("5.10")["tracefs/events/sched/sched_process_exit/format"].decode()
CODE = """\
name: do_exit
ID: 2000
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:unsigned long __probe_ip;	offset:8;	size:8;	signed:0;
	field:s32 code;	offset:16;	size:4;	signed:1;

print fmt: "(%lx) code=%d", REC->__probe_ip, REC->code
"""


def seen(tid: int) -> bytes:
    return event(int(ENDED.split("ID: ")[1].split()[0]), tid, struct.pack("=16sii", b"x", tid, 120))


def ends(tid: int, code: int) -> bytes:
    return event(2000, tid, struct.pack("=Qi", 0, code))


def test_records_before_and_after_an_exit() -> None:
    ids, kernel = itertools.count(), Kernel(lambda system, name: ENDED, counts_tracepoints=False)
    exiting = thread_tracepoints._spec(EXITING, kernel, ids).layout
    counted = thread_tracepoints._spec(thread_tracepoints.EXIT, kernel, ids).layout
    parser = compiled.PageParser(
        GEOMETRY,
        [shape(exiting, CODE), shape(counted, ENDED)],
        Names(),
        recipes={counted.layout_id: Recipe((Group(0, ("tid",), cgroups=(0,), facts=("exit_code",)),))},
        joins=Joins({}, {exiting.layout_id: CHANGES_OF_THREADS[EXITING.event]}),
    )
    page = Page()
    for time, one in enumerate((seen(8), seen(9), seen(8), ends(8, 256), seen(8), seen(9), seen(8)), 1):
        page.add(time, one)
    parser.feed(page.render(), 1)
    batch = parser.take()
    parser.join(batch)
    assert [(one[LAYOUT_ID], one[TIME], one[TID], one[-1]) for one in batch.records] == [
        (exiting.layout_id, 4, 8, 256)
    ]
    found = [(began, tally.key, tally.events) for began, tally in batch.by_thread]
    assert sorted(found) == [(1, (8,), 2), (2, (9,), 2), (5, (8,), 2)]
