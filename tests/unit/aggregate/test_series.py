"""Label sets: each is decoded once, their number is capped, and no input grows memory without bound."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.series import (
    IDLE,
    LABEL_BYTES,
    OVERFLOW,
    UNKNOWN,
    CellCache,
    Series,
    SeriesLimits,
    plain,
)
from kprobe_exporter.errors import name_text
from kprobe_exporter.model.aggregation import RawKey
from kprobe_exporter.model.specs import Decoder, LabelSpec
from kprobe_exporter.model.values import Value

COMM = LabelSpec("comm", "comm")


class Metric:
    """A series of numbers, and the decode failures that it reported."""

    def __init__(self, *labels: LabelSpec, cap: int = 1000, limits: SeriesLimits | None = None) -> None:
        self.failures: Counter[str] = Counter()
        self.limits = limits or SeriesLimits(cap, 20_000)
        self.series: Series[list[int]] = Series(labels, lambda: [0], self.limits, self.failures)

    def count(self, *raw: Value) -> None:
        self.series.cell(raw)[0] += 1

    def count_each(self, *values: Value) -> None:
        for value in values:
            self.count(value)

    @property
    def counts(self) -> dict[tuple[str, ...], int]:
        return {key: cell[0] for key, cell in self.series.cells.items()}


def decoded(*decoders: tuple[str, Decoder]) -> LabelSpec:
    return LabelSpec("x", "x", decoders)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-(2**63), "-9223372036854775808"),
        (2**64 - 1, "18446744073709551615"),
        (b"", ""),
        (b"bash", "bash"),
        ("Größe ☃".encode(), "Größe ☃"),
        (b"\xff\xfebytes", r"\xff\xfebytes"),
        (b"a\xc3", r"a\xc3"),
        (b"\xed\xa0\x80", r"\xed\xa0\x80"),
        (b'new\nline "quoted" \\', r'new\nline "quoted" ' + "\\"),
        (b"\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J\u202egnp\u2028\u2066".encode(), r"\u009b2J\u202egnp\u2028\u2066"),
        (b"\0" * 100, r"\x00" * 32),
        (b"x" * 128, "x" * 128),
        (b"x" * 129, "x" * 128),
        (b"\xff" * 100, r"\xff" * 32),
        ("é".encode() * 64, "é" * 64),
        (b"x" + "é".encode() * 64, "x" + "é" * 63),
        ("☃".encode() * 100, "☃" * 42),
    ],
)
def test_plain_text(value: Value, text: str) -> None:
    assert plain(value) == text


@given(st.binary(max_size=400))
def test_any_bytes_become_text_that_fits(value: bytes) -> None:
    text = plain(value)
    assert len(text.encode()) <= LABEL_BYTES
    assert text.isprintable()
    shown = name_text(value)
    assert shown.startswith(text)
    assert text == shown or len(text.encode()) > LABEL_BYTES - 4


def test_names_that_look_like_escaped_ones_are_counted_apart() -> None:
    """A thread names itself as another one's name is escaped."""
    metric = Metric(COMM)
    metric.count_each(b"a\x1b", rb"a\x1b", b"\x9b", "\x9b".encode(), rb"\x9b", b"\n", rb"\n")
    assert sorted(metric.counts.values()) == [1] * 7


def test_a_metric_without_labels_is_there_from_the_start() -> None:
    metric = Metric()
    assert metric.counts == {(): 0}
    metric.count()
    assert metric.counts == {(): 1}


def test_each_label_set_has_its_cell() -> None:
    metric = Metric(COMM, LabelSpec("cpu", "cpu"))
    for raw in [(b"a", 0), (b"a", 1), (b"a", 0), (b"b", 0)]:
        metric.count(*raw)
    assert metric.counts == {("a", "0"): 2, ("a", "1"): 1, ("b", "0"): 1}
    assert metric.failures == {}


def test_numbers_and_their_text_are_one_label_set() -> None:
    metric = Metric(COMM)
    metric.count_each(1, b"1")
    assert metric.counts == {("1",): 2}


def test_what_is_over_the_cap_goes_to_one_label_set_and_is_counted() -> None:
    metric = Metric(COMM, LabelSpec("cpu", "cpu"), cap=3)
    for number in range(10):
        metric.count(b"%d" % number, number)
    for _ in range(2):
        metric.count(b"9", 9)
    metric.count(b"0", 0)
    overflow = (OVERFLOW, OVERFLOW)
    assert metric.counts == {("0", "0"): 2, ("1", "1"): 1, ("2", "2"): 1, overflow: 9}
    assert metric.series.overflowed == 9


def test_who_calls_itself_overflow_takes_no_place_and_no_more() -> None:
    metric = Metric(COMM, cap=2)
    metric.count_each(OVERFLOW.encode(), b"a", b"b", b"c")
    assert metric.counts == {(OVERFLOW,): 2, ("a",): 1, ("b",): 1}
    assert metric.series.overflowed == 1


@given(st.lists(st.binary(max_size=3), max_size=60), st.integers(1, 5))
def test_every_event_is_counted_once_and_the_cap_holds(names: list[bytes], cap: int) -> None:
    metric = Metric(COMM, cap=cap)
    for name in names:
        metric.count(name)
        assert len(metric.series.cells) <= cap + 1
        assert len(metric.series.cell.found) <= 4 * cap
    assert sum(metric.counts.values()) == len(names)
    assert metric.series.overflowed == metric.counts.get((OVERFLOW,), 0)


def test_probes_that_share_a_metric_decode_it_each_in_its_own_way() -> None:
    metric = Metric(decoded(("map", lambda value: "tcp4" if value == b"tcp_v4_rcv" else None)))
    udp = decoded(("map", lambda value: "udp4" if value == b"udp_rcv" else None))
    other = CellCache(metric.series, (udp,))
    for _ in range(2):
        metric.count(b"tcp_v4_rcv")
        other((b"udp_rcv",))[0] += 1
    assert metric.counts == {("tcp4",): 2, ("udp4",): 2}
    metric.series.forget(0)  # their cells are gone, and their caches with them
    other((b"udp_rcv",))[0] += 1
    assert metric.counts == {("udp4",): 1}


def test_what_is_remembered_of_raw_values_is_bounded() -> None:
    """Thousands of raw values may decode to one label set, so their cache has a bound of its own."""
    metric = Metric(decoded(("sign", lambda value: "positive")), cap=5)
    for number in range(1000):
        metric.count(number)
        assert len(metric.series.cell.found) <= 20
    assert metric.counts == {("positive",): 1000}


def test_nothing_is_decoded_twice() -> None:
    asked: list[Value] = []

    def decode(value: Value) -> str:
        asked.append(value)
        return "x"

    metric = Metric(decoded(("d", decode)))
    metric.count_each(7, 7, 7)
    assert asked == [7]


def test_a_failure_is_unknown_and_counted_at_every_event() -> None:
    metric = Metric(decoded(("never", lambda value: None)), COMM)
    for _ in range(3):
        metric.count(7, b"a")
    assert metric.counts == {(UNKNOWN, "a"): 3}
    assert metric.failures == {"never": 3}


def test_a_value_that_could_not_be_read_fails_before_its_decoder() -> None:
    def decode(value: Value) -> str:
        raise AssertionError("asked")

    metric = Metric(decoded(("errno", decode)), COMM)
    for _ in range(2):
        metric.count(None, None)
    assert metric.counts == {(UNKNOWN, UNKNOWN): 2}
    assert metric.failures == {"errno": 2, "none": 2}


def test_decoders_are_applied_in_turn() -> None:
    seen: list[Value] = []

    def second(value: Value) -> str:
        seen.append(value)
        return "é" * 100

    metric = Metric(decoded(("first", lambda value: f"<{value!r}>"), ("second", second)))
    metric.count(7)
    assert seen == [b"<7>"]
    assert metric.counts == {("é" * 64,): 1}


def test_a_decoder_that_fails_ends_the_chain() -> None:
    metric = Metric(decoded(("first", lambda value: None), ("second", lambda value: "x")))
    metric.count(7)
    assert metric.counts == {(UNKNOWN,): 1}
    assert metric.failures == {"first": 1}


def test_as_many_values_as_labels() -> None:
    raw: RawKey = (1, 2)
    with pytest.raises(ValueError, match="zip"):
        Metric(COMM).series.cell(raw)


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def limited(clock: Clock, cap: int = 10, ttl: float | None = 60) -> Metric:
    return Metric(COMM, limits=SeriesLimits(cap, 1000, ttl, clock))


def test_what_is_not_seen_for_its_time_goes_and_what_is_seen_stays() -> None:
    clock = Clock()
    metric = limited(clock)
    metric.count_each(b"old", b"kept")
    for _ in range(8):  # every quarter of the time to live, as the aggregator does
        clock.now += 15
        metric.count(b"kept")
        metric.series.expire()
    assert metric.counts == {("kept",): 9}
    metric.count(b"old")  # it starts from 0 again
    assert metric.counts[("old",)] == 1


def test_names_that_come_and_go_do_not_crowd_out_the_others_for_good() -> None:
    """A process that renames itself fills the cap; when it stops, new names get room as its names expire."""
    clock = Clock()
    metric = limited(clock, cap=3)
    metric.count_each(b"steady", b"x1", b"x2", b"x3")
    assert metric.counts == {("steady",): 1, ("x1",): 1, ("x2",): 1, (OVERFLOW,): 1}
    clock.now += 59
    metric.series.expire()
    metric.count(b"steady")
    clock.now += 2
    metric.count(b"late")
    assert metric.counts == {("steady",): 2, ("late",): 1, (OVERFLOW,): 1}
    assert metric.limits.used == 2


def test_room_is_looked_for_once_a_second_at_the_most() -> None:
    clock = Clock()
    metric = limited(clock, cap=1, ttl=0.1)
    metric.count(b"first")
    clock.now += 0.5
    metric.count(b"second")
    assert metric.series.overflowed == 1
    clock.now += 0.6
    metric.count(b"second")
    assert metric.counts == {("second",): 1, (OVERFLOW,): 1}


def test_all_metrics_together_have_a_cap() -> None:
    limits = SeriesLimits(10, 3, 60, Clock())
    one, other = Metric(COMM, limits=limits), Metric(COMM, limits=limits)
    for name in (b"a", b"b"):
        one.count(name)
        other.count(name)
    assert one.counts == {("a",): 1, ("b",): 1}
    assert other.counts == {("a",): 1, (OVERFLOW,): 1}
    assert limits.used == 3


def test_without_a_time_to_live_nothing_goes() -> None:
    clock = Clock()
    metric = limited(clock, cap=1, ttl=0)
    metric.count(b"a")
    clock.now += 1e9
    metric.count(b"b")
    assert metric.counts == {("a",): 1, (OVERFLOW,): 1}


def test_with_an_open_time_to_live_the_oldest_goes_when_its_room_is_needed() -> None:
    clock = Clock()
    metric = limited(clock, cap=3, ttl=None)
    metric.count_each(b"rare", b"second", b"busy")
    for _ in range(4):  # as the aggregator does
        clock.now += IDLE / 4 + 1
        metric.count(b"busy")
        metric.series.expire()
    assert metric.counts == {("rare",): 1, ("second",): 1, ("busy",): 5}  # for as long as there is room
    metric.count(b"new")
    assert metric.counts == {("second",): 1, ("busy",): 5, ("new",): 1}
    metric.count_each(b"newer", b"newest")
    assert metric.counts == {("busy",): 5, ("new",): 1, ("newer",): 1, (OVERFLOW,): 1}
    metric.count(b"rare")  # not idle long enough to make room: it counts beyond the limit
    assert metric.counts[OVERFLOW,] == 2
    assert metric.limits.used == 3


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, IDLE)), max_size=60))
def test_only_what_is_idle_makes_room(steps: list[tuple[int, float]]) -> None:
    clock = Clock()
    metric = limited(clock, cap=3, ttl=None)
    seen: dict[str, float] = {}
    for number, pause in steps:
        clock.now += pause
        metric.series.expire()
        before = dict(metric.counts)
        metric.count(b"%d" % number)
        seen[str(number)] = clock.now
        for (name,) in before.keys() - metric.counts.keys():
            assert clock.now - seen[name] > IDLE
            assert all(seen[name] <= seen[other] for (other,) in before if other != OVERFLOW)
        assert len(metric.counts.keys() - {(OVERFLOW,)}) <= 3


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 40)), max_size=60))
def test_expiry_against_a_slow_obvious_model(steps: list[tuple[int, float]]) -> None:
    """A label set stays if seen within the time to live, and goes if not seen for 1.25 times as long."""
    clock = Clock()
    metric = limited(clock)
    seen: dict[str, float] = {}
    expired = clock.now
    for name, pause in steps:
        clock.now += pause
        if clock.now - expired >= 15:
            metric.series.expire()
            expired = clock.now
        metric.count(str(name).encode())
        seen[str(name)] = clock.now
        there = {key[0] for key in metric.counts}
        assert {n for n, at in seen.items() if clock.now - at < 60 - 40} <= there
        assert not {n for n, at in seen.items() if expired - at > 60 + 15 + 40} & there
    assert metric.limits.used == len(metric.counts)
