"""The view ``classes`` of a tool: where the time of a scope's threads went in each interval, by class."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.stack_classes import class_of_seen
from kprobe_exporter.config.model import Label, Metric, Probe
from kprobe_exporter.errors import UsageError
from kprobe_exporter.identity.procfs import host_proc
from kprobe_exporter.identity.thread_files import ThreadFiles
from kprobe_exporter.model.snapshot import Family
from kprobe_exporter.probing.scope import Scope
from kprobe_exporter.source.binary import BinaryPipe
from kprobe_exporter.tools.columns import Column
from kprobe_exporter.trace.capture import NAMESPACE, collected
from kprobe_exporter.trace.interval_numbers import Interval
from kprobe_exporter.trace.loops import Screen, run_until_end, wants_color
from kprobe_exporter.trace.output import Gone
from kprobe_exporter.trace.rows import Display
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.tables import TableView
from kprobe_exporter.trace.threads_in_scope import ScopeOfThreads
from kprobe_exporter.trace.time_classes import TimeClasses
from kprobe_exporter.tracefs.profile import buffer_stats

TIME_OF_CLASS, TIME_OF_ALL = "time_seconds_total", "threads_seconds_total"
"""The numbers that a column shows: the time of a class, and that of all classes with the same labels."""

LABELS = ("tid", "pid", "comm")
"""The labels that a column may show, besides ``class``."""


def fetching(probe: Probe) -> Probe:
    """Return the probe so that each event is recorded, with what it fetches."""
    if any(attach.of_time for attach in probe.attach):
        return probe
    fetched = [name for attach in probe.attach for name in attach.fetch]
    labels = tuple(Label(name, name) for name in dict.fromkeys(fetched))
    metric = Metric("counter", "total", "", labels=labels)
    return replace(probe, aggregate="events", metrics=(metric,))


def shown_labels(columns: Sequence[Column]) -> list[str]:
    """Return the labels that columns show, besides the class."""
    return [column.source for column in columns if column.source in LABELS]


def show_classes(
    session: TraceSession,
    probes: Sequence[Probe],
    columns: Sequence[Column],
    sort: str | None,
    shown: Display,
    scope: Scope,
) -> int:
    """Write where the time of the scope's threads went, each interval; return the number of lost events.

    Raises UsageError for a scope by names, which the events of other threads do not have.
    """
    if scope.comm is not None:
        raise UsageError(
            "--comm: another thread wakes a thread, so a name cannot choose these events: give -p, -L, -c, "
            "--uid, --cgroup, --container or --pod."
        )
    proc, labels = host_proc(), shown_labels(columns)
    members = ScopeOfThreads(session, scope, proc)
    members.follow()
    classes = TimeClasses(members, ThreadFiles(proc, class_of_seen), labels)
    view, screen = TableView("counts", columns, sort, None, shown), Screen(session.out, over=False)
    before: Interval | None = None
    begun = 0
    with collected(
        session,
        [fetching(probe) for probe in probes],
        classes.consume,
        single=True,
        all_fields=True,
        any_thread=True,
        times=classes.plan,
    ) as capture:
        pipe = capture.pipe
        assert isinstance(pipe, BinaryPipe)

        def started() -> None:
            nonlocal begun, before
            begun = time.monotonic_ns()
            classes.begin(pipe.threads, begun)
            before = _interval((), 0.0, None)

        def show(passed: float = 0.0) -> None:
            nonlocal before
            now = classes.flush(pipe.threads, lambda: pipe.empty(last=False))
            here = _interval(families(labels, classes.take()), (now - begun) / 1e9, before)
            before = _interval((), here.at, None)
            moment = datetime.now(UTC).astimezone()
            screen.draw(view.lines(here, (), moment, color=wants_color(session.out)))

        with suppress(Gone):
            run_until_end(session, capture, show, interval=shown.interval, started=started, before_pause=show)
        stats = buffer_stats(session.instance.files, session.instance.path)
    return stats.overrun + stats.dropped


def families(labels: Sequence[str], by_class: Mapping[tuple[str, ...], int]) -> tuple[Family, ...]:
    """Return the numbers of an interval, in nanoseconds, as metrics."""
    names, of_all = (*labels, "class"), Counter[tuple[str, ...]]()
    for key, nanoseconds in by_class.items():
        of_all[key[:-1]] += nanoseconds
    parts: dict[tuple[str, ...], Any] = dict(by_class)
    whole: dict[tuple[str, ...], Any] = {key: of_all[key[:-1]] for key in by_class}
    return (
        Family(f"{NAMESPACE}_{TIME_OF_CLASS}", "counter", "", names, parts),
        Family(f"{NAMESPACE}_{TIME_OF_ALL}", "counter", "", names, whole),
    )


def _interval(found: tuple[Family, ...], at: float, before: Interval | None) -> Interval:
    return Interval(Numbers(found, {}, {}, {}, {}, {}, {}, 0), {}, at, before, NAMESPACE, {}, {})
