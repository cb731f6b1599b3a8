"""The packaged configuration, without options: its probes come up, and promtool finds no fault."""

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.patience import eventually


def test_the_packaged_configuration(start_agent: StartAgent) -> None:
    agent = start_agent(None)
    metrics = agent.scrape()
    up = {labels["probe"] for labels in metrics.labels("kprobe_up")}
    working = {probe for probe in up if metrics.value("kprobe_up", probe=probe) == 1}
    assert len(up) >= 6
    assert len(working) >= 4
    if has("kprobe_events"):
        assert working == up, agent.output()
        kinds = {labels["probe"]: labels["kind"] for labels in metrics.labels("kprobe_info")}
        assert (kinds["open"], kinds["tcp_connect"], kinds["exit"]) == ("kretprobe", "call", "kprobe")
    subprocess.run(["true"], check=True)
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="exec") >= 1)
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="fork") >= 1)
    assert agent.get("/-/ready") == "ready\n"
    assert "exec" in agent.get("/")


def test_each_default_metric_moves(start_agent: StartAgent) -> None:
    """Each metric of the default configuration that can be provoked without harm moves."""
    agent = start_agent(None)

    def moves() -> bool:
        # Repeated until seen: a busy machine may lose events if its kernel cannot filter them.
        with ThreadPoolExecutor(1) as other:
            other.submit(_fail_to_open_and_sync).result()
        for number in (signal.SIGKILL, signal.SIGSEGV):
            victim = subprocess.Popen(["sleep", "60"])
            victim.send_signal(number)
            victim.wait()
        metrics = agent.scrape()
        return (
            metrics.total("kprobe_open_errors_total", errno="EISDIR") >= 1
            and metrics.total("kprobe_fsync_errors_total", errno="EINVAL") >= 1
            and metrics.total("kprobe_duration_seconds_count", probe="fsync") >= 1
            and metrics.total("kprobe_exits_by_signal_total", signal="SIGSEGV", comm="sleep") >= 1
            and metrics.total("kprobe_sigkills_total") >= 1
            and metrics.total("kprobe_execs_total") >= 1
        )

    eventually(moves)


def test_promtool_has_nothing_to_say(start_agent: StartAgent, promtool: str) -> None:
    text = start_agent(None).get()
    check = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def _fail_to_open_and_sync() -> None:
    with pytest.raises(IsADirectoryError):
        os.open("/", os.O_WRONLY)
    read, write = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(write)
    os.close(read)
    os.close(write)
