"""trace.command: a command begins when the trace does, and is ended with it."""

import os
import signal
import sys
from pathlib import Path

import pytest

from kprobe_exporter.errors import StartError
from kprobe_exporter.trace import command as module
from kprobe_exporter.trace.command import Command, started
from tests.support.patience import eventually


def ended(command: Command) -> str:
    eventually(command.has_ended)
    return command.end()


def test_command_begins_when_it_may(tmp_path: Path) -> None:
    made = tmp_path / "made"
    command = Command(["sh", "-c", f"echo $$ $PPID > '{made}'; exit 3"])
    assert not command.has_ended()
    assert not made.exists()
    command.run()
    command.run()
    assert ended(command) == f"sh -c 'echo $$ $PPID > '\"'\"'{made}'\"'\"'; exit 3': ended with status 3."
    assert made.read_text().split() == [str(command.pid), str(os.getpid())]


def test_command_that_never_begins(tmp_path: Path) -> None:
    said: list[str] = []
    with started(["touch", str(tmp_path / "made")], said.append) as command:
        assert command is not None
    assert not (tmp_path / "made").exists()
    assert said == [f"touch {tmp_path}/made: not started."]
    with pytest.raises(ChildProcessError):
        os.waitpid(command.pid, 0)


def test_command_that_still_runs_is_ended() -> None:
    command = Command(["sleep", "100"])
    command.run()
    assert command.end() == "sleep 100: ended by SIGTERM."


def test_command_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_WAIT_S", 0.1)
    read, write = os.pipe()
    os.set_inheritable(write, True)
    code = f"import os, signal; signal.signal(15, signal.SIG_IGN); os.write({write}, b'x'); signal.pause()"
    command = Command([sys.executable, "-c", code])
    command.run()
    os.read(read, 1)
    assert command.end().endswith(f"still runs, as process {command.pid}.")
    os.kill(command.pid, signal.SIGKILL)
    assert ended(command).endswith("ended by SIGKILL.")
    os.close(read)
    os.close(write)


def test_signals_of_a_command_are_those_of_a_shell(tmp_path: Path) -> None:
    """It neither ignores SIGPIPE, as Python does, nor blocks what the start blocked."""
    out = tmp_path / "status"
    command = Command(["sh", "-c", f"grep -E 'Sig(Blk|Ign)' /proc/self/status > '{out}'"])
    command.run()
    assert ended(command).endswith("ended with status 0.")
    masks = {line.split(":")[0]: int(line.split()[1], 16) for line in out.read_text().splitlines()}
    assert [
        mask & 1 << number - 1 for mask in masks.values() for number in (signal.SIGPIPE, signal.SIGTERM)
    ] == [0] * 4


def test_absent_program() -> None:
    with pytest.raises(StartError, match="there is no program 'no/such': give its path"):
        Command(["no/such"])


def test_program_that_cannot_be_executed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "program"
    file.write_text("#!/no/such/interpreter\n")
    file.chmod(0o755)
    command = Command([str(file)])
    command.run()
    assert ended(command).endswith("ended with status 127.")
    assert capfd.readouterr().err == (
        f"kprobe-exporter: {file} cannot be executed: No such file or directory.\n"
    )
