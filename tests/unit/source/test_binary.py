"""The pages of all CPUs in one stream: in order of time within a bounded window, and complete."""

import os
from collections import deque
from collections.abc import Collection, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import SourceError
from kprobe_exporter.model.records import OF_THREADS, TIME, Batch, Loss, Record
from kprobe_exporter.model.stacks import StackTally
from kprobe_exporter.source import binary
from kprobe_exporter.source.binary import BinaryPipe
from kprobe_exporter.source.pages import NEVER_ONLINE, UNKNOWN

NOW = 1000


class Missed(list[int]):
    """A page before which events were lost."""


class Pages:
    """A parser that holds the pages of its CPUs already; a page is a list of its records' times."""

    compiled = False
    queued, has_losses = 0, True

    def __init__(self, cpus: dict[int, list[list[int]]]) -> None:
        self.cpus = {cpu: deque(pages) for cpu, pages in cpus.items()}
        self.time = 0
        self.pulls = 0
        self.order: list[int] = []
        self.batch = Batch()
        self.last: dict[int, int] = {}
        self.never_online: set[int] = set()

    def resume_from(self, before: "Pages") -> None:
        self.cpus, self.time, self.last = before.cpus, before.time, before.last

    @property
    def waiting(self) -> int:
        return len(self.batch.records)

    def pull(self, fd: int, cpu: int, pages: int) -> int:
        assert fd == 100 + cpu
        self.pulls += 1
        self.order.append(cpu)
        if cpu in self.never_online:
            return NEVER_ONLINE
        for got in range(pages):
            if not self.cpus[cpu]:
                return got
            times = self.cpus[cpu].popleft()
            if isinstance(times, Missed):
                self.batch.losses.append(Loss(cpu, self.last.get(cpu, 0), times[0]))
            self.batch.records += [record(time, cpu) for time in times]
            self.time = self.last[cpu] = times[-1]
        return pages

    def take(self) -> Batch:
        batch, self.batch = self.batch, Batch()
        return batch

    def join(self, batch: Batch | None, until: int | None = None) -> None:
        """Pass: these pages hold no halves."""

    def drop(self, layout_id: int) -> None:
        """Pass: these pages hold no halves."""

    def open_stacks(self, layout_id: int, now: int) -> tuple[list[StackTally], int]:
        """Return nothing, for the same reason."""
        return [], 0

    def set_own_threads(self, tids: Collection[int]) -> None:
        """Pass: these pages hold no threads."""


def record(time: int, cpu: int) -> Record:
    return 0, time, cpu


class Delivered:
    """A pipe over such pages, and the batches that it delivered."""

    def __init__(self, cpus: dict[int, list[list[int]]], budget: int = 1000) -> None:
        self.batches: list[Batch] = []
        self.pages = Pages(cpus)
        self.now = NOW
        self.tick = 0
        pipes = {cpu: 100 + cpu for cpu in cpus}
        self.pipe = BinaryPipe(pipes, self.pages, self.batches.append, budget, clock=self.clock)

    def clock(self) -> int:
        now = self.now
        self.now += self.tick
        return now

    @property
    def times(self) -> list[int]:
        return [one[TIME] for batch in self.batches for one in batch.records]


def test_cpu_offline_since_the_boot_is_read_once_it_is_online() -> None:
    """Its descriptor, whose poll returns at once, wakes no reader until then."""
    made = Delivered({0: [[1, 5]], 1: [[2, 3]], 2: []})
    made.pages.never_online = {1, 2}
    made.pipe.empty(last=False)
    assert (made.times, made.pipe.descriptors) == ([1, 5], [100])
    made.pages.never_online = {2}
    made.pipe.empty(last=False)
    assert (made.times, made.pipe.descriptors) == ([1, 5, 2, 3], [100, 101])


def test_records_of_all_cpus_come_in_the_order_of_time() -> None:
    made = Delivered({0: [[1, 5], [9]], 1: [[2, 3, 8]], 2: []})
    made.pipe.empty(last=False)
    assert made.times == [1, 2, 3, 5, 8, 9]


def test_records_of_many_full_cpus_come_in_the_order_of_time() -> None:
    """Their records are more than may wait, as those of a buffer that is read for the first time."""
    ncpus, npages, length = 40, 64, 40
    assert ncpus * npages * length > binary.MOST_HELD
    every = range(ncpus * npages * length)
    of_cpu = [every[cpu::ncpus] for cpu in range(ncpus)]
    pages = {
        cpu: [list(of_cpu[cpu][at : at + length]) for at in range(0, npages * length, length)]
        for cpu in range(ncpus)
    }
    made = Delivered(pages)
    made.now = len(every)
    made.pipe.empty(last=True)
    assert made.times == list(every)


def test_what_happened_while_it_read_waits_for_the_other_cpus() -> None:
    made = Delivered({0: [[990, NOW + 1, NOW + 5]], 1: [[995]]})
    made.pipe.empty(last=False)
    assert made.times == [990, 995]
    made.pages.cpus[1].append([NOW + 3])
    made.now = NOW + 10
    made.pipe.empty(last=False)
    assert made.times == [990, 995, NOW + 1, NOW + 3, NOW + 5]


def test_at_the_end_nothing_is_kept_back() -> None:
    made = Delivered({0: [[NOW + 1]]})
    made.pipe.empty(last=False)
    assert made.times == []
    made.pipe.empty(last=True)
    assert made.times == [NOW + 1]


def test_a_flood_does_not_keep_it_for_ever() -> None:
    """Pages may fill as fast as they are read, so at most as many are read as a buffer holds at a time."""
    made = Delivered({0: [[1]] * 5000}, budget=70)
    made.pipe.empty(last=False)
    assert len(made.times) == 70


def test_it_stops_at_what_came_after_it_began() -> None:
    made = Delivered({0: [[number] for number in range(NOW - 64, NOW + 500)]})
    made.pipe.empty(last=False)
    assert made.times == [*range(NOW - 64, NOW + 1)]


def test_memory_is_bounded_and_the_order_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "MANY", 10)
    monkeypatch.setattr(binary, "MOST_PAGES", 2)
    made = Delivered({cpu: [[n * 10 + cpu, n * 10 + cpu + 1] for n in range(40)] for cpu in range(4)})
    made.pipe.empty(last=True)
    assert len(made.times) == 320
    assert made.times == sorted(made.times)
    assert max(len(batch.records) for batch in made.batches) < 40


def test_too_many_that_wait_go_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "MOST_HELD", 5)
    made = Delivered({0: [[NOW + n for n in range(1, 9)]]})
    made.pipe.empty(last=False)
    assert len(made.times) == 8


def test_nothing_is_delivered_of_nothing() -> None:
    made = Delivered({0: [], 1: []})
    made.pipe.empty(last=False)
    assert made.batches == []
    assert made.pages.pulls == 2


def test_sums_and_losses_are_delivered_too() -> None:
    made = Delivered({0: []})
    made.pages.batch.arrived[3] = 7
    made.pages.batch.lost = 2
    made.pipe.empty(last=False)
    assert [(batch.arrived, batch.lost) for batch in made.batches] == [({3: 7}, 2)]


def test_a_loss_goes_out_at_once_and_its_records_wait() -> None:
    made = Delivered({0: [Missed([NOW + 9])], 1: []})
    made.pipe.empty(last=False)
    made.now = NOW + 20
    made.pages.cpus[1].append(Missed([NOW + 15]))
    made.pipe.empty(last=False)
    assert [(batch.losses, len(batch.records)) for batch in made.batches] == [
        ([Loss(0, 0, NOW)], 0),
        ([Loss(1, NOW, NOW + 15)], 2),
    ]


def test_a_loss_ends_now_at_the_latest_and_begins_with_what_was_not_read_before() -> None:
    made = Delivered({0: []})
    for now in (NOW, NOW + 10):
        made.now = now
        made.pages.batch.losses.append(Loss(0, 5, UNKNOWN))
        made.pipe.empty(last=False)
    made.pages.batch.losses.append(Loss(0, 5, 7))
    made.pipe.empty(last=True)
    losses = [loss for batch in made.batches for loss in batch.losses]
    assert losses == [Loss(0, 5, NOW), Loss(0, NOW, NOW + 10), Loss(0, NOW + 10, NOW + 10)]


def test_a_pipe_that_cannot_be_read_any_more_is_a_source_error() -> None:
    class Broken(Pages):
        def pull(self, fd: int, cpu: int, pages: int) -> int:
            raise OSError(5, "Input/output error")

    pipe = BinaryPipe({3: 103}, Broken({3: []}), lambda _: None, 10)
    why = "per_cpu/cpu3/trace_pipe_raw cannot be read any more: Input/output error"
    with pytest.raises(SourceError, match=why):
        pipe.empty(last=False)


def test_close_closes_every_descriptor() -> None:
    ends = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    BinaryPipe(dict(enumerate(ends)), Pages({}), lambda _: None, 10).close()
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


rises = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), max_size=12)


@given(st.lists(rises, min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 20))
def test_whatever_the_pages_all_comes_once_and_in_order(
    cpus: list[list[list[int]]], pages: int, many: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binary, "MANY", many)
        patch.setattr(binary, "MOST_PAGES", pages)
        made = Delivered({cpu: rising(steps) for cpu, steps in enumerate(cpus)})
        made.now = 10**6
        made.pipe.empty(last=False)
        made.pipe.empty(last=True)
    expected = sorted(time for steps in cpus for page in rising(steps) for time in page)
    assert made.times == expected


STEPS = st.lists(st.integers(1, 90), min_size=1, max_size=3)


@st.composite
def rounds(draw: st.DrawFn) -> list[list[tuple[int, bool, list[int]]]]:
    """Generate the new pages of each reading: a page's CPU, whether it was overwritten, and its times.

    The times of a reading span 1000. It begins in their middle, so the later half arrives while it reads.
    """
    made = []
    for number in range(draw(st.integers(1, 4))):
        new = []
        for cpu in range(3):
            now = 1000 * number
            for overwritten, steps in draw(st.lists(st.tuples(st.booleans(), STEPS), max_size=4)):
                times = [now := now + step for step in steps]
                new.append((cpu, overwritten, times))
        made.append(new)
    return made


@given(rounds(), st.integers(1, 3), st.integers(1, 20))
def test_a_loss_is_told_before_any_record_of_a_later_moment(
    rounds: list[list[tuple[int, bool, list[int]]]], pages: int, many: int
) -> None:
    missing: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binary, "MANY", many)
        patch.setattr(binary, "MOST_PAGES", pages)
        made = Delivered({cpu: [] for cpu in range(3)})
        made.tick = 499
        for number, new in enumerate(rounds):
            missed = dict.fromkeys(range(3), False)
            for cpu, overwritten, times in new:
                if overwritten:
                    missing += [(cpu, time) for time in times]
                else:
                    made.pages.cpus[cpu].append(Missed(times) if missed[cpu] else times)
                missed[cpu] = overwritten
            for cpu, open_end in missed.items():
                if open_end:
                    made.pages.cpus[cpu].append(Missed([1000 * number + 999]))
            made.now = 1000 * number + 500
            made.pipe.empty(last=False)
        made.now = 1000 * len(rounds)
        made.pipe.empty(last=True)
    latest = 0
    for batch in made.batches:
        assert all(latest <= loss.start <= loss.end for loss in batch.losses)
        latest = max([latest, *(one[TIME] for one in batch.records)])
    losses = [loss for batch in made.batches for loss in batch.losses]
    for cpu, time in missing:
        assert any(loss.cpu == cpu and loss.start <= time <= loss.end for loss in losses)


def rising(steps: Iterable[list[int]]) -> list[list[int]]:
    """Return times that rise from page to page, like those of one CPU."""
    now = 0
    return [[now := now + step for step in page] for page in steps]


def test_starts_of_threads_are_read_before_the_events_of_these_threads() -> None:
    """A record's process is looked up while its page is read."""
    of_threads = {cpu: 100 + cpu + OF_THREADS for cpu in (0, 1)}
    pages = Pages({0: [[2, 4]], 1: [[3]], OF_THREADS: [[1]], OF_THREADS + 1: []})
    pipe = BinaryPipe({0: 100, 1: 101}, pages, lambda batch: None, 8, clock=lambda: NOW)
    pipe.adopt(pages, of_threads)
    pipe.empty(last=True)
    assert pages.order[:4] == [OF_THREADS, OF_THREADS + 1, 0, 1]
