"""Interference with tracing on a real kernel is noticed, logged once, and repaired where possible."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kprobe_exporter.agent import interference
from kprobe_exporter.agent.interference import Fault
from kprobe_exporter.tracefs.definitions import delete
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.removal import soft_trigger_off
from tests.kernel.conftest import StartAgent
from tests.support.leftovers import definitions
from tests.support.patience import eventually
from tests.support.suffering import AGE, CONFIG, DELIVERED, HITS, TIMES, Suffering
from tests.support.system_calls import only_x86
from tests.vm.kernels import FPROBES

pytestmark = [
    pytest.mark.needs("kprobe_events"),
    pytest.mark.skipif("KPROBE_EXPORTER_VM" not in os.environ, reason="not on a machine that is used on"),
]

INSTANCE = "instances/kprobe_exporter"
EVENTS = f"{INSTANCE}/events/kprobe_exporter"


@pytest.fixture
def suffering(start_agent: StartAgent) -> Suffering:
    return Suffering(start_agent(CONFIG))


@contextmanager
def switched_off(path: Path) -> Iterator[None]:
    path.write_text("0")
    try:
        yield
    finally:
        path.write_text("1")


def events_of(probe: str, files: MountedTracefs) -> str:
    """The file that enables a probe's events: a tracepoint's own where the kernel has no eprobes."""
    own = f"events/kprobe_exporter/{probe}/enable"
    return own if (files.root / INSTANCE / own).exists() else "events/syscalls/sys_enter_getppid/enable"


def wrote_0(suffering: Suffering, files: MountedTracefs, file: str, fault: Fault) -> None:
    """Another process writes 0 to a file of the instance, and the agent restores the 1 without a restart.

    Calls in between give no event, and no more hits than calls; then the probes count again.
    """
    path, before = f"{INSTANCE}/{file}", suffering.agent.scrape()
    told = suffering.told(fault)
    probes = [probe for probe in ("ppid", "enters") if file in ("tracing_on", events_of(probe, files))]
    times = 0
    while times < 5:
        times += 1
        files.write(path, "0")
        for _ in range(TIMES):
            os.getppid()
        if not files.read(path).startswith(b"1"):
            break  # it was off all the time, or the agent was faster
        probes = []
    eventually(lambda: files.read(path).startswith(b"1"))
    eventually(lambda: not suffering.holds(fault))
    suffering.is_well()
    after = suffering.agent.scrape()
    assert suffering.noticed(fault) == before.value("kprobe_exporter_faults_total", fault=fault) + times
    assert suffering.told(fault) == told + times
    well = 2 * TIMES
    for probe in probes:
        assert after.value(DELIVERED, probe=probe) - before.value(DELIVERED, probe=probe) == well
        assert after.value(HITS, probe=probe) - before.value(HITS, probe=probe) in (well, well + TIMES)


def test_stopped_and_disabled(suffering: Suffering, files: MountedTracefs) -> None:
    wrote_0(suffering, files, "tracing_on", "tracing_off")
    wrote_0(suffering, files, events_of("ppid", files), "probe_disabled")
    wrote_0(suffering, files, events_of("enters", files), "probe_disabled")


def test_settings_and_filters(suffering: Suffering, files: MountedTracefs) -> None:
    """Another process changes them, as trace-cmd does with -a: the agent sets them again and goes on."""
    suffering.is_well()
    changes = {
        f"{INSTANCE}/trace_clock": "local",
        f"{INSTANCE}/trace_options": "noirq-info",
        f"{INSTANCE}/tracing_cpumask": "1",
        f"{INSTANCE}/buffer_size_kb": "8",
        f"{INSTANCE}/set_event_pid": "1",
        f"{EVENTS}/ppid/filter": "common_pid == 1",
    }
    for path, text in changes.items():
        before = files.read(path)
        files.write(path, text)
        assert files.read(path) != before
        eventually(lambda: files.read(path) == before)  # noqa: B023
        eventually(lambda: not (suffering.holds("setting_changed") or suffering.holds("filter_changed")))
        suffering.is_well()
    assert suffering.noticed("setting_changed") == len(changes) - 1
    assert suffering.noticed("filter_changed") == 1


def test_deleted(suffering: Suffering, files: MountedTracefs, tracefs: Path) -> None:
    """A deleted probe is reinstalled, its counters continue. Enabled ones and the instance give EBUSY."""
    suffering.is_well()
    before = suffering.agent.scrape().value("kprobe_ppid_total")
    with pytest.raises(OSError, match="busy") as refusal:
        files.write("kprobe_events", "-:kprobe_exporter/ppid")
    assert refusal.value.errno == errno.EBUSY
    with pytest.raises(OSError, match="busy"):
        files.rmdir(INSTANCE)
    soft_off = soft_trigger_off("kprobe_exporter", "soft")
    for event, file, text in (("ppid", "enable", "0"), ("soft", "trigger", soft_off)):

        def deleted(event: str = event, file: str = file, text: str = text) -> bool:
            """Linux 7.2 frees a trigger some time after its removal, and until then its event is busy."""
            files.write(f"{EVENTS}/{event}/{file}", text)
            return delete(files, "kprobe_exporter", event) is None

        eventually(deleted)
        eventually(lambda: f"kprobe_exporter/{event} " in definitions(tracefs))  # noqa: B023
    eventually(lambda: not suffering.holds("probe_gone"))
    assert suffering.noticed("probe_gone") == suffering.told("probe_gone") == 2
    suffering.is_well()
    assert suffering.agent.scrape().value("kprobe_ppid_total") >= before + TIMES


def test_another_process_disables_a_probe_again_and_again(
    start_agent: StartAgent, files: MountedTracefs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The agent is forked, so it inherits the patch.
    monkeypatch.setattr(interference, "FIRST_PAUSE", 4.0)
    suffering = Suffering(start_agent(CONFIG))

    def up() -> float:
        return suffering.agent.scrape().value("kprobe_up", probe="ppid")

    def given_up() -> bool:
        files.write(f"{EVENTS}/ppid/enable", "0")
        return up() == 0

    eventually(given_up)
    assert "it is left alone for 4 s" in suffering.agent.output()
    assert suffering.told("probe_disabled") <= interference.REPAIRS + 1
    assert suffering.counts("enters")
    eventually(lambda: up() == 1)
    suffering.is_well()


@pytest.mark.parametrize(
    ("fault", "path"),
    [
        pytest.param("ftrace_off", "/proc/sys/kernel/ftrace_enabled", marks=only_x86),
        ("kprobes_off", "/sys/kernel/debug/kprobes/enabled"),
    ],
)
def test_the_machines_switches(suffering: Suffering, fault: Fault, path: str) -> None:
    """The machine's global switches are reported, not changed; tracepoints keep counting."""
    if not Path(path).exists():
        subprocess.run(["mount", "-t", "debugfs", "nodev", "/sys/kernel/debug"], check=True)
    with switched_off(Path(path)):
        eventually(lambda: suffering.holds(fault))
        before = suffering.agent.scrape()
        assert suffering.counts("enters")
        after = suffering.agent.scrape()
        for name in (HITS, DELIVERED):
            assert after.value(name, probe="ppid") == before.value(name, probe="ppid")
        assert Path(path).read_text() == "0\n"
    eventually(lambda: not suffering.holds(fault))
    assert suffering.noticed(fault) == 1
    suffering.is_well()


def test_tracefs_is_unmounted_under_it(suffering: Suffering, tracefs: Path) -> None:
    """The last counts stay, their age grows, and after the next mount all probes count again."""
    suffering.is_well()
    before = suffering.agent.scrape()
    subprocess.run(["umount", "--lazy", tracefs], check=True)
    try:
        eventually(lambda: suffering.holds("tracefs_gone"))
        eventually(lambda: suffering.agent.scrape()[AGE, frozenset()] > 3)
        during = suffering.agent.scrape()
        for probe in ("ppid", "soft", "enters"):
            assert during.value("kprobe_up", probe=probe) == 1
            assert during.value(HITS, probe=probe) == before.value(HITS, probe=probe)
    finally:
        subprocess.run(["mount", "-t", "tracefs", "nodev", tracefs], check=True)
    eventually(lambda: not suffering.holds("tracefs_gone"))
    assert suffering.told("tracefs_gone") == 2  # at its beginning and at its end
    suffering.is_well()
    assert suffering.agent.scrape()[AGE, frozenset()] < 3


MODULE = "zram"
OTHERS = ("dummy", "loop")
"""Modules that take the place of the unloaded one, so that it returns at another address."""


@pytest.mark.parametrize(
    "kind",
    ["kprobe", pytest.param("fentry", marks=pytest.mark.needs(FPROBES))],
)
def test_a_module_that_goes_and_comes_back(
    start_agent: StartAgent, looks_around: Callable[[], None], kind: str
) -> None:
    subprocess.run(["modprobe", MODULE], check=True)
    suffering = Suffering(start_agent(f"probes: [{{name: shown, attach: '{kind}:{MODULE}:disksize_show'}}]"))

    def counted(more: int) -> bool:
        Path("/sys/block/zram0/disksize").read_text()
        return suffering.agent.scrape().value(HITS, probe="shown") > more

    eventually(lambda: counted(0))
    before = suffering.agent.scrape().value(HITS, probe="shown")
    looks_around()  # the agent must have seen the module loaded once
    subprocess.run(["rmmod", MODULE], check=True)
    subprocess.run(["modprobe", "-a", *OTHERS], check=True)
    eventually(lambda: suffering.holds("module_gone"))
    subprocess.run(["modprobe", MODULE], check=True)
    eventually(lambda: not suffering.holds("module_gone"))
    eventually(lambda: counted(int(before) + 2))
    assert suffering.told("module_gone") == 2
    subprocess.run(["rmmod", MODULE, *OTHERS], check=True)
