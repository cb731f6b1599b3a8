"""trace.resolve: what the user is told before anything is installed, from the kernel's lists alone."""

import os
from pathlib import Path

import pytest

from kprobe_exporter.elf import Code, library_path
from kprobe_exporter.errors import UsageError
from kprobe_exporter.grammar.place import FileOffset
from kprobe_exporter.trace import resolve as module
from kprobe_exporter.trace.request import parse_request
from kprobe_exporter.trace.resolve import ResolvedRequest, resolve
from kprobe_exporter.trace.session import text_specs
from kprobe_exporter.tracefs.files import MountedTracefs
from tests.support.libc import own_libc
from tests.support.programs import file_offset

FILES = {
    "tracing/events/sched/sched_switch/format": "",
    "tracing/available_filter_functions": "vfs_read\nvfs_open\ndo_sys_open\ndo_sys_openat2\nkeeps_off\n"
    "kernel_clone\nf.isra.0\next4_open [ext4]\n__do_sys_getppid\n__x64_sys_read\n",
    "root/proc/kallsyms": "".join(
        f"{address:016x} t {name}\n"
        for address, name in [
            *((16, "vfs_read"), (32, "vfs_open"), (48, "do_sys_open"), (64, "do_sys_openat2")),
            *((80, "keeps_off"), (96, "kernel_clone"), (112, "f.isra.0"), (128, "__do_sys_getppid")),
            *((128, "__x64_sys_getppid"), (144, "ext4_open\t[ext4]"), (160, "__x64_sys_read")),
        ]
    ),
    "root/proc/modules": "ext4 1 0 - Live 0x0\n",
    "root/sys/kernel/debug/kprobes/blacklist": "0x50-0x60\tkeeps_off\n",
}


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def find(kernel: Path, text: str) -> ResolvedRequest:
    return resolve(parse_request(text), MountedTracefs(kernel / "tracing"), kernel / "root")


@pytest.mark.parametrize(
    "text", ["p:vfs_read", "r:mine vfs_open $retval", "call:vfs_read", "sched:sched_switch"]
)
def test_nothing_is_to_be_said(kernel: Path, text: str) -> None:
    assert find(kernel, text) == ResolvedRequest(parse_request(text))


def test_one_that_never_fires(kernel: Path) -> None:
    found = find(kernel, "p:do_sys_open")
    (warning,) = found.warnings
    assert warning.startswith("do_sys_open: it will never fire: ")
    assert "do_sys_openat2" in warning
    assert (found.notes, found.refused) == ((), None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p:do_fork", "kernel_clone does its work today"),
        ("r:vfs_raed", "did you mean 'vfs_read'?"),
        ("p:keeps_off", "the kernel keeps kprobes off it"),
    ],
)
def test_one_that_cannot_be_probed(kernel: Path, text: str, said: str) -> None:
    refused = find(kernel, text).refused
    assert refused is not None
    assert said in refused
    assert refused.endswith((".", "?"))


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("p:mine f", "f.isra.0", "is compiled as 'f.isra.0' here"),
        ("p:mine ext4_open", "ext4:ext4_open", "is a function of the module 'ext4'"),
        ("p:mine sys_read fd=$arg1:u32", "__x64_sys_read", "'sys_read' is '__x64_sys_read' here"),
        ("p:mine __x64_sys_getppid", "__x64_sys_getppid", "it is also called __do_sys_getppid"),
    ],
)
def test_one_that_is_called_otherwise(kernel: Path, text: str, place: str, said: str) -> None:
    found = find(kernel, text)
    (note,) = found.notes
    assert said in note
    assert (found.warnings, found.refused) == ((), None)
    assert found.request.definition is not None
    assert str(found.request.definition.place) == place
    assert found.request.name == "mine"


@pytest.mark.parametrize(
    ("text", "target", "lines"),
    [
        ("call:f", "call:f.isra.0", ["p:g/f f.isra.0", "r1024:g/f_return f.isra.0"]),
        (
            "call:ext4_open",
            "call:ext4:ext4_open",
            ["p:g/ext4_open ext4:ext4_open", "r1024:g/ext4_open_return ext4:ext4_open"],
        ),
    ],
)
def test_a_call_that_is_called_otherwise(kernel: Path, text: str, target: str, lines: list[str]) -> None:
    """The function in the note is probed, and its events have the name that the user typed."""
    found = find(kernel, text)
    assert len(found.notes) == 1
    assert str(found.request.target) == target
    assert [spec.line("g", spec.layout.event) for spec in text_specs(found.request, None)] == lines


def test_an_argument_of_a_system_call(kernel: Path) -> None:
    definition = find(kernel, "r:sys_read fd=$arg1:u32 $arg2 $retval").request.definition
    assert definition is not None
    assert definition.render() == "r:sys_read __x64_sys_read fd=+112($arg1):u32 arg2=+104($arg1) arg3=$retval"
    with pytest.raises(UsageError, match=r"^a system call has no \$arg9, only \$arg1 to \$arg6\.$"):
        find(kernel, "kprobe:sys_read $arg9")


def test_an_argument_of_a_system_call_with_its_return(kernel: Path) -> None:
    request = find(kernel, "call:sys_read fd=$arg1:u32 +0($arg2):ustring").request
    assert str(request.target) == "call:__x64_sys_read"
    assert request.fetch == (("fd", "+112($arg1):u32"), ("arg2", "+0(+104($arg1)):ustring"))
    with pytest.raises(UsageError, match=r"^a system call has no \$arg9, only \$arg1 to \$arg6\.$"):
        find(kernel, "call:sys_read $arg9")


def test_where_a_function_of_a_file_was_found(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "locate", lambda target, files: Code(0x1234, "EM_X86_64"))
    request = find(kernel, "r:/bin/bash:readline").request
    assert request.definition is not None
    assert request.definition.place == FileOffset("/bin/bash", 0x1234, None)
    assert str(request.target) == "uretprobe:/bin/bash:readline"


@pytest.mark.parametrize("root", ["", f"/proc/{os.getpid()}/root:"], ids=["here", "of a process"])
@pytest.mark.parametrize(
    "written", ["r:{}libc.so.6:malloc", "uretprobe:{}libc.so.6:malloc", "r {}libc.so.6:malloc"]
)
def test_a_function_of_a_library_by_its_name(kernel: Path, written: str, root: str) -> None:
    request = find(kernel, written.format(root)).request
    assert request.definition is not None
    assert str(request.target) == f"uretprobe:{root}libc.so.6:malloc"
    place = request.definition.place
    assert isinstance(place, FileOffset)
    assert place.path == library_path(f"{root}libc.so.6")
    assert place.offset == file_offset(str(own_libc()), "malloc")


def test_an_offset_in_a_library_by_its_name(kernel: Path) -> None:
    offset = file_offset(str(own_libc()), "malloc")
    request = find(kernel, f"uprobe:libc.so.6:{offset:#x}").request
    assert request.definition is not None
    assert request.definition.place == FileOffset(library_path("libc.so.6"), offset, None)


def test_a_library_that_is_not_here(kernel: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no library 'libnone\.so\.1' here: .*"):
        find(kernel, "uprobe:libnone.so.1:malloc")


def test_a_function_that_its_file_has_not(kernel: Path) -> None:
    with pytest.raises(UsageError, match="nosuch"):
        find(kernel, "p:/bin/true:nosuch")
