"""`trace` shows the requested events as the kernel's text has them, byte for byte."""

import os
import re
import signal
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from kprobe_exporter.tracefs.ownership import MARKER
from tests.conftest import has
from tests.kernel.workload import FORGED, Child
from tests.support.patience import eventually
from tests.support.trace_process import MOST, TRACING, StartTrace, getppid, lines, work
from tests.vm.kernels import EPROBES

pytestmark = pytest.mark.needs("kprobe_events")

ENDING = b"\nEnding tracing...\n"
PATHS = (b"/nonexistent", b"/\xff\xfe\x1b[31m", b"/a\tb", b"/x y", FORGED)
ABSENT = "4194000"


def opens() -> None:
    for path in PATHS:
        with suppress(OSError):
            os.open(path, os.O_RDONLY)


def test_it_is_the_kernels_own_byte_for_byte(trace: StartTrace) -> None:
    """The output equals the file `trace`, which shows the same buffer unconsumed while we are stopped."""
    child = Child(opens)
    fields = "name=+0($arg2):string n=$arg2:x64 c=+0($arg2):x8[3] comm=$comm"
    one = trace("-s", "-L", str(child.pid), f"p:mine do_sys_openat2 {fields}")
    one.wait_for(TRACING)
    one.signal(signal.SIGSTOP)
    child.work()
    child.close()
    theirs = (one.instance / "trace").read_bytes()
    theirs = b"".join(line for line in theirs.splitlines(keepends=True) if not line.startswith(b"#"))
    one.signal(signal.SIGCONT)
    assert one.end() == 0
    assert theirs.count(b": mine: (") >= len(PATHS)
    assert theirs.count(b": <stack trace>\n") >= len(PATHS)
    assert one.output == TRACING + theirs + ENDING


def test_a_terminal_gets_no_control_bytes(trace: StartTrace) -> None:
    one = trace("p:mine do_sys_openat2 name=+0($arg2):string", 'name ~ "*evil*"', terminal=True)
    one.wait_for(b"Tracing kprobe mine.")
    with suppress(OSError):
        os.open(b"/evil\x1b]0;title\x07\xff\xc2\x9b", os.O_RDONLY)
    # The line's end is waited for as well: the terminal's echo of ^C may otherwise come before it.
    one.wait_for(rb'name="/evil\x1b]0;title\x07\xff\x9b"' + b"\r\n")
    one.type(b"\x03")
    assert one.wait() == 0
    assert b"\x1b" not in one.output
    assert one.output.endswith(b"\r\n^C\r\nEnding tracing...\r\n")


def test_a_newline_in_a_name_forges_no_line_on_a_terminal(trace: StartTrace) -> None:
    """Neither a file's nor a thread's name begins a line; the lines of kernel stacks stay lines."""
    forged = b"/evil" + FORGED

    def named() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("a\n forged-1 [0]")
        with suppress(OSError):
            os.open(forged, os.O_RDONLY)

    one = trace("-s", "p:mine do_sys_openat2 name=+0($arg2):string", 'name ~ "*evil*"', terminal=True)
    one.wait_for(b"Tracing kprobe mine.")
    for _ in range(3):
        thread = threading.Thread(target=named)
        thread.start()
        thread.join()
    name = re.escape(forged.replace(b"\n", rb"\n"))
    whole = re.compile(rb"(?s)(name=\"" + name + rb"\"\r\n.*<stack trace>\r\n( => [^\n]*\r\n)+.*){3}")
    eventually(lambda: whole.search(one.output))
    one.type(b"\x03")
    assert one.wait() == 0
    shown = one.output.split(b"\r\n")
    assert [line for line in shown if re.match(rb"\s*forged-1", line)] == []
    # The kernel does not keep every thread's name; it prints <...> for one that it did not.
    begins = re.compile(rb" a\\n forged-1 \[0\]-|\s+<\.\.\.>-")
    assert sum(begins.match(line) is not None for line in shown) == 6
    assert any(line.startswith(b" a\\n forged-1 [0]-") for line in shown)
    assert sum(line.startswith(b" => ") for line in shown) >= 3


def test_what_is_held_in_the_kernel_comes_at_the_end(trace: StartTrace) -> None:
    """With -H, events come at the end, even if the duration is cut short, and on a terminal as well."""
    held = [trace("-d", "1000", "-H", getppid()), trace("-d", "1000", "-H", getppid(), terminal=True)]
    for one in held:
        one.wait_for(b"Tracing kprobe mine for 1000 seconds (buffered)...")
    work()
    for one in held:
        assert lines(one) == []
        assert one.end() == 0
        assert b"\n# entries-in-buffer/entries-written: " in one.output
        assert len(lines(one)) >= MOST


def test_one_thread_until_its_last_event(trace: StartTrace) -> None:
    one = trace("-L", str(os.getpid()), getppid(), "common_pid > 0")
    one.wait_for(TRACING)
    other = threading.Thread(target=work)
    other.start()
    other.join()
    work()
    assert one.end(signal.SIGTERM) == 0
    assert len(lines(one)) == MOST


def test_a_process_with_the_threads_that_it_starts(trace: StartTrace) -> None:
    one = trace("-p", str(os.getpid()), getppid())
    one.wait_for(TRACING)
    child = Child(work)
    child.work()
    child.close()
    stopped = threading.Event()

    def thread() -> None:
        while not stopped.wait(0.01):
            os.getppid()

    late = threading.Thread(target=thread)
    late.start()
    try:
        work()
        tids = {os.getpid(), late.native_id}
        eventually(lambda: {int(line.split(b"-")[1].split()[0]) for line in lines(one)} == tids)
    finally:
        stopped.set()
        late.join()


def test_a_thread_or_process_that_is_not_there(trace: StartTrace) -> None:
    for what, option in (("process", "-p"), ("thread", "-L")):
        one = trace(option, ABSENT, getppid())
        assert one.wait() == 1
        assert one.errors == f"kprobe-exporter: there is no {what} {ABSENT}.\n"


def test_a_call_that_the_compiler_renamed(trace: StartTrace, tracefs: Path) -> None:
    """Both events of the call are on the function that the note names, under the requested name."""
    listed = (tracefs / "available_filter_functions").read_text().splitlines()
    symbols = Counter(line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines())
    clones = [found[1] for line in listed if (found := re.fullmatch(r"(\w+)\.isra\.0", line))]
    forms = Counter(name.partition(".")[0] for name in symbols)
    name = next(one for one in clones if forms[one] == symbols[f"{one}.isra.0"] == 1)
    one = trace(f"call:{name}")
    one.wait_for(f"Tracing call:{name}.isra.0. Ctrl-C to end.\n".encode())
    events = tracefs / f"events/{one.instance.name}"
    assert {event.name for event in events.iterdir() if event.is_dir()} == {name, f"{name}_return", MARKER}
    assert one.end() == 0
    assert one.errors == (
        f"kprobe-exporter: note: '{name}' is compiled as '{name}.isra.0' here: its arguments may be others.\n"
    )


def test_tracepoints_calls_and_functions_of_a_library(trace: StartTrace) -> None:
    maps = Path("/proc/self/maps").read_text()
    (libc,) = set(re.findall(r"/\S+/libc(?:\.so|-)\S+", maps))
    of_file = "tracepoint:sched:sched_process_exec f=$filename:string"
    kinds = {
        "sched:sched_process_exec": (b"sched:sched_process_exec", rb": sched_process_exec: filename=/"),
        of_file: (b"tracepoint sched_process_exec", rb' f="/'),
        "call:do_sys_openat2": (b"call:do_sys_openat2", rb" <- do_sys_openat2\)"),
        "syscall:execve": (b"syscall:execve", rb": execve: \(execve\) filename=0x"),
        f"p:mine {libc}:getppid a=$stack:u64": (
            f"uprobe mine (p:mine {libc}:0x".encode(),
            rb": \(0x\w+\) a=\d",
        ),
    }
    if not has(EPROBES):
        del kinds[of_file]
    running = {asked: trace(asked) for asked in kinds}
    for asked, (title, _) in kinds.items():
        running[asked].wait_for(b"Tracing " + title)
    child = Child(lambda: os.execv("/bin/true", ["true"]))
    child.work()
    child.close()
    work(1)
    for asked, (_, line) in kinds.items():
        eventually(lambda asked=asked, line=line: re.search(line, running[asked].output))  # type: ignore[misc]
        assert running[asked].end() == 0
