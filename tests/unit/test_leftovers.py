"""Changes by another program during a test are no leftovers; anything under one of our names is one."""

from pathlib import Path

import pytest

from tests.support.leftovers import definitions, instances, remove

FOREIGN = "p:bcc/p_do_sys_open_1 do_sys_open\n"
OURS = "r23:kprobe_exporter/open do_sys_openat2 return=$retval:s64\n"


@pytest.fixture
def tracefs(tmp_path: Path) -> Path:
    (tmp_path / "instances").mkdir()
    (tmp_path / "dynamic_events").touch()
    return tmp_path


def test_a_foreign_instance_that_appears_is_no_leftover(tracefs: Path) -> None:
    before = instances(tracefs, alone=False)
    (tracefs / "instances/rasdaemon").mkdir()
    assert instances(tracefs, alone=False) == before
    (tracefs / "instances/rasdaemon").rmdir()
    assert instances(tracefs, alone=False) == before


@pytest.mark.parametrize("name", ["kprobe_exporter", "kprobe_exporter_trace_23", "other_agent"])
def test_an_instance_with_a_name_of_ours_is_one(tracefs: Path, name: str) -> None:
    (tracefs / "instances" / name).mkdir()
    assert instances(tracefs, alone=False) == [name]


def test_a_definition_counts_by_its_group(tracefs: Path) -> None:
    (tracefs / "dynamic_events").write_text(FOREIGN + OURS)
    assert definitions(tracefs, alone=False) == OURS


def test_in_a_vm_everything_counts(tracefs: Path) -> None:
    (tracefs / "instances/rasdaemon").mkdir()
    (tracefs / "dynamic_events").write_text(FOREIGN + OURS)
    assert instances(tracefs, alone=True) == ["rasdaemon"]
    assert definitions(tracefs, alone=True) == FOREIGN + OURS


def test_what_a_killed_test_left_is_removed(tracefs: Path) -> None:
    """A foreign instance stays, and a live one, which the kernel does not remove, with its definitions."""
    for name in ("rasdaemon", "other_agent", "kprobe_exporter"):
        (tracefs / "instances" / name).mkdir()
    (tracefs / "instances/kprobe_exporter/trace_pipe").touch()
    defined = FOREIGN + OURS + "p:other_agent/open do_sys_openat2\n"
    (tracefs / "dynamic_events").write_text(defined)
    assert remove(tracefs) == ["instances/other_agent", "other_agent/open"]
    assert sorted(path.name for path in (tracefs / "instances").iterdir()) == ["kprobe_exporter", "rasdaemon"]
    assert (tracefs / "dynamic_events").read_text() == defined + "-:other_agent/open\n"
