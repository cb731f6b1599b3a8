"""What agent, scrape and start share: an agent that is a process of its own, and a workload with a pace."""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.checks import require_up

SERVING = re.compile(r"serving metrics at (http://\S+?)/metrics")
TICKS = os.sysconf("SC_CLK_TCK")
RUN = (sys.executable, "-m", "kprobe_exporter", "run")
LOST = "kprobe_exporter_events_lost_total"
DELIVERED = "kprobe_exporter_events_total"
HITS = "kprobe_hits_total"

RETURNS = "[{to: 'tracepoint:syscalls:sys_exit_lseek', fetch: {return: ret}}]"
TIMED = "syscall:lseek"
"""What a probe is attached to: the returns of lseek(2), or its calls with their duration."""


class Workload:
    """A child on a CPU of its own that calls lseek(2); its thread's id is ``tid``."""

    def __init__(self, cpu: int) -> None:
        command = [sys.executable, "-m", "tests.bench.load", str(cpu)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tid = self._child.pid
        assert self._line() == "ready"

    def start(self, rate: int, seconds: float, offsets: int = 100) -> None:
        """So many calls a second, 0 for as many as it can, over so many offsets in turn."""
        assert self._child.stdin is not None
        print(json.dumps((rate, seconds, offsets)), file=self._child.stdin, flush=True)

    def made(self) -> int:
        """The calls that it made, once it has made them."""
        return int(self._line())

    def end(self) -> None:
        self._child.communicate()

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()


@contextmanager
def workloads(count: int = 1) -> Iterator[Sequence[Workload]]:
    """On the machine's last CPUs, one each; the agents have the others."""
    made = [Workload(cpu) for cpu in sorted(os.sched_getaffinity(0))[-count:]]
    try:
        yield made
    finally:
        for each in made:
            each.end()


class Agent:
    """A running agent, seen from outside."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, log: Path) -> None:
        self._process = process
        self.address = address
        self._log = log

    def require_up(self) -> None:
        """Raises Missed unless its probe is up, and was never over a limit."""
        require_up(self.scrape().decode(), self._log.read_text())

    def cpu(self) -> float:
        """Seconds of user and system time so far."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS

    def resident(self) -> float:
        """MB, as VmRSS has it."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6

    def scrape(self, query: str = "", headers: Mapping[str, str] = {}) -> bytes:
        """As a Prometheus without gzip does it: a connection of its own."""
        request = urllib.request.Request(f"{self.address}/metrics{query}", headers=dict(headers))
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: bytes = answer.read()
            return text

    def total(self, name: str) -> int:
        """The sum of a metric's samples."""
        text = self.scrape("?" + urllib.parse.urlencode({"name[]": name})).decode()
        samples = (line for line in text.splitlines() if line.startswith((name + "{", name + " ")))
        return round(sum(float(line.rpartition(" ")[2]) for line in samples))

    def settled(self, name: str, patience: float = 60) -> int:
        """The same once it grows no longer: the agent has read what there was."""
        end, before = time.monotonic() + patience, -1
        while (now := self.total(name)) != before and time.monotonic() < end:
            before = now
            time.sleep(0.3)
        return now


@contextmanager
def agent(config: str, cpus: int = 1) -> Iterator[Agent]:
    """An agent with this configuration that serves, kept off the last ``cpus`` CPUs."""
    with tempfile.TemporaryDirectory() as directory:
        path, log = Path(directory, "config.yaml"), Path(directory, "log")
        path.write_text(config)
        path.chmod(0o600)
        own = ",".join(map(str, sorted(os.sched_getaffinity(0))[:-cpus]))
        command = ["taskset", "--cpu-list", own, *RUN]
        command += ["--config", str(path), "--web.listen-address", "127.0.0.1:0"]
        with log.open("wb") as output, subprocess.Popen(command, stderr=output, stdout=output) as process:
            try:
                while (serving := SERVING.search(log.read_text())) is None:
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.02)
                time.sleep(1)  # What a start leaves to do is not what is measured.
                running = Agent(process, serving[1], log)
                running.require_up()
                yield running
                running.require_up()
            finally:
                process.terminate()


def config(tids: Sequence[int], metric: str, attach: str = RETURNS, /, **settings: str | int) -> str:
    """lseek(2) of these threads, with this metric and no limit; ``settings`` go to the section ``global``."""
    lines = "".join(f"  {name}: {value}\n" for name, value in settings.items())
    only = " || ".join(f"common_pid == {tid}" for tid in tids)
    return f"""
global:
  tracefs_instance: bench_{os.getpid()}
  limit: none
{lines}
probes:
  - name: lseek
    help: Seeking
    attach: {attach}
    limit: none
    filter: "{only}"
    returns: long
    metrics:
      - {metric}
"""


def _work(cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    file = os.memfd_create("bench")
    print("ready", flush=True)
    for line in sys.stdin:
        print(_seek(file, *json.loads(line)), flush=True)


def _seek(file: int, rate: int, seconds: float, offsets: int) -> int:
    """Paced in bursts, one every millisecond."""
    made, start = 0, time.monotonic()
    turn, seek = itertools.cycle(range(offsets)), os.lseek
    while (elapsed := time.monotonic() - start) < seconds:
        due = int(elapsed * rate) - made if rate else 10_000
        for offset in itertools.islice(turn, due):
            seek(file, offset, os.SEEK_SET)
        made += due
        if rate:
            time.sleep(0.001)
    return made


if __name__ == "__main__":
    _work(int(sys.argv[1]))
