"""A locked-down kernel is reported in one sentence. The test runs last: lockdown lasts until a reboot."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from tests.kernel.conftest import StartAgent
from tests.support.patience import eventually

LOCKDOWN = Path("/sys/kernel/security/lockdown")


@pytest.fixture
def as_found() -> None:
    """Compares nothing, because nothing can be read any more under lockdown."""


@pytest.mark.skipif("KPROBE_EXPORTER_VM" not in os.environ, reason="not on a machine that is used on")
def test_a_kernel_that_is_locked_down(start_agent: StartAgent) -> None:
    if not LOCKDOWN.exists():
        subprocess.run(["mount", "-t", "securityfs", "nodev", LOCKDOWN.parent], check=True)
    config = "probes: [{name: exec, attach: 'tracepoint:sched:sched_process_exec'}]"
    running = start_agent("global: {tracefs_instance: other}\n" + config)
    LOCKDOWN.write_text("confidentiality")
    fault = "kprobe_exporter_fault"
    eventually(lambda: running.scrape().value(fault, fault="locked_down") == 1)
    assert running.output().count("[locked_down]") == 1
    assert "Traceback" not in running.output()
    agent = start_agent(config, serving=False)
    assert agent.wait() == 1, agent.output()
    assert "locked down" in agent.output()
    assert "Traceback" not in agent.output()
    assert len(agent.output().splitlines()) == 1
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert result.stdout.endswith("'run' cannot work here, because of: lockdown, tracefs\n")
