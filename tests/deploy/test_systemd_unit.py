"""The systemd unit: systemd-analyze finds no error, and it is as confined as its README states."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kprobe_exporter.cli.run import run

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy/systemd"
UNIT = "kprobe_exporter.service"
SOCKET = "kprobe_exporter.socket"
PROGRAM = "/opt/kprobe_exporter/bin/kprobe-exporter"
README = (HERE / "README.md").read_text()
RESTART = (HERE / "drop-ins/restart.conf").read_text()
DROP_INS = sorted(path.name for path in (HERE / "drop-ins").glob("*.conf"))


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze. Without it the test is skipped, or fails under CI."""
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("CI"):
            pytest.fail("there is no systemd-analyze")
        pytest.skip("no systemd-analyze: Debian's package systemd has it")
    command = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(params=["", *DROP_INS])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit, alone and with each drop-in; its program is replaced by one that exists."""
    unit = tmp_path / UNIT
    unit.write_text((HERE / UNIT).read_text().replace(PROGRAM, sys.executable))
    if request.param:
        (tmp_path / f"{UNIT}.d").mkdir()
        shutil.copy(HERE / "drop-ins" / request.param, tmp_path / f"{UNIT}.d")
    return unit


def test_verify(unit: Path) -> None:
    """With systemd before 254, the one drop-in that needs it causes two warnings; nothing else causes any."""
    done = analyze("verify", "--man=no", str(unit))
    unknown = {f"Unknown key '{key}'" for key in re.findall(r"^(Restart\w+)=", RESTART, re.MULTILINE)}
    is_old = systemd_version() < 254 and (unit.parent / f"{UNIT}.d/restart.conf").exists()
    warned = set(re.findall(r"Unknown key '\w+'", done.stderr)) if is_old else set()
    assert warned == (unknown if is_old else set())
    others = [
        line for line in (done.stdout + done.stderr).splitlines() if not warned or "Unknown key" not in line
    ]
    assert (done.returncode, others) == (0, [])


def test_socket_unit(tmp_path: Path) -> None:
    (tmp_path / UNIT).write_text((HERE / UNIT).read_text().replace(PROGRAM, sys.executable))
    shutil.copy(HERE / SOCKET, tmp_path)
    done = analyze("verify", "--man=no", str(tmp_path / SOCKET))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def systemd_version() -> int:
    found = re.match(r"systemd (\d+)", analyze("--version").stdout)
    assert found
    return int(found[1])


def test_no_number_of_failures_ends_the_restarts() -> None:
    text = (HERE / UNIT).read_text()
    assert "\nRestart=on-failure\n" in text
    assert "\nStartLimitIntervalSec=0\n" in text


def test_exposure(tmp_path: Path) -> None:
    """The README's figure is exact for the version of systemd that it names; its bound holds for any."""
    found = re.search(r"systemd (\d+): exposure (\d\.\d), .*at most (\d\.\d)", README)
    assert found
    version, exposure, bound = found[1], float(found[2]), float(found[3])
    shutil.copy(HERE / UNIT, tmp_path)
    done = analyze("security", "--offline=true", str(tmp_path / UNIT))
    measured = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    assert measured, done.stderr
    assert float(measured[1]) <= bound
    if analyze("--version").stdout.startswith(f"systemd {version} "):
        assert float(measured[1]) == exposure


def options() -> list[str]:
    """The values of $OPTIONS in the unit and in its environment file, including those commented out there."""
    texts = (HERE / UNIT).read_text(), (HERE / "kprobe_exporter.default").read_text()
    return [
        *re.findall(r'"OPTIONS=(.*)"', texts[0]),
        *re.findall(r'^#?OPTIONS="(.*)"$', texts[1], re.MULTILINE),
    ]


@pytest.mark.parametrize("given", options())
def test_the_command_line_is_one(given: str) -> None:
    [line] = re.findall(rf"^ExecStart={PROGRAM} run (.*)$", (HERE / UNIT).read_text(), re.MULTILINE)
    arguments = shlex.split(line.replace("$OPTIONS", given))
    parsed = run.make_context("run", arguments, resilient_parsing=False)
    assert isinstance(parsed, click.Context)
    assert parsed.params["tracefs"] == Path("/run/kprobe_exporter")
    assert parsed.params["paths"] == (Path("/etc/kprobe_exporter"),)


def test_there_are_options() -> None:
    assert len(options()) == 5


def test_what_is_bound_is_what_is_named() -> None:
    text = (HERE / UNIT).read_text()
    assert "BindPaths=/sys/kernel/tracing:/run/kprobe_exporter\n" in text
    assert "RuntimeDirectory=kprobe_exporter\n" in text  # so that systemd removes the directory at the end


def test_the_files_that_the_readme_installs(tmp_path: Path) -> None:
    """Each of its commands that installs a file is run with another root."""
    commands = re.findall(r"^install (.*) (\S+) (/\S+)$", README, re.MULTILINE)
    assert len(commands) == 4
    for how, source, target in commands:
        subprocess.run(["install", *how.split(), source, f"{tmp_path}{target}"], check=True, cwd=ROOT)
        assert Path(f"{tmp_path}{target}").read_bytes() == (ROOT / source).read_bytes()
    assert (tmp_path / "etc/systemd/system" / UNIT).exists()
    environment = re.search(r"^EnvironmentFile=-(.*)$", (HERE / UNIT).read_text(), re.MULTILINE)
    assert environment
    assert Path(f"{tmp_path}{environment[1]}").exists()


def test_the_readme_puts_the_command_where_shells_look_for_it() -> None:
    """It links the command after pip has installed it where the unit starts it."""
    [environment] = re.findall(r"^python3 -m venv (\S+)$", README, re.MULTILINE)
    assert PROGRAM.startswith(f"{environment}/bin/")
    lines = README.splitlines()
    link = lines.index(f"ln -sf {PROGRAM} /usr/local/bin/")
    assert lines[link - 2 : link] == [
        f"{environment}/bin/pip install --require-hashes --requirement deploy/requirements/runtime.txt",
        f"{environment}/bin/pip install --no-deps .",
    ]


@pytest.mark.parametrize("name", DROP_INS)
def test_the_readme_knows_each_drop_in(name: str) -> None:
    assert f"`drop-ins/{name}`" in README
