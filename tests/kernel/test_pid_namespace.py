"""A PID namespace of its own, as in a container: host's ids are learnt, or the agent says what is unknown."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.kernel_ids import HOST_PROC, in_the_first_namespace
from tests.support.mounts import mounted
from tests.support.patience import patience

APART = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]

# Threads note their ids in the kernel's events: they write one, which is another way than that of `HostIds`.
THREADS = """
import json, os, re, signal, subprocess, sys, threading, time
from tests.support.kernel_ids import kernel_tid

ids = {}

def calls(noted):
    ids[threading.get_native_id()] = kernel_tid()
    noted.set()
    while True:
        os.getppid()
        time.sleep(0.01)

def start():
    noted = threading.Event()
    thread = threading.Thread(target=calls, args=[noted], daemon=True)
    thread.start()
    noted.wait()
    return thread.native_id
"""

ASKED = """
from pathlib import Path
from kprobe_exporter.tracefs import thread_ids
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.leftovers import acquire_for_trace

thread_ids.BATCH = 3
for _ in range(7):
    start()
with acquire_for_trace(MountedTracefs(Path("/sys/kernel/tracing"))) as instance:
    asked = thread_ids.HostIds(instance)
    found = asked.of([*ids, 4_000_000])
    again = asked.of([min(ids)])
print(json.dumps([ids, found, again]))
sys.stdout.flush()
os._exit(0)
"""

TRACED = """
other = os.fork()
if other == 0:
    calls(threading.Event())
first = start()
which = first if OPTION == "-L" else os.getpid()
command = [sys.executable, "-m", "kprobe_exporter", "trace", OPTION, str(which)]
pipe = subprocess.PIPE
trace = subprocess.Popen([*command, "syscalls:sys_enter_getppid"], stdout=pipe, stderr=pipe, text=True)
said = trace.stdout.readline()
start()
seen, lines = set(), 0
while lines < 1000 and (lines < 20 or (OPTION == "-p" and len(seen) < 2)):
    lines += 1
    seen |= set(re.findall(r"-(\\d+) +\\[", trace.stdout.readline()))
trace.send_signal(signal.SIGINT)
seen |= set(re.findall(r"-(\\d+) +\\[", trace.stdout.read()))
errors, status = trace.stderr.read(), trace.wait()
os.kill(other, signal.SIGKILL)
print(json.dumps([ids, kernel_tid(), first, os.getpid(), sorted(map(int, seen)), errors, status]))
sys.stdout.flush()
os._exit(0)
"""

CONFIG = """
global: {tracefs_instance: pid_namespace}
probes:
  - name: executes
    attach: tracepoint:sched:sched_process_exec
    metrics: [{counter: execs_total, labels: {place: {field: tid, decode: cgroup}}}]
"""


def run(command: list[str], script: str) -> list[object]:
    done = subprocess.run(
        [*command, sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=patience(300),
    )
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("command", [[], APART], ids=["here", "apart"])
def test_host_ids_of_threads(command: list[str]) -> None:
    """They are those that the threads' own events have, for more threads than one batch has."""
    ids, found, again = run(command, THREADS + ASKED)
    assert isinstance(ids, dict)
    assert len(ids) == 7
    assert found == ids
    assert again == {min(ids, key=int): ids[min(ids, key=int)]}
    assert (list(ids) == list(map(str, ids.values()))) == (not command and in_the_first_namespace())


@pytest.mark.needs("events/syscalls")
@pytest.mark.parametrize("option", ["-p", "-L"])
def test_trace_translates_ids(option: str) -> None:
    """A process is traced with its later threads. Another process makes the same system calls."""
    ids, main, first, pid, seen, errors, status = run(APART, f"OPTION = {option!r}\n{THREADS}{TRACED}")
    assert isinstance(ids, dict)
    assert status == 0, errors
    assert len(ids) == 2
    assert seen == (sorted(ids.values()) if option == "-p" else [ids[str(first)]])
    own, host = (pid, main) if option == "-p" else (first, ids[str(first)])
    assert f"note: events have the host's thread ids, in which {own} is {host}.\n" in str(errors)


@pytest.mark.parametrize("sees", [False, True], ids=["without", "with"])
def test_agent_reports_unknown_ids_once(tmp_path: Path, sees: bool) -> None:
    """With the host's /proc, at any place, nothing is unknown."""
    host = "/proc" if in_the_first_namespace() else os.environ.get(HOST_PROC)
    if sees and host is None:
        pytest.skip("needs host_proc")
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG)
    config.chmod(0o600)
    place = tmp_path / "a place"
    place.mkdir()
    # An empty directory hides the one that the harness has mounted.
    hidden = Path(os.environ.get(HOST_PROC, place))
    bound = (place, host) if sees and host else (hidden, tmp_path / "a place")
    agent = [sys.executable, "-m", "kprobe_exporter"]
    with mounted(bound[0], "--bind", source=bound[1]):
        doctor = subprocess.run([*APART, *agent, "doctor"], capture_output=True, text=True, check=True).stdout
        assert ("; the host's /proc is at /" in doctor) == sees
        assert ("hostPID: true or docker run --pid=host, or mount the host's /proc" in doctor) != sees
        command = [*APART, *agent, "run", "--config", str(config), "--web.listen-address", "127.0.0.1:0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            lines: list[str] = []
            while not (found := re.search("the status page at (http.*/)$", "".join(lines[-1:]))):
                lines.append(process.stderr.readline())
                assert lines[-1], lines
            with urllib.request.urlopen(found[1]) as answer:
                page = answer.read().decode()
            inner = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(inner[0]), signal.SIGTERM)
            lines += process.stderr.readlines()
        assert process.returncode == 0, lines
    said = "unknown for most threads: place, because events have the host's thread ids"
    assert "".join(lines).count(said) == (not sees)
    assert (said.replace("'", "&#x27;") in page) != sees
