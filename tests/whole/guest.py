"""The program of the VM: the agent with the packs and config.yaml, and the work that fires its probes."""

import os
import shutil
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

from kprobe_exporter.cli import main
from tests.kernel import pack_events
from tests.support.agent_process import AgentProcess

HERE = Path(__file__).parent
PACKS = HERE.parents[1] / "examples/packs"
PAUSE = 1.2
"""Seconds; TCP retransmits after 1 s what the network's events leave unanswered."""

COPY = Path("/tmp/packs")
NAME = "worker"
"""Of this process, in events."""

FILTERS = {
    '"tracepoint:sched:sched_wakeup", fetch: {task: pid}': f", filter: comm == '{NAME}'",
    '"tracepoint:sched:sched_wakeup_new", fetch: {task: pid}': f", filter: comm == '{NAME}'",
    '"tracepoint:sched:sched_switch", fetch: {task: next_pid}': f", filter: next_comm == '{NAME}'",
    'filter: "prev_pid != 0 ': f"&& prev_comm == '{NAME}' ",
}
"""Places in the scheduler's pack, and what is added behind each, so that it records this process alone."""

RUN = ("run", "--config", str(COPY), "--config", str(HERE / "config.yaml"))


def copy_packs() -> None:
    """The packs, but for the waits for a CPU: an emulated machine that records those of all tasks does
    little else, and takes 20 s to answer a scrape."""
    shutil.copytree(PACKS, COPY)
    pack = COPY / "scheduler.yaml"
    text = pack.read_text()
    for place, added in FILTERS.items():
        assert text.count(place) == 1, place
        text = text.replace(place, place + added)
    pack.write_text(text)


def work_for_ever(agent: AgentProcess) -> None:
    """Work until the VM ends; exit if the agent ends."""
    for turn in count():
        if agent.poll() is not None:
            sys.exit(f"the agent ended: {agent.output()}")
        # Not in the first turn: an alert on growth needs a value from before.
        rare = [pack_events.disk] * (turn % 2) + [pack_events.memory] * (turn == 3)
        programs = [pack_events.libc, pack_events.openssl, pack_events.python, pack_events.security]
        for events in (pack_events.network, pack_events.scheduler, *(rare or programs)):
            with events():
                failed_opens()
                seeks_and_renames()
                synced()
                time.sleep(PAUSE)
        if rare:
            failed_sync()


def failed_opens() -> None:
    for _ in range(200):
        with suppress(IsADirectoryError):
            os.open("/", os.O_WRONLY)


def seeks_and_renames() -> None:
    with open("/etc/passwd", "rb") as file:
        for place in range(100):
            os.lseek(file.fileno(), place, os.SEEK_SET)
    for _ in range(20):
        with suppress(OSError):  # the file is missing or not writable
            Path("/nonexistent").rename("/nowhere")


def synced() -> None:
    with open("/tmp/file", "wb") as file:
        for _ in range(10):
            os.fsync(file.fileno())
            os.fdatasync(file.fileno())


def failed_sync() -> None:
    """Call fsync on a device that has no room for what was written to it."""
    with pack_events._small_device() as device:
        fd = os.open(device, os.O_RDWR)
        for place in range(4):
            os.pwrite(fd, bytes(pack_events.MIB), place * pack_events.MIB)
        with suppress(OSError):
            os.fsync(fd)
        os.close(fd)


if __name__ == "__main__":
    copy_packs()
    log = Path("/tmp/agent.log")
    started = AgentProcess(log, main, RUN, complete=False)
    try:
        started.wait_until_serving()
        print(started.output(), flush=True)
        Path("/proc/self/comm").write_text(NAME)
        work_for_ever(started)
    finally:
        print(started.output(), flush=True)
