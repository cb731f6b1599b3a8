"""A saved kernel tells what the running one tells: `doctor --save`, `check --against` and `check --live`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.diagnose.dry_run import DryRunRow, look_each
from kprobe_exporter.diagnose.saved_kernel import load, save, take
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.symbols.resolve import Resolver
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import KernelFiles, running_kernel
from tests.reference.kernels import CONFIGURATIONS, KERNELS, ROOT, series, shipped

PLACES = vars(Resolver)["places"]
"""As it is before tests.support.read_once puts the running kernel's functions into its place."""

IN_FILE = {kind.value for kind in Kind if kind.in_file}
PACK = ROOT / "examples/packs/scheduler.yaml"


@pytest.fixture(scope="module")
def running(tracefs: Path) -> Iterator[KernelFiles]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Resolver, "places", PLACES)
        yield running_kernel(ReadOnlyTracefs(tracefs))


@pytest.fixture(scope="module")
def live(running: KernelFiles) -> list[list[DryRunRow]]:
    """The rows of each shipped configuration on the running kernel."""
    visible = Symbols(running.tracefs).visible
    return look_each(map(shipped, CONFIGURATIONS), running, visible, programs=False)


def of(path: Path) -> list[list[DryRunRow]]:
    return look_each(map(shipped, CONFIGURATIONS), load(path).kernel, lambda: True, programs=False)


def test_a_kernel_that_was_saved_now(
    running: KernelFiles, live: list[list[DryRunRow]], tmp_path: Path
) -> None:
    path = tmp_path / "kernel.tar.xz"
    save(take(running), path)
    assert of(path) == live


def test_the_fixture_of_this_kernel(running: KernelFiles, live: list[list[DryRunRow]]) -> None:
    """The fixture that docs/kernels.md is made from is of this kernel, and tells the same."""
    here = os.environ.get("KPROBE_EXPORTER_VM")
    fixtures = {series(path): path for path in KERNELS}
    if here is None:  # a machine's own kernel, of which there is no fixture
        assert running.release not in {load(path).kernel.release for path in KERNELS}
        return
    assert load(fixtures[here]).kernel.release == running.release
    assert of(fixtures[here]) == live


def test_the_files_of_programs_change_no_other_row(running: KernelFiles, live: list[list[DryRunRow]]) -> None:
    with_programs = look_each(map(shipped, CONFIGURATIONS), running, Symbols(running.tracefs).visible)
    for there, here in zip(with_programs, live, strict=True):
        assert [row for row in there if row.kind not in IN_FILE] == [
            row for row in here if row.kind not in IN_FILE
        ]


def test_the_commands(running: KernelFiles, tmp_path: Path) -> None:
    path = tmp_path / "kernel.tar.xz"
    saved = CliRunner().invoke(main, ["doctor", "--save", str(path)])
    assert (saved.exit_code, saved.stderr) == (0, "")
    assert saved.stdout.startswith(f"{path}: {running.release} {running.machine}, ")
    against = CliRunner().invoke(main, ["check", "--against", str(path), str(PACK)])
    live = CliRunner().invoke(main, ["check", "--live", str(PACK)])
    assert against.exit_code == live.exit_code
    assert against.stdout.partition("Probe  ")[2] == live.stdout.partition("Probe  ")[2] != ""
