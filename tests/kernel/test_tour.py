"""Every command of docs/tour.md runs, in order, and prints what the document shows.

In a ``console`` block, a line that begins with ``$`` is a command, and the lines below it are its output.
There, ``…`` stands for any text, on a line of its own for any number of lines, and a number for any number.
A ``yaml`` block is the file that its first line names.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.patience import eventually, patience
from tests.support.system_calls import only_x86

pytestmark = pytest.mark.needs("kprobe_events")

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs/tour.md").read_text()
BLOCK = re.compile(r"^```(console|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+(?:e-?[0-9]+)?")
END = "the command ended with"
LIMIT = 60
"""Seconds that an idle machine takes at most for the whole tour."""


class Step(NamedTuple):
    """A command, and the lines that the document shows as its output."""

    command: str
    shown: list[str]


def steps() -> Iterator[Step]:
    """Yield the tour's commands, those that write its files included."""
    for language, text in BLOCK.findall(TOUR):
        if language == "yaml":
            name = text.partition("\n")[0].removeprefix("# ")
            yield Step(f"cat > {name} << 'END'\n{text}END", [])
            continue
        step = None
        for line in text.splitlines():
            if line.startswith("$ "):
                if step:
                    yield step
                step = Step(line.removeprefix("$ "), [])
            else:
                assert step, f"output without a command: {line}"
                step.shown.append(line)
        if step:
            yield step


def pattern(shown: list[str]) -> re.Pattern[str]:
    """Return the pattern that the lines stand for; blanks only separate words."""
    lines = (r"(.*\n)*?" if line == "…" else f"{_line(line)}\n" for line in shown)
    return re.compile("".join(lines))


def _line(line: str) -> str:
    words = re.escape(" ".join(line.split())).replace("…", ".*")
    words = re.sub(r"^long", "(?:long|int)", words)  # do_sys_openat2() returns an int since 7.2 or so
    return NUMBER.sub(lambda _: NUMBER.pattern.join(("(?:", ")")), words)


def plain(output: str) -> str:
    return "".join(f"{' '.join(line.split())}\n" for line in output.splitlines())


def test_it_takes_a_newcomer_everywhere() -> None:
    commands = " ".join(step.command for step in steps())
    for command in ("doctor", "list", "trace", "check --live", "run"):
        assert f"kprobe-exporter {command}" in commands
    assert "/-/reload" in commands


@only_x86
def test_every_command_does_what_it_shows(tmp_path: Path, tracefs: Path) -> None:
    found = run([step.command for step in steps()], tmp_path)
    for step, (output, status) in zip(steps(), found, strict=True):
        if status != 0 or not pattern(step.shown).fullmatch(plain(output)):
            shown = "\n".join(step.shown)
            pytest.fail(f"$ {step.command}\n{output}\nended with {status}; shown is\n{shown}", pytrace=False)


def run(commands: list[str], directory: Path) -> list[tuple[str, int]]:
    """Run the commands in one shell, and end what still runs; return each one's output and status."""
    script = "".join(f"{command}\necho '{END}' $?\n" for command in commands)
    output = directory / "output"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with output.open("w") as file:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.wait(patience(LIMIT))
        finally:
            eventually(lambda: ended(shell), 30)
    text = output.read_text(errors="backslashreplace")
    parts = re.split(rf"^{END} (\d+)\n", text, flags=re.MULTILINE)
    return [(part, int(status)) for part, status in zip(parts[::2], parts[1::2], strict=False)]


def ended(shell: subprocess.Popen[bytes]) -> bool:
    """Send SIGTERM to what still runs in the shell's process group; return whether nothing did."""
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGTERM)
        shell.poll()
        return False
    return True
