"""Addresses as the kernel itself prints them: it is asked by events whose arguments are addresses."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kprobe_exporter.identity.threads import Threads
from kprobe_exporter.model import VALUES, Arg, Layout, ProbeSpec
from kprobe_exporter.source.lines import LineParser
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import install, names_in_use
from kprobe_exporter.tracefs.symbols import Symbols, parse_symbols
from tests.conftest import has

NAME = "kprobe_exporter_symbols"
PER_PROBE = 60
"""Arguments of a probe: a definition has less than 4095 bytes."""

WITHOUT_SYSLOG = """
import ctypes, sys
from pathlib import Path
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.symbols import Symbols
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
    """What the kernel prints of these addresses with the type ``symbol``."""
    args = tuple(Arg(f"a{number}", "bare") for number in range(len(addresses)))
    body = " ".join(f"{arg.name}=\\{address:#x}:symbol" for arg, address in zip(args, addresses, strict=True))
    symbol = "__x64_sys_getppid"
    layout = Layout(0, "printed", "printed", "entry", symbol, args)
    spec = ProbeSpec(
        "printed",
        "kprobe",
        f"kprobe:{symbol}",
        symbol,
        "kprobe_events",
        "p",
        f"{symbol} {body}",
        None,
        layout,
    )
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
            # A module's last symbol ends where its memory does, which kallsyms does not tell.
            last = found.endswith(b"]") and found.split(b"/")[0] == text.split(b"/")[0]
            assert last or found == text, hex(address)


def test_without_the_capability(files: MountedTracefs) -> None:
    """Functions that tracefs lists are known, where it lists addresses; else nothing is."""
    listed = "available_filter_functions_addrs"
    addresses: list[int] = []
    names: list[bytes] = []
    shown = has(listed) and Symbols(files, Path("/none")).visible()
    if shown:
        rows = [*parse_symbols(files.read(listed).splitlines())][:2000:200]
        addresses, names = [row[0] for row in rows], [row[1] for row in rows]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SYSLOG, *map(hex, addresses)],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
    )
    visible, *found = done.stdout.split()
    assert visible == (b"True" if shown else b"False")
    assert found == names


def test_threads_of_this_machine(files: MountedTracefs) -> None:
    threads = Threads(files.read)
    assert threads.comm(os.getpid()) == Path("/proc/self/comm").read_bytes().rstrip(b"\n")
    assert threads.tgid(os.getpid()) == os.getpid()
    assert threads.comm(2) == b"kthreadd"
