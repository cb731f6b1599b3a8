"""probe: the upper bound of a probe's lost events, where it is known, is never too low."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.agent.probe import LOSSES, ProbeState
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.snapshot import ShownState, summary
from kprobe_exporter.model.specs import Plan, ProbeSpec
from kprobe_exporter.plan import JoinedSpec, ProbePlan
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.tracefs.probes import Installed

NAME = "open"
LAYOUT = Layout(1, NAME, NAME, "entry", "do_open")


def single(
    plan: Plan = "events", filter_: str | None = None, residual_filter: Where | None = None
) -> ProbeSpec:
    return ProbeSpec(
        *(NAME, "kprobe", "kprobe:do_open", "do_open", "kprobe_events", "p", "do_open", filter_, LAYOUT),
        plan=plan,
        residual_filter=residual_filter,
    )


CALL = JoinedSpec(NAME, "call", "call:do_open", "do_open", 1, (), "stack", (), None)


def lost(
    spec: ProbeSpec | JoinedSpec | None,
    hits: int,
    events: int,
    *,
    by_kernel: bool = True,
    **reasons: int,
) -> int | None:
    """Return the lost events that the status page shows for a probe that is attached in this way."""
    event = spec if isinstance(spec, ProbeSpec) else single()
    part = cast("Installed", SimpleNamespace(counted_by_kernel=by_kernel, spec=event))
    attached = None if spec is None else Attached(spec, (part,))
    target = SimpleNamespace(kind=SimpleNamespace(value="kprobe"))
    probe = SimpleNamespace(
        name=NAME,
        help="",
        critical=False,
        optional=False,
        attach=[SimpleNamespace(target=target)],
        metrics=(),
        stacks=None,
        within=None,
    )
    state = ProbeState(
        cast(
            "ProbePlan",
            SimpleNamespace(probe=probe, metrics=SimpleNamespace(returns=None, worst=None), waiting=False),
        ),
        "up",
        "",
        attached,
    )
    return state.status(Numbers((), {NAME: hits}, {}, {NAME: events}, reasons, {}, {}, 0)).lost


@pytest.mark.parametrize("spec", [single(), single(filter_="a == 1"), CALL])
def test_where_nothing_was_lost_none_of_its_events_was(spec: ProbeSpec | JoinedSpec) -> None:
    """A probe lost none if all lost none, although some hits are unread, filtered or the agent's own."""
    assert lost(spec, 500, 100, overrun=0, unreadable=7, negative=7, table_full=7) == 0


@pytest.mark.parametrize("reason", LOSSES)
def test_hits_without_an_event_are_the_most_that_it_lost(reason: str) -> None:
    assert lost(single(), 500, 460, by_kernel=True, **{reason: 1000}) == 40


def test_it_did_not_lose_more_than_all_probes() -> None:
    assert lost(single(), 500, 100, overrun=20, dropped=3, wiped=2) == 25


def test_events_that_came_after_the_hits_were_read_are_no_loss() -> None:
    assert lost(single(), 500, 510, overrun=20) == 0


@pytest.mark.parametrize(
    "spec",
    [single(filter_="a == 1"), single(residual_filter=Where((), ("all", ()))), CALL],
    ids=["kernel", "here", "call"],
)
def test_it_lost_at_most_all_losses_if_not_each_hit_is_an_event(spec: ProbeSpec | JoinedSpec) -> None:
    assert lost(spec, 500, 460, overrun=20) == 20


def test_losses_are_unknown_while_it_is_sampled() -> None:
    assert lost(replace(single(), sample="common_pid & 1"), 500, 60) is None


def test_it_lost_at_most_all_losses_if_the_agent_counts_the_hits() -> None:
    assert lost(single(), 500, 500, by_kernel=False, overrun=20) == 20


@pytest.mark.parametrize("spec", [CALL, single()])
def test_half_a_call_is_not_lost(spec: ProbeSpec | JoinedSpec) -> None:
    assert lost(spec, 500, 499, unpaired=1) == 0


@pytest.mark.parametrize("spec", [single("count"), single("kernel"), None], ids=["count", "kernel", "off"])
def test_what_makes_no_events_loses_none(spec: ProbeSpec | None) -> None:
    assert lost(spec, 500, 0, overrun=20) is None


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_it_is_no_less_than_what_was_lost(came: int, missing: int, others: int) -> None:
    """The bound holds however many events the other probes lost."""
    on_record = lost(single(), came + missing, came, overrun=missing + others)
    assert on_record is not None
    assert on_record >= missing


def test_the_line_that_says_which_probes_are_up() -> None:
    states: list[tuple[str, ShownState]] = [("a", "up"), ("b", "down"), ("c", "up"), ("d", "absent")]
    assert summary(states) == "2 of 3 probes are up; down: b; absent: d"
    assert summary([("a", "up")]) == "1 of 1 probes are up"
    many: list[tuple[str, ShownState]] = [(f"p{number}", "down") for number in range(23)]
    assert summary(many).endswith("p18, p19 and 3 more")
