"""Throughput of the text parser, beside `cat` of the same file."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from kprobe_exporter.model import Arg, Layout
from kprobe_exporter.source.lines import LineParser

FIXTURES = Path(__file__).parents[1] / "fixtures/6.12/trace_pipe"
CHUNK = 65536
LINES = 1_000_000
ROUNDS = 5

STREAMS = {
    "kretprobe, a number and a name": (
        "kretprobe.txt",
        Layout(0, "x", "cap_open_ret", "return", "do_sys_openat2", (Arg("ret", "int"), Arg("comm", "str"))),
    ),
    "kprobe, a number and two strings": (
        "kprobe.txt",
        Layout(
            0,
            "x",
            "cap_open",
            "entry",
            "do_sys_openat2",
            (Arg("dfd", "int"), Arg("path", "str"), Arg("comm", "str")),
        ),
    ),
    "eprobe, a number and a name": (
        "eprobe.txt",
        Layout(
            0, "x", "cap_exit_openat", "eprobe", "sys_exit_openat", (Arg("ret", "int"), Arg("comm", "str"))
        ),
    ),
}


def rows(directory: Path) -> list[tuple[str, str, str, str, str]]:
    """Measure each stream: name, lines a second, MB a second, `cat` MB a second, their ratio."""
    return [_measure(directory, name, file, layout) for name, (file, layout) in STREAMS.items()]


HEAD = ("text parser", "lines/s", "MB/s", "cat MB/s", "cat/parser")


def _measure(directory: Path, name: str, file: str, layout: Layout) -> tuple[str, str, str, str, str]:
    path = directory / file
    whole = [line for line in (FIXTURES / file).read_bytes().splitlines(True) if _is_event(line, layout)]
    path.write_bytes(b"".join(whole) * (LINES // len(whole)))
    lines, size = LINES // len(whole) * len(whole), path.stat().st_size
    # In turn, so that a machine whose speed drifts is the same to both.
    times = [(_time(lambda: _cat(path)), _time(lambda: _parse(path, layout, lines))) for _ in range(ROUNDS)]
    cat, parse = min(t[0] for t in times), min(t[1] for t in times)
    return (
        name,
        f"{lines / parse:,.0f}",
        f"{size / parse / 1e6:,.0f}",
        f"{size / cat / 1e6:,.0f}",
        f"{parse / cat:,.1f}",
    )


def _is_event(line: bytes, layout: Layout) -> bool:
    """Whether it is one whole line: some names hold a newline."""
    return LineParser([layout]).feed(line).records != []


def _cat(path: Path) -> None:
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)


def _parse(path: Path, layout: Layout, lines: int) -> None:
    parser = LineParser([layout])
    found = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(CHUNK):
            found += len(parser.feed(data).records)
    assert found == lines, f"{found} of {lines} lines were parsed"


def _time(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
