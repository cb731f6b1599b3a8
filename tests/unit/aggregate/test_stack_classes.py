"""aggregate.stack_classes: the table against the functions of all saved kernels, and the class of a stack."""

from functools import cache
from pathlib import Path

import pytest

from kprobe_exporter.aggregate.stack_classes import (
    OTHER,
    RUNNING,
    TABLE,
    UNACCOUNTED,
    WAITING,
    class_names,
    parse_table,
    stack_class,
)
from kprobe_exporter.diagnose.saved_kernel import load as load_kernel
from tests.reference.kernels import KERNELS, series

ROWS = list(parse_table(TABLE.read_text()))

BEYOND = {
    "sleep": (b"hrtimer_nanosleep",),
    "lock": (b"do_futex",),
    "network": (b"__sys_recvfrom", b"sock_read_iter"),
    "block_io": (b"io_schedule",),
    "poll": (b"do_sys_poll", b"do_epoll_wait"),
    "page_fault": (b"handle_mm_fault",),
    "reclaim": (b"try_to_free_pages",),
}
"""Functions of which no kernel may lack one, because most waits of their class are in them."""


@cache
def functions(kernel: Path) -> frozenset[bytes]:
    """Return the functions of a saved kernel, without the suffixes of the compiler."""
    text = load_kernel(kernel).kernel.tracefs.read("available_filter_functions")
    return frozenset(line.partition(b" ")[0].partition(b".")[0] for line in text.splitlines())


@pytest.mark.parametrize("kernel", KERNELS, ids=series)
class TestOnAKernel:
    def test_every_row_names_a_function(self, kernel: Path) -> None:
        missing = [row for row in ROWS if not row.rare and not functions(kernel) & {*row.functions}]
        assert missing == []

    def test_no_class_lacks_its_most_usual_function(self, kernel: Path) -> None:
        for name, wanted in BEYOND.items():
            assert functions(kernel) >= {*wanted}
            assert {stack_class((one,)) for one in wanted} == {name}


def test_every_name_is_a_function_of_some_kernel() -> None:
    """A name that is mistyped, or gone from all kernels, would never match."""
    everywhere = frozenset[bytes]().union(*map(functions, KERNELS))
    jbd2 = b"jbd2_log_wait_commit"  # of a module, which saved kernels lack
    waitv = {b"__x64_sys_futex_waitv", b"__arm64_sys_futex_waitv"}
    assert {one for row in ROWS for one in row.functions} - everywhere <= {jbd2, *waitv}


def test_no_name_has_two_classes() -> None:
    found = [(one, row.name) for row in ROWS for one in row.functions]
    assert len({*found}) == len({name for name, _ in found})


def test_the_classes() -> None:
    """None has the name of a class that no stack decides."""
    assert class_names() == [
        "block_io",
        "lock",
        "network",
        "pipe",
        "poll",
        "sleep",
        "page_fault",
        "reclaim",
    ]
    assert not {RUNNING, WAITING, OTHER, UNACCOUNTED} & {*class_names()}


SCHEDULE = (b"__schedule", b"schedule")
SYSCALL = (b"do_syscall_64", b"entry_SYSCALL_64_after_hwframe")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ((b"futex_wait_queue", b"futex_wait", b"do_futex", b"__x64_sys_futex"), "lock"),
        ((b"pipe_read", b"vfs_read", b"ksys_read"), "pipe"),
        ((b"__mutex_lock.constprop.0", b"pipe_write", b"vfs_write"), "pipe"),
        ((b"__mutex_lock.constprop.0", b"ext4_file_write_iter"), "lock"),
        ((b"io_schedule", b"folio_wait_bit_common", b"filemap_read", b"vfs_read"), "block_io"),
        ((b"unix_stream_read_generic", b"sock_recvmsg", b"sock_read_iter", b"vfs_read"), "network"),
        ((b"io_schedule", b"filemap_fault", b"handle_mm_fault", b"exc_page_fault"), "page_fault"),
        ((b"io_schedule", b"shrink_node", b"try_to_free_pages", b"vfs_write"), "reclaim"),
        ((b"worker_thread", b"kthread", b"ret_from_fork"), "other"),
        ((b"xpipe_read",), "other"),
        ((), "other"),
    ],
)
def test_a_stack(frames: tuple[bytes, ...], expected: str) -> None:
    assert stack_class((*SCHEDULE, *frames, *SYSCALL)) == expected
