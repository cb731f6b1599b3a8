"""The agent reports the values that stay unknown in a PID namespace of its own."""

from pathlib import Path

import pytest

from kprobe_exporter.agent import thread_events
from kprobe_exporter.agent.thread_events import Identities, looked_up
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.identity.processes import Processes
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.records import Layout
from kprobe_exporter.plan.metric import label_spec

PLAIN = "{name: p, attach: 'kprobe:f', metrics: [{counter: calls_total, labels: [comm, pid]}]}"
LABELS = "{x: {field: tid, decode: cgroup}}"
CGROUP = f"{{name: c, attach: 'kprobe:f', metrics: [{{counter: moves_total, labels: {LABELS}}}]}}"
CALLER = "{name: u, attach: 'uprobe:/bin/sh:main', metrics: [{counter: entries_total, labels: [caller]}]}"
STACKS = "{name: s, attach: 'kprobe:f', stacks: {user: true}}"
WITHIN = "{name: w, attach: 'uprobe:/bin/sh:main', container: 'a*'}"


def config(directory: Path, *probes: str) -> Config:
    file = directory / "c.yaml"
    file.write_text(f"otlp: {{metrics: {{}}}}\nprobes: [{', '.join(probes)}]")
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


def test_time_of_threads_begins_with_proc(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("time: {by: [exe]}")
    assert looked_up(load([file], DECODERS)) == ["exe", "the time before a thread's first event"]


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


EXITS = "tracepoint:sched:sched_process_exit"


@pytest.mark.parametrize(("label", "wanted"), [("exit_code", True), ("exit_signal", True), ("exe", False)])
def test_ends_of_threads_wanted(tmp_path: Path, label: str, wanted: bool) -> None:
    identities = Identities(nested=False)
    metrics = f"[{{counter: ends_total, labels: [{label}]}}]"
    identities.configure(config(tmp_path, f"{{name: e, attach: '{EXITS}', metrics: {metrics}}}"))
    assert identities.fact_events.wanted
    assert identities.exit_events.wanted == wanted


USER = "{field: uid, decode: {map: {0: root}}}"
FACTS = f"{{parent: parent_comm, user: {USER}, other: {{field: cpu, decode: exe}}}}"
EXPORTED = f"{{name: e, attach: 'kprobe:f', export: {{as: log, attributes: {FACTS}}}}}"


def test_facts_noted_for_export(tmp_path: Path) -> None:
    loaded = config(tmp_path, EXPORTED)
    identities = Identities(nested=False)
    identities.configure(loaded)
    assert identities.processes.wanted == {"exe", "parent_comm", "uid"}
    assert identities.fact_events.wanted
    identities.processes = Processes(Path("/nowhere"), lambda: 0, lambda time_ns: time_ns)
    identities.processes.started(7, 8, 0, 5, b"s\x1bh")
    identities.processes.executed(9, 9, 6, b"/bin/nine")
    export = loaded.probes[0].export
    assert export is not None
    layout = Layout(1, "e", "e", "entry", "f")
    note = identities.note(layout, [label_spec(label, DECODERS) for label in export.labels])
    assert note is not None
    note((1, 10, 9, 8, 8, None))  # on CPU 9
    assert identities.attributes(8, 10) == {"parent": r"s\x1bh", "other": "/bin/nine"}
    identities.whereabouts.forget()
    assert identities.attributes(8, 10) is None
    assert identities.note(layout, []) is None
