"""The words of `decode: name` and `errno`: planned for each alternative, and shown by the aggregator."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Probe
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.labels.name import decoder_with
from kprobe_exporter.model.aggregation import Tally
from kprobe_exporter.model.records import Batch
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.model.values import Value
from kprobe_exporter.plan import JoinedSpec, Kernel, ProbePlan, plan_probe
from kprobe_exporter.plan.typed import look_up
from tests.support.kernel_formats import saved

Load = Callable[..., Probe]
RELEASE = "6.12"


@pytest.fixture
def probe(tmp_path: Path) -> Load:
    """Return a function that makes a probe of its keys, with a counter by the labels."""

    def run(keys: str, labels: str) -> Probe:
        file = tmp_path / "c.yaml"
        metric = f"{{counter: a_total, labels: {labels}}}"
        file.write_text(f"probes: [{{name: p, {keys}, metrics: [{metric}]}}]")
        return load([file], DECODERS).probes[0]

    return run


def planned(probe: Probe, *, btf: bool = True) -> ProbePlan:
    files = saved(RELEASE)

    def types(name: str) -> bytes:
        if not btf:
            raise FileNotFoundError(name)
        return files[f"sys/kernel/btf/{name}"]

    def text(system: str, event: str) -> str | None:
        found = files.get(f"tracefs/events/{system}/{event}/format")
        return found.decode() if found else None

    known = KernelTypes(types)
    places = [one for attach in probe.attach for one in attach.single]
    prototypes = look_up(places, known.prototypes)
    kernel = Kernel(text, counts_tracepoints=True, binary=True, prototypes=prototypes, types=known)
    decoders = {**DECODERS, "name": decoder_with(known.words)}
    return plan_probe(probe, "kprobe", decoders, kernel, count())


def spec(plan: ProbePlan) -> ProbeSpec:
    found = plan.alternatives[0]
    assert isinstance(found, ProbeSpec), found
    return found


def shown(plan: ProbePlan, *values: Value) -> list[str]:
    """What the first label is for these values of its field."""
    layout, tables = spec(plan).layout, spec(plan).tables
    made = Aggregator("kprobe", SeriesLimits(100, 100), name_of)
    made.declare(plan.metrics)
    made.attach(layout, tables=tables)
    found = []
    for value in values:
        made.consume(Batch(tallies=[Tally(layout.layout_id, 0, (value,), 1, 1)]))
        (family,) = (one for one in made.copy().families if one.name == "kprobe_a_total")
        found += [key[0] for key in family.samples if key[0] not in found]
    return found


@pytest.mark.parametrize("aggregate", ["events", "kernel"])
@pytest.mark.parametrize("btf", [True, False])
def test_a_tracepoints_words_take_no_types(probe: Load, aggregate: str, btf: bool) -> None:
    keys = f"attach: 'tracepoint:skb:kfree_skb', fetch: {{reason: reason}}, aggregate: {aggregate}"
    plan = planned(probe(keys, "{reason: {field: reason, decode: name}}"), btf=btf)
    assert shown(plan, 3, 1000, None) == ["NO_SOCKET", "1000", "unknown"]


@pytest.mark.parametrize(
    ("keys", "value", "name"),
    [
        ("attach: 'tracepoint:sched:sched_switch', fetch: {x: prev_pid}", 3, "3"),
        ("attach: 'kprobe:sk_skb_reason_drop', fetch: {x: reason}", 3, "NO_SOCKET"),
        ("attach: 'kprobe:sk_skb_reason_drop', fetch: {x: $arg3}", 3, "NO_SOCKET"),
        ("attach: 'kprobe:sk_skb_reason_drop', fetch: {x: $arg2}", 3, "3"),
        ("attach: 'kprobe:tcp_connect', fetch: {x: (hrtimer)sk->base->clockid}", 3, "3"),
        ("attach: 'kprobe:tcp_connect', fetch: {x: (writeback_control)sk->sync_mode}", 1, "WB_SYNC_ALL"),
        (
            "attach: 'tracepoint:sock:inet_sock_set_state', fetch: {x: (writeback_control)skaddr->sync_mode}",
            1,
            "WB_SYNC_ALL",
        ),
    ],
)
def test_enumerators_are_those_of_the_fields_type(probe: Load, keys: str, value: int, name: str) -> None:
    plan = planned(probe(keys, "{x: {field: x, decode: name}}"))
    assert shown(plan, value) == [name]
    note = "the kernel has no names for 'x', whose numbers are shown"
    assert (note in spec(plan).because) is (name == str(value))


@pytest.mark.parametrize("aggregate", ["events", "kernel"])
@pytest.mark.parametrize(
    ("keys", "value", "name"),
    [
        ("attach: 'kprobe:vfs_read', fetch: {x: '$arg1:u32'}", 2**32 - 22, "EINVAL"),
        ("attach: 'kprobe:vfs_read', fetch: {x: '$arg1:x32'}", 2**32 - 22, "EINVAL"),
        ("attach: 'kprobe:vfs_read', fetch: {x: '$arg1:u32'}", 2**31, "ok"),
        *(
            (f"attach: 'kprobe:vfs_read', fetch: {{x: '$arg1:{type_}'}}", 2**32 - 22, "ok")
            for type_ in ("s64", "u64", "x64")
        ),
        ("attach: 'kprobe:vfs_read', fetch: {x: $arg1}", 2**32 - 22, "ok"),
        ("attach: 'kprobe:vfs_read', fetch: {x: $arg1}", 2**64 - 22, "EINVAL"),
        ("attach: 'tracepoint:block:block_rq_issue', fetch: {x: bytes}", 2**32 - 22, "EINVAL"),
        ("attach: 'tracepoint:block:block_rq_issue', fetch: {x: sector}", 2**32 - 22, "ok"),
        ("attach: 'tracepoint:syscalls:sys_exit_lseek', fetch: {x: ret}", 2**32 - 22, "ok"),
        ("attach: 'tracepoint:syscalls:sys_exit_lseek', fetch: {x: ret}", -22, "EINVAL"),
    ],
)
def test_errors_have_the_width_of_their_field(
    probe: Load, keys: str, value: int, name: str, aggregate: str
) -> None:
    """4294967274 is a successful lseek() of 4 GiB, and -22 of an int that was read without its sign."""
    plan = planned(probe(f"{keys}, aggregate: {aggregate}", "{x: {field: x, decode: errno}}"))
    assert shown(plan, value) == [name]


@pytest.mark.parametrize(("decode", "label"), [("", "{0,0,0,1}"), (", decode: ip", "::1")])
def test_an_array_in_network_order(probe: Load, decode: str, label: str) -> None:
    keys = "attach: 'kprobe:tcp_connect', fetch: {x: (in6_addr)sk->in6_u.u6_addr32}"
    plan = planned(probe(keys, f"{{x: {{field: x{decode}}}}}"))
    assert shown(plan, b"{0,0,0,1}") == [label]


def test_what_a_function_returns(probe: Load) -> None:
    plan = planned(probe("attach: 'kretprobe:tcp_v4_rcv'", "{r: {field: return, decode: name}}"))
    assert shown(plan, 1) == ["1"]
    keys = "attach: 'kretprobe:ip_route_input_noref'"
    plan = planned(probe(keys, "{r: {field: return, decode: {name: {enum: skb_drop_reason}}}}"))
    assert shown(plan, 3) == ["NO_SOCKET"]


def test_both_halves_of_a_call_keep_their_words(probe: Load) -> None:
    keys = "attach: 'call:sk_skb_reason_drop', fetch: {reason: reason}"
    plan = planned(probe(keys, "{reason: {field: reason, decode: name}}"))
    (way,) = plan.alternatives
    assert isinstance(way, JoinedSpec)
    layouts = [half[0].layout for half in way.ways if isinstance(half[0], ProbeSpec)]
    joined = way.join(layouts).layout
    assert dict(joined.names)["reason"](3) == "NO_SOCKET"
    assert (
        "no names" not in way.settled(half[0] for half in way.ways if isinstance(half[0], ProbeSpec)).because
    )


def test_an_enum_that_is_not_there_is_said(probe: Load) -> None:
    keys = "attach: 'tracepoint:skb:kfree_skb', fetch: {reason: reason}"
    labels = "{reason: {field: reason, decode: {name: {enum: skb_drop_reasn}}}}"
    plan = planned(probe(keys, labels))
    assert "these types have no enum 'skb_drop_reasn', did you mean 'skb_drop_reason'" in spec(plan).because
    assert shown(plan, 3) == ["3"]
    assert "this kernel has no BTF" in spec(planned(probe(keys, labels), btf=False)).because
