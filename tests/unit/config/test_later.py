"""config.later: what this version has not yet is told apart from what nobody knows."""

from collections.abc import Callable

import pytest

from kprobe_exporter.config.later import LATER, later
from tests.unit.config.conftest import PROBE


def test_later_names_what_is_to_come_only() -> None:
    assert "a later one brings it" in (later("probes", "limit") or "")
    assert later("probes", "limt") is None
    assert later("nowhere", "limit") is None


@pytest.mark.parametrize("key", sorted(LATER["global"]))
def test_global_keys(problems: Callable[[str], list[str]], key: str) -> None:
    [problem] = problems(f"{PROBE}global: {{{key}: 3}}")
    assert problem.startswith(f"2:10: global.{key}: {key!r} is not in this version yet")


@pytest.mark.parametrize("key", sorted(LATER["probes"]))
def test_probe_keys(problems: Callable[[str], list[str]], key: str) -> None:
    [problem] = problems(f"probes: [{{name: a, attach: 'kprobe:f', {key}: x}}]")
    assert problem.startswith(f"1:40: probes[0].{key}: {key!r} is not in this version yet")
