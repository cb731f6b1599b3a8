"""The example of Alertmanager: a real one groups a fleet's alerts, and holds back what follows."""

import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.patience import eventually
from tests.support.receivers import free_port
from tests.vm import BUILD, ROOT
from tests.vm.debian import alertmanager

CONFIG = ROOT / "deploy/alertmanager/alertmanager.yml"
RULES = ROOT / "deploy/prometheus/rules.yaml"
AGENTS = 200

RUN = 'mount --bind "$0" /usr/share && exec "$@"'
"""Debian's Alertmanager has its templates below /usr/share: there it sees its package's, for itself alone."""

Notification = dict[str, Any]


@pytest.fixture(scope="module")
def binary() -> Path:
    if not os.environ.get("CI") and not (BUILD / "alertmanager").exists():
        pytest.skip("no Alertmanager: `make test` fetches it")
    return alertmanager()


@pytest.fixture
def notifications() -> Iterator[tuple[int, list[Notification]]]:
    """A webhook: its port, and what it was sent."""
    sent: list[Notification] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], sent
        server.shutdown()


@pytest.fixture
def post(binary: Path, notifications: tuple[int, list[Notification]], tmp_path: Path) -> Iterator[Any]:
    """Run Alertmanager with the example's configuration; the function gives it alerts, as Prometheus does."""
    if os.geteuid() != 0:
        pytest.skip("it is started in a mount namespace of its own, by root")
    config = yaml.safe_load(CONFIG.read_text())
    config["route"] |= {"group_wait": "1s", "group_interval": "1s"}
    (receiver,) = config["receivers"]
    receiver["webhook_configs"] = [{"url": f"http://127.0.0.1:{notifications[0]}/"}]
    file = tmp_path / "alertmanager.yml"
    file.write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    options = (f"--config.file={file}", f"--storage.path={tmp_path / 'data'}", "--cluster.listen-address=")
    share = str(binary.parents[1] / "share")
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", RUN, share]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*inside, binary, *options, f"--web.listen-address={address}"], stdout=log, stderr=log
        )
        try:
            eventually(lambda: answers(f"http://{address}/-/ready"))
            yield lambda alerts: send(f"http://{address}/api/v2/alerts", alerts)
        finally:
            process.terminate()
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def send(url: str, alerts: list[dict[str, str]]) -> None:
    body = json.dumps([{"labels": {"job": "kprobe-exporter", **labels}} for labels in alerts]).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def on_each(name: str, **labels: str) -> list[dict[str, str]]:
    """The alert of this name on each agent."""
    return [{"alertname": name, "instance": f"node-{agent}", **labels} for agent in range(AGENTS)]


def summary(sent: list[Notification]) -> dict[str, int]:
    """How many alerts each notification has, by the alerts' name."""
    return {one["commonLabels"]["alertname"]: len(one["alerts"]) for one in sent}


def test_amtool_accepts_it(binary: Path) -> None:
    amtool = binary.with_name("amtool")
    run = subprocess.run([amtool, "check-config", CONFIG], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_it_names_alerts_that_exist() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            names = matcher.partition("=")[2].strip('~"').split("|")
            assert set(names) <= alerts


def test_one_notification_for_all_machines(post: Any, notifications: tuple[int, list[Notification]]) -> None:
    post(on_each("KprobeProbeTripped", probe="open", severity="warning"))
    _, sent = notifications
    eventually(lambda: sent)
    assert summary(sent) == {"KprobeProbeTripped": AGENTS}
    assert len(sent) == 1


def test_the_fleets_alert_holds_back_those_of_its_machines(
    post: Any, notifications: tuple[int, list[Notification]]
) -> None:
    """The last alert is sent later: by then the others' groups have been looked at."""
    _, sent = notifications
    down = on_each("KprobeExporterDown", severity="warning")
    post([{"alertname": "KprobeExporterFleetDown", "severity": "critical"}, *down])
    eventually(lambda: sent)
    post([{"alertname": "KprobeOomKill", "instance": "node-1", "severity": "warning"}])
    eventually(lambda: "KprobeOomKill" in summary(sent))
    assert summary(sent) == {"KprobeExporterFleetDown": 1, "KprobeOomKill": 1}


def test_alone_each_machine_is_told(post: Any, notifications: tuple[int, list[Notification]]) -> None:
    post(on_each("KprobeExporterDown", severity="warning"))
    _, sent = notifications
    eventually(lambda: sent)
    assert summary(sent) == {"KprobeExporterDown": AGENTS}
