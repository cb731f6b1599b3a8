"""The process of a short-lived thread is known by the event of its start when its own events are read."""

import itertools
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kprobe_exporter.agent import thread_events
from kprobe_exporter.identity.threads import CLONE_THREAD
from kprobe_exporter.model.records import LAYOUT_ID, TGID, TID
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.shape import shape
from kprobe_exporter.probing import thread_tracepoints
from tests.model import pages
from tests.support.kernel_formats import saved
from tests.support.page_material import Names, compiled
from tests.support.proc_threads import Machine
from tests.support.ring_buffer import GEOMETRY, Page, event

FORMATS = {
    name: saved("5.10")[f"tracefs/events/{name}/format"].decode()
    for name in ("task/task_newtask", "sched/sched_process_exit")
}
NUMBERS = {name: int(text.split("ID: ")[1].split()[0]) for name, text in FORMATS.items()}


def start(parent: int, child: int, flags: int) -> bytes:
    content = struct.pack("=i16sIQhxx", child, b"x", 0, flags, 0)
    return event(NUMBERS["task/task_newtask"], parent, content)


def end(tid: int) -> bytes:
    return event(NUMBERS["sched/sched_process_exit"], tid, struct.pack("=16sii", b"x", tid, 120))


@pytest.mark.parametrize("kind", [pages.PageParser, compiled.PageParser], ids=["python", "compiled"])
def test_a_process_and_its_thread_that_have_ended(tmp_path: Path, kind: Any) -> None:
    """Nothing of them is in /proc, nor in what the kernel saved, which is never searched."""
    machine, ids = Machine(tmp_path), itertools.count()
    machine.born(6, 6, b"parent")
    kernel = Kernel(lambda system, name: FORMATS[f"{system}/{name}"], counts_tracepoints=False)
    new, ended = (
        thread_tracepoints._spec(followed, kernel, ids)
        for followed in (thread_tracepoints.NEW, thread_tracepoints.EXIT)
    )
    own: Any = SimpleNamespace(parts=[SimpleNamespace(layout=new.layout)])
    parser = kind(
        GEOMETRY,
        [
            shape(new.layout, FORMATS["task/task_newtask"]),
            shape(ended.layout, FORMATS["sched/sched_process_exit"]),
        ],
        type("Known", (Names,), {"tgid": lambda _, tid: machine.threads.tgid(tid)})(),
        tgid=True,
        filters=thread_events.starts_of_threads(own, machine.threads.started),
    )
    page = Page()
    for one in (start(6, 70, 0), start(70, 71, CLONE_THREAD), end(71), end(70)):
        page.add(1, one)
    parser.feed(page.render(), 1)
    records = parser.take().records
    assert {record[LAYOUT_ID] for record in records} == {ended.layout.layout_id}
    assert [(record[TID], record[TGID]) for record in records] == [(71, 70), (70, 70)]
    assert machine.searches == 0


def test_starts_in_the_order_of_cpus(tmp_path: Path) -> None:
    """A thread's start was read before that of its process, and the thread that started it is a third one."""
    known = Machine(tmp_path).threads
    known.started(71, 72, CLONE_THREAD)
    known.started(70, 71, CLONE_THREAD)
    known.started(6, 70, 0)
    assert known.tgid(72) == 70
    known.started(6, 72, 0)
    assert known.tgid(72) == 72
