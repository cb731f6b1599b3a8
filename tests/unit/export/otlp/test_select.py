"""Which records are selected, and their trace and parent: by example, and against known trees of calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.export.otlp.select import MOST_STACKS, MOST_WAITING, Identity, Selector, Signal
from kprobe_exporter.export.otlp.traces import MOST_CALLS, SpanPolicy, bucket
from kprobe_exporter.model.records import STACK_POINTER, TIME, VALUES, Batch, Emission, Join, Layout, Record
from kprobe_exporter.model.values import Arg

S = 0xFFFFC90000003E00
IRQ = 0xFFFFFE0000003E00
KEY = b"k" * 32


def args(*names: str) -> tuple[Arg, ...]:
    return tuple([Arg(name, "int") for name in names])


def call(layout_id: int, *, stack: bool = False) -> Join:
    """A call with the layouts ``layout_id``, +1 (return) and +2 (joined). It filters by ``keep``."""
    begin = Layout(layout_id, "p", "entry", "entry", "f", args("keep", STACK_POINTER), stack=stack)
    end = Layout(layout_id + 1, "p", "ret", "return", "f", args(STACK_POINTER))
    return Join(
        Layout(layout_id + 2, "p", "f", "joined", "f", args("keep", "duration")), (begin,), end, "stack"
    )


def pair(layout_id: int, *key: str) -> Join:
    begin = Layout(layout_id, "p", "begin", "tracepoint", "f", args("keep", "id"))
    end = Layout(layout_id + 1, "p", "end", "tracepoint", "f", args("id"))
    return Join(
        Layout(layout_id + 2, "p", "f", "joined", "f", args("keep", "duration")), (begin,), end, "key", key
    )


OUTER, INNER, TRACED, SYSCALL, BLOCK = (
    call(10),
    call(20),
    call(60, stack=True),
    pair(30, "tid"),
    pair(40, "id"),
)
POINT = Layout(50, "p", "point", "entry", "f", args("keep"))
STACKED = Layout(51, "p", "point", "entry", "f", args("keep"), stack=True)


def entry(join: Join, time: int, place: int = S, tid: int = 7, keep: int = 1) -> Record:
    return (join.begins[0].layout_id, time, 0, tid, 70, None, keep, place)


def ret(join: Join, time: int, place: int = S, tid: int = 7) -> Record:
    return (join.end.layout_id, time, 0, tid, 70, None, place + (8 if join.by == "stack" else 0))


def point(time: int, tid: int = 7, keep: int = 1, layout: Layout = POINT) -> Record:
    return (layout.layout_id, time, 0, tid, 70, None, keep)


def keep(record: Record) -> bool:
    """The filter of all these tests. It may be called only with a whole record."""
    return bool(record[VALUES])


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Wiring:
    """A pairing and a selector as the agent wires them, and their output."""

    max_per_second: float | None = None
    identity: Identity | None = None
    chance: Callable[[], float] = lambda: 0.5
    key: bytes = KEY
    clock: Clock = field(default_factory=Clock)
    spans: list[Emission] = field(default_factory=list)
    logs: list[Emission] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pairing = Pairing(nested=True)
        self.selector = Selector(
            self.put,
            lambda signal, number: self.dropped.extend([signal] * number),
            self.max_per_second,
            identity=self.identity,
            clock=self.clock,
            chance=self.chance,
            key=self.key,
        )

    def put(self, signal: Signal, emission: Emission) -> None:
        (self.spans if signal == "span" else self.logs).append(emission)

    def span(self, join: Join, sample: float = 1.0, most: float | None = None) -> "Wiring":
        on_record = self.selector.on_record(join.layout, "span", sample, most, keep, join)
        self.pairing.add(join, ended=on_record)
        return self

    def log(self, what: Layout | Join = POINT, sample: float = 1.0, most: float | None = None) -> "Wiring":
        if isinstance(what, Join):
            on_record = self.selector.on_record(what.layout, "log", sample, most, keep, what)
            self.pairing.add(what, ended=on_record)
        else:
            self.pairing.watch(what, self.selector.on_record(what, "log", sample, most, keep))
        return self

    def feed(self, *records: Record, stacks: list[tuple[Record, tuple[bytes, ...]]] | None = None) -> None:
        self.selector.consume(self.pairing.pair(Batch(list(records), stacks=stacks or [])))

    @property
    def tree(self) -> dict[int, int | None]:
        """Map the begin of each exported call to its parent's begin; assert that all are in one trace."""
        assert len({span.trace for span in self.spans}) <= 1
        began = {span.span: span.record[TIME] for span in self.spans} | {0: None}
        return {span.record[TIME]: began[span.parent] for span in self.spans}


class TestSpans:
    def test_inner_calls_are_children_and_known_before_their_parents(self) -> None:
        wiring = Wiring().span(OUTER).span(INNER).span(SYSCALL)
        wiring.feed(entry(SYSCALL, 1, 5), entry(OUTER, 2), entry(INNER, 3, S - 256))
        wiring.feed(ret(INNER, 4, S - 256), ret(OUTER, 5))
        assert [span.record[TIME] for span in wiring.spans] == [3, 2]
        wiring.feed(ret(SYSCALL, 6, 5))
        assert wiring.tree == {3: 2, 2: 1, 1: None}
        assert all(span.trace and span.span for span in wiring.spans)

    def test_recursion(self) -> None:
        wiring = Wiring().span(OUTER)
        wiring.feed(entry(OUTER, 1), entry(OUTER, 1, S - 64), ret(OUTER, 2, S - 64), ret(OUTER, 3))
        inner, outer = wiring.spans
        assert (inner.parent, inner.trace) == (outer.span, outer.trace)
        assert inner.span != outer.span  # although both began at the same time

    def test_calls_one_after_the_other_are_two_traces(self) -> None:
        wiring = Wiring().span(OUTER)
        wiring.feed(entry(OUTER, 1), ret(OUTER, 2), entry(OUTER, 3), ret(OUTER, 4))
        assert len({span.trace for span in wiring.spans}) == len({span.span for span in wiring.spans}) == 2

    def test_ids_are_another_agents_with_another_key(self) -> None:
        spans = []
        for key in (b"a" * 32, b"b" * 32, b"a" * 32):
            wiring = Wiring(key=key).span(OUTER)
            wiring.feed(entry(OUTER, 1), ret(OUTER, 2))
            spans += wiring.spans
        assert spans[0] == spans[2]
        assert spans[0].trace != spans[1].trace
        assert spans[0].span != spans[1].span

    def test_a_pair_by_key_is_a_root(self) -> None:
        wiring = Wiring().span(OUTER).span(BLOCK)
        wiring.feed(entry(OUTER, 1), entry(BLOCK, 2, 99), ret(BLOCK, 3, 99), ret(OUTER, 4))
        assert [span.parent for span in wiring.spans] == [0, 0]
        assert len({span.trace for span in wiring.spans}) == 2

    def test_what_overlaps_keeps_one_trace(self) -> None:
        """The outermost call ends first, and the calls in it keep its trace and their parents."""
        wiring = Wiring().span(SYSCALL).span(OUTER).span(INNER)
        wiring.feed(
            entry(SYSCALL, 1, 5),
            entry(OUTER, 2),
            entry(INNER, 3, S - 256),
            ret(INNER, 4, S - 256),
            ret(SYSCALL, 5, 5),
            ret(OUTER, 6),
        )
        assert wiring.tree == {3: 2, 2: 1, 1: None}

    def test_a_span_takes_time(self) -> None:
        with pytest.raises(ValueError, match="'point' takes no time"):
            Wiring().selector.on_record(POINT, "span")


class TestFilters:
    def test_leaves_are_dropped(self) -> None:
        wiring = Wiring().span(OUTER).span(INNER)
        wiring.feed(entry(OUTER, 1), entry(INNER, 2, S - 256, keep=0), ret(INNER, 3, S - 256), ret(OUTER, 4))
        assert wiring.tree == {1: None}

    def test_what_is_around_something_exported_is_not(self) -> None:
        wiring = Wiring().span(OUTER).span(INNER).span(SYSCALL)
        wiring.feed(
            entry(SYSCALL, 1, 5, keep=0),
            entry(OUTER, 2, keep=0),
            entry(INNER, 3, S - 256),
            ret(INNER, 4, S - 256),
            ret(OUTER, 5),
            ret(SYSCALL, 6, 5),
        )
        assert wiring.tree == {3: 2, 2: 1, 1: None}

    def test_around_a_leaf_that_is_dropped_it_is_a_leaf_itself(self) -> None:
        wiring = Wiring().span(OUTER).span(INNER)
        wiring.feed(
            entry(OUTER, 1, keep=0), entry(INNER, 2, S - 256, keep=0), ret(INNER, 3, S - 256), ret(OUTER, 4)
        )
        assert wiring.spans == []
        assert wiring.dropped == []


class TestSampling:
    def test_the_outermost_call_decides(self) -> None:
        for share, expected in ((0.0, 0), (1.0, 2)):
            wiring = Wiring().span(OUTER, sample=share).span(INNER, sample=1 - share)
            wiring.feed(entry(OUTER, 1), entry(INNER, 2, S - 64), ret(INNER, 3, S - 64), ret(OUTER, 4))
            assert len(wiring.spans) == expected
            assert wiring.dropped == []

    def test_the_share_is_what_is_kept(self) -> None:
        wiring = Wiring().span(OUTER, sample=0.25)
        for time in range(0, 8000, 2):
            wiring.feed(entry(OUTER, time), ret(OUTER, time + 1))
        assert 900 < len(wiring.spans) < 1100
        assert all(span.trace % 2**64 < 2**62 for span in wiring.spans)

    def test_log_records_are_sampled_each_by_itself(self) -> None:
        draws = iter([0.1, 0.2, 0.3])
        wiring = Wiring(chance=lambda: next(draws)).log(sample=0.2)
        wiring.feed(point(1), point(2), point(3))
        assert [log.record[TIME] for log in wiring.logs] == [1]

    def test_without_a_share_no_chance_is_taken(self) -> None:
        wiring = Wiring(chance=lambda: 1 / 0).log()
        wiring.feed(point(1))
        assert len(wiring.logs) == 1


class TestLogs:
    def test_one_in_a_call_belongs_to_it(self) -> None:
        wiring = Wiring().span(OUTER).span(INNER).log()
        wiring.feed(point(1), entry(OUTER, 2, keep=0), point(3), point(4, tid=8), ret(OUTER, 5))
        (span,) = wiring.spans  # its filter rejects it, but a log record lies in it
        assert [(log.trace, log.span, log.parent) for log in wiring.logs] == [
            (0, 0, 0),
            (span.trace, 0, span.span),
            (0, 0, 0),
        ]

    def test_one_in_a_trace_that_is_not_exported_stands_alone(self) -> None:
        wiring = Wiring().span(OUTER, sample=0).log()
        wiring.feed(entry(OUTER, 2), point(3), ret(OUTER, 5))
        assert [(log.trace, log.parent) for log in wiring.logs] == [(0, 0)]
        assert wiring.spans == []

    def test_a_call_may_be_one_and_lies_where_it_began(self) -> None:
        wiring = Wiring().span(OUTER).log(INNER).log()
        wiring.feed(entry(OUTER, 1), entry(INNER, 2, S - 64), point(3), ret(INNER, 4, S - 64), ret(OUTER, 5))
        (span,) = wiring.spans
        assert [log.record[TIME] for log in wiring.logs] == [3, 2]
        assert {(log.trace, log.parent) for log in wiring.logs} == {(span.trace, span.span)}

    def test_its_filter(self) -> None:
        wiring = Wiring().log()
        wiring.feed(point(1, keep=0), point(2))
        assert [log.record[TIME] for log in wiring.logs] == [2]


class TestLimits:
    def test_so_many_a_second_and_the_rest_is_counted(self) -> None:
        wiring = Wiring().log(most=3)
        wiring.feed(*map(point, range(10)))
        assert (len(wiring.logs), wiring.dropped) == (3, ["log"] * 7)
        wiring.clock.now += 1
        wiring.feed(*map(point, range(10)))
        assert (len(wiring.logs), wiring.dropped) == (6, ["log"] * 14)

    def test_one_at_least_at_once(self) -> None:
        wiring = Wiring().log(most=0.1)
        wiring.feed(point(1), point(2))
        wiring.clock.now += 10.1
        wiring.feed(point(3), point(4))
        assert [log.record[TIME] for log in wiring.logs] == [1, 3]

    def test_that_of_all_probes_together(self) -> None:
        wiring = Wiring(max_per_second=2).log().span(OUTER)
        wiring.feed(point(1), entry(OUTER, 2), ret(OUTER, 3), point(4), entry(OUTER, 5), ret(OUTER, 6))
        assert (len(wiring.logs), len(wiring.spans), wiring.dropped) == (1, 1, ["log", "span"])

    def test_a_trace_goes_as_a_whole(self) -> None:
        """The limit admits one trace. The inner call ends first and uses the limit for its whole trace."""
        wiring = Wiring().span(OUTER, most=1).span(INNER)
        wiring.feed(entry(OUTER, 1), entry(INNER, 2, S - 64), ret(INNER, 3, S - 64), ret(OUTER, 4))
        wiring.feed(entry(OUTER, 5), entry(INNER, 6, S - 64), ret(INNER, 7, S - 64), ret(OUTER, 8))
        assert wiring.tree == {2: 1, 1: None}
        assert wiring.dropped == ["span", "span"]

    def test_what_is_admitted_is_so_to_its_end_and_later_traces_pay(self) -> None:
        wiring = Wiring(max_per_second=2).span(OUTER).span(INNER)
        wiring.feed(entry(OUTER, 1))
        for time in range(10, 50, 2):
            wiring.feed(entry(INNER, time, S - 64), ret(INNER, time + 1, S - 64))
        wiring.feed(ret(OUTER, 99))
        assert (len(wiring.spans), wiring.dropped) == (21, [])
        wiring.clock.now += 1.25
        wiring.feed(entry(OUTER, 100), ret(OUTER, 101))
        assert wiring.dropped == ["span"]
        wiring.clock.now += 0.5
        wiring.feed(entry(OUTER, 102), ret(OUTER, 103))
        assert len(wiring.spans) == 22

    def test_what_a_filter_leaves_out_takes_nothing(self) -> None:
        wiring = Wiring().log(most=1).span(OUTER, most=1)
        wiring.feed(point(1, keep=0), point(2), entry(OUTER, 3, keep=0), ret(OUTER, 4), entry(OUTER, 5))
        wiring.feed(ret(OUTER, 6))
        assert (len(wiring.logs), len(wiring.spans), wiring.dropped) == (1, 1, [])

    def test_a_limit_alone(self) -> None:
        clock = Clock()
        limit = SpanPolicy(1.0, [bucket(10, clock())], clock)
        for _ in range(10):
            assert limit.ready()
            limit.take()
        assert not limit.ready()
        clock.now += 0.11
        assert limit.ready()
        for _ in range(100):
            limit.take()  # an admitted trace may take more tokens than are left; later items wait
        clock.now += 1
        assert not limit.ready()
        clock.now += 0.11
        assert limit.ready()


class TestStacks:
    def test_an_event_waits_for_its_stack(self) -> None:
        wiring = Wiring().log(STACKED)
        record, other = point(1, layout=STACKED), point(2, layout=STACKED)
        wiring.feed(record, other, stacks=[(record, (b"a", b"b"))])
        wiring.selector.tick()
        assert wiring.logs == []
        wiring.feed(stacks=[(record, (b"c",)), (other, (b"d",))])
        wiring.selector.tick()
        assert [log.stack for log in wiring.logs] == [(b"a", b"b", b"c"), (b"d",)]

    def test_it_waits_for_a_round_of_the_reader_and_no_longer(self) -> None:
        wiring = Wiring().log(STACKED)
        wiring.feed(point(1, layout=STACKED))
        wiring.selector.tick()
        wiring.selector.tick()
        assert [log.stack for log in wiring.logs] == [()]
        wiring.selector.tick()
        assert len(wiring.logs) == 1

    def test_an_event_may_come_after_its_stack(self) -> None:
        """The source holds an event back, for the order of time, but not its stack."""
        wiring = Wiring().log(STACKED)
        early, late = point(1, layout=STACKED), point(5, layout=STACKED)
        wiring.feed(early, stacks=[(late, (b"late",)), (early, (b"early",))])
        wiring.feed(late)
        wiring.selector.flush()
        assert [log.stack for log in wiring.logs] == [(b"early",), (b"late",)]

    def test_the_stack_of_a_call_is_that_of_its_entry(self) -> None:
        wiring = Wiring().span(TRACED)
        begin = entry(TRACED, 1)
        wiring.feed(begin, stacks=[(begin, (b"a",))])
        wiring.feed(point(2), stacks=[(begin, (b"b",))])
        wiring.feed(ret(TRACED, 3))
        wiring.selector.flush()
        assert [span.stack for span in wiring.spans] == [(b"a", b"b")]

    def test_without_one_nothing_waits(self) -> None:
        wiring = Wiring().log()
        wiring.feed(point(1))
        assert len(wiring.logs) == 1

    def test_who_waits_is_bounded_and_nothing_is_lost(self) -> None:
        wiring = Wiring().log(STACKED)
        wiring.feed(*(point(time, layout=STACKED) for time in range(MOST_WAITING + 5)))
        assert len(wiring.logs) == 5
        wiring.selector.flush()
        assert len(wiring.logs) == MOST_WAITING + 5

    def test_what_is_remembered_of_open_calls_is_bounded(self) -> None:
        wiring = Wiring().span(TRACED).log()
        for tid in range(1, MOST_CALLS + 10):
            begin = entry(TRACED, tid, tid=tid)
            wiring.feed(begin, point(tid, tid=tid), stacks=[(begin, (b"a",))])
        assert len(wiring.selector._stacks) == MOST_STACKS
        assert len(wiring.selector._traces._calls) == MOST_CALLS
        wiring.feed(ret(TRACED, 2 * MOST_CALLS, tid=1), ret(TRACED, 2 * MOST_CALLS, tid=MOST_CALLS))
        wiring.selector.flush()
        assert [span.stack for span in wiring.spans] == [(), (b"a",)]
        assert wiring.spans[0].span == wiring.logs[0].parent  # the discarded call got the same id again

    def test_stacks_of_what_is_not_exported_are_not_kept(self) -> None:
        wiring = Wiring().log(STACKED, sample=0)
        for time in range(0, 100, 2):
            record = point(time, layout=STACKED)
            wiring.feed(record, stacks=[(record, (b"a",))])
        assert wiring.selector._stacks == {}


def test_a_thread_is_asked_for_when_its_batch_was_seen_by_all() -> None:
    """The identity is looked up after all consumers saw the batch, which may change the known containers."""
    asked = []

    def identity(tid: int, time: int) -> dict[str, str]:
        asked.append((tid, time))
        return {"k8s.pod.name": f"pod-{tid}"} if tid == 7 else {}

    wiring = Wiring(identity=identity).log().span(OUTER).log(STACKED)
    wiring.pairing.pair(Batch([point(1), point(2, tid=8), entry(OUTER, 3), ret(OUTER, 4)]))
    assert asked == []
    wiring.feed(point(5, layout=STACKED))
    assert asked == [(7, 1), (8, 2), (7, 3), (7, 5)]
    wiring.selector.flush()
    assert [log.attributes for log in wiring.logs] == [
        {"k8s.pod.name": "pod-7"},
        None,
        {"k8s.pod.name": "pod-7"},
    ]
    assert [span.attributes for span in wiring.spans] == [{"k8s.pod.name": "pod-7"}]


@dataclass
class Node:
    """A call as it really was. ``hits`` are the times of the events in it, but not in a call within it."""

    join: Join
    tid: int
    place: int
    parent: "Node | None"
    begun: int
    passes: bool
    children: list["Node"] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)

    @property
    def root(self) -> "Node":
        return self if self.parent is None else self.parent.root

    @property
    def expected(self) -> bool:
        """Whether the call is exported if its trace is."""
        return self.passes or bool(self.hits) or any(child.expected for child in self.children)

    def all(self) -> list["Node"]:
        return [self, *(node for child in self.children for node in child.all())]


JOINS = (OUTER, INNER, SYSCALL)


class Execution:
    """A random run of two threads: calls, jumps, interrupts and events. Open calls return at the end."""

    def __init__(self, random: Random, steps: int) -> None:
        self.records: list[Record] = []
        self.roots: list[Node] = []
        self.alone: list[int] = []
        self._random, self._now = random, 0
        self._open: dict[int, list[Node]] = {7: [], 8: []}
        for _ in range(steps):
            tid = random.choice((7, 8))
            random.choice((self._enter, self._enter, self._leave, self._hit))(tid)
        for tid, calls in self._open.items():
            for _ in list(calls):
                self._leave(tid)

    def _tick(self) -> int:
        self._now += self._random.randint(1, 5)
        return self._now

    def _enter(self, tid: int) -> None:
        calls, random = self._open[tid], self._random
        around = calls[-1] if calls else None
        busy = any(node.join is SYSCALL for node in calls)
        join = random.choice(JOINS[: 2 if busy else 3])
        stacks = [node.place for node in calls if node.join is not SYSCALL]
        if join is SYSCALL:
            place = tid
        elif stacks and stacks[-1] <= S and random.random() < 0.2:
            place = IRQ + tid * 2**20  # an interrupt's stack: nested in time, but not below in memory
        elif stacks and calls[-1].join is not join and random.random() < 0.1:
            place = stacks[-1]  # a jump keeps the stack pointer
        else:
            place = (stacks[-1] if stacks else S) - random.choice((16, 64, 256))
        if join is not SYSCALL and any(node.join is join and node.place == place for node in calls):
            return
        node = Node(join, tid, place, around, self._tick(), random.random() < 0.6)
        (around.children if around else self.roots).append(node)
        calls.append(node)
        self.records.append(entry(join, node.begun, place, tid, keep=node.passes))

    def _leave(self, tid: int) -> None:
        if self._open[tid]:
            node = self._open[tid].pop()
            self.records.append(ret(node.join, self._tick(), node.place, tid))

    def _hit(self, tid: int) -> None:
        calls = self._open[tid]
        (calls[-1].hits if calls else self.alone).append(self._tick())
        self.records.append(point(self._now, tid))


def deliver(random: Random, wiring: Wiring, records: list[Record]) -> None:
    while records:
        count = random.randint(1, len(records))
        wiring.feed(*records[:count])
        records = records[count:]


SHARES = st.sampled_from([0.0, 0.5, 1.0])


@given(st.randoms(use_true_random=True), st.integers(0, 80), SHARES, SHARES, SHARES)
def test_every_trace_is_as_the_calls_were_or_not_there(
    random: Random, steps: int, outer: float, inner: float, syscall: float
) -> None:
    execution = Execution(random, steps)
    wiring = Wiring(key=random.randbytes(16)).log()
    shares = dict(zip(map(id, JOINS), (outer, inner, syscall), strict=True))
    for join in JOINS:
        wiring.span(join, shares[id(join)])
    deliver(random, wiring, execution.records)
    spans = {span.record[TIME]: span for span in wiring.spans}
    logs = {log.record[TIME]: log for log in wiring.logs}
    assert len(spans) == len(wiring.spans) == len({span.span for span in wiring.spans})
    traces = set()
    for root in execution.roots:
        expected = {node.begun: node for node in root.all() if node.expected}
        found = {begun: spans.pop(begun) for begun in [node.begun for node in root.all()] if begun in spans}
        share = shares[id(root.join)]
        if found:
            (trace,) = {span.trace for span in found.values()}
            assert found.keys() == expected.keys()
            assert trace % 2**64 < share * 2**64
            assert trace not in traces
            traces.add(trace)
            assert {begun: span.parent for begun, span in found.items()} == {
                begun: found[node.parent.begun].span if node.parent else 0 for begun, node in expected.items()
            }
        else:
            assert share < 1 or not expected
            trace = 0
        for node in root.all():
            span = found[node.begun].span if node.begun in found else 0
            assert all(logs.pop(hit)[1:4] == (trace, 0, span) for hit in node.hits)
    assert not spans
    assert all(logs.pop(hit)[1:4] == (0, 0, 0) for hit in execution.alone)
    assert not logs


@given(st.randoms(use_true_random=True), st.integers(0, 80), st.sampled_from([None, 1.0, 5.0]), SHARES)
def test_whatever_goes_missing_untold_no_child_is_in_another_trace_than_its_parent(
    random: Random, steps: int, most: float | None, share: float
) -> None:
    execution = Execution(random, steps)
    wiring = Wiring(max_per_second=most, key=random.randbytes(16)).log()
    for join in JOINS:
        wiring.span(join, share)
    deliver(random, wiring, [record for record in execution.records if random.random() < 0.8])
    spans = {span.span: span for span in wiring.spans}
    assert len(spans) == len(wiring.spans)
    for item in [*wiring.spans, *wiring.logs]:
        parent = spans.get(item.parent)
        assert bool(item.parent) <= bool(item.trace)
        if parent is not None:
            assert parent.trace == item.trace
            assert parent.record[TIME] <= item.record[TIME]
    assert len(wiring.dropped) == 0 or most is not None
