"""aggregate.thread_times: which throttled cgroup is that of a thread, and what is left of its wait."""

import pytest

from kprobe_exporter.aggregate.thread_times import KEPT_NS, MOST_PATHS, CgroupPaths, level_within, own_parts
from kprobe_exporter.model.thread_times import ThreadState, ThreadTime

WAITING, RUNNING, THROTTLED = ThreadState.WAITING, ThreadState.RUNNING, ThreadState.THROTTLED
PATHS = {7: b"/shop.slice/web.service", 8: b"/shop.slice", 9: b""}


def parts(*found: ThreadTime) -> list[tuple[int, ThreadState, int]]:
    return [(one.tid, one.state, one.nanoseconds) for one in own_parts(found, lambda tid, _: PATHS[tid])]


def throttled(tid: int, nanoseconds: int, cgroup: bytes) -> ThreadTime:
    return ThreadTime(tid, THROTTLED, nanoseconds, 5, cgroup=cgroup)


@pytest.mark.parametrize(
    ("path", "cgroup", "level"),
    [
        (b"/a/b/c", b"2:b", 2),
        (b"/a/b/c", b"3:c", 3),
        (b"/a/b/c", b"1:b", 0),
        (b"/a/b", b"3:b", 0),
        (b"/../b", b"4:b", 4),
        (b"/../../a/b", b"4:a", 0),
        (b"", b"1:a", 0),
        (b"/x:y", b"1:x:y", 1),
    ],
)
def test_level_of_a_cgroup_on_a_path(path: bytes, cgroup: bytes, level: int) -> None:
    assert level_within(path, cgroup) == level


def test_deepest_cgroup_counts() -> None:
    """Who throttles a cgroup throttles those below it, whose own quota may be used up for longer."""
    assert parts(
        throttled(7, 30, b"1:shop.slice"),
        throttled(7, 40, b"2:web.service"),
        throttled(7, 50, b"2:other.service"),
        ThreadTime(7, RUNNING, 10, 5),
        ThreadTime(7, WAITING, 60, 6),
    ) == [(7, RUNNING, 10), (7, THROTTLED, 40), (7, WAITING, 20)]


def test_wait_that_was_all_throttled() -> None:
    assert parts(throttled(8, 30, b"1:shop.slice"), ThreadTime(8, WAITING, 30, 6)) == [(8, THROTTLED, 30)]


def test_wait_of_several_moments() -> None:
    """A thread that moved has two waits: the whole never exceeds them."""
    found = parts(
        throttled(8, 50, b"1:shop.slice"), ThreadTime(8, WAITING, 30, 6), ThreadTime(8, WAITING, 15, 7)
    )
    assert found == [(8, THROTTLED, 30), (8, THROTTLED, 15)]


def test_thread_whose_cgroup_is_unknown_waits() -> None:
    assert parts(throttled(9, 30, b"1:shop.slice"), ThreadTime(9, WAITING, 30, 6)) == [(9, WAITING, 30)]


def test_ended_thread_has_the_cgroup_of_its_earlier_wait() -> None:
    living = {7: b"/a"}
    paths = CgroupPaths(lambda tid: living.get(tid, b""))
    assert paths.of(7, 10) == b"/a"
    living[7] = b"/b"
    assert paths.of(7, 20) == b"/b"
    del living[7]
    assert paths.of(7, 20 + KEPT_NS - 1) == b"/b"
    assert paths.of(7, 20 + KEPT_NS) == b""
    assert paths.of(8, 20) == b""


def test_remembered_cgroups_are_bounded() -> None:
    living = set(range(MOST_PATHS + 5))
    paths = CgroupPaths(lambda tid: b"/a" if tid in living else b"")
    for tid in living:
        paths.of(tid, 1)
    living.clear()
    assert [paths.of(tid, 1) for tid in (0, 4, 5, MOST_PATHS)] == [b"", b"", b"/a", b"/a"]
