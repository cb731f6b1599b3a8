"""The agent's own metrics."""

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.self_metrics import LOSSES, agent_families, probe_families
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.records import Batch
from kprobe_exporter.model.snapshot import Family, KernelCounts, ProbeStatus

UP = ProbeStatus("open", "up", "kretprobe", "kretprobe:do_sys_openat2", "events", "", 1, 0, 1)
FAILED = ProbeStatus("gone", "down", "kprobe", "kprobe:gone", "events", "no such function", None, None, 0)
DISABLED = ProbeStatus("off", "disabled", "kprobe", "kprobe:off", "events", "", None, None, 0)


def test_the_state_of_the_probes() -> None:
    up, info = probe_families("ns", [UP, FAILED, DISABLED])
    assert (up.name, up.type, up.labels) == ("ns_up", "gauge", ("probe",))
    assert up.samples == {("open",): 1, ("gone",): 0, ("off",): 0}
    assert (info.name, info.type, info.labels) == ("ns_info", "gauge", ("probe", "kind", "target", "plan"))
    assert info.samples == {("open", "kretprobe", "kretprobe:do_sys_openat2", "events"): 1}


def own(aggregator: Aggregator) -> dict[str, Family]:
    build = {"version": "1.2.3", "python_version": "3.11.7"}
    kernel = {"release": "6.1.0-39-amd64", "machine": "x86_64"}
    return {f.name: f for f in agent_families(aggregator.copy(), build, kernel, 1_700_000_000.5, 0.25)}


def test_every_loss_is_there_from_the_start() -> None:
    lost = own(Aggregator("ns", SeriesLimits(10, 20_000), name_of))["kprobe_exporter_events_lost_total"]
    assert lost.samples == {(reason,): 0 for reason in LOSSES}


def test_what_the_agent_says_of_itself() -> None:
    aggregator = Aggregator("ns", SeriesLimits(10, 20_000), name_of)
    aggregator.update_kernel(KernelCounts(lost={"overrun": 7}, buffer_bytes=4096))
    aggregator.consume(Batch(unparsed=2))
    families = own(aggregator)
    values = {
        name: next(iter(family.samples.values())) for name, family in families.items() if not family.labels
    }
    assert values == {
        "kprobe_exporter_config_last_reload_successful": 1,
        "kprobe_exporter_config_last_reload_success_timestamp_seconds": 1_700_000_000.5,
        "kprobe_exporter_kernel_read_age_seconds": 0.25,
        "kprobe_exporter_ring_buffer_bytes": 4096,
    }
    assert families["kprobe_exporter_build_info"].labels == ("version", "python_version")
    assert families["kprobe_exporter_build_info"].samples == {("1.2.3", "3.11.7"): 1}
    assert families["kprobe_exporter_kernel_info"].labels == ("release", "machine")
    assert families["kprobe_exporter_kernel_info"].samples == {("6.1.0-39-amd64", "x86_64"): 1}
    lost = families["kprobe_exporter_events_lost_total"].samples
    assert (lost["overrun",], lost["unparsed",]) == (7, 2)


def test_names_are_the_agents_and_end_as_their_kind_does() -> None:
    for family in own(Aggregator("ns", SeriesLimits(10, 20_000), name_of)).values():
        assert family.name.startswith("kprobe_exporter_")
        assert family.name.endswith("_total") == (family.type == "counter")
        assert family.help.endswith(".")
