"""A whole agent's log in JSON: one object a line, hostile bytes escaped, repeated lines summarised."""

import json
import logging
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.cli import main
from kprobe_exporter.service import log_limit
from kprobe_exporter.service.log_limit import SAME
from tests.support.agent_process import AgentProcess, running
from tests.support.patience import patience

TIMES = 23
HOSTILE = os.fsdecode(b'\x1b[2J\r\n{"level": "error"}\x9b\xe2\x80\xae\xff')
ESCAPED = r'config\x1b[2J\r\n{"level": "error"}\udc9b\u202e\udcff.yaml:1:1'
"""The escaped form moves no cursor, starts no log line, reverses no text, and is valid JSON everywhere."""

CONFIG = """
global: {tracefs_instance: hostile_logs}
probes: [{name: exec, attach: "tracepoint:sched:sched_process_exec"}]
"""


def whole(arguments: list[str]) -> None:
    """Run the command line, then what the interpreter does when it exits."""
    try:
        main(arguments)
    finally:
        logging.shutdown()


def entries(agent: AgentProcess) -> list[dict[str, Any]]:
    """Return its log records; each line must be a JSON object."""
    found = []
    for line in agent.log.read_bytes().decode("ascii").splitlines():
        assert line.isprintable()
        found.append(json.loads(line))
        assert found[-1].keys() == {"time", "level", "logger", "message"}, line
    return found


def test_a_log_in_json(tmp_path: Path, as_found: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many failed reloads of a file with an odd name are logged a few times, and then as a number."""
    monkeypatch.setattr(log_limit, "WINDOW", 3600)  # the agent inherits it: all reloads are in one window
    config = tmp_path / f"config{HOSTILE}.yaml"
    config.write_text(CONFIG)
    config.chmod(0o600)
    arguments = ["run", "--log.format", "json", "--config", str(config), "--web.enable-lifecycle"]
    agent = AgentProcess(tmp_path / "log", whole, [*arguments, "--web.listen-address", "127.0.0.1:0"])
    with running(agent):
        agent.wait_until_serving()
        config.write_text("probes: [{attach: 'kprobe:x'}]")
        for _ in range(TIMES):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(agent.address + "/-/reload", data=b"", timeout=patience(10))
            refused.value.close()
        assert agent.end() == 0
    log = entries(agent)
    others = [one for one in log if not re.search("reloaded|in a PID namespace", one["message"])]
    assert {one["level"] for one in others} == {"info"}
    told = [entry["message"] for entry in log if entry["level"] == "error"]
    assert all(line.startswith("the configuration was not reloaded: ") and ESCAPED in line for line in told)
    assert len(told) == SAME + 1
    assert told[-1] == f"{told[0]} … repeated {TIMES - SAME} more times"
    assert "\x1b" not in agent.output()
