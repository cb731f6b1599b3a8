"""A tracepoint's own fields and the thread of the event, as pages, text and a replay give them."""

import itertools
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.recipes import source_recipe
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Label, Metric
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import Kernel, plan_probe
from kprobe_exporter.plan.shape import shape
from kprobe_exporter.replay.replay import Replay
from kprobe_exporter.source.lines import LineParser
from tests.model import pages
from tests.support.captured_text import line
from tests.support.kernel_formats import saved
from tests.support.page_material import Names, compiled
from tests.support.planned import attach, probe
from tests.support.ring_buffer import GEOMETRY, Page, event

FORMAT = saved("5.10")["tracefs/events/sched/sched_wakeup/format"].decode()
LABELS = ("comm", "common_comm", "pid", "common_pid", "common_tgid", "cpu", "common_cpu")
METRICS = (
    Metric("counter", "a_total", "", labels=tuple(Label(name, name) for name in LABELS)),
    Metric("counter", "b_total", "", where='pid == 8 && comm == "woken"'),
    Metric("counter", "c_total", "", where="common_pid == 6 && common_cpu == 1"),
    Metric("counter", "d_total", "", where="common_tgid == 3"),
    Metric("counter", "e_total", "", where='common_comm == "thread 6"'),
)
WAKEUPS = ((6, b"woken", 8), (6, b"woken", 8), (7, b"thread 6", 6))
"""The waking thread, and the woken one's name and id."""


def planned(*, binary: bool) -> tuple[ProbeSpec, Any]:
    kernel = Kernel(lambda system, event: FORMAT, counts_tracepoints=False, binary=binary)
    metrics: tuple[Metric, ...] = METRICS
    if not binary:  # the text has no name of the thread
        named = tuple(label for label in METRICS[0].labels if label.field != "common_comm")
        metrics = (replace(METRICS[0], labels=named), *METRICS[1:4])
    made = probe(attach("tracepoint:sched:sched_wakeup"), metrics=metrics)
    plan = plan_probe(made, "ns", DECODERS, kernel, itertools.count())
    own = plan.alternatives[-1]
    assert isinstance(own, ProbeSpec)
    assert own.layout.form == "tracepoint"
    return own, plan.metrics


def samples(layout: Any, metrics: Any, batch: Any) -> dict[str, Any]:
    aggregator = Aggregator("ns", SeriesLimits(10, 100), lambda number: f"E{number}")
    aggregator.declare(metrics)
    aggregator.attach(layout, count_hits=True)
    aggregator.consume(batch)
    return {family.name: dict(family.samples) for family in aggregator.copy().families}


@pytest.mark.parametrize("kind", [pages.PageParser, compiled.PageParser], ids=["python", "compiled"])
def test_pages(kind: Any) -> None:
    own, metrics = planned(binary=True)
    recipe = source_recipe(own.layout, metrics, None)
    assert recipe
    recipes = {own.layout.layout_id: recipe} if kind is compiled.PageParser else {}
    parser = kind(GEOMETRY, [shape(own.layout, FORMAT)], Names(), recipes=recipes, tgid=True)
    page = Page()
    for tid, comm, pid in WAKEUPS:
        page.add(1, event(317, tid, comm.ljust(16, b"\0"), struct.pack("=iiii", pid, 120, 1, 0)))
    parser.feed(page.render(), 1)
    batch = parser.take()
    assert bool(batch.records) is (kind is pages.PageParser)
    found = samples(own.layout, metrics, batch)
    assert found["ns_a_total"] == {
        ("woken", "thread 6", "8", "6", "3", "1", "1"): 2,
        ("thread 6", "thread 7", "6", "7", "3", "1", "1"): 1,
    }
    assert [found[f"ns_{name}_total"] for name in "bcde"] == [{(): 2}, {(): 2}, {(): 3}, {(): 2}]


def test_text() -> None:
    own, metrics = planned(binary=False)
    parser = LineParser([own.layout])
    text = b"".join(
        line(b"sched_wakeup: comm=%s pid=%d prio=120 target_cpu=000" % (comm, pid), b"a", tid, b"(      3) ")
        for tid, comm, pid in WAKEUPS
    )
    found = samples(own.layout, metrics, parser.feed(text))
    assert found["ns_a_total"] == {
        ("woken", "8", "6", "3", "1", "1"): 2,
        ("thread 6", "6", "7", "3", "1", "1"): 1,
    }
    assert [found[f"ns_{name}_total"] for name in "bcd"] == [{(): 2}, {(): 2}, {(): 3}]


def test_a_replay(tmp_path: Path) -> None:
    """The text of a tracepoint has no name of the thread; that of the agent's eprobe has both."""
    path = tmp_path / "config.yaml"
    given = "attach: 'tracepoint:sched:sched_wakeup', metrics"
    labels = "labels: [comm, common_comm, pid, common_pid]"
    probes = [
        f"{{name: {name}, {given}: [{{counter: {name}_total, {labels}}}]}}"
        for name in ("sched_wakeup", "mine")
    ]
    path.write_text(f"probes: [{', '.join(probes)}]")
    replay = Replay(load([path], DECODERS))
    replay.feed(
        line(b"sched_wakeup: comm=woken pid=8 prio=120 target_cpu=000", tid=6)
        + line(b'mine: (sched.sched_wakeup) pid=8 comm="woken" COMM="waker"', tid=6)
    )
    replay.finish()
    shown = replay.metrics().decode()
    assert 'kprobe_mine_total{comm="woken",common_comm="waker",common_pid="6",pid="8"} 1' in shown
    assert 'kprobe_sched_wakeup_total{comm="woken",common_comm="unknown",common_pid="6",pid="8"} 1' in shown
