"""config: the limits of one probe and of all probes together, in hits per second or as a share of time."""

import pytest

from kprobe_exporter.config.model import LIMIT_OF_ALL, PROBE_LIMIT, CpuShare
from tests.unit.config.conftest import PROBE, Load, Problems


def test_without_a_word(config: Load) -> None:
    found = config(PROBE)
    assert found.settings.limit == CpuShare(0.02)
    assert [probe.limit for probe in found.probes] == [CpuShare(0.01)]
    assert (found.settings.limit, found.probes[0].limit) == (LIMIT_OF_ALL, PROBE_LIMIT)


def test_as_written(config: Load) -> None:
    found = config(
        "global: {limit: {hits_per_second: 5000}}\n"
        "probes:\n"
        "- {name: a, attach: 'kprobe:f', limit: {hits_per_second: 1}}\n"
        "- {name: b, attach: 'kprobe:f', limit: none}\n"
    )
    assert found.settings.limit == 5000
    assert [probe.limit for probe in found.probes] == [1, None]


@pytest.mark.parametrize(
    ("written", "share"), [("1%", 0.01), ("0.5%", 0.005), ("100 %", 1), ("0.0001%", 0.000001), ("20%", 0.2)]
)
def test_a_share_of_the_time(config: Load, written: str, share: float) -> None:
    found = config(
        f"global: {{limit: {{cpu: {written}}}}}\n"
        f"probes: [{{name: a, attach: 'kprobe:f', limit: {{cpu: {written}}}}}]\n"
    )
    assert found.settings.limit == found.probes[0].limit == CpuShare(share)


def test_none_for_all(config: Load) -> None:
    assert config(f"{PROBE}global: {{limit: none}}").settings.limit is None


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("3", "a limit is {cpu: SHARE}, {hits_per_second: NUMBER}, or none"),
        ("off", "limit: must be 'none'"),
        ("{hits_per_second: 0}", "limit.hits_per_second: must be at least 1"),
        ("{hits_per_second: 1.5}", "limit.hits_per_second: must be a whole number"),
        ("{hits_per_second: 3, hits: 3}", "limit.hits: unknown key 'hits'"),
        ("{}", "limit: a limit has either `cpu` or `hits_per_second`"),
        ("{cpu: 1%, hits_per_second: 3}", "limit: a limit has either `cpu` or `hits_per_second`"),
        ("{cpu: 1}", "limit.cpu: a share of the CPUs is written with %, as 5%, and not 1"),
        ("{cpu: '1'}", "limit.cpu: '1' is not a share above 0% up to 100%: write it as 1% or 0.5%"),
        ("{cpu: 0%}", "limit.cpu: '0%' is not a share above 0% up to 100%: write"),
        ("{cpu: 101%}", "limit.cpu: '101%' is not a share above 0% up to 100%"),
    ],
)
@pytest.mark.parametrize(
    "place", ["global: {{limit: {}}}\n", "probes: [{{name: b, attach: 'kprobe:f', limit: {}}}]"]
)
def test_what_it_cannot_be(problems: Problems, place: str, written: str, sentence: str) -> None:
    text = place.format(written)
    [problem] = problems(text if place.startswith("probes") else PROBE + text)
    assert sentence in problem
