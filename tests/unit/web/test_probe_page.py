"""The page of one probe: its facts, errors and busiest label sets; hostile names; names that no probe has."""

from dataclasses import replace
from typing import TypeAlias

import pytest

from kprobe_exporter.model.snapshot import (
    Family,
    HeatMap,
    HistogramValue,
    LabelValues,
    ProbeStatus,
    Snapshot,
    WorstEvent,
)
from kprobe_exporter.web.probe_page import render_probe, unknown
from kprobe_exporter.web.status import render_status
from tests.unit.export.conftest import HOSTILE, SNAPSHOT

Samples: TypeAlias = dict[LabelValues, float | HistogramValue]

PROBE = ProbeStatus(
    *("open", "up", "kprobe", "kprobe:f", "events", "", 1000, 2, 990),
    because="takes comm",
    lost=8,
    metrics=("opens_total",),
)


def page(*families: Family, probe: ProbeStatus = PROBE) -> str:
    rendered = render_probe(Snapshot(families, (probe,)), probe.name)
    assert rendered is not None
    return rendered.decode()


def test_facts() -> None:
    cost = Family("kprobe_exporter_probe_overhead_seconds_total", "counter", "", ("probe",), {("open",): 0.5})
    shown = page(cost)
    for name, value in (("Hits", "1,000"), ("Misses", "2"), ("Lost, at most", "8"), ("Plan", "events")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in shown
    assert "<dt>Why this plan</dt><dd>takes comm</dd>" in shown
    assert "about 500 ms of the time of the threads that hit it, 500,000 ns a hit" in shown
    assert "<dt>Cost</dt>" not in page()


def test_unpaired_events_are_a_fact_of_their_own() -> None:
    shown = page(probe=replace(PROBE, unpaired=2258))
    assert (
        "<dt>Unpaired</dt><dd>2,258 events without the other one of their call or pair, as at a start"
        in shown
    )
    assert "Unpaired" not in page()


def test_links_to_its_stacks() -> None:
    probe = replace(PROBE, name="a/b <c>", stacks=True)
    shown = page(probe=probe)
    for path in ("/stacks/a%2Fb%20%3Cc%3E.svg", "/stacks/a%2Fb%20%3Cc%3E", "/debug/pprof/a%2Fb%20%3Cc%3E"):
        assert f'<a href="{path}">' in shown
    assert "Stacks" not in page()
    assert "Stacks" not in (render_probe(Snapshot((), (probe,)), probe.name, stacks=False) or b"").decode()


def test_largest_value_with_its_labels() -> None:
    """Names of files and threads are any bytes that a user chose."""
    family = Family("kprobe_worst_seconds", "gauge", "", ("probe", "by"), {("open", "duration"): 1.5})
    worst = WorstEvent(1.5, (("comm", "<b>&"), ("file", HOSTILE)), 1_700_000_000.25)
    probe = replace(PROBE, worst=worst, worst_of="duration", worst_window=120.0)
    shown = page(family, probe=probe)
    assert "<h3>Largest <code>duration</code></h3>" in shown
    assert "in the last 120 s, at 2023-11-14 22:13:20 UTC" in shown
    assert "<li><b>1.5 s</b> <code>comm=&lt;b&gt;&amp;, file=" in shown
    assert HOSTILE not in shown
    assert "<li><b>1.5</b>" in page(probe=probe)  # not a time
    assert "<p>No event in the last 120 s.</p>" in page(probe=replace(probe, worst=None))
    assert "Largest" not in page()


def test_errors_of_this_probe_alone() -> None:
    samples: Samples = {("open", "ENOENT"): 7.0, ("open", "EACCES"): 9.0, ("other", "EIO"): 99.0}
    returns = replace(PROBE, returns=True)
    family = Family("kprobe_return_errors_total", "counter", "", ("probe", "errno"), samples)
    shown = page(family, probe=returns)
    assert shown.index("errno=EACCES") < shown.index("errno=ENOENT")
    assert "EIO" not in shown
    assert "None was counted" in page(probe=returns)
    assert "Errors" not in page()


def test_heat_maps() -> None:
    heat = HeatMap("return_value", (1.0,), ((0, 3),), 15.0)
    shown = page(probe=replace(PROBE, heat=(heat,)))
    assert "<h3>Return values</h3>" in shown
    assert "Return values" not in page()


def test_the_ten_busiest_label_sets() -> None:
    samples: Samples = {(f"c{number}",): float(number) for number in range(25)}
    shown = page(Family("kprobe_opens_total", "counter", "", ("comm",), samples))
    assert shown.count("<li>") == 10
    assert "<b>24</b> <code>comm=c24</code>" in shown
    assert "and 15 more" in shown


def test_what_an_up_probe_did_not_become_is_no_reason_for_its_state() -> None:
    reason = "kprobe:g: this kernel has no such function."
    assert f"<dt>Also tried</dt><dd>{reason}</dd>" in page(probe=replace(PROBE, reason=reason))
    assert f"<dt>Reason</dt><dd>{reason}</dd>" in page(probe=replace(PROBE, state="down", reason=reason))


@pytest.mark.parametrize(("columns", "said"), [(1, "The last minute,"), (8, "The last 2 minutes,")])
def test_a_heat_map_says_how_long_it_is(columns: int, said: str) -> None:
    heat = HeatMap("return_value", (1.0,), ((0, 3),) * columns, 15.0)
    assert said in page(probe=replace(PROBE, heat=(heat,)))


def test_a_mean_of_seconds_has_its_unit() -> None:
    value = HistogramValue((0.1,), (2, 0), 0.0157)
    family = Family("kprobe_duration_seconds", "histogram", "", ("probe",), {("open",): value})
    assert "<b>2, mean 7.85 ms</b> <code>probe=open</code>" in page(family)


def test_a_histogram_has_its_count_and_mean() -> None:
    value = HistogramValue((1.0,), (3, 1), 8.0)
    samples: Samples = {("open",): value, ("other",): value}
    shown = page(Family("kprobe_duration_seconds", "histogram", "", ("probe",), samples))
    assert "<b>4, mean 2 s</b> <code>probe=open</code>" in shown
    assert "other" not in shown


def test_metrics_of_other_probes_and_namespaces() -> None:
    family = Family("x_opens_total", "counter", "", ("comm",), {("sh",): 1.0})
    assert "comm=sh" not in page(family)
    named = render_probe(Snapshot((family,), (PROBE,), "x"), "open")
    assert named is not None
    assert b"comm=sh" in named


def test_hostile_names_stay_text() -> None:
    probe = replace(PROBE, name=HOSTILE, target=HOSTILE, reason=HOSTILE, because=HOSTILE, help=HOSTILE)
    labels = Family("kprobe_opens_total", "counter", HOSTILE, ("comm",), {(HOSTILE,): 1.0})
    assert page(labels, probe=probe).count("<script>") == 1


def test_the_status_page_links_to_it() -> None:
    shown = render_status(SNAPSHOT, "/metrics").decode()
    assert '<a href="/probe/open">open</a>' in shown
    assert 'href="/probe/a%22b%5Cc%0Ad%3Cscript%3E' in shown


def test_unknown_names() -> None:
    assert render_probe(SNAPSHOT, "opem") is None
    assert unknown(SNAPSHOT, "opem") == "there is no probe 'opem'; the nearest are 'open'"
    assert unknown(SNAPSHOT, "zzz") == "there is no probe 'zzz'; / lists all probes"
