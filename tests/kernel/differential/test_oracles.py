"""bpftrace and the kernel's own profile, beside the agent, count what the load says that it did."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kprobe_exporter.tracefs.profile import parse_profile, parse_uprobe_profile
from tests.kernel.conftest import StartAgent
from tests.kernel.differential.cases import draw, merged
from tests.kernel.differential.expected import expected
from tests.kernel.differential.load import Firing, Load
from tests.kernel.differential.points import POINTS
from tests.kernel.differential.probes import Fetch, Metric, Probe, configuration
from tests.kernel.differential.run import Runner
from tests.support.bpftrace_process import end
from tests.support.patience import eventually, patience
from tests.support.system_calls import function

pytestmark = pytest.mark.needs("kprobe_events")

SEEDS = range(20, 40)
ROW = re.compile(r"^@(\w+): (-?\d+)$", re.MULTILINE)
VALUE = (Fetch("value", "s64"),)
PROBES = (
    Probe("value", "uprobe", "take_value", VALUE, metrics=(Metric("counter", "values_total"),)),
    Probe("counted", "uprobe", "take_value"),
    Probe("deeper", "uretprobe", "go_deeper", returns="long"),
    Probe("leap", "uprobe", "leap_out"),
    Probe("fsuid", "kprobe", "setfsuid"),
    Probe("chroot", "kretprobe", "chroot", returns="int"),
    Probe("priority", "kprobe", "getpriority", metrics=(Metric("counter", "priorities_total"),)),
)
# Its kretprobe would have the kernel's default of instances, as many as CPUs, and miss calls that wait.
PROGRAM = """
uprobe:{load}:take_value {{ @take_value = count(); @values = sum(arg0 & 255); }}
uretprobe:{load}:go_deeper {{ @go_deeper = count(); }}
uprobe:{load}:leap_out {{ @leap_out = count(); }}
kprobe:{setfsuid} {{ @setfsuid = count(); }}
kprobe:{chroot} {{ @chroot = count(); }}
tracepoint:syscalls:sys_enter_getpriority {{ @getpriority = count(); }}
interval:ms:100 {{ if (@live == 0) {{ printf("live\\n"); @live = 1; }} }}
"""


@contextmanager
def bpftrace(program: str, log: Path) -> Iterator[None]:
    """Run a program of bpftrace while the context lasts; at its end it prints its maps into the log."""
    with (
        log.open("w") as output,
        subprocess.Popen(["bpftrace", "-e", program], stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            eventually(lambda: "live" in log.read_text() or process.poll() is not None, 60)
            assert process.poll() is None, log.read_text()
            yield
        finally:
            end(process, patience(30))


def test_bpftrace_and_the_profile_count_the_same(
    start_agent: StartAgent, tmp_path: Path, tracefs: Path
) -> None:
    load = Load.build(tmp_path)
    agent = start_agent(configuration(PROBES, str(load.program)))
    operations = merged([draw(seed, fprobes=False) for seed in SEEDS], 0).operations
    log = tmp_path / "bpftrace.log"
    names = {name: function(name) for name in ("setfsuid", "chroot")}
    with bpftrace(PROGRAM.format(load=load.program, **names), log):
        firings = load.run(operations)
    counted = {name: int(number) for name, number in ROW.findall(log.read_text()) if int(number)}
    assert counted | {"live": 1} == by_point(firings) | {"live": 1}
    wrong = Runner(agent, tmp_path / "config0.yaml", load).settled(expected([(PROBES, firings)]))
    assert wrong == []
    profile = {name: counts.hits for name, counts in parse_profile((tracefs / "kprobe_profile").read_text())}
    of_programs = parse_uprobe_profile((tracefs / "uprobe_profile").read_text())
    profile |= {name: hits for _, name, hits in of_programs}
    agents = agent.scrape()
    assert {probe.name: profile[probe.name] for probe in PROBES} == {
        probe.name: agents.value("kprobe_hits_total", probe=probe.name) for probe in PROBES
    }


def by_point(firings: list[Firing]) -> dict[str, int]:
    """What the program counts of these calls, without the points that were not reached."""
    wanted = set(re.findall(r"@(\w+) = count", PROGRAM)) & POINTS.keys()
    counts = Counter(firing.point for firing in firings if firing.point in wanted)
    values = sum(firing.a & 255 for firing in firings if firing.point == "take_value")
    return {**counts, "values": values}
