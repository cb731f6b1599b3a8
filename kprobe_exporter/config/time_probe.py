"""``time``: its model, and the probe that it stands for, which adds up the time of threads by class."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field

from kprobe_exporter.config.fields import Limit, LimitModel, Strict, no_items, threshold
from kprobe_exporter.config.model import Attach, Decode, Label, Metric, Probe, Stacks, WrittenPath
from kprobe_exporter.grammar.fetch import parse_fetch
from kprobe_exporter.grammar.target import Kind, Target

NAME, TOTAL, UNACCOUNTED_TOTAL = "time", "time_seconds_total", "time_unaccounted_seconds_total"
"""The name of the probe, and those of its metrics."""

CLASS = "class"
"""The label, and the field, that says what threads did."""

By: TypeAlias = Literal["cgroup", "container", "pod", "namespace", "exe", "uid"]

Further: TypeAlias = Literal["reclaim", "throttled"]

Name = TypeVar("Name")


def _once(names: list[Name]) -> list[Name]:
    if len({*names}) < len(names):
        raise ValueError("the same name is there twice: keep one")
    return names


class TimeModel(Strict):
    """The time of all threads by class: `running`, `waiting_for_cpu`, and what a thread waits for."""

    by: Annotated[list[By], Field(max_length=6), AfterValidator(_once)] = Field(default_factory=no_items)
    """Labels besides `class`, as `[pod]`; without them it is the time of the whole machine."""
    classes: Annotated[list[Further], Field(max_length=2), AfterValidator(_once)] = Field(
        default_factory=no_items
    )
    """Classes that need events of their own: `reclaim` then has threads that run to make room in memory, too,
    and `throttled` those that wait because their cgroup has no quota left."""
    limit: Limit = LimitModel(cpu="1%")
    """If exceeded for some seconds, it is disabled, and tried again with growing pauses."""


def _tracepoint(system: str, event: str, **fetch: str) -> Attach:
    return Attach(Target(Kind.TRACEPOINT, system=system, event=event), fetch, None, None)


def _event(name: str, **fetch: str) -> Attach:
    return _tracepoint("sched", name, **fetch)


def _function(symbol: str, fetch: Mapping[str, str]) -> Attach:
    """Return a function of the scheduler, and what is read of its arguments."""
    found = {one: parse_fetch(text) for one, text in fetch.items()}
    paths = {one: (WrittenPath(arg.body),) for one, arg in found.items() if arg.is_path}
    bodies = {one: arg.body for one, arg in found.items()}
    return Attach(Target(Kind.KPROBE, symbol=symbol), bodies, None, None, paths=paths)


THROTTLE_ARGS = {"group": "$arg1:u64", "to": "(rq)$arg2->cpu"}

OF_CLASSES: Mapping[Further, tuple[Attach, ...]] = {
    "reclaim": tuple(
        _tracepoint("vmscan", f"mm_vmscan_{kind}_reclaim_{end}")
        for kind in ("direct", "memcg")
        for end in ("begin", "end")
    ),
    "throttled": (
        _event("sched_migrate_task", task="pid", to="dest_cpu"),
        _function(
            "tg_throttle_down",
            {
                **THROTTLE_ARGS,
                "level": "(task_group)$arg1->css.cgroup->level",
                "name": "(task_group)$arg1->css.cgroup->kn->name",
            },
        ),
        _function("tg_unthrottle_up", THROTTLE_ARGS),
    ),
}
"""The events that further classes need."""


def time_probe(model: TimeModel) -> Probe:
    """Return the probe that a configuration with ``time`` has.

    sched_wakeup alone tells of a thread that is woken while it leaves its CPU.
    """
    labels = tuple(Label(name, "tid", (Decode(name),)) for name in model.by)
    events = (
        _event("sched_switch", prev="prev_pid", next="next_pid", state="prev_state"),
        _event("sched_waking", task="pid", to="target_cpu"),
        _event("sched_wakeup", task="pid", to="target_cpu"),
        *(event for name in model.classes for event in OF_CLASSES[name]),
        _event("sched_wakeup_new", task="pid", to="target_cpu"),
    )
    target = Target(Kind.PAIR, parts=tuple(one.target for one in events))
    attach = Attach(target, {}, None, None, begins=events[:-1], end=events[-1], of_time=True)
    metrics = (
        Metric(
            "counter",
            TOTAL,
            "Time of threads, by what they did; the classes add up to the time of all threads.",
            value="duration",
            labels=(*labels, Label(CLASS, CLASS)),
        ),
        Metric(
            "counter",
            UNACCOUNTED_TOTAL,
            "Time of threads of which too little was recorded to know what they did.",
            value="duration",
        ),
    )
    return Probe(
        NAME,
        "The time of threads by class.",
        (attach,),
        metrics,
        duration_buckets=(),
        stack=True,
        stacks=Stacks(weigh="duration"),
        aggregate="events",
        limit=threshold(model.limit),
    )
