"""`trace` shows what the kernel recorded, as it recorded it, and leaves nothing, however it ends."""

import ctypes
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.tracefs.files import MountedTracefs
from tests.agent_process import eventually
from tests.kernel.conftest import StartAgent, definitions
from tests.kernel.test_lifecycle import foreign_things, instances
from tests.kernel.workload import FORGED, Child
from tests.trace_process import TraceProcess

pytestmark = pytest.mark.needs("kprobe_events")

GETPPID = "p:mine __x64_sys_getppid"
TRACING = b"Tracing kprobe mine. Ctrl-C to end.\n"
ENDING = b"\nEnding tracing...\n"
MOST = 23
OPENS = """
probes:
  - {name: mine, attach: "kprobe:__x64_sys_getppid", aggregate: events}
"""

Start = Callable[..., TraceProcess]


@pytest.fixture
def trace(tmp_path: Path, as_found: None) -> Iterator[Start]:
    """Starts traces, and ends those that still run."""
    started: list[TraceProcess] = []

    def start(*arguments: str, **how: Any) -> TraceProcess:
        directory = tmp_path / f"trace{len(started)}"
        directory.mkdir()
        started.append(TraceProcess(directory, arguments, **how))
        return started[-1]

    yield start
    for each in started:
        each.close()


def own(tracefs: Path) -> Path:
    """The instance of the one trace."""
    [found] = (tracefs / "instances").glob("kprobe_exporter_trace_*")
    return found


def work(times: int = MOST) -> None:
    for _ in range(times):
        os.getppid()


def lines(trace: TraceProcess) -> list[bytes]:
    return [line for line in trace.output.splitlines() if b": mine: (" in line]


class TestText:
    def test_it_is_the_kernels_own_byte_for_byte(self, trace: Start, tracefs: Path) -> None:
        """`trace` shows the same ring buffer without taking anything out of it, while we are stopped."""
        one = trace("p:mine do_sys_openat2 name=+0(%si):string n=%si:x64 c=+0(%si):char comm=$comm")
        one.wait_for(TRACING)
        one.kill(signal.SIGSTOP)
        for path in (b"/nonexistent", b"/\xff\xfe\x1b[31m", b"/a\tb", b"/x y", FORGED):
            with suppress(OSError):
                os.open(path, os.O_RDONLY)
        theirs = (own(tracefs) / "trace").read_bytes()
        theirs = b"".join(line for line in theirs.splitlines(keepends=True) if not line.startswith(b"#"))
        one.kill(signal.SIGCONT)
        one.wait_for(b"forged")
        assert one.end() == 0
        assert theirs.count(b": mine: (") >= 5
        assert one.output == TRACING + theirs + ENDING

    def test_a_terminal_gets_no_control_bytes(self, trace: Start) -> None:
        one = trace("p:mine do_sys_openat2 name=+0(%si):string", 'name ~ "*evil*"', terminal=True)
        one.wait_for(b"Tracing kprobe mine.")
        with suppress(OSError):
            os.open(b"/evil\x1b]0;title\x07\xff\xc2\x9b\x00", os.O_RDONLY)
        one.wait_for(rb'name="/evil\x1b]0;title\x07\xff\x9b"')
        assert b"\x1b" not in one.output
        one.type(b"\x03")
        assert one.wait() == 0
        assert one.output.endswith(b"\r\n\r\nEnding tracing...\r\n")

    def test_what_is_held_in_the_kernel_comes_at_the_end(self, trace: Start) -> None:
        one = trace("-d", "3", "-H", GETPPID)
        one.wait_for(b"Tracing kprobe mine for 3 seconds (buffered)...\n")
        work()
        assert lines(one) == []
        assert one.wait() == 0
        assert b"\n# entries-in-buffer/entries-written: " in one.output
        assert len(lines(one)) >= MOST

    def test_a_duration_that_is_cut_short(self, trace: Start) -> None:
        one = trace("-d", "1000", GETPPID)
        one.wait_for(b"(buffered)...\n")
        work()
        assert one.end() == 0
        assert len(lines(one)) >= MOST

    def test_the_last_events_are_not_lost(self, trace: Start) -> None:
        one = trace(GETPPID, f"common_pid == {os.getpid()}")
        one.wait_for(TRACING)
        work()
        assert one.end(signal.SIGTERM) == 0
        assert len(lines(one)) == MOST

    @pytest.mark.parametrize(
        ("asked", "title", "line"),
        [
            ("sched:sched_process_exec", b"sched:sched_process_exec", b": sched_process_exec: filename=/"),
            (
                "tracepoint:sched:sched_process_exec f=$filename:string",
                b"tracepoint sched_process_exec",
                b' f="/',
            ),
            ("p:/bin/true:main", None, None),
            ("call:__x64_sys_execve", b"call:__x64_sys_execve", b" <- __x64_sys_execve)"),
            ("syscall:execve", b"syscall:execve", b": sys_execve(filename: "),
        ],
    )
    def test_other_events(self, trace: Start, asked: str, title: bytes | None, line: bytes | None) -> None:
        if title is None or line is None:
            pytest.skip("it is stripped")
        one = trace(asked)
        one.wait_for(b"Tracing " + title)
        child = Child(lambda: os.execv("/bin/true", ["true"]))
        child.work()
        child.close()
        one.wait_for(line)

    def test_a_function_of_a_library(self, trace: Start) -> None:
        libc = next(
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "/libc.so" in line or "/libc-" in line
        )
        one = trace(f"p:mine {libc}:getppid a=%di:u64")
        one.wait_for(f"Tracing uprobe mine (p:mine {libc}:0x".encode())
        work()
        one.wait_for(b": mine: (0x")
        assert one.end() == 0
        assert b" a=" in lines(one)[0]


class TestThreads:
    def test_a_process_with_the_threads_that_it_starts(self, trace: Start) -> None:
        one = trace("-p", str(os.getpid()), GETPPID)
        one.wait_for(TRACING)
        stopped = threading.Event()

        def thread() -> None:
            while not stopped.wait(0.01):
                os.getppid()

        def child() -> None:
            work()

        other = Child(child)
        other.work()
        other.close()
        tids = set()
        late = threading.Thread(target=thread)
        late.start()
        try:
            tids = {os.getpid(), late.native_id}
            work()
            eventually(lambda: {int(line.split(b"-")[1].split()[0]) for line in lines(one)} == tids)
        finally:
            stopped.set()
            late.join()

    def test_one_thread(self, trace: Start) -> None:
        one = trace("-L", str(os.getpid()), GETPPID, "common_pid > 0")
        one.wait_for(TRACING)
        other = threading.Thread(target=work)
        other.start()
        other.join()
        work()
        assert one.end() == 0
        assert len(lines(one)) == MOST

    @pytest.mark.parametrize("option", ["-p", "-L"])
    def test_there_is_none(self, trace: Start, option: str) -> None:
        one = trace(option, "4194000", GETPPID)
        assert one.wait() == 1
        assert one.errors in (
            "kprobe-exporter: there is no process 4194000.\n",
            "kprobe-exporter: there is no thread 4194000.\n",
        )


class TestWarnings:
    def test_a_function_that_is_never_called(self, trace: Start) -> None:
        one = trace("p:do_sys_open")
        one.wait_for(b"Tracing kprobe do_sys_open. Ctrl-C to end.\n")
        assert one.end() == 0
        assert one.errors == (
            "kprobe-exporter: warning: do_sys_open: it will never fire: open(2) does not go through it, "
            "name do_sys_openat2.\n"
        )

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ("p:bio_alloc %ax", "bio_alloc_bioset does its work today"),
            ("r:vfs_raed", "did you mean 'vfs_read'?"),
            ("p:do_int3", "the kernel keeps kprobes off it"),
        ],
    )
    def test_a_function_that_cannot_be_probed(self, trace: Start, asked: str, said: str) -> None:
        if asked == "p:bio_alloc %ax" and "bio_alloc\n" in Path("/proc/kallsyms").read_text():
            pytest.skip("it is there")
        one = trace(asked)
        assert one.wait() == 1
        warning, refused = one.errors.splitlines()
        assert said in warning
        assert "give -F to try it all the same" in refused
        assert one.output == b""
        forced = trace("-F", asked)
        assert forced.wait() == 1
        warning, refused = forced.errors.splitlines()
        assert said in warning
        assert refused.startswith("kprobe-exporter: ")

    @pytest.mark.parametrize(
        ("arguments", "status", "said"),
        [
            ([GETPPID, "nosuchfield == 1"], 1, "the filter 'nosuchfield == 1' is refused"),
            (["p:mine __x64_sys_getppid x=%nosuch"], 1, "kernel says"),
            (["mine"], 2, "a definition begins with p for an entry or r for a return"),
            (["kprobe:vfs_*"], 2, "give --count"),
            (["-v", "-d", "1", GETPPID], 2, "-v does nothing with -d"),
            (["p:mine /bin/nothing:main"], 2, "/bin/nothing"),
        ],
    )
    def test_one_sentence(self, trace: Start, arguments: list[str], status: int, said: str) -> None:
        one = trace(*arguments)
        assert one.wait() == status
        [line] = one.errors.splitlines()
        assert said in line


class TestTheEnd:
    def test_a_signal_at_any_moment(self, trace: Start, tracefs: Path) -> None:
        before = definitions(tracefs), instances(tracefs)
        started = time.monotonic()
        whole = trace("-s", GETPPID)
        whole.wait_for(TRACING)
        took = time.monotonic() - started
        assert whole.end() == 0
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
        for part in range(12):
            one = trace("-s", "-p", str(os.getpid()), GETPPID)
            time.sleep(took * part / 10)
            number = numbers[part % 4]
            assert one.end(number) in (0, 1, -number), one.errors  # 1, -N: before its first line
            assert "Traceback" not in one.errors
            assert (definitions(tracefs), instances(tracefs)) == before

    @pytest.mark.parametrize("way", [[], ["--json"], ["--count"]])
    def test_a_reader_that_goes_away(self, trace: Start, way: list[str]) -> None:
        """It is noticed without an event: nobody calls the function."""
        read, write = os.pipe()
        one = trace(*way, GETPPID, "common_pid == 1", stdout=write)
        os.close(write)
        eventually(lambda: list(Path("/sys/kernel/tracing/instances").glob("kprobe_exporter_trace_*")))
        os.close(read)
        assert one.wait() == 0

    @pytest.mark.parametrize("way", [[], ["--json"]])
    def test_a_reader_that_does_not_read(self, trace: Start, way: list[str]) -> None:
        read, write = os.pipe()
        one = trace(*way, GETPPID, stdout=write)
        os.close(write)
        eventually(lambda: list(Path("/sys/kernel/tracing/instances").glob("kprobe_exporter_trace_*")))
        end = time.monotonic() + 5
        while time.monotonic() < end:
            work(1000)
        assert one.end(signal.SIGTERM) == 0
        os.close(read)

    @pytest.mark.parametrize("successor", ["trace", "run", "cleanup"])
    def test_killed(
        self,
        trace: Start,
        start_agent: StartAgent,
        files: MountedTracefs,
        tracefs: Path,
        successor: str,
    ) -> None:
        """The next command cleans up; another tool's probe, a live agent and a live trace survive."""
        before = definitions(tracefs), instances(tracefs)
        with foreign_things(files):
            agent = start_agent("global: {tracefs_instance: other_agent}\n" + OPENS)
            living = trace("p:living __x64_sys_getppid")
            living.wait_for(b"Tracing kprobe living.")
            killed = trace("-s", GETPPID)
            killed.wait_for(TRACING)
            work()
            left = f"kprobe_exporter_trace_{killed.pid}"
            killed.kill(signal.SIGKILL)
            assert killed.wait() == -signal.SIGKILL
            assert left in instances(tracefs)
            if successor == "trace":
                other = trace(GETPPID)
                other.wait_for(TRACING)
                assert other.end() == 0
            elif successor == "run":
                start_agent(OPENS).end()
            else:
                result = CliRunner().invoke(main, ["cleanup"])
                assert result.exit_code == 0
                assert f"removed instances/{left}\nremoved {left}/mine\n" in result.output
                assert f"a live trace holds 'kprobe_exporter_trace_{living.pid}'" in result.output
            assert left not in instances(tracefs)
            assert f"{left}/" not in definitions(tracefs)
            count = len(living.output)
            hits = agent.scrape().value("kprobe_hits_total", probe="mine")
            work()
            eventually(lambda: len(living.output) > count)
            eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="mine") >= hits + MOST)
            assert living.end() == 0
            assert agent.end() == 0
        assert (definitions(tracefs), instances(tracefs)) == before

    def test_beside_an_agent_whose_probe_has_the_same_name(
        self, trace: Start, start_agent: StartAgent
    ) -> None:
        """Our own events are under the name that was asked for; the agent counts each of its own once."""
        agent = start_agent(OPENS)
        one = trace(GETPPID, f"common_pid == {os.getpid()}")
        one.wait_for(TRACING)
        before = agent.scrape().value("kprobe_exporter_events_total", probe="mine")
        work()
        assert one.end() == 0
        assert len(lines(one)) == MOST
        eventually(
            lambda: agent.scrape().value("kprobe_exporter_events_total", probe="mine") >= before + MOST
        )
        metrics = agent.scrape()
        events = metrics.value("kprobe_exporter_events_total", probe="mine")
        assert metrics.value("kprobe_hits_total", probe="mine") == events


def objects(trace: TraceProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trace.output.splitlines()]


class TestJson:
    def test_a_return(self, trace: Start) -> None:
        one = trace("--json", "-p", str(os.getpid()), "r:mine do_sys_openat2 rval=$retval")
        self.until_ready(one)
        before = time.monotonic_ns()
        with suppress(OSError):
            os.open("/nonexistent", os.O_RDONLY)
        after = time.monotonic_ns()
        one.wait_for(b"ENOENT")
        assert one.end() == 0
        found = next(each for each in objects(one) if before <= each["time_ns"] <= after)
        assert found.pop("caller")
        assert before <= found.pop("time_ns") <= after
        assert found.pop("cpu") in os.sched_getaffinity(0)
        assert found == {
            "event": "mine",
            "kind": "kretprobe",
            "target": "kretprobe:do_sys_openat2",
            "tid": os.getpid(),
            "pid": os.getpid(),
            "comm": comm(),
            "return": -2,
            "error": "ENOENT",
            "args": {"rval": -2},
        }

    def test_what_a_name_of_a_file_forges(self, trace: Start) -> None:
        one = trace("--json", "-L", str(os.getpid()), "p:mine do_sys_openat2 name=+0(%si):string")
        self.until_ready(one)
        with suppress(OSError):
            os.open(FORGED, os.O_RDONLY)
        one.wait_for(b"forged-1")
        assert one.end() == 0
        forged = [each for each in objects(one) if "forged" in each["args"]["name"]]
        assert [each["args"]["name"].encode() for each in forged] == [FORGED]

    def test_a_call_has_its_duration(self, trace: Start) -> None:
        one = trace("--json", "-L", str(os.getpid()), "call:__x64_sys_nanosleep")
        other = trace("--json", "-L", str(os.getpid()), "call:__x64_sys_clock_nanosleep")
        for each in (one, other):
            self.until_ready(each)
        time.sleep(0.05)
        time.sleep(0.05)
        eventually(lambda: objects(one) + objects(other))
        assert all(each.end() == 0 for each in (one, other))
        found = [*objects(one), *objects(other)][0]
        assert found["duration_ns"] >= 50_000_000
        assert found["return"] == 0

    def test_a_tracepoint_has_all_its_fields(self, trace: Start) -> None:
        one = trace("--json", "sched:sched_process_exec")
        self.until_ready(one)
        child = Child(lambda: os.execv("/bin/true", ["true"]))
        pid = child.pid
        child.work()
        one.wait_for(b"/bin/true")
        assert one.end() == 0
        found = next(each for each in objects(one) if each["tid"] == pid)
        assert found["args"] == {"filename": "/bin/true", "pid": pid, "old_pid": pid}

    def test_stacks(self, trace: Start) -> None:
        one = trace("--json", "-s", "-L", str(os.getpid()), GETPPID)
        self.until_ready(one)
        work()
        eventually(lambda: len(objects(one)) >= MOST)
        assert one.end() == 0
        assert all("do_syscall_64" in each["stack"] for each in objects(one))

    @staticmethod
    def until_ready(one: TraceProcess) -> None:
        """It says nothing of itself: its probe is enabled when something is recorded."""

        def enabled() -> bool:
            found = Path(f"/sys/kernel/tracing/instances/kprobe_exporter_trace_{one.pid}")
            with suppress(OSError):
                return "1" in (found / "tracing_on").read_text() and any(
                    path.read_text().startswith("1")
                    for path in (found / "events").glob("*/*/enable")
                    if path.parts[-3].startswith("kprobe_exporter_trace") or "sched_process_exec" in str(path)
                )
            return False

        eventually(enabled, 60)
        time.sleep(0.2)


class TestCount:
    def test_it_counts_exactly(self, trace: Start, tracefs: Path) -> None:
        one = trace("--count", "-L", str(os.getpid()), "r:mine do_sys_openat2")
        TestJson.until_ready(one)
        for _ in range(MOST):
            with suppress(OSError):
                os.open("/nonexistent", os.O_RDONLY)
        time.sleep(0.5)
        assert one.end() == 0
        title, _, header, row, *_ = one.output.decode().splitlines()
        assert title.startswith("kprobe mine")
        assert header.split() == ["probe", "hits/s", "hits", "errors", "missed"]
        assert int(row.split()[3].replace(",", "")) >= MOST
        assert "ENOENT 23" in one.output.decode()
        assert b"\x1b" not in one.output

    def test_a_live_table(self, trace: Start) -> None:
        one = trace("--count", "call:do_sys_openat2", terminal=True)
        one.wait_for(b"duration")
        eventually(lambda: one.output.count(b"probe ") >= 3 or not opens(), 60)
        one.type(b"\x03")
        assert one.wait() == 0
        assert b"A\x1b[J" in one.output
        assert "█".encode() in one.output
        print(one.output.decode())

    def test_a_pattern_is_a_row_each(self, trace: Start) -> None:
        one = trace("--count", "kprobe:vfs_r*")
        TestJson.until_ready_softly(one) if hasattr(TestJson, "until_ready_softly") else time.sleep(5)
        Path("/etc/hostname").read_text()
        time.sleep(0.5)
        assert one.end() == 0
        assert b"\nvfs_read " in one.output
        assert (
            b"\nvfs_readlink " in one.output or b"\nvfs_readv " in one.output or b"vfs_rename" in one.output
        )


def opens() -> None:
    for _ in range(50):
        with suppress(OSError):
            os.close(os.open("/etc/hostname", os.O_RDONLY))


def comm() -> str:
    name = ctypes.create_string_buffer(16)
    ctypes.CDLL(None).prctl(16, name, 0, 0, 0)  # PR_GET_NAME
    return name.value.decode()


def test_the_configuration_makes_the_agent_do_it(start_agent: StartAgent) -> None:
    result = CliRunner().invoke(
        main, ["trace", "--emit-config", "r:mine do_sys_openat2 rval=$retval:s32", "rval == -2"]
    )
    assert result.exit_code == 0
    agent = start_agent(result.output)
    with suppress(OSError):
        os.open("/nonexistent", os.O_RDONLY)
    eventually(lambda: agent.scrape().value("kprobe_return_errors_total", probe="mine", errno="ENOENT") >= 1)
