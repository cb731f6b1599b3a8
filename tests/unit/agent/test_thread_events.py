"""The agent reports the values that stay unknown in a PID namespace of its own."""

from pathlib import Path

import pytest

from kprobe_exporter.agent import thread_events
from kprobe_exporter.agent.thread_events import Identities, looked_up
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.labels import DECODERS

PLAIN = "{name: p, attach: 'kprobe:f', metrics: [{counter: calls_total, labels: [comm, pid]}]}"
LABELS = "{x: {field: tid, decode: cgroup}}"
CGROUP = f"{{name: c, attach: 'kprobe:f', metrics: [{{counter: moves_total, labels: {LABELS}}}]}}"
CALLER = "{name: u, attach: 'uprobe:/bin/sh:main', metrics: [{counter: entries_total, labels: [caller]}]}"
STACKS = "{name: s, attach: 'kprobe:f', stacks: {user: true}}"
WITHIN = "{name: w, attach: 'uprobe:/bin/sh:main', container: 'a*'}"


def config(directory: Path, *probes: str) -> Config:
    file = directory / "c.yaml"
    file.write_text(f"probes: [{', '.join(probes)}]")
    return load([file], DECODERS)


@pytest.mark.parametrize(
    ("probes", "found"),
    [
        ((PLAIN,), []),
        ((CGROUP, CALLER), ["caller", "x"]),
        ((STACKS,), ["stacks of programs"]),
        ((WITHIN, PLAIN), ["containers to probe"]),
    ],
)
def test_things_looked_up_in_proc(tmp_path: Path, probes: tuple[str, ...], found: list[str]) -> None:
    assert looked_up(config(tmp_path, *probes)) == found


def test_unknown_ids_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    identities = Identities(nested=False)
    monkeypatch.setattr(thread_events, "host_proc", lambda: None)
    for probes in ((PLAIN,), (PLAIN, CGROUP), (CGROUP,), (PLAIN,)):
        identities.configure(config(tmp_path, *probes))
        assert ("unknown for most threads: x," in identities.notice) == (CGROUP in probes)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "hostPID: true" in caplog.text


def test_host_ids_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identities = Identities(nested=False)
    monkeypatch.setattr(thread_events, "host_proc", lambda: tmp_path)
    identities.configure(config(tmp_path, CGROUP))
    assert identities.notice == ""
