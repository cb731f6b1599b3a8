"""Context managers that fire the probes of examples/packs, one per pack, and undo their changes."""

import ctypes
import fcntl
import mmap
import os
import signal
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.kernel.provoked import resolutions
from tests.support.forked_child import in_a_child
from tests.support.patience import eventually
from tests.support.provoked_calls import TIMES

BYTES = 1000
"""The size of each write."""

UDP_PORT = 9125
CGROUP = "example-packs"

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = LIBC.fopen.restype = ctypes.c_void_p
HELD = 0.02
"""Seconds for which a lock is held while another thread waits for it."""

PTRACE_TRACEME, PTRACE_ATTACH, PTRACE_SEIZE = 0, 16, 0x4206
NO_PROCESS = 2**22 + 1
"""A process id above PID_MAX_LIMIT: kernel/pid.c gives it on no machine."""
MOVE_MOUNT = 429
BLKFLSBUF = 0x1261
"""The ioctl that drops what is cached of a block device (include/uapi/linux/fs.h)."""

MIB = 1 << 20


@contextmanager
def network() -> Iterator[None]:
    before = _sent_again()
    with ExitStack() as stack:
        # The accept queue is full: the kernel retransmits the unanswered SYN after 1 s.
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        stack.enter_context(socket.create_connection(full.getsockname()))
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        assert waiting.connect_ex(full.getsockname()) != 0
        # This server accepts a connection only when data arrives, and retransmits its SYN-ACK after 1 s.
        lazy = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        lazy.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        for _ in range(TIMES):
            stack.enter_context(socket.create_connection(lazy.getsockname()))
        _connections()
        _refused_connections()
        _datagrams()
        # The agent is idle meanwhile: events in interrupts of its threads are not recorded.
        eventually(lambda: _sent_again() >= before + 1 + TIMES)
        yield


def _sent_again() -> int:
    """Return how many SYNs and SYN-ACKs the kernel has retransmitted."""
    names, values = Path("/proc/net/netstat").read_text().splitlines()[:2]
    return int(values.split()[names.split().index("TCPSynRetrans")])


def _connections() -> None:
    """Open TIMES connections, write to each, and reset it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(TIMES):
            with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
                client.sendall(bytes(BYTES))
                assert len(accepted.recv(BYTES, socket.MSG_WAITALL)) == BYTES
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def sends_after_a_second() -> None:
    """Send on a connection after it was idle for 1 s, longer than its retransmission timeout."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), timeout=1)
        with client, server.accept()[0] as accepted:
            client.sendall(b"x")
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.sendall(b"x")
            assert accepted.recv(2, socket.MSG_WAITALL) == b"xx"


def _refused_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed_address = closed.getsockname()
    for _ in range(TIMES):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(closed_address)


def _datagrams() -> None:
    """Send more datagrams than a small receive buffer holds, and then TIMES to the closed port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as small:
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # the kernel raises it to its minimum
            small.bind(("127.0.0.1", UDP_PORT))
            for _ in range(2 * TIMES):
                sender.sendto(bytes(BYTES), ("127.0.0.1", UDP_PORT))
        for _ in range(TIMES):
            sender.sendto(b"x", ("127.0.0.1", UDP_PORT))


@contextmanager
def disk() -> Iterator[None]:
    _files()
    with _small_device() as device:
        fd = os.open(device, os.O_RDWR | os.O_DIRECT)
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            for number in range(TIMES):
                assert os.pwritev(fd, [page], number * mmap.PAGESIZE) == mmap.PAGESIZE
                assert os.preadv(fd, [page], number * mmap.PAGESIZE) == mmap.PAGESIZE
            with pytest.raises(OSError, match=r"error|space"):
                _write_everywhere(fd, page)
        os.close(fd)
        yield


def _write_everywhere(fd: int, page: mmap.mmap) -> None:
    for place in range(0, 4 * MIB, mmap.PAGESIZE):
        os.pwritev(fd, [page], place)


def _files() -> None:
    """Read, write, sync and open files, with success and with errors."""
    read, write = os.pipe()
    with open("/dev/zero", "rb", buffering=0) as zero, open("/dev/null", "wb", buffering=0) as null:
        for _ in range(TIMES):
            assert len(zero.read(BYTES)) == null.write(bytes(BYTES)) == BYTES
    with TemporaryFile() as file:
        for sync in (os.fsync, os.fdatasync):
            for _ in range(TIMES):
                sync(file.fileno())
                with pytest.raises(OSError, match="Invalid argument"):
                    sync(write)
    root = os.open("/", os.O_RDONLY)
    with open("/dev/full", "wb", buffering=0) as full:
        for _ in range(TIMES):
            with pytest.raises(IsADirectoryError):
                os.read(root, 1)
            with pytest.raises(OSError, match="No space"):
                full.write(b"x")
            with pytest.raises(IsADirectoryError):
                os.open("/", os.O_WRONLY)
    for fd in (read, write, root):
        os.close(fd)


@contextmanager
def _small_device() -> Iterator[str]:
    """Yield the first loop device, of 4 MiB, whose image is on a file system of 1 MiB."""
    was_there = Path("/sys/module/loop").exists()
    subprocess.run(["modprobe", "loop"], check=True)
    with _mounted_tmpfs(Path("/run/pack"), MIB) as where:
        image = where / "image"
        image.touch()
        os.truncate(image, 4 * MIB)
        subprocess.run(["losetup", "/dev/loop0", image], check=True)
        try:
            yield "/dev/loop0"
        finally:
            subprocess.run(["losetup", "-d", "/dev/loop0"], check=True)
            eventually(lambda: not Path("/sys/block/loop0/loop").exists())
    if not was_there:
        _unload("loop")


@contextmanager
def _mounted_tmpfs(where: Path, size: int) -> Iterator[Path]:
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", where], check=True)
    try:
        yield where
    finally:
        eventually(lambda: subprocess.run(["umount", where], check=False).returncode == 0)
        where.rmdir()


def _unload(module: str) -> None:
    eventually(lambda: subprocess.run(["modprobe", "-qr", module], check=False).returncode == 0)


@contextmanager
def memory() -> Iterator[None]:
    subprocess.run(["modprobe", "null_blk", "nr_devices=1", "gb=1"], check=True)
    try:
        Path("/proc/sys/vm/compact_memory").write_text("1")
        _major_faults()
        _use_up_a_cgroup()
        _use_up_the_machine()
        yield
    finally:
        _unload("null_blk")


def _major_faults() -> None:
    fd = os.open("/dev/nullb0", os.O_RDONLY)
    for number in range(TIMES):
        fcntl.ioctl(fd, BLKFLSBUF)
        with mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ, offset=number * MIB) as page:
            page[0]
    os.close(fd)


@contextmanager
def _page_cache(size: int) -> Iterator[None]:
    """Hold the device's first bytes in the page cache, until the last descriptor of it is closed."""
    fd = os.open("/dev/nullb0", os.O_RDONLY)
    for number in range(size // MIB):
        os.pread(fd, MIB, number * MIB)
    yield
    os.close(fd)


def _use_up_a_cgroup() -> None:
    """Fill a cgroup's memory with page cache, which can be reclaimed, then with memory that cannot."""
    root = Path("/sys/fs/cgroup")
    (root / "cgroup.subtree_control").write_text("+memory")
    group = root / CGROUP
    group.mkdir()
    (group / "memory.max").write_text(str(16 * MIB))
    child = os.fork()
    if child == 0:
        (group / "cgroup.procs").write_text("0")
        with _page_cache(32 * MIB), mmap.mmap(-1, 32 * MIB) as much:
            much.write(bytes(32 * MIB))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    group.rmdir()
    (root / "cgroup.subtree_control").write_text("-memory")
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _use_up_the_machine() -> None:
    """Demand more free memory than the machine has, while it has page cache to reclaim."""
    keep = Path("/proc/sys/vm/min_free_kbytes")
    before = keep.read_text()
    with _page_cache(256 * MIB):
        free = int(Path("/proc/meminfo").read_text().partition("MemFree:")[2].split()[0])
        try:
            keep.write_text(str(free + 128 * 1024))
            with mmap.mmap(-1, 4 * MIB) as some:
                some.write(bytes(4 * MIB))
        finally:
            keep.write_text(before)


@contextmanager
def scheduler() -> Iterator[None]:
    for _ in range(TIMES):
        subprocess.run(["true"], check=True)
    for number in (signal.SIGSEGV, signal.SIGKILL):
        child = subprocess.Popen(["sleep", "60"])
        child.send_signal(number)
        assert child.wait() == -number
    yield


@contextmanager
def security() -> Iterator[None]:
    subprocess.run(["modprobe", "dummy", "numdummies=0"], check=True)
    _unload("dummy")
    in_a_child(lambda: LIBC.ptrace(PTRACE_TRACEME, 0, 0, 0))
    for request in (PTRACE_ATTACH, PTRACE_SEIZE):
        assert LIBC.ptrace(request, NO_PROCESS, 0, 0) == -1
    in_a_child(lambda: os.setuid(0))
    in_a_child(lambda: os.setuid(65534))
    in_a_child(lambda: os.setresuid(65534, 65534, 65534))
    subprocess.run(["unshare", "-m", "mount", "-i", "-t", "tmpfs", "none", "/mnt"], check=True)
    assert LIBC.syscall(MOVE_MOUNT, -1, b"nowhere", -1, b"nowhere", 0) == -1
    yield


@contextmanager
def libc() -> Iterator[None]:
    resolutions()
    for _ in range(TIMES):
        LIBC.free(ctypes.c_void_p(LIBC.malloc(BYTES)))
    _locked_files()
    yield


def _locked_files() -> None:
    """Have a thread wait TIMES times for the lock of a stdio file, which is held for HELD seconds."""
    file = ctypes.c_void_p(LIBC.fopen(b"/dev/null", b"w"))
    with ThreadPoolExecutor(1) as other:
        for _ in range(TIMES):
            LIBC.flockfile(file)
            waits = other.submit(_lock_and_unlock, file)
            time.sleep(HELD)
            LIBC.funlockfile(file)
            waits.result()
    LIBC.fclose(file)


def _lock_and_unlock(file: ctypes.c_void_p) -> None:
    LIBC.flockfile(file)
    LIBC.funlockfile(file)


@contextmanager
def openssl() -> Iterator[None]:
    _tls_writes()
    _tls_write_without_a_peer()
    yield


@contextmanager
def python() -> Iterator[None]:
    ring = "ring = []; ring.append(ring); del ring"
    program = f"import gc\nfor _ in range({TIMES}): max(*[1, 2]); {ring}; gc.collect(1)"
    subprocess.run(["/usr/bin/python3", "-ISE", "-c", program], check=True)
    yield


def _tls_write_without_a_peer() -> None:
    """Call the older SSL_write, which fails because the TLS connection has no peer."""
    libssl = ctypes.CDLL("libssl.so.3")
    for function in (libssl.TLS_method, libssl.SSL_CTX_new, libssl.SSL_new):
        function.restype = ctypes.c_void_p
    context = ctypes.c_void_p(libssl.SSL_CTX_new(ctypes.c_void_p(libssl.TLS_method())))
    connection = ctypes.c_void_p(libssl.SSL_new(context))
    for _ in range(TIMES):
        assert libssl.SSL_write(connection, bytes(BYTES), BYTES) == -1
    libssl.SSL_free(connection)
    libssl.SSL_CTX_free(context)


def _tls_writes() -> None:
    """Write between two ends in this process, which need no certificates."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = []
    for side, incoming, outgoing in (
        (ssl.PROTOCOL_TLS_CLIENT, to_client, to_server),
        (ssl.PROTOCOL_TLS_SERVER, to_server, to_client),
    ):
        context = ssl.SSLContext(side)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
        ends.append(context.wrap_bio(incoming, outgoing, server_side=side == ssl.PROTOCOL_TLS_SERVER))
    left = set(ends)
    while left:
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                left.discard(end)
    for _ in range(TIMES):
        assert ends[0].write(bytes(BYTES)) == BYTES
