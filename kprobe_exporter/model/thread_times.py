"""The data by which a source adds up the time of threads by their state, and what it adds up."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.stacks import Stack


class ThreadState(IntEnum):
    """The activity of a thread (``enum thread_state`` of engine.h)."""

    RUNNING = 0
    WAITING = 1
    ASLEEP = 2
    UNKNOWN = 3
    RECLAIMING = 4
    THROTTLED = 5


class SchedulerEvent(NamedTuple):
    """An event of the scheduler or of memory, and the names of its fields.

    A ``switched`` has three: the thread that leaves the CPU, the one that gets it, and the state of the first
    one (prev_state). A ``created`` has the new thread and the flags of clone(). A ``woken``, a ``born`` and a
    ``migrated`` have the thread and its CPU. Between an ``entered`` and a ``left``, which have the thread, it
    reclaims memory. Between a ``throttled`` and an ``unthrottled``, which have a cgroup's number and a CPU,
    no thread of the cgroup gets this CPU; the first one also has the cgroup's level and name.
    """

    kind: Literal[
        "switched",
        "woken",
        "created",
        "born",
        "migrated",
        "entered",
        "left",
        "throttled",
        "unthrottled",
    ]
    fields: tuple[str, ...]


SCHEDULER_EVENTS: Mapping[str, SchedulerEvent] = {
    "sched_switch": SchedulerEvent("switched", ("prev", "next", "state")),
    "sched_waking": SchedulerEvent("woken", ("task", "to")),
    "sched_wakeup": SchedulerEvent("woken", ("task", "to")),
    "sched_wakeup_new": SchedulerEvent("born", ("task", "to")),
    "sched_migrate_task": SchedulerEvent("migrated", ("task", "to")),
    "mm_vmscan_direct_reclaim_begin": SchedulerEvent("entered", ("common_pid",)),
    "mm_vmscan_direct_reclaim_end": SchedulerEvent("left", ("common_pid",)),
    "mm_vmscan_memcg_reclaim_begin": SchedulerEvent("entered", ("common_pid",)),
    "mm_vmscan_memcg_reclaim_end": SchedulerEvent("left", ("common_pid",)),
    "tg_throttle_down": SchedulerEvent("throttled", ("group", "to", "level", "name")),
    "tg_unthrottle_up": SchedulerEvent("unthrottled", ("group", "to")),
}
"""By the name of a tracepoint or a function, the names under which a probe fetches its fields."""


Follow: TypeAlias = Literal["threads", "processes", "all"]


class ThreadTimesPlan(NamedTuple):
    """How a source adds up the time of threads: from these events, by their layout_id.

    It follows the threads that it is told to watch. ``follows`` adds the new ``threads`` of a followed
    process, the new ``processes`` of a followed thread, or ``all`` threads of which an event tells.
    ``by_cgroup``: the time of a thread before and after a move to another cgroup is kept apart.
    """

    events: Mapping[int, SchedulerEvent]
    follows: frozenset[Follow] = frozenset()
    by_cgroup: bool = False


class Watched(NamedTuple):
    """A thread whose time is added up from ``since`` on, in nanoseconds of the instance's clock.

    At the moment ``seen`` it was in this state: asleep for a reason, runnable (WAITING), or UNKNOWN. It is
    ``certain`` that a thread without an event is RUNNING, or waits for a CPU.
    """

    tid: int
    since: int
    state: ThreadState = ThreadState.UNKNOWN
    seen: int = 0
    reason: str = ""
    certain: bool = False


class ThreadTime(NamedTuple):
    """A part of a thread's time: the nanoseconds that it was in a state.

    A sleep has the kernel's stack, None if it was lost; or the ``reason`` that it had when the thread was
    first watched. ``moment`` is the end of its first piece: the thread was in one cgroup for all of it. A
    part of the state THROTTLED belongs to the thread's WAITING if the thread is in the ``cgroup``,
    ``LEVEL:NAME``, and is to be ignored otherwise.
    """

    tid: int
    state: ThreadState
    nanoseconds: int
    moment: int
    stack: Stack | None = None
    reason: str = ""
    cgroup: bytes = b""
