"""Saved text of every era: certain values are read, others stay text, and no text breaks the parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.model.records import CALLER, VALUES
from kprobe_exporter.model.values import Value
from kprobe_exporter.replay.parser import LAYOUTS, OVERFLOW, SavedParser
from kprobe_exporter.source.line_stacks import MAX_FRAME_BYTES, MAX_FRAMES
from kprobe_exporter.source.lines import LONGEST, LineParser
from tests.support.captured_text import captured_layout, cuts
from tests.support.replayed import Read
from tests.unit.captured import Captured, captured

OLD = b"            bash-1234  [001] d... 12.345678: "
"""Linux 3.4 to 5.9: a number without 0x may be decimal or hexadecimal."""

NEW = b"            bash-1234    [001] .....    12.345678: "
"""Since Linux 5.14: digits alone are a decimal number."""


HEADER = b"# entries-in-buffer/entries-written: %d/%d   #P:2\n"
LOST = b"CPU:1 [LOST %d EVENTS]\n"


def arguments(data: bytes) -> dict[str, Value]:
    """Return the arguments of the only event, which must not be cut."""
    read = Read(data)
    ((_, found),) = read.events
    assert (read.batch.unparsed, read.batch.cut) == (0, [])
    return found


AT = 12_345_678_000
PREFIXES = {
    "no flags": (b"            bash-1234  [001]    12.345678: ", (AT, 1, 1234, None)),
    "no flags, six digits": (b"            bash-123456 [001]    12.345678: ", (AT, 1, 123456, None)),
    "four flags": (b"            bash-1234  [001] d.h2    12.345678: ", (AT, 1, 1234, None)),
    "four flags, tgid": (b"            bash-1234  (   12) [001] d...    12.345678: ", (AT, 1, 1234, 12)),
    "four flags, no tgid": (b"            bash-1234  (-----) [001] d...    12.345678: ", (AT, 1, 1234, None)),
    "seven columns": (b"            bash-1234    [001] ....    12.345678: ", (AT, 1, 1234, None)),
    "five flags": (b"            bash-1234    [001] dNZff    12.345678: ", (AT, 1, 1234, None)),
    "flags of -rt": (b"            bash-1234    [001] d...2..    12.345678: ", (AT, 1, 1234, None)),
    "tgid": (b"            bash-1234    (     12) [001] .....    12.345678: ", (AT, 1, 1234, 12)),
    "no tgid": (b"            bash-1234    (-------) [001] .....   12.345678: ", (AT, 1, 1234, None)),
    "noirq-info": (b"            bash-1234    [001]    12.345678: ", (AT, 1, 1234, None)),
    "noirq-info, tgid": (b"            bash-1234    (     12) [001]   12.345678: ", (AT, 1, 1234, 12)),
    "clock counter": (b"            bash-1234    [001] .....            5: ", (5, 1, 1234, None)),
    "clock uptime": (b"            bash-1234  [001] d... 4295012345: ", (4295012345, 1, 1234, None)),
    "clock tsc": (b"            bash-1234    [001] ..... 97654321987654: ", (97654321987654, 1, 1234, None)),
    "idle": (b"          <idle>-0     [001] d.s3.    12.345678: ", (AT, 1, 0, None)),
    "not cached": (b"           <...>-1234  [001] d... 12.345678: ", (AT, 1, 1234, None)),
    "name with a dash": (b"    jbd2/xvda1-8-212   [000] 12.345678: ", (AT, 0, 212, None)),
    "name like a prefix": (b"  a b-7 [001]: x-1234    [001] .....    12.345678: ", (AT, 1, 1234, None)),
    "name with newlines": (b"  \n -1 [0] 1: x\n-1234    [001] .....    12.345678: ", (AT, 1, 1234, None)),
    "stripped": (b"bash-1234 [001] d... 12.345678: ", (AT, 1, 1234, None)),
    "stripped, dashes": (b"a-1 b-1234 [001] 12.345678: ", (AT, 1, 1234, None)),
    "stripped, not cached": (b"<...>-1234 [001] 12.345678: ", (AT, 1, 1234, None)),
    "indented": (b"\t                    bash-1234 [001] 12.345678: ", (AT, 1, 1234, None)),
}


@pytest.mark.parametrize("era", PREFIXES)
def test_prefixes(era: str) -> None:
    prefix, (time, cpu, tid, tgid) = PREFIXES[era]
    read = Read(b"#\n" + prefix + b"ev: (f+0x0/0x1) a=0x17\n")
    assert read.batch.records == [(0, time, cpu, tid, tgid, None, 23)]
    assert read.batch.unparsed == 0


# The text, then the event, its form, its symbol and its caller, if that is known, and the arguments.
BODIES: dict[str, tuple[bytes, str, dict[str, Value]]] = {
    "kprobe": (b"ev: (vfs_read+0x0/0x1a0) a=0x1", "ev entry vfs_read", {"a": 1}),
    "kprobe without arguments": (b"ev: (vfs_read+0x0/0x1a0)", "ev entry vfs_read", {}),
    "kprobe of a module": (b"ev: (f+0x0/0x10 [ext4]) a=0x1", "ev entry f", {"a": 1}),
    "kprobe at an address": (b"ev: (0xffffffff81000000) a=0x1", "ev entry ev", {"a": 1}),
    "kprobe with sym-addr": (b"ev: (f+0x0/0x1a0 <ffffffff81234567>) a=0x1", "ev entry f", {"a": 1}),
    "kretprobe": (
        b"ev: (ksys_read+0x75/0x100 <- vfs_read) arg1=0x1",
        "ev return vfs_read ksys_read",
        {"arg1": 1, "return": 1},
    ),
    "kretprobe of a module": (
        b"ev: (f.isra.6+0x75/0x100 [ext4] <- g [ext4]) a=0x1 b=0x2",
        "ev return g f.isra.6",
        {"a": 1, "b": 2},
    ),
    "kretprobe with sym-addr": (
        b"ev: (f+0x75/0x100 <ffffffff81234567> <- g <ffffffff81234567>)",
        "ev return g f",
        {},
    ),
    "kretprobe in a kretprobe": (
        b"ev: ([unknown/kretprobe'd] <- f) ret=-2 x=0x1",
        "ev return f",
        {"ret": -2, "x": 1, "return": -2},
    ),
    "uprobe": (b"ev: (0x4245c0) a=0x1", "ev entry ev", {"a": 1}),
    "uretprobe": (b"ev: (0x7f1 <- 0x4245c0) rval=0x3", "ev return 0x4245c0 0x7f1", {"rval": 3, "return": 3}),
    "eprobe": (b"ev: (sched.sched_wakeup) a=0x1", "ev eprobe sched_wakeup", {"a": 1}),
    "synthetic": (
        b"wakeup_lat: pid=0x5 name=sh",
        "wakeup_lat tracepoint wakeup_lat",
        {"text": b"pid=0x5 name=sh", "pid": 5, "name": b"sh"},
    ),
    "tracepoint with a digit first": (
        b"9p_client_req: client 5 tag=1",
        "9p_client_req tracepoint 9p_client_req",
        {"text": b"client 5 tag=1", "tag": b"1"},
    ),
    "eprobe on such a tracepoint": (b"ev: (9p.9p_client_req) a=0x1", "ev eprobe 9p_client_req", {"a": 1}),
    "system call": (
        b"sys_open(filename: 7ffd1, flags: 8000, mode: 1b6)",
        "sys_enter_open tracepoint sys_enter_open",
        {"filename": 0x7FFD1, "flags": 0x8000, "mode": 0x1B6},
    ),
    "system call with a string": (
        b'sys_open(filename: 0x7ffd1 "/x, y", flags: 0x8000)',
        "sys_enter_open tracepoint sys_enter_open",
        {"filename": b'0x7ffd1 "/x, y"', "flags": 0x8000},
    ),
    "system call without arguments": (b"sys_getpid()", "sys_enter_getpid tracepoint sys_enter_getpid", {}),
    "system call's return": (
        b"sys_open -> 0xfffffffffffffffe",
        "sys_exit_open tracepoint sys_exit_open",
        {"ret": 2**64 - 2, "return": -2},
    ),
    "nameless entry": (
        b"do_sys_open+0x0/0xd6: dfd=ffffff9c filename=40413c",
        "do_sys_open entry do_sys_open",
        {"dfd": 0xFFFFFF9C, "filename": 0x40413C},
    ),
    "nameless return": (
        b"sys_openat+0xc/0xe <- do_sys_open: rv=fffffffffffffffe ra=ffffffff81367a3a",
        "do_sys_open return do_sys_open sys_openat",
        {"rv": 2**64 - 2, "ra": 0xFFFFFFFF81367A3A, "return": -2},
    ),
    "tracepoint": (
        b"sched_wakeup: comm=a b pid=12 prio=-2 cpu=0x1 same=1 same=2 empty= end",
        "sched_wakeup tracepoint sched_wakeup",
        {
            "text": b"comm=a b pid=12 prio=-2 cpu=0x1 same=1 same=2 empty= end",
            "comm": None,
            "pid": b"12",
            "prio": -2,
            "cpu": 1,
            "same": None,
            "empty": None,
        },
    ),
    "tracepoint in brackets": (b"ev: (some) text", "ev tracepoint ev", {"text": b"(some) text"}),
    "marker": (
        b"tracing_mark_write: hello",
        "tracing_mark_write tracepoint tracing_mark_write",
        {"text": b"hello"},
    ),
}


@pytest.mark.parametrize("body", BODIES)
def test_bodies(body: str) -> None:
    text, names, expected = BODIES[body]
    read = Read(NEW + text + b"\n")
    (record,) = read.batch.records
    layout = read.layout(record)
    caller = [] if record[CALLER] is None else [record[CALLER].decode()]
    assert names.split() == [layout.event, layout.form, layout.symbol, *caller]
    assert arguments(NEW + text + b"\n") == expected


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (b"3", b"3", 3),
        (b"10", b"10", 10),
        (b"ffff880064acc8d0", b"ffff880064acc8d0", b"ffff880064acc8d0"),
        (b"ffffffff", b"ffffffff", b"ffffffff"),
        (b"-2", -2, -2),
        (b"-10", -10, -10),
        (b"0x0", 0, 0),
        (b"0xfffffffffffffffe", 2**64 - 2, 2**64 - 2),
        (b"18446744073709551615", b"18446744073709551615", 2**64 - 1),
        (b"(fault)", None, None),
        (b'"/etc/passwd"', b"/etc/passwd", b"/etc/passwd"),
        (b'""', b"", b""),
        (b'"a b" c"', b'a b" c', b'a b" c'),
        (b"' '", b"' '", b"' '"),
        (b"vfs_read+0x0/0x1a0", b"vfs_read+0x0/0x1a0", b"vfs_read+0x0/0x1a0"),
        (b"f+0x0/0x10 [ext4]", b"f+0x0/0x10 [ext4]", b"f+0x0/0x10 [ext4]"),
        (b"{1,-2,0x3}", b"{1,-2,0x3}", b"{1,-2,0x3}"),
        (b"{'a',' '}", b"{'a',' '}", b"{'a',' '}"),
        (b'{"a b",(fault)}', b'{"a b",(fault)}', b'{"a b",(fault)}'),
        (b"9" * 5000, b"9" * 5000, b"9" * 5000),
    ],
)
def test_values(text: bytes, old: Value, new: Value) -> None:
    """A number that its era leaves ambiguous without the probe's definition stays text."""
    for prefix, expected in ((OLD, old), (NEW, new)):
        line = prefix + b"ev: (f+0x0/0x1) x=" + text + b" y=0x17\n"
        assert arguments(line) == {"x": expected, "y": 23}
        assert Read(line, line).events == [("ev", {"x": expected, "y": 23})] * 2


@pytest.mark.parametrize(
    ("prefix", "decimal"),
    [
        (b"            bash-1234  [001] d... 1.000000: ", False),
        (b"            bash-123456 [001] d... 1.000000: ", False),
        (b"            bash-1234567 [001] d... 1.000000: ", False),
        (b"            bash-1234  [001] d...2.. 1.000000: ", False),
        (b"            bash-1234567 [001] d.... 1.000000: ", True),
        (b"            bash-1234    [001] d... 1.000000: ", True),
        (b"            bash-1234    [001] 1.000000: ", True),
        (b"            bash-1234    (   1234) [001] 1.000000: ", True),
        (b"            bash-123456  [001] d... 1.000000: ", True),
    ],
)
def test_which_kernels_print_decimals_is_told_by_the_prefix(prefix: bytes, decimal: bool) -> None:
    """Flags have five columns since 5.14, thread ids seven since 5.10, and decimals are printed since 4.9."""
    assert arguments(prefix + b"ev: (f+0x0/0x1) x=10\n") == {"x": 10 if decimal else b"10"}


@pytest.mark.parametrize(
    ("body", "value", "ambiguous"),
    [
        (b"ev: (g+0x1/0x2 <- f) arg1=0x3", 3, 0),
        (b"ev: (g+0x1/0x2 <- f) anything=-2", -2, 0),
        (b"ev: (g+0x1/0x2 <- f) retval=0x3 comm=\"x\"", 3, 0),
        (b"ev: (g+0x1/0x2 <- f) return=0xfffffffffffffffe comm=\"x\"", -2, 0),
        (b"ev: (g+0x1/0x2 <- f) arg1=3", b"3", 1),
        (b"ev: (g+0x1/0x2 <- f) arg1=ffff8800e55843c0", b"ffff8800e55843c0", 1),
        (b"ev: (sys.ev) ret=-2 comm=\"x\"", -2, 0),
        (b"ev: (g+0x1/0x2 <- f) arg1=0x3 arg2=0x4", "none", 0),
        (b'ev: (g+0x1/0x2 <- f) name="3"', "none", 0),
        (b"ev: (sys.ev) arg1=0x3", "none", 0),
        (b"ev: (f+0x1/0x2) ret=0x3", "none", 0),
        (b"ev: ret=-3", "none", 0),
    ],
)  # fmt: skip
def test_what_is_a_return_value(body: bytes, value: object, ambiguous: int) -> None:
    read = Read(OLD + body + b"\n")
    ((_, found),) = read.events
    assert found.get("return", "none") == value
    assert read.batch.ambiguous == ambiguous


# Lines that are not events, or not complete.


@pytest.mark.parametrize(
    ("data", "unparsed", "lost"),
    [
        (b"CPU:1 [LOST 23 EVENTS]\n", 0, 23),
        (b"CPU:12 [LOST EVENTS]\n", 0, 0),
        (b"  CPU:1 [LOST 1 EVENTS]\nCPU:1 [LOST 2 EVENTS]\n", 0, 3),
        (b"CPU:1 [LOST " + b"9" * 5000 + b" EVENTS]\n", 1, 0),
        (b"[LINE TOO BIG]\n", 1, 0),
        (b"# tracer: nop\n#\n  #      | |       |\n", 0, 0),
        (b"##### CPU 1 buffer started ####\n", 0, 0),
        (HEADER % (3, 336094), 0, 336091),
        (b" \t" + HEADER % (5, 5), 0, 0),
        (b"# latency: 0 us, #167/5387, CPU#0 | (M:PREEMPT(none) VP:0, KP:0, SP:0 HP:0 #P:2)\n", 0, 5220),
        (HEADER % (9, 3), 0, 0),
        (HEADER % (1, 10**30), 0, 0),
        (b"\n  \n\r\n", 0, 0),
        (b"prose that goes on\n", 1, 0),
        (OLD + b"mypro\n", 1, 0),
        (OLD + b"0xffffffffc0001234: of trace_printk\n", 1, 0),
        (OLD + b"do_IRQ <-ret_from_intr\n", 1, 0),
        (b"bash-1234 [001] 12.34\n", 1, 0),
        (b"bash-" + b"9" * 5000 + b" [001] 12.345678: ev: x\n", 1, 0),
        (b"this name is too long-1234 [001] 12.345678: ev: x\n", 1, 0),
        (OLD + b"<stack trace>\n => f\n", 0, 0),
    ],
)
def test_other_lines(data: bytes, unparsed: int, lost: int) -> None:
    read = Read(data)
    assert read.events == []
    assert (read.batch.unparsed, read.batch.lost, read.batch.lines) == (unparsed, lost, data.count(b"\n"))


@pytest.mark.parametrize(
    ("lines", "lost"),
    [
        # per_cpu/cpu0/trace and cpu1/trace of a live buffer: either header has the numbers of all CPUs.
        ((HEADER % (167, 5387), HEADER % (200, 5500)), 5300),
        ((HEADER % (1, 11), HEADER % (3, 4)), 11),  # cleared, or the buffer of another machine
        ((LOST % 10, HEADER % (1, 11)), 10),  # trace_pipe, then trace: both tell the buffer's overrun
        ((HEADER % (1, 11), LOST % 12), 12),
        ((LOST % 10, HEADER % (1, 11), HEADER % (1, 4), LOST % 5), 15),
    ],
)
def test_loss_counted_once(lines: tuple[bytes, ...], lost: int) -> None:
    assert Read(*lines).batch.lost == lost


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"(f+0x0/0x1) a=0x1 m", {"a": 1}),
        (b"(f+0x0/0x1) a=0x1 b=", {"a": 1}),
        (b"(f+0x0/0x1) a=0x1 b=\n=0x1", {"a": 1}),
        (b"(f+0x0/0x1) a=0x316\n8 b=0x1", {}),
        (b"(f+0x0/0x1) a=0x1 b=0x316\n8 c=0x1 d=0x2", {"a": 1}),
        (b"(f+0x0/0x1) a=0x1 b=\"/etc/pa", {"a": 1}),
        (b"(f+0x0/0x1) a=0x1 b=\"new\nline\"", {"a": 1}),
        (b"(f+0x0/0x1) a=0x1 b=\"x\" c=\"new\nline\"", {"a": 1}),
        (b"(f+0x0/0x1) a=0x1 b=\"x\" c=0x1 b=\"y\"", {"a": 1}),
        (b"(f+0x0/0x1) a=0x1 b={1,2", {"a": 1}),
        (b"(f+0x0/0x1) a=0x1 b={\"1\",\"2", {"a": 1}),
        (b"(f+0x0/0x", {}),
        (b"(f+0x0/0x1 <- g", {}),
    ],
)  # fmt: skip
def test_a_cut_line_is_read_up_to_the_cut_and_marked(body: bytes, expected: dict[str, Value]) -> None:
    read = Read(OLD + b"ev: " + body + b"\n" + OLD + b"ev: (f+0x0/0x1) whole=0x1\n")
    assert read.events == [("ev", expected), ("ev", {"whole": 1})]
    assert read.batch.cut == [0]
    assert read.batch.unparsed == body.count(b"\n")


@pytest.mark.parametrize("body", [b"sys_open(filename: 7ffd, fla", b"sys_open(filename: 7ffd, flags: 80"])
def test_a_cut_system_call(body: bytes) -> None:
    read = Read(OLD + body + b"\n")
    assert read.events == [("sys_enter_open", {} if body.endswith(b"fla") else {"filename": 0x7FFD})]
    assert read.batch.cut == [0]


def test_a_cut_return_of_a_system_call() -> None:
    read = Read(OLD + b"sys_open -> 0\n")
    assert (read.events, read.batch.cut) == ([("sys_exit_open", {})], [0])


def test_the_last_line_needs_no_end() -> None:
    read = Read(OLD + b"ev: (f+0x0/0x1) a=0x1")
    assert (read.events, read.batch.lines) == ([("ev", {"a": 1})], 1)


# Stacks.


@pytest.mark.parametrize("indent", [b" => ", b"=> ", b"\t => "])
def test_stacks(indent: bytes) -> None:
    frames = (
        b"vfs_read",
        b"vfs_read+0x1/0x2",
        b"vfs_read <ffffffff81234567>",
        b"vfs_read (ffffffff81234567)",
    )
    stack = OLD + b"<stack trace>\n" + b"".join(indent + frame + b"\n" for frame in frames)
    read = Read(OLD + b"ev: (f+0x0/0x1)\n" + stack + OLD + b"ev: (f+0x0/0x1)\n" + stack + b"prose\n")
    first, second = read.batch.records
    assert read.batch.stacks == [(first, frames), (second, frames)]
    assert read.batch.unparsed == 1


def test_frames_of_one_stack_are_bounded() -> None:
    """A saved text has one stack of 100,000 frames, the first of which has 4,000 bytes, in many pieces."""
    parser = SavedParser()
    parser.feed(OLD + b"ev: (f+0x0/0x1)\n" + OLD + b"<stack trace>\n => " + b"f" * 4000 + b"\n")
    for _ in range(100):
        parser.feed(b" => f\n" * 1000)
    ((_, frames),) = parser.finish().stacks
    assert frames == (b"f" * MAX_FRAME_BYTES, *[b"f"] * (MAX_FRAMES - 1))


def test_a_stack_of_user_space_is_one_too() -> None:
    read = Read(OLD + b"ev: (f+0x0/0x1)\n" + OLD + b"<user stack trace>\n =>  <00007f1234567890>\n")
    assert read.batch.stacks == [(read.batch.records[0], (b" <00007f1234567890>",))]


# Layouts learnt from earlier lines.


def test_a_string_is_read_by_what_was_learnt_before() -> None:
    """Read alone, the second line would have two strings and a number."""
    first = NEW + b'ev: (f+0x0/0x1) n=1 comm="x"\n'
    read = Read(first + NEW + b'ev: (f+0x0/0x1) n=2 comm="q" x="y" z=0x1"\n')
    assert read.events == [("ev", {"n": 1, "comm": b"x"}), ("ev", {"n": 2, "comm": b'q" x="y" z=0x1'})]


def test_a_name_that_is_defined_again_is_learnt_again() -> None:
    bodies = [b"(f+0x0/0x1) a=0x1", b"(f+0x0/0x1) b=0x1", b'(f+0x0/0x1) a="x"', b"(f+0x0/0x1)", b"(g <- f)"]
    read = Read(b"".join(NEW + b"ev: " + body + b"\n" for body in bodies * 2))
    assert [found for _, found in read.events] == [{"a": 1}, {"b": 1}, {"a": b"x"}, {}, {}] * 2
    assert len(read.layouts) == len(bodies)


def test_layouts_are_bounded() -> None:
    """Untrusted text cannot use unbounded memory: events over the limit are counted under one name."""
    lines = [b"ev%d: (f+0x0/0x1) a=0x1\n" % number for number in range(2 * LAYOUTS)]
    lines += [b"t: a%d=1 text=2\n" % number for number in range(2 * LAYOUTS)]
    read = Read(b"".join(NEW + line for line in lines))
    assert len(read.batch.records) == 4 * LAYOUTS
    assert len(read.layouts) == LAYOUTS + 1
    assert read.events[-1] == (OVERFLOW, {})
    parser = SavedParser()
    parser.feed(b"".join(NEW + line for line in lines))
    assert sum(map(len, parser._known.values())) == LAYOUTS


@pytest.mark.parametrize(
    "body",
    [
        b"%s: (f+0x0/0x1)",
        b"ev: (%s+0x0/0x1)",
        b"ev: (f+0x0/0x1 <- %s)",
        b"ev: (f+0x0/0x1) %s=0x1",
        b"ev: %s=0x1",
        b"sys_%s(a: 1)",
        b"sys_x(%s: 1)",
        b"%s+0x0/0x1: a=1",
        b"g+0x0/0x1 <- %s: a=1",
        b"f+0x0/0x1: %s=1",
    ],
)
def test_names_that_are_kept_are_bounded(body: bytes) -> None:
    layouts = Read(NEW + body % (b"x" * 5000) + b"\n").layouts
    assert len(repr(layouts)) < 1000


# Hostile text.

HOSTILE = {
    "parentheses": b"r: (" + b"a" * LONGEST,
    "returns": b"r: (" + b" <- " * (LONGEST // 4),
    "returns with angles": b"r: (" + b"< <-" * (LONGEST // 4),
    "plus": b"r: (" + b"a+" * (LONGEST // 2),
    "places": b"r: (" + b"a+0x1/0x1" * (LONGEST // 9),
    "nameless": b"a+0x1/" * (LONGEST // 6),
    "digits": b"p: (f+0x0/0x1) count=" + b"9" * LONGEST,
    "quotes": b'p: (f+0x0/0x1) comm="' + b'"' * LONGEST + b"x",
    "ends": b'p: (f+0x0/0x1) comm="' + b'" x="' * (LONGEST // 5) + b"x",
    "ends of none": b'p: (f+0x0/0x1) comm="' + b'" xx ' * (LONGEST // 5) + b"x",
    "braces": b"p: (f+0x0/0x1) sym={" + b"{1,'}',{" * (LONGEST // 8),
    "arrays": b'p: (f+0x0/0x1) names={"' + b'"} comm ' * (LONGEST // 8) + b"x",
    "many arguments": b"p: (f+0x0/0x1)" + b" a=1" * (LONGEST // 4),
    "many fields": b"p: " + b" a=1" * (LONGEST // 4),
    "fields": b"p: " + b" a" * (LONGEST // 2),
    "parameters": b"sys_open(" + b"a: , " * (LONGEST // 5),
    "modules": b"p: (f+0x0/0x1) a=f" + b" [a" * (LONGEST // 3),
    "spaces": b" " * LONGEST,
    "frames": b"<stack trace>\n" + b" => f\n" * (LONGEST // 6),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name: str) -> None:
    """Each text is just below 64 KiB: quadratic time would be minutes here, linear time is milliseconds."""
    body = HOSTILE[name][: LONGEST - 100]
    for last in (b"\n", b'"\n', b")\n"):
        Read((NEW + body + last) * 2)


@pytest.mark.parametrize(
    "unit", [b"-1 ", b"-1 [1] ", b"-1 ( ", b" ", b"\n", b" \n", b"-1 [1] .... 1", b"-1" + b" " * 999, b"\t"]
)
def test_no_prefix_takes_long(unit: bytes) -> None:
    assert Read(unit * (LONGEST // len(unit)), b"\n").events == []


def test_a_line_without_an_end_fills_no_memory_and_is_rejected_once() -> None:
    good = NEW + b"ev: (f+0x0/0x1) a=0x1\n"
    for start in (b"junk", good + b"#\n" + NEW + b"ev: "):
        long = start + b"x" * (3 * LONGEST) + b"\n"
        for step in (LONGEST - 1, LONGEST, LONGEST + 1):
            read = Read(good, *(long[at : at + step] for at in range(0, len(long), step)), good)
            assert len(read.events) == (3 if start.startswith(good) else 2)
            assert read.batch.unparsed == 1
    parser = SavedParser()
    for _ in range(4):
        parser.feed(b"x" * LONGEST)
        assert len(parser._rest) <= LONGEST + 1


@pytest.mark.parametrize("capture", captured("trace_pipe/"), ids=str)
def test_crlf_reads_as_newlines(capture: Captured) -> None:
    data = capture.data.replace(b"\n", b"\r\n")
    read = Read(*(data[at : at + 4096] for at in range(0, len(data), 4096)))
    assert (read.events, read.batch) == (Read(capture.data).events, Read(capture.data).batch)
    assert Read(*(bytes([byte]) for byte in data[:2000])).batch == Read(data[:2000]).batch


def test_carriage_return_kept_in_unix_text() -> None:
    line = NEW + b"ev: next_comm=x\r\n"
    assert Read(b"#\n" + line).events == [("ev", {"text": b"next_comm=x\r", "next_comm": b"x"})]
    assert Read(b"#\r\n" + line).events == [("ev", {"text": b"next_comm=x", "next_comm": b"x"})]
    assert Read(b"#\n" + line[:-1]).batch == Read(b"#\n" + line).batch


@pytest.mark.parametrize(
    ("data", "counts"),  # events, rejected lines, swallowed lines
    [
        (NEW + b"bprint: no newline" + OLD + b"ev: (f+0x0/0x1) a=0x1\n", (1, 0, 1)),
        (NEW + b"ev: (f+0x0/0x1) a=0x1" + OLD + b"ev: (f+0x0/0x1) a=0x1\n", (1, 0, 1)),
        (NEW + b"ev: x" + OLD + b"sys_x(a: 1)" + NEW + b"9p_x: y\n", (1, 0, 2)),
        (b"prose" + OLD + b"ev: x\n", (0, 1, 1)),
        (NEW + b"ev: bash-1 [000] 1.000000: x\n", (1, 0, 0)),
        (NEW + b"ev: x\n" + OLD + b"ev: x\n", (2, 0, 0)),
    ],
)
def test_swallowed_lines(data: bytes, counts: tuple[int, int, int]) -> None:
    batch = Read(data).batch
    assert (len(batch.records), batch.unparsed, batch.swallowed) == counts


WORDS = st.sampled_from(
    [
        *(OLD, NEW, b"bash-1 [0] 1.000000: ", b"ev: ", b"sys_x(", b"sys_x -> "),
        *(b"(f+0x0/0x1)", b"(g+0x1/0x2 <- f)", b"(a.b)", b"f+0x0/0x1: "),
        *(b" a=", b" ret=", b' b="', b'"', b"{", b"}", b"(fault)", b"-1", b"0x2", b"3", b", c: ", b")"),
        *(b"\n", b"<stack trace>\n", b" => f\n", b"CPU:0 [LOST 3 EVENTS]\n", b"8 a=0x1\n"),
        *(b" ", b"#", b"x", b"\x00\xff"),
    ]
)
TEXT = st.one_of(st.binary(max_size=200), st.lists(WORDS, max_size=24).map(b"".join))


@given(TEXT)
def test_any_bytes_give_values_or_a_counted_rejection(data: bytes) -> None:
    read = Read(data)
    batch = read.batch
    frames = sum(len(frames) for _, frames in batch.stacks)
    assert batch.lines == data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    assert len(batch.records) + batch.unparsed + frames <= batch.lines
    for record in batch.records:
        assert len(record) == VALUES + len(read.layout(record).args)
        assert all(isinstance(value, int | bytes | None) for value in record[VALUES:])


@given(TEXT)
def test_no_line_goes_uncounted(data: bytes) -> None:
    """With an x in front, a line is no comment and no frame, and has none of the kernel's columns."""
    lines = [b"x" + line for line in data.split(b"\n") if b"stack trace>" not in line]
    batch = Read(b"\n".join(lines)).batch
    assert len(batch.records) + batch.unparsed == len(lines) == batch.lines


@given(TEXT)
def test_garbage_does_not_swallow_what_follows(data: bytes) -> None:
    """The next event is found once a line has ended and 16 columns have passed."""
    good = NEW + b"good: (f+0x0/0x1) n=0x17\n"
    assert Read(data, b"\n" + b"#" * 16 + b"\n", good).events[-1] == ("good", {"n": 23})


@given(TEXT, st.lists(st.integers(0, 10_000), max_size=8))
def test_however_cut_the_same(data: bytes, places: list[int]) -> None:
    whole = Read(data)
    for pieces in cuts(data, places):
        read = Read(*pieces)
        assert read.batch == whole.batch
        assert read.layouts == whole.layouts


# An independent check against the agent's parser, which knows the definitions.


@pytest.mark.parametrize("stream", captured("trace_pipe/"), ids=str)
def test_both_parsers_agree_on_what_real_kernels_printed(stream: Captured) -> None:
    layout = captured_layout(stream)
    known = LineParser([layout]).feed(stream.data)
    read = Read(stream.data)
    cut = {id(read.batch.records[number]) for number in read.batch.cut}
    # A process put a forged line into a file name: this is an event too, without arguments.
    found = [record for record in read.batch.records if id(record) not in cut or len(record) > VALUES]
    assert read.batch.lost == known.lost
    assert [record[1:VALUES] for record in found] == [record[1:VALUES] for record in known.records]
    assert len(read.batch.records) - len(found) == stream.name.startswith("trace_pipe/kprobe")
    for record, other in zip(found, known.records, strict=True):
        assert read.layout(record).event == layout.event
        names = [arg.name for arg in read.layout(record).args]
        values = dict(zip(names, record[VALUES:], strict=True))
        for arg, value in zip(layout.args, other[VALUES:], strict=True):
            said = values.get(arg.name)
            if isinstance(said, bytes) and isinstance(value, int):
                said = int(said)  # from a tracepoint: only its definition shows that it is decimal
            if isinstance(value, int) and layout.form == "tracepoint" and arg.name == "ret":
                said = values["return"]
            assert said == value
            assert id(record) in cut or value is not None


@pytest.mark.parametrize("stream", captured("trace_pipe/stacktrace"), ids=str)
def test_stacks_of_a_real_kernel(stream: Captured) -> None:
    read = Read(stream.data)
    assert [record for record, _ in read.batch.stacks] == read.batch.records
    assert sum(len(frames) for _, frames in read.batch.stacks) == stream.data.count(b"\n => ")
    assert read.batch.unparsed == 0


# The output of a kernel of any era reads back.

ERAS = {
    "2.6.33": (b"%16s-%-5d [%03d] %5d.%06d: ", "%x"),
    "2.6.35 to 3.3": (b"%16s-%-5d [%03d] %5d.%06d: ", "%x"),
    "3.4 to 3.13": (b"%16s-%-5d [%03d] d... %5d.%06d: ", "%x"),
    "3.14 to 5.9": (b"%16s-%-5d [%03d] d... %5d.%06d: ", "0x%x"),
    "5.10": (b"%16s-%-7d [%03d] d... %5d.%06d: ", "%d"),
    "since 5.14": (b"%16s-%-7d [%03d] d.... %5d.%06d: ", "%d"),
}
COMMS = st.binary(max_size=15).filter(lambda comm: b"\0" not in comm)


@pytest.mark.parametrize("era", ERAS)
@given(COMMS, st.integers(0, 2**22), st.integers(0, 4095), st.integers(0, 10**9), st.integers(0, 2**64 - 1))
def test_what_an_era_prints_reads_back(
    era: str, comm: bytes, tid: int, cpu: int, seconds: int, value: int
) -> None:
    form, shown = ERAS[era]
    prefix = form % (comm, tid, cpu, seconds, 345678)
    text = (shown % value).encode()
    ((record, after),) = [
        Read(prefix + b"ev: (f+0x0/0x1) x=" + text + b' s="%s"\n' % b"a b").batch.records * 2
    ]
    assert record is after
    assert record[1:5] == ((seconds * 10**6 + 345678) * 1000, cpu, tid, None)
    # The padding of a thread id with seven digits does not show the era.
    certain = shown == "0x%x" or (shown == "%d" and (tid < 10**6 or era == "since 5.14"))
    assert record[VALUES:] == (value if certain else text, b"a b")
