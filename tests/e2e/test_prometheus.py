"""A real Prometheus scrapes the real process, and stores what the agent counted."""

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import PlayBack
from tests.support.captured_streams import CONFIG, streams
from tests.support.patience import eventually, patience


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Prometheus:
    """A running server, queried in PromQL."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, text: str) -> dict[str, float]:
        """The values of an instant query, by the label ``errno`` ('' without one)."""
        url = f"{self.address}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(url, timeout=patience(5)) as answer:
            found = json.load(answer)["data"]["result"]
        return {sample["metric"].get("errno", ""): float(sample["value"][1]) for sample in found}

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready", timeout=patience(5)) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus(binary: str, target: str, directory: Path) -> Iterator[Prometheus]:
    """Scrape ``target`` every second until the context is left."""
    config = directory / "prometheus.yml"
    job = {"job_name": "kernel", "static_configs": [{"targets": [target.removeprefix("http://")]}]}
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    address = f"127.0.0.1:{free_port()}"
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            server = Prometheus(f"http://{address}")
            eventually(server.is_ready, 30)
            yield server
        finally:
            process.terminate()
            process.wait()


def test_what_prometheus_stores(play_back: PlayBack, promtool: str, tmp_path: Path) -> None:
    agent = play_back(CONFIG, streams("6.12"))
    binary = str(Path(promtool).with_name("prometheus"))
    with prometheus(binary, agent.address, tmp_path) as server:
        by_errno = "sum by (errno) (kprobe_open_results_total)"
        eventually(lambda: server.query(by_errno).get("ENOENT", 0) > 0, 30)
        metrics = agent.scrape()
        stored = server.query(by_errno)
        for errno in ("ENOENT", "ok"):
            counted = sum(
                value
                for (name, labels), value in metrics.items()
                if name == "kprobe_open_results_total" and ("errno", errno) in labels
            )
            assert stored[errno] == counted
        assert server.query("up") == {"": 1}
        assert server.query("histogram_quantile(0.9, sum by (le) (kprobe_opened_fd_bucket))")[""] > 0
        assert server.query('count({__name__=~"kprobe_.*_created"})') == {}
