"""A probe that the kernel refuses is logged in one sentence, and stops no other probe."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from kprobe_exporter.errors import TracefsError
from kprobe_exporter.tracefs.mount import mounted
from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.forked_child import become_nobody, in_a_child
from tests.support.system_calls import BLACKLISTED
from tests.vm.kernels import USER_STACKS

GOOD = """
  - name: good
    attach: tracepoint:sched:sched_process_exec
"""


def line_about(agent: AgentProcess, probe: str) -> str:
    """Return the one line of the log that says why a probe is down."""
    (line,) = [line for line in agent.output().splitlines() if f"the probe '{probe}' is down" in line]
    return line


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize(
    ("attach", "words"),
    [
        ("kprobe:no_such_function_at_all", ["this kernel has no such function"]),
        ("kretprobe:no_such_function_at_all", ["this kernel has no such function"]),
        # Kprobes itself needs this function, so it is on the blacklist (NOKPROBE_SYMBOL).
        (f"kprobe:{BLACKLISTED}", ["the kernel keeps kprobes off it"]),
        # No instruction begins at this offset.
        ("kprobe:sys_getppid+1", ["(E"]),
        ("tracepoint:sched:no_such_event", ["this kernel has no tracepoint sched:no_such_event"]),
        ("tracepoint:no_such_system:exec", ["this kernel has no tracepoint no_such_system:exec"]),
    ],
)
def test_what_cannot_be_probed(start_agent: StartAgent, attach: str, words: list[str]) -> None:
    agent = start_agent(f"probes:\n  - name: bad\n    attach: {attach!r}\n{GOOD}")
    metrics = agent.scrape()
    assert metrics.value("kprobe_up", probe="good") == 1
    assert ("kprobe_up", frozenset({("probe", "bad")})) in metrics
    assert metrics.value("kprobe_up", probe="bad") == 0
    line = line_about(agent, "bad")
    assert attach in line
    for word in words:
        assert word in line
    assert "Traceback" not in agent.output()
    assert "no_such" in agent.get("/") or "no_such" not in attach


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize(
    ("probe", "words"),
    [
        ("{name: bad, attach: 'kprobe:vfs_read', fetch: {x: '%nosuchregister'}}", "%nosuchregister"),
        ("{name: bad, attach: 'kprobe:vfs_read', fetch: {x: '@no_such_variable'}}", "no_such_variable"),
        (
            "{name: bad, attach: 'tracepoint:sched:sched_process_exec', fetch: {x: no_such_field}}",
            "has no field 'no_such_field'",
        ),
    ],
)
def test_what_cannot_be_fetched_or_filtered(start_agent: StartAgent, probe: str, words: str) -> None:
    agent = start_agent(f"probes:\n  - {probe}\n{GOOD}")
    assert agent.scrape().value("kprobe_up", probe="good") == 1
    assert agent.scrape().value("kprobe_up", probe="bad") == 0
    assert words in line_about(agent, "bad")


def test_an_optional_probe_is_named_without_alarm(start_agent: StartAgent) -> None:
    agent = start_agent(
        f"probes:\n  - {{name: bad, attach: 'tracepoint:sched:no_such_event', optional: true}}\n{GOOD}"
    )
    assert "INFO agent.probe: the optional probe 'bad' is absent: " in agent.output()
    warnings = [line for line in agent.output().splitlines() if " WARNING " in line]
    assert [line for line in warnings if "in a PID namespace" not in line] == []
    assert agent.scrape().value("kprobe_exporter_probe_absent", probe="bad") == 1
    assert ("kprobe_up", frozenset({("probe", "bad")})) not in agent.scrape()


def test_none_at_all_still_serves_and_fail_fast_does_not(start_agent: StartAgent) -> None:
    config = "probes: [{name: bad, attach: 'tracepoint:sched:no_such_event'}]"
    agent = start_agent(config)
    assert agent.get("/-/healthy")
    with pytest.raises(OSError, match="503"):
        agent.get("/-/ready")
    assert agent.end() == 0
    fast = start_agent(config, "--fail-fast", serving=False)
    assert fast.wait() == 1
    assert "the probe 'bad' is down: tracepoint:sched:no_such_event: this kernel has no" in fast.output()


def test_no_tracefs_where_it_was_said_to_be(start_agent: StartAgent, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "nowhere", "there is no tracefs at"), (tmp_path, "is not a tracefs")):
        agent = start_agent(f"probes:{GOOD}", "--tracefs", str(path), serving=False)
        assert agent.wait() == 1
        assert words in agent.output()
        assert len(agent.output().splitlines()) == 1


def test_a_tracefs_that_is_read_only(start_agent: StartAgent, bound: Path) -> None:
    subprocess.run(["mount", "-o", "remount,bind,ro", bound], check=True)
    agent = start_agent(f"probes:{GOOD}", "--tracefs", str(bound), serving=False)
    assert agent.wait() == 1
    assert "read-only" in agent.output()
    assert len(agent.output().splitlines()) == 1


def test_another_place_of_the_same_tracefs(start_agent: StartAgent, bound: Path) -> None:
    """An agent can use tracefs at another path, as in a container, where AppArmor denies writes to /sys."""
    agent = start_agent(f"probes:{GOOD}", "--tracefs", str(bound))
    assert agent.scrape().value("kprobe_up", probe="good") == 1
    assert agent.end() == 0


def test_a_user_who_may_not(tracefs: Path, tmp_path: Path, start_agent: StartAgent) -> None:
    """Without uid 0, opening tracefs raises TracefsError, which says to run as root."""

    def attempt() -> None:
        become_nobody()
        with pytest.raises(TracefsError, match="run as root"), mounted(tracefs):
            pass

    in_a_child(attempt)


def test_a_scraper_that_goes_away(start_agent: StartAgent) -> None:
    agent = start_agent(f"probes:{GOOD}")
    host, port = agent.address.removeprefix("http://").split(":")
    for request in (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /met", b"\x16\x03\x01\x00", b""):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(request)
    assert agent.scrape().value("kprobe_up", probe="good") == 1
    assert "Traceback" not in agent.output()


@pytest.mark.needs("kprobe_events")
def test_a_string_argument_cannot_forge_a_label(start_agent: StartAgent, tmp_path: Path) -> None:
    """A file name that looks like the arguments that follow it stays one string."""
    agent = start_agent("""
probes:
  - name: open
    attach: kprobe:do_sys_openat2
    fetch: {file: "+0($arg2):ustring", dfd: "$arg1:s32"}
    filter: 'file ~ "/nonexistent*"'
    metrics: [{counter: opens_total, labels: [file, dfd]}]
""")
    name = '/nonexistent" dfd=7 file="/etc/shadow'
    with pytest.raises(FileNotFoundError):
        os.open(name, os.O_RDONLY)
    assert agent.scrape().value("kprobe_opens_total", file=name, dfd="-100") == 1
    assert len(agent.scrape().labels("kprobe_opens_total")) == 1


@pytest.mark.needs("kprobe_events")
def test_stacks_of_programs_where_the_kernel_does_not_follow_them(start_agent: StartAgent) -> None:
    agent = start_agent(
        f"probes:\n  - {{name: bad, attach: 'kprobe:vfs_read', stacks: {{user: true}}, limit: none}}\n{GOOD}"
    )
    assert agent.scrape().value("kprobe_up", probe="bad") == has(USER_STACKS)
    if not has(USER_STACKS):
        assert "this kernel cannot follow a program's stack" in line_about(agent, "bad")
