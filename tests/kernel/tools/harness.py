"""Runs a terminal tool with --json over a load that records what it did, and adds up what the tool showed."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import run
from typing import Any, NamedTuple, TypeAlias

import pytest

from tests.support.block_devices import null_block
from tests.support.kernel_modules import unload
from tests.support.tool_cases import WaitingLoad
from tests.support.trace_process import StartTrace

Facts: TypeAlias = Mapping[str, Any]
"""What a load did, by its own record and the kernel's."""

LATENCY = 20_000
"""Microseconds that a request to the device of `disk` takes at least."""


class Seen(NamedTuple):
    """The objects that a tool wrote, what its load did, and the load's process."""

    objects: Sequence[Mapping[str, Any]]
    facts: Facts
    pid: int

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The rows of all intervals."""
        return [row for found in self.objects for row in found.get("rows", [found])]

    @property
    def own(self) -> list[Mapping[str, Any]]:
        """The rows of the load's process."""
        return [row for row in self.rows if row["pid"] == self.pid]

    def histograms(self, **labels: str) -> list[Mapping[str, Any]]:
        """The histograms of all intervals that have these labels."""
        found = [one for found in self.objects for one in found["histograms"]]
        return [one for one in found if labels.items() <= one["labels"].items()]

    def total(self, column: str, **key: object) -> float:
        """The sum of a column over the rows with these values."""
        return float(sum(row[column] for row in self.rows if key.items() <= row.items()))


class ToolCase(NamedTuple):
    """A tool's command line, its load, the comparison of both, and the features of the kernel that it needs.

    ``{pid}`` in the command line is the load's process, and ``{disk}`` a device.
    """

    command: str
    load: Callable[[], Facts]
    compare: Callable[[Seen], None]
    needs: tuple[str, ...] = ()


def parametrized(cases: Sequence[ToolCase]) -> pytest.MarkDecorator:
    """Return the mark that runs a test once for each case."""
    return pytest.mark.parametrize(
        "case",
        [pytest.param(one, marks=[pytest.mark.needs(each) for each in one.needs]) for one in cases],
        ids=[one.command for one in cases],
    )


def run_tool(start: StartTrace, command: str, load: Callable[[], Facts], **values: object) -> Seen:
    """Run a tool with --json over a load."""
    with ExitStack() as stack:
        child = WaitingLoad(lambda: [load()])
        stack.callback(child.close)
        words = command.format(pid=child.pid, **values).split()
        text = words[0] in ("offcputime", "stackcount")
        tool = start(*words, *([] if text else ["--json"]), "-v", command="tool")
        tool.wait_until_tracing()
        [facts] = child.run()
        assert tool.end() == 0, tool.errors
        assert "lost" not in tool.errors, tool.errors
    lines = tool.output.decode().splitlines()
    if text:
        folded = [line.rpartition(" ") for line in lines]
        return Seen(
            [{"stack": stack, "number": int(number)} for stack, _, number in folded], facts, child.pid
        )
    return Seen([json.loads(line) for line in lines], facts, child.pid)


def account() -> tuple[int, int, int]:
    """The nanoseconds that this task ran, those that it waited for a CPU, and how often it had one.

    The first number of schedstat is of the last tick, which a slow guest handles late.
    """
    _, waited, slices = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    return time.thread_time_ns(), waited, slices


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@contextmanager
def loop_device(directory: Path) -> Iterator[Path]:
    """Yield a loop device of 64 MiB."""
    file = directory / "disk"
    file.write_bytes(b"")
    with file.open("r+b") as opened:
        opened.truncate(64 << 20)
    loaded = Path("/sys/module/loop").exists()
    if not loaded:
        run(["modprobe", "loop"], check=True)
    found = run(["losetup", "--find", "--show", file], check=True, capture_output=True, text=True)
    device = Path(found.stdout.strip())
    try:
        yield device
    finally:
        run(["losetup", "--detach", device], check=True)
        if not loaded:
            unload("loop")


@contextmanager
def slow_disk(directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield a block device, and the microseconds that its requests take at least.

    A machine without the module null_blk has a loop device, which takes no known time.
    """
    with ExitStack() as stack:
        if run(["modprobe", "--dry-run", "null_blk"], capture_output=True, check=False).returncode == 0:
            yield stack.enter_context(null_block(LATENCY)), LATENCY
        else:
            yield stack.enter_context(loop_device(directory)), 0


@contextmanager
def ext4(directory: Path) -> Iterator[Path]:
    """Yield the directory of an ext4 on a loop device."""
    mounted = directory / "ext4"
    mounted.mkdir()
    with loop_device(directory) as device:
        run(["mkfs.ext4", "-q", device], check=True)
        run(["mount", device, mounted], check=True)
        try:
            yield mounted
        finally:
            run(["umount", mounted], check=True)
