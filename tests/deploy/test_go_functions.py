"""Functions of promtool, a stripped Go program, are those that its own runtime names."""

import os
import re
import signal
import subprocess

from kprobe_exporter.elf.find import functions, functions_at
from kprobe_exporter.elf.reader import opened
from tests.support.patience import eventually

FRAME = re.compile(r"^(\S+)\(.*\)\n\t\S+:\d+ \+0x[0-9a-f]+ fp=\S+ sp=\S+ pc=0x([0-9a-f]+)$", re.MULTILINE)
"""A frame of a traceback with GOTRACEBACK=system (runtime/traceback.go)."""


def traceback(promtool: str) -> list[tuple[str, int]]:
    """Return the functions and addresses of promtool's goroutines, as its runtime prints them."""
    environment = {**os.environ, "GOTRACEBACK": "system"}
    with subprocess.Popen(
        [promtool, "check", "metrics"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        eventually(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 2)
        process.send_signal(signal.SIGQUIT)
        _, text = process.communicate()
    return [(name, int(address, 16)) for name, address in FRAME.findall(text.decode())]


def test_names_of_runtime(promtool: str) -> None:
    frames: list[tuple[str, int]] = []

    def has_begun() -> bool:
        """Whether the signal came after the start of the runtime."""
        frames[:] = traceback(promtool)
        return len(frames) > 10

    eventually(has_begun)
    with opened(promtool) as file:
        places = {pc: file.offset_of(pc) for _, pc in frames}
    found = functions_at(promtool, [place for place in places.values() if place is not None])
    wrong = [(name, found.get(places[pc] or 0)) for name, pc in frames if found.get(places[pc] or 0) != name]
    assert not wrong
    names = functions(promtool)
    assert {"main.main", "main.CheckMetrics", "net/http.(*Transport).RoundTrip"} <= set(names)
    assert len(names) > 50_000
