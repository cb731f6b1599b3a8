"""A directory whose file system does not answer, for code that opens files in this process."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.agent import agent, interference
from kprobe_exporter.probing import container_files
from kprobe_exporter.util import deadline
from kprobe_exporter.util.deadline import Deadlines
from kprobe_exporter.util.overruns import Overruns
from tests.support.patience import eventually

DEADLINE_S = 0.5
"""Seconds that the agent waits for it."""


class Hanging:
    """It hangs until ``end``, or the end of the test."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.overruns = Overruns()
        self.containers = Deadlines("container", overruns=self.overruns)
        self.host_files = Deadlines("path", only_stalls=True, overruns=self.overruns)
        self._ended = threading.Event()
        opened, stat = os.open, os.stat

        def hanging_open(path: Any, *rest: Any, **more: Any) -> int:
            descriptor = opened(path, *rest, **more)
            if Path(f"/proc/self/fd/{descriptor}").readlink() == directory:
                self._ended.wait()
            return descriptor

        def hanging_stat(path: Any, *rest: Any, **more: Any) -> os.stat_result:
            if isinstance(path, str) and path.startswith(f"{directory}/"):
                self._ended.wait()
            return stat(path, *rest, **more)

        monkeypatch.setattr(os, "open", hanging_open)
        monkeypatch.setattr(os, "stat", hanging_stat)
        monkeypatch.setattr(deadline, "DEADLINE_S", DEADLINE_S)
        for module in (deadline, container_files, interference, agent):
            monkeypatch.setattr(module, "CONTAINERS", self.containers)
            monkeypatch.setattr(module, "HOST_FILES", self.host_files, raising=False)

    @property
    def threads(self) -> int:
        """How many threads hang."""
        return len(self.containers._hanging) + len(self.host_files._hanging)

    def end(self) -> None:
        """Answer, and let the agent look again at once."""
        self._ended.set()
        eventually(lambda: not self.threads)
        self.overruns.clear()


@contextmanager
def hanging_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    """Let the directory hang, for all that looks into it, until the context ends."""
    made = Hanging(directory, monkeypatch)
    try:
        yield made
    finally:
        made.end()
