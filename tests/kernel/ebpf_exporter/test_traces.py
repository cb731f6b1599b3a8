"""Examples of spans and log records, with a third-party receiver; what it got is compared with counts."""

import mmap
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.kernel.ebpf_exporter.counted import DIRECTORY, TIMES, calls
from tests.support.block_devices import null_block, statistics
from tests.support.forked_child import in_a_child
from tests.support.patience import eventually
from tests.support.receivers import Rotel, rotel

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = ("bio-trace", "cfs-throttling-trace", "exec-trace", "sched-trace", "sock-trace")
COLLECTOR = "http://localhost:4318"
PORT = 8080
LATENCY = 2000


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Rotel]:
    with rotel(tmp_path) as server:
        yield server


def test_spans_and_log_records(start_agent: StartAgent, receiver: Rotel, tmp_path: Path) -> None:
    """One agent has all of them. Its collector's port is another one, because this one may be in use."""
    arguments: list[str] = []
    for name in EXAMPLES:
        text = (DIRECTORY / f"{name}.yaml").read_text()
        assert text.count(COLLECTOR) == 1
        file = tmp_path / f"{name}.yaml"
        file.write_text(text.replace(COLLECTOR, receiver.endpoints["http/protobuf"]))
        file.chmod(0o600)
        arguments += ["--config", str(file)]
    agent = start_agent(None, *arguments)
    before = agent.scrape()
    for _ in range(TIMES):
        subprocess.run(["/bin/true"], check=True)
    switches = sleeps_of_the_shop()
    throttled = held_back()
    written = requests()
    sent = segments()
    after = agent.scrape()
    agent.end()

    def spans(name: str) -> int:
        return len(receiver.found(rf"kprobe.name: Str\(({name})\)"))

    eventually(lambda: spans("block_service") >= TIMES)
    print(receiver.output()[-20_000:])
    true = os.path.realpath("/bin/true")
    files = receiver.found(r"-> kprobe.arg.file: Str\((.+)\)")
    assert sum(os.path.realpath(file) == true for file in files) == TIMES
    assert spans("cfs_throttled") == throttled > 0
    assert spans("block_service") == written
    assert 0 < spans("block_queue") <= written
    shown = receiver.found(r"-> kprobe.arg.program: Str\((shop)\)")
    counted = after.total("kprobe_sched_trace_switches_total")
    assert abs(counted - switches) <= 2
    assert len(shown) >= counted
    passed = {
        at: after.total("kprobe_sock_trace_events_total", at=at)
        - before.total("kprobe_sock_trace_events_total", at=at)
        for at in ("__ip_local_out", "__dev_queue_xmit", "dev_hard_start_xmit", "tcp_v4_do_rcv")
    }
    assert passed["__ip_local_out"] >= sent
    assert passed["__dev_queue_xmit"] >= sent
    assert passed["tcp_v4_do_rcv"] >= TIMES


def sleeps_of_the_shop() -> int:
    """Run a process called shop that sleeps TIMES times; return how often it gave up its CPU."""
    read, write = os.pipe()

    def work() -> None:
        Path("/proc/self/comm").write_text("shop")
        begun = given_up()
        for _ in range(TIMES):
            wait_for_a_child()
        os.write(write, str(given_up() - begun).encode())

    in_a_child(work)
    switches = int(os.read(read, 100))
    for fd in (read, write):
        os.close(fd)
    return switches


def wait_for_a_child() -> None:
    """Wait for a child, which takes a sleep."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def given_up() -> int:
    """How often this process gave up its CPU, of its own will or not (/proc/PID/status)."""
    text = Path("/proc/self/status").read_text()
    return sum(map(int, re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)))


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
        before = -1
        while before != (times := made()["unthrottle_cfs_rq"]):  # the last one may come with the next period
            before = times
            time.sleep(0.3)
    where.rmdir()
    (root / "cgroup.subtree_control").write_text("-cpu")
    return times


def requests() -> int:
    """Write to a device that has a scheduler; return how many requests it completed."""
    with null_block(LATENCY) as device:
        Path(f"/sys/block/{device.name}/queue/scheduler").write_text("mq-deadline")
        fd = os.open(device, os.O_RDWR | os.O_DIRECT)
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            for number in range(TIMES):
                os.pwritev(fd, [page], 2 * number * mmap.PAGESIZE)
        os.close(fd)
        fields = statistics(device)
        return fields[0] + fields[4]


def segments() -> int:
    """Send from a server on PORT; return how many segments its connection sent."""
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
        return int.from_bytes(information[136:140], "little")
