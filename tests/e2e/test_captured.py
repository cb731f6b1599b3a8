"""The real process over captured input: its metrics are the golden ones, and promtool accepts them.

UPDATE_GOLDEN=1 rewrites the golden files; review the changes before committing them.
"""

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import PlayBack
from tests.support.agent_process import AgentProcess
from tests.support.captured_streams import CONFIG, STREAMS, streams
from tests.support.patience import eventually
from tests.support.promtool import check_metrics

OWN = (
    *("kprobe_up", "kprobe_info", "kprobe_exporter_build"),
    *("kprobe_exporter_kernel_info", "kprobe_exporter_config"),
)
GOLDEN = Path(__file__).parent / "golden"


def text_of(agent: AgentProcess) -> str:
    """The metrics that the captured events caused, without those that vary from run to run."""
    lines = agent.get().splitlines()
    wanted = (line for line in lines if "kprobe_" in line and "_age_" not in line and "duration" not in line)
    return "\n".join(line for line in wanted if not line.startswith(OWN)) + "\n"


@pytest.mark.parametrize("kernel", ["6.1", "6.12"])
def test_golden_metrics(play_back: PlayBack, promtool: str, kernel: str) -> None:
    agent = play_back(CONFIG, streams(kernel))
    expected = sum(path.read_bytes().count(b": (") for path in streams(kernel).values())

    def all_read() -> bool:
        metrics = agent.scrape()
        events = sum(
            metrics.value("kprobe_exporter_events_total", probe=probe) for probe in STREAMS
        ) + metrics.value("kprobe_exporter_events_lost_total", reason="unparsed")
        return events >= expected

    eventually(all_read)
    text = text_of(agent)
    golden = GOLDEN / f"{kernel}.prom"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    check_metrics(promtool, agent.get().encode())
    assert agent.end() == 0
    assert "Traceback" not in agent.output()
