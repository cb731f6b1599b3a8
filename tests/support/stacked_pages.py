"""Pages with events and their stacks, of the kernel and of programs, and how an agent counts these."""

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from kprobe_exporter.aggregate.matching import joined_record
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from kprobe_exporter.aggregate.recipes import counted_stacks, join_recipe, source_recipe
from kprobe_exporter.aggregate.recorded_stacks import RecordedStacks
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.stack_counts import StackCounts
from kprobe_exporter.model.aggregation import RecordChoice
from kprobe_exporter.model.joins import JoinRecipe, Joins
from kprobe_exporter.model.record_layout import Field, Shape
from kprobe_exporter.model.records import Batch, Join, Layout
from kprobe_exporter.model.specs import ProbeMetrics
from kprobe_exporter.model.stacks import Addresses, Frames, Place, Profile
from kprobe_exporter.model.values import Arg
from kprobe_exporter.source.binary import BinaryPipe
from tests.support.exported_records import Exported
from tests.support.joined_pages import Fed, condition
from tests.support.page_material import STACKS, TID, Names
from tests.support.ring_buffer import GEOMETRY, MISSED, Page, event

SIZE = (Arg("size", "int"),)


def shape(number: int, *, stack: bool = False, user_stack: bool = False) -> Shape:
    layout = Layout(
        number, f"p{number}", f"e{number}", "entry", "f", SIZE, stack=stack, user_stack=user_stack
    )
    return Shape(number, layout, (Field("signed", 8, 4),), TID, None, 12)


SINGLE = shape(20, stack=True)
OF_PROGRAM = shape(21, user_stack=True)
BEGIN, END = shape(22, stack=True, user_stack=True), shape(23)
DELIVERED = shape(24, stack=True, user_stack=True)
WITHOUT = shape(25)
SAME = shape(26, stack=True, user_stack=True)._replace(id=SINGLE.id)
SAME_TOO = shape(27, stack=True)._replace(id=DELIVERED.id)
ONLY_EXPORTED = shape(28, stack=True)._replace(id=DELIVERED.id)
"""Other probes at the same events, which have a stack once."""
SHAPES = [SINGLE, OF_PROGRAM, BEGIN, END, DELIVERED, WITHOUT, SAME, SAME_TOO, ONLY_EXPORTED]

JOINED = Layout(30, "p30", "p30", "joined", "f", (*SIZE, Arg("duration", "int")))
JOIN = Join(JOINED, (BEGIN.layout,), END.layout, "key", ("tid",))
SOME = condition("size != 2")
OTHERS = condition("size != 7")
EXPORTS = {
    20: RecordChoice("log"),
    21: RecordChoice("log"),
    27: RecordChoice("log", condition("size != 1")),
    28: RecordChoice("log", condition("size != 2")),
    30: RecordChoice("span", nested=True),
}
WEIGHTS = {20: "size", 21: None, 26: None, 27: None, 30: "duration"}


class Programs:
    """Stands for the code of running programs: an address is a place in the file of its process."""

    def frames(self, pid: int, addresses: Addresses) -> Frames:
        return tuple(Place(pid, address, b"[%d]" % pid) for address in addresses)

    def comm(self, pid: int) -> bytes:
        return b"%d" % pid

    def names(self, places: object) -> dict[Place, bytes]:
        return {}

    def close(self) -> None:
        pass


class ReadingStacks:
    """A parser of this kind, the pairing and the counted stacks, as agent/pipeline.py wires them."""

    def __init__(self, kind: Any, exports: Mapping[int, RecordChoice] | None = None) -> None:
        self.kind, self._exports = kind, exports or {}
        self.programs = ProgramStacks(Programs)
        self.recorded = RecordedStacks(self.programs)
        self.counts = {
            number: StackCounts(f"p{number}", weigh, 10_000, SeriesLimits(1, 1), user=True)
            for number, weigh in WEIGHTS.items()
        }
        self.delivered: list[Any] = []
        self.pairing = Pairing([], nested=True)
        self.exported = Exported(self._exports, self.pairing, chosen=kind.compiled)
        self.exported.add(JOINED, None, JOIN)
        for one, only in ((SINGLE, SOME), (OF_PROGRAM, None), (SAME_TOO, None), (ONLY_EXPORTED, None)):
            self.exported.add(one.layout, only)
        self.recorded.add(SINGLE.layout, None, self.counts[20], SOME)
        self.recorded.add(OF_PROGRAM.layout, None, self.counts[21], None)
        self.recorded.add(SAME.layout, None, self.counts[26], OTHERS)
        self.recorded.add(SAME_TOO.layout, None, self.counts[27], None)
        self.recorded.add(JOINED, JOIN, self.counts[30], None)
        self.pairing.tell(JOIN, self.recorded.joined)
        self.now = 0
        self.pages = {cpu: deque[bytes]() for cpu in range(2)}
        self.pipe = BinaryPipe(
            dict.fromkeys(self.pages, 0), self.parser(), self.consume, 1000, clock=lambda: self.now
        )

    def parser(self) -> Fed:
        def fed(number: int) -> ProbeMetrics:
            return ProbeMetrics(f"p{number}", (), (), None)

        choice = self._exports.get
        recipes = {
            20: source_recipe(SINGLE.layout, fed(20), SOME, counted_stacks("size"), choice(20)),
            21: source_recipe(OF_PROGRAM.layout, fed(21), None, counted_stacks(None), choice(21)),
            26: source_recipe(SAME.layout, fed(26), OTHERS, counted_stacks(None), choice(26)),
            27: source_recipe(SAME_TOO.layout, fed(27), None, counted_stacks(None), choice(27)),
        }
        if 28 in self._exports:
            recipes[28] = source_recipe(ONLY_EXPORTED.layout, fed(28), None, None, choice(28))
        join = join_recipe(JOIN, fed(30), None, counted_stacks("duration"), choice(30))
        assert isinstance(join, JoinRecipe)
        assert all(recipes.values())
        joins = Joins({30: join._replace(make=joined_record(JOIN))})
        return Fed(self.kind(GEOMETRY, SHAPES, Names(), STACKS, False, recipes, {}, joins), self.pages)

    def consume(self, batch: Batch) -> None:
        batch = self.pairing.pair(batch)
        self.recorded.take(batch)
        self.exported.consume(batch)
        self.delivered += [one for one in batch.stacks if one[0][0] == DELIVERED.id]
        self.delivered += [one for one in batch.user_stacks if one[0][0] == DELIVERED.id]

    def read(self, now: int, found: dict[int, list[bytes]], *, last: bool = False) -> None:
        for cpu, some in found.items():
            self.pages[cpu].extend(some)
        self.now = now
        self.pipe.empty(last=last)
        self.exported.end_round(last=last)

    def result(self) -> dict[int, tuple[Any, int]]:
        for _ in range(2):
            self.recorded.take(Batch())  # what waits for a stack has waited long enough
        profiles: dict[int, Profile] = {
            number: self.programs.profile(counts) for number, counts in self.counts.items()
        }
        self.programs.close()
        return {number: (one.stacks, one.lost) for number, one in profiles.items()}


def kernel(tid: int, *addresses: int) -> bytes:
    return event(4, tid, struct.pack(f"=ixxxx{len(addresses)}Q", len(addresses), *addresses))


def user(tid: int, process: int, *addresses: int) -> bytes:
    return event(12, tid, struct.pack("=Ixxxx8Q", process, *addresses, *[0] * (8 - len(addresses))))


def drawn(random: Random, tids: Sequence[int], *, in_interrupt: bool = False) -> list[bytes]:
    """Return an event, mostly with its stacks, perhaps with those of an interrupt in between.

    No event of a program comes in an interrupt, and no interrupt in one.
    """
    tid = random.choice(tids)
    number = random.choice([20, 22, 22, 23, 23, 24, 25, *(() if in_interrupt else (21,))])
    made = [event(number, tid, struct.pack("=i", random.choice([0, 1, 2, 7])))]
    if random.random() < 0.9:
        made.append(user(tid, random.choice([70, 71]), *random.choices([16, 32], k=random.randint(0, 3))))
    if not in_interrupt and random.random() < 0.15:
        made += drawn(random, [tid], in_interrupt=True)
    if number in (20, 22, 24) and random.random() < 0.9:
        made.append(kernel(tid, *random.choices([0x10, 0x20, 0x1000], k=random.randint(0, 4)), 2**64 - 1, 5))
    if random.random() < 0.05:
        made.append(random.choice([kernel(5, 0x20), user(5, 70, 0x20)]))  # of another thread
    return made


def record(random: Random, steps: int, losing: float) -> list[tuple[int, dict[int, list[bytes]]]]:
    """Draw the pages of two CPUs, by round: each round has some of each CPU, as long as there are any."""
    now, streams = 1000, {0: list[tuple[int, bytes]](), 1: list[tuple[int, bytes]]()}
    for _ in range(steps):
        cpu = random.randrange(2)
        for one in drawn(random, [7, 8] if cpu else [7, 9]):
            now += random.randint(1, 5)
            streams[cpu].append((now, one))
    rounds: list[tuple[int, dict[int, list[bytes]]]] = []
    lost = dict.fromkeys(streams, False)
    while any(streams.values()):
        found: dict[int, list[bytes]] = {}
        cut = min([some[0][0] for some in streams.values() if some]) + random.choice([0, 10, 100])
        for cpu, some in streams.items():
            while some and (some[0][0] <= cut or cpu not in found):
                page = Page(some[0][0], flags=MISSED if lost[cpu] else 0)
                for _ in range(random.choice([9, 20])):  # an event and its stacks are on two pages at most
                    if some and page.room(len(some[0][1]) + 16):
                        page.add(*some.pop(0))
                lost[cpu] = random.random() < losing
                found.setdefault(cpu, [])
                if not lost[cpu]:
                    found[cpu].append(page.render())
        rounds.append((cut, found))
    return rounds
