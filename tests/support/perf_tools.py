"""The examples of perf-tools' `kprobe` as rows: their command, ours, and the output that is expected.

tests/kernel/test_trace_examples.py runs each row on a real kernel; docs/perf-tools.md shows them.
"""

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.kernel_modules import unload
from tests.support.patience import eventually
from tests.support.trace_process import TraceProcess, traces

PREFIX = rb"^ *[^\n]{1,16}-\d+ +\[\d{3}\] [^ ]{4,5} +\d+\.\d{6}: "
"""The start of the kernel's line: thread name and id, CPU, flags, time."""

OPENAT = rb"\(do_sys_openat2\+0x[04]/0x[0-9a-f]+\)"
RETURN = rb"\(\w[\w.]*\+0x[0-9a-f]+/0x[0-9a-f]+ <- do_sys_openat2\)"
BIO = rb"\(bio_alloc_bioset\+0x[04]/0x[0-9a-f]+\)"
WORD = rb"0x[0-9a-f]+"
FD = rb"(0x[0-9a-f]+|\d+)"
STACK = rb"\)\n" + PREFIX[1:] + rb"<stack trace>\n(?: => \w[\w.]*\n)* => "


@dataclass(frozen=True)
class Row:
    """One example: ``theirs`` as perf-tools' documents have it, ``ours`` the arguments of `trace`.

    ``work`` causes the events; it is None where nothing is traced. ``line`` is what the output must contain,
    after the kernel's prefix if ``prefixed``. ``why`` explains how and why the output differs.
    """

    theirs: str
    ours: tuple[str, ...]
    work: Callable[[], None] | None
    line: bytes
    why: str
    prefixed: bool = True

    @property
    def command(self) -> str:
        """The command as typed."""
        return f"kprobe-exporter trace {' '.join(map(_quoted, self.ours))}"

    @property
    def returns_of(self) -> str:
        """The function whose return is probed, or an empty string."""
        found = re.match(r"r:(?:\w+ )?(\w+)", self.ours[0])
        return found[1] if found else ""

    @property
    def pattern(self) -> re.Pattern[bytes]:
        return re.compile((PREFIX if self.prefixed else b"^") + self.line, re.MULTILINE)


@dataclass(frozen=True)
class Came:
    """The result of a row's command."""

    status: int | None
    output: bytes
    errors: str


def _quoted(word: str) -> str:
    return word if word == "PID" else shlex.quote(word)


def opens() -> None:
    """Open a file, a missing file, a file whose name ends in "stat", and a new file."""
    for path in ("/etc/hostname", "/nonexistent", "/proc/self/stat"):
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY))
    with tempfile.TemporaryDirectory() as directory:
        os.close(os.open(f"{directory}/new", os.O_CREAT | os.O_WRONLY, 0o640))


def block_io() -> None:
    """Read from a block device that null_blk provides without a disk."""
    subprocess.run(["modprobe", "null_blk"], check=True)
    try:
        descriptor = os.open("/dev/nullb0", os.O_RDONLY)
        os.read(descriptor, 65536)
        os.close(descriptor)
    finally:
        unload("null_blk")


def idle_connection() -> None:
    """Send on a connection that was idle for longer than its retransmission timeout: it slow-starts again."""
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
    """Make the kernel retransmit SYNs: the server does not accept, so its full queue drops all but the first.

    The queue is full only once the first connection is in it. A kernel under load may handle several SYNs
    before: it answers these with SYN cookies, and then retransmits none of them. The others are sent at
    different times, since a timer that interrupts the command's own thread leaves no event.
    """
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        stack.enter_context(socket.create_connection(server.getsockname()))
        eventually(lambda: select.select([server], [], [], 0)[0])
        clients = [stack.enter_context(socket.socket()) for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
            time.sleep(0.1)
        eventually(lambda: all(map(_retransmits, clients)))


def _retransmits(client: socket.socket) -> int:
    """Return how often the kernel has retransmitted what is unanswered: `tcpi_retransmits` of tcp_info."""
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 3)[2]


FILENAME = "p:myopen do_sys_openat2 filename=+0(%si):string"
NAMED = OPENAT + rb' filename="/etc/hostname"$'
OPEN2 = "do_sys_open is still there, but compiled into those that call it; do_sys_openat2 does the work."
NAME = "Only the name of the function."
TYPED = "With BTF the kernel knows the type of $retval, so it is decimal; on 6.1 it is `0x8`."
BIO_ALLOC = "bio_alloc is inlined today; bio_alloc_bioset does its work."
HEXADECIMAL = "Hexadecimal numbers begin with 0x."

ROWS = (
    Row("kprobe p:do_sys_open", ("p:do_sys_openat2",), opens, rb"do_sys_openat2: " + OPENAT + b"$", OPEN2),
    Row(
        "kprobe r:do_sys_open",
        ("r:do_sys_openat2",),
        opens,
        rb"do_sys_openat2: " + RETURN + b"$",
        f"{NAME} As many calls as 1,024 at once are followed to their return, for the kernel's default "
        "misses some.",
    ),
    Row(
        "kprobe -H p:do_sys_open",
        ("-H", "p:do_sys_openat2"),
        opens,
        rb"# tracer: nop\n#\n# entries-in-buffer/entries-written: \d+/\d+   #P:\d+\n(?:#[^\n]*\n)+",
        "The header is that of `trace`, read at the start, as there; the events that are in the buffer by "
        "then are not shown twice. There is one more column of flags today, migrate-disable.",
        prefixed=False,
    ),
    Row(
        "kprobe 'r:do_sys_open $retval'",
        ("r:do_sys_openat2 $retval",),
        opens,
        rb"do_sys_openat2: " + RETURN + rb" arg1=" + FD + b"$",
        TYPED,
    ),
    Row(
        "kprobe 'r:myopen do_sys_open $retval'",
        ("r:myopen do_sys_openat2 $retval",),
        opens,
        rb"myopen: " + RETURN + rb" arg1=" + FD + b"$",
        "As above.",
    ),
    Row(
        "kprobe 'r:myopen do_sys_open rval=$retval'",
        ("r:myopen do_sys_openat2 rval=$retval",),
        opens,
        rb"myopen: " + RETURN + rb" rval=" + FD + b"$",
        "As above.",
    ),
    Row(
        "kprobe 'p:myopen do_sys_open mode=%cx:u16'",
        ("p:myopen do_sys_openat2 mode=+8(%dx):u16",),
        opens,
        rb"myopen: " + OPENAT + rb" mode=416$",
        "do_sys_openat2 takes flags and mode in a struct open_how, whose address is in %dx. `u16` is decimal "
        "since Linux 4.9: 416 is 0640; `x16` gives 0x1a0.",
    ),
    Row(
        "kprobe 'p:myopen do_sys_open filename=+0(%si):string'",
        (FILENAME,),
        opens,
        rb"myopen: " + OPENAT + rb' filename="/nonexistent"$',
        NAME,
    ),
    Row(
        "kprobe -d 10 'p:myopen do_sys_open filename=+0(%si):string' > out",
        ("-d", "10", FILENAME),
        opens,
        rb"myopen: " + NAMED,
        "With `> out` as well; the progress is on stderr, where that is a terminal.",
    ),
    Row(
        "kprobe -p 1696 'p:myopen do_sys_open filename=+0(%si):string'",
        ("-p", "PID", FILENAME),
        opens,
        rb"myopen: " + NAMED,
        "All threads of the process; those that it starts later are found within 0.2 s. A filter may be "
        "given as well.",
    ),
    Row(
        "kprobe -L TID (usage)",
        ("-L", "PID", FILENAME),
        opens,
        rb"myopen: " + NAMED,
        "A filter may be given as well.",
    ),
    Row(
        "kprobe -v 'p:myopen do_sys_open filename=+0(%si):string'",
        ("-v", FILENAME),
        None,
        rb"name: myopen\nID: \d+\nformat:\n(?:\tfield:[^\n]+\n|\n)+"
        rb"\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n"
        rb"\tfield:__data_loc char\[\] filename;\toffset:16;\tsize:4;\tsigned:[01];\n\n"
        rb'print fmt: "\(%lx\) filename=\\"%s\\"", REC->__probe_ip, __get_str\(filename\)\n',
        NAME,
        prefixed=False,
    ),
    Row(
        "kprobe 'p:myopen do_sys_open filename=+0(%si):string' 'filename ~ \"*stat\"'",
        (FILENAME, 'filename ~ "*stat"'),
        opens,
        rb"myopen: " + OPENAT + rb' filename="/proc/self/stat"$',
        NAME,
    ),
    Row(
        "kprobe 'p:do_sys_open file=+0(%si):string' 'file ~ \"*stat\"'",
        ("p:do_sys_openat2 file=+0(%si):string", 'file ~ "*stat"'),
        opens,
        rb"do_sys_openat2: " + OPENAT + rb' file="/proc/self/stat"$',
        NAME,
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
        "`u32` is decimal since Linux 4.9; `x32` is as there.",
    ),
    Row(
        "kprobe 'p:myprobe bio_alloc ax=%ax'",
        ("p:myprobe bio_alloc_bioset ax=%ax",),
        block_io,
        rb"myprobe: " + BIO + rb" ax=" + WORD + b"$",
        HEXADECIMAL,
    ),
    Row(
        "kprobe 'r:myprobe bio_alloc $retval'",
        ("r:myprobe bio_alloc_bioset $retval",),
        block_io,
        rb"myprobe: \(\w[\w.]*\+0x[0-9a-f]+/0x[0-9a-f]+ <- bio_alloc_bioset\) arg1=0xff[0-9a-f]+$",
        f"{HEXADECIMAL} A pointer is so with BTF as well.",
    ),
    Row(
        "kprobe -s 'p:mytcp tcp_init_cwnd'",
        ("-s", "p:mytcp tcp_init_cwnd"),
        idle_connection,
        rb"mytcp: \(tcp_init_cwnd\+0x[04]/0x[0-9a-f]+" + STACK + rb"tcp_sendmsg\n(?: => \w[\w.]*\n)*",
        "The probed function is in the stack as well; system calls have other names.",
    ),
    Row(
        "kprobe -s 'p:myprobe tcp_retransmit_skb'",
        ("-s", "p:myprobe tcp_retransmit_skb"),
        retransmission,
        rb"myprobe: \(tcp_retransmit_skb\+0x[04]/0x[0-9a-f]+"
        + STACK
        + rb"tcp_(?:retransmit_timer|write_timer_handler)\n(?: => \w[\w.]*\n)*",
        "As above.",
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
        None,
        rb"Usage: \S+ trace \[OPTIONS\] \[DEFINITION\] \[FILTER\]$",
        "With what there is beyond perf-tools.",
        prefixed=False,
    ),
)


def run(rows: Sequence[Row], directory: Path) -> dict[Row, Came]:
    """Run each row's command until its expected line appears, end it by Ctrl-C, and return the results.

    As many commands as possible run at once: under emulation, starting them one by one takes minutes.
    """
    came: dict[Row, Came] = {}
    for number, some in enumerate(_together(rows)):
        own = directory / str(number)
        own.mkdir()
        came |= _run_at_once(some, own)
    return came


def _together(rows: Iterable[Row]) -> list[list[Row]]:
    """Batches with at most one return probe on a function, since only one of several knows the caller."""
    batches: list[list[Row]] = []
    for row in rows:
        function = row.returns_of
        for batch in batches:
            if not function or all(function != other.returns_of for other in batch):
                batch.append(row)
                break
        else:
            batches.append([row])
    return batches


def _run_at_once(rows: Iterable[Row], directory: Path) -> dict[Row, Came]:
    with traces(directory) as start:
        running: dict[Row, TraceProcess] = {}
        for row in sorted(rows, key=_has_duration):
            if _has_duration(row):  # its time starts when the other commands are running
                _wait_for_start(running)
            running[row] = start(*_arguments(row))
        _wait_for_start(running)
        for work in dict.fromkeys(row.work for row in running if row.work):
            work()
        with suppress(AssertionError):  # the test's assertion on the row reports it
            eventually(lambda: all(row.pattern.search(trace.output) for row, trace in running.items()))
        for row, trace in running.items():
            if row.work and not _has_duration(row):
                trace.signal(signal.SIGINT)
        return {row: Came(trace.wait(), trace.output, trace.errors) for row, trace in running.items()}


def _has_duration(row: Row) -> bool:
    return "-d" in row.ours


def _arguments(row: Row) -> list[str]:
    """The row's arguments with a shorter duration, and with this process for PID."""
    shorter = {"PID": str(os.getpid()), "10": "3"}
    return [shorter.get(word, word) for word in row.ours]


def _wait_for_start(running: Mapping[Row, TraceProcess]) -> None:
    for row, trace in running.items():
        if row.work:
            trace.wait_for(b"Tracing ")
