"""A real Prometheus for tests, queried in PromQL over its API."""

import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import eventually, patience
from tests.support.receivers import free_port

Labels = dict[str, str]


class Series:
    """The samples of one label set: pairs of a time in seconds since the epoch and a value, oldest first."""

    def __init__(self, labels: Labels, samples: Sequence[tuple[float, str]]) -> None:
        self.labels = labels
        self.samples = [(at, float(value)) for at, value in samples]

    @property
    def finite(self) -> list[tuple[float, float]]:
        """The samples with finite values: a quantile of no observations is NaN."""
        return [(at, value) for at, value in self.samples if math.isfinite(value)]


class Prometheus:
    """A running server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def now(self, expr: str) -> list[Series]:
        """An instant query's series, with one sample each; a scalar has no labels."""
        data = self.get("query", query=expr)
        if data["resultType"] == "scalar":
            return [Series({}, [data["result"]])]
        return [Series(one["metric"], [one["value"]]) for one in data["result"]]

    def over(self, expr: str, seconds: int, step: int = 1) -> list[Series]:
        """A range query's series, up to now."""
        end = time.time()
        data = self.get("query_range", query=expr, start=end - seconds, end=end, step=step)
        return [Series(one["metric"], one["values"]) for one in data["result"]]

    def exemplars(self, expr: str, seconds: int) -> list[Any]:
        """The exemplars of all series that a query selects."""
        end = time.time()
        found = self.get("query_exemplars", query=expr, start=end - seconds, end=end)
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def label_values(self, label: str, selector: str) -> list[str]:
        """The values of a label in the series of a selector."""
        found: list[str] = self.get(f"label/{label}/values", **{"match[]": selector})
        return found

    def rules(self) -> list[Any]:
        """All rules with their states."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {
            one["labels"]["alertname"] for one in self.get("alerts")["alerts"] if one["state"] == "firing"
        }

    def get(self, path: str, **parameters: object) -> Any:
        """The data of an answer; AssertionError with the server's message for a query that it refuses."""
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=patience(30)) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready", timeout=patience(5)) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def scraping(address: str) -> dict[str, Any]:
    """Return the configuration by which a server scrapes an agent each second."""
    job = {"job_name": "kernel", "static_configs": [{"targets": [address.removeprefix("http://")]}]}
    return {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}


@contextmanager
def prometheus(binary: Path, directory: Path, config: Mapping[str, Any], *flags: str) -> Iterator[Prometheus]:
    """Runs the server with this configuration until the context is left."""
    file = directory / "prometheus.yml"
    file.write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    command = [str(binary), f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={address}", *flags], stdout=log, stderr=log
        )
        try:
            server = Prometheus(f"http://{address}")
            eventually(server.is_ready, 30)
            yield server
        finally:
            process.terminate()
            process.wait()
