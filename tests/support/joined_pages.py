"""Calls and pairs of any sort as pages of the ring buffer, and a reader that joins them.

What is drawn need not be possible on a real machine: threads may return from calls that they never made.
"""

import struct
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.ended_threads import CLONE_VFORK, CLONE_VM
from kprobe_exporter.aggregate.matching import joined_record
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.aggregate.recipes import join_recipe, record_filters, source_recipe
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.model import GUESSED_RETURN
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.model.aggregation import RecordChoice, Where
from kprobe_exporter.model.condition import Computed
from kprobe_exporter.model.joins import JoinRecipe, Joins, ThreadEvent
from kprobe_exporter.model.record_layout import Field, Shape
from kprobe_exporter.model.records import (
    PREVIOUS,
    STACK_POINTER,
    TID,
    TIME,
    VALUES,
    Batch,
    Join,
    Layout,
    Outstanding,
    Record,
)
from kprobe_exporter.model.specs import LabelSpec, MetricSpec, ProbeMetrics, WorstSpec
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import where
from kprobe_exporter.source.binary import BinaryPipe
from kprobe_exporter.source.pages import UNKNOWN
from tests.model import pages
from tests.model.pages import HARDIRQ, NMI, SOFTIRQ
from tests.support.exported_records import Exported
from tests.support.page_material import Names
from tests.support.ring_buffer import GEOMETRY, MISSED, Page, event, located

THREAD = Field("signed", 4, 4)
RETURNS = GUESSED_RETURN

ENTRY_ARGS = (
    Arg(STACK_POINTER, "int", unsigned=64),
    Arg("size", "int"),
    Arg("name", "str"),
    Arg("at", "hex"),
)
ENTRY_FIELDS = (
    Field("unsigned", 8, 8, guards=(8,)),
    Field("signed", 16, 4),
    Field("dynamic", 20, 4, fault=True),
    Field("unsigned", 8, 8),
)
RETURN_ARGS = (Arg(STACK_POINTER, "int", unsigned=64), Arg("return", "int"), Arg("why", "str"))
RETURN_FIELDS = (
    Field("unsigned", 8, 8, guards=(8,)),
    Field("signed", 24, 8),
    Field("dynamic", 32, 4, fault=True),
)
FIRST_ARGS = (Arg("dev", "int"), Arg("name", "str"), Arg("size", "int"))
FIRST_FIELDS = (Field("unsigned", 16, 4), Field("dynamic", 20, 4, fault=True), Field("signed", 24, 4))
OTHER_ARGS = (Arg("name", "str"), Arg("dev", "int"), Arg("size", "int"), Arg("size2", "int"))
OTHER_FIELDS = (
    Field("dynamic", 20, 4, fault=True),
    Field("signed", 16, 4),
    Field("signed", 24, 4),
    Field("unsigned", 24, 2, network=True),
)


def shape(number: int, args: tuple[Arg, ...], fields: tuple[Field, ...], size: int, **more: Any) -> Shape:
    """Return the shape of the event ``number``, which is also its layout_id."""
    caller = more.pop("caller", None)
    layout = Layout(number, "p", f"event{number}", "entry", "f", args, **more)
    return Shape(number, layout, fields, THREAD, caller, size)


CALLER = Field("symbol", 16, 8)
CALL = shape(10, ENTRY_ARGS, ENTRY_FIELDS, 24)
BACK = shape(11, RETURN_ARGS, RETURN_FIELDS, 36, returns=RETURNS, caller=CALLER)
USER_CALL = shape(20, ENTRY_ARGS, ENTRY_FIELDS, 24, user=True)
USER_BACK = shape(21, RETURN_ARGS, RETURN_FIELDS, 36, returns=RETURNS)
FIRST = shape(30, FIRST_ARGS, FIRST_FIELDS, 28)
FIRST_TOO = shape(31, OTHER_ARGS, OTHER_FIELDS, 28)
LAST = shape(32, FIRST_ARGS, FIRST_FIELDS, 28)
MERGED = shape(33, OTHER_ARGS, OTHER_FIELDS, 28)
SENT = shape(34, FIRST_ARGS, FIRST_FIELDS, 28)
"""Steps between the first halves and the last one."""
TICK = shape(35, FIRST_ARGS, FIRST_FIELDS, 28)
ENTERED = shape(40, FIRST_ARGS, FIRST_FIELDS, 28)
LEFT = shape(41, RETURN_ARGS, RETURN_FIELDS, 36, returns=RETURNS)
NEW = shape(
    50, (Arg("child", "int"), Arg("flags", "int")), (Field("signed", 8, 4), Field("unsigned", 16, 8)), 24
)
EXEC = shape(51, (Arg("old", "int"),), (Field("signed", 8, 4),), 12)
EXIT = shape(52, (), (), 8)
THREADS = NEW, EXEC, EXIT
RUN = shape(42, FIRST_ARGS, FIRST_FIELDS, 28)
RUN_AGAIN = shape(43, (), (), 12)._replace(id=EXEC.id)
RUN_ENDED = shape(44, (), (), 8)._replace(id=EXIT.id)
"""Halves that are events about threads too."""
LOOKED_UP_ARGS = (Arg("letter", "char", type="char"), Arg("words", "texts"), Arg("size", "int"))
LOOKED_UP_FIELDS = (
    Field("char", 16, 1), Field("texts", 20, 4, length=1, fault=True), Field("signed", 24, 4)
)  # fmt: skip
ASKED = shape(46, LOOKED_UP_ARGS, LOOKED_UP_FIELDS, 28)._replace(id=ENTERED.id)
ANSWERED = shape(47, LOOKED_UP_ARGS, LOOKED_UP_FIELDS, 28)._replace(id=RUN.id)
"""Halves whose values are looked up, or made of the record's bytes."""
SINGLE = shape(45, FIRST_ARGS, FIRST_FIELDS, 28)
PLACED = shape(53, NEW.layout.args, NEW.fields, 24)._replace(id=NEW.id)
REPLACED = shape(54, EXEC.layout.args, EXEC.fields, 12)._replace(id=EXEC.id)
MOVE = shape(55, (Arg("leader", "int"),), (Field("signed", 8, 4),), 12)
MOVES = PLACED, REPLACED, MOVE
"""Events after which a thread is in another cgroup."""
EVENTS = {
    50: ThreadEvent("started", ("child", "flags")),
    51: ThreadEvent("executed", ("old",)),
    52: ThreadEvent("exited"),
    53: ThreadEvent("placed", ("child",)),
    54: ThreadEvent("moved", ("old",)),
    55: ThreadEvent("moved"),
}


def condition(text: str) -> Where:
    return where(parse_formula(text))


SOME = condition('size >= 0 && name != "bb"')
"""The filter of the single events."""


def computed(name: str, text: str) -> Computed:
    made = condition(text)
    return Computed(name, made.fields, made.condition)


def joined(
    number: int,
    begins: Sequence[Shape],
    end: Shape,
    key: tuple[str, ...] = (),
    through: Mapping[str, Shape] = MappingProxyType({}),
) -> Join:
    """Return a join by this key, or by stack without one, with its arguments as the plan makes them."""
    shared = [arg for arg in begins[0].layout.args if all(one.layout.place(arg.name) for one in begins)]
    names = {arg.name for arg in shared} | {STACK_POINTER}
    args = [arg for arg in (*shared, *end.layout.args) if arg in shared or arg.name not in names]
    args = [arg for arg in args if arg.name != STACK_POINTER] + [Arg(name, "int") for name in through]
    layout = Layout(
        number, f"probe{number}", f"probe{number}", "joined", "sym", (*args, Arg("duration", "int"))
    )
    layout = replace(layout, returns=end.layout.returns, computed=COMPUTED, steps=tuple(through))
    firsts, steps = (tuple(one.layout for one in some) for some in (begins, through.values()))
    return Join(layout, firsts, end.layout, "key" if key else "stack", key, through=steps)


def with_next(number: int, one: Shape, key: tuple[str, ...]) -> Join:
    """Return a join of each event with the one before it, as the plan makes it."""
    before = [arg._replace(name=f"{PREVIOUS}{arg.name}") for arg in one.layout.args]
    args = (*one.layout.args, *before, Arg("duration", "int"))
    layout = Layout(number, f"probe{number}", f"probe{number}", "joined", "sym", args, computed=COMPUTED)
    return Join(layout, (one.layout,), one.layout, "key", key)


COMPUTED = (
    computed("speed", "size * 1000 / (duration % 7)"),
    computed("sum", "size + duration"),
    computed("served", "duration - sent"),
    computed("twice", "size * 2"),
)
JOINS = {
    one.layout.layout_id: one
    for one in (
        joined(60, [CALL], BACK)._replace(only=condition("size >= 0"), outstanding=Outstanding(20, "size")),
        joined(61, [USER_CALL], USER_BACK)._replace(outstanding=Outstanding(0)),
        joined(62, [FIRST, FIRST_TOO], LAST, ("dev", "name"), {"merged": MERGED, "sent": SENT})._replace(
            only=condition('name != "bb"'), outstanding=Outstanding(5, "twice")
        ),
        joined(63, [ENTERED], LEFT, ("tid",))._replace(only=condition("tid != 8 && size < 2")),
        joined(64, [RUN, RUN_AGAIN], RUN_ENDED, ("tid",)),
        with_next(65, TICK, ("dev",)),
        joined(66, [ASKED], ANSWERED, ("pid", "letter"))._replace(only=condition('words != "{(fault)}"')),
    )
}
HALVES = {
    60: (CALL, BACK), 61: (USER_CALL, USER_BACK), 62: (FIRST, FIRST_TOO, MERGED, SENT, LAST),
    63: (ENTERED, LEFT), 64: (RUN, RUN_AGAIN, RUN_ENDED), 65: (TICK,), 66: (ASKED, ANSWERED),
}  # fmt: skip


def label(name: str) -> LabelSpec:
    return LabelSpec(name, name)


def label_of_thread(field: str) -> LabelSpec:
    return LabelSpec(f"of_{field}", field, (("cgroup", lambda path: None if path is None else str(path)),))


def by_cgroup(number: int) -> list[MetricSpec]:
    """Return metrics of every kind with the cgroups of one or two threads as labels."""
    tid, pid, other = map(label_of_thread, ("tid", "pid", "size"))
    bounds = (0.0, 2.0, 4.0)
    return [
        MetricSpec(f"p{number}_by_pod_total", "counter", "h", None, (tid,), where=condition("size < 2")),
        MetricSpec(f"p{number}_of_two_total", "counter", "h", None, (other, label("name"), pid)),
        MetricSpec(f"p{number}_spread", "histogram", "h", "size", (tid, label("tid")), bounds, native=True),
    ]


def metrics(number: int, *, moving: bool = False) -> ProbeMetrics:
    """Return metrics of every kind, with fields of both halves.

    A gauge keeps the value of the joined record that began last. Joins with two sorts of first halves have no
    gauge, because it is not defined which of two is the last that began at the same time.
    """
    names: tuple[str, ...] = (
        "name",
        "why",
        "tid",
        "pid",
        "cpu",
        "caller",
        "symbol",
        "return",
        "size",
        "missing",
    )
    names += (f"{PREVIOUS}name", f"{PREVIOUS}size", "letter", "words")
    names += JOINS[number].layout.steps if number in JOINS else ()
    specs = (
        *(MetricSpec(f"p{number}_{name}_total", "counter", "h", None, (label(name),)) for name in names),
        MetricSpec(f"p{number}_sizes_total", "counter", "h", "size", (label("name"), label("why"))),
        MetricSpec(
            f"p{number}_took",
            "histogram",
            "h",
            "duration",
            (label("size"),),
            (5.0, 10.0, 1000.0),
            native=bool(number % 2),
        ),
        MetricSpec(f"p{number}_speed", "counter", "h", "speed", (label("sum"),)),
        MetricSpec(
            f"p{number}_some_total",
            "counter",
            "h",
            None,
            (),
            where=condition("duration > 0.000000005 && size != 2"),
        ),
        MetricSpec(
            f"p{number}_known_total", "counter", "h", "pid", (), where=condition('pid > 3 || words ~ "*b*"')
        ),
        MetricSpec(f"p{number}_unreadable_total", "counter", "h", "letter", ()),
    )
    specs += (*by_cgroup(number),) if moving else ()
    if number == SINGLE.layout.layout_id:
        plain = MetricSpec("p45_total", "counter", "h", None, (label("name"),))
        return ProbeMetrics(SINGLE.layout.probe, (*by_cgroup(number),) if moving else (plain,), (), None)
    join = JOINS[number]
    worst = None
    if len(join.begins) == 1:
        specs += (MetricSpec(f"p{number}_last", "gauge", "h", "duration", (label("tid"),)),)
        in_cgroup = (label_of_thread("tid"),) if moving else ()
        kept = (label("name"), label("size"), label("words"), *in_cgroup)
        worst = WorstSpec("duration", kept, 1e-9, 60.0, is_time=True)
    returns = join.layout.returns
    return ProbeMetrics(f"probe{number}", specs, (1.0, 4.0), returns, (1e-9, 1e-8, 1e-7), True, worst=worst)


CONTEXTS = (0, 0, 1, HARDIRQ, SOFTIRQ, NMI | HARDIRQ, NMI | HARDIRQ | SOFTIRQ)
"""``common_flags`` of events: of threads (twice), without interrupts, in interrupts, at breakpoints."""


def call(number: int, tid: int, pointer: int, size: int, name: bytes | None) -> bytes:
    text = b"" if name is None else name + b"\0"
    return event(number, tid, struct.pack("=Qi", pointer, size), located(24, text), text)


def back(number: int, tid: int, pointer: int, value: int, why: bytes | None) -> bytes:
    text = b"" if why is None else why + b"\0"
    return event(number, tid, struct.pack("=QQq", pointer, 16 * abs(tid), value), located(36, text), text)


def first(number: int, tid: int, dev: int, name: bytes | None, size: int) -> bytes:
    text = b"" if name is None else name + b"\0"
    return event(number, tid, struct.pack("=Qi", 0, dev), located(28, text), struct.pack("=i", size), text)


def started(tid: int, child: int, flags: int) -> bytes:
    return event(50, tid, struct.pack("=iiQ", child, 0, flags))


def executed(tid: int, old: int) -> bytes:
    return event(51, tid, struct.pack("=i", old))


def exited(tid: int) -> bytes:
    return event(52, tid)


def moved(leader: int) -> bytes:
    return event(55, 1, struct.pack("=i", leader))


@dataclass
class Happened:
    """Draws what happens: threads call and return, by depth, and do what no thread can.

    ``ending``: the share of threads that start, execute a program and exit, among 30 events. ``moving``: that
    of moves to another cgroup, for which there are single events then.
    """

    random: Random
    distance: int
    forks: bool = True
    ending: int = 2
    moving: int = 0
    stacks: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    cpus: dict[int, int] = field(default_factory=dict)

    def event(self) -> tuple[int, bytes]:
        """Return a CPU and an event."""
        random = self.random
        tid = random.choice([0, 1, 7, 8, 9, -3])
        if random.random() < 0.2 or tid not in self.cpus:
            self.cpus[tid] = random.randrange(3)
        shares = [8, 8, 6, 4, 2, self.ending, 10 if self.moving else 0, self.moving, 3]
        number = random.choices([10, 20, 30, 40, 42, 50, 45, 55, 35], shares)[0]
        text = random.choice([b"a", b"bb", b"", b"ccccccccc", b"x" * 130, None])
        size = random.choice([0, 1, 2, -1, 100_000])
        if number in (10, 20):
            return self.cpus[tid], self._call(number, tid, text, size)
        dev = random.choice([1, 2, -1])
        flags = [0, CLONE_VM, CLONE_VFORK] if self.forks else [CLONE_VM]
        choices: Mapping[int, Sequence[Callable[[], bytes]]] = {
            30: [partial(first, one, tid, dev, text, size) for one in (30, 31, 33, 34, 32, 32)],
            40: [lambda: first(40, tid, dev, text, size), lambda: back(41, tid, 0, size, text)],
            42: [partial(first, 42, tid, dev, text, size)],
            35: [partial(first, 35, tid, dev, text, size)],
            45: [partial(first, 45, tid, dev, text, size)],
            55: [partial(moved, tid)],
            50: [
                lambda: started(tid, random.choice([1, 7, 8, 9]), random.choice(flags)),
                lambda: executed(tid, random.choice([tid, 7, 8])),
                lambda: exited(tid),
            ],
        }
        made = bytearray(random.choice(choices[number])())
        made[2] = random.choice(CONTEXTS)
        return self.cpus[tid], bytes(made)

    def _call(self, number: int, tid: int, text: bytes | None, size: int) -> bytes:
        random = self.random
        if random.random() < 0.15:
            pointer = random.choice([0, 8, 4096, 1 << 20, (1 << 20) + 8, (1 << 64) - 8, (1 << 64) - 4096])
            at = number + random.randrange(2)
            return call(at, tid, pointer, size, text) if at == number else back(at, tid, pointer, size, text)
        depth = self.stacks.setdefault((number, tid), [(1 << 20) - 176])
        if len(depth) > 1 and random.random() < 0.5:
            pointer = depth.pop()
            if random.random() < 0.1 and len(depth) > 1:  # a return that was not seen
                pointer = depth.pop()
            return back(number + 1, tid, pointer + self.distance, size, text)
        depth.append(depth[-1] - 16 * random.randint(1, 3))
        return call(number, tid, depth[-1], size, text)


@dataclass
class Recording:
    """The pages of some CPUs by round, as a reader finds them, and when each round begins."""

    rounds: list[tuple[int, dict[int, list[bytes]]]]


def record(
    random: Random,
    steps: int,
    distance: int,
    losing: float,
    *,
    ties: float = 0,
    forks: bool = True,
    ending: int = 2,
    moving: int = 0,
) -> Recording:
    """Draw events, and write them to pages of which some are lost."""
    happened = Happened(random, distance, forks, ending, moving)
    now, rounds = 1000, random.randint(1, 4)
    events: list[tuple[int, int, bytes]] = []
    for _ in range(steps):
        now += 0 if random.random() < ties else random.randint(1, 6)
        events.append((now, *happened.event()))
    cuts = [*sorted(random.randint(1000, now) for _ in range(rounds - 1)), now]
    found: list[tuple[int, dict[int, list[bytes]]]] = [(cut, {}) for cut in cuts]
    for cpu in range(3):
        mine = deque(one for one in events if one[1] == cpu)
        lost = False
        for number, cut in enumerate(cuts):
            until = random.randint(cut, cuts[number + 1]) if number + 1 < rounds else now
            taken = []
            while mine and mine[0][0] <= until:
                taken.append(mine.popleft())
            made = found[number][1].setdefault(cpu, [])
            while taken:
                page = Page(taken[0][0] - random.randint(0, 1) * (not lost), flags=MISSED if lost else 0)
                wanted = random.choice([1, 2, 5, 1000])
                while taken and wanted and page.room(len(taken[0][2]) + 16):
                    time, _, payload = taken.pop(0)
                    page.add(time, payload)
                    wanted -= 1
                lost = random.random() < losing
                if not lost:
                    made.append(page.render())
    return Recording(found)


class Fed:
    """A parser that gets its pages from memory.

    It joins or delivers after so many pages instead of events: a thread's end takes effect then, so that both
    parsers have to do it at the same moments.
    """

    def __init__(self, parser: Any, pages_of: dict[int, deque[bytes]]) -> None:
        self.parser, self._pages = parser, pages_of
        self.queued = 0  # pages

    def __getattr__(self, name: str) -> Any:
        return getattr(self.parser, name)

    @property
    def waiting(self) -> int:
        return min(self.queued, self.parser.waiting) if self.parser.compiled else self.queued

    def pull(self, fd: int, cpu: int, most: int) -> int:
        got = 0
        while got < min(most, 2) and self._pages[cpu]:
            self.parser.feed(self._pages[cpu].popleft(), cpu)
            got += 1
        self.queued += got
        return got

    def join(self, batch: Batch | None, until: int | None = None) -> None:
        self.queued = 0
        self.parser.join(batch, until)

    def resume_from(self, before: "Fed") -> None:
        self.parser.resume_from(before.parser)


class Places:
    """The cgroups of threads: another one after each event about it. Threads of one parity move together."""

    def __init__(self) -> None:
        self._moves: Counter[int] = Counter()
        self._began: Counter[int] = Counter()

    def path(self, tid: int, time_ns: int) -> bytes:
        return b"/%d in its %d. of %d" % (tid, self._began[tid], self._moves[tid % 2])

    def placed(self, record: Record) -> None:
        self._began[record[VALUES]] += 1

    def replaced(self, record: Record) -> None:
        self._began[record[TID]] += record[VALUES] != record[TID]

    def moved(self, record: Record) -> None:
        self._moves[record[VALUES] % 2] += 1


ALL = frozenset(JOINS)
BY_THREAD = 63
IN_NO_CALL = frozenset({62, 65, 66})
"""The joins that are paired by another key than the thread: their records lie in no other ones."""

SOME_LARGE = condition("size >= 1 || cpu == 2")


def choices(random: Random, *, limits: bool = False) -> dict[int, RecordChoice]:
    """Draw how the joined records and the single events are exported, if at all."""
    together = random.choice([None, 1.0, 5.0, 40.0]) if limits else None
    found = {}
    for number in [*JOINS, SINGLE.id]:
        if random.random() < 0.8:
            found[number] = RecordChoice(
                "log" if number == SINGLE.id or random.random() < 0.25 else "span",
                random.choice([None, SOME_LARGE]),
                1.0,
                random.choice([None, 1.0, 3.0, 10.0]) if limits else None,
                together,
                nested=number not in {*IN_NO_CALL, SINGLE.id},
                system_call=number == BY_THREAD and random.random() < 0.5,
            )
    return found


@dataclass(eq=False)
class Reading:
    """A parser, the pairing and the numbers, as agent/pipeline.py wires them.

    With ``moving``, metrics have the cgroups of threads as labels. There are single events if these move or
    are exported. ``exports`` says what is exported, by layout_id.
    """

    kind: Any
    most: int = 65_536
    filters: Mapping[Layout, Where] = field(default_factory=dict)
    residual: Where | None = None
    moving: bool = False
    exports: Mapping[int, RecordChoice] = field(default_factory=dict)
    own_threads: frozenset[int] = frozenset()
    pages: dict[int, deque[bytes]] = field(default_factory=lambda: {cpu: deque[bytes]() for cpu in range(3)})

    def __post_init__(self) -> None:
        places = Places()
        limits = SeriesLimits(10_000, 100_000)
        self.numbers = Aggregator("ns", limits, lambda number: f"E{number}", places.path)
        self.joins: frozenset[int] = frozenset()
        self.now = 0
        self.halves: list[Record] = []
        self.evicted = Counter[int]()
        self.pairing = Pairing([], self.most, nested=True)
        self.exported = Exported(self.exports, self.pairing, chosen=self.kind.compiled)
        threads = self.pairing.threads
        self.pairing.follow(
            NEW.layout,
            lambda one: threads.started(one[TID], one[VALUES], one[VALUES + 1], one[TIME]),
        )
        self.pairing.follow(EXEC.layout, lambda one: threads.executed(one[VALUES], one[TID]))
        self.pairing.follow(EXIT.layout, lambda one: threads.exited(one[TID], one[TIME]))
        handlers = (places.placed, places.replaced, places.moved)
        for moves, handle in zip(MOVES, handlers, strict=True) if self.moving else ():
            self.numbers.watch(moves.layout.layout_id, handle)
        if self.has_singles:
            self.numbers.declare(metrics(SINGLE.id, moving=self.moving))
            self.numbers.attach(SINGLE.layout, count_hits=True, residual_filter=SOME)
            self.exported.add(SINGLE.layout, SOME)
        for number, one in JOINS.items():
            self.numbers.declare(metrics(number, moving=self.moving))
            self.numbers.attach(
                one.layout,
                count_hits=True,
                residual_filter=self.residual,
                joined=True,
            )
        self.parser = self._parser(ALL)
        self.pipe = BinaryPipe(
            dict.fromkeys(range(3), 0),
            self.parser,
            self.consume,
            1000,
            clock=lambda: self.now,
            own_threads=lambda: self.own_threads,
        )
        self._pair(ALL)

    def _parser(self, joins: frozenset[int]) -> Fed:
        shapes = [one for number in sorted(joins) for one in HALVES[number]]
        recipes: dict[int, JoinRecipe] = {}
        for number in sorted(joins):
            made = join_recipe(JOINS[number], metrics(number, moving=self.moving), self.residual)
            assert made is not None
            recipe = made.recipe._replace(choice=self.exports.get(number))
            recipes[number] = made._replace(recipe=recipe, make=joined_record(JOINS[number]))
        more: dict[str, Any] = {"most_open": self.most} if self.kind.compiled else {}
        others = [layout for join in JOINS.values() for layout in join.parts[len(join.begins) :]]
        of_all = {layout.layout_id for layout in (*others, *(one.layout for one in (*THREADS, *MOVES)))}
        singles = (*([SINGLE] if self.has_singles else []), *(MOVES if self.moving else ()))
        single = {}
        if self.has_singles:
            wanted = source_recipe(SINGLE.layout, metrics(SINGLE.id, moving=self.moving), SOME)
            assert wanted is not None
            single[SINGLE.id] = wanted._replace(choice=self.exports.get(SINGLE.id))
        parser = self.kind(
            GEOMETRY, [*THREADS, *shapes, *singles], Names(), pages.NO_STACKS, True, single,
            record_filters([self.filters]), Joins(recipes, EVENTS), of_all, **more,
        )  # fmt: skip
        return Fed(parser, self.pages)

    def _pair(self, joins: frozenset[int]) -> None:
        for number in self.joins - joins:
            self.exported.remove(JOINS[number].layout, JOINS[number])
        for number in sorted(joins - self.joins):
            self.exported.add(JOINS[number].layout, self.residual, JOINS[number])
        self.joins = joins

    def switch(self, joins: frozenset[int]) -> None:
        """Reload: only these joins are left."""
        self._pair(joins)
        self.consume(Batch())
        parser = self._parser(joins)
        self.pipe.adopt(parser)
        self.parser = parser

    def reset(self, number: int) -> None:
        """Drop the open halves of a join, as after an interruption."""
        self.pairing.reset(JOINS[number])
        self.pipe.drop(number)
        self.consume(Batch())

    @property
    def has_singles(self) -> bool:
        return self.moving or SINGLE.id in self.exports

    def consume(self, batch: Batch) -> None:
        self.halves += [one for one in batch.records if one[0] < NEW.id and one[0] != SINGLE.id]
        batch = self.pairing.pair(batch)
        self.evicted.update(batch.evicted)
        self.numbers.consume(batch)
        self.exported.consume(batch)

    def read(self, now: int, found: Mapping[int, Sequence[bytes]], *, last: bool = False) -> None:
        for cpu, some in found.items():
            self.pages[cpu].extend(some)
        self.now = now
        self.pipe.empty(last=last)
        if last:  # also where the last round is empty, which the pipe does not deliver
            self.consume(Batch(reached=UNKNOWN))

    @property
    def open(self) -> int:
        return self.parser.open if self.kind.compiled else self.pairing.open

    def result(self) -> tuple[Numbers, int]:
        return self.numbers.copy(), self.open
