"""Hist triggers: parsing their tables, with any names in them, attaching and detaching them, and hits."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.hist import HistKey, HistReading, HistTable
from kprobe_exporter.model.stacks import StackReading, StackTable, Weight
from kprobe_exporter.tracefs.hist_tables import HistTables, HitCounter, detach, parse_hist
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.stack_tables import StackTrigger
from tests.support.hist_texts import EMPTY, NAMES, POWERS, STEPS
from tests.unit.tracefs.conftest import Table

MINUS_2 = 2**64 - 2


def test_as_the_kernel_prints_them() -> None:
    names, powers, empty = parse_hist(NAMES + b"\n\n" + POWERS + b"\n\n" + EMPTY)
    assert (names.keys, names.vals, names.condition) == ("comm,r32", "hitcount", "r32 < 0")
    assert names.reading == HistReading(
        6, 0, {(b"x }\nhitcount: 9", MINUS_2): (3, 0), (b"abc", MINUS_2): (3, 0)}
    )
    assert (powers.keys, powers.vals) == ("common_cpu,common_pid,return.log2", "hitcount,return")
    assert powers.condition == "CPU >= 0 && return > 0 && return < 4294967290"
    assert powers.reading == HistReading(12, 3, {(1, 259, 4): (11, 154), (1, 259, 10): (1, 1024)})
    assert (empty.condition, empty.reading) == (None, HistReading(0, 0, {}))


def test_buckets_of_one_width() -> None:
    [shown] = parse_hist(STEPS)
    assert (shown.keys, shown.vals) == ("less.buckets=1000,tid", "hitcount,duration")
    assert shown.reading == HistReading(56, 0, {(0, 187): (27, 14698), (19000, 187): (29, 565032)})


def test_a_key_that_7_2_spells_twice() -> None:
    """Its headers have ``common_cpucommon_cpu``, and its rows ``common_cpu``."""
    [shown] = parse_hist(POWERS.replace(b"keys=common_cpu,", b"keys=common_cpucommon_cpu,"))
    assert [shown] == parse_hist(POWERS)


def printed(rows: dict[tuple[bytes, int], int], width: int) -> bytes:
    """Return what hist_show() prints for the keys comm and return, and a sum."""
    lines = [
        b"{ comm: %s, return: %10d } hitcount: %10d  return: %10d\n" % (comm.ljust(width), number, hits, hits)
        for (comm, number), hits in rows.items()
    ]
    return (
        b"# event histogram\n#\n# trigger info: hist:keys=comm,return:vals=hitcount,return:sort=hitcount"
        b":size=128 [active]\n#\n\n%s\nTotals:\n    Hits: %d\n    Entries: %d\n    Dropped: 0\n"
        % (b"".join(lines), sum(rows.values()), len(rows))
    )


names = st.one_of(
    st.sampled_from([b"x }\nhitcount: 9", b"\nTotals:\n", b"# event histogr", b"a, return: 1 }", b"", b" "]),
    st.lists(st.sampled_from([b" ", b"}", b"{", b"\n", b",", b":", b"9", b"\xff"]), max_size=15).map(
        b"".join
    ),
    st.binary(max_size=15).map(lambda name: name.replace(b"\0", b"")),
)
numbers = st.integers(0, 2**64 - 1)


@given(
    st.lists(st.dictionaries(st.tuples(names, numbers), numbers, max_size=5), min_size=1, max_size=3),
    st.sampled_from([35, 50]),
)
def test_whatever_the_names(tables: list[dict[tuple[bytes, int], int]], width: int) -> None:
    """Each name stays in its own row, but loses its trailing blanks, which look like the column's padding."""
    shown = parse_hist(b"\n\n".join(printed(rows, width) for rows in tables))
    assert len(shown) == len(tables)
    for one, rows in zip(shown, tables, strict=True):
        expected: dict[tuple[bytes, int], tuple[int, int]] = {}
        for (comm, number), hits in rows.items():
            key = comm.rstrip(b" "), number
            before = expected.get(key, (0, 0))
            expected[key] = before[0] + hits, before[1] + hits
        assert one.reading.rows == expected


@given(st.lists(numbers, min_size=1, max_size=50))
def test_a_sum_of_more_than_64_bits(values: list[int]) -> None:
    """The kernel adds up the values, and their upper halves, in 64 bits each (hist_trigger_elt_update())."""
    low, high = sum(values) % 2**64, sum(value >> 32 for value in values)
    [shown] = parse_hist(
        b"# event histogram\n#\n# trigger info: hist:keys=common_cpu:vals=hitcount,n,n_high:sort=hitcount"
        b":size=128 [active]\n#\n\n{ common_cpu:          0 } hitcount: %10d  n: %10d  n_high: %10d\n\n"
        b"Totals:\n    Hits: %d\n    Entries: 1\n    Dropped: 0\n" % (len(values), low, high, len(values))
    )
    assert shown.vals == "hitcount,n,n_high"
    assert shown.reading.rows == {(0,): (len(values), sum(values))}


@given(st.binary())
def test_any_bytes(text: bytes) -> None:
    assert parse_hist(text) == []
    assert [one.keys for one in parse_hist(EMPTY + text)] == ["common_cpu"]


@given(st.integers(0, len(NAMES + POWERS)))
def test_a_text_that_is_cut(at: int) -> None:
    """A table that is not complete is left out."""
    whole = parse_hist(NAMES + POWERS)
    assert parse_hist((NAMES + POWERS)[:at]) in (whole[:0], whole[:1], whole)


KEY = HistKey("return", "return", 64, signed=True)
POWER = HistTable((KEY._replace(log2=True),), "return", "return > 0", 128, ())
REST = HistTable((HistKey("comm", "comm", 0), KEY), None, "return <= 0", 512, ())
EVENT = "events/g/open"
HIST = f"instances/i/{EVENT}/hist"


@pytest.fixture
def tables(table: Table) -> HistTables:
    table.files[HIST] = b""
    return HistTables(Instance(table, "i", None), EVENT, (POWER, REST))


def test_triggers_come_and_go(table: Table, tables: HistTables) -> None:
    tables.attach()
    instance = tables._instance
    detach(instance, EVENT, tables.pop_triggers())
    detach(instance, EVENT, tables.pop_triggers())
    written = ["hist:keys=return.log2:vals=return:size=128 if return > 0"]
    written += ["hist:keys=comm,return:size=512 if return <= 0"]
    file = f"instances/i/{EVENT}/trigger"
    assert table.written == [*((file, text) for text in written), (file, "")]


def test_another_probes_triggers_stay(table: Table, tables: HistTables) -> None:
    """Only if none of ours is left, all are removed at once, for which the kernel waits less."""
    tables.attach()
    counter = HitCounter.attach(tables._instance, EVENT)
    assert counter is not None
    table.written.clear()
    detach(tables._instance, EVENT, tables.pop_triggers())
    assert [text.partition("=")[0] for _, text in table.written] == ["!hist:keys", "!hist:keys"]
    table.written.clear()
    detach(tables._instance, EVENT, counter.pop_triggers())
    assert table.written == [(f"instances/i/{EVENT}/trigger", "")]


def test_a_kernel_without_hist_triggers(table: Table, tables: HistTables) -> None:
    table.files.clear()
    with pytest.raises(ProbeRefused, match="without CONFIG_HIST_TRIGGERS"):
        tables.attach()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.EEXIST, "another probe has the same hist trigger on this event"),
        (
            errno.EINVAL,
            r"the hist trigger 'hist:keys=.*' is refused: the kernel says \(EINVAL\): Couldn't",
        ),
    ],
)
def test_a_refused_one(table: Table, tables: HistTables, code: int, sentence: str) -> None:
    table.refused[f"instances/i/{EVENT}/trigger"] = code
    table.files["instances/i/error_log"] = (
        b"[    1.000001] hist:g:open: error: Couldn't find field\n  Command: "
        + POWER.trigger.encode()
        + b"\n                     ^\n"
    )
    with pytest.raises(ProbeRefused, match=sentence):
        tables.attach()


def test_its_own_tables_in_its_own_order(tables: HistTables) -> None:
    """Its tables are found by the kernel's description of them, among those of other programs."""
    rest = NAMES.replace(b"r32 <", b"r32 <=").replace(b"r32", b"return")
    power = (
        b"# event histogram\n#\n# trigger info: hist:keys=return.log2:vals=hitcount,return:sort=hitcount"
        b":size=128 if return > 0 [active]\n#\n\n"
        b"{ return: ~ 2^0  } hitcount:          1  return:          1\n"
        b"\nTotals:\n    Hits: 1\n    Entries: 1\n    Dropped: 0\n"
    )
    found = tables.read(parse_hist(b"\n\n".join([EMPTY, rest, POWERS, power])))
    assert found is not None
    assert [reading.hits for reading in found] == [1, 6]
    assert tables.read(parse_hist(EMPTY + b"\n\n" + power)) is None


TABLE = b"""\
# event histogram
#
# trigger info: hist:keys=common_cpu:vals=hitcount:sort=hitcount:size=2048 [active]
#

{ common_cpu:          0 } hitcount:          7
{ common_cpu:          1 } hitcount:         16

Totals:
    Hits: 23
    Entries: 2
    Dropped: 0
"""
FILTERED = TABLE.replace(b" [active]", b" if ret < 0 [active]").replace(b"23", b"99")


@pytest.fixture
def counter(table: Table) -> HitCounter:
    table.files[HIST] = b""
    counter = HitCounter.attach(Instance(table, "i", None), EVENT)
    assert counter is not None
    assert table.written == [(f"instances/i/{EVENT}/trigger", "hist:keys=common_cpu")]
    counter.begin()
    return counter


def read(table: Table, *counters: HitCounter) -> list[int | None]:
    return [counter.total(parse_hist(table.files[HIST])) for counter in counters]


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        (TABLE, 23),
        (TABLE.replace(b"Hits: 23", b"Hits: 18446744073709551615"), 2**64 - 1),
        (TABLE.replace(b"Dropped: 0", b"Dropped: 5"), 28),
        (FILTERED + b"\n\n" + TABLE, 23),
        (TABLE + b"\n\n" + FILTERED, 23),
        (FILTERED, None),
        (b"", None),
        (TABLE[: TABLE.index(b"Entries")], None),
        (TABLE.replace(b"Hits: 23", b"Hits: -1"), None),
    ],
)
def test_the_total(counter: HitCounter, text: bytes, hits: int | None) -> None:
    assert counter.total(parse_hist(text)) == hits


def test_an_event_that_is_gone(counter: HitCounter, table: Table) -> None:
    table.files.clear()
    counter.freeze()
    assert counter.total([]) is None
    assert HitCounter.attach(Instance(table, "i", None), EVENT) is None


def test_two_probes_count_by_one_trigger(counter: HitCounter, table: Table) -> None:
    """The kernel has one trigger for both: the second counts from its own start; the last one removes it."""
    instance = counter._instance
    table.files[HIST] = TABLE
    table.refused[f"instances/i/{EVENT}/trigger"] = errno.EEXIST
    second = HitCounter.attach(instance, EVENT)
    table.refused.clear()
    assert second is not None
    second.begin()
    assert read(table, counter, second) == [23, 0]
    table.files[HIST] = TABLE.replace(b"Hits: 23", b"Hits: 30")
    assert read(table, counter, second) == [30, 7]
    table.written.clear()
    detach(instance, EVENT, counter.pop_triggers())
    detach(instance, EVENT, counter.pop_triggers())
    assert table.written == []
    detach(instance, EVENT, second.pop_triggers())
    assert table.written == [(f"instances/i/{EVENT}/trigger", "")]


def test_it_counts_while_its_event_is_recorded(counter: HitCounter, table: Table) -> None:
    """What the trigger counts before recording begins, or after it ended, is no hit."""
    second = HitCounter.attach(counter._instance, EVENT)
    assert second is not None
    table.files[HIST] = TABLE
    assert read(table, second) == [0]
    second.begin()
    table.files[HIST] = TABLE.replace(b"Hits: 23", b"Hits: 30")
    second.begin()
    assert read(table, second) == [7]
    second.freeze()
    table.files[HIST] = TABLE.replace(b"Hits: 23", b"Hits: 40")
    second.freeze()
    assert read(table, counter, second) == [40, 7]
    unbegun = HitCounter.attach(counter._instance, EVENT)
    assert unbegun is not None
    unbegun.freeze()
    assert read(table, unbegun) == [0]


def test_a_counter_goes_as_it_came(counter: HitCounter, table: Table) -> None:
    table.written.clear()
    detach(counter._instance, EVENT, counter.pop_triggers())
    assert table.written == [(f"instances/i/{EVENT}/trigger", "")]


STACKED = b"""\
# event histogram
#
# trigger info: hist:keys=common_stacktrace:vals=hitcount,n:sort=hitcount:size=2048 if n >= 0 [active]
#

{ common_stacktrace:
         kprobe_ftrace_handler+0x1a8/0x1e0
         0xffffffffc02a10dc
         vfs_read+0x5/0x2d0
         nft_do_chain+0x10/0x20 [nf_tables]
} hitcount:          3  n:         30
{ common_stacktrace:
         vfs_read+0x5/0x2d0
         do_syscall_64+0x59/0x90
} hitcount:          1  n:          4
{ common_stacktrace:
         vfs_read+0x5/0x2d0
         do_syscall_64+0x61/0x90
} hitcount:          2  n:          4

Totals:
    Hits: 6
    Entries: 3
    Dropped: 9
"""
STACKS = {
    (b"kprobe_ftrace_handler", b"0xffffffffc02a10dc", b"vfs_read", b"nft_do_chain"): Weight(3, 30),
    (b"vfs_read", b"do_syscall_64"): Weight(3, 8),
}


@pytest.mark.parametrize("key", [b"common_stacktrace", b"stacktrace"])
def test_stacks(table: Table, key: bytes) -> None:
    """Two places in one function are one frame; Linux 6.1 has another name for the key."""
    trigger = StackTrigger(Instance(table, "i", None), EVENT, StackTable("n", "n >= 0", 2048))
    file = f"instances/i/{EVENT}/trigger"
    if key == b"stacktrace":
        refuse_once(table)
    trigger.attach()
    assert table.written[-1] == (file, f"hist:keys={key.decode()}:vals=n:size=2048 if n >= 0")
    table.files[HIST] = TABLE + b"\n\n" + STACKED.replace(b"common_stacktrace", key)
    assert trigger.read() == StackReading(9, STACKS)
    table.files[HIST] = TABLE
    assert trigger.read() is None
    assert trigger.pop_triggers() == [(table.written[-1][1], (key.decode(), "hitcount,n", "n >= 0"))]
    assert trigger.pop_triggers() == []
    assert trigger.read() is None


def refuse_once(table: Table) -> None:
    """Refuse the next write, as a kernel does that does not know the key."""
    write = table.write

    def refusing(path: str, text: str) -> None:
        table.write = write  # type: ignore[method-assign]
        raise OSError(errno.EINVAL, "Invalid argument", path)

    table.write = refusing  # type: ignore[method-assign]


def test_stacks_that_7_2_spells_twice() -> None:
    twice = STACKED.replace(b"keys=common_stacktrace", b"keys=common_stacktracecommon_stacktrace")
    assert parse_hist(twice) == parse_hist(STACKED)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.EEXIST, "another probe counts the same stacks"),
        (errno.EINVAL, r"the hist trigger 'hist:keys=common_stacktrace:size=128' is refused: .*\(EINVAL\)"),
    ],
)
def test_refused_stacks(table: Table, code: int, sentence: str) -> None:
    table.refused[f"instances/i/{EVENT}/trigger"] = code
    with pytest.raises(ProbeRefused, match=sentence):
        StackTrigger(Instance(table, "i", None), EVENT, StackTable(None, None, 128)).attach()
