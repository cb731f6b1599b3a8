"""Addresses are shown as the kernel prints them in events that have the addresses as arguments."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kprobe_exporter.identity.threads import Threads
from kprobe_exporter.model.records import VALUES, Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.model.values import Arg
from kprobe_exporter.source.lines import LineParser
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.symbols.lists import parse_functions, parse_symbols
from kprobe_exporter.tracefs.files import MountedTracefs, ReadOnlyTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import install, names_in_use
from tests.conftest import has
from tests.support.pipes import drained
from tests.support.system_calls import entry, function

NAME = "kprobe_exporter_symbols"
PER_PROBE = 60
"""Arguments of one probe, because a definition has less than 4095 bytes."""

WITHOUT_SYSLOG = """
import ctypes, sys
from pathlib import Path
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.symbols.addresses import Symbols
CAP_SYSLOG = 34
libc = ctypes.CDLL(None, use_errno=True)
head = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)()
assert libc.capget(head, data) == 0
data[3] &= ~(1 << CAP_SYSLOG - 32)
data[4] &= ~(1 << CAP_SYSLOG - 32)
assert libc.capset(head, data) == 0
symbols = Symbols(MountedTracefs(Path("/sys/kernel/tracing")))
names = [symbols.name(int(address, 16)) for address in sys.argv[1:]]
print(symbols.visible(), *[name.decode() if name else "-" for name in names])
"""


@pytest.fixture
def instance(files: MountedTracefs) -> Iterator[Instance]:
    with Instance.acquire(files, NAME) as made:
        made.set_up(1024, record_tgid=False)
        yield made


def as_printed(instance: Instance, addresses: list[int]) -> list[bytes]:
    """Return what the kernel prints for these addresses with the type ``symbol``."""
    args = tuple(Arg(f"a{number}", "bare") for number in range(len(addresses)))
    body = " ".join(f"{arg.name}=\\{address:#x}:symbol" for arg, address in zip(args, addresses, strict=True))
    symbol, name = function("getppid"), "printed"
    layout = Layout(0, name, name, "entry", symbol, args)
    of_kprobe = ("kprobe", f"kprobe:{symbol}", symbol, "kprobe_events", "p", f"{symbol} {body}")
    spec = ProbeSpec(name, *of_kprobe, None, layout)
    pipe = instance.open_pipe()
    probe = install(instance, spec, names_in_use(instance))
    try:
        probe.enable()
        os.getppid()
        probe.disable()
        text = os.read(pipe, 65536)
        while not text.endswith(b"\n"):
            text += os.read(pipe, 65536)
    finally:
        os.close(pipe)
        probe.remove()
    (record, *_) = LineParser([probe.layout]).feed(text).records
    return [*record[VALUES:]]


@pytest.mark.needs("kprobe_events")
def test_addresses_are_what_the_kernel_prints(instance: Instance, random: Random) -> None:
    with open("/proc/kallsyms", "rb") as lines:
        known = [*parse_symbols(lines)]
    core = [address for address, _, module in known if module is None]
    modules = [address for address, _, module in known if module is not None]
    symbols = Symbols(instance.files)
    asked = random.sample(core, 120) + random.sample(modules, min(60, len(modules)))
    asked += [address + random.randrange(64) for address in random.sample(core, 120)]
    asked += [0, 0x1000, 0x7F0000000000]
    for start in range(0, len(asked), PER_PROBE):
        some = asked[start : start + PER_PROBE]
        for address, text in zip(some, as_printed(instance, some), strict=True):
            found = symbols.text(address)
            # A module's last symbol ends where the module's memory ends, which kallsyms does not show.
            last = found.endswith(b"]") and found.split(b"/")[0] == text.split(b"/")[0]
            assert last or found == text, hex(address)


def test_without_the_capability(files: MountedTracefs, random: Random) -> None:
    """Without CAP_SYSLOG, the functions whose addresses tracefs lists are known, and no name is wrong."""
    listed = "available_filter_functions_addrs"
    known = Symbols(files)
    asked: list[int] = []
    shown = has(listed) and Symbols(files, Path("/none")).visible()
    if shown:
        starts = [address for address, _, module in parse_functions(files.read(listed)) if module is None]
        asked = random.sample(starts, 300)
        asked += [address + random.randrange(256) for address in random.sample(starts, 300)]
        with open("/proc/kallsyms", "rb") as lines:
            rows = [(address, name) for address, name, _ in parse_symbols(lines)]
        hidden = (entry().encode(), b"arch_rethook_trampoline", b"__schedule")
        asked += [address + 32 for address, name in rows if name in hidden]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SYSLOG, *map(hex, asked)],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
    )
    visible, *found = done.stdout.split()
    assert visible == (b"True" if shown else b"False")
    right = [known.name(address) for address in asked]
    wrong = [(name, real) for name, real in zip(found, right, strict=True) if name not in (b"-", real)]
    # Since 6.2 a function's __pfx_ symbol counts as the end of the function before it; its code never runs.
    assert [pair for pair in wrong if not (pair[1] or b"").startswith(b"__pfx_")] == []
    assert found[:300] == right[:300]
    assert found[300:600].count(b"-") <= 90
    assert set(found[600:]) <= {b"-"}


def test_looking_alone_sees_as_much(files: MountedTracefs, tracefs: Path) -> None:
    nowhere = Path("/none")
    assert Symbols(ReadOnlyTracefs(tracefs), nowhere).visible() == Symbols(files, nowhere).visible()


def test_names_of_kernel_threads_are_those_of_events(instance: Instance) -> None:
    """Names are those of events, though /proc appends a worker's work and shows more of a long name."""
    threads = Threads(instance.files)
    pipe = instance.open_pipe()
    try:
        instance.write("events/sched/sched_switch/enable", "1")
        for _ in range(20):
            os.sync()
            time.sleep(0.05)
        instance.write("events/sched/sched_switch/enable", "0")
        text = drained(pipe)
    finally:
        os.close(pipe)
    seen = set(re.findall(rb"next_comm=(k[^\n=]*|rcu[^\n=]*) next_pid=(\d+) ", text))
    assert any(name.startswith(b"kworker/") for name, _ in seen)
    living = {(name, int(tid)) for name, tid in seen if Path(f"/proc/{int(tid)}").exists()}
    assert {(threads.comm(tid), tid) for _, tid in living} == living


@pytest.mark.needs("initial_pid_namespace")
def test_threads_of_this_machine(files: MountedTracefs) -> None:
    threads = Threads(files)
    assert threads.comm(os.getpid()) == Path("/proc/self/comm").read_bytes().removesuffix(b"\n")
    assert threads.tgid(os.getpid()) == os.getpid()
    assert threads.comm(2) == b"kthreadd"
