"""Aggregation in the kernel gives the same numbers as events, and writes no event."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import fresh
from tests.support.kernel_ids import kernel_tid
from tests.support.provoked_calls import TIMES, fsyncs_of_a_pipe, getppid, opens_of_a_missing_file
from tests.support.system_calls import of_fsync
from tests.vm.kernels import HIST

pytestmark = pytest.mark.needs("kprobe_events")

BOUNDS = ("0.0", "1.0", "4.0", "16.0", "256.0", "4096.0", "+Inf")
FAR, MANY = 2**62, 50
SIZES = (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 255, 256, 257, 4096, 4097, 65536)


@pytest.fixture
def tid(other: ThreadPoolExecutor) -> int:
    return other.submit(kernel_tid).result()


@pytest.mark.parametrize(
    "attach",
    ["kretprobe:do_sys_openat2", '{to: "tracepoint:syscalls:sys_exit_openat", fetch: {return: ret}}'],
)
def test_failed_opens_of_one_thread(
    start_agent: StartAgent,
    other: ThreadPoolExecutor,
    tid: int,
    entries: Callable[[], list[int]],
    attach: str,
) -> None:
    agent = start_agent(f"""
probes:
  - name: open
    attach: [{attach}]
    aggregate: kernel
    filter: "return < 0 && common_pid == {tid}"
    metrics:
      - counter: open_errors_total
        labels: {{errno: {{field: return, decode: errno}}, comm: comm}}
      - counter: opens_total
        labels: {{tid: tid}}
      - counter: far_total
        where: "cpu < 0"
""")
    before = entries()
    other.submit(opens_of_a_missing_file).result()
    metrics = fresh(agent)
    (labels,) = metrics.labels("kprobe_open_errors_total")
    assert labels["errno"] == "ENOENT"
    assert metrics.value("kprobe_open_errors_total", **labels) == TIMES
    assert metrics.value("kprobe_opens_total", tid=str(tid)) == TIMES
    assert metrics.value("kprobe_far_total") == 0
    assert metrics.value("kprobe_return_errors_total", probe="open", errno="ENOENT") == TIMES
    assert metrics.value("kprobe_return_value_count", probe="open") == 0
    assert metrics.value("kprobe_exporter_events_total", probe="open") == TIMES
    assert metrics.value("kprobe_hits_total", probe="open") >= TIMES
    plan = "kernel" if has(HIST) else "events"
    assert [labels["plan"] for labels in metrics.labels("kprobe_info")] == [plan]
    other.submit(opens_of_a_missing_file).result()
    assert fresh(agent).value("kprobe_opens_total", tid=str(tid)) == 2 * TIMES
    assert plan == "events" or entries() == before


def reads_and_a_failure() -> None:
    device = os.open("/dev/zero", os.O_RDONLY)
    for size in SIZES:
        os.read(device, size)
    os.close(device)
    directory = os.open("/", os.O_RDONLY)
    for _ in range(3):
        with pytest.raises(IsADirectoryError):
            os.read(directory, 10)
    os.close(directory)


@pytest.mark.parametrize("returns", ["ssize_t", "long"])
def test_both_plans_tell_the_same(
    start_agent: StartAgent, other: ThreadPoolExecutor, tid: int, returns: str
) -> None:
    probe = """
  - name: {name}
    attach: kretprobe:vfs_read
    aggregate: {name}
    returns: {returns}
    filter: "common_pid == {tid}"
    return_buckets: [0, 1, 4, 16, 256, 4096]
    metrics:
      - {{histogram: {name}_bytes, value: return, labels: [tid], buckets: [0, 1, 4, 16, 256, 4096]}}
      - {{histogram: {name}_kib, value: return, scale: 0.0009765625, buckets: [0.25, 4]}}
      - {{histogram: {name}_tens, value: return, labels: [tid], buckets: [0, 9, 19, 259]}}
      - {{counter: {name}_sum_total, value: return, scale: 512}}
      - {{counter: {name}_calls_total, labels: {{returned: return}}}}
"""
    both = "".join(probe.format(name=name, returns=returns, tid=tid) for name in ("kernel", "events"))
    agent = start_agent(f"probes:{both}")
    other.submit(reads_and_a_failure).result()
    text = fresh(agent)

    def told(name: str) -> dict[str, float]:
        found = {}
        for (sample, labels), value in text.items():
            of = dict(labels)
            if of.get("probe") == name and sample.startswith(("kprobe_return", "kprobe_exporter_events")):
                found[f"{sample} {sorted({**of, 'probe': ''}.items())}"] = value
            elif sample.startswith(f"kprobe_{name}_"):
                found[f"{sample.removeprefix(f'kprobe_{name}')} {sorted(of.items())}"] = value
        return found

    kernel = told("kernel")
    assert kernel == told("events")
    assert text.value("kprobe_kernel_bytes_count", tid=str(tid)) == len(SIZES) + 3
    assert text.value("kprobe_kernel_bytes_sum", tid=str(tid)) == sum(SIZES) - 3 * 21
    assert text.value("kprobe_return_value_sum", probe="kernel") == sum(SIZES)
    assert text.value("kprobe_return_errors_total", probe="kernel", errno="EISDIR") == 3
    assert [text.value("kprobe_return_value_bucket", probe="kernel", le=le) for le in BOUNDS] == [
        sum(size <= float(le) for size in SIZES) for le in BOUNDS
    ]
    assert text.value("kprobe_exporter_events_lost_total", reason="negative") == 6


def test_errors_of_a_function_that_returns_int(
    start_agent: StartAgent, other: ThreadPoolExecutor, tid: int
) -> None:
    agent = start_agent(f"""
probes:
  - name: fsync
    attach: kretprobe:{of_fsync()}
    aggregate: kernel
    returns: int
    filter: "common_pid == {tid}"
    metrics:
      - counter: fsyncs_total
        labels: {{errno: {{field: return, decode: errno}}, comm: comm}}
""")
    other.submit(fsyncs_of_a_pipe).result()
    metrics = fresh(agent)
    assert metrics.value("kprobe_return_errors_total", probe="fsync", errno="EINVAL") == TIMES
    (labels,) = metrics.labels("kprobe_fsyncs_total")
    assert labels["errno"] == "EINVAL"
    assert metrics.value("kprobe_fsyncs_total", **labels) == TIMES
    assert metrics.value("kprobe_return_value_count", probe="fsync") == 0


@pytest.mark.needs(HIST)
def test_a_full_table_tells_what_it_lost(
    start_agent: StartAgent, other: ThreadPoolExecutor, tid: int
) -> None:
    agent = start_agent(f"""
global: {{max_series: 30}}
probes:
  - name: read
    attach: kretprobe:vfs_read
    aggregate: kernel
    returns: ssize_t
    filter: "common_pid == {tid}"
    metrics:
      - {{counter: reads_total, labels: [return]}}
""")

    def reads() -> None:
        device = os.open("/dev/zero", os.O_RDONLY)
        for size in range(1, 401):
            os.read(device, size)
        os.close(device)

    other.submit(reads).result()
    metrics = fresh(agent)
    counted = metrics.total("kprobe_reads_total")
    lost = metrics.value("kprobe_exporter_events_lost_total", reason="table_full")
    assert lost > 0
    assert counted + lost == 400
    assert metrics.value("kprobe_exporter_events_total", probe="read") == counted
    assert metrics.value("kprobe_return_value_count", probe="read") == 400


def test_a_hostile_name_is_a_name(start_agent: StartAgent, other: ThreadPoolExecutor, tid: int) -> None:
    agent = start_agent(f"""
probes:
  - name: open
    attach: kretprobe:do_sys_openat2
    aggregate: kernel
    filter: "return < 0 && common_pid == {tid}"
    metrics:
      - counter: open_errors_total
        labels: [comm]
      - counter: opens_total
        labels: {{comm: comm, errno: return}}
""")
    names = [b"plain", b"x }\nhitcount: 9", b"\nTotals:\n", b"# event histog", b"a }, {", b"\xff\xfe", b"\n"]

    def opens() -> None:
        comm = Path("/proc/thread-self/comm")
        for name in names:
            comm.write_bytes(name)
            opens_of_a_missing_file()

    other.submit(opens).result()
    metrics = fresh(agent)
    # A write to `comm` is cut at 15 bytes, and keeps newlines; labels have them escaped.
    shown = [name.decode(errors="backslashreplace").replace("\n", "\\n") for name in names]
    assert sorted(labels["comm"] for labels in metrics.labels("kprobe_open_errors_total")) == sorted(shown)
    for name in shown:
        assert metrics.value("kprobe_open_errors_total", comm=name) == TIMES
        assert metrics.value("kprobe_opens_total", comm=name, errno="-2") == TIMES
    assert metrics.value("kprobe_exporter_events_total", probe="open") == len(names) * TIMES
    assert metrics.value("kprobe_exporter_events_lost_total", reason="table_full") == 0


def test_probes_on_one_tracepoint_do_not_meet(
    start_agent: StartAgent, entries: Callable[[], list[int]]
) -> None:
    """The second probe would need the same triggers, so it takes an eprobe; both count alone."""
    tid = kernel_tid()
    probe = """
  - name: {}
    attach: tracepoint:syscalls:sys_exit_getppid
    fetch: {{return: ret}}
    filter: "common_pid == {}"
    aggregate: kernel
    metrics: [{{counter: {}_total}}]
"""
    agent = start_agent(
        "probes:"
        + "".join(probe.format(name, tid, name) for name in ("one", "two"))
        + """
  - name: all
    attach: tracepoint:syscalls:sys_exit_getppid
"""
    )
    before = entries()
    getppid()
    metrics = fresh(agent)
    for name in ("one", "two"):
        assert metrics.value(f"kprobe_{name}_total") == TIMES
        assert metrics.value("kprobe_hits_total", probe=name) == TIMES
        assert metrics.value("kprobe_exporter_events_total", probe=name) == TIMES
        assert metrics.value("kprobe_return_value_count", probe=name) == TIMES
    assert metrics.value("kprobe_hits_total", probe="all") == TIMES
    assert entries() == before


def test_sums_beyond_64_bits(start_agent: StartAgent, tid: int, other: ThreadPoolExecutor) -> None:
    """Within one reading of the kernel's tables, whose sums have 64 bits."""
    agent = start_agent(f"""
probes:
  - name: seeks
    attach: kprobe:sys_lseek
    fetch: {{offset: "$arg2:u64"}}
    filter: "common_pid == {tid} && offset >= {FAR}"
    aggregate: kernel
    metrics:
      - {{counter: offsets_total, value: offset, labels: [tid]}}
      - {{histogram: offset, value: offset, buckets: [1, {FAR}]}}
""")

    def seek() -> None:
        for number in range(MANY):
            with pytest.raises(OSError, match="Illegal seek"):
                os.lseek(pipe, FAR + number, os.SEEK_SET)

    pipe, write = os.pipe()
    other.submit(seek).result()
    metrics = fresh(agent)
    total = float(sum(FAR + number for number in range(MANY)))
    assert metrics.value("kprobe_offsets_total", tid=str(tid)) == total
    assert metrics.value("kprobe_offset_sum") == total
    assert metrics.value("kprobe_offset_count") == MANY
    os.close(pipe)
    os.close(write)
