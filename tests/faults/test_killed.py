"""After a kill at any write, mkdir or rmdir below tracefs, the next start removes the leftovers, no more."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from kprobe_exporter.agent.agent import Agent
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from tests.support.foreign import foreign_things
from tests.support.leftovers import definitions, instances

pytestmark = [pytest.mark.needs("kprobe_events"), pytest.mark.usefixtures("as_found")]

NAME = "kprobe_exporter_killed"

FIRST = """
probes:
  - {name: ppid, attach: 'kprobe:sys_getppid', metrics: [{counter: ppid_total}]}
  - {name: soft, attach: 'kprobe:sys_getppid'}
  - {name: some, attach: 'kretprobe:sys_getppid', filter: 'common_pid > 0', returns: long}
  - {name: call, attach: 'call:sys_getsid', returns: int}
  - {name: enters, attach: 'tracepoint:syscalls:sys_enter_getppid', metrics: [{counter: enters_total}]}
"""
SECOND = """
probes:
  - {name: ppid, attach: 'kprobe:sys_getppid', fetch: {sp: $stack}, metrics: [{counter: ppid_total}]}
  - {name: soft, attach: 'kprobe:sys_getppid'}
  - {name: more, attach: 'kprobe:sys_getsid', filter: 'common_pid > 1',
     metrics: [{counter: more_total}]}
  - {name: table, attach: 'tracepoint:syscalls:sys_enter_getppid', aggregate: kernel,
     metrics: [{counter: table_total}]}
"""


class Killing(MountedTracefs):
    """Kills this process by SIGKILL after a number of changes."""

    def __init__(self, root: Path, after: int) -> None:
        super().__init__(root)
        self.changes = 0
        self.after = after

    def write(self, path: str, text: str) -> None:
        self._change(lambda: super(Killing, self).write(path, text))

    def mkdir(self, path: str) -> None:
        self._change(lambda: super(Killing, self).mkdir(path))

    def rmdir(self, path: str) -> None:
        self._change(lambda: super(Killing, self).rmdir(path))

    def _change(self, change: Callable[[], None]) -> None:
        if self.changes == self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        self.changes += 1
        change()


def read(path: Path, text: str) -> Config:
    path.write_text(f"global: {{tracefs_instance: {NAME}}}\n{text}")
    path.chmod(0o600)
    return load([path], DECODERS)


def life(kernel: MountedTracefs, path: Path) -> None:
    """Install, run, reload, run, tear down."""
    with Agent(read(path, FIRST), kernel, Shutdown()) as agent:
        agent.start()
        os.getppid()
        agent.snapshot()
        assert agent.reload(lambda: read(path, SECOND)) is None
        os.getppid()
        states = {probe.name: probe.state for probe in agent.snapshot().probes}
    assert set(states.values()) == {"up"}, states


def led(tracefs: Path, config: Path, after: int) -> int:
    """Live in a child process. Return -9 if it was killed, else the number of its changes, 1 to 254."""
    pid = os.fork()
    if pid == 0:
        status = 255
        try:
            kernel = Killing(tracefs, after)
            life(kernel, config)
            status = kernel.changes
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_killed_after_any_change(
    tracefs: Path, files: MountedTracefs, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The agent is killed at every twelfth change, on 6.1 offset by half of that; `--every=1` takes all."""
    every: int = request.config.getoption("--every")
    config = tmp_path / "config.yaml"
    with foreign_things(files):
        before = definitions(tracefs), instances(tracefs)
        changes = led(tracefs, config, -1)
        assert 50 < changes < 255
        assert (definitions(tracefs), instances(tracefs)) == before
        left = 0
        first = every // 2 if os.uname().release.startswith("6.1.") else 0
        points = range(first, changes, every)
        for number, after in enumerate(points):
            assert led(tracefs, config, after) == -signal.SIGKILL, after
            left += NAME in instances(tracefs)
            if number % 4 == 0:
                assert changes <= led(tracefs, config, -1) < 255  # it removes the dead agent's leftovers, too
            else:
                Instance.acquire(files, NAME).close()  # as cleanup does
            assert (definitions(tracefs), instances(tracefs)) == before, after
        assert left > len(points) / 2
    print(f"killed at {len(points)} of {changes} changes")
