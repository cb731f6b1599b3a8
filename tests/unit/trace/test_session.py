"""trace.session: the thread ids written to the kernel, and the definitions that are installed as text."""

from pathlib import Path

import pytest

from kprobe_exporter.elf import library_path
from kprobe_exporter.errors import StartError
from kprobe_exporter.trace.request import parse_request
from kprobe_exporter.trace.session import MOST_TIDS, TracedThreads, text_specs
from kprobe_exporter.tracefs.instance import Instance
from tests.support.kernel_formats import saved
from tests.support.libc import own_libc
from tests.support.programs import file_offset

Written = list[tuple[str, str]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Written:
    written: Written = []
    monkeypatch.setattr(Instance, "write", lambda self, path, text: written.append((path, text)))
    return written


@pytest.fixture
def instance() -> Instance:
    return Instance.__new__(Instance)


def start(proc: Path, pid: int, *tids: int) -> None:
    for tid in tids:
        (proc / f"{pid}/task/{tid}").mkdir(parents=True)


def test_a_process_with_later_threads(tmp_path: Path, instance: Instance, told: Written) -> None:
    start(tmp_path, 7, 7, 8)
    threads = TracedThreads(instance, 7, None, proc=tmp_path)
    threads.look()
    start(tmp_path, 7, 9)
    threads.look()
    assert told == [("set_event_pid", "7 8\n"), ("set_event_pid", "9\n")]


def test_a_process_that_ends(tmp_path: Path, instance: Instance, told: Written) -> None:
    start(tmp_path, 7, 7)
    threads = TracedThreads(instance, 7, None, proc=tmp_path)
    (tmp_path / "7/task/7").rmdir()
    (tmp_path / "7/task").rmdir()
    threads.look()
    assert told == [("set_event_pid", "7\n")]


def test_a_thread(tmp_path: Path, instance: Instance, told: Written) -> None:
    (tmp_path / "8").mkdir()  # a listing of /proc does not show a thread
    threads = TracedThreads(instance, None, 8, proc=tmp_path)
    threads.look()
    assert told == [("set_event_pid", "8\n")]


@pytest.mark.parametrize(("pid", "tid", "what"), [(7, None, "process 7"), (None, 7, "thread 7")])
def test_without_a_traced_thread(
    tmp_path: Path, instance: Instance, told: Written, pid: int | None, tid: int | None, what: str
) -> None:
    with pytest.raises(StartError, match=f"there is no {what}"):
        TracedThreads(instance, pid, tid, proc=tmp_path)
    assert told == []


def test_all_are_told_in_a_few_writes(tmp_path: Path, instance: Instance, told: Written) -> None:
    start(tmp_path, 7, *range(1, 2 * MOST_TIDS + 2))
    TracedThreads(instance, 7, None, proc=tmp_path)
    numbers = [[int(word) for word in text.split()] for _, text in told]
    assert [len(part) for part in numbers] == [MOST_TIDS, MOST_TIDS, 1]
    assert [number for part in numbers for number in part] == [*range(1, 2 * MOST_TIDS + 2)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("p:mine vfs_read a=%di", ["p:g/mine vfs_read a=%di"]),
        ("r:mine vfs_read $retval", ["r1024:g/mine vfs_read arg1=$retval"]),
        ("r7:mine vfs_read", ["r7:g/mine vfs_read"]),
        ("fexit:vfs_read", ["f:g/vfs_read vfs_read%return"]),
        ("call:vfs_read", ["p:g/vfs_read vfs_read", "r1024:g/vfs_read_return vfs_read"]),
    ],
)
def test_what_is_installed(text: str, lines: list[str]) -> None:
    specs = text_specs(parse_request(text), "a > 0")
    assert [spec.line("g", spec.layout.event) for spec in specs] == lines
    assert {spec.filter for spec in specs} == {"a > 0"}


@pytest.mark.parametrize("path", ["libc.so.6", str(own_libc())])
def test_both_events_of_a_programs_call_are_at_its_offset(path: str) -> None:
    specs = text_specs(parse_request(f"ucall:{path}:getaddrinfo"), None)
    place = f"{library_path('libc.so.6') if path == 'libc.so.6' else path}:"
    place += f"{file_offset(str(own_libc()), 'getaddrinfo'):#x}"
    assert [spec.line("g", spec.layout.event) for spec in specs] == [
        f"p:g/getaddrinfo {place}",
        f"r:g/getaddrinfo_return {place}",
    ]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("sched:sched_switch", [("sched", "sched_switch")]),
        ("syscall:openat", [("syscalls", "sys_enter_openat"), ("syscalls", "sys_exit_openat")]),
        ("syscall:exit_group", [("syscalls", "sys_enter_exit_group")]),
    ],
)
def test_tracepoints_are_there_already(text: str, events: list[tuple[str, str]]) -> None:
    specs = text_specs(parse_request(text), None)
    assert [(spec.system, spec.event) for spec in specs] == events
    assert all(spec.file is None for spec in specs)


@pytest.mark.parametrize(
    ("text", "only", "line", "filtered"),
    [
        ("sched:sched_wakeup", "common_comm == 'a' && cpu == 1", "", 'COMM == "a" && cpu == 1'),
        ("p:mine vfs_read", "common_cpu == 1", "p:g/mine vfs_read", "CPU == 1"),
        ("p:mine vfs_read", "common_cpu =! 1", "p:g/mine vfs_read", "common_cpu =! 1"),
        (
            "e:mine sched.sched_wakeup task=$pid",
            "pid == 3 && task == 3 && comm != 'a' && common_pid == 2 && nosuch == 1",
            "e:g/mine sched.sched_wakeup task=$pid comm=$comm:string pid=$pid:s32",
            "pid == 3 && task == 3 && comm != 'a' && common_pid == 2 && nosuch == 1",
        ),
    ],
)
def test_a_filter_means_the_same_as_the_agents(text: str, only: str, line: str, filtered: str) -> None:
    """The kernel's words stand for ours, and an eprobe has the fields of its event that the filter names."""
    formats = saved("6.12")

    def event_format(system: str, event: str) -> str:
        return formats[f"tracefs/events/{system}/{event}/format"].decode()

    [spec] = text_specs(parse_request(text), only, event_format=event_format)
    assert (spec.line("g", spec.layout.event) if spec.file else "") == line
    assert spec.filter == filtered
