"""The table of overhead: what a round comes to, ratios to the counterpart, goals, and what is left out."""

import pytest

from tests.bench import latency_guest, overhead_guest
from tests.bench.latency_guest import BPF_CALL, BPF_PAIR, CALL, PAIR, Found
from tests.bench.overhead import BASE, DURATIONS, DURATIONS_BASE, SHOWN, Measured, added, fastest, tabulated
from tests.bench.overhead_guest import (
    BPF_COUNT,
    BPF_HIST,
    BPF_STACKS,
    COUNT,
    EXIT_EVENT,
    KERNEL,
    NOTHING,
    ONE_TRIGGER,
    RETURN_EVENT,
)

REASON = "this kernel has no fprobes."
LOOPS = {name: [1360.0, 1370.0, 1360.0] for name in SHOWN} | {
    NOTHING: [360.0, 370.0, 380.0],
    COUNT: [860.0, 870.0, 880.0],
    RETURN_EVENT: [1110.0, 1120.0, 1130.0],
}
NS = {
    NOTHING: [700.0, 800.0, 700.0],
    CALL: [2800.0, 2860.0, 2760.0],
    BPF_CALL: [2700.0, 2810.0, 2690.0],
    PAIR: [3100.0, 3300.0, 3000.0],
    BPF_PAIR: [2700.0, 2800.0, 2700.0],
}


def measured(lost: int = 0, **absent: str) -> Measured:
    """What a kernel gave that lacks these probes: ``fexit`` or ``hist``, each with the reason."""
    lacking = {EXIT_EVENT: absent["fexit"]} if "fexit" in absent else {}
    lacking |= dict.fromkeys((KERNEL, ONE_TRIGGER), absent["hist"]) if "hist" in absent else {}
    loops = {name: figures for name, figures in LOOPS.items() if name not in lacking}
    return Measured(loops, Found(NS, 1000, lost, 3), lacking)


def test_a_round_is_compared_with_its_own_base() -> None:
    assert added({NOTHING: [1.0, 5.0, 100.0], "a": [3.0, 8.0, 101.0]}) == {"a": 2.0}


def test_of_bursts_the_fastest_round_counts() -> None:
    assert added(fastest({NOTHING: [5.0, 1.0], "a": [4.0, 100.0]})) == {"a": 3.0}


def test_a_row_for_each_probe_and_a_ratio_for_each_kernel() -> None:
    table = tabulated({"6.1": measured(fexit=REASON), "6.12": measured()})
    assert table.head == ("probe", "6.1: ns", "of bpftrace", "6.12: ns", "of bpftrace")
    rows = {name: cells for name, *cells in table.rows}
    assert len(rows) == len(SHOWN) + len(DURATIONS) + 2
    assert rows[BASE] == ["370", "", "370", ""]
    assert rows[SHOWN[COUNT][0]] == ["+500", "0.50", "+500", "0.50"]
    assert rows[SHOWN[EXIT_EVENT][0]] == ["", "", "+1,000", "1.00"]
    assert rows[DURATIONS_BASE] == ["700", "", "700", ""]
    assert rows[DURATIONS[CALL][0]] == ["+2,060", "1.04", "+2,060", "1.04"]
    assert rows[DURATIONS[BPF_CALL][0]] == ["+1,990", "1.00", "+1,990", "1.00"]


def test_what_is_told_of_fexit_and_of_losses() -> None:
    notes = tabulated({"6.1": measured(fexit=REASON), "6.12": measured(lost=4)}).notes
    assert "No `fexit` on 6.1: this kernel has no fprobes." in notes
    assert any(note.startswith("`fexit` costs 1.33 times what a kretprobe does on 6.12,") for note in notes)
    told = [note for note in notes if "without a duration" in note]
    assert told == [
        "Of 1,000 calls and pairs in bursts on 6.1, none went without a duration"
        " (0; the agent told of 3 lost events).",
        "Of 1,000 calls and pairs in bursts on 6.12, 0.40 % went without a duration"
        " (4; the agent told of 3 lost events).",
    ]


def test_the_goals_of_durations() -> None:
    notes = tabulated({"6.1": measured(fexit=REASON)}).notes
    assert {
        "Goal: a call's duration costs at most 1.1 times bpftrace's maps. Reached: 1.04 times on 6.1.",
        "Goal: a pair's duration costs at most 1.1 times bpftrace's maps. Missed: 1.15 times on 6.1.",
    } <= set(notes)


def test_a_kernel_without_hist_triggers() -> None:
    table = tabulated({"5.10": measured(fexit=REASON, hist="it was built without"), "6.12": measured()})
    rows = {name: cells for name, *cells in table.rows}
    assert rows[SHOWN[KERNEL][0]] == ["", "", "+1,000", "1.00"]
    assert rows[SHOWN[ONE_TRIGGER][0]] == ["", "", "+1,000", "1.00"]
    assert "No hist triggers on 5.10: it was built without." in table.notes
    [goal] = [note for note in table.notes if "return histogram" in note]
    assert goal.endswith("0.75 times on 5.10, 0.75 times on 6.12.")


@pytest.mark.parametrize("absent", [{}, {EXIT_EVENT: REASON}])
def test_what_a_guest_writes_is_read(absent: dict[str, str]) -> None:
    bursts = {"ns": NS, "made": 10, "lost": 1, "told": 2}
    result = {"loops": LOOPS, "absent": absent, "bursts": bursts}
    assert Measured.of(result) == Measured(LOOPS, Found(NS, 10, 1, 2), absent)


def test_every_probe_that_is_measured_is_shown() -> None:
    assert overhead_guest.NOTHING == latency_guest.NOTHING
    assert {peer for _, peer in SHOWN.values()} == {BPF_COUNT, BPF_HIST, BPF_STACKS}
    assert {peer for _, peer in DURATIONS.values()} == {BPF_CALL, BPF_PAIR}
