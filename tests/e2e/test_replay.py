"""The command `replay`: saved text in, metrics on stdout, a summary on stderr, an exit status."""

import gzip
import lzma
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import FIXTURES
from tests.support.agent_process import Metrics
from tests.support.patience import patience
from tests.support.promtool import check_metrics

DOCUMENTS = FIXTURES / "documents"
COMMAND = [sys.executable, "-m", "kprobe_exporter", "replay"]


def replay(*arguments: str | Path, text: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], input=text, capture_output=True, check=False, timeout=patience(60)
    )


def metrics(*arguments: str | Path, text: bytes | None = None) -> Metrics:
    """The metrics of a replay that succeeds."""
    result = replay(*arguments, text=text)
    assert result.returncode == 0, result.stderr.decode()
    return Metrics(result.stdout.decode())


def test_the_examples_of_perf_tools(promtool: str) -> None:
    file = DOCUMENTS / "perf-tools-examples.txt"
    result = replay(file)
    assert result.returncode == 0
    assert result.stderr.startswith(b"379 lines: 131 events, 3 stacks, 114 rejected, 0 cut; 0 events lost")
    found = Metrics(result.stdout.decode())
    events = re.findall(rb"^ +\S+-\d+ +\[\d+\] (?:\S{4} )?\S+: (\w+): \(", file.read_bytes(), re.MULTILINE)
    for name in set(events):
        assert found.value("kprobe_exporter_events_total", probe=name.decode()) == events.count(name)
    assert found.value("kprobe_exporter_events_lost_total", reason="unparsed") == 114
    # 0x3 and 0x9, as arg1 and as rval; the values of myprobe are text.
    assert found.value("kprobe_return_value_count", probe="myopen") == 17 + 9
    assert {labels["probe"] for labels in found.labels("kprobe_return_value_count")} == {"myopen"}
    assert not found.labels("process_cpu_seconds_total")
    check_metrics(promtool, result.stdout)


def test_errors_by_name() -> None:
    found = metrics(DOCUMENTS / "kprobe-based-event-tracer.txt")
    assert found.value("kprobe_exporter_events_total", probe="do_sys_open") == 6
    assert found.value("kprobe_return_errors_total", probe="do_sys_open", errno="ENOENT") == 1
    assert found.value("kprobe_return_value_sum", probe="do_sys_open") == 3 + 3


def test_cut_lines_and_lost_events() -> None:
    result = replay(DOCUMENTS / "tracing-in-linux.txt")
    assert re.match(rb"148 lines: 18 events, 0 stacks, \d+ rejected, 4 cut;", result.stderr)
    assert b"; 951,003 events lost by the kernel\n" in result.stderr
    assert b'kprobe_exporter_events_lost_total{reason="overrun"} 951003.0\n' in result.stdout
    found = metrics(FIXTURES / "6.12/trace_pipe/lost.txt")
    assert found.value("kprobe_exporter_events_lost_total", reason="overrun") == 1870
    assert found.value("kprobe_exporter_events_total", probe="cap_open_ret") == 2 + 2000 + 2 - 1870


def test_stdin() -> None:
    text = (DOCUMENTS / "perf-tools-examples.txt").read_bytes()
    assert metrics("-", text=text) == metrics(DOCUMENTS / "perf-tools-examples.txt")


CONFIG = """
probes:
  - name: cap_open_ret
    attach: kretprobe:do_sys_openat2
    returns: int
    fetch: {ret: "$retval:s64"}
    metrics:
      - counter: open_results_total
        labels: {errno: {field: ret, decode: errno}, comm: comm, caller: caller}
      - counter: failed_opens_total
        where: "ret < 0"
      - histogram: opened_fd
        value: ret
        where: "ret >= 0"
        buckets: [4, 16]
  - {name: silent, attach: "kretprobe:vfs_read", returns: int}
"""


@pytest.mark.parametrize("kernel", ["6.1", "6.12"])
def test_the_probes_of_a_configuration(tmp_path: Path, kernel: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    config.chmod(0o600)
    stream = FIXTURES / kernel / "trace_pipe/kretprobe.txt"
    found = metrics("--config", config, stream)
    failed = stream.read_bytes().count(b" ret=-2 ")
    assert found.value("kprobe_failed_opens_total") == failed > 0
    assert found.value("kprobe_return_errors_total", probe="cap_open_ret", errno="ENOENT") == failed
    assert found.value("kprobe_opened_fd_count") == stream.read_bytes().count(b" ret=") - failed
    plain = {"comm": "plain", "errno": "ENOENT", "caller": "__x64_sys_openat"}
    assert found.value("kprobe_open_results_total", **plain) == 5
    unknown = {**plain, "comm": "unknown", "errno": "ok"}
    assert found.value("kprobe_open_results_total", **unknown) == 1
    assert found.value("kprobe_exporter_events_total", probe="silent") == 0
    assert "kprobe_hits_total{" not in found.text


@pytest.mark.parametrize("name", ["perf-tools-examples-on-one-line", "tracepoints-and-probes"])
def test_nothing_could_be_parsed(name: str) -> None:
    result = replay(DOCUMENTS / f"{name}.txt")
    assert result.returncode == 1
    assert result.stderr.endswith(f"nothing in {DOCUMENTS / name}.txt is an event.\n".encode())
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_compressed_text(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    plain = DOCUMENTS / "perf-tools-examples.txt"
    data = pack(plain.read_bytes())
    path = tmp_path / "trace"
    path.write_bytes(data)
    expected = replay(plain)
    for found in (replay(path), replay("-", text=data)):
        assert (found.returncode, found.stdout, found.stderr) == (0, expected.stdout, expected.stderr)
    path.write_bytes(data[:-20])
    result = replay(path)
    assert (result.returncode, result.stdout) == (2, b"")
    assert re.fullmatch(rb"kprobe-exporter: \S+ cannot be read: [^\n]+[^.]\.\n", result.stderr)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named(encoding: str) -> None:
    text = (DOCUMENTS / "tracing-in-linux.txt").read_text().encode(encoding)
    result = replay("-", text=text)
    fix = b"convert it first: iconv -f UTF-16 -t UTF-8"
    assert result.stderr == b"kprobe-exporter: - cannot be read: it is UTF-16 (" + fix + b").\n"
    assert (result.returncode, result.stdout) == (2, b"")


def test_lines_within_others_are_told() -> None:
    line = b"            bash-1234    [001] .....    12.345678: bprint: no newline"
    result = replay("-", text=line * 3 + b"\n")
    assert result.stderr.startswith(
        b"1 line: 1 event, 0 stacks, 0 rejected, 0 cut; 0 events lost by the kernel\n"
    )
    assert (
        b"\n2 lines: each appears to be within another line, and its event is not counted\n" in result.stderr
    )


@pytest.mark.parametrize("text", [b"", b"\n", b"\xff\xfd\x00" * 1000])
def test_nothing_at_all(text: bytes) -> None:
    result = replay("-", text=text)
    assert result.returncode == 1
    assert b"Traceback" not in result.stderr


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "missing", "No such file or directory"), (tmp_path, "Is a directory")):
        result = replay(path)
        assert (result.returncode, result.stdout) == (2, b"")
        assert result.stderr.decode() == f"kprobe-exporter: {path} cannot be read: {why}.\n"


def test_a_wrong_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("probes: 1")
    config.chmod(0o600)
    result = replay("--config", config, DOCUMENTS / "perf-tools-examples.txt")
    assert (result.returncode, result.stdout) == (2, b"")


def test_progress_on_a_terminal_while_the_text_is_long_in_coming() -> None:
    """Progress appears after 2 s, on stderr and only if that is a terminal."""
    line = b"            bash-1234    [001] .....    12.345678: ev: (f+0x0/0x1) a=1\n"
    master, slave = pty.openpty()
    shown = b""
    with subprocess.Popen(
        [*COMMAND, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=slave
    ) as run:
        os.close(slave)
        assert run.stdin is not None
        while b"MB, " not in shown:
            run.stdin.write(line * 10_000)
            run.stdin.flush()
            shown += _available(master)
        run.stdin.close()
        while more := _read(master):
            shown += more
        assert run.wait() == 0
    os.close(master)
    assert re.search(rb"\r\d+ MB, [\d,]+ lines\x1b\[K", shown)
    progress, _, summary = shown.rpartition(b"\r\x1b[K")
    assert progress
    assert re.match(rb"[\d,]+ lines: [\d,]+ events, ", summary)


def _available(fd: int) -> bytes:
    os.set_blocking(fd, False)
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""


def _read(fd: int) -> bytes:
    """The next bytes from a terminal; none after the other side has closed it, which is EIO."""
    os.set_blocking(fd, True)
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
