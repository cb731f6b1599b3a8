"""An agent of a benchmark: a process of its own, with its processor time."""

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.bench.checks import Missed
from tests.support.agent_process import Metrics

PATIENCE = 30.0
SERVING = re.compile(r"serving metrics at (http://\S+?)/metrics")


class RunningAgent:
    """A running agent."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str) -> None:
        self._process, self._address = process, address

    def processor(self) -> float:
        """Return the seconds of the processor that its threads have had."""
        nanoseconds = 0
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            with suppress(OSError):
                nanoseconds += int((task / "schedstat").read_text().split()[0])
        return nanoseconds / 1e9

    def post(self, path: str) -> str:
        return self._answer(urllib.request.Request(f"{self._address}{path}", method="POST"))

    def scrape(self) -> Metrics:
        return Metrics(self._answer(urllib.request.Request(f"{self._address}/metrics")))

    def _answer(self, request: urllib.request.Request) -> str:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            text: str = answer.read().decode()
        return text


@contextmanager
def running_agent(directory: Path, text: str) -> Iterator[RunningAgent]:
    """Yield an agent with this configuration."""
    config, log = directory / "config.yaml", directory / "log"
    config.write_text(text)
    config.chmod(0o600)
    command = [sys.executable, "-m", "kprobe_exporter", "run", "--config", str(config)]
    command += ["--web.listen-address", "127.0.0.1:0", "--web.enable-lifecycle"]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            ends = time.monotonic() + PATIENCE
            while (found := SERVING.search(log.read_text())) is None:
                if process.poll() is not None or time.monotonic() > ends:
                    raise Missed(f"the agent does not serve: {log.read_text()}")
                time.sleep(0.05)
            yield RunningAgent(process, found[1])
        finally:
            process.terminate()
