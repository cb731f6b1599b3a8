"""Each pack of examples/packs comes up, and the events that each probe is for move its metrics."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from tests.kernel import pack_events
from tests.kernel.conftest import StartAgent
from tests.kernel.pack_events import BYTES, CGROUP, HELD, UDP_PORT
from tests.support.agent_process import Metrics
from tests.support.dry_runs import compare, look
from tests.support.patience import eventually
from tests.support.provoked_calls import TIMES
from tests.support.system_calls import of_closed_port

PACKS = Path(__file__).parents[2] / "examples/packs"
NEEDS = dict.fromkeys(("libc", "openssl", "python"), "uprobe_events")
"""What the packs without a kprobe need. That of PostgreSQL, which needs a server, has test_postgresql.py."""


NO_SOCKET = "" if os.uname().release.startswith("5.10.") else "NO_SOCKET"
"""The tracepoint has its field `reason` since Linux 5.17."""


class Moves(NamedTuple):
    """The least growth of a sample, summed over all label sets that have these labels."""

    name: str
    by: float
    labels: dict[str, str]


def moves(name: str, by: float = 1, **labels: str) -> Moves:
    return Moves(f"kprobe_{name}", by, labels)


def took(probe: str, times: int) -> Moves:
    return moves("duration_seconds_count", times, probe=probe)


def failed(probe: str, errno: str, times: int) -> Moves:
    return moves("return_errors_total", times, probe=probe, errno=errno)


PACK: dict[str, dict[str, list[Moves]]] = {
    "network": {
        "tcp_retransmit": [],
        "tcp_retransmit_synack": [],
        "tcp_reset_sent": [moves("hits_total", TIMES, probe="tcp_reset_sent")],
        "tcp_reset_received": [moves("hits_total", 2 * TIMES, probe="tcp_reset_received")],
        "tcp_connect": [took("tcp_connect", 2 * TIMES), failed("tcp_connect", "ECONNREFUSED", TIMES)],
        "connect": [took("connect", 2 * TIMES), failed("connect", "ECONNREFUSED", TIMES)],
        "tcp_handshake": [took("tcp_handshake", TIMES)],
        "packet_drop": [moves("packet_drops_total", TIMES, location=of_closed_port(), reason=NO_SOCKET)],
        "udp_overflow": [moves("udp_overflows_total", TIMES, port=str(UDP_PORT))],
        "tcp_send": [
            moves("tcp_send_bytes_count", TIMES),
            moves("tcp_send_bytes_sum", TIMES * BYTES),
            moves("tcp_send_bytes_bucket", TIMES, le="1024.0"),
        ],
    },
    "disk": {
        "fsync": [took("fsync", 2 * TIMES), failed("fsync", "EINVAL", TIMES)],
        "fdatasync": [
            took("fdatasync", 2 * TIMES),
            failed("fdatasync", "EINVAL", TIMES),
            moves("fsync_errors_total", 2 * TIMES, errno="EINVAL"),
        ],
        "block_io": [
            moves("block_io_seconds_count", TIMES, device="loop0"),
            moves("block_io_bytes_total", TIMES * 4096, device="loop0", operation="read"),
            moves("block_io_bytes_total", TIMES * 4096, device="loop0", operation="write"),
            moves("block_errors_total", device="loop0"),
        ],
        "open": [failed("open", "EISDIR", TIMES), moves("open_errors_total", TIMES, errno="EISDIR")],
        "file_read": [
            moves("return_value_sum", TIMES * BYTES, probe="file_read"),
            moves("return_value_bucket", TIMES, probe="file_read", le="1024.0"),
            failed("file_read", "EISDIR", TIMES),
        ],
        "file_write": [
            moves("return_value_sum", TIMES * BYTES, probe="file_write"),
            moves("return_value_bucket", TIMES, probe="file_write", le="1024.0"),
            failed("file_write", "ENOSPC", TIMES),
        ],
        "file_read_latency": [took("file_read_latency", TIMES)],
        "file_write_latency": [took("file_write_latency", TIMES)],
    },
    "memory": {
        "oom_kill": [moves("oom_kills_total", cgroup=f"/{CGROUP}"), moves("oom_victims_total")],
        "direct_reclaim": [took("direct_reclaim", 1)],
        "memcg_reclaim": [took("memcg_reclaim", 1)],
        "compaction": [took("compaction", 1)],
        "page_fault": [moves("hits_total", 1000, probe="page_fault")],
        "major_fault": [moves("major_faults_total", TIMES)],
    },
    "scheduler": {
        "run_queue": [moves("run_queue_seconds_count", TIMES)],
        "off_cpu": [took("off_cpu", TIMES)],
        "on_cpu": [moves("hits_total", probe="on_cpu")],
        "fork": [moves("hits_total", TIMES, probe="fork")],
        "exec": [moves("execs_total", TIMES, comm="true")],
        "exit": [
            moves("exits_by_signal_total", signal="SIGSEGV", comm="sleep"),
            moves("exits_by_signal_total", signal="SIGKILL", comm="sleep"),
        ],
        "sigkill": [moves("sigkills_total")],
    },
    "security": {
        "module_load": [moves("module_loads_total", module="dummy")],
        "ptrace": [
            moves("ptrace_attaches_total", request="PTRACE_TRACEME", errno="ok"),
            moves("ptrace_attaches_total", request="PTRACE_ATTACH", errno="ESRCH"),
            moves("ptrace_attaches_total", request="PTRACE_SEIZE", errno="ESRCH"),
        ],
        "setuid": [],
        "setresuid": [moves("setuid_calls_total", 2, user="nobody", errno="ok")],
        "mount": [moves("mounts_total", type="tmpfs", errno="ok", comm="mount")],
        "move_mount": [failed("move_mount", "EBADF", 1)],
    },
    "openssl": {
        "ssl_write": [],
        "ssl_write_ex": [
            moves("tls_write_bytes_count", 2 * TIMES),
            moves("tls_write_bytes_sum", 2 * TIMES * BYTES),
            moves("tls_write_bytes_bucket", 2 * TIMES, le="1024.0"),
        ],
        "tls_handshake": [moves("tls_handshake_seconds_count", 4)],
    },
    "libc": {
        "dns_lookup": [took("dns_lookup", TIMES)],
        "libc_lock_wait": [
            # A thread that begins to wait late, on a busy machine, may not have to.
            moves("libc_lock_wait_seconds_count", TIMES - 3),
            moves("libc_lock_wait_seconds_sum", (TIMES - 3) * HELD / 2),
        ],
        "malloc": [moves("malloc_bytes_count", TIMES), moves("malloc_bytes_sum", TIMES * BYTES)],
    },
    "python": {
        "python_gc": [
            moves("python_gc_seconds_count", TIMES, comm="python3", generation="1"),
            moves("python_gc_objects_total", TIMES, comm="python3"),
        ],
        "python_call": [moves("hits_total", TIMES, probe="python_call")],
    },
}
"""By pack and probe: the samples that have to move, in addition to the probe's hits."""


def all_of(pack: str) -> Iterator[Moves]:
    for probe, some in PACK[pack].items():
        yield moves("hits_total", probe=probe)
        yield from some


def too_little(before: Metrics, after: Metrics, some: Iterable[Moves]) -> list[str]:
    """Return the samples that did not move, or by less than they have to."""
    return [
        f"{one.name}{one.labels}: {moved} of {one.by}"
        for one in some
        if (moved := after.total(one.name, **one.labels) - before.total(one.name, **one.labels)) < one.by
    ]


def overruns(found: Metrics) -> float:
    return found.total("kprobe_exporter_events_lost_total", reason="overrun")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.needs(NEEDS.get(path.stem, "kprobe_events")))
        for path in sorted(PACKS.glob("*.yaml"))
        if path.stem != "postgresql"
    ],
)
def test_each_probe_sees_what_it_is_for(
    start_agent: StartAgent, on_cpu: Callable[[int], None], tmp_path: Path, path: Path
) -> None:
    """Each probe sees its events, also the probes that the pack has switched off."""
    on = tmp_path / path.name
    on.write_text(path.read_text().replace("enabled: false", "enabled: true"))
    probes = load([on], DECODERS).probes
    assert [probe.name for probe in probes] == list(PACK[path.stem])
    some = list(all_of(path.stem))
    moving = {one.name for one in some}
    for name in {f"kprobe_{metric.name}" for probe in probes for metric in probe.metrics}:
        assert any(one.startswith(name) for one in moving), name
    rows = look(on)
    assert [row["state"] for row in rows] == ["up"] * len(probes)
    on_cpu(0)
    agent = start_agent(on.read_text())
    before = agent.scrape()
    compare(rows, before)
    on_cpu(1)
    provoke: Callable[[], AbstractContextManager[None]] = getattr(pack_events, path.stem)
    after, lost = before, -1.0
    while too_little(before, after, some) and overruns(after) > lost:  # a slow guest may lose some of them
        lost = overruns(after)
        with provoke(), suppress(AssertionError):  # the kernel's sums are read at most once a second
            eventually(lambda: not too_little(before, agent.scrape(), some), 10)
        after = agent.scrape()
    print(after.text, agent.output())
    assert too_little(before, after, some) == []


@pytest.mark.needs("kprobe_events", "uprobe_events")
def test_the_one_liners(start_agent: StartAgent, on_cpu: Callable[[int], None], tmp_path: Path) -> None:
    on_cpu(0)
    agent = start_agent((PACKS.parent / "one_liners.yaml").read_text())
    before = agent.scrape()
    on_cpu(1)
    statistics = tmp_path / "pgstat.stat"
    statistics.write_text("")
    with pack_events.disk():
        pack_events.sends_after_a_second()
    some = [
        moves("open_stat_total", file=str(statistics)),
        moves("open_to_write_total"),
        moves("hits_total", TIMES, probe="bio_alloc"),
        moves("tcp_init_cwnd_total", segments="10", caller="tcp_write_xmit"),
        moves("hits_total", probe="context_switch"),
    ]
    with suppress(AssertionError):
        eventually(lambda: not too_little(before, agent.scrape(), some), 10)
    after = agent.scrape()
    print(after.text, agent.output())
    assert too_little(before, after, some) == []
