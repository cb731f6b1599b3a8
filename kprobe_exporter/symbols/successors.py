"""Functions that kernels had, and the functions that do their work in newer ones.

A similar name does not mean a successor: most functions that went resemble one that does something else.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kprobe_exporter.grammar.target import SYSTEM_CALL
from kprobe_exporter.symbols.lists import WRAPPERS

OLD_SYSTEM_CALL = "SyS_"
"""Before 4.17 (x86) and 4.19 (arm64) the function behind a system call was called ``SyS_NAME``; commits
d5a00528b58c and 4378a7d4be30 gave it the prefixes of WRAPPERS."""


class Successor(NamedTuple):
    """The function that does the work."""

    name: str
    since: str  # the first Linux of which this is true; distributions backport some
    commit: str = ""  # of mainline; empty if several did it


def _noprof(since: str, commit: str, *names: str) -> dict[str, Successor]:
    """Return the successors of functions that allocate; their own names are macros since then."""
    return {name: Successor(f"{name}_noprof", since, commit) for name in names}


SUCCESSORS = {
    # processes
    "do_fork": Successor("_do_fork", "4.2", "3033f14ab78c"),
    "_do_fork": Successor("kernel_clone", "5.10", "cad6967ac108"),
    "flush_old_exec": Successor("begin_new_exec", "5.8"),
    # files
    "do_sys_open": Successor("do_sys_openat2", "5.6", "fddb5d430ad9"),
    "sys_open": Successor("do_sys_openat2", "5.6", "fddb5d430ad9"),
    "do_filp_open": Successor("do_file_open", "7.0"),
    "__close_fd": Successor("close_fd", "5.11", "8760c909f54a"),
    "generic_file_buffered_read": Successor("filemap_read", "5.12", "87fa0f3eb267"),
    "pipe_read": Successor("anon_pipe_read", "6.15"),
    "pipe_write": Successor("anon_pipe_write", "6.15"),
    **{
        f"do_{call}": Successor(f"filename_{call}", "7.0")
        for call in ("linkat", "mkdirat", "mknodat", "renameat2", "rmdir", "symlinkat", "unlinkat")
    },
    # block devices
    "bio_alloc": Successor("bio_alloc_bioset", "3.7"),
    "generic_make_request": Successor("submit_bio_noacct", "5.9", "ed00aabd5eb9"),
    # the network
    "kfree_skb": Successor("kfree_skb_reason", "5.17", "c504e5c2f964"),
    "kfree_skb_reason": Successor("sk_skb_reason_drop", "6.11", "ba8de796baf4"),
    # memory
    "do_mmap_pgoff": Successor("do_mmap", "5.9", "45e55300f114"),
    "shrink_page_list": Successor("shrink_folio_list", "6.1", "49fd9b6df54e"),
    "mem_cgroup_charge": Successor("__mem_cgroup_charge", "5.16", "8f425e4ed0eb"),
    "alloc_pages_current": Successor("alloc_pages", "5.13", "d7f946d0faf9"),
    "__alloc_pages_nodemask": Successor("__alloc_pages", "5.13", "84172f4bb752"),
    "__get_free_pages": Successor("get_free_pages_noprof", "6.10", "b951aaff5035"),
    "kmem_cache_alloc_trace": Successor("kmalloc_trace", "6.1", "26a40990ba05"),
    "kmem_cache_alloc_node_trace": Successor("kmalloc_node_trace", "6.1", "26a40990ba05"),
    "kmalloc_trace": Successor("__kmalloc_cache_noprof", "6.11", "a0a44d9175b3"),
    "kmalloc_node_trace": Successor("__kmalloc_cache_node_noprof", "6.11", "a0a44d9175b3"),
    "krealloc_noprof": Successor("krealloc_node_align_noprof", "6.18", "2cd8231796b5"),
    **_noprof("6.10", "b951aaff5035", "__alloc_pages", "alloc_pages", "folio_alloc", "__folio_alloc"),
    **_noprof("6.10", "b951aaff5035", "filemap_alloc_folio", "get_zeroed_page"),
    **_noprof("6.10", "7bd230a26648", "kmem_cache_alloc", "kmem_cache_alloc_node", "kmem_cache_alloc_lru"),
    **_noprof("6.10", "7bd230a26648", "kmem_cache_alloc_bulk", "__kmalloc", "__kmalloc_node", "krealloc"),
    **_noprof("6.10", "88ae5fb755b0", "vmalloc", "vmalloc_node", "vmalloc_user", "vzalloc", "vzalloc_node"),
    **_noprof("6.10", "88ae5fb755b0", "__vmalloc", "__vmalloc_node", "__vmalloc_node_range"),
    **_noprof("6.10", "24e44cc22aa3", "pcpu_alloc"),
    **_noprof("6.10", "e26d8769da6d", "mempool_create_node"),
    # timers, messages
    "del_timer": Successor("timer_delete", "6.2", "bb663f0f3c39"),
    "del_timer_sync": Successor("timer_delete_sync", "6.2", "9b13df3fb64e"),
    "try_to_del_timer_sync": Successor("timer_delete_sync_try", "6.16", "367ed4e35734"),
    "printk": Successor("_printk", "5.15", "337015573718"),
}


def successors(name: str) -> Iterator[str]:
    """Yield the functions that do the work of ``name`` in newer kernels, the oldest of them first."""
    if name.startswith(OLD_SYSTEM_CALL):
        yield from (f"{one}{SYSTEM_CALL}{name.removeprefix(OLD_SYSTEM_CALL)}" for one in WRAPPERS)
    while found := SUCCESSORS.get(name):
        name = found.name
        yield name
