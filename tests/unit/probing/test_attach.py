"""Choosing an alternative that the kernel accepts: all events of a call or a pair, or none of them."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import JoinedSpec, Kernel, ProbePlan, plan_probe
from kprobe_exporter.probing.attach import Attached, settle
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.poller import read_counts
from kprobe_exporter.tracefs.probes import Installed, names_in_use
from tests.support.conditions import meets
from tests.support.fake_tracefs import FakeTracefs
from tests.support.leftovers import list_probes

NAME = "attach_test"
EXEC, EXIT = "tracepoint:sched:sched_process_exec", "tracepoint:syscalls:sys_exit_openat"


class Picky(FakeTracefs):
    """A kernel that refuses each write for whose path and text ``refuses`` returns True."""

    refuses: Callable[[str, str], bool] = staticmethod(lambda path, text: False)

    def write(self, path: str, text: str) -> None:
        if self.refuses(path, text):
            self.writes.append((path, text))
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        super().write(path, text)

    def refuse(self, word: str) -> None:
        """Refuse from now on each definition and setting that contains this word."""
        self.refuses = lambda path, text: word in f"{path} {text}"


@pytest.fixture
def kernel(tmp_path: Path) -> Picky:
    return Picky(tmp_path, {"f", "g", "h"})


@pytest.fixture
def instance(kernel: Picky) -> Iterator[Instance]:
    with Instance.acquire(kernel, NAME) as found:
        kernel.writes.clear()
        yield found


Plans = Callable[[str], ProbePlan]


@pytest.fixture
def plan(instance: Instance, tmp_path: Path) -> Plans:
    """Return a function that plans the probe p from its other keys."""

    def run(rest: str) -> ProbePlan:
        file = tmp_path / "c.yaml"
        file.write_text(f"probes: [{{name: p, {rest}}}]")
        [probe] = load([file], DECODERS).probes
        known = Kernel(instance.event_format, counts_tracepoints=True)
        return plan_probe(probe, "ns", DECODERS, known, itertools.count())

    return run


def defined(kernel: Picky) -> list[str]:
    return [one.event for one in list_probes(kernel)]


def up(found: tuple[Attached | None, dict[str, str]]) -> Attached:
    attached, _ = found
    assert attached is not None
    return attached


def test_both_halves_of_a_call(instance: Instance, kernel: Picky, plan: Plans) -> None:
    taken: set[str] = set()
    attached, refused = settle(instance, plan("attach: 'call:f', fetch: {n: $arg1}"), taken, [])
    assert refused == {}
    assert attached
    assert isinstance(attached.spec, JoinedSpec)
    assert attached.joined
    assert [(part.event, part.spec.role) for part in attached.parts] == [("p", "begin"), ("p_return", "end")]
    assert attached.joined.begins == (attached.parts[0].layout,)
    assert attached.joined.end == attached.parts[1].layout
    assert attached.layout == attached.joined.layout
    assert attached.layout.form == "joined"
    assert attached.tables == ()
    assert defined(kernel) == ["p", "p_return"]
    assert taken == {"p", "p_return"}
    attached.remove()
    assert defined(kernel) == []


def test_without_its_return_there_is_no_entry(instance: Instance, kernel: Picky, plan: Plans) -> None:
    kernel.refuse("kprobe_events r1024:")
    taken: set[str] = set()
    attached, refused = settle(instance, plan("attach: 'call:f'"), taken, [])
    assert attached is None
    assert list(refused) == ["call:f"]
    assert defined(kernel) == []
    assert taken == set()
    assert [text.strip() for _, text in kernel.writes if text.startswith("-:")] == [f"-:{NAME}/p"]


def test_the_next_alternative_has_the_name(instance: Instance, kernel: Picky, plan: Plans) -> None:
    """Nothing of the refused call stays, and its event name is free for the next alternative."""
    kernel.refuse("kprobe_events r1024:")
    taken = {"foreign"}
    attached, refused = settle(instance, plan("attach: ['call:f', 'kprobe:g', 'kprobe:h']"), taken, [])
    assert attached
    assert attached.spec.target == "kprobe:g"
    assert (attached.joined, [part.event for part in attached.parts]) == (None, ["p"])
    assert list(refused) == ["call:f"]
    assert defined(kernel) == ["p"]
    assert taken == {"foreign", "p"}


@pytest.mark.parametrize("refused", ["p_return", "stack_pointer", f"events/{NAME}/p_return/filter"])
def test_a_pair_after_a_call(instance: Instance, kernel: Picky, plan: Plans, refused: str) -> None:
    kernel.refuse(refused)
    settled = settle(
        instance,
        plan(
            "attach: [{to: 'call:f', filter: common_pid == 3},"
            " {pair: {from: ['kprobe:f', 'kprobe:g'], to: 'kprobe:h', key: tid}, filter: null}]"
        ),
        set(),
        [],
    )
    attached = up(settled)
    assert attached.spec.target == "kprobe:f | kprobe:g -> kprobe:h"
    assert list(settled[1]) == ["call:f"]
    assert len(defined(kernel)) == 3
    assert {part.event for part in attached.parts} == {*defined(kernel)}
    assert attached.joined
    assert [layout.event for layout in attached.joined.begins] == [part.event for part in attached.parts[:2]]


def test_several_first_events_have_names_of_their_own(instance: Instance, kernel: Picky, plan: Plans) -> None:
    taken = {"p_2", "p_end"}
    found = plan("attach: {pair: {from: ['kprobe:f', 'kprobe:g'], to: 'kprobe:h', key: tid}}")
    attached = up(settle(instance, found, taken, []))
    assert [part.event for part in attached.parts] == ["p", "p_3", "p_end_2"]
    assert taken == {"p", "p_2", "p_3", "p_end", "p_end_2"}


def test_a_name_that_another_process_took_is_left_to_it(
    instance: Instance, kernel: Picky, plan: Plans
) -> None:
    kernel.write("kprobe_events", "p:foreign/p f")
    taken = names_in_use(instance)
    attached = up(settle(instance, plan("attach: 'call:f'"), taken, []))
    assert [part.event for part in attached.parts] == ["p_2", "p_return"]
    attached.remove()
    assert defined(kernel) == ["p"]


def enables(kernel: Picky) -> list[tuple[str, str]]:
    """Return what was written to enable files, in order, with the event's name."""
    return [(path.split("/")[-2], text) for path, text in kernel.writes if path.endswith("/enable")]


PAIR = "attach: {pair: {from: ['kprobe:f', 'kprobe:g'], to: 'kretprobe:h', key: tid}}"


def test_what_ends_it_is_listened_to_first(instance: Instance, kernel: Picky, plan: Plans) -> None:
    """The end is enabled first and disabled last, so that each recorded entry has its recorded return."""
    attached = up(settle(instance, plan(PAIR), set(), []))
    assert enables(kernel) == []
    attached.enable()
    assert enables(kernel) == [("p_end", "1"), ("p_2", "1"), ("p", "1")]
    kernel.writes.clear()
    attached.disable()
    assert enables(kernel) == [("p", "0"), ("p_2", "0"), ("p_end", "0")]


@pytest.mark.parametrize("refused", ["p/enable 1", "p_2/enable 1", "p_end/enable 1"])
def test_one_that_cannot_be_enabled(instance: Instance, kernel: Picky, plan: Plans, refused: str) -> None:
    attached = up(settle(instance, plan(PAIR), set(), []))
    kernel.refuse(refused)
    with pytest.raises(ProbeRefused, match="it cannot be enabled"):
        attached.enable()
    attached.remove()
    assert defined(kernel) == []
    assert not any(event.enabled for event in kernel.events)


def test_entries_are_hits_and_returns_are_none(instance: Instance, kernel: Picky, plan: Plans) -> None:
    attached = up(settle(instance, plan("attach: 'call:f'"), set(), []))
    attached.enable()
    for _ in range(23):
        kernel.fire("f")
    assert attached.counted_by_kernel
    counts = read_counts(instance, attached.parts)
    assert (counts.hits, counts.misses) == ({"p": 23}, {"p": 0})


def test_all_that_begins_a_pair_is_a_hit(instance: Instance, kernel: Picky, plan: Plans) -> None:
    attached = up(settle(instance, plan(PAIR), set(), []))
    attached.enable()
    for symbol in ("f", "g", "g", "h", "h", "h"):
        kernel.fire(symbol)
    assert read_counts(instance, attached.parts).hits == {"p": 3}


def test_what_ends_it_is_read_first(instance: Instance, plan: Plans) -> None:
    """An event that ends one pair begins the next: read as a begin first, it would be a pair with itself."""
    written = f"attach: {{pair: {{from: ['{EXEC}', '{EXIT}'], to: '{EXEC}', key: cpu}}}}"
    attached = up(settle(instance, plan(written), set(), ()))
    assert [*attached.layouts] == [part.layout for part in reversed(attached.parts)]
    assert attached.parts[-1].spec.role == "end"


def test_a_pair_of_tracepoints(instance: Instance, kernel: Picky, plan: Plans) -> None:
    """Both events are eprobes; a hist trigger counts the first event, and the last one has none."""
    found = plan(f"attach: {{pair: {{from: '{EXEC}', to: '{EXIT}', key: cpu}}}}")
    attached = up(settle(instance, found, set(), []))
    first, last = attached.parts
    assert (first.event, last.event) == ("p", "p_end")
    assert first.hits is not None
    assert last.hits is None
    assert attached.counted_by_kernel


def test_without_eprobes_tracepoints_are_joined_themselves(
    instance: Instance, kernel: Picky, plan: Plans
) -> None:
    kernel.eprobes = False
    taken = {"sched_process_exec"}
    found = plan(f"attach: {{pair: {{from: '{EXEC}', to: '{EXIT}', key: cpu}}}}")
    attached, refused = settle(instance, found, taken, [])
    assert refused == {}
    assert attached
    assert [(part.system, part.event, part.owned) for part in attached.parts] == [
        ("sched", "sched_process_exec", False),
        ("syscalls", "sys_exit_openat", False),
    ]
    assert attached.joined
    assert [layout.event for layout in attached.joined.begins] == ["sched_process_exec"]
    assert defined(kernel) == []
    assert taken == {"sched_process_exec"}


FILTERED = (
    f"attach: [{{pair: {{from: {{to: '{EXEC}', filter: pid == 1}}, to: {{to: '{EXEC}', filter: pid == 2}},"
    " key: cpu}}, 'kprobe:f']"
)


ONLY_KERNEL = FILTERED.replace("pid == 1", "common_flags == 1")


def filters(kernel: Picky) -> list[str]:
    return [text for path, text in kernel.writes if path.endswith("sched_process_exec/filter")]


def test_two_filters_share_a_tracepoint(instance: Instance, kernel: Picky, plan: Plans) -> None:
    """Without eprobes, the kernel lets through what one of them needs, and the agent takes it apart."""
    kernel.eprobes = False
    attached, refused = settle(instance, plan(FILTERED), {"sched_process_exec"}, [])
    assert attached
    assert refused == {}
    assert [part.owned for part in attached.parts] == [False, False]
    assert filters(kernel) == ["pid == 1", "(pid == 1) || (pid == 2)"]
    assert [[meets(only, {"pid": pid}) for pid in (1, 2, 3)] for only in attached.part_filters.values()] == [
        [True, False, False],
        [False, True, False],
    ]
    attached.remove()
    assert filters(kernel)[2:] == ["pid == 2", "0"]


def test_a_filter_makes_room_for_a_probe_without_one(instance: Instance, kernel: Picky, plan: Plans) -> None:
    kernel.eprobes = False
    found = [
        up(settle(instance, plan(f"attach: '{EXEC}', {rest}"), set(), []))
        for rest in ("filter: pid == 1", "aggregate: events", "filter: pid == 2", "filter: pid == 2")
    ]
    assert filters(kernel) == ["pid == 1", "0"]
    found[1].remove()
    assert filters(kernel)[2:] == ["(pid == 1) || (pid == 2)"]
    found[3].remove()
    found[0].remove()
    assert filters(kernel)[3:] == ["pid == 2"]
    found[2].remove()
    found[2].remove()
    assert filters(kernel)[4:] == ["0"]


def test_a_filter_of_the_kernel_alone_is_not_shared(instance: Instance, kernel: Picky, plan: Plans) -> None:
    kernel.eprobes = False
    taken = {"sched_process_exec"}
    attached, refused = settle(instance, plan(ONLY_KERNEL), taken, [])
    assert up((attached, refused)).spec.target == "kprobe:f"
    assert "has this tracepoint already" in refused[f"{EXEC} -> {EXEC}"]
    assert "sched_process_exec" in taken  # the name was in use before
    assert filters(kernel) == ["common_flags == 1", "0"]


def test_reason_of_the_plan_where_eprobes_are_refused(instance: Instance, kernel: Picky, plan: Plans) -> None:
    """The kernel's own answer to an eprobe that it does not know, EINVAL, tells nothing."""
    kernel.eprobes = False
    begin = f"{{to: '{EXIT}', fetch: {{a: '+8($ret):u8'}}}}"
    pair = f"attach: {{pair: {{from: {begin}, to: '{EXEC}', key: tid}}}}"
    attached, refused = settle(
        instance, plan(f"{pair}, metrics: [{{counter: a_total, labels: [a]}}]"), set(), []
    )
    assert attached is None
    assert [*refused.values()] == [
        "'a' is behind a field, which only an eprobe can follow: attach to a function that has the value, as"
        " kprobe:FUNCTION, and fetch its $arg1 and so on."
    ]


def test_beside_others_it_is_told_which(instance: Instance, kernel: Picky, plan: Plans) -> None:
    kernel.eprobes = False
    other = plan(f"attach: '{EXEC}', metrics: [{{counter: a_total}}]").alternatives
    specs = [spec for spec in other if isinstance(spec, ProbeSpec) and spec.file is None]
    _, refused = settle(instance, plan(ONLY_KERNEL), set(), specs[:1])
    assert "the probe 'p' has this tracepoint already" in refused[f"{EXEC} -> {EXEC}"]


def test_what_is_not_expected_leaves_nothing_either(
    instance: Instance, kernel: Picky, plan: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption, for example by a signal, leaves no definition."""
    found = plan("attach: 'call:f'")

    def interrupted(probe: Installed) -> None:
        if probe.spec.role == "end":
            raise KeyboardInterrupt

    monkeypatch.setattr(Installed, "set_filter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        settle(instance, found, set(), [])
    assert defined(kernel) == []


def test_an_explanation_is_of_a_single_function(instance: Instance, kernel: Picky, plan: Plans) -> None:
    kernel.functions.clear()
    _, refused = settle(
        instance, plan("attach: ['kprobe:f', 'call:g']"), set(), [], lambda target, _: f"explained {target}"
    )
    assert refused["kprobe:f"] == "explained kprobe:f"
    assert "Invalid probed address or symbol" in refused["call:g"]


def test_what_cannot_be_read_is_taken_away_again(instance: Instance, kernel: Picky, plan: Plans) -> None:
    """A probe that cannot be read is removed and the next one is tried; a probe that only counts stays."""
    ways = plan("attach: ['kprobe:f', 'kprobe:g'], metrics: [{counter: a_total}]")
    taken: set[str] = set()

    def unreadable(part: Installed) -> str | None:
        return "its field is strange" if part.layout.symbol == "f" else None

    attached, refused = settle(instance, ways, taken, (), unreadable=unreadable)
    assert attached is not None
    assert attached.spec.target == "kprobe:g"
    assert refused == {"kprobe:f": "its field is strange."}
    assert [defined.event for defined in list_probes(kernel)] == ["p"] == sorted(taken)
    attached.remove()
    counted, refused = settle(instance, plan("attach: 'kprobe:f'"), set(), (), unreadable=unreadable)
    assert (counted is not None, refused) == (True, {})
