"""Strings behind the arguments of system calls, against what the load itself passed."""

import ctypes
import errno
import mmap
import os
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.kernel.traced_strings import HOSTILE, MOST, Object, objects, text
from tests.kernel.workload import FORGED, TRUE, Child
from tests.support.patience import eventually
from tests.support.trace_process import StartTrace, TraceProcess
from tests.vm.kernels import ALL_FILTERS, EPROBES

pytestmark = pytest.mark.needs("kprobe_events")

OPENS, EXECS = 500, 200
NOWHERE = 1 << 20
"""An address that no program has: it is between vm.mmap_min_addr and where programs are loaded."""

NAP = 0.03
LONG = 0.5
"""Seconds of a sleep that a starved machine does not make of one of a millisecond."""

libc = ctypes.CDLL(None, use_errno=True)


def traced(trace: TraceProcess, child: Child, last: bytes) -> list[Object]:
    """Let the child do its work, and return the events until ``last`` is in the output."""
    trace.wait_until_enabled()
    child.work()
    child.close()
    trace.wait_for(last)
    assert trace.end() == 0
    note = "" if has(EPROBES) else trace.errors
    assert trace.errors == note
    return objects(trace)


def some_path(random: Random) -> bytes:
    drawn = bytes(random.choices(range(1, 256), k=random.randint(1, 90)))
    name = random.choice([random.choice(HOSTILE), drawn]).replace(b"/", b"_")
    return (b"/nonexistent/" + name * random.choice([1, 1, 1, 40]))[:3900]


def test_paths_of_opens(trace: StartTrace, random: Random) -> None:
    paths = [some_path(random) if random.random() < 0.8 else b"/etc/hostname" for _ in range(OPENS)]

    def work() -> None:
        for path in [*paths, b"/nonexistent/last"]:
            with suppress(OSError):
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    child = Child(work)
    found = traced(
        trace("--json", "-p", str(child.pid), "syscall:openat dfd file=filename:string"),
        child,
        b"nonexistent/last",
    )
    shown = [(one["args"]["file"], one.get("error", "ok")) for one in found]
    wanted = [(text(path), "ok" if path == b"/etc/hostname" else None) for path in paths]
    start = next(at for at in range(len(shown)) if shown[at][0] == wanted[0][0])  # Python itself opens files
    assert [file for file, _ in shown[start : start + OPENS]] == [file for file, _ in wanted]
    for (_, error), (_, expected) in zip(shown[start:], wanted, strict=False):
        assert error == (expected or error)
        assert (error == "ok") == (expected == "ok")
    assert {one["args"]["dfd"] for one in found} == {-100}


def test_arguments_of_execs(trace: StartTrace, random: Random) -> None:
    words = [b"-l", b"a b", b"x" * 200, *HOSTILE]
    argvs = [[b"true", *random.choices(words, k=random.randint(0, 11))] for _ in range(EXECS)]
    record: dict[int, list[bytes]] = {}
    running = trace("--json", "syscall:execve file=filename:string argv=argv:strings[8]")
    running.wait_until_enabled()
    for argv in argvs:
        pid = os.fork()
        if pid == 0:
            with suppress(OSError):
                os.execve(TRUE, argv, {})
            os._exit(1)
        record[pid] = argv
        os.waitpid(pid, 0)
    running.wait_for(b'"tid": %d,' % pid)
    assert running.end() == 0
    found = {one["tid"]: one for one in objects(running) if one["tid"] in record}
    assert found.keys() == record.keys()
    for pid, argv in record.items():
        more = [b"..."] if len(argv) > MOST else []
        assert found[pid]["args"] == {"file": str(TRUE), "argv": text(b" ".join(argv[:MOST] + more))}
        assert found[pid]["return"] == 0


def test_vector_at_its_ends(trace: StartTrace) -> None:
    """No argument, an empty one, exactly as many as are read, a null pointer that garbage follows, and none.

    Without an array the kernel leaves the places of the strings as they were in the buffer's page, and the
    thread's name is where they point. The many calls before fill the pages.
    """
    texts = {
        b"one": [b"one"],
        b"eight": [b"eight", *b"abcdefg".hex(" ", 1).encode().split()],
        b"": [b"", b"x"],
    }
    garbage = (ctypes.c_char_p * 9)(b"first", None, *[b"garbage"] * 7)

    def work() -> None:
        for _ in range(OPENS):
            libc.execve(b"/nonexistent", garbage, None)
        for argv in texts.values():
            libc.execve(b"/nonexistent", (ctypes.c_char_p * (len(argv) + 1))(*argv, None), None)
        libc.execve(b"/nonexistent", garbage, None)
        libc.execve(b"/nonexistent", ctypes.c_void_p(NOWHERE), None)
        libc.execve(b"/nonexistent/last", None, None)

    child = Child(work)
    command = "syscall:execve file=filename:string argv=argv:strings[8]"
    found = traced(trace("--json", "-p", str(child.pid), command), child, b"nonexistent/last")
    shown = [one["args"]["argv"] for one in found]
    assert shown[:OPENS] == ["first"] * OPENS
    shown = shown[OPENS:]
    joined = [text(b" ".join(argv)) for argv in texts.values()]
    # Before 6.16 the kernel stores an empty string of a program as one that it could not read.
    assert shown[:2] == joined[:2]
    assert shown[2] in (joined[2], "? x")
    assert shown[3:] == ["first", None, None]


def test_string_behind_a_pointer_that_leads_nowhere(trace: StartTrace) -> None:
    """It has no value, although the kernel stores the next string where this one would be."""

    def work() -> None:
        for argv in (ctypes.c_void_p(NOWHERE), None, (ctypes.c_char_p * 2)(b"here", None)):
            libc.execve(b"/nonexistent/last", argv, None)

    child = Child(work)
    command = "tracepoint:syscalls:sys_enter_execve first=+0(+0($argv)):ustring file=+0($filename):ustring"
    found = traced(trace("--json", "-p", str(child.pid), command), child, b"here")
    assert [one["args"] for one in found] == [
        {"first": first, "file": "/nonexistent/last"} for first in (None, None, "here")
    ]


def test_string_that_is_not_in_memory(trace: StartTrace, tmp_path: Path) -> None:
    """The kernel waits for no page at the entry of a call: the string is unknown, and never a text."""
    path = b"/nonexistent/in-a-file"
    (tmp_path / "page").write_bytes(path + bytes(mmap.PAGESIZE - len(path)))

    def work() -> None:
        with (tmp_path / "page").open("rb") as file:
            address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
        libc.openat(-100, ctypes.c_void_p(address), 0)
        libc.openat(-100, ctypes.c_void_p(address), 0)
        libc.openat(-100, ctypes.c_void_p(8), 0)
        libc.openat(-100, b"/nonexistent/last", 0)

    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    child = Child(work)
    command = "syscall:openat file=filename:string"
    found = traced(trace("--json", "-p", str(child.pid), command), child, b"nonexistent/last")
    first, second, nowhere, _ = [(one["args"]["file"], one.get("error")) for one in found][-4:]
    assert first in (
        [(None, "ENOENT")] if not has(ALL_FILTERS) else [(None, "ENOENT"), (text(path), "ENOENT")]
    )
    assert second == (text(path), "ENOENT")  # the call itself has read the page
    assert nowhere == (None, "EFAULT")


def test_argument_that_changes_during_the_call(trace: StartTrace, tmp_path: Path) -> None:
    """The entry's text is shown, although the program has another one there before the call returns."""
    fifo, other = bytes(tmp_path / "fifo"), b"/nonexistent/other"
    os.mkfifo(fifo)
    buffer = ctypes.create_string_buffer(fifo, 512)

    def work() -> None:
        def change() -> None:
            time.sleep(NAP)
            buffer.value = other
            os.close(os.open(fifo, os.O_RDONLY))

        later = threading.Thread(target=change)
        later.start()
        libc.openat(-100, buffer, os.O_WRONLY)  # waits for a reader
        later.join()
        libc.openat(-100, buffer, 0)

    child = Child(work)
    command = "syscall:openat file=filename:string flags"
    found = traced(trace("--json", "-p", str(child.pid), command), child, other)
    (call,) = [one for one in found if one["args"]["flags"] & 3 == os.O_WRONLY]
    assert call["args"]["file"] == text(fifo)
    assert buffer.value == fifo  # that of this process, whose copy the child had


def test_agent_counts_by_string(start_agent: StartAgent, random: Random) -> None:
    agent = start_agent(f"""
probes:
  - name: files
    attach: syscall:openat
    fetch: {{file: {{string: filename}}}}
    filter: file ~ "/nonexistent/*" && common_pid == {os.getpid()}
    metrics: [{{counter: files_total, labels: {{file: file, errno: {{field: return, decode: errno}}}}}}]
  - name: entries
    attach: tracepoint:syscalls:sys_enter_openat
    filter: filename.ustring ~ "/nonexistent/*" && common_pid == {os.getpid()}
    metrics: [{{counter: entries_total}}]
""")
    paths = Counter(f"/nonexistent/{random.randint(0, 20)}" for _ in range(300))
    for path, times in paths.items():
        for _ in range(times):
            with pytest.raises(FileNotFoundError):
                os.open(path, os.O_RDONLY)
    metrics = agent.scrape()
    assert {
        labels["file"]: metrics.value("kprobe_files_total", **labels)
        for labels in metrics.labels("kprobe_files_total")
    } == paths
    assert {labels["errno"] for labels in metrics.labels("kprobe_files_total")} == {
        errno.errorcode[errno.ENOENT]
    }
    assert metrics.value("kprobe_entries_total") == 300


def test_call_in_text(trace: StartTrace) -> None:
    """A condition on the joined event holds in text too, which has a line for each call."""

    def work() -> None:
        for nap in (0.001, LONG, 0.001, LONG):
            time.sleep(nap)
        with suppress(OSError):
            os.open(FORGED, os.O_RDONLY)

    child = Child(work)
    long = trace("-p", str(child.pid), "call:hrtimer_nanosleep", f"duration > {LONG * 900:.0f}ms")
    opened = trace("-p", str(child.pid), "syscall:openat file=filename:string", "return < 0")
    for one in (long, opened):
        one.wait_until_enabled()
    child.work()
    child.close()
    opened.wait_for(b"forged")
    assert [long.end(), opened.end()] == [0, 0]
    lines = [line for line in long.output.decode().splitlines() if ": hrtimer_nanosleep: " in line]
    assert len(lines) == 2, long.output
    for line in lines:
        assert re.fullmatch(
            rf" *\S+-{child.tid} +\[\d{{3}}\] \.{{5}} +\d+\.\d{{6}}: hrtimer_nanosleep:"
            r" \(\S+ <- hrtimer_nanosleep\) duration=[\d.]+(ms|s) return=0",
            line,
        ), line
    (forged,) = [line for line in opened.output.splitlines() if b"forged" in line]
    assert forged.endswith(b"return=-2 error=ENOENT")


def test_arguments_of_a_call(trace: StartTrace) -> None:
    """By a parameter's name from BTF and by its number, beside what the call returns."""
    sizes = [7, 4096, 1]

    def work() -> None:
        with Path("/dev/zero").open("rb", buffering=0) as file:
            for size in sizes:
                file.read(size)

    child = Child(work)
    command = "call:vfs_read count third=$arg3:u64"
    running = trace("--json", "-p", str(child.pid), command, f"count == {sizes[0]} || return == 4096")
    running.wait_until_enabled()
    child.work()
    child.close()
    eventually(lambda: running.output.count(b"\n") >= 2)
    assert running.end() == 0
    found = [(one["args"]["count"], one["args"]["third"], one["return"]) for one in objects(running)]
    assert [one for one in found if one[2] in sizes] == [(7, 7, 7), (4096, 4096, 4096)]
