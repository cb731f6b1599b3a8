"""Probes that are tried: what came of each, and what stays of them in the kernel."""

from pathlib import Path

import pytest

from kprobe_exporter.config.model import Attach, Config, Probe, Settings
from kprobe_exporter.diagnose import trial
from kprobe_exporter.diagnose.trial import attempt
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.model.snapshot import ShownState
from kprobe_exporter.tracefs.kernel_files import running_kernel
from tests.support.compiling import compiled
from tests.support.fake_tracefs import FakeTracefs

EXEC = "tracepoint:sched:sched_process_exec"


@pytest.fixture
def fake(tmp_path: Path) -> FakeTracefs:
    """A kernel without lists of its functions, so that only trying tells."""
    (tmp_path / "tracefs").mkdir()
    return FakeTracefs(tmp_path / "tracefs", {"vfs_read"})


def states(fake: FakeTracefs, root: Path, *probes: Probe) -> dict[str, ShownState]:
    rows = attempt(Config(Settings(), probes), running_kernel(fake, root), lambda: True)
    return {row.probe: row.state for row in rows}


def probe(name: str, *to: str, enabled: bool = True, optional: bool = False) -> Probe:
    ways = tuple(Attach(parse_target(text), {}, None, None) for text in to)
    return Probe(name, "help", ways, enabled=enabled, optional=optional)


def test_states(fake: FakeTracefs, tmp_path: Path) -> None:
    found = states(
        fake,
        tmp_path,
        probe("there", "kprobe:vfs_read"),
        probe("missing", "kprobe:nothing"),
        probe("second", "kprobe:nothing", EXEC),
        probe("optional", "kprobe:nothing", optional=True),
        probe("off", "kprobe:vfs_read", enabled=False),
    )
    assert found == {
        "there": "up",
        "missing": "down",
        "second": "up",
        "optional": "absent",
        "off": "disabled",
    }


def test_nothing_stays(fake: FakeTracefs, tmp_path: Path) -> None:
    states(fake, tmp_path, probe("there", "kprobe:vfs_read"), probe("tracepoint", EXEC))
    assert not fake.events
    assert not fake.instances


def test_enabled_and_not_recorded(fake: FakeTracefs, tmp_path: Path) -> None:
    states(fake, tmp_path, probe("there", "kprobe:vfs_read"))
    writes = [(path.rpartition("/")[2], text) for path, text in fake.writes]
    defined = next(at for at, (name, _) in enumerate(writes) if name == "kprobe_events")
    enabled = next(at for at, (_, text) in enumerate(writes) if text.startswith("enable_event"))
    assert writes.index(("tracing_on", "0")) < defined < enabled
    assert ("tracing_on", "1") not in writes[defined:]


def test_return_probe_in_a_program_is_not_enabled_where_it_may_kill(
    fake: FakeTracefs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "uretprobe_hazard", lambda release, machine: "a filter may kill")
    program = compiled(tmp_path / "program", "int main(void) { return 0; }")
    made = probe("p", f"uretprobe:{program}:main")
    [row] = attempt(Config(Settings(), (made,)), running_kernel(fake, tmp_path), lambda: True)
    assert (row.state, row.why[-1]) == ("up", "it was defined and not enabled, as a filter may kill")
    assert not [text for _, text in fake.writes if text.startswith("enable_event")]
