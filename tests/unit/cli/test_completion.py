"""cli.completion: the shells' scripts, the answers to them, and how bash splits words at colons."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import COMMANDS, main
from kprobe_exporter.cli.completion import MOST_PLACES, PROGRAM, SHELLS, VARIABLE
from kprobe_exporter.trace.request import parse_request
from kprobe_exporter.tracefs.mount import Mount
from tests.unit.symbols.listing.conftest import FILES

NAMES = "available_filter_functions", "available_events"
VFS = "vfs_open", "vfs_read", "vfs_write"


@pytest.fixture
def tracefs(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).write_text(FILES[f"tracing/{name}"], encoding="latin-1")
    return tmp_path


def completed(line: str, shell: str = "bash") -> list[str]:
    """Return the types and values that a shell is given whose cursor is at the end of the line."""
    words = line.split(" ")
    environment = {VARIABLE: f"{shell}_complete", "COMP_LINE": line, "COMP_WORDS": line}
    environment["COMP_CWORD"] = words[-1] if shell == "fish" else str(len(words) - 1)
    result = CliRunner().invoke(main, [], prog_name=PROGRAM, env=environment)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(main, ["--print-completion", shell])
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"{VARIABLE}={shell}_complete" in result.stdout
    assert PROGRAM in result.stdout


def test_a_shell_that_is_not_known() -> None:
    result = CliRunner().invoke(main, ["--print-completion", "tcsh"])
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


def test_commands_without_importing_one() -> None:
    assert completed("kprobe-exporter ") == [f"plain,{name}" for name in COMMANDS]
    assert completed("kprobe-exporter do") == ["plain,doctor"]
    code = f"import sys; from kprobe_exporter.cli import main; main(prog_name={PROGRAM!r})"
    environment = {**os.environ, VARIABLE: "bash_complete", "COMP_LINE": "kprobe-exporter "}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [f"plain,{name}" for name in COMMANDS]
    assert "kprobe_exporter.cli.completion" in done.stderr
    assert not [line for line in done.stderr.splitlines() if "pydantic" in line or "cli.run" in line]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("kprobe-exporter doctor --j", ["plain,--json"]),
        ("kprobe-exporter run --log.level w", ["plain,warning"]),
        ("kprobe-exporter check ex", ["file,ex"]),
        ("kprobe-exporter replay tr", ["file,tr"]),
        ("kprobe-exporter list -x /bin/b", ["file,/bin/b"]),
        ("kprobe-exporter run --config c", ["file,c"]),
    ],
)
def test_options_and_files(line: str, answer: list[str]) -> None:
    assert completed(line) == answer


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_places(tracefs: Path, shell: str) -> None:
    found = completed(f"kprobe-exporter list --tracefs {tracefs} kprobe:vfs_", shell)
    names = [name for line in found for name in line.split(",") if name.startswith("kprobe:")]
    assert names == [f"kprobe:{name}" for name in VFS]


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        *((f"{head}:vfs_", [f"{head}:{name}" for name in VFS]) for head in ("kprobe", "kretprobe", "call")),
        *((f"{head}:vfs_", [f"{head}:{name}" for name in VFS]) for head in ("p", "r", "r100", "fexit")),
        ("p:ext4:ext4_o", ["p:ext4:ext4_open"]),
        ("sched:", ["sched:sched_switch", "sched:sched_wakeup"]),
        ("tracepoint:sched:sched_s", ["tracepoint:sched:sched_switch"]),
        ("sch", ["sched:sched_switch", "sched:sched_wakeup"]),
        ("kr", ["kretprobe:"]),
        ("vfs_", []),
        ("uprobe:/bin/b", []),
        ("p:/bin/b", []),
    ],
)
def test_definitions(tracefs: Path, typed: str, names: list[str]) -> None:
    """A function's name alone completes to nothing; each completed text is a definition or its beginning."""
    found = completed(f"kprobe-exporter trace --count --tracefs {tracefs} {typed}")
    assert found == [f"plain,{name}" for name in names] or [""]
    for name in names:
        assert name.endswith(":") or parse_request(name).name


def test_places_of_the_tracefs_that_is_mounted(tracefs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.tracefs.mount.find", lambda text: Mount(tracefs, "/", False))
    assert completed("kprobe-exporter list sched:") == [
        "plain,sched:sched_switch",
        "plain,sched:sched_wakeup",
    ]
    monkeypatch.setattr("kprobe_exporter.tracefs.mount.find", lambda text: None)
    assert completed("kprobe-exporter list sched:") == [""]


def test_too_many_places_are_none(tracefs: Path) -> None:
    """A shell would take a part of the places for all, and complete their common prefix."""
    line = f"kprobe-exporter list --tracefs {tracefs} many_"
    for count in (MOST_PLACES, MOST_PLACES + 1):
        (tracefs / NAMES[0]).write_text("".join(f"many_{number}\n" for number in range(count)))
        assert len(completed(line)) == (MOST_PLACES if count == MOST_PLACES else 1)


def test_lists_that_may_not_be_read(tmp_path: Path) -> None:
    assert completed(f"kprobe-exporter list --tracefs {tmp_path}/gone vfs_") == [""]


BASH = """
source "$SCRIPT"
COMP_WORDBREAKS=$BREAKS
kprobe-exporter() { printf '%s\\n' "$COMP_LINE" >"$SEEN"; printf '%s\\n' "${ANSWER[@]}"; }
compopt() { printf 'compopt %s\\n' "$*"; }
COMP_LINE="$LINE" COMP_POINT=${#LINE}
_kprobe_exporter_completion kprobe-exporter
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("line", "breaks", "answer", "shown"),
    [
        ("kprobe-exporter list vf", ":", "plain,vfs_read", ["vfs_read"]),
        ("kprobe-exporter list kprobe:vf", ":", "plain,kprobe:vfs_read", ["vfs_read"]),
        ("kprobe-exporter list kprobe:ext4:e", ":", "plain,kprobe:ext4:ext4_open", ["ext4_open"]),
        ("kprobe-exporter list kprobe:vf", "=", "plain,kprobe:vfs_read", ["kprobe:vfs_read"]),
        ("kprobe-exporter list sch", ":", "plain,sched:sched_switch", ["sched:sched_switch"]),
        ("kprobe-exporter list kp", ":", "plain,kprobe:", ["compopt -o nospace", "kprobe:"]),
        ("kprobe-exporter check f", ":", "file,f", ["compopt -o default", ""]),
        ("kprobe-exporter list zz", ":", "", [""]),
    ],
)
def test_colons_in_bash(tmp_path: Path, line: str, breaks: str, answer: str, shown: list[str]) -> None:
    """bash ends a word at a colon, so the completion must hold only what follows the last colon."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    script, seen = tmp_path / "script", tmp_path / "seen"
    script.write_text(CliRunner().invoke(main, ["--print-completion", "bash"]).stdout)
    environment = {"SCRIPT": str(script), "SEEN": str(seen), "LINE": line, "ANSWER": answer}
    environment["BREAKS"] = f" \t{breaks}"
    done = subprocess.run([bash, "-c", BASH], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == shown
    assert done.stderr == ""
    assert seen.read_text() == f"{line}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_has_two_examples(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    examples = result.stdout.partition("Examples:")[2].splitlines()
    assert sum(f"kprobe-exporter {command}" in line for line in examples) >= 2
    assert "\x1b" not in result.stdout
