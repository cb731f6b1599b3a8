"""The program of the VM whose status page is photographed: the agent, and varying work."""

import math
import mmap
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

from kprobe_exporter.cli import main
from tests.support.agent_process import AgentProcess

CONFIG = Path(__file__).with_name("status_page.yaml")
PAUSE = 0.5


def work_for_ever(agent: AgentProcess) -> None:
    """Work until the VM ends; exit if the agent ends."""
    for turn in count():
        if agent.poll() is not None:
            sys.exit(f"the agent ended: {agent.output()}")
        opens(round(24 + 16 * math.sin(turn / 11) + 3 * math.sin(turn)))
        reads(round(120 + 70 * math.sin(turn / 29) + 15 * math.sin(turn / 3)) + 200 * (turn % 83 == 60))
        syncs(8 if turn % 40 < 9 else 1)
        connections(turn % 7 if turn % 60 < 30 else 1)
        resolutions(4 if turn % 50 < 12 else turn % 2)
        touches(400)
        if turn % 6 == 0 or turn % 97 < 20:
            subprocess.run(["/bin/true"], check=True)
        time.sleep(PAUSE)


def opens(times: int) -> None:
    for number in range(times):
        with suppress(OSError):
            os.close(os.open("/etc/passwd" if number % 4 else "/nonexistent", os.O_RDONLY))


def reads(times: int) -> None:
    with open("/dev/zero", "rb", buffering=0) as zero:
        for number in range(times):
            zero.read(1 << number % 16)


def syncs(times: int) -> None:
    with open("/tmp/file", "wb", buffering=0) as file:
        for _ in range(times):
            file.write(b"x")
            os.fsync(file.fileno())


def connections(times: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(times):
            socket.create_connection(server.getsockname()).close()
            server.accept()[0].close()


def resolutions(times: int) -> None:
    for _ in range(times):
        socket.getaddrinfo("127.0.0.1", 80)


def touches(pages: int) -> None:
    """Touch new memory, so that each page is a page fault."""
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1


if __name__ == "__main__":
    started = AgentProcess(Path("/tmp/agent.log"), main, ["run", "--config", str(CONFIG)])
    try:
        started.wait_until_serving()
        work_for_ever(started)
    finally:
        print(started.output(), flush=True)
