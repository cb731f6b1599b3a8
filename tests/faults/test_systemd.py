"""The unit under a real systemd on a kernel with kprobes; the rest is in tests/deploy/test_systemd.py."""

import os
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

from kprobe_exporter.sessions.protocol import DEFAULT_SOCKET
from tests.support.patience import eventually
from tests.support.system_calls import entry
from tests.support.systemd import UNIT, UNITS, Systemd, configure, scrape

pytestmark = [pytest.mark.needs("kprobe_events"), pytest.mark.usefixtures("as_found")]

CAP_SYSLOG = 34

CONFIG = """
probes:
  - name: answers
    attach: kretprobe:sys_getppid
    filter: common_pid == {tid}
    metrics: [{{counter: callers_total, labels: [caller]}}]
"""


def test_with_names_of_addresses(systemd: Systemd, port: int) -> None:
    """The drop-in adds CAP_SYSLOG only; without it, `caller` is unknown on Linux 6.1."""
    files = Path(f"/proc/{systemd.pid}/root/run/systemd/system/{UNIT}.d")
    shutil.copy(UNITS / "drop-ins/symbols.conf", files / "symbols.conf")
    systemd.ctl("daemon-reload")
    configure(systemd, CONFIG.format(tid=os.getpid()))
    systemd.ctl("start", UNIT)
    status = Path(f"/proc/{systemd.main_pid()}/status").read_text()
    assert f"\nCapEff:\t{1 << CAP_SYSLOG:016x}\n" in status
    os.getppid()
    eventually(lambda: scrape(port).labels("kprobe_callers_total"))
    [labels] = scrape(port).labels("kprobe_callers_total")
    assert labels["caller"].startswith((entry(), "x64_sys_call", "invoke_syscall", "el0_svc_common"))
    systemd.ctl("stop", UNIT)


def test_session_in_the_confined_unit(systemd: Systemd, port: int) -> None:
    """Tools have the agent's confinement, and root is root to an agent in a user namespace of its own."""
    files = Path(f"/proc/{systemd.pid}/root/run/systemd/system/{UNIT}.d")
    shutil.copy(UNITS / "drop-ins/sessions.conf", files)
    options = re.search(r"'OPTIONS=(.*)'", (files / "here.conf").read_text())
    assert options
    served = f"'OPTIONS={options[1]} --session.socket {DEFAULT_SOCKET}'"
    (files / "served.conf").write_text(f"[Service]\nEnvironment={served}\n")
    systemd.ctl("daemon-reload")
    configure(systemd, 'probes: [{name: exec, attach: "tracepoint:sched:sched_process_exec"}]')
    systemd.ctl("start", UNIT)
    assert systemd.shows("OOMPolicy") == "continue"
    root = Path(f"/proc/{systemd.pid}/root")
    socket = root / DEFAULT_SOCKET.relative_to("/")
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    tools = ("--tool", "killsnoop -n 1", "--tool", "syscount -P")
    command = (sys.executable, "-m", "kprobe_exporter", "session", *tools, "--for", "2s")
    done = systemd.inside(*command)
    assert done.returncode == 0, f"{done.stderr}{systemd.log()}"
    assert re.search(r"^syscount  \d+ ", done.stdout, re.MULTILINE), done.stdout
    assert "a session of user 0, process" in systemd.log()
    systemd.ctl("stop", UNIT)
    assert systemd.shows("Result") == "success"
    assert not socket.exists()
