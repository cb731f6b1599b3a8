"""Labels that are addresses in programs: each sum counts once, under the name that its process tells."""

import threading
from collections.abc import Sequence
from contextlib import closing

import pytest

from kprobe_exporter.aggregate import program_stacks
from kprobe_exporter.aggregate.attached_layout import UNKNOWN, Named, named
from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from kprobe_exporter.model.aggregation import Tally
from kprobe_exporter.model.specs import Decoder, LabelSpec, MetricSpec
from kprobe_exporter.model.stacks import Addresses, Frames, Place
from tests.support.patience import eventually
from tests.support.program_code import Code

PLAIN: tuple[str, Decoder] = ("usym", lambda value: None)
TWO = MetricSpec("m", "counter", "", None, (LabelSpec("a", "x"), LabelSpec("from", "caller", (PLAIN,))))


def tally(*key: object, events: int = 1) -> Tally:
    return Tally(1, 0, key, events, 0)  # type: ignore[arg-type]


class Later:
    """Names that the test gives."""

    def __init__(self, *, full: bool = False) -> None:
        self.asked: list[tuple[int, Sequence[int], Named]] = []
        self.full = full

    def name(self, process: int, addresses: Sequence[int], then: Named) -> bool:
        if not self.full:
            self.asked.append((process, addresses, then))
        return not self.full


def test_a_sum_waits_for_its_names() -> None:
    taken, programs, lock = list[Tally](), Later(), threading.RLock()
    take = named(taken.append, TWO, programs, lock)
    take(tally(b"x", 0x1000, 7, events=3))
    assert taken == []
    [(process, addresses, then)] = programs.asked
    assert (process, addresses) == (7, (0x1000,))
    then([b"prog`f"])
    assert taken == [tally(b"x", b"prog`f", events=3)]


def test_an_address_may_have_been_read_as_a_negative_number() -> None:
    programs = Later()
    named(lambda _: None, TWO, programs, threading.RLock())(tally(b"x", -1, 7))
    assert programs.asked[0][1] == (2**64 - 1,)


@pytest.mark.parametrize("programs", [None, Later(full=True)])
def test_what_cannot_be_looked_up_counts_as_unknown(programs: Later | None) -> None:
    taken: list[Tally] = []
    named(taken.append, TWO, programs, threading.RLock())(tally(b"x", 0x1000, 7))
    assert taken == [tally(b"x", UNKNOWN)]


@pytest.mark.parametrize("process", [None, 0, -1])
def test_an_unknown_process(process: int | None) -> None:
    taken, programs = list[Tally](), Later()
    named(taken.append, TWO, programs, threading.RLock())(tally(b"x", 0x1000, process))
    assert (taken, programs.asked) == ([tally(b"x", UNKNOWN)], [])


def test_a_missing_address_stays_missing() -> None:
    taken: list[Tally] = []
    named(taken.append, TWO, Later(), threading.RLock())(tally(b"x", None, 7))
    assert taken == [tally(b"x", None)]


def test_a_metric_without_such_labels_is_taken_as_it_is() -> None:
    spec = TWO._replace(labels=TWO.labels[:1])
    assert named(print, spec, Later(), threading.RLock()) is print


def test_the_thread_names_what_a_process_has_at_an_address(programs: ProgramStacks) -> None:
    found: list[Sequence[bytes]] = []
    assert programs.name(7, (0x20, 0x2000), found.append)
    assert programs.name(404, (0x20,), found.append)
    programs.settle(20)
    assert sorted(map(list, found)) == [[UNKNOWN], [b"prog`f2", b"[prog]"]]


def test_a_function_is_named_once(programs: ProgramStacks, code: Code) -> None:
    """For the first name of a file its symbols are read."""
    found: list[Sequence[bytes]] = []
    for _ in range(3):
        assert programs.name(7, (0x20, 0x30), found.append)
        programs.settle(20)
    assert found == [[b"prog`f2", b"prog`f3"]] * 3
    assert code.asked == [2]


def test_a_process_that_hangs_holds_up_nobody(
    programs: ProgramStacks, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_stacks, "MOST_WAITING", 2)
    found: list[Sequence[bytes]] = []
    code.goes_on.clear()
    assert programs.name(7, (0x20,), found.append)
    eventually(lambda: not vars(programs)["_asked"])
    assert [programs.name(7, (0x30,), found.append) for _ in range(3)] == [True, True, False]
    programs.settle(0.01)
    assert found == []
    code.goes_on.set()
    programs.settle(20)
    assert found == [[b"prog`f2"], [b"prog`f3"], [b"prog`f3"]]


def test_what_waits_at_the_end_counts(code: Code) -> None:
    programs = ProgramStacks(lambda: code)
    found: list[Sequence[bytes]] = []
    code.goes_on.clear()
    for _ in range(3):
        assert programs.name(7, (0x20,), found.append)
    eventually(lambda: not vars(programs)["_asked"] or len(vars(programs)["_asked"]) < 3)
    threading.Timer(0.05, code.goes_on.set).start()
    programs.close()
    eventually(lambda: len(found) == 3)


class OneByOne(Code):
    """It notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[tuple[int, Addresses]] = []

    def frames(self, pid: int, addresses: Addresses) -> Frames:
        self.looked_up.append((pid, addresses))
        return super().frames(pid, addresses)


def test_each_address_is_looked_up_as_it_is() -> None:
    """In a stack, all but the first are return addresses, which may belong to the function before."""
    code = OneByOne()
    with closing(ProgramStacks(lambda: code)) as programs:
        programs.name(7, (0x20, 0x30), lambda _: None)
        programs.settle(20)
    assert code.looked_up == [(7, (0x20,)), (7, (0x30,))]
    assert Place(7, 0x20, b"[prog]") in code.frames(7, (0x20,))
