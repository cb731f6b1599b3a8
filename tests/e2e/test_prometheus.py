"""A real Prometheus scrapes the real process, and stores what the agent counted."""

from pathlib import Path

import pytest

from tests.e2e.conftest import PlayBack
from tests.support.captured_streams import CONFIG, streams
from tests.support.patience import eventually
from tests.support.prometheus_server import Prometheus, prometheus, scraping


# In OpenMetrics a counter's family is named without the suffix, in protobuf with it.
@pytest.mark.parametrize(
    ("flags", "family"),
    [
        ((), "kprobe_open_results"),
        (("--enable-feature=native-histograms",), "kprobe_open_results_total"),
    ],
    ids=["openmetrics", "protobuf"],
)
def test_what_prometheus_stores(
    play_back: PlayBack, promtool: str, tmp_path: Path, flags: tuple[str, ...], family: str
) -> None:
    agent = play_back(CONFIG, streams("6.12"))
    binary = Path(promtool).with_name("prometheus")
    with prometheus(binary, tmp_path, scraping(agent.address), *flags) as server:
        by_errno = "sum by (errno) (kprobe_open_results_total)"
        eventually(lambda: values(server, by_errno).get("ENOENT", 0) > 0, 30)
        metrics = agent.scrape()
        stored = values(server, by_errno)
        for errno in ("ENOENT", "ok"):
            counted = sum(
                value
                for (name, labels), value in metrics.items()
                if name == "kprobe_open_results_total" and ("errno", errno) in labels
            )
            assert stored[errno] == counted
        assert values(server, "up") == {"": 1}
        names = server.get("metadata")
        assert [name for name in names if name.startswith("kprobe_open_results")] == [family]
        assert values(server, "histogram_quantile(0.9, sum by (le) (kprobe_opened_fd_bucket))")[""] > 0
        assert values(server, 'count({__name__=~"kprobe_.*_created"})') == {}


def values(server: Prometheus, expr: str) -> dict[str, float]:
    """The values of an instant query, by the label ``errno`` ('' without one)."""
    return {series.labels.get("errno", ""): series.samples[0][1] for series in server.now(expr)}
