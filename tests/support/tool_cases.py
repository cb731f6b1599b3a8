"""Terminal tools under a load of which each row is known: how a case is described, and run."""

import ctypes
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.faults.confinement import no_capabilities
from tests.support.kernel_ids import kernel_tid
from tests.support.trace_process import StartTrace

HOSTILE = b'a\x1b[31m\n\xff,"'
"""A process name that would colour a terminal, begin a line, and end a field of CSV."""

SHOWN = 'a\\x1b[31m\\n\\xff,"'
"""How every view shows it."""

PR_SET_NAME = 15

Rows: TypeAlias = Sequence[Mapping[str, object]]
Load: TypeAlias = Callable[[], Rows]
"""Does something, in a process of its own with a hostile name, and returns the rows that the tool must show.

A row names the columns that it knows: a value, or the least and the largest one in a list.
"""


@dataclass(frozen=True)
class ToolCase:
    """A tool, and a load.

    ``options`` may have ``{pid}``, the process of the load. ``needs`` are features of the kernel, as of the
    marker of that name. ``only`` chooses the rows to compare, by default those of the load's process; the
    rows of a table are those of all intervals. ``exact``: there are no others, and the order is the same.
    """

    tool: str
    load: Load
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    only: Callable[[Mapping[str, Any], int], bool] = lambda row, pid: row.get("pid") == pid
    exact: bool = True

    def __str__(self) -> str:
        return " ".join((self.tool, *self.options))


def each_case(cases: Sequence[ToolCase]) -> pytest.MarkDecorator:
    """Return the mark by which a test has each case as its argument ``case``, with what the case needs."""
    marked = [pytest.param(case, marks=[pytest.mark.needs(one) for one in case.needs]) for case in cases]
    return pytest.mark.parametrize("case", marked, ids=str)


class WaitingLoad:
    """A child process that does the load when it is told to, and sends back the rows that it expects.

    It lives until it is closed: a kernel without eprobes records no thread's name with an event.
    """

    def __init__(self, load: Load) -> None:
        self.kernel_pid = 0
        orders, self._orders = os.pipe()
        self._result, result = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            status = 70
            try:
                ctypes.CDLL(None).prctl(PR_SET_NAME, HOSTILE, 0, 0, 0)
                os.read(orders, 1)
                os.write(result, json.dumps([kernel_tid(), load()]).encode())
                os.close(result)
                os.read(orders, 1)
                status = 0
            finally:
                os._exit(status)
        os.close(orders)
        os.close(result)

    def run(self) -> Rows:
        """Have it done; return the rows that are expected. From then on the kernel's id of it is known."""
        os.write(self._orders, b"x")
        rows: Rows
        with open(self._result, "rb") as result:
            self.kernel_pid, rows = json.loads(result.read())
        return rows

    def close(self) -> None:
        """Let it end."""
        os.close(self._orders)
        assert os.waitpid(self.pid, 0)[1] == 0


def run_case(case: ToolCase, start: StartTrace) -> tuple[list[dict[str, Any]], Rows]:
    """Run a tool with --json over its load; return the rows that it showed of it, and those expected.

    The tool runs as uid 0 without any capability.
    """
    with ExitStack() as stack:
        load = WaitingLoad(case.load)
        stack.callback(load.close)
        options = [option.format(pid=load.pid) for option in case.options]
        tool = start(case.tool, "--json", "-v", *options, command="tool", confine=no_capabilities)
        tool.wait_until_tracing()
        expected = load.run()
        assert tool.end() == 0, tool.errors
    objects = [json.loads(line) for line in tool.output.splitlines()]
    rows = [row for found in objects for row in found.get("rows", found.get("histograms", [found]))]
    return [row for row in rows if case.only(row, load.kernel_pid)], expected


def compare(rows: Sequence[Mapping[str, Any]], expected: Rows, *, exact: bool) -> None:
    """Compare the columns that are expected."""
    keys = {key for row in expected for key in row}
    found = [{key: row.get(key) for key in keys} for row in rows]
    if exact:
        assert len(found) == len(expected), (found, expected)
        assert all(map(_fits, found, expected)), (found, expected)
    else:
        assert [row for row in expected if not any(_fits(one, row) for one in found)] == [], found


def _fits(row: Mapping[str, Any], expected: Mapping[str, object]) -> bool:
    """Return whether a row has these values, or lies between two that stand in a list."""
    return all(
        row[key] is not None and value[0] <= row[key] <= value[1]
        if isinstance(value, list)
        else row[key] == value
        for key, value in expected.items()
    )


def packaged() -> list[str]:
    """The names of all tools."""
    import kprobe_exporter.tools

    [folder] = kprobe_exporter.tools.__path__
    return sorted(path.stem for path in Path(folder).glob("*.yaml"))
