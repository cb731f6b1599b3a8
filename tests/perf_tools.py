"""perf-tools' examples of `kprobe` as rows: what they say, what we do, and what has to come of it.

tests/kernel/test_trace_examples.py runs each on a real kernel. `python -m tests.perf_tools` does so too, as
root, and prints each row with its output, as docs/perf-tools.md shows it.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.agent_process import eventually
from tests.trace_process import TraceProcess

PREFIX = rb"^ *[^\n]{1,16}-\d+ +\[\d{3}\] [^ ]{4,5} +\d+\.\d{6}: "
"""Of the kernel's line: the thread's name and id, the CPU, flags, the time."""

OPENAT = rb"\(do_sys_openat2\+0x[04]/0x[0-9a-f]+\)"
RETURN = rb"\(\w[\w.]*\+0x[0-9a-f]+/0x[0-9a-f]+ <- do_sys_openat2\)"
BIO = rb"\(bio_alloc_bioset\+0x[04]/0x[0-9a-f]+\)"
WORD = rb"0x[0-9a-f]+"


@dataclass(frozen=True)
class Row:
    """One example: ``theirs`` as perf-tools' documents have it, ``ours`` the arguments of `trace`.

    ``work`` makes the events. ``line`` is what a line of the output has to be, after the kernel's prefix
    where ``prefixed``. ``why`` says how and why it differs.
    """

    theirs: str
    ours: tuple[str, ...]
    work: Callable[[], None]
    line: bytes
    why: str = ""
    prefixed: bool = True

    @property
    def command(self) -> str:
        """As it is typed."""
        return f"kprobe-exporter trace {' '.join(map(_quoted, self.ours))}"

    @property
    def pattern(self) -> re.Pattern[bytes]:
        return re.compile((PREFIX if self.prefixed else b"^") + self.line, re.MULTILINE)


def _quoted(word: str) -> str:
    return word if word == "PID" else shlex.quote(word)


def opens() -> None:
    """A file, one that is not there, one whose name ends in "stat"."""
    for path in ("/etc/hostname", "/nonexistent", "/proc/self/stat"):
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY))
    with tempfile.TemporaryDirectory() as directory:
        os.close(os.open(f"{directory}/new", os.O_CREAT | os.O_WRONLY, 0o640))


def block_io() -> None:
    """Reads of a block device without a disk, which null_blk makes."""
    subprocess.run(["modprobe", "null_blk"], check=True)
    try:
        descriptor = os.open("/dev/nullb0", os.O_RDONLY)
        os.read(descriptor, 65536)
        os.close(descriptor)
    finally:
        eventually(lambda: subprocess.run(["modprobe", "-r", "null_blk"], check=False).returncode == 0)


def idle_connection() -> None:
    """A connection that was idle for longer than its retransmission timeout starts slowly again."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        accepted.sendall(b"x")
        client.recv(1)
        time.sleep(0.5)
        accepted.sendall(b"x" * 100)
        client.recv(100)


def retransmission() -> None:
    """Connections that nobody accepts: the queue is full, so the next SYN is dropped and sent again."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        time.sleep(1.5)


FILENAME = "p:myopen do_sys_openat2 filename=+0(%si):string"
NAMED = OPENAT + rb' filename="/'
OPEN2 = "open(2) goes through do_sys_openat2 since Linux 5.6; do_sys_open is there and never called."
TYPED = "Since 6.9 or so the kernel types $retval by BTF, so it is decimal."
BIO_ALLOC = "bio_alloc is inlined since Linux 5.18; bio_alloc_bioset does its work."
HEXADECIMAL = "Today's kernels write 0x before hexadecimal numbers."

ROWS = (
    Row("kprobe p:do_sys_open", ("p:do_sys_openat2",), opens, rb"do_sys_openat2: " + OPENAT + b"$", OPEN2),
    Row("kprobe r:do_sys_open", ("r:do_sys_openat2",), opens, rb"do_sys_openat2: " + RETURN + b"$"),
    Row(
        "kprobe -H p:do_sys_open",
        ("-H", "p:do_sys_openat2"),
        opens,
        rb"# entries-in-buffer/entries-written: 0/0   #P:\d+$",
        "trace_pipe has no header, so it is read of `trace` at the start, as perf-tools does: the buffer is "
        "empty then. 5.14 added a fifth column of flags, migrate-disable.",
        prefixed=False,
    ),
    Row(
        "kprobe 'r:do_sys_open $retval'",
        ("r:do_sys_openat2 $retval",),
        opens,
        rb"do_sys_openat2: " + RETURN + rb" arg1=(0x)?\d+$",
        TYPED,
    ),
    Row(
        "kprobe 'r:myopen do_sys_open $retval'",
        ("r:myopen do_sys_openat2 $retval",),
        opens,
        rb"myopen: " + RETURN + rb" arg1=(0x)?\d+$",
    ),
    Row(
        "kprobe 'r:myopen do_sys_open rval=$retval'",
        ("r:myopen do_sys_openat2 rval=$retval",),
        opens,
        rb"myopen: " + RETURN + rb" rval=(0x)?\d+$",
    ),
    Row(
        "kprobe 'p:myopen do_sys_open mode=%cx:u16'",
        ("p:myopen do_sys_openat2 mode=+8(%dx):u16",),
        opens,
        rb"myopen: " + OPENAT + rb" mode=416$",
        "do_sys_openat2 takes flags and mode in a struct open_how, whose address is in %dx. `u16` is decimal "
        "since 4.9: 416 is 0640; `x16` gives 0x1a0.",
    ),
    Row(
        "kprobe 'p:myopen do_sys_open filename=+0(%si):string'",
        (FILENAME,),
        opens,
        rb"myopen: " + OPENAT + rb' filename="/nonexistent"$',
    ),
    Row(
        "kprobe -d 10 'p:myopen do_sys_open filename=+0(%si):string' > out",
        ("-d", "10", FILENAME),
        opens,
        rb"myopen: " + NAMED,
        "With `> out`; the progress is on stderr.",
    ),
    Row(
        "kprobe -p 1696 'p:myopen do_sys_open filename=+0(%si):string'",
        ("-p", "PID", FILENAME),
        opens,
        rb"myopen: " + NAMED,
        "A filter may be given as well. Threads that the process starts later are found within 0.2 s.",
    ),
    Row(
        "kprobe -L TID (usage)",
        ("-L", "PID", FILENAME),
        opens,
        rb"myopen: " + NAMED,
    ),
    Row(
        "kprobe -v 'p:myopen do_sys_open filename=+0(%si):string'",
        ("-v", FILENAME),
        opens,
        rb"\tfield:__data_loc char\[\] filename;\toffset:16;\tsize:4;\tsigned:[01];$",
        prefixed=False,
    ),
    Row(
        "kprobe 'p:myopen do_sys_open filename=+0(%si):string' 'filename ~ \"*stat\"'",
        (FILENAME, 'filename ~ "*stat"'),
        opens,
        rb"myopen: " + OPENAT + rb' filename="/proc/self/stat"$',
    ),
    Row(
        "kprobe 'p:do_sys_open file=+0(%si):string' 'file ~ \"*stat\"'",
        ("p:do_sys_openat2 file=+0(%si):string", 'file ~ "*stat"'),
        opens,
        rb"do_sys_openat2: " + OPENAT + rb' file="/proc/self/stat"$',
    ),
    Row(
        "kprobe 'p:myprobe bio_alloc %ax %bx %cx %dx'",
        ("p:myprobe bio_alloc_bioset %ax %bx %cx %dx",),
        block_io,
        rb"myprobe: " + BIO + b"".join(rb" arg%d=%s" % (number, WORD) for number in range(1, 5)) + b"$",
        f"{BIO_ALLOC} {HEXADECIMAL}",
    ),
    Row(
        "kprobe 'p:myprobe bio_alloc %ax:u32'",
        ("p:myprobe bio_alloc_bioset %ax:u32",),
        block_io,
        rb"myprobe: " + BIO + rb" arg1=\d+$",
        "`u32` is decimal since 4.9.",
    ),
    Row(
        "kprobe 'p:myprobe bio_alloc ax=%ax'",
        ("p:myprobe bio_alloc_bioset ax=%ax",),
        block_io,
        rb"myprobe: " + BIO + rb" ax=" + WORD + b"$",
    ),
    Row(
        "kprobe 'r:myprobe bio_alloc $retval'",
        ("r:myprobe bio_alloc_bioset $retval",),
        block_io,
        rb"myprobe: \(\w[\w.]*\+0x[0-9a-f]+/0x[0-9a-f]+ <- bio_alloc_bioset\) arg1=0xff[0-9a-f]+$",
        "A pointer stays hexadecimal.",
    ),
    Row(
        "kprobe -s 'p:mytcp tcp_init_cwnd'",
        ("-s", "p:mytcp tcp_init_cwnd"),
        idle_connection,
        rb"<stack trace>\n(?: => \w[\w.]*\n)* => tcp_sendmsg\n",
        "Today's kernels name the probed function as well.",
    ),
    Row(
        "kprobe -s 'p:myprobe tcp_retransmit_skb'",
        ("-s", "p:myprobe tcp_retransmit_skb"),
        retransmission,
        rb"<stack trace>\n(?: => \w[\w.]*\n)* => tcp_retransmit_timer\n",
    ),
    Row(
        "kprobe -F (usage)",
        ("-F", "p:do_sys_openat2"),
        opens,
        rb"do_sys_openat2: " + OPENAT + b"$",
        "Without it a function that the kernel's lists lack, or that it keeps kprobes off, is not tried.",
    ),
    Row(
        "kprobe -h",
        ("-h",),
        opens,
        rb"Usage: \S+ trace \[OPTIONS\] DEFINITION \[FILTER\]$",
        prefixed=False,
    ),
)

AT_ONCE = ("-v", "-h")
"""Options with which nothing is traced."""


@contextmanager
def run(row: Row, directory: Path) -> Iterator[TraceProcess]:
    """The row's command, until a line of its output is as it has to be, and then ended as by Ctrl-C."""
    arguments = [str(os.getpid()) if word == "PID" else word for word in row.ours]
    if "-d" in arguments:
        arguments[1] = "2"
    trace = TraceProcess(directory, arguments)
    try:
        if row.ours[0] not in AT_ONCE:
            trace.wait_for(b"Tracing ")
            row.work()
        if row.ours[0] in (*AT_ONCE, "-d"):
            trace.wait()
        else:
            eventually(lambda: row.pattern.search(trace.output), 30)
            trace.end(signal.SIGINT)
        yield trace
    finally:
        trace.close()


def main() -> None:
    """Print every row with its command and its output, cut where it repeats itself."""
    for row in ROWS:
        with tempfile.TemporaryDirectory() as directory, run(row, Path(directory)) as trace:
            print(f"## {row.theirs}\n{row.command}\n{trace.output.decode(errors='replace')}")
            print(trace.errors, file=sys.stderr)


if __name__ == "__main__":
    main()
