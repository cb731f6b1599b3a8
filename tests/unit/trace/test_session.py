"""trace.session: the definitions that are installed as text."""

import pytest

from kprobe_exporter.elf import library_path
from kprobe_exporter.trace.request import parse_request
from kprobe_exporter.trace.session import text_specs
from tests.support.kernel_formats import saved
from tests.support.libc import own_libc
from tests.support.programs import file_offset


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
