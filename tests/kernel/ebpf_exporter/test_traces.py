"""Examples that send spans and log records: what a third-party receiver gets, against the kernel's counts."""

import mmap
import os
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.kernel.ebpf_exporter.counted import DIRECTORY, TIMES, at_rest, calls
from tests.support.agent_process import AgentProcess
from tests.support.block_devices import completed, null_block
from tests.support.forked_child import in_a_child, started
from tests.support.patience import eventually
from tests.support.receivers import Rotel, rotel

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = (
    "bio-trace",
    "cfs-throttling-trace",
    "exec-trace",
    "sched-trace",
    "sock-trace",
)

COLLECTOR = "http://localhost:4318"
PORT = 8080
LATENCY = 2000
"""Microseconds that a request to the block device takes."""

Tracing = Callable[[str], AgentProcess]
"""Starts an agent with the example of this name."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Rotel]:
    with rotel(tmp_path) as server:
        yield server


@pytest.fixture
def tracing(start_agent: StartAgent, receiver: Rotel) -> Iterator[Tracing]:
    """The examples unchanged but for the collector's port, because this one may be in use.

    The agent is on CPU 0 and the test on another one: events in interrupts of the agent's threads are not
    recorded.
    """
    free = os.sched_getaffinity(0)

    def start(name: str) -> AgentProcess:
        text = (DIRECTORY / f"{name}.yaml").read_text()
        assert text.count(COLLECTOR) == 1
        os.sched_setaffinity(0, {0})
        agent = start_agent(text.replace(COLLECTOR, receiver.endpoints["http/protobuf"]))
        os.sched_setaffinity(0, {max(free)})
        return agent

    yield start
    os.sched_setaffinity(0, free)


def sent(receiver: Rotel, total: int) -> Counter[str]:
    """How many spans and log records each probe sent, once there are ``total`` of them in all."""

    def names() -> list[str]:
        return receiver.found(r"-> kprobe.name: Str\((\w+)\)")

    # The receiver's output is long, and reading it takes the time that the receiver needs.
    eventually(lambda: len(names()) >= total, pause=1)
    return Counter(names())


def test_programs(tracing: Tracing, receiver: Rotel) -> None:
    agent = tracing("exec-trace")
    for _ in range(TIMES):
        subprocess.run(["/bin/true"], check=True)
    true = os.path.realpath("/bin/true")
    metrics = agent.scrape()
    files = [labels["file"] for labels in metrics.labels("kprobe_program_seconds_count")]
    ran = sum(
        metrics.value("kprobe_program_seconds_count", file=file)
        for file in files
        if os.path.realpath(file) == true
    )
    agent.end()
    sent(receiver, TIMES)
    found = receiver.found(r"-> kprobe.arg.file: Str\((.+)\)")
    assert sum(os.path.realpath(file) == true for file in found) == ran == TIMES


def test_requests_to_a_device_with_a_scheduler(tracing: Tracing, receiver: Rotel) -> None:
    """What the kernel reads of a new device, before it has a scheduler, is in no queue."""
    agent = tracing("bio-trace")
    with null_block(LATENCY) as device:
        Path(f"/sys/block/{device.name}/queue/scheduler").write_text("mq-deadline")
        fd = os.open(device, os.O_RDWR | os.O_DIRECT)
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            for number in range(TIMES):
                os.pwritev(fd, [page], 2 * number * mmap.PAGESIZE)
        os.close(fd)
        requests = completed(device)
        agent.end()  # what is exported gets the device's name, as long as it has one
    assert requests > TIMES
    assert sent(receiver, TIMES + requests) == {"block_queue": TIMES, "block_service": requests}
    assert device.name in receiver.found(r"-> kprobe.arg.dev: Str\((.+)\)")


def test_the_switches_of_a_program(tracing: Tracing, receiver: Rotel) -> None:
    agent = tracing("sched-trace")
    least, most = switches_of_the_shop()
    counted = agent.scrape().total("kprobe_sched_trace_switches_total")
    agent.end()
    assert least <= counted <= most
    records = sent(receiver, round(counted) + TIMES)
    assert records["sched_trace_switch"] == counted
    assert records["sched_trace_wakeup"] >= TIMES
    assert set(receiver.found(r"-> kprobe.arg.program: Str\((.+)\)")) == {"shop"}


def switches_of_the_shop() -> tuple[int, int]:
    """Run a process called shop that sleeps TIMES times; return bounds of how often it gave up its CPU.

    The lower bound is what the process reads of itself while it has the name. The upper one is from before it
    has the name until it is a zombie, and one more: a process may give up its CPU for the last time after its
    parent sees that it has ended.
    """
    read, write = os.pipe()

    def work() -> None:
        unnamed = given_up()
        Path("/proc/self/comm").write_text("shop")
        named = given_up()
        for _ in range(TIMES):
            time.sleep(0.01)
        os.write(write, f"{unnamed} {given_up() - named}".encode())

    pid = started(work)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    ended = given_up(pid)
    assert os.waitpid(pid, 0)[1] == 0
    unnamed, least = map(int, os.read(read, 100).split())
    for fd in (read, write):
        os.close(fd)
    return least, ended - unnamed + 1


def given_up(process: int | str = "self") -> int:
    """How often this process gave up its CPU, of its own will or not (/proc/PID/status)."""
    text = Path(f"/proc/{process}/status").read_text()
    return sum(map(int, re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)))


def test_the_way_of_a_server_s_packets(tracing: Tracing, receiver: Rotel) -> None:
    agent = tracing("sock-trace")
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", PORT)))
        client = stack.enter_context(socket.create_connection(("127.0.0.1", PORT)))
        accepted = stack.enter_context(server.accept()[0])
        for _ in range(TIMES):
            client.sendall(b"x")
            accepted.recv(1)
            accepted.sendall(b"x")
            client.recv(1)
        information = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        # tcpi_segs_out of struct tcp_info (include/uapi/linux/tcp.h), without the listener's SYN-ACK.
        segments = int.from_bytes(information[136:140], "little") + 1
        metrics = agent.scrape()
    passed = {
        labels["at"]: metrics.value("kprobe_sock_trace_events_total", **labels)
        for labels in metrics.labels("kprobe_sock_trace_events_total")
    }
    for function in ("__ip_local_out", "__dev_queue_xmit", "dev_hard_start_xmit"):
        assert passed[function] == segments > TIMES
    assert passed["tcp_v4_do_rcv"] >= TIMES
    agent.end()
    records = sent(receiver, 3 * segments + round(passed["tcp_v4_do_rcv"]))
    for probe in ("sock_trace_out", "sock_trace_transmit", "sock_trace_device"):
        assert records[probe] >= segments  # those of the sockets' end come later
    assert records["sock_trace_release"] == 2  # the server's two


def test_a_cgroup_without_its_quota(tracing: Tracing, receiver: Rotel) -> None:
    agent = tracing("cfs-throttling-trace")
    queues = held_back()
    assert queues > 0
    agent.end()
    assert sent(receiver, queues) == {"cfs_throttled": queues}
    assert set(receiver.found(r"-> kprobe.arg.cgroup: Str\((.+)\)")) == {"traced"}


def held_back() -> int:
    """Let a child compute in a cgroup with a tenth of a CPU; return how often its queues were released."""
    root = Path("/sys/fs/cgroup")
    where = root / "traced"
    (root / "cgroup.subtree_control").write_text("+cpu")
    where.mkdir()
    (where / "cpu.max").write_text("10000 100000")

    def throttled() -> int:
        return int((where / "cpu.stat").read_text().partition("nr_throttled")[2].split()[0])

    def work() -> None:
        (where / "cgroup.procs").write_text("0")
        while throttled() < 3:
            sum(range(10_000))

    with calls("unthrottle_cfs_rq") as made:
        in_a_child(work)
        times = at_rest(made, "unthrottle_cfs_rq")  # the last one may come with the next period
    where.rmdir()
    (root / "cgroup.subtree_control").write_text("-cpu")
    return times
