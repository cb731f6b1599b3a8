"""Pairing is never wrong: compared with an execution whose truth is known, and with a slow, simple model.

Every half carries the number of its call. Pairing ignores the numbers, but the joined record shows both.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.model.records import (
    CALLER,
    CPU,
    LAYOUT_ID,
    TGID,
    TID,
    TIME,
    VALUES,
    Batch,
    Join,
    Layout,
    Loss,
    Record,
)
from kprobe_exporter.model.values import Arg

By = Literal["stack", "key"]
ENTRY, COMPAT, RETURN, JOINED, OTHER = range(5)


def args(*names: str) -> tuple[Arg, ...]:
    return tuple([Arg(name, "int") for name in names])


BEGINS = (
    Layout(ENTRY, "p", "entry", "entry", "f", args("call", "stack_pointer")),
    Layout(COMPAT, "p", "compat", "entry", "f", args("stack_pointer", "mode", "call")),
)
END = Layout(RETURN, "p", "ret", "return", "f", args("stack_pointer", "return", "call_end"))
SHOWN = Layout(JOINED, "p", "joined", "joined", "f", args("call", "call_end", "duration", "return", "mode"))


def join(by: By, key: tuple[str, ...] = ()) -> Join:
    return Join(SHOWN, BEGINS, END, by, key)


def entry(time: int, cpu: int, tid: int, pointer: int | None, call: int) -> Record:
    """Return an entry. Odd calls enter another way, with their arguments at other places."""
    common = (time, cpu, tid, tid or None, None)
    return (COMPAT, *common, pointer, call, call) if call % 2 else (ENTRY, *common, call, pointer)


def ret(time: int, cpu: int, tid: int, pointer: int | None, call: int) -> Record:
    return (RETURN, time, cpu, tid, tid or None, b"caller", pointer, -call, call)


def number(half: Record) -> int:
    """Return the number of the call that a half belongs to."""
    value: int = half[{ENTRY: VALUES, COMPAT: VALUES + 2, RETURN: VALUES + 2}[half[LAYOUT_ID]]]
    return value


def pointer(half: Record) -> int | None:
    value: int | None = half[{ENTRY: VALUES + 1, COMPAT: VALUES, RETURN: VALUES}[half[LAYOUT_ID]]]
    return value


def joined(first: Record, second: Record) -> Record:
    mode = None if first[LAYOUT_ID] == ENTRY else number(first)
    values = (number(first), number(second), second[TIME] - first[TIME], -number(second), mode)
    return (JOINED, *first[TIME:CALLER], b"caller", *values)


class Call(NamedTuple):
    number: int
    pointer: int
    interrupt: bool


@dataclass
class Thread:
    tid: int
    cpu: int
    top: int
    calls: list[Call] = field(default_factory=list)

    @property
    def interrupted(self) -> bool:
        return bool(self.calls) and self.calls[-1].interrupt


STACK = 1 << 14
THREADS, INTERRUPTS = 0xFFFFC90000000000, 0xFFFFFE0000000000


class Execution:
    """An execution with all its events: threads call, are interrupted, change CPUs, exit and come back.

    There are few depths, so that they recur. Each CPU has an interrupt stack and a thread 0.
    """

    def __init__(self, random: Random, steps: int, *, distance: int, exits: bool = True, warm: bool = False):
        self.records: list[Record] = []
        self._random, self._distance = random, distance
        self._calls = 0
        self._now = 1_000
        threads = [
            Thread(tid, cpu, THREADS + place * STACK - 176)
            for place, (tid, cpu) in enumerate([(0, 0), (0, 1), (7, 0), (8, 1), (9, 1)], 1)
        ]
        if warm:  # so many matched returns that no vote can change the distance
            for _ in range(2 * steps):
                self._enter(threads[0])
                self._leave(threads[0])
        for _ in range(steps):
            thread = random.choice(threads)
            if any(other.interrupted and other.cpu == thread.cpu for other in threads if other is not thread):
                continue
            action = random.choices(
                [self._enter, self._leave, self._interrupt, self._move, self._exit], [6, 6, 2, 2, exits]
            )[0]
            action(thread)

    def _enter(self, thread: Thread, interrupt: bool = False) -> None:
        base = thread.top
        if interrupt:
            base = INTERRUPTS + (thread.cpu + 1) * STACK - 176
        elif thread.calls:
            base = thread.calls[-1].pointer
        self._calls += 1
        pointer = base - 16 * self._random.randint(1, 3)
        call = Call(self._calls, pointer, interrupt=interrupt or thread.interrupted)
        thread.calls.append(call)
        self.records.append(entry(self._tick(), thread.cpu, thread.tid, call.pointer, call.number))

    def _leave(self, thread: Thread) -> None:
        if thread.calls:
            call = thread.calls.pop()
            read = call.pointer + self._distance
            self.records.append(ret(self._tick(), thread.cpu, thread.tid, read, call.number))

    def _interrupt(self, thread: Thread) -> None:
        if not thread.interrupted:
            self._enter(thread, interrupt=True)

    def _move(self, thread: Thread) -> None:
        if thread.tid and not thread.interrupted:
            thread.cpu = self._random.randrange(2)

    def _exit(self, thread: Thread) -> None:
        """Exit inside the thread's calls; the next thread with this id may get the same stack."""
        if thread.tid and not thread.interrupted:
            thread.calls.clear()
            thread.top += self._random.choice([0, 64 * STACK])

    def _tick(self) -> int:
        self._now += self._random.randint(1, 3)
        return self._now


Delivery = list[Batch | None]
"""Batches, with None where the probe is disabled and enabled again."""


def lose(random: Random, records: Sequence[Record]) -> tuple[list[Record], list[Loss]]:
    """Remove runs of a CPU's records; return the rest, and the losses with the moments around them."""
    kept, losses = list(records), []
    for cpu in range(2):
        here = [record for record in records if record[CPU] == cpu]
        gone: set[int] = set()
        for _ in range(random.randint(0, 3)):
            start = random.randint(0, len(here))
            gone |= set(range(start, min(len(here), start + random.randint(1, 6))))
        for first in sorted(gone - {place + 1 for place in gone}):
            last = next(place for place in range(first, len(here)) if place + 1 not in gone)
            start = here[first - 1][TIME] if first else here[first][TIME] - 1
            end = here[last + 1][TIME] if last + 1 < len(here) else here[last][TIME] + 1
            losses.append(Loss(cpu, start, end))
        lost = {here[place][TIME] for place in gone}
        kept = [record for record in kept if record[TIME] not in lost]
    return kept, losses


def deliver(random: Random, records: list[Record], losses: Iterable[Loss] = (), resets: int = 0) -> Delivery:
    """Split into batches, with other probes' records in between. A loss is reported in time or earlier."""
    pauses = [sorted([random.randint(0, len(records)) for _ in range(2)]) for _ in range(resets)]
    cuts = {random.randint(0, len(records)) for _ in range(random.randint(0, 4))}
    cuts |= {start for start, _ in pauses}
    delivery: Delivery = [Batch()]
    for place, record in enumerate(records):
        if place in cuts:
            if any(start == place for start, _ in pauses):
                delivery.append(None)
            delivery.append(Batch())
        batch = delivery[-1]
        assert batch is not None
        if not any(start <= place < end for start, end in pauses):
            batch.records.append(record)
        if random.random() < 0.2:
            batch.records.append((OTHER, *record[TIME:VALUES], place))
    batches = [batch for batch in delivery if batch is not None]
    for loss in losses:
        in_time = [
            place
            for place, batch in enumerate(batches)
            if not any(record[TIME] > loss.start for before in batches[:place] for record in before.records)
        ]
        batches[random.choice(in_time)].losses.append(loss)
    return delivery


class Slow:
    """A slow model of pairing: it searches one list and all losses for each pair, and knows the distance."""

    def __init__(self, by: By, key: Sequence[int] = (), distance: int = 8) -> None:
        self._by, self._key, self._distance = by, key, distance
        self._losses: list[Loss] = []
        self.open: list[Record] = []
        self.told: set[int] = set()
        self.unpaired = 0

    def pair(self, batch: Batch) -> list[Record]:
        self._losses += batch.losses
        shown = []
        for record in batch.records:
            if record[LAYOUT_ID] in (ENTRY, COMPAT):
                self._begin(record)
            elif record[LAYOUT_ID] == RETURN:
                shown += self._end(record)
            else:
                shown.append(record)
        if batch.records:
            self._tell_broken(batch.records[-1][TIME])
        return shown

    def _tell_broken(self, now: int) -> None:
        """Count the open halves at once that a loss broke before this moment, but none for a second time."""
        ends = [min(loss.end, now) for loss in self._losses if loss.start < now]
        broken = [first for first in self.open if ends and first[TIME] < max(ends)]
        self.unpaired += sum(id(first) not in self.told for first in broken)
        self.told |= set(map(id, broken))

    def reset(self) -> None:
        self._drop(list(self.open))

    def _drop(self, gone: list[Record]) -> None:
        self.unpaired += sum(id(first) not in self.told for first in gone)
        self.open = [first for first in self.open if first not in gone]

    def _open_at(self, what: object, low: int = 0, high: int = 1 << 64) -> list[Record]:
        """Return the open halves of a key; by stack, only those from ``low`` to ``high``, both included."""
        found = [first for first in self.open if self._what(first, pointer(first)) == what]
        return [first for first in found if self._by != "stack" or low <= (pointer(first) or 0) <= high]

    def _what(self, half: Record, place: int | None) -> object:
        if self._by == "key":
            return [half[place] for place in self._key]
        return (half[TID], None if place is None else place // STACK)

    def _begin(self, first: Record) -> None:
        place = pointer(first)
        what = self._what(first, place)
        if (self._by == "stack" and place is None) or (isinstance(what, list) and None in what):
            self.unpaired += 1
            return
        self._drop(self._open_at(what, high=place or 0))
        self.open.append(first)

    def _end(self, second: Record) -> list[Record]:
        read, place = pointer(second), None
        if self._by == "stack":
            if read is None:
                self.unpaired += 1
                return []
            place = read - self._distance
            self._drop(self._open_at(self._what(second, place), high=place - 1))
        found = self._open_at(self._what(second, place), place or 0, place or 1 << 64)
        if not found:
            self.unpaired += self._by != "key"
            if self._by == "stack" and place is not None and read is not None:
                self._drop(self._open_at(self._what(second, place), place, read))
            return []
        first = found[-1]
        self.open.remove(first)
        doubtful = any(loss.start < second[TIME] and first[TIME] < loss.end for loss in self._losses)
        if doubtful or second[TIME] < first[TIME]:
            self.unpaired += 2 - (id(first) in self.told)
            return []
        return [joined(first, second)]


@dataclass
class Outcome:
    records: list[Record] = field(default_factory=list)
    unpaired: int = 0
    most: int = 0

    @property
    def joined(self) -> list[Record]:
        return [record for record in self.records if record[LAYOUT_ID] == JOINED]


def run(pairing: Pairing, how: Join, delivery: Delivery) -> Outcome:
    outcome = Outcome()
    for batch in [*delivery, Batch()]:
        if batch is None:
            pairing.reset(how)
            continue
        given = Batch(list(batch.records), losses=list(batch.losses))
        assert pairing.pair(given) is given
        outcome.records += given.records
        outcome.unpaired += given.unpaired.total()
        outcome.most = max(outcome.most, pairing.open)
    return outcome


def halves(delivery: Delivery) -> Counter[bool]:
    """Count the delivered halves; the key is whether they are second halves."""
    records = [record for batch in delivery if batch for record in batch.records]
    return Counter(record[LAYOUT_ID] == RETURN for record in records if record[LAYOUT_ID] != OTHER)


def check_truth(happened: Sequence[Record], outcome: Outcome) -> None:
    """Check that every joined record equals a call that happened."""
    firsts = {number(record): record for record in happened if record[LAYOUT_ID] != RETURN}
    seconds = {number(record): record for record in happened if record[LAYOUT_ID] == RETURN}
    for record in outcome.joined:
        call, call_end = record[VALUES : VALUES + 2]
        assert call == call_end
        assert record == joined(firsts[call], seconds[call])


def check_model(slow: Slow, how: Join, delivery: Delivery) -> None:
    """Check that pairing does exactly what the slow model does; here every half is accounted for."""
    pairing = Pairing([how])
    outcome, shown = run(pairing, how, delivery), []
    for batch in delivery:
        if batch is None:
            slow.reset()
        else:
            shown += slow.pair(batch)
    assert outcome.records == shown
    assert outcome.unpaired == slow.unpaired
    assert pairing.open == len(slow.open)


def check_by_stack(
    happened: Sequence[Record], delivery: Delivery, most: int = 65_536
) -> tuple[Pairing, Outcome]:
    """Pair by stack. Check that every joined record is true, and that every half is accounted for."""
    pairing, how = Pairing([join("stack")], most), join("stack")
    outcome = run(pairing, how, delivery)
    check_truth(happened, outcome)
    assert halves(delivery).total() == 2 * len(outcome.joined) + untold(pairing) + outcome.unpaired
    return pairing, outcome


def untold(pairing: Pairing) -> int:
    """Return the number of open first halves that are not among the unpaired ones yet."""
    still_open = [first for calls in pairing._opened.lists.values() for _, first in calls]
    assert len(still_open) == pairing.open
    return sum(not pairing._opened.is_told(first) for first in still_open)


RANDOM = st.randoms(use_true_random=True)
DISTANCE = st.sampled_from([0, 8, 16])


@given(RANDOM, st.integers(0, 150), DISTANCE)
def test_where_nothing_is_missing_every_call_is_paired(random: Random, steps: int, distance: int) -> None:
    happened = Execution(random, steps, distance=distance).records
    delivery = deliver(random, happened)
    pairing, outcome = check_by_stack(happened, delivery)
    firsts, seconds = halves(delivery)[False], halves(delivery)[True]
    assert len(outcome.joined) == seconds
    assert outcome.unpaired + pairing.open == firsts - seconds
    assert [r for r in outcome.records if r[LAYOUT_ID] == OTHER] == [
        r for batch in delivery if batch for r in batch.records if r[LAYOUT_ID] == OTHER
    ]


@given(RANDOM, st.integers(1, 150), DISTANCE, st.integers(0, 2))
def test_no_pair_is_wrong_where_loss_is_told(random: Random, steps: int, distance: int, resets: int) -> None:
    happened = Execution(random, steps, distance=distance).records
    check_by_stack(happened, deliver(random, *lose(random, happened), resets))


@given(
    RANDOM,
    st.integers(1, 150),
    DISTANCE,
    st.integers(0, 2),
    st.sampled_from(["entries", "returns"]),
    st.booleans(),
)
def test_by_stack_no_pair_is_wrong_where_one_sort_goes_missing_untold(
    random: Random, steps: int, distance: int, resets: int, missing: str, loss: bool
) -> None:
    """A thread that exits inside a call counts as a missing return."""
    happened = Execution(random, steps, distance=distance, exits=missing == "returns", warm=True).records
    settled = 4 * steps
    kept = happened[:settled] + [
        record
        for record in happened[settled:]
        if (record[LAYOUT_ID] == RETURN) != (missing == "returns") or random.random() < 0.7
    ]
    kept, losses = lose(random, kept) if loss else (kept, [])
    delivery = deliver(random, kept, losses, resets)
    check_by_stack(happened, delivery)
    if distance == 8:
        check_model(Slow("stack"), join("stack"), delivery)


@given(RANDOM, st.integers(1, 150), st.integers(0, 12))
def test_the_bound_holds_and_makes_nothing_wrong(random: Random, steps: int, most: int) -> None:
    happened = Execution(random, steps, distance=8).records
    _, outcome = check_by_stack(happened, [Batch([record]) for record in happened], most)
    assert outcome.most <= most


TIMES = st.lists(st.integers(0, 3), max_size=60).map(
    lambda steps: [1000 + sum(steps[: place + 1]) for place in range(len(steps))]
)
LOSSES = st.lists(
    st.builds(lambda start, long: Loss(0, start, start + long), st.integers(990, 1100), st.integers(0, 20)),
    max_size=3,
)
# Places are 80 bytes apart and returns 8 above, so no return votes for another distance.
POINTERS = st.none() | st.integers(0, 5).map(lambda place: THREADS + STACK - 240 + place * 80)


@pytest.mark.parametrize(
    ("by", "key", "places"),
    [("stack", (), ()), ("key", ("pid",), (TGID,)), ("key", ("cpu", "pid"), (CPU, TGID))],
)
@given(st.data())
def test_whatever_comes_the_slow_model_does_the_same(
    by: By, key: tuple[str, ...], places: tuple[int, ...], data: st.DataObject
) -> None:
    records = []
    for call, time in enumerate(data.draw(TIMES)):
        place, second = data.draw(POINTERS), data.draw(st.booleans())
        cpu, tid = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2))
        if second:
            records.append(ret(time, cpu, tid, place and place + 8, call))
        else:
            records.append(entry(time, cpu, tid, place, call))
    delivery = deliver(data.draw(RANDOM), records, data.draw(LOSSES), data.draw(st.integers(0, 1)))
    check_model(Slow(by, places), join(by, key), delivery)


FIRST_STEP, SECOND_STEP = OTHER + 1, OTHER + 2
STEPS = tuple(Layout(one, "p", f"step{one}", "entry", "f", args("call")) for one in (FIRST_STEP, SECOND_STEP))
STEPPED = replace(SHOWN, args=(*SHOWN.args, *args("one", "two")), steps=("one", "two"))


def step_times(joined: Record, stream: Sequence[Record]) -> list[int | None]:
    """Return from the whole stream, for each step, the time of the latest between the halves of a pair."""
    where = {number(record): at for at, record in enumerate(stream) if record[LAYOUT_ID] < FIRST_STEP}
    first, second = (where[call] for call in joined[VALUES : VALUES + 2])
    begun = stream[first][TIME]
    found: list[int | None] = []
    for step in (FIRST_STEP, SECOND_STEP):
        times = [
            record[TIME] - begun
            for record in stream[first:second]
            if record[LAYOUT_ID] == step and record[TGID] == stream[first][TGID] and record[TIME] >= begun
        ]
        found.append(times[-1] if times else None)
    return found


@given(RANDOM, st.integers(0, 150), st.booleans())
def test_each_pair_has_the_latest_of_its_steps(random: Random, steps: int, loss: bool) -> None:
    """The pairs are those without steps; the times are found by a search of the whole stream.

    A first half that a loss breaks is unpaired once a record follows, and the steps alone may follow it.
    """
    stream, time = [], 1000
    for call in range(steps):
        time += random.randint(0, 3)
        tid, sort = random.randint(0, 2), random.choice([ENTRY, RETURN, FIRST_STEP, SECOND_STEP, SECOND_STEP])
        made = {ENTRY: entry, RETURN: ret}.get(sort)
        earlier = time - random.choice([0, 0, 0, 4])
        stream.append(
            (sort, earlier, 0, tid, tid or None, None, call)
            if made is None
            else made(time, 0, tid, None, call)
        )
    losses = [Loss(0, 1020, 1030)] if loss else []
    delivery = deliver(random, stream, losses)
    how = Join(STEPPED, BEGINS, END, "key", ("pid",), through=STEPS)
    pairing = Pairing([how])
    found = run(pairing, how, delivery)
    without = [
        batch and Batch([one for one in batch.records if one[LAYOUT_ID] < FIRST_STEP], losses=batch.losses)
        for batch in delivery
    ]
    simple = Pairing([join("key", ("pid",))])
    plain = run(simple, join("key", ("pid",)), without)
    assert [one[:-2] for one in found.joined] == plain.joined
    assert found.unpaired + untold(pairing) == plain.unpaired + untold(simple)
    for one in found.joined:
        assert [*one[-2:]] == step_times(one, stream)
    assert len(pairing._opened.steps) == pairing.open
