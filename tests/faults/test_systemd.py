"""The unit under a real systemd on a kernel with kprobes; the rest is in tests/deploy/test_systemd.py."""

import os
import shutil
from pathlib import Path

import pytest

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
