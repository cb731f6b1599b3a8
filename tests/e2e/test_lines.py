"""Lines of events as other programs take them: rsyslog keeps each as it is, and jq reads all."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kprobe_exporter.export import lines
from tests.e2e.conftest import FIXTURES, PlayBack
from tests.support.agent_process import AgentProcess
from tests.support.patience import eventually
from tests.vm.debian import rsyslog

PROBE = """
probes:
  - name: cap_open
    attach: kprobe:do_sys_openat2
    fetch: {dfd: "$arg1:s32", path: "+0($arg2):ustring"}
    export: line
"""
KEYS = {"time", "probe", "kind", "function", "tid", "comm", "cpu", "fields"}
"""Those of an event of a kernel that records no process ids, as docs/collecting.md lists them."""

STREAM = FIXTURES / "6.12/trace_pipe/kprobe.txt"
EVENTS = STREAM.read_bytes().count(b" cap_open: (") - 1
"""Of a real kernel, with hostile names: one event is forged by the path of a file."""

HEAD = "local0.info kprobe_exporter "

OF_RSYSLOG = """
global(workDirectory="{directory}")
module(load="imuxsock" SysSock.Use="off")
input(type="imuxsock" Socket="{socket}" CreatePath="off" RateLimit.Interval="0")
template(name="message" type="list") {{
  property(name="syslogfacility-text") constant(value=".") property(name="syslogseverity-text")
  constant(value=" ") property(name="programname") property(name="msg") constant(value="\\n")
}}
action(type="omfile" file="{file}" template="message")
"""


@contextmanager
def syslog(directory: Path, socket: Path) -> Iterator[Path]:
    """Run rsyslogd on a socket of its own; yield the file with its messages, behind facility and name."""
    usr = rsyslog()
    [modules] = usr.glob("lib/*/rsyslog")
    config, file = directory / "rsyslog.conf", directory / "messages"
    config.write_text(OF_RSYSLOG.format(directory=directory, socket=socket, file=file))
    command: list[str | Path] = [usr / "sbin/rsyslogd", "-n", "-f", config, "-M", modules]
    command += ["-i", directory / "rsyslog.pid"]
    with (directory / "rsyslog.log").open("w") as log:
        environ = {**os.environ, "LD_LIBRARY_PATH": str(modules.parent)}
        with subprocess.Popen(command, env=environ, stdout=log, stderr=log) as server:
            try:
                eventually(socket.exists)
                yield file
            finally:
                server.terminate()


def exported(agent: AgentProcess) -> float:
    return agent.scrape().total("kprobe_exporter_otlp_exported_total", signal="lines")


def by_jq(program: str, text: str) -> list[object]:
    """Return what jq makes of each object of a text."""
    command = ["jq", "--compact-output", program]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_rsyslog(play_back: PlayBack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = tmp_path / "log"
    monkeypatch.setattr(lines, "SOCKET", str(socket))
    with syslog(tmp_path, socket) as messages:
        agent = play_back(f"{PROBE}lines: {{to: syslog}}\n", {"cap_open": STREAM})
        eventually(lambda: exported(agent) == EVENTS)
        eventually(lambda: messages.exists() and messages.read_bytes().count(b"\n") == EVENTS)
        kept = messages.read_text().splitlines()
        assert all(line.startswith(HEAD) for line in kept)
        texts = [line.removeprefix(HEAD) for line in kept]
        paths = [json.loads(text)["fields"].get("path") for text in texts]  # one was cut
        assert "/nonexistent" in paths
        assert by_jq(".fields.path", "\n".join(texts)) == paths


def test_jq(play_back: PlayBack, tmp_path: Path) -> None:
    """A file, which jq reads whole: the keys are those that the documents name."""
    file = tmp_path / "events.json"
    agent = play_back(f"{PROBE}lines: {{to: {file}}}\n", {"cap_open": STREAM})
    eventually(lambda: exported(agent) == EVENTS)
    found = by_jq("keys_unsorted", file.read_text())
    assert len(found) == EVENTS
    assert {key for keys in found if isinstance(keys, list) for key in keys} == KEYS
