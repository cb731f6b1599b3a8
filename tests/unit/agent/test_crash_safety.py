"""If a write, mkdir or rmdir in tracefs fails, no traceback follows, and the next start removes the rest."""

import errno
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kprobe_exporter.agent.agent import Agent
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.errors import KprobeExporterError
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.tracefs.instance import Instance
from tests.support.fake_tracefs import FakeTracefs

GROUP = "kprobe_exporter"

FIRST = """
probes:
  - {name: open, attach: 'kprobe:do_open', metrics: [{counter: opens_total}]}
  - {name: read, attach: 'kretprobe:do_read', filter: 'common_pid > 0', metrics: [{counter: reads_total}]}
  - {name: call, attach: 'call:do_call', returns: int}
  - {name: soft, attach: 'kprobe:do_write'}
  - {name: exec, attach: 'tracepoint:sched:sched_process_exec', metrics: [{counter: execs_total}]}
"""
SECOND = """
probes:
  - {name: open, attach: 'kprobe:do_open', fetch: {sp: '$stack:u64'}, metrics: [{counter: opens_total}]}
  - {name: soft, attach: 'kprobe:do_write'}
  - {name: more, attach: 'kprobe:do_read', filter: 'common_pid > 1', metrics: [{counter: more_total}]}
"""


@cache
def configs() -> tuple[Config, Config]:
    """Load both configurations only once, because that takes longer than the rest of a test."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "config.yaml")
        found = []
        for text in (FIRST, SECOND):
            path.write_text(text)
            found.append(load([path], DECODERS))
        return found[0], found[1]


class Faulty(FakeTracefs):
    """A tracefs that numbers the changes to it, and refuses those for which ``refuses(number)`` is true."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, {"do_open", "do_read", "do_write", "do_call"})
        self.changes: list[str] = []
        self.refuses: Callable[[int], bool] = lambda number: False
        self.code = 0

    def write(self, path: str, text: str) -> None:
        self._change(f"write {path}: {text}")
        super().write(path, text)

    def mkdir(self, path: str) -> None:
        self._change(f"mkdir {path}")
        super().mkdir(path)

    def rmdir(self, path: str) -> None:
        self._change(f"rmdir {path}")
        super().rmdir(path)

    def _change(self, what: str) -> None:
        self.changes.append(what)
        if self.refuses(len(self.changes)):
            raise OSError(self.code, os.strerror(self.code), what)


class Life:
    """Install, run, reload, run and teardown, on a kernel with another tool's instance and probe."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.files = Faulty(directory)
        self.files.mkdir("instances/foreign")
        self.files.write("kprobe_events", "p:foreign/open do_open")
        self.files.write("instances/foreign/events/foreign/open/enable", "1")
        self.files.changes.clear()
        self.error: BaseException | None = None

    def lead(self) -> str | None:
        """Run the whole life. Return why the agent did not start or failed. Any other exception is a bug."""
        first, second = configs()
        agent = Agent(first, self.files, Shutdown())
        try:
            with agent:
                agent.start()
                self.fire()
                agent.snapshot()
                agent.reload(lambda: second)
                self.fire()
                agent.snapshot()
        except KprobeExporterError as error:
            return str(error)
        self.error = agent.error
        return str(agent.error) if agent.error else None

    def fire(self) -> None:
        for symbol in self.files.functions:
            self.files.fire(symbol, tid=1)

    def ours(self) -> list[str]:
        """Return the agent's definitions and instance that exist."""
        names = [event.name for event in self.files.events if event.group == GROUP]
        return names + [name for name in self.files.instances if name == GROUP]

    def foreign_is_untouched(self) -> bool:
        theirs = [event for event in self.files.events if event.group == "foreign"]
        return len(theirs) == 1 and theirs[0].enabled == {"foreign"} and "foreign" in self.files.instances


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.tracefs.poller.MAX_AGE", 0.0)
    monkeypatch.setattr("kprobe_exporter.agent.probe_set.LAST_TIME", 0.5)


@pytest.fixture
def points(tmp_path: Path) -> int:
    """Return the number of changes that a life without a fault makes."""
    life = Life(tmp_path / "whole")
    assert life.lead() is None
    assert life.ours() == []
    assert life.foreign_is_untouched()
    assert len(life.files.changes) > 50
    return len(life.files.changes)


@pytest.mark.parametrize(
    ("code", "ever_after"),
    [
        (errno.EIO, False),
        (errno.ENOSPC, False),
        (errno.EINVAL, False),
        (errno.EBUSY, False),
        (errno.EIO, True),
    ],
)
def test_a_change_that_the_kernel_refuses(
    tmp_path: Path, points: int, code: int, ever_after: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change fails in turn: the reason is one sentence at most, and the next start removes the rest."""
    caplog.set_level(logging.INFO)
    on_record = 0
    for at in range(1, points + 1):
        caplog.clear()
        life = Life(tmp_path / str(at))
        life.files.code = code
        life.files.refuses = lambda number, at=at: number >= at if ever_after else number == at  # type: ignore[misc]
        reason = life.lead()
        where = f"change {at}, {life.files.changes[at - 1]}: {reason}"
        assert [record for record in caplog.records if record.exc_info] == [], where
        assert "Traceback" not in caplog.text, where
        if reason is not None:
            on_record += 1
            assert "\n" not in reason, where
            assert reason.endswith("."), where
        assert life.error is None or isinstance(life.error, KprobeExporterError), where
        assert life.foreign_is_untouched(), where
        life.files.refuses = lambda number: False
        if at % 5:
            Instance.acquire(life.files, GROUP).close()  # as ``cleanup`` does
        else:
            assert life.lead() is None, where
        assert life.ours() == [], where
        assert life.foreign_is_untouched(), where
    assert on_record >= 1
