"""Two probes on one tracepoint of a kernel without eprobes."""

from dataclasses import replace

from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import cannot_share

OWN = ProbeSpec(
    probe="p",
    kind="tracepoint",
    target="tracepoint:sched:sched_switch",
    symbol="sched_switch",
    file=None,
    verb="",
    body="",
    filter=None,
    layout=Layout(0, "p", "sched_switch", "tracepoint", "sched_switch"),
    system="sched",
    event="sched_switch",
)
FILTERED = replace(OWN, probe="q", filter="prev_pid > 0")
EPROBE = replace(FILTERED, file="dynamic_events", verb="e", system="", event="")


def test_without_filters_they_share() -> None:
    assert cannot_share(OWN, []) is None
    assert cannot_share(OWN, [OWN]) is None


def test_one_filter_is_for_both() -> None:
    for spec, other in ((OWN, FILTERED), (FILTERED, OWN), (FILTERED, FILTERED)):
        said = cannot_share(spec, [replace(OWN, event="other"), other])
        assert said is not None
        assert f"the probe '{other.probe}' has this tracepoint already" in said


def test_filters_that_the_agent_evaluates_too_are_shared() -> None:
    told_apart = replace(FILTERED, residual_filter=Where(("prev_pid",), ("field", "prev_pid")))
    assert cannot_share(told_apart, [OWN, replace(told_apart, filter="prev_pid == 3")]) is None
    assert cannot_share(told_apart, [FILTERED]) is not None
    assert cannot_share(replace(OWN, sample="common_pid & 1"), [OWN]) is None


def test_one_probe_takes_the_stacks() -> None:
    assert cannot_share(replace(OWN, stack=True), [OWN]) is None
    said = cannot_share(replace(OWN, stack=True), [replace(OWN, probe="q", stack=True)])
    assert said == (
        "the probe 'q' takes the stacks of this tracepoint already: put the metrics of both into one probe."
    )


def test_an_eprobe_has_a_filter_of_its_own() -> None:
    assert cannot_share(EPROBE, [FILTERED, EPROBE]) is None
    assert cannot_share(FILTERED, [EPROBE]) is None
