"""The triggers by which the kernel joins two events: their text, their order, and their losses."""

import errno

import pytest

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.hist import HistReading
from kprobe_exporter.model.pairs import OPEN_ROWS, KernelPair, PairField, PairLoss
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs.definitions import delete_synthetic
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.pair_triggers import PairTriggers
from kprobe_exporter.tracefs.probes import Installed
from kprobe_exporter.tracefs.profile import Counts
from tests.unit.tracefs.conftest import Table

PAIRS = "instances/g.pairs"
FIELDS = PairField("comm", "char", "comm", True), PairField("field1", "s64", "return", False)
OPEN = (
    "# event histogram\n#\n# trigger info: hist:keys=stack_pointer:vals=hitcount:t{}=common_timestamp"
    ":sort=hitcount:size=128:clock=mono [active]\n#\n\n{{ stack_pointer: 7 }} hitcount: {}\n"
    "\nTotals:\n    Hits: {}\n    Entries: {}\n    Dropped: {}\n"
)


def spec(event: str, role: str, verb: str) -> ProbeSpec:
    layout = Layout(1, "p", event, "entry", "f")
    return ProbeSpec("p", "call", "call:f", "f", "kprobe_events", verb, "f", None, layout, role=role)  # type: ignore[arg-type]


class Kernel(Table):
    """A table of files in which instances can be made."""

    def mkdir(self, path: str) -> None:
        self.written.append((path, "mkdir"))


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def pair(kernel: Kernel, *, each_end: bool = True, less: bool = False) -> tuple[PairTriggers, Instance]:
    instance = Instance(kernel, "g", None)
    sums = spec("sum", "sum", "")
    key = ("stack_pointer", "stack_pointer-8") if each_end else ("dev,sector", "d,s")
    described = KernelPair(*key, (None, "error == 0"), FIELDS, sums, each_end, less)
    parts = Installed(instance, spec("b", "begin", "p"), "b"), Installed(instance, spec("e", "end", "r"), "e")
    return PairTriggers(instance, described, *parts), instance


def test_the_first_event_is_attached_first_and_removed_last(kernel: Kernel) -> None:
    made, _ = pair(kernel)
    assert made.define().event == "g_PAIR_1"
    made.attach()
    opening = f"hist:keys=stack_pointer:t1=common_timestamp,b1_0=comm:size={OPEN_ROWS}:clock=mono"
    closing = (
        f"hist:keys=stack_pointer-8:d1=common_timestamp-$t1,e1_1=return:size={OPEN_ROWS}:clock=mono"
        ":onmatch(g.b).trace(g_PAIR_1,$d1,$b1_0,$e1_1) if error == 0"
    )
    begin, end = f"{PAIRS}/events/g/b/trigger", f"{PAIRS}/events/g/e/trigger"
    assert kernel.written == [
        (PAIRS, "mkdir"),
        ("synthetic_events", "g_PAIR_1 u64 duration; char comm[]; s64 field1"),
        (begin, opening),
        (end, closing),
    ]
    kernel.written.clear()
    made.detach()
    made.detach()
    assert kernel.written == [(end, f"!{closing}"), (begin, f"!{opening}")]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_trigger_that_is_not_there_is_noticed(kernel: Kernel, at_once: bool) -> None:
    """Of Linux 7.0 one file shows all triggers."""
    made, _ = pair(kernel)
    opening = b"hist:keys=stack_pointer:vals=hitcount:t1=common_timestamp:sort=hitcount:size=128 [active]\n"
    closing = b"hist:keys=stack_pointer-8:vals=hitcount:d1=common_timestamp-$t1:sort=hitcount [active]\n"
    other = opening.replace(b"t1=", b"t11=")
    begin, end = (f"{PAIRS}/events/g/{name}/trigger" for name in "be")
    for shown, whole in (((opening, closing), True), ((other, closing), False), ((opening, b""), False)):
        if at_once:
            kernel.files[f"{PAIRS}/show_event_triggers"] = b"".join(shown)
        else:
            kernel.files[begin], kernel.files[end] = shown
        assert made.are_whole() == whole


def test_the_duration_less_one_is_made_of_the_same_time(kernel: Kernel) -> None:
    made, _ = pair(kernel, less=True)
    made.define()
    made.attach()
    assert kernel.written[1][1].startswith("g_PAIR_1 u64 duration; u64 less; ")
    assert "d1=common_timestamp-$t1,l1=common_timestamp-$t1-1," in kernel.written[-1][1]
    assert ".trace(g_PAIR_1,$d1,$l1,$b1_0,$e1_1)" in kernel.written[-1][1]


def test_two_pairs_have_other_names(kernel: Kernel) -> None:
    _, instance = pair(kernel)
    second, _ = pair(kernel)
    instance.pairs_made = 6
    parts = second._begin, second._end
    third = PairTriggers(instance, second._pair, *parts)
    assert third.define().event == "g_PAIR_7"
    third.attach()
    assert ":t7=common_timestamp,b7_0=comm:" in kernel.written[-2][1]


@pytest.mark.parametrize("path", ["synthetic_events", f"{PAIRS}/events/g/e/trigger"])
def test_a_refusal_says_what_was_refused(kernel: Kernel, path: str) -> None:
    kernel.refused[path] = errno.EINVAL
    made, _ = pair(kernel)

    def join() -> None:
        made.define()
        made.attach()

    with pytest.raises(ProbeRefused, match=r"the kernel does not join its events: '.*' is refused"):
        join()
    kernel.written.clear()
    made.detach()
    assert [text[:6] for _, text in kernel.written] == ([] if path == "synthetic_events" else ["!hist:"])


@pytest.mark.parametrize(
    ("each_end", "opened", "joined", "ended", "loss"),
    [
        (True, (10, 3, 0), (8, 0), 10, PairLoss(2, 0)),  # two returns without an entry
        (True, (10, 3, 0), (8, 2), 10, PairLoss(0, 0)),  # what the sums lost is theirs to tell
        (True, (7, 3, 3), (7, 0), 10, PairLoss(0, 3)),  # three entries found no row
        (True, (11, 3, 0), (11, 0), 10, PairLoss(0, 0)),  # one was joined after the profile was read
        (False, (10, 3, 0), (5, 0), 90, PairLoss(2, 0)),  # three may still be open
        (False, (10, 3, 4), (9, 0), 90, PairLoss(0, 4)),
    ],
)
def test_losses(
    kernel: Kernel,
    each_end: bool,
    opened: tuple[int, int, int],
    joined: tuple[int, int],
    ended: int,
    loss: PairLoss,
) -> None:
    made, _ = pair(kernel, each_end=each_end)
    hits, rows, dropped = opened
    other = OPEN.format(2, 1, 99, 99, 99)
    text = other + OPEN.format(1, 1, hits, rows, dropped)
    kernel.files[f"{PAIRS}/events/g/b/hist"] = text.encode()
    made.read_open()
    assert made.loss(HistReading(*joined, {}), {"e": Counts(ended, 0)}) == loss


def test_first_events_before_the_last_ones_trigger_are_no_loss(kernel: Kernel) -> None:
    made, _ = pair(kernel, each_end=False)
    kernel.files[f"{PAIRS}/events/g/b/hist"] = OPEN.format(1, 1, 15, 1, 0).encode()
    made.attach()
    kernel.files[f"{PAIRS}/events/g/b/hist"] = OPEN.format(1, 1, 20, 1, 0).encode()
    made._read_after = 0.0
    made.read_open()
    assert made.loss(HistReading(2, 0, {}), {}) == PairLoss(2, 0)


def test_only_synthetic_events_of_the_group_are_deleted(kernel: Kernel) -> None:
    kernel.files["dynamic_events"] = (
        b"s:synthetic/g_PAIR_1\tu64 duration\ns:synthetic/gg_PAIR_1\tu64 duration\n"
        b"s:synthetic/wakeup\tu64 duration\np:g/g_PAIR_2 f\ns:synthetic/g_PAIR_12\tu64 duration; s64 r\n"
    )
    assert delete_synthetic(kernel, "g") == []
    assert kernel.written == [
        ("dynamic_events", "-:synthetic/g_PAIR_1\n"),
        ("dynamic_events", "-:synthetic/g_PAIR_12\n"),
    ]
