"""An agent with recordings, and loads that keep a record of their own."""

import os
import signal
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.agent_process import AgentProcess
from tests.support.patience import eventually

NAMED = "global: {tracefs_instance: recorder_under_test}\n"
NAPS = '{name: naps, attach: "syscall:clock_nanosleep"}'
OPENS = "tracepoint:syscalls:sys_enter_openat"


@dataclass
class Recorder:
    """An agent with one recording, and the directory of its files."""

    agent: AgentProcess
    directory: Path
    config: Path

    def files(self, ending: str = "dat") -> list[Path]:
        return sorted(self.directory.glob(f"slow-*.{ending}"))

    def wait_for_file(self, ending: str = "dat", number: int = 1) -> Path:
        eventually(lambda: len(self.files(ending)) >= number, 20)
        return self.files(ending)[number - 1]

    def post(self, path: str) -> tuple[int, str]:
        request = urllib.request.Request(f"{self.agent.address}{path}", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def results(self) -> dict[str, float]:
        found = self.agent.scrape()
        name = "kprobe_exporter_recordings_total"
        each = ("written", "refused", "failed")
        return {one: found.value(name, recording="slow", result=one) for one in each}


@dataclass
class Load:
    """What the load did: each numbered step with the moments before and after, and those of the last step."""

    pid: int
    steps: dict[int, tuple[int, int]]
    last: tuple[int, int]

    def must(self, begin: int) -> set[int]:
        """The steps that lie within the window that begins then."""
        return {
            number for number, (before, _) in self.steps.items() if before >= begin and before < self.last[1]
        }

    def may(self, begin: int) -> set[int]:
        return {number for number, (_, after) in self.steps.items() if after >= begin}

    def end(self) -> None:
        """End the process, which waits for that: the kernel soon forgets the name of one that has ended."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def numbered_open(number: int) -> None:
    """Open a file with a number, which is the directory that an absolute path does not need."""
    os.close(os.open("/", os.O_RDONLY | os.O_CLOEXEC, dir_fd=number))


def run_load(comm: str, seconds: float, step: Callable[[int], None], last: Callable[[], object]) -> Load:
    """Do numbered steps for a while in a process of this name, and then the last one; return its record."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        Path("/proc/self/comm").write_text(comm)
        out, number, end = [], 0, time.monotonic() + seconds
        while time.monotonic() < end:
            number += 1
            before = time.monotonic_ns()
            step(number)
            out.append((number, before, time.monotonic_ns()))
            time.sleep(0.001)
        before = time.monotonic_ns()
        last()
        out.append((0, before, time.monotonic_ns()))
        with os.fdopen(write, "wb") as pipe:
            pipe.writelines(struct.pack("QQQ", *one) for one in out)
        while True:
            signal.pause()
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    found = {number: (before, after) for number, before, after in struct.iter_unpack("QQQ", data)}
    end_of_it = found.pop(0)
    return Load(pid, found, end_of_it)
