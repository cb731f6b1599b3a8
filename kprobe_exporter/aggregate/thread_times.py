"""Makes the parts of threads' time the sums of a probe's metrics."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from kprobe_exporter.aggregate.stack_classes import UNACCOUNTED, class_of
from kprobe_exporter.aggregate.stack_counts import cut
from kprobe_exporter.model.aggregation import Tally
from kprobe_exporter.model.records import Batch, Join
from kprobe_exporter.model.specs import LabelSpec
from kprobe_exporter.model.stacks import StackTally, Weight
from kprobe_exporter.model.thread_times import ThreadState, ThreadTime

KEPT_NS = 2_000_000_000
"""Nanoseconds for which the cgroup of a thread that has ended is remembered."""

MOST_PATHS = 4096


class CgroupPaths:
    """The paths of threads' cgroups, as ``look_up`` finds them, which returns an empty one if it does not.

    A thread that has ended meanwhile has the path that it had at an earlier wait.
    """

    def __init__(self, look_up: Callable[[int], bytes]) -> None:
        self._look_up = look_up
        self._known: dict[int, tuple[bytes, int]] = {}

    def of(self, tid: int, moment: int) -> bytes:
        """Return the path of a thread that waited at a moment, in nanoseconds; empty if it is unknown."""
        path = self._look_up(tid)
        if not path:
            path, known = self._known.get(tid, (b"", 0))
            return path if moment - known < KEPT_NS else b""
        self._known.pop(tid, None)
        self._known[tid] = path, moment
        if len(self._known) > MOST_PATHS:
            del self._known[next(iter(self._known))]
        return path


class TimeTallies:
    """Turns the parts of threads' time in batches into tallies.

    The first metric of the probe has the ``labels``: facts of a thread, and the class of what it did. The
    second one is the unaccounted time. The stacks of sleeps begin with their class. The hits of the probe are
    the events that begin or end a part.
    """

    def __init__(self, join: Join, labels: Sequence[LabelSpec], paths: CgroupPaths) -> None:
        self._layout_id = join.layout.layout_id
        self._begins, self._end = [one.layout_id for one in join.begins], join.end.layout_id
        self._by_thread = [label.field == "tid" for label in labels]
        self._paths = paths

    def take(self, batch: Batch) -> None:
        """Replace the parts of a batch by tallies."""
        for part in own_parts(batch.thread_times, self._paths.of):
            class_ = class_of(part)
            key = tuple(part.tid if by_thread else class_.encode() for by_thread in self._by_thread)
            made = [Tally(self._layout_id, 0, key, 1, part.nanoseconds)]
            if class_ == UNACCOUNTED:
                made.append(Tally(self._layout_id, 1, (), 1, part.nanoseconds))
            batch.by_thread += [(part.moment, one) for one in made]
            if part.stack is not None:
                stack, weight = (*cut(part.stack), class_.encode()), Weight(1, part.nanoseconds)
                batch.stack_tallies.append(StackTally(self._layout_id, stack, 0, (), weight))
        batch.thread_times.clear()
        begun = sum(batch.arrived.pop(layout_id, 0) for layout_id in self._begins)
        batch.arrived.pop(self._end, None)
        if begun:
            batch.begun[self._layout_id] = batch.begun.get(self._layout_id, 0) + begun


def own_parts(parts: Iterable[ThreadTime], path_of: Callable[[int, int], bytes]) -> Iterator[ThreadTime]:
    """Yield the parts of threads' time, so that they add up to it.

    The kernel throttles a cgroup with all cgroups below it, so the deepest one on a thread's path counts. The
    time of it is taken off the thread's wait for a CPU.
    """
    found: dict[int, tuple[int, ThreadTime]] = {}
    paths: dict[int, bytes] = {}
    others: list[ThreadTime] = []
    for part in parts:
        if part.state is not ThreadState.THROTTLED:
            others.append(part)
            continue
        if part.tid not in paths:
            paths[part.tid] = path_of(part.tid, part.moment)
        level = level_within(paths[part.tid], part.cgroup)
        if level > found.get(part.tid, (0, part))[0]:
            found[part.tid] = level, part
    throttled = Counter({tid: part.nanoseconds for tid, (_, part) in found.items()})
    for part in others:
        if part.state is ThreadState.WAITING and (taken := min(throttled[part.tid], part.nanoseconds)):
            throttled[part.tid] -= taken
            yield found[part.tid][1]._replace(nanoseconds=taken, moment=part.moment)
            part = part._replace(nanoseconds=part.nanoseconds - taken)  # noqa: PLW2901
        if part.nanoseconds:
            yield part


def level_within(path: bytes, cgroup: bytes) -> int:
    """Return the level of the cgroup ``LEVEL:NAME`` if it is on a path, else 0.

    In a cgroup namespace of its own the agent sees ``/../NAME`` of others, of which the level is unknown.
    Then the last name counts.
    """
    text, _, name = cgroup.partition(b":")
    names, level = path.split(b"/"), int(text)
    if names[1:2] == [b".."]:
        return level if names[-1] == name else 0
    return level if level < len(names) and names[level] == name else 0
