"""What the configuration of Grafana Alloy asks for, the agent serves. Alloy itself does not run here."""

import re
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.snapshot import Snapshot
from kprobe_exporter.model.stacks import Profile
from kprobe_exporter.web.routes import create_app
from kprobe_exporter.web.stacks import MOST_SECONDS, MOST_WAITING
from tests.support.web_target import Served, serving

ROOT = Path(__file__).parents[2]
TEXT = re.sub(r"^\s*//.*", "", (ROOT / "deploy/alloy/config.alloy").read_text(), flags=re.MULTILINE)
PROFILES = dict(re.findall(r'profile\.custom "(\w+)" \{[^}]*path += "([^"]+)"[^}]*delta += true', TEXT))


def test_each_profile_is_of_a_shipped_probe_with_stacks() -> None:
    files = [*(ROOT / "examples/packs").glob("*.yaml"), ROOT / "examples/time.yaml"]
    counted = {
        probe.name for path in files for probe in load([path], DECODERS).probes if probe.stacks is not None
    }
    assert PROFILES.keys() == counted


def test_the_agent_serves_these_paths() -> None:
    asked = []

    def profile(name: str) -> Profile:
        asked.append(name)
        return Profile(name, "duration", {}, 0, 0, 1)

    app = create_app(lambda: Snapshot((), ()), lambda: None, profile=profile)
    with serving(Served(app)) as served:
        for path in PROFILES.values():
            response, _ = served.ask(path)
            assert response.status == 200
    assert asked == list(PROFILES)


def test_it_asks_within_the_agents_limits() -> None:
    assert re.search(r'"__address__" += "localhost:10435"', TEXT)
    (seconds,) = re.findall(r'delta_profiling_duration = "(\d+)s"', TEXT)
    (interval,) = re.findall(r'scrape_interval = "(\d+)s"', TEXT)
    assert int(seconds) <= MOST_SECONDS
    assert int(seconds) < int(interval)
    assert len(PROFILES) <= MOST_WAITING


@pytest.mark.parametrize(("opening", "closing"), ["{}", "[]", "()"])
def test_its_blocks_are_closed(opening: str, closing: str) -> None:
    depth = 0
    for character in re.sub(r'"[^"\n]*"', "", TEXT):
        depth += (character == opening) - (character == closing)
        assert depth >= 0
    assert depth == 0
