"""A saved kernel tells what the running one tells: `doctor --save`, `check --against` and `check --live`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.diagnose.dry_run import DryRunRow, look_each
from kprobe_exporter.diagnose.saved_kernel import load, save, take
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import KernelFiles, running_kernel
from tests.reference.kernels import CONFIGURATIONS, KERNELS, ROOT, series, shipped

FUNCTIONS = vars(Lists)["functions"]
"""As it is before tests.support.read_once puts the running kernel's functions into its place."""

IN_FILE = {kind.value for kind in Kind if kind.in_file}
PACK = ROOT / "examples/packs/scheduler.yaml"


@pytest.fixture(scope="module")
def running(tracefs: Path) -> Iterator[KernelFiles]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lists, "functions", FUNCTIONS)
        yield running_kernel(ReadOnlyTracefs(tracefs))


@pytest.fixture(scope="module")
def live(running: KernelFiles) -> list[list[DryRunRow]]:
    """The rows of each shipped configuration on the running kernel, as `check --live` shows them."""
    return of_the_kernel(look_each(map(shipped, CONFIGURATIONS), running, Symbols(running.tracefs).visible))


def of_the_kernel(tables: list[list[DryRunRow]]) -> list[list[DryRunRow]]:
    """Without the rows of functions of programs, whose files a saved kernel does not tell of."""
    return [[row for row in rows if row.target.partition(":")[0] not in IN_FILE] for rows in tables]


def against(path: Path, configurations: Sequence[Path] = CONFIGURATIONS) -> list[list[DryRunRow]]:
    """The rows of these configurations on a saved kernel, as `check --against` shows them."""
    tables = look_each(map(shipped, configurations), load(path).kernel, lambda: True, programs=False)
    return of_the_kernel(tables)


def test_a_kernel_that_was_saved_now(
    running: KernelFiles, live: list[list[DryRunRow]], tmp_path: Path
) -> None:
    path = tmp_path / "kernel.tar.xz"
    save(take(running), path)
    packs = [n for n, file in enumerate(CONFIGURATIONS) if file.parent == PACK.parent]
    assert packs
    assert against(path, [CONFIGURATIONS[n] for n in packs]) == [live[n] for n in packs]


def test_the_fixture_of_this_kernel(running: KernelFiles, live: list[list[DryRunRow]]) -> None:
    """The fixture that docs/kernels.md is made from is of this kernel, and tells the same."""
    here = os.environ.get("KPROBE_EXPORTER_VM")
    fixtures = {series(path): path for path in KERNELS}
    if here is None:  # a machine's own kernel, of which there is no fixture
        assert running.release not in {load(path).kernel.release for path in KERNELS}
        return
    assert load(fixtures[here]).kernel.release == running.release
    assert against(fixtures[here]) == live


def test_the_commands(running: KernelFiles, tmp_path: Path) -> None:
    path = tmp_path / "kernel.tar.xz"
    saved = CliRunner().invoke(main, ["doctor", "--save", str(path)])
    assert (saved.exit_code, saved.stderr) == (0, "")
    assert saved.stdout.startswith(f"{path}: {running.release} {running.machine}, ")
    against = CliRunner().invoke(main, ["check", "--against", str(path), str(PACK)])
    live = CliRunner().invoke(main, ["check", "--live", str(PACK)])
    assert against.exit_code == live.exit_code
    assert against.stdout.partition("Probe  ")[2] == live.stdout.partition("Probe  ")[2] != ""
