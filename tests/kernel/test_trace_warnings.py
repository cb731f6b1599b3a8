"""`trace` says in one sentence what will not work and what to write instead, before it installs anything."""

from pathlib import Path

import pytest

from tests.support.perf_tools_document import DOCUMENT
from tests.support.system_calls import BLACKLISTED
from tests.support.trace_process import StartTrace

pytestmark = pytest.mark.needs("kprobe_events")

EXEC = "sched:sched_process_exec"
FORCE = "not traced because of the warning: give -F to try it all the same."


def test_a_function_that_is_never_called(trace: StartTrace) -> None:
    """The function of perf-tools' first example is traced with a warning, which the document shows."""
    one = trace("p:do_sys_open")
    one.wait_for(b"Tracing kprobe do_sys_open. Ctrl-C to end.\n")
    assert one.end() == 0
    assert one.errors in DOCUMENT.read_text()
    assert one.errors == (
        "kprobe-exporter: warning: do_sys_open: it will never fire: open(2) does not go through it, name "
        "do_sys_openat2.\n"
    )


def test_functions_that_cannot_be_probed(trace: StartTrace) -> None:
    """Such functions are refused with a warning, and with -F the kernel itself refuses them."""
    said = {"r:vfs_raed": "did you mean 'vfs_read'?", f"p:{BLACKLISTED}": "the kernel keeps kprobes off it"}
    if not has_function("bio_alloc"):
        said["p:bio_alloc %ax"] = "bio_alloc_bioset does its work today"
    running = [(asked, trace(asked)) for asked in said]
    running += [(f"p:{BLACKLISTED}", trace("-F", f"p:{BLACKLISTED}"))]
    for asked, one in running:
        assert one.wait() == 1
        assert one.output == b""
        warning, refused = one.errors.splitlines()
        assert warning.startswith("kprobe-exporter: warning: ")
        assert said[asked] in warning
        assert (refused == f"kprobe-exporter: {FORCE}") == (one is not running[-1][1])


def has_function(name: str) -> bool:
    return f" {name}\n" in Path("/proc/kallsyms").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([EXEC, "nosuchfield == 1"], 1, "the filter 'nosuchfield == 1' is refused"),
        (["p:mine do_sys_openat2 x=%nosuch"], 1, "kernel says"),
        (["mine"], 2, "a definition begins with p for an entry or r for a return, write p:mine"),
        (["elevator_init"], 2, "write p:elevator_init"),
        (["r8169:foo"], 2, "tracepoint:r8169:foo"),
        (["ext4:*"], 2, "write tracepoint:ext4:*"),
        (["kprobe:vfs_*"], 2, "give --count"),
        (["-v", "-d", "1", EXEC], 2, "-v does nothing with -d"),
        (["--flame", "/nowhere/x.svg", EXEC], 2, "--flame: no file can be made in /nowhere"),
        (["p:mine /bin/nothing:main"], 2, "/bin/nothing"),
    ],
)
def test_one_sentence(trace: StartTrace, arguments: list[str], status: int, said: str) -> None:
    one = trace(*arguments)
    assert one.wait() == status
    (line,) = one.errors.splitlines()
    assert said in line
