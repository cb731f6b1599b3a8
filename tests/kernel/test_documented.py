"""Each row of the tables in docs/kinds.md, attached as written, sees and gives what the row says."""

import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import has
from tests.kernel import provoked
from tests.kernel.conftest import StartAgent
from tests.kernel.provoked import CONTAINER, GROUPS, IN_POD, POD, SERVICE, SHOP
from tests.support.agent_process import Metrics
from tests.support.compiling import compiled
from tests.support.kernel_ids import kernel_tid
from tests.support.kernel_modules import unload
from tests.support.kinds_document import (
    COMMON,
    DOCUMENT,
    Row,
    decoders,
    kinds,
    probe_of_decoder,
    probe_of_kind,
)
from tests.support.mounts import mounted
from tests.support.patience import eventually
from tests.support.provoked_calls import TIMES, fsyncs_of_a_pipe
from tests.support.system_calls import only_x86
from tests.vm.kernels import FPROBES, HIST

pytestmark = pytest.mark.needs("kprobe_events", "uprobe_events")

NO_FPROBES = "this kernel has no fprobe events (CONFIG_FPROBE_EVENTS)"

SERVER = f"""
__attribute__((noinline)) void handle(void) {{ __asm__ volatile(""); }}
void _start(void) {{
    for (int left = {TIMES}; left; left--) handle();
    __asm__ volatile("syscall" :: "a"(60), "D"(0));
}}
"""


@pytest.fixture
def server() -> Iterator[None]:
    """A program whose code begins with a function, at offset 0x1000 of the file."""
    with mounted(SHOP.parent, "-t", "tmpfs") as where:
        (where / "shop").mkdir()
        compiled(SHOP / "server", SERVER, "-static", "-no-pie", "-nostdlib")
        yield


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[None]:
    """The first loop device, which is 7:0."""
    was_there = Path("/sys/module/loop").exists()
    subprocess.run(["modprobe", "loop"], check=True)
    image = tmp_path / "image"
    image.write_bytes(bytes(1 << 20))
    subprocess.run(["losetup", "/dev/loop0", image], check=True)
    try:
        yield
    finally:
        subprocess.run(["losetup", "-d", "/dev/loop0"], check=True)
        if not was_there:
            unload("loop")


@pytest.fixture
def shop() -> Iterator[None]:
    """The cgroups of a service and of a pod's container, with the log link that a kubelet makes for it."""
    GROUPS.mkdir()
    with mounted(GROUPS, "-t", "cgroup2"), mounted(Path("/var/log"), "-t", "tmpfs") as logs:
        before = {path for path in GROUPS.rglob("*") if path.is_dir()}
        for name in (IN_POD, SERVICE):
            (GROUPS / name).mkdir(parents=True)
        (logs / f"pods/shop_web-1_{POD}/app").mkdir(parents=True)
        (logs / "containers").mkdir()
        link = logs / f"containers/web-1_shop_app-{CONTAINER}.log"
        link.symlink_to(logs / f"pods/shop_web-1_{POD}/app/0.log")
        yield
        made = {path for path in GROUPS.rglob("*") if path.is_dir()} - before
        for path in sorted(made, reverse=True):
            path.rmdir()
    GROUPS.rmdir()


PROVOKED: dict[str, tuple[Callable[[], None], int]] = {
    "kprobe": (provoked.unlinks, TIMES),
    "kprobe at an offset": (provoked.unlinks, TIMES),
    "kprobe in a module": (provoked.loads_of_a_module, 2 * TIMES),
    "kprobe by a pattern": (provoked.unlinks, TIMES),
    "kretprobe": (fsyncs_of_a_pipe, TIMES),
    "fentry": (provoked.unlinks, TIMES),
    "fexit": (provoked.unlinks, TIMES),
    "uprobe": (provoked.resolutions, TIMES),
    "uprobe on a version": (provoked.resolutions, TIMES),
    "uprobe at an offset": (provoked.serves, TIMES),
    "uretprobe": (provoked.resolutions, TIMES),
    "usdt": (provoked.collections, TIMES),
    "usdt by a pattern": (provoked.collections, 2 * TIMES),
    "tracepoint": (fsyncs_of_a_pipe, TIMES),
    "tracepoint by a pattern": (fsyncs_of_a_pipe, 2 * TIMES),
    "call": (provoked.mkdirs, 2 * TIMES),
    "ucall": (provoked.resolutions, TIMES),
    "syscall": (fsyncs_of_a_pipe, TIMES),
    "pair": (provoked.block_reads, TIMES),
    "pair through others": (provoked.block_reads, TIMES),
    "pair with itself": (provoked.block_reads, TIMES - 1),
    "pair of several": (provoked.mkdirs, 2 * TIMES),
}
"""By row: the function that fires its probe, and how often."""

ELSEWHERE = (provoked.serves, provoked.block_reads, provoked.collections)
"""Functions whose events also come from other threads than the one that calls them."""

OFTENER = ("usdt", "usdt by a pattern", "pair with itself")
"""Rows whose probes fire at least as often as is said, because other threads do the same."""


def of(metrics: Metrics, row: Row) -> list[dict[str, str]]:
    """Return the ``kprobe_info`` labels of a row's probes; a pattern has several."""
    every = metrics.labels("kprobe_info")
    return [one for one in every if re.fullmatch(rf"{row.metric}(_.+)?", one["probe"])]


def hits(metrics: Metrics, row: Row) -> float:
    return sum(metrics.value("kprobe_hits_total", probe=one["probe"]) for one in of(metrics, row))


def seen(tracefs: Path, metrics: Metrics, row: Row) -> dict[str, object]:
    """Return what the agent and the kernel show of a row."""
    infos = of(metrics, row)
    names = [one["probe"] for one in infos]
    labels = metrics.labels(f"kprobe_{row.metric}_total")
    known = {name for one in labels for name in one if all(each[name] != "unknown" for each in labels)}
    events = sum(metrics.value("kprobe_exporter_events_total", probe=name) for name in names)
    counted = sum(metrics.value(f"kprobe_{row.metric}_total", **one) for one in labels)
    times = PROVOKED[row.name][1]
    if row.name in OFTENER and events == counted:
        events = counted = min(events, times)
    durations = sum(metrics.value("kprobe_duration_seconds_count", probe=name) for name in names)
    return {
        "kind": {one["kind"] for one in infos},
        "hits": hits(metrics, row) >= times,
        "events": events,
        "counted": counted,
        "hits from": {counter for one in infos for counter in counters(tracefs, one)},
        "misses": any(one["probe"] in names for one in metrics.labels("kprobe_misses_total")),
        "fields": known | ({"duration"} if durations else set()),
    }


def counters(tracefs: Path, info: dict[str, str]) -> Iterator[str]:
    """Yield the ways by which the kernel counts a probe: its profiles, and hist triggers."""
    for profile in ("kprobe_profile", "uprobe_profile"):
        if re.search(rf"^ .*\b{info['probe']} ", (tracefs / profile).read_text(), re.MULTILINE):
            yield profile
    events = [f"{system}/{event}" for system, event in re.findall(r"tracepoint:(\w+):(\w+)", info["target"])]
    events += [f"syscalls/sys_enter_{name}" for name in re.findall(r"syscall:(\w+)", info["target"])]
    events += [f"*/{info['probe']}"]
    instance = tracefs / "instances/kprobe_exporter/events"
    if any("hist:" in file.read_text() for event in events for file in instance.glob(f"{event}/trigger")):
        yield "a hist trigger"


def promised(row: Row) -> dict[str, object]:
    """Return what the document says of a row, in the form of ``seen``."""
    times = PROVOKED[row.name][1]
    counter = row.cells["hits from"].replace("`", "")
    return {
        "kind": {row.codes("kind")[0]},
        "hits": True,
        "events": times,
        "counted": times,
        "hits from": {counter} if counter != "a hist trigger" or has(HIST) else set(),
        "misses": counter == "kprobe_profile" or "kprobe:" in row.code("`attach:`"),
        "fields": {*COMMON, *row.codes("more fields")},
    }


@only_x86
def test_kinds(server: None, loop_device: None, start_agent: StartAgent, tracefs: Path) -> None:
    rows = kinds()
    assert [row.name for row in rows] == list(PROVOKED)
    with ThreadPoolExecutor(1) as other:  # a thread that does only what the test submits
        own = f"common_pid == {other.submit(kernel_tid).result()}"
        probes = [probe_of_kind(row, None if PROVOKED[row.name][0] in ELSEWHERE else own) for row in rows]
        agent = start_agent("probes:\n" + "".join(probes))
        for provoke in dict.fromkeys(provoke for provoke, _ in PROVOKED.values()):
            other.submit(provoke).result()
    if not has(FPROBES):
        assert NO_FPROBES in DOCUMENT.read_text()
        assert agent.output().count(NO_FPROBES) == 2
        rows = [row for row in rows if row.name not in ("fentry", "fexit")]
    with suppress(AssertionError):  # the agent reads the kernel's counts at most once a second
        eventually(lambda: all(hits(agent.scrape(), row) >= PROVOKED[row.name][1] for row in rows), 5)
    metrics = agent.scrape()
    found = {row.name: seen(tracefs, metrics, row) for row in rows}
    assert found == {row.name: promised(row) for row in rows}


DECODED: dict[str, Callable[[], object]] = {
    "errno": provoked.failed_and_other_opens,
    "syscall": os.getppid,
    "signal": provoked.killed_children,
    "hex": provoked.failed_and_other_opens,
    "ksym": lambda: time.sleep(0.001),
    "ksym with the offset": provoked.failed_and_other_opens,
    "usym": provoked.resolutions,
    "ip": provoked.connections,
    "ip of a number": provoked.connections,
    "port": provoked.connections_to_a_port,
    "ifname": provoked.connections,
    "majorminor": provoked.block_reads,
    "majorminor by name": provoked.block_reads,
    "user": provoked.other_users,
    "name": provoked.connections,
    "name of an enum": provoked.connections,
    "map": provoked.failed_and_other_opens,
    "capability": provoked.other_users,
    "family": provoked.connections,
    "protocol": provoked.connections,
    "tcp_state": provoked.connections,
    "open_flags": provoked.failed_and_other_opens,
    "file_mode": provoked.mkdirs,
    "file_mode, octal": provoked.mkdirs,
    "regexp": provoked.programs_in_cgroups,
    "cgroup": provoked.programs_in_cgroups,
    "container": provoked.programs_in_cgroups,
    "container, short": provoked.programs_in_cgroups,
    "pod": provoked.programs_in_cgroups,
    "namespace": provoked.programs_in_cgroups,
    "exe": provoked.programs_in_cgroups,
    "ppid": provoked.programs_in_cgroups,
    "parent_comm": provoked.programs_in_cgroups,
    "exit_code": provoked.killed_children,
    "exit_signal": provoked.killed_children,
    "uid": provoked.programs_in_cgroups,
}
"""By row: the function that makes the decoder give the documented values."""


def test_decoders(loop_device: None, shop: None, start_agent: StartAgent) -> None:
    rows = decoders()
    assert [row.name for row in rows] == list(DECODED)
    if platform.machine() != "x86_64":  # only there the stack begins with the return address
        rows = [row for row in rows if row.name != "ksym with the offset"]
    agent = start_agent("probes:\n" + "".join(map(probe_of_decoder, rows)))
    for provoke in dict.fromkeys(DECODED.values()):
        provoke()
    with suppress(AssertionError):  # the first address loads the kernel's symbols
        eventually(lambda: not any(missing(agent.scrape(), row) for row in rows))
    metrics = agent.scrape()
    print(metrics.text)
    assert {row.name: missing(metrics, row) for row in rows} == {row.name: set() for row in rows}


def missing(metrics: Metrics, row: Row) -> set[str]:
    """Return the documented values that no label has; … in one stands for any text."""
    given = {value for one in metrics.labels(f"kprobe_{row.metric}_total") for value in one.values()}
    documented = {one: re.compile(re.escape(one).replace("…", ".+")) for one in row.codes("gives")}
    return {one for one, pattern in documented.items() if not any(map(pattern.fullmatch, given))}
