"""What a new configuration changes: each probe is in one list, and metrics continue where they can."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.agent.config_diff import difference, needs_restart
from kprobe_exporter.config.model import Attach, Config, Label, Metric, Otlp, Probe, Settings
from kprobe_exporter.grammar.target import parse_target

METRICS = st.builds(
    Metric,
    kind=st.just("counter"),
    name=st.sampled_from(["a_total", "b_total"]),
    help=st.sampled_from(["one", "other"]),
    labels=st.sampled_from([(), (Label("comm", "comm"),)]),
    where=st.sampled_from([None, "tid > 1"]),
)
PROBES = st.builds(
    Probe,
    name=st.sampled_from(["p", "q", "r", "s"]),
    help=st.sampled_from(["", "some"]),
    attach=st.sampled_from([(Attach(parse_target(f"kprobe:{name}"), {}, None, None),) for name in "fg"]),
    metrics=st.lists(METRICS, max_size=2, unique_by=lambda metric: metric.name).map(tuple),
    optional=st.booleans(),
    enabled=st.booleans(),
    aggregate=st.sampled_from(["auto", "kernel"]),
)
CONFIGS = st.builds(
    Config,
    settings=st.builds(Settings, max_series=st.sampled_from([10, 20])),
    probes=st.lists(PROBES, max_size=4, unique_by=lambda probe: probe.name).map(tuple),
)


def names(config: Config) -> list[str]:
    return [probe.name for probe in config.probes]


@given(CONFIGS, CONFIGS)
def test_every_probe_is_in_one_place(old: Config, new: Config) -> None:
    found = difference(old, new)
    assert sorted(found.kept + found.changed + found.added) == sorted(names(new))
    assert set(found.kept + found.changed) == set(names(old)) & set(names(new))
    assert list(found.removed) == [name for name in names(old) if name not in names(new)]


@given(CONFIGS, CONFIGS)
def test_there_and_back(old: Config, new: Config) -> None:
    there, back = difference(old, new), difference(new, old)
    assert set(there.kept) == set(back.kept)
    assert set(there.changed) == set(back.changed)
    assert set(there.added) == set(back.removed)
    assert there.reset == back.reset


@given(CONFIGS, st.randoms())
def test_order_and_what_is_for_people_change_nothing(old: Config, random: object) -> None:
    probes = [replace(p, help="new", optional=not p.optional, limit=1.0) for p in reversed(old.probes)]
    found = difference(old, replace(old, probes=tuple(probes)))
    assert set(found.kept) == set(names(old))
    assert found.reset == frozenset()


@given(CONFIGS, CONFIGS)
def test_a_metric_of_a_kept_probe_goes_on(old: Config, new: Config) -> None:
    found = difference(old, new)
    kept = [probe for probe in new.probes if probe.name in found.kept]
    assert found.reset.isdisjoint(metric.name for probe in kept for metric in probe.metrics)


PLAIN = Metric("counter", "m_total", "M.", labels=(Label("comm", "comm"),))


def with_metric(*metrics: Metric) -> Config:
    attach = (Attach(parse_target("kprobe:f"), {}, None, None),)
    probes = [Probe(f"p{number}", "", attach, (metric,)) for number, metric in enumerate(metrics)]
    return Config(Settings(), tuple(probes))


@pytest.mark.parametrize(
    ("after", "reset"),
    [
        ([PLAIN], False),
        ([replace(PLAIN, help="Another help.")], False),
        ([PLAIN, replace(PLAIN, where="tid > 1")], False),
        ([replace(PLAIN, where="tid > 1"), PLAIN], False),
        ([replace(PLAIN, where="tid > 1")], True),
        ([replace(PLAIN, labels=())], True),
        ([replace(PLAIN, labels=(Label("comm", "cpu"),))], True),
        ([replace(PLAIN, value="size", scale=512)], True),
        ([replace(PLAIN, kind="gauge")], True),
        ([replace(PLAIN, native=True)], True),
        ([], False),  # the metric is gone, so nothing begins reset
        ([replace(PLAIN, name="n_total")], False),
    ],
)
def test_which_metrics_begin_anew(after: list[Metric], reset: bool) -> None:
    assert difference(with_metric(PLAIN), with_metric(*after)).reset == ({"m_total"} if reset else set())


def test_a_change_of_room_makes_hist_tables_anew() -> None:
    attach = (Attach(parse_target("kprobe:f"), {}, None, None),)
    probes = (Probe("k", "", attach, aggregate="kernel"), Probe("e", "", attach))
    old = Config(Settings(max_series=10), probes)
    found = difference(old, replace(old, settings=Settings(max_series=20)))
    assert (found.changed, found.kept) == (("k",), ("e",))


AT_ONCE = {"max_series", "max_series_total", "series_ttl", "max_matches", "limit", "native_histograms"}
OTHER: dict[str, object] = {
    "namespace": "other",
    "tracefs_instance": "other",
    "source": "text",
    "buffer_size": 1,
    "buffer_total": 1,
    "nested_containers": True,
}


@pytest.mark.parametrize("key", [field.name for field in fields(Settings)])
def test_each_key_of_global_is_applied_or_refused(key: str) -> None:
    """Each key is in one of the two lists, so a new key needs a decision."""
    old = Config(Settings(), ())
    assert (key in AT_ONCE) != (key in OTHER)
    new = replace(old, settings=replace(Settings(), **{key: OTHER.get(key, 7)}))  # type: ignore[arg-type]
    reason = needs_restart(old, new)
    if key in AT_ONCE:
        assert reason is None
    else:
        assert reason == (
            f"global.{key} cannot be changed while the agent runs: restart it to have this configuration."
        )


def test_all_that_needs_a_restart_is_named() -> None:
    old = Config(Settings(), ())
    new = Config(Settings(source="text", namespace="x"), (), otlp=Otlp())
    assert (needs_restart(old, new) or "").startswith("global.namespace and global.source and otlp cannot be")
    assert needs_restart(new, new) is None
