"""config: the limits of hits per second, of one probe and of all probes together."""

import pytest

from tests.unit.config.conftest import PROBE, Load, Problems


def test_without_a_word(config: Load) -> None:
    found = config(PROBE)
    assert found.settings.limit == 200_000
    assert [probe.limit for probe in found.probes] == [100_000]


def test_as_written(config: Load) -> None:
    found = config(
        "global: {limit: {hits_per_second: 5000}}\n"
        "probes:\n"
        "- {name: a, attach: 'kprobe:f', limit: {hits_per_second: 1}}\n"
        "- {name: b, attach: 'kprobe:f', limit: none}\n"
    )
    assert found.settings.limit == 5000
    assert [probe.limit for probe in found.probes] == [1, None]


def test_none_for_all(config: Load) -> None:
    assert config(f"{PROBE}global: {{limit: none}}").settings.limit is None


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("3", "a limit is {hits_per_second: NUMBER}, or none"),
        ("off", "limit: must be 'none'"),
        ("{hits_per_second: 0}", "limit.hits_per_second: must be at least 1"),
        ("{hits_per_second: 1.5}", "limit.hits_per_second: must be a whole number"),
        ("{hits_per_second: 3, hits: 3}", "limit.hits: unknown key 'hits'"),
        ("{}", "limit.hits_per_second: the key 'hits_per_second' is missing"),
    ],
)
@pytest.mark.parametrize(
    "place", ["global: {{limit: {}}}\n", "probes: [{{name: b, attach: 'kprobe:f', limit: {}}}]"]
)
def test_what_it_cannot_be(problems: Problems, place: str, written: str, sentence: str) -> None:
    text = place.format(written)
    [problem] = problems(text if place.startswith("probes") else PROBE + text)
    assert sentence in problem
