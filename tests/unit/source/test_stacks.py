"""Stacks in trace_pipe, and lines that several probes share: each frame goes to its own event."""

from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.model.records import CPU, LAYOUT_ID, TID, VALUES, Layout
from kprobe_exporter.model.values import Arg
from kprobe_exporter.source.line_stacks import WAITING, StackAssembler
from kprobe_exporter.source.lines import LineParser
from tests.support import captured_text
from tests.unit.captured import Captured, captured

STACKED = Layout(0, "p", "p", "entry", "f", (Arg("n", "int"),), stack=True)
PLAIN = Layout(1, "q", "q", "entry", "g", (Arg("n", "int"),))
LAYOUTS = (STACKED, PLAIN)

FRAMES = (b"f", b"do_syscall_64", b"entry_SYSCALL_64_after_hwframe")


def prefix(cpu: int = 1, tid: int = 7, name: bytes = b"bash") -> bytes:
    return b"%16s-%-7d [%03d] .....    12.345678: " % (name, tid, cpu)


def event(number: int, cpu: int = 1, tid: int = 7, name: bytes = b"p") -> bytes:
    return prefix(cpu, tid) + name + b": (f+0x0/0x1) n=%d\n" % number


def stack(cpu: int = 1, tid: int = 7, frames: tuple[bytes, ...] = FRAMES) -> bytes:
    return prefix(cpu, tid) + b"<stack trace>\n" + b"".join(b" => %s\n" % frame for frame in frames)


parse = partial(captured_text.parse, layouts=LAYOUTS)


def found(data: bytes, unparsed: int = 0) -> list[tuple[int, tuple[bytes, ...]]]:
    """Return the stacks, each with the number of its event."""
    batch = parse(data)
    assert batch.unparsed == unparsed
    return [(record[VALUES], frames) for record, frames in batch.stacks]


def test_a_stack_belongs_to_the_event_before_it() -> None:
    text = event(1) + stack() + event(2) + stack(frames=(b"g", b"kthread")) + event(3)
    assert [record[VALUES] for record in parse(text).records] == [1, 2, 3]
    assert found(text) == [(1, FRAMES), (2, (b"g", b"kthread"))]


@pytest.mark.parametrize(
    "frame",
    [
        b"vfs_read",
        b"vfs_read+0x1a/0x20",
        b"vfs_read <ffffffff81234567>",
        b"vfs_read+0x1a/0x20 <ffffffff81234567>",
        b"ext4_file_write_iter [ext4]",
        b"[FTRACE TRAMPOLINE]",
        b"0xffffffffc0123456",
        b"f.isra.0",
        b"0",
    ],
)
def test_frames_of_all_forms(frame: bytes) -> None:
    """seq_print_ip_sym() prints frames with or without the options sym-offset and sym-addr."""
    text = event(1) + stack(frames=(frame, b"do_syscall_64")) + event(2)
    assert found(text) == [(1, (frame, b"do_syscall_64"))]


def test_another_cpu_may_write_in_between() -> None:
    text = event(1, cpu=0, tid=5) + event(2, cpu=1, tid=6) + stack(0, 5, (b"a" * 20,)) + stack(1, 6)
    assert found(text) == [(1, (b"a" * 20,)), (2, FRAMES)]


def test_an_interrupt_may_write_in_between() -> None:
    """An interrupt shows the id of the interrupted thread, and ends before that thread continues."""
    text = event(1) + event(2) + stack(frames=(b"in_interrupt_of_cpu",)) + stack()
    assert found(text) == [(2, (b"in_interrupt_of_cpu",)), (1, FRAMES)]


def test_an_event_without_stacks_takes_none() -> None:
    assert found(event(1) + event(2, name=b"q") + stack() + event(3, name=b"q")) == [(1, FRAMES)]


def test_a_stack_of_another_thread_on_the_cpu_belongs_to_no_event() -> None:
    assert found(event(1, tid=5) + stack(tid=6) + event(2, tid=6) + stack(tid=6)) == [(2, FRAMES)]


def test_an_event_that_could_not_be_read_keeps_its_stack() -> None:
    """No other event gets its stack."""
    torn = event(2).replace(b"n=2", b"m=2")
    text = event(1) + torn + stack() + event(3) + stack(frames=(b"ret_from_fork_asm",))
    assert found(text, unparsed=1) == [(3, (b"ret_from_fork_asm",))]


def test_lost_events_take_their_stacks_along() -> None:
    """The stack of event 1 was lost, and so was the event of the stack that follows."""
    text = event(1) + event(9, cpu=0) + b"CPU:1 [LOST 2 EVENTS]\n" + stack() + stack(cpu=0)
    assert found(text) == [(9, FRAMES)]
    assert parse(text).lost == 2


def test_without_a_layout_that_asks_for_it_a_stack_is_unparsed() -> None:
    batch = parse(event(1, name=b"q") + stack(), layouts=(PLAIN,))
    assert (len(batch.records), batch.stacks) == (1, [])
    assert batch.unparsed == 1 + len(FRAMES)


def test_a_frame_is_one_only_in_a_stack() -> None:
    text = event(1) + stack() + event(2) + b" => stray_frame_of_nobody\n" + event(3)
    assert found(text, unparsed=1) == [(1, FRAMES)]


def test_a_stack_of_a_thread_with_a_newline_in_its_name() -> None:
    name = b"a\nb"
    text = prefix(name=name) + b"p: (f) n=1\n" + prefix(name=name) + b"<stack trace>\n => do_syscall_64\n"
    assert found(text + event(2)) == [(1, (b"do_syscall_64",))]


def test_no_event_waits_for_its_stack() -> None:
    """The text may end between them: the record is delivered at once, and its stack names it later."""
    parser = LineParser(LAYOUTS)
    (record,) = parser.feed(event(1)).records
    later = parser.feed(stack())
    assert later.records == []
    assert later.stacks == [(record, FRAMES)]


def test_what_waits_for_a_stack_is_bounded() -> None:
    stacks = StackAssembler()
    for number in range(10 * WAITING):
        stacks.expect(number, 7, [(number,)])
        assert len(stacks._waiting) <= WAITING


PIECES = st.sampled_from(
    [
        event(1),
        event(2, cpu=0),
        event(3, name=b"q"),
        event(4, tid=8),
        stack(),
        stack(cpu=0),
        stack(frames=(b"x",)),
        stack(tid=8, frames=()),
        b"CPU:1 [LOST 3 EVENTS]\n",
        b" => f\n",
        b"=> f",
        b"\n",
        b"junk\n",
        event(5).replace(b"n=", b"m="),
        prefix(name=b"=> f\nx"),
    ]
)


@given(st.lists(PIECES, max_size=12).map(b"".join), st.lists(st.integers(0, 10_000), max_size=8))
def test_however_cut_the_frames_are_the_same(data: bytes, places: list[int]) -> None:
    whole = parse(data)
    for pieces in captured_text.cuts(data, places):
        assert parse(*pieces) == whole
    frames = sum(len(frames) for _, frames in whole.stacks)
    assert frames <= data.count(b"=> ")
    assert len(whole.records) + whole.unparsed + frames <= data.count(b"\n")


@pytest.mark.parametrize("stream", captured("trace_pipe/stacktrace"), ids=str)
def test_stacks_of_a_real_kernel(stream: Captured) -> None:
    name = stream.how["event"].split("/")[1]
    if stream.how["definition"] is None:
        layout = Layout(
            0, "x", name, "tracepoint", name, (Arg("ret", "hex", 64),), None, rb"(0x[0-9a-f]+)", True
        )
    else:
        layout = Layout(0, "x", name, "return", name, (Arg("ret", "int"), Arg("comm", "str")), stack=True)
    batch = parse(stream.data, layouts=(layout,))
    blocks = [block.split(b"\n => ") for block in stream.data.split(b"<stack trace>")[1:]]
    printed = [tuple(frame.partition(b"\n")[0] for frame in frames) for _, *frames in blocks]
    assert [record for record, _ in batch.stacks] == batch.records
    assert [frames for _, frames in batch.stacks] == printed
    assert (len(batch.records), batch.unparsed) == (2, 0)


# Several layouts for one text.


def test_two_probes_on_one_tracepoint_have_a_record_each() -> None:
    first = Layout(
        3, "a", "sched_wakeup", "tracepoint", "s", (Arg("pid", "int"),), None, rb"pid=(\d+)[^\n]*+"
    )
    other = Layout(4, "b", "sched_wakeup", "tracepoint", "s", (Arg("cpu", "int"),), None, rb".* cpu=(\d+)")
    batch = parse(prefix() + b"sched_wakeup: pid=23 cpu=1\n", layouts=(first, PLAIN, other))
    assert [(record[LAYOUT_ID], record[VALUES]) for record in batch.records] == [(3, 23), (4, 1)]
    assert {(record[CPU], record[TID]) for record in batch.records} == {(1, 7)}
    assert batch.unparsed == 0


def test_what_one_of_two_layouts_cannot_read_is_unparsed_for_it() -> None:
    first = Layout(3, "a", "t", "tracepoint", "t", (Arg("n", "int"),), None, rb"n=(\d+)[^\n]*+")
    other = Layout(4, "b", "t", "tracepoint", "t", (Arg("m", "int"),), None, rb"n=\d+ m=(\d+)")
    text = prefix() + b"t: n=1\n" + prefix() + b"t: n=1 m=2\n" + prefix() + b"t: x\n"
    batch = parse(text, layouts=(first, other))
    assert Counter(record[LAYOUT_ID] for record in batch.records) == {3: 2, 4: 1}
    assert batch.unparsed == 1 + 2


def test_a_stack_is_of_all_records_of_its_event() -> None:
    shared = [
        Layout(layout_id, "x", "t", "tracepoint", "t", (), None, rb"[^\n]*+", stack=layout_id == 4)
        for layout_id in (3, 4)
    ]
    batch = LineParser(shared).feed(prefix() + b"t: x\n" + stack())
    assert [(record[LAYOUT_ID], frames) for record, frames in batch.stacks] == [(3, FRAMES), (4, FRAMES)]
    assert batch.unparsed == 0
