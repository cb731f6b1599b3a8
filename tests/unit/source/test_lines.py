"""The parser of trace_pipe's text: it survives any bytes, forged lines do no harm, and its time is linear."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.recipes import record_filters
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.records import CALLER, TGID, TIME, VALUES, Batch, Layout, Loss, Record
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import residual
from kprobe_exporter.source.lines import LONGEST, MOST_CPUS, LineParser
from kprobe_exporter.source.walk import text_key
from tests.support.captured_text import COMM, COUNT, ENTRY, LAYOUTS, captured_layout, cuts, line, parse
from tests.unit.captured import Captured, captured

AT_ENTRY = b"(vfs_read+0x0/0x1a0)"
AT_RETURN = b"(ksys_read+0x75/0x100 <- vfs_read)"
PREFIX = b"            bash-1234    [001] .....    12.345678: "


def values(data: bytes) -> list[tuple[Any, ...]]:
    """Return the arguments of all records."""
    return [record[VALUES:] for record in parse(data).records]


def test_a_record_has_all_of_the_line() -> None:
    batch = parse(line(b"r: " + AT_RETURN + b' return=-2 comm="bash"'))
    assert batch.records == [(1, 12_345_678_000, 1, 1234, None, b"ksys_read", -2, b"bash")]
    assert batch == Batch(batch.records, unparsed=0, lost=0)


def test_event_name_with_a_digit_first() -> None:
    """As /sys/kernel/tracing/events/9p/9p_client_req."""
    name, tag = "9p_client_req", (Arg("tag", "int"),)
    layout = Layout(7, name, name, "tracepoint", name, tag, pattern=rb"tag=(\d{1,20})")
    batch = LineParser([layout]).feed(PREFIX + b"9p_client_req: tag=5\n")
    assert ([record[VALUES:] for record in batch.records], batch.unparsed) == ([(5,)], 0)


@pytest.mark.parametrize(
    "prefix",
    [
        b"            bash-1234    [001] .....    12.345678: ",
        b"            bash-1234    [001] ....    12.345678: ",
        b"            bash-1234    [001]    12.345678: ",
        b"            bash-1234    [001] dNZff    12.345678: ",
        b"            bash-1234    [001] D..2.    12.345678: ",
        b"            bash-1234  [001] ....    12.345678: ",
        b"            bash-1234    (-------) [001] .....    12.345678: ",
        b"            bash-1234    (-------) [001]    12.345678: ",
        b"                -1234    [001] .....    12.345678: ",
        b" 123456789abcdef-1234    [001] .....    12.345678: ",
        b"  a b-7 [001]: x-1234    [001] .....    12.345678: ",
        b"      \xff\xfe \n \n\n [x-1234    [001] .....    12.345678: ",
        b" -1 [0] 1.0: p: -1234    [001] .....    12.345678: ",
        b" \n\n\n\n\n\n\n\n\n\n\n\n\n\n\n-1234    [001] .....    12.345678: ",
    ],
)
def test_prefixes(prefix: bytes) -> None:
    batch = parse(prefix + b"p: " + AT_ENTRY + b' count=1 comm=""\n')
    assert batch.records == [(0, 12_345_678_000, 1, 1234, None, None, 1, b"")]
    assert batch.unparsed == 0


@pytest.mark.parametrize(("column", "tgid"), [(b"(     12) ", 12), (b"(1234567) ", 1234567), (b"(12) ", 12)])
def test_the_thread_group(column: bytes, tgid: int) -> None:
    batch = parse(line(b"p: " + AT_ENTRY + b' count=1 comm="x"', tgid=column))
    assert batch.records == [(0, 12_345_678_000, 1, 1234, tgid, None, 1, b"x")]


@pytest.mark.parametrize(
    ("column", "known", "tgid"),
    [(b"(     12) ", 5, 5), (b"(-------) ", 5, 5), (b"(     12) ", None, 12), (b"", 5, None)],
)
def test_the_process_of_a_thread_whose_id_was_used_before(
    column: bytes, known: int | None, tgid: int | None
) -> None:
    """The kernel prints the last one's process until it has saved the new one's."""
    parser = LineParser(LAYOUTS, tgid={1234: known}.get)
    batch = parser.feed(line(b"p: " + AT_ENTRY + b' count=1 comm="x"', tgid=column))
    assert [record[TGID] for record in batch.records] == [tgid]


@pytest.mark.parametrize(
    "address",
    [
        b"(vfs_read+0x0/0x1a0)",
        b"(f+0x0/0x10 [ext4])",
        b"(0xffffffff81000000)",
        b"(0x4245c0)",
        b"(f.isra.0+0x4/0x40)",
    ],
)
def test_addresses_of_an_entry(address: bytes) -> None:
    assert values(line(b"p: " + address + b' count=1 comm="x"')) == [(1, b"x")]


@pytest.mark.parametrize(
    ("address", "caller"),
    [
        (b"(ksys_read+0x75/0x100 <- vfs_read)", b"ksys_read"),
        (b"(f.constprop.0+0x75/0x100 [ext4] <- g [ext4])", b"f.constprop.0"),
        (b"([unknown/kretprobe'd] <- vfs_read)", None),
        (b"(0xffffffff81000000 <- vfs_read)", b"0xffffffff81000000"),
    ],
)
def test_the_caller(address: bytes, caller: bytes | None) -> None:
    (record,) = parse(line(b"r: " + address + b' return=1 comm="x"')).records
    assert record[CALLER] == caller


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0", 0),
        (b"-9223372036854775808", -(2**63)),
        (b"18446744073709551615", 2**64 - 1),
        (b"0x0", 0),
        (b"0xfffffffffffffffe", 2**64 - 2),
        (b"007", 7),
        (b"(fault)", None),
    ],
)
def test_numbers(text: bytes, value: int | None) -> None:
    assert values(line(b"p: " + AT_ENTRY + b" count=" + text + b' comm="x"')) == [(value, b"x")]


@pytest.mark.parametrize(
    "text", [b"", b"-", b"0x", b"1 2", b"0x1g", b"+1", b"1e6", b"\xd9\xa3", b"9" * 5000, b"0x" + b"f" * 17]
)
def test_what_is_no_number_is_unparsed(text: bytes) -> None:
    assert parse(line(b"p: " + AT_ENTRY + b" count=" + text + b' comm="x"')) == Batch([], unparsed=1)


@pytest.mark.parametrize(
    ("name", "column"), [("tid", b"-%s "), ("cpu", b"[%s]"), ("seconds", b" %s.123456: "), ("tgid", b"(%s) ")]
)
def test_numbers_of_the_prefix_are_bounded(name: str, column: bytes) -> None:
    """int() raises ValueError for more than 4300 digits."""
    usual = {"tid": b"1", "tgid": b"1", "cpu": b"1", "seconds": b"1"} | {name: b"9" * 5000}
    text = b" " * 16 + b'-%(tid)s (%(tgid)s) [%(cpu)s] ..... %(seconds)s.123456: p: (f) count=1 comm=""\n' % {
        key.encode(): value for key, value in usual.items()
    }
    assert column % (b"9" * 5000) in text
    assert parse(text) == Batch([], unparsed=1)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("bare", b"vfs_read+0x0/0x1a0", b"vfs_read+0x0/0x1a0"),
        ("bare", b"f+0x0/0x10 [ext4]", b"f+0x0/0x10 [ext4]"),
        ("bare", b"' '", b"' '"),
        ("bare", b"'''", b"'''"),
        ("char", b"'a'", b"a"),
        ("char", b"' '", b" "),
        ("char", b"'''", b"'"),
        ("bare", b"{1,-2,0x3}", b"{1,-2,0x3}"),
        ("bare", b"{'}',',',' ','''}", b"{'}',',',' ','''}"),
        ("bare", b"{f+0x0/0x10 [ext4],0x0}", b"{f+0x0/0x10 [ext4],0x0}"),
        ("texts", b'{"a","b"}', b'{"a","b"}'),
        ("texts", b'{"} n=5",(fault)}', b'{"} n=5",(fault)}'),
        ("hex", b"fffffffe", 0xFFFFFFFE),
        ("hex", b"0x7f", 0x7F),
        ("str", b'"x"', b"x"),
        ("str", b'""', b""),
        ("str", b'"""', b'"'),
        ("str", b'"(fault)"', b"(fault)"),
        ("str", b"(fault)", None),
    ],
)
def test_kinds(kind: Any, text: bytes, value: object) -> None:
    layout = Layout(0, "p", "p", "entry", "f", (Arg("n", "int"), Arg("x", kind)))
    batch = parse(line(b"p: (f+0x0/0x1) n=7 x=" + text), layouts=(layout,))
    assert [record[VALUES:] for record in batch.records] == [(7, value)]


@pytest.mark.parametrize(
    ("bits", "text", "value"),
    [
        (64, b"0xfffffffffffffffe", -2),
        (32, b"0xfffffffe", -2),
        (32, b"0xfffffffffffffffe", -2),
        (32, b"0x7fffffff", 2**31 - 1),
        (0, b"0xfffffffe", 2**32 - 2),
        (-32, b"0xffffffffffffff9c", 0xFFFFFF9C),
        (-16, b"0x12345", 0x2345),
    ],
)
def test_numbers_of_a_known_width_in_hexadecimal(bits: int, text: bytes, value: int) -> None:
    args = (Arg("ret", "hex", bits),)
    layout = Layout(0, "x", "sys_exit_read", "tracepoint", "s", args, None, rb"(0x[0-9a-f]+)")
    assert parse(line(b"sys_read -> " + text), layouts=(layout,)).records[0][VALUES] == value


@pytest.mark.parametrize(
    ("event", "key"),
    [
        ("sys_enter_openat", b"sys_openat("),
        ("sys_exit_openat", b"sys_openat -> "),
        ("sched_switch", b"sched_switch: "),
    ],
)
def test_how_a_tracepoint_names_itself(event: str, key: bytes) -> None:
    assert text_key(Layout(0, "x", event, "tracepoint", event)) == key
    assert text_key(Layout(0, "x", event, "entry", event)) == event.encode() + b": "


# Strings that a process controls. The kernel wrote the prefix.


def test_a_string_does_not_end_at_what_looks_like_its_end() -> None:
    assert values(line(b'p: (f) count=1 comm="a" comm="b"')) == [(1, b'a" comm="b')]
    assert values(line(b'p: (f) count=1 comm="a" count=2"')) == [(1, b'a" count=2')]
    assert values(line(b'later: (f) comm="a" count=9" count=1')) == [(b'a" count=9', 1)]


@pytest.mark.parametrize(
    "strings",
    [
        b'path="a" comm="b" comm="c"',
        b'path="a" comm=(fault)" comm="c"',
        b'path="a" comm=b" comm="c"',
        b'path="" comm=" comm=""',
        b'path=(fault) comm="b" comm="c"',
        b'path="a" comm="new',
        b'path="new',
    ],
)
def test_strings_that_could_be_cut_in_two_ways_are_none_and_the_event_counts(strings: bytes) -> None:
    batch = parse(line(b"two: (f) count=1 " + strings))
    assert [record[VALUES:] for record in batch.records] == [(1, None, None)]
    assert batch.unparsed == 0


@pytest.mark.parametrize(
    ("strings", "expected"),
    [
        (b'path="a" comm="b"', (b"a", b"b")),
        (b'path="a" x="1" comm="b"', (b'a" x="1', b"b")),
        (b'path="a" count=5" comm="b"', (b'a" count=5', b"b")),
        (b'path="a"" comm=""b"', (b'a"', b'"b')),
        (b'path=(fault) comm="b"', (None, b"b")),
        (b'path="a" comm=(fault)', (b"a", None)),
        (b"path=(fault) comm=(fault)", (None, None)),
    ],
)
def test_two_strings(strings: bytes, expected: tuple[bytes | None, ...]) -> None:
    assert values(line(b"two: (f) count=1 " + strings)) == [(1, *expected)]


def test_a_number_is_not_forged_by_an_array_of_strings() -> None:
    forged = line(b'mixed: (f) sym=g+0x1/0x2 names={"} comm=","y"} comm="real"')
    assert values(forged) == [(b"g+0x1/0x2", None, None)]
    plain = line(b'mixed: (f) sym=0x1 names={"x","y"} comm="real"')
    assert values(plain) == [(b"0x1", b'{"x","y"}', b"real")]


@pytest.mark.parametrize(
    "comm",
    [
        b"a\nb",
        b"\n",
        b"\n -1 [0] 1.0: p",
        b"x\nCPU:0 [LOST ",
        b"\n#",
        b"p: (f) count=9",
        b"-9 [000] .... 1",
        b"[LINE TOO BIG]\n",
        b"<...>-7    [0]",
    ],
)
def test_a_name_forges_nothing(comm: bytes) -> None:
    """A line counts once with any 15 bytes as its thread's name, and so do the lines next to it."""
    assert len(comm) <= 15
    good = line(b'p: (f) count=1 comm="good"')
    batch = parse(good + line(b'p: (f) count=2 comm="x"', comm) + line(b"unknown: x", comm) + good)
    assert [record[VALUES] for record in batch.records] == [1, 2, 1]
    assert (batch.unparsed, batch.lost, batch.losses) == (1, 0, [])


@given(st.binary(max_size=15), st.binary(max_size=15))
def test_no_name_forges_anything(comm: bytes, other: bytes) -> None:
    """This also holds next to short lines, past whose ends the 16 columns of a name could reach."""
    short = b"[LINE TOO BIG]\nCPU:0 [LOST EVENTS]\n => f\n"
    last = line(b"p: (f) count=2 comm=(fault)", other)
    batch = parse(line(b"p: (f) count=1 comm=(fault)", comm), short, line(b"u: x", other), short, last)
    assert [record[VALUES] for record in batch.records] == [1, 2]
    assert (batch.unparsed, batch.lost) == (4 + 1, 0)
    assert batch.losses == [Loss(0, 0, 12_345_678_000)]


def test_a_newline_in_a_string_costs_the_string_and_not_the_event() -> None:
    batch = parse(line(b'r: (g+0x1/0x2 <- f) return=-2 comm="new\nline"'))
    assert [record[VALUES:] for record in batch.records] == [(-2, None)]
    assert batch.unparsed == 1


@pytest.mark.parametrize(
    ("data", "unparsed", "lost"),
    [
        (b"CPU:1 [LOST 23 EVENTS]\n", 0, 23),
        (b"CPU:12 [LOST EVENTS]\n", 0, 0),
        (b"CPU:1 [LOST 1 EVENTS]\nCPU:1 [LOST 2 EVENTS]\n", 0, 3),
        (b"CPU:1 [LOST " + b"9" * 5000 + b" EVENTS]\n", 1, 0),
        (b"[LINE TOO BIG]\n", 1, 0),
        (b"# tracer: nop\n#\n", 0, 0),
        (b"##### CPU 1 buffer started ####\n", 0, 0),
        (b"\n\n", 2, 0),
        (b"\x00" * 40 + b"\n", 1, 0),
        (PREFIX + b"bprint: x\n", 1, 0),
        (PREFIX + b"<stack trace>\n => f\n => g\n" + PREFIX + b"p: x\n", 4, 0),
        (PREFIX + b"p: (f) count=1\n", 1, 0),
        (PREFIX + b'p: (f) count=1 comm="x" more=1\n', 0, 0),
        (PREFIX + b'p:  (f) count=1 comm="x"\n', 1, 0),
    ],
)
def test_other_lines(data: bytes, unparsed: int, lost: int) -> None:
    batch = parse(data)
    assert (batch.unparsed, batch.lost) == (unparsed, lost)


def at(micros: int, cpu: int, body: bytes = b'p: (f) count=1 comm="x"') -> bytes:
    return b"%16s-%-7d [%03d] ..... %5d.%06d: %s\n" % (b"bash", 1234, cpu, 0, micros, body)


LOST_HERE = b"CPU:1 [LOST 7 EVENTS]\n"
NEXT = at(400, 1)
STACKING = Layout(7, "p", "p", "entry", "f", (COUNT, COMM), stack=True)


@pytest.mark.parametrize(
    ("text", "losses"),
    [
        (at(100, 1) + at(200, 0) + LOST_HERE + NEXT, [(1, 100, 400)]),
        (at(200, 0) + LOST_HERE + NEXT, [(1, 0, 400)]),
        (at(100, 1) + LOST_HERE + LOST_HERE + NEXT + at(500, 1), [(1, 100, 400)]),
        (at(100, 1) + b"CPU:1 [LOST EVENTS]\nCPU:0 [LOST 1 EVENTS]\n" + NEXT, [(1, 100, 400), (0, 0, 400)]),
        (LOST_HERE + NEXT + LOST_HERE + at(500, 0), [(1, 0, 400), (1, 400, 500)]),
        (LOST_HERE, []),
        (at(100, 1) + LOST_HERE + at(300, 1, b"p: (f) count") + NEXT, [(1, 100, 400)]),
        (at(100, 1) + at(300, 1, b"p: (f) count") + NEXT, [(1, 100, 400)]),
        (at(100, 1) + at(300, 1, b"p: (f) count=1[LINE TOO BIG]") + NEXT, [(1, 100, 400)]),
        (at(100, 1) + at(300, 1, b"p: (f) count={0x1,").rstrip() + at(350, 0) + NEXT, [(1, 100, 400)]),
        (at(100, 1) + LOST_HERE + at(300, 1, b"unknown: (f) count=1") + NEXT, [(1, 100, 400)]),
        (at(100, 1) + at(300, 1, b"unknown: (f) count=1") + NEXT, []),
        (at(100, 1) + b"[LINE TOO BIG]\n" + NEXT, []),
        (at(500, 1) + LOST_HERE + NEXT, [(1, 0, 500)]),
    ],
)
@pytest.mark.parametrize("layouts", [LAYOUTS, (STACKING,)], ids=["", "stack"])
def test_a_loss_lies_between_the_records_around_it(
    text: bytes, losses: list[tuple[int, int, int]], layouts: tuple[Layout, ...]
) -> None:
    """A loss begins at its own CPU's last record: an earlier line of another CPU may have a later time."""
    expected = [Loss(cpu, start * 1000, end * 1000) for cpu, start, end in losses]
    for pieces in ([text], text.splitlines(keepends=True)):
        assert parse(*pieces, layouts=layouts).losses == expected


def test_no_times_but_those_of_records_make_a_loss() -> None:
    """Lines that a string's newlines forge may count as lost events, but their times are never used."""
    name = b"\nCPU:1 [LOST 7 EVENTS]\n" + at(999_999, 1, b"p: junk") + at(999_999, 1, b"u: junk")
    text = at(100, 1) + at(200, 1, b'p: (f) count=2 comm="%s"' % name) + at(300, 0)
    batch = parse(text)
    assert [record[TIME] for record in batch.records] == [100_000, 200_000, 300_000]
    assert batch.losses == [Loss(1, 200_000, 300_000)]


def test_a_loss_of_one_of_two_layouts() -> None:
    other = Layout(8, "q", "p", "entry", "f", (Arg("missing", "int"),))
    batch = parse(at(100, 1) + NEXT, layouts=(ENTRY, other))
    assert (len(batch.records), batch.unparsed) == (2, 2)
    assert batch.losses == [Loss(1, 100_000, 400_000)]


def test_what_is_known_of_cpus_is_bounded() -> None:
    parser = LineParser(LAYOUTS)
    for cpu in range(MOST_CPUS + 1):
        parser.feed(at(100, cpu))
    assert parser.feed(LOST_HERE + NEXT).losses == [Loss(1, 0, 400_000)]
    parser.feed(b"".join(b"CPU:%d [LOST EVENTS]\n" % cpu for cpu in range(3 * MOST_CPUS)))
    assert len(parser.feed(NEXT).losses) == MOST_CPUS


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 5)), min_size=1),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_every_event_that_the_kernel_lost_lies_in_a_loss(
    events: list[tuple[int, bool, int]], places: list[int]
) -> None:
    """Events are in order of time; the kernel reports lost ones before the next event of their CPU."""
    text, missing, gone, now = b"", [], set(), 0
    for cpu, lost, step in [*events, *((cpu, False, 1) for cpu in range(4))]:
        now += step
        if lost:
            missing.append((cpu, now * 1000))
            gone.add(cpu)
            continue
        text += b"CPU:%d [LOST 1 EVENTS]\n" % cpu * (cpu in gone) + at(now, cpu)
        gone.discard(cpu)
    batch = parse(*cuts(text, places)[0])
    for cpu, time in missing:
        assert any(loss.cpu == cpu and loss.start <= time <= loss.end for loss in batch.losses)
    assert {loss.cpu for loss in batch.losses} == {cpu for cpu, _ in missing}


def test_what_waits_is_bounded() -> None:
    """A line without an end fills no memory and counts once, in any pieces."""
    good = line(b'p: (f) count=1 comm="good"')
    for start in (b"junk", PREFIX + b'p: (f) count=2 comm="'):
        long = start + b"x" * (3 * LONGEST) + b'"\n'
        expected = parse(long + good)
        assert [record[VALUES] for record in expected.records] == [1]
        assert expected.unparsed == 1
        for cut in (LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST):
            pieces = [long[at : at + cut] for at in range(0, len(long), cut)]
            assert parse(*pieces, good) == expected
    parser = LineParser()
    for _ in range(4):
        parser.feed(b"x" * LONGEST)
        assert len(parser._rest) <= LONGEST


@pytest.mark.parametrize("length", [LONGEST - 1, LONGEST, LONGEST + 1])
def test_the_longest_line_is_the_same_in_pieces(length: int) -> None:
    start = PREFIX + b'p: (f) count=1 comm="'
    data = start + b"x" * (length - len(start) - 2) + b'"\n'
    assert len(data) == length
    whole = parse(data)
    assert len(whole.records) == (length <= LONGEST)
    assert parse(data[:-1], data[-1:]) == whole
    assert parse(data[:-2], data[-2:]) == whole


HOSTILE = {
    "parentheses": b"r: (" + b"a" * LONGEST,
    "returns": b"r: (" + b" <- " * (LONGEST // 4),
    "plus": b"r: (" + b"a+" * (LONGEST // 2),
    "open": b"p: " + b"(" * LONGEST,
    "digits": b"p: (f) count=" + b"9" * LONGEST,
    "zeros": b"p: (f) count=0x" + b"0" * LONGEST,
    "quotes": b'p: (f) count=1 comm="' + b'"' * LONGEST + b"x",
    "ends of one": b'later: (f) comm="' + b'" count=1' * (LONGEST // 9) + b"x",
    "ends of two": b'two: (f) count=1 path="' + b'" comm="' * (LONGEST // 8) + b"x",
    "ends of three": b'three: (f) old="' + b'" new="" comm="' * (LONGEST // 15) + b"x",
    "faults": b"three: (f) old=" + b'(fault) new=(fault) comm=(fault)" new=' * (LONGEST // 39),
    "braces": b"mixed: (f) sym={" + b"{1,'}',{" * (LONGEST // 8),
    "arrays": b'mixed: (f) sym={1} names={"' + b'"} comm="' * (LONGEST // 9) + b"x",
    "spaces": b" " * LONGEST,
    "symbols": b"mixed: (f) sym=" + b"f [x] " * (LONGEST // 6),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name: str) -> None:
    """Each text has 64 KiB: quadratic time would take minutes here, linear time takes milliseconds."""
    parse(PREFIX + HOSTILE[name] + b"\n", PREFIX + HOSTILE[name] + b'"\n')


@pytest.mark.parametrize("unit", [b"-1 ", b"-1 [1] ", b"-1 ( ", b" ", b"\n", b" \n", b"-1 [1] .... 1"])
def test_no_prefix_takes_long(unit: bytes) -> None:
    assert parse(unit * (LONGEST // len(unit)), b"\n").records == []


# Any bytes in any pieces.

WORDS = st.sampled_from(
    [
        *(PREFIX, b"p: ", b"r: ", b"two: ", b"three: ", b"(f+0x0/0x1)", AT_RETURN),
        *(b" count=", b" return=", b' path="', b' comm="', b'"', b"(fault)", b"-1", b"0x2", b"\n", b'"\n'),
        *(b"CPU:0 [LOST 3 EVENTS]\n", b" " * 16, b"#", b"x", b"\x00\xff"),
        line(b'p: (f) count=3 comm="\xffx"', b"a\nb"),
        line(b"r: " + AT_RETURN + b' return=-1 comm="a\nb"', b" \n "),
    ]
)
TEXT = st.one_of(st.binary(max_size=200), st.lists(WORDS, max_size=20).map(b"".join))


@given(TEXT, st.lists(st.integers(0, 10_000), max_size=8))
def test_any_bytes_however_cut_give_the_same(data: bytes, places: list[int]) -> None:
    whole = parse(data)
    for pieces in cuts(data, places):
        assert parse(*pieces) == whole
    assert len(whole.records) + whole.unparsed <= data.count(b"\n")


@given(TEXT)
def test_garbage_does_not_swallow_what_follows(data: bytes) -> None:
    """The next event is found once a line has ended and 16 columns have passed."""
    good = line(b'p: (f) count=23 comm="good"')
    *_, last = parse(data, b"\n" + b"#" * 16 + b"\n", good).records
    assert last[VALUES:] == (23, b"good")


# Values are read back as the kernel prints them.

COMMS = st.binary(max_size=15).filter(lambda comm: b"\0" not in comm)
TRAPS = st.sampled_from([b'"', b'" comm=', b'" x=', b" ", b"(fault)", b"a", b"\xff", b'" path="'])
STRINGS = st.one_of(st.none(), st.binary(max_size=60), st.lists(TRAPS, max_size=8).map(b"".join)).filter(
    lambda text: text is None or not {0, ord("\n")} & set(text)
)


def shown(text: bytes | None) -> bytes:
    """Print a string like PRINT_TYPE_FUNC_NAME(string) of kernel/trace/trace_probe.c."""
    return b"(fault)" if text is None else b'"%s"' % text


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes, Record]:
    """Generate a line in the kernel's printf formats, and the record that it stands for."""
    tid, cpu = draw(st.integers(0, 2**22)), draw(st.integers(0, 4095))
    seconds, micros = draw(st.integers(0, 10**9)), draw(st.integers(0, 999_999))
    tgid = draw(st.one_of(st.none(), st.integers(1, 2**22)))
    column = draw(st.sampled_from([b"", b"(-------) "])) if tgid is None else b"(%7d) " % tgid
    flags = draw(st.sampled_from([b"", b"....", b".....", b"dNZff", b"D.h1.", b"bBH2f"]))
    prefix = b"%16s-%-7d %s[%03d] %s %5d.%06d: " % (draw(COMMS), tid, column, cpu, flags, seconds, micros)
    form = draw(st.sampled_from(["%d", "%u", "0x%x"]))
    bits = draw(st.sampled_from([8, 16, 32, 64]))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if form == "%d" else (0, 2**bits)
    number = draw(st.integers(low, high - 1))
    symbol = draw(st.sampled_from([b"vfs_read", b"f.isra.0", b"__x64_sys_read"]))
    text = draw(STRINGS)
    start = (seconds * 10**6 + micros) * 1000, cpu, tid, tgid
    if draw(st.booleans()):
        body = b"p: (%s+0x%x/0x1a0)" % (symbol, draw(st.integers(0, 0x19F)))
        caller, layout_id, name = None, 0, b"count"
    else:
        body = b"r: (%s+0x75/0x100 <- vfs_read)" % symbol
        caller, layout_id, name = symbol, 1, b"return"
    body += b" %s=%s comm=%s\n" % (name, (form % number).encode(), shown(text))
    return prefix + body, (layout_id, *start, caller, number, text)


@given(st.lists(events(), max_size=5))
def test_what_the_kernel_prints_reads_back(lines: list[tuple[bytes, Record]]) -> None:
    batch = parse(b"".join(text for text, _ in lines))
    assert batch.records == [record for _, record in lines]
    assert batch.unparsed == 0


@given(COMMS, st.integers(-(2**63), 2**63 - 1), STRINGS, STRINGS)
def test_two_strings_read_back_or_are_none(
    comm: bytes, number: int, path: bytes | None, name: bytes | None
) -> None:
    body = b"two: (f+0x0/0x1) count=%d path=%s comm=%s" % (number, shown(path), shown(name))
    ((layout_id, _, _, tid, _, _, count, *strings),) = parse(line(body, comm)).records
    assert (layout_id, tid, count) == (2, 1234, number)
    assert strings in ([path, name], [None, None])


@given(STRINGS, STRINGS)
def test_two_strings_without_traps_always_read_back(path: bytes | None, name: bytes | None) -> None:
    path, name = (text and text.replace(b" comm=", b" xomm=") for text in (path, name))
    assert values(line(b"two: (f) count=1 path=%s comm=%s" % (shown(path), shown(name)))) == [(1, path, name)]


# The text of real kernels.


EVENTS_OF_THE_WORKLOAD = 6 + 4 * 2 + 1 + 2
"""Opens by ``plain``, by four others with odd names, by a thread, and by the start of a program."""


def losses_of(data: bytes) -> list[Loss]:
    """Return the losses of a text that has only lines of recorded events and LOST lines."""
    found: list[Loss] = []
    last: dict[int, int] = {}
    lost: int | None = None
    for text in data.splitlines():
        if told := re.match(rb"CPU:(\d+) \[LOST", text):
            lost = int(told[1])
        elif event := re.search(rb"\[(\d+)\] \S+ +(\d+)\.(\d+): ", text):
            cpu, time = int(event[1]), int(event[2] + event[3]) * 1000
            if lost is not None:
                assert lost == cpu
                found.append(Loss(cpu, last[cpu], time))
            last[cpu], lost = time, None
    return found


@pytest.mark.parametrize("stream", captured("trace_pipe/"), ids=str)
def test_every_line_of_a_real_kernel(stream: Captured) -> None:
    layout = captured_layout(stream)
    batch = parse(stream.data, layouts=(layout,))
    kind = stream.name.split("/")[1].split(".")[0]
    tgids = {record[4] is not None for record in batch.records}
    assert tgids == {"record-tgid" in stream.how["options"]}
    if kind in ("tracepoint", "uprobe"):
        assert (len(batch.records), batch.unparsed) == (1, 0)
    elif kind == "stacktrace":
        assert len(batch.records) == 2
        assert batch.unparsed == 2 + stream.data.count(b"\n => ")
    elif kind == "lost":
        overrun = re.search(rb"^overrun: (\d+)$", stream.beside("stats").data, re.MULTILINE)
        assert overrun is not None
        assert batch.lost == int(overrun[1]) > 0
        assert batch.unparsed == 0
        assert len(batch.records) + batch.lost == 2 + 2000 + 2
        assert batch.losses == losses_of(stream.data)
    else:
        assert len(batch.records) == EVENTS_OF_THE_WORKLOAD
        # The forged line, and the rest of a name after its newline where the name is shown.
        assert batch.unparsed == (kind == "kprobe") + 2 * (layout.args[-1].name == "comm")


@pytest.mark.parametrize(
    "stream",
    [s for s in captured("trace_pipe/") if s.name.startswith(("trace_pipe/kret", "trace_pipe/epr"))],
    ids=str,
)
def test_names_and_errors_of_a_real_kernel(stream: Captured) -> None:
    records = parse(stream.data, layouts=(captured_layout(stream),)).records
    names = [name for *_, name in records]
    expected = [b"plain"] * 6 + [b"a b-7 [001]: x"] * 2 + [b'q" x="1'] * 2 + [b"\xff\xfebytes"] * 2
    assert names == [*expected, None, None, b"worker", b"true", b"true"]
    assert [record[VALUES] for record in records[1:6]] == [-2] * 5
    assert records[0][VALUES] >= 0


@pytest.mark.parametrize("stream", captured("trace_pipe/syscall"), ids=str)
def test_system_calls_of_a_real_kernel(stream: Captured) -> None:
    returned = [record[VALUES] for record in parse(stream.data, layouts=(captured_layout(stream),)).records]
    assert returned[1:6] == [-2] * 5
    assert returned[0] >= 0


@pytest.mark.parametrize("event", ["open_2", "_open", "Open", "A9_z", "o"])
def test_names_of_events(event: str) -> None:
    layout = Layout(9, event, event, "entry", "vfs_read", ())
    batch = parse(line(event.encode() + b": " + AT_ENTRY), layouts=(layout,))
    assert [record[0] for record in batch.records] == [9]
    assert batch.unparsed == 0


def test_probes_that_share_a_tracepoint_have_their_own_records() -> None:
    """Each layout gets the lines that pass its filter, and the number of all."""
    argument, pattern = (Arg("sig", "int"),), rb"sig=(-?\d+)"
    first, second, third = (
        Layout(number, "p", "signal_generate", "tracepoint", "signal_generate", argument, pattern=pattern)
        for number in (1, 2, 3)
    )
    wheres = {first: parse_filter("sig == 17"), second: parse_filter("sig != 17 && cpu == 1")}
    filters = record_filters([{layout: residual(parsed) for layout, parsed in wheres.items()}])
    text = b"".join(line(b"signal_generate: sig=%d" % sig) for sig in (17, 23, 17))
    batch = LineParser([first, second, third], filters).feed(text)
    assert [(record[0], record[VALUES]) for record in batch.records] == [
        (1, 17),
        (3, 17),
        (2, 23),
        (3, 23),
        (1, 17),
        (3, 17),
    ]
    assert (batch.arrived, batch.passed, batch.unparsed) == ({1: 3, 2: 3}, {1: 2, 2: 1}, 0)
    alone = LineParser([first], filters).feed(text)
    assert ([record[VALUES] for record in alone.records], alone.arrived) == ([17, 17], {1: 3})
