"""Every shipped configuration on every saved kernel: what works where is known without booting one."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.config.files import DEFAULT
from tests.reference.kernels import CONFIGURATIONS, KERNELS, ROOT, rows, series, shipped
from tests.vm.kernels import KERNELS as TESTED

LACKING = {("6.1-arm64", "on_cpu")}
"""Probes that a kernel cannot have: that of 6.1 on arm64 cannot follow the stacks of programs."""

DEPLOYED = ROOT / "deploy/kubernetes/base/config/probes.yaml"


def test_every_tested_kernel_is_saved() -> None:
    assert set(map(series, KERNELS)) == set(TESTED)


def test_no_fixture_is_large() -> None:
    assert {path.name for path in KERNELS if path.stat().st_size > 2_000_000} == set()


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
@pytest.mark.parametrize("kernel", KERNELS, ids=series)
def test_each_probe_has_an_alternative(kernel: Path, path: Path) -> None:
    found = rows(kernel)[path]
    down = {row.probe for row in found if row.state == "down"}
    lacking = {row.probe for row in found if (series(kernel), row.probe) in LACKING}
    assert down == lacking, [row for row in found if row.probe in down]
    assert {row.probe for row in found} >= {
        probe.name for probe in shipped(path).probes if not probe.attach[0].target.is_pattern
    }


def test_what_is_deployed_is_the_default() -> None:
    assert DEPLOYED.read_text() == DEFAULT.read_text()


@pytest.mark.parametrize(("kernel", "status"), [("5.10", 1), ("6.12", 0)])
def test_the_exit_status_tells_what_is_down(tmp_path: Path, kernel: str, status: int) -> None:
    """5.10 has no fprobes."""
    config = tmp_path / "config.yaml"
    config.write_text("probes: [{name: read, attach: 'fentry:vfs_read'}]")
    file = next(path for path in KERNELS if series(path) == kernel)
    result = CliRunner().invoke(main, ["check", "--against", str(file), str(config)])
    assert (result.exit_code, result.stderr) == (status, "")
    assert ("down: read" in result.stdout) is bool(status)


@pytest.mark.parametrize("kernel", KERNELS, ids=series)
def test_each_class_of_time_can_be_had(tmp_path: Path, kernel: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("time: {by: [pod], classes: [throttled, reclaim]}")
    result = CliRunner().invoke(main, ["check", "--against", str(kernel), str(config)])
    assert (result.exit_code, result.stderr) == (0, "")
