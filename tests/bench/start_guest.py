"""Runs in the guest of `tests.bench.start`: starts and stops agents, and makes the kernel do it by itself."""

import itertools
import json
import math
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.tracefs.mount import mounted
from kprobe_exporter.tracefs.removal import soft_trigger
from tests.bench.checks import Missed, require_up
from tests.bench.firing_guest import append

SIZES = (1, 10, 50, 200)
PLANS = ("count", "events", "members")
FUNCTION = re.compile(r"(?:acpi|pci)_[a-z0-9_]+")
"""Built into every kernel, and idle once it has booted: what is measured are starts, not hits."""

REMOVING = re.compile(r"removing (\d+) events from the kernel")

FILTER = "common_pid > 0"
MEMBER = "(sock)$arg1->sk_protocol"
GROUP = "bench"
ROUNDS = 2
PORT = 10435
READY = b"GET /-/ready HTTP/1.0\r\nHost: localhost\r\n\r\n"
PATIENCE = 120


FETCHED = {
    "count": "",
    "events": " comm=$comm:string",
    "members": " member=+0($arg1):u16 pointer=$arg1:x64 comm=$comm:string",
}
"""What the kernel fetches, by plan."""


class Kernel:
    """The writes of a start and nothing else, in an instance of their own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._instance = root / "instances" / GROUP

    def accepted(self, count: int) -> list[str]:
        """The first functions that the kernel lists and lets be probed, with a first parameter of 64 bits."""
        listed = (self._root / "available_filter_functions").read_text().splitlines()
        names = list(filter(FUNCTION.fullmatch, dict.fromkeys(listed)))
        types = KernelTypes(lambda name: Path("/sys/kernel/btf", name).read_bytes())
        prototypes = types.prototypes(names)
        found: list[str] = []
        for name in names:
            parameters = prototypes[name].params if name in prototypes else ()
            if not parameters or not str(parameters[0].type.fetch).endswith("64"):
                continue
            try:
                self._define(name)
            except OSError:
                continue
            self._delete(name)
            found.append(name)
            if len(found) == count:
                return found
        raise LookupError(f"there are only {len(found)} functions to be probed")

    def start(self, plan: str, functions: Sequence[str]) -> tuple[float, float]:
        """The seconds that these probes take, one write after the other, and those of their removal.

        To remove the instance with all on, and then the definitions, takes least.
        """
        self._instance.mkdir()
        began = time.monotonic()
        for name in functions:
            self._define(name, FETCHED[plan])
            event = self._instance / "events" / GROUP / name
            if plan != "count":
                append(event / "filter", FILTER)
                append(event / "enable", "1")
            else:
                append(event / "trigger", soft_trigger(GROUP, name))
        taken = time.monotonic() - began
        on = (self._instance / "set_event").read_text().split()
        if len(on) != len(functions):
            raise Missed(f"{len(on)} of {len(functions)} events are on")
        began = time.monotonic()
        self._instance.rmdir()
        for name in functions:
            self._delete(name)
        return taken, time.monotonic() - began

    def _define(self, name: str, fetch: str = "") -> None:
        append(self._root / "kprobe_events", f"p:{GROUP}/{name} {name}{fetch}")

    def _delete(self, name: str) -> None:
        append(self._root / "kprobe_events", f"-:{GROUP}/{name}")


class Run(NamedTuple):
    """What one run of an agent took."""

    start: float  # seconds until it is ready
    stop: float  # seconds from SIGTERM to its end
    mib: float  # the most memory by the time that it is ready


def config(plan: str, functions: Sequence[str]) -> str:
    """A probe for each function; but for plan count, with a filter and a metric, by comm or also a member."""
    more = ""
    if plan != "count":
        labels = "[comm, member]" if plan == "members" else "[comm]"
        metric = f"{{counter: calls_%s_total, help: Calls., labels: {labels}}}"
        more = f'\n    filter: "{FILTER}"\n    metrics:\n      - {metric}'
    if plan == "members":
        more = f'\n    fetch: {{member: "{MEMBER}"}}{more}'
    probe = "  - name: {0}\n    help: A function\n    attach: kprobe:{0}"
    return "probes:\n" + "\n".join(probe.format(name) + more.replace("%s", name) for name in functions) + "\n"


def agent(path: Path, probes: int) -> Run:
    """Start an agent and stop it. Raises Missed unless all ``probes`` are up, and all are removed."""
    began = time.monotonic()
    command = [sys.executable, "-m", "kprobe_exporter", "run", "--config", str(path)]
    log = path.with_suffix(".log")
    with log.open("wb") as output:
        command += ["--web.listen-address", f"127.0.0.1:{PORT}"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while not _ready():
            if process.poll() is not None or time.monotonic() - began > PATIENCE:
                raise RuntimeError(f"the agent is not ready: {log.read_text()}")
            time.sleep(0.05)
        seconds = time.monotonic() - began
        status = Path(f"/proc/{process.pid}/status").read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=PATIENCE) as answer:
            require_up(answer.read().decode(), log.read_text(), probes)
        began = time.monotonic()
        process.terminate()
        process.wait()
        stop = time.monotonic() - began
        require_removed(log.read_text(), probes)
        return Run(seconds, stop, int(status.partition("VmHWM:")[2].split()[0]) / 1024)
    finally:
        process.terminate()
        process.wait()


def require_removed(log: str, probes: int) -> None:
    """Raises Missed unless an agent's log says that it removed at least so many events, and has stopped."""
    found = REMOVING.search(log)
    if found is None or int(found[1]) < probes or not log.endswith("stopped\n"):
        raise Missed(f"{probes} probes were not removed: {log[-500:]}")


def _ready() -> bool:
    try:
        with socket.create_connection(("127.0.0.1", PORT), PATIENCE) as connection:
            connection.sendall(READY)
            return b" 200 " in connection.makefile("rb").readline()
    except OSError:
        return False


def imports() -> float:
    """The seconds of a process that only imports what an agent does."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import kprobe_exporter.cli.run"], check=True)
    return time.monotonic() - began


def measure() -> dict[str, float]:
    """The best of some rounds, taken in turn: seconds, and MiB, by "WHAT PLAN SIZE"; the imports."""
    path = Path("/tmp/bench.yaml")
    best = {"imports": math.inf}
    with mounted(None) as root:
        kernel = Kernel(root)
        functions = kernel.accepted(max(SIZES))
        for number in range(1, ROUNDS + 1):
            for plan, size in itertools.product(PLANS, SIZES):
                if size == SIZES[0]:
                    best["imports"] = min(best["imports"], imports())
                path.write_text(config(plan, functions[:size]))
                path.chmod(0o600)
                (in_kernel, removal), run = kernel.start(plan, functions[:size]), agent(path, size)
                found = {"kernel": in_kernel, "agent": run.start, "memory": run.mib}
                found |= {"kernel's stop": removal, "stop": run.stop}
                for what, number_of in found.items():
                    key = f"{what} {plan} {size}"
                    best[key] = min(best.get(key, math.inf), number_of)
                took = f"kernel {in_kernel:.2f} s, agent {run.start:.2f} s, {run.mib:.0f} MiB"
                took += f", stop: kernel {removal:.2f} s, agent {run.stop:.2f} s"
                print(f"round {number} of {ROUNDS}, {plan}, {size} probes: {took}", flush=True)
    return best


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(measure()))
