"""Counted stacks: without the tracer's frames, bounded, each hit counted once, as a stack or as lost."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.program_stacks import ProgramLookup, ProgramStacks
from kprobe_exporter.aggregate.recorded_stacks import RecordedStacks
from kprobe_exporter.aggregate.series import IDLE, SeriesLimits
from kprobe_exporter.aggregate.stack_counts import StackCounts, StackDeltas, StackRoom, cut
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import Batch, Join, Layout, Record
from kprobe_exporter.model.stacks import Place, Profile, Stack, StackLoss, StackReading, Weight
from kprobe_exporter.model.values import Arg

A, B, C = (b"read", b"main"), (b"write", b"main"), (b"open", b"main")
ONE = Layout(1, "p", "p", "entry", "f", (Arg("size", "int"),), stack=True)
BEGIN = Layout(2, "q", "q", "entry", "f", (Arg("key", "int"),), stack=True)
END = Layout(3, "q", "q_return", "return", "f", (Arg("key", "int"),))
CALL = Layout(4, "q", "q", "joined", "f", (Arg("key", "int"), Arg("duration", "int")))
JOIN = Join(CALL, (BEGIN,), END, "key", ("key",))


def none() -> ProgramLookup:
    raise AssertionError("no stack goes on in a program here")


NO_PROGRAMS = ProgramStacks(none)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def counts(weigh: str | None = None, most: int = 2, ttl: float | None = None) -> StackCounts:
    limits = SeriesLimits(9, 9, ttl, Clock())
    return StackCounts("p", weigh, most, limits)


def record(layout: Layout, *values: int) -> Record:
    return (layout.layout_id, 5, 0, 7, None, None, *values)


@pytest.mark.parametrize(
    ("frames", "left"),
    [
        (b"kprobe_ftrace_handler 0xffffffffc02a10dc vfs_read ksys_read", b"vfs_read ksys_read"),
        (b"kprobe_trace_func opt_pre_handler optimized_callback 0xffffffffc0 vfs_read", b"vfs_read"),
        (b"trace_event_raw_event_sched_switch __traceiter_sched_switch __schedule", b"__schedule"),
        (b"asm_exc_int3 0xffffffffc02a10dc", b""),
        (b"[FTRACE_TRAMPOLINE] tcp_sendmsg", b"tcp_sendmsg"),
        (b"0xffffffffc02a10dc vfs_read", b"0xffffffffc02a10dc vfs_read"),
        (b"vfs_read kprobe_ftrace_handler", b"vfs_read kprobe_ftrace_handler"),
        (b"", b""),
    ],
)
def test_the_frames_of_the_tracer_are_cut_off(frames: bytes, left: bytes) -> None:
    stack = tuple(frame.replace(b"[FTRACE_", b"[FTRACE ") for frame in frames.split())
    assert cut(stack) == tuple(left.split())


@pytest.mark.parametrize(
    ("frames", "left"),
    [
        # 6.12 on x86, in a program and in the kernel; 5.10; arm64 of both kinds.
        (b"update_process_times tick_nohz_handler asm_sysvec_apic_timer_interrupt", b""),
        (b"f sysvec_apic_timer_interrupt asm_sysvec_apic_timer_interrupt vfs_read", b"vfs_read"),
        (b"f common_interrupt asm_common_interrupt clear_page_erms do_fault", b"clear_page_erms do_fault"),
        (b"f el1_interrupt el1h_64_irq_handler el1h_64_irq vfs_read el0t_64_sync", b"vfs_read el0t_64_sync"),
        (b"f gic_handle_irq el0_irq", b""),
        # Not in an interrupt: all of it.
        (b"vfs_read ksys_read", b"vfs_read ksys_read"),
        # An interrupt over the tick of an older one cannot be: the innermost one is that of the tick.
        (b"f asm_sysvec_x g asm_common_interrupt h", b"g asm_common_interrupt h"),
    ],
)
def test_the_frames_of_an_interrupt_are_cut_off(frames: bytes, left: bytes) -> None:
    counts = StackCounts("p", None, 10, SeriesLimits(1, 1, ttl=0), interrupted=True)
    counts.add(tuple(frames.split()), Weight(1, 0))
    assert counts.profile().stacks == {tuple(left.split()): Weight(1, 0)}


def test_a_stack_without_room_is_lost() -> None:
    found = counts("size")
    for stack, weight in ((A, Weight(1, 10)), (B, Weight(2, 5)), (C, Weight(4, 9)), (A, Weight(1, 1))):
        found.add(stack, weight)
    profile = found.profile()
    assert (profile.stacks, profile.lost) == ({B: (2, 5), A: (2, 11)}, 4)
    assert profile.losses == {StackLoss.NO_ROOM: 4}


def test_forged_stacks_of_many_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 probes with 400 stacks of 127 places take 23 MB without a budget, which all probes share."""
    monkeypatch.setattr("kprobe_exporter.aggregate.stack_counts.MOST_BYTES", most := 1 << 23)
    room, clock = StackRoom(), SeriesLimits(9, 9)
    forged = [StackCounts(f"p{number}", None, 1000, clock, user=True, room=room) for number in range(4)]
    small = StackCounts("small", None, 1000, clock, room=room)
    tracemalloc.start()
    try:
        for number in range(400):
            for one, found in enumerate(forged):
                at = 1000 * (1000 * one + number)
                found.add(A, Weight(1, 0), tuple(Place(1, at + frame, b"[x]") for frame in range(127)))
            small.add((b"%d" % number,), Weight(1, 0))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < most
    assert room.used <= most
    assert (small.profile().hits, small.lost) == (400, 0)
    for found in forged:
        assert found.profile().hits + found.lost == 400
        assert found.profile().hits > 100
        found.close()
        found.add(A, Weight(1, 0))
        assert not found.profile().stacks
    small.close()
    assert (room.used, room.shared_by) == (0, [])


@pytest.mark.parametrize(("ttl", "age"), [(None, IDLE + 1), (60.0, 61.0)])
def test_an_idle_stack_makes_room(ttl: float | None, age: float) -> None:
    found = counts(ttl=ttl)
    found.add(A, Weight(1, 0))
    found.add(B, Weight(1, 0))
    found._limits.clock.now = age / 2  # type: ignore[attr-defined]
    found.add(B, Weight(1, 0))
    found._limits.clock.now = age  # type: ignore[attr-defined]
    found.add(C, Weight(1, 0))
    assert (found.profile().stacks, found.profile().lost) == ({B: (2, 0), C: (1, 0)}, 0)


def test_with_a_time_to_live_of_0_all_stay() -> None:
    found = counts(ttl=0, most=1)
    found.add(A, Weight(1, 0))
    found._limits.clock.now = 1e9  # type: ignore[attr-defined]
    found.add(B, Weight(1, 0))
    assert (found.profile().stacks, found.profile().lost) == ({A: (1, 0)}, 1)


def test_a_table_of_the_kernel_counts_what_it_gained() -> None:
    found = counts("size")
    deltas = StackDeltas(found)
    deltas.take(StackReading(1, {A: Weight(3, 2**64 - 1)}))
    deltas.take(StackReading(4, {A: Weight(5, 9), B: Weight(1, 0)}))
    deltas.take(StackReading(4, {A: Weight(5, 9), B: Weight(1, 0)}))
    profile = found.profile()
    assert (profile.stacks, profile.lost) == ({A: (5, 2**64 + 9), B: (1, 0)}, 4)


def test_a_difference_of_profiles() -> None:
    before = Profile("p", None, {A: Weight(3, 0), B: Weight(1, 0)}, 2, 10, 20)
    after = Profile("p", None, {A: Weight(5, 0), B: Weight(1, 0), C: Weight(1, 0)}, 3, 10, 30)
    assert after.minus(before) == Profile("p", None, {A: Weight(2, 0), C: Weight(1, 0)}, 1, 20, 30)


@pytest.fixture
def single() -> tuple[RecordedStacks, StackCounts]:
    recorded, found = RecordedStacks(NO_PROGRAMS), counts("size")
    recorded.add(ONE, None, found, Where(("size",), ("number", "size", "!=", 99)))
    return recorded, found


def test_stacks_of_single_events(single: tuple[RecordedStacks, StackCounts]) -> None:
    """In the batch of their event, one later or one earlier; what does not pass the filter is left out."""
    recorded, found = single
    first, later, early, out, error = (record(ONE, size) for size in (10, 20, 30, 99, -5))
    recorded.take(Batch(records=[first, later, out], stacks=[(first, A), (early, B), (out, A)]))
    recorded.take(Batch(records=[early, error], stacks=[(later, A), (error, A)]))
    recorded.take(Batch())
    profile = found.profile()
    assert (profile.stacks, profile.lost) == ({A: (2, 30), B: (1, 30)}, 0)


def test_a_stack_in_two_pieces_is_one(single: tuple[RecordedStacks, StackCounts]) -> None:
    recorded, found = single
    one = record(ONE, 1)
    recorded.take(Batch(records=[one], stacks=[(one, A)]))
    recorded.take(Batch(stacks=[(one, (b"start_thread",))]))
    assert (found.profile().stacks, found.profile().lost) == ({A: (1, 1)}, 0)


def test_an_event_without_a_stack_is_lost(single: tuple[RecordedStacks, StackCounts]) -> None:
    recorded, found = single
    recorded.take(Batch(records=[record(ONE, 1), record(ONE, 2)]))
    assert found.profile().lost == 0
    for _ in range(3):
        recorded.take(Batch())
    assert found.profile().lost == 2
    assert found.profile().losses == {StackLoss.ABSENT: 2}


@pytest.fixture
def joined() -> tuple[RecordedStacks, StackCounts]:
    recorded, found = RecordedStacks(NO_PROGRAMS), counts("duration")
    recorded.add(CALL, JOIN, found, None)
    return recorded, found


def test_stacks_of_calls(joined: tuple[RecordedStacks, StackCounts]) -> None:
    """A stack waits for its call's end; or the call, which was short, for the stack."""
    recorded, found = joined
    long, short, late, never = (record(BEGIN, key) for key in (1, 2, 3, 4))
    recorded.joined(short, record(CALL, 2, 20))
    recorded.joined(late, record(CALL, 3, 40))
    recorded.joined(never, record(CALL, 4, 80))
    recorded.take(Batch(stacks=[(long, A), (short, B)]))
    recorded.joined(long, record(CALL, 1, 10))
    recorded.take(Batch(stacks=[(late, A)]))
    recorded.take(Batch())
    profile = found.profile()
    assert (profile.stacks, profile.lost) == ({A: (2, 50), B: (1, 20)}, 1)


def test_after_its_removal_nothing_is_counted(joined: tuple[RecordedStacks, StackCounts]) -> None:
    recorded, found = joined
    open_call = record(BEGIN, 1)
    recorded.take(Batch(stacks=[(open_call, A)]))
    recorded.remove(CALL, JOIN)
    recorded.joined(open_call, record(CALL, 1, 10))
    recorded.take(Batch(stacks=[(record(BEGIN, 2), A)]))
    assert found.profile().stacks == {}


stacks = st.sampled_from([A, B, C])


@given(st.lists(st.tuples(stacks, st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_every_hit_is_counted_once(events: list[tuple[Stack, int, int]]) -> None:
    """In whichever batches an event and its stack come, as long as these are at most one apart."""
    recorded, found = RecordedStacks(NO_PROGRAMS), counts(most=3)
    recorded.add(ONE, None, found, None)
    batches = [Batch() for _ in range(7)]
    for number, (stack, at, offset) in enumerate(events):
        one = record(ONE, number)
        batches[at + 1].records.append(one)
        if offset < 3:  # else its stack is lost
            batches[at + offset].stacks.append((one, stack))
    for batch in batches:
        recorded.take(batch)
    profile = found.profile()
    assert profile.hits == sum(offset < 3 for _, _, offset in events)
    assert profile.hits + profile.lost == len(events)
