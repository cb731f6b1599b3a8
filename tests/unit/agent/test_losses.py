"""agent.losses: a loss is logged when it begins, at most once a minute while it lasts, and when it ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from kprobe_exporter.agent.losses import AGAIN, LossLog
from kprobe_exporter.aggregate.numbers import Ledger

METRICS = SimpleNamespace(metrics=[SimpleNamespace(name="kprobe_x_total")])
PROBES: list[Any] = [
    SimpleNamespace(name=name, plan=SimpleNamespace(metrics=METRICS)) for name in ("open", "read")
]
RATES = {"open": (1.0, 20.0), "read": (5.0, 4000.0), "new": ()}


class Watched:
    """A log that is looked at once a second, and the lines that it wrote."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.made, self.now, self.caplog = LossLog(RATES.__getitem__), 0.0, caplog

    def look(self, seconds: int = 1, *, overflows: int = 0, **lost: int) -> list[tuple[str, str]]:
        """Look for so many seconds, in which the counts grow to these; return the levels and messages."""
        self.caplog.clear()
        for _ in range(seconds):
            self.now += 1
            ledger = Ledger(dict.fromkeys(RATES, 1), {}, lost, {"kprobe_x_total": overflows})
            self.made.look(self.now, ledger, PROBES)
        return [(record.levelname, record.message) for record in self.caplog.records]


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    caplog.set_level("INFO")
    return Watched(caplog)


def test_an_overrun_begins_lasts_and_ends(watched: Watched) -> None:
    assert watched.look(10) == []
    [(level, begun)] = watched.look(overrun=900)
    assert (level, begun) == (
        "WARNING",
        "events are lost (overrun): 900 events, the busiest probe is 'read' with 4,000 hits a second: raise"
        " global.buffer_size, narrow a filter, or let the kernel add up (aggregate: kernel)",
    )
    told = [line for number in range(901, 901 + 130) for line in watched.look(overrun=number)]
    assert [(level, text.partition(",")[0]) for level, text in told] == [
        ("WARNING", "events are lost (overrun): 60 events in the last 60 s"),
        ("WARNING", "events are lost (overrun): 60 events in the last 60 s"),
    ]
    assert watched.look(int(AGAIN) - 1, overrun=1030) == []
    assert watched.look(overrun=1030) == [
        ("INFO", "events are lost (overrun): this has ended, after 1,030 events in 130 s")
    ]
    assert watched.look(int(AGAIN), overrun=1030) == []
    assert len(watched.look(overrun=1031)) == 1


def test_an_overflow_names_the_probes_of_its_metric(watched: Watched) -> None:
    assert watched.look(overflows=1) == [
        (
            "WARNING",
            "events fall into the label set __overflow__ of kprobe_x_total: 1 event, fed by 'open' and"
            " 'read': raise global.max_series, or use fewer labels",
        )
    ]


def test_a_missing_counterpart_is_normal(watched: Watched) -> None:
    assert watched.look(unpaired=500, sampled=3, disabled=2) == []


def test_before_there_is_a_rate_the_hits_decide(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched.made, "_rates", lambda name: ())
    [(_, text)] = watched.look(table_full=1)
    assert "the busiest probe is 'open': raise global.max_series" in text
