"""`list` shows what the kernel's files list and the kernel accepts, and why the rest cannot be probed."""

import os
import platform
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.grammar.target import Kind, parse_target
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.files import MountedTracefs
from tests.kernel.verdict import takes
from tests.support.kernel_modules import FUNCTION, MODULE

FUNCTIONS = pytest.mark.needs("kprobe_events", "available_filter_functions")


def listed(*arguments: str) -> list[str]:
    result = CliRunner().invoke(main, ["list", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def told(*arguments: str, status: int = 1) -> str:
    """Return the one sentence that `list` writes to stderr."""
    result = CliRunner().invoke(main, ["list", *arguments])
    assert result.exit_code == status, result.output
    [line] = result.stderr.splitlines()
    return line.removeprefix("kprobe-exporter: ")


def lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def kernel_symbols() -> list[tuple[str, str]]:
    """Return name and module of each symbol of the kernel and its modules."""
    found = (re.fullmatch(r"\S+ \S (\S+)(?:\t\[(\S+)\])?", line) for line in lines("/proc/kallsyms"))
    pairs = [(one[1], one[2] or "") for one in found if one]
    return [pair for pair in pairs if not pair[1].startswith(("__builtin__", "bpf"))]


@FUNCTIONS
def test_the_functions_are_those_of_the_kernels_files(tracefs: Path) -> None:
    names = Counter(name for name, _ in kernel_symbols())
    within = Counter(kernel_symbols())
    off = {line.split()[1] for line in lines("/sys/kernel/debug/kprobes/blacklist")}
    wanted = set()
    for line in lines(str(tracefs / "available_filter_functions")):
        name, _, module = line.partition(" ")
        module = module.strip("[]")
        shared = within[name, module] > 1 if module else names[name] > 1
        if not shared and name not in off and not name.startswith("__ftrace_invalid_address__"):
            wanted.add(f"kprobe:{module}:{name}" if module else f"kprobe:{name}")
    found = listed("kprobe:*")
    assert found == sorted(wanted)
    assert len(found) > 30_000


@FUNCTIONS
def test_each_of_some_functions_can_be_defined(files: MountedTracefs, random: Random) -> None:
    refused = []
    for attach in random.sample(listed("kprobe:*"), 20):
        target = parse_target(attach)
        place = f"{target.module}:{target.symbol}" if target.module else target.symbol
        if takes(files, "kprobe_events", f"p:list_under_test/one {place}"):
            files.write("kprobe_events", "-:list_under_test/one")
        else:
            refused.append(attach)
    assert refused == []


@FUNCTIONS
def test_a_function_by_its_name_is_itself() -> None:
    assert listed("vfs_read") == listed("kprobe:vfs_read") == ["kprobe:vfs_read"]
    assert listed("kretprobe:vfs_[r]ead") == ["kretprobe:vfs_read"]
    assert listed("vfs_rea?") == ["kprobe:vfs_read"]


@FUNCTIONS
def test_one_that_was_inlined() -> None:
    symbols = {name for name, _ in kernel_symbols()}
    name = next(one for one in ("fdput", "rcu_read_lock", "list_add_tail") if one not in symbols)
    assert told(name).startswith(
        f"'kprobe:{name}' cannot be probed: this kernel has no such function, or the compiler inlined it"
    )
    assert told("do_fork").endswith("inlined it: kernel_clone does its work today.")


@FUNCTIONS
def test_one_that_is_notrace(files: MountedTracefs) -> None:
    assert "it is marked notrace, and kprobes refuse such functions" in told("trace_clock_local")
    assert not takes(files, "kprobe_events", "p:list_under_test/one trace_clock_local")


@FUNCTIONS
def test_those_that_are_blacklisted(files: MountedTracefs, random: Random) -> None:
    names = Counter(name for name, _ in kernel_symbols())
    off = {line.split()[1] for line in lines("/sys/kernel/debug/kprobes/blacklist")}
    for name in random.sample(sorted(name for name in off if names[name] == 1), 3):
        assert "the kernel keeps kprobes off it" in told(name)
        assert not takes(files, "kprobe_events", f"p:list_under_test/one {name}")


@FUNCTIONS
def test_a_name_of_several_functions(files: MountedTracefs) -> None:
    said = told("c_start")
    assert re.search(r"\d functions have this name, and .*: name one of them: kprobe:_s?text\+\d+,", said)
    offset = re.search(r"_s?text\+\d+", said)
    assert offset
    assert takes(files, "kprobe_events", f"p:list_under_test/one {offset[0]}")
    files.write("kprobe_events", "-:list_under_test/one")
    assert listed(f"kprobe:{offset[0]}") == [f"kprobe:{offset[0]}"]


@FUNCTIONS
@pytest.mark.skipif("KPROBE_EXPORTER_VM" not in os.environ, reason="not on a machine that is used on")
def test_one_of_a_module_that_is_not_loaded(no_module: None) -> None:
    attach = f"kprobe:{MODULE}:{FUNCTION}"
    assert listed(attach) == [attach]
    assert told(attach, status=0) == f"{attach}: armed when the module '{MODULE}' is loaded"
    assert "no such function" in told(FUNCTION)
    assert told(f"{MODULE}:{FUNCTION}").startswith(
        f"'{MODULE}:{FUNCTION}' begins with '{MODULE}', which is neither a kind"
    )
    subprocess.run(["modprobe", MODULE], check=True)
    assert listed(f"{MODULE}:{FUNCTION}") == listed(FUNCTION) == [attach]
    assert attach in listed(f"{MODULE}:*")
    if Path("/sys/kernel/btf", MODULE).exists():  # since Linux 5.11
        assert listed("-v", attach)[1].startswith("    ssize_t disksize_show(struct device *dev, ")


@FUNCTIONS
@pytest.mark.skipif("KPROBE_EXPORTER_VM" not in os.environ, reason="not on a machine that is used on")
def test_one_that_such_a_module_exports() -> None:
    loaded = {line.split()[0] for line in lines("/proc/modules")}
    known = {name for name, _ in kernel_symbols()}
    for line in lines(f"/lib/modules/{platform.release()}/modules.symbols"):
        alias, _, module = line.rpartition(" ")
        name = alias.removeprefix("alias symbol:")
        if module not in loaded and name not in known and line.startswith("alias symbol:"):
            said = f"the module '{module}' has one and is not loaded, 'kprobe:{module}:{name}' is armed"
            assert said in told(name)
            return
    pytest.fail("every module is loaded")


def test_the_tracepoints_are_those_that_can_be_enabled(tracefs: Path, files: MountedTracefs) -> None:
    places = [enable.parent for enable in tracefs.glob("events/*/*/enable")]
    wanted = {f"tracepoint:{place.parent.name}:{place.name}" for place in places}
    # Others may have defined events: on a machine that is used on, the test does not touch these.
    groups = {one.group for one in list_definitions(files)} | {"ftrace"}
    found = listed("tracepoint:*")
    assert found == sorted(one for one in wanted if one.split(":")[1] not in groups)
    assert listed("sched:sched_wakeup*") == [one for one in found if ":sched:sched_wakeup" in one]


def test_events_of_tools_are_no_tracepoints(files: MountedTracefs) -> None:
    before = listed("tracepoint:*")
    files.write("uprobe_events", "p:list_under_test/one /proc/self/exe:0x0")
    try:
        assert listed("tracepoint:*") == before
    finally:
        files.write("uprobe_events", "-:list_under_test/one")


def test_fields_of_a_tracepoint() -> None:
    found = listed("-v", "tracepoint:sched:sched_process_exec")
    assert found[0] == "tracepoint:sched:sched_process_exec"
    assert found[1:4] == ["    __data_loc char[] filename", "    pid_t pid", "    pid_t old_pid"]


@FUNCTIONS
def test_prototypes() -> None:
    found = listed("-v", "kprobe:vfs_*")
    at = found.index("kprobe:vfs_read")
    assert found[at + 1] == "    ssize_t vfs_read(struct file *file, char *buf, size_t count, loff_t *pos)"
    attach = [line for line in found if not line.startswith(" ")]
    assert attach == listed("kprobe:vfs_*")
    assert len(found) - len(attach) > 0.9 * len(attach)


def test_system_calls() -> None:
    assert listed("syscall:openat*") == ["syscall:openat", "syscall:openat2"]
    assert all(parse_target(one).kind is Kind.SYSCALL for one in listed("syscall:*"))


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m kprobe_exporter list | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
