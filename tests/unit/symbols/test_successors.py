"""symbols.successors: compared with saved kernels; a name that is only near in letters is not offered."""

import re
from functools import cache
from pathlib import Path
from random import Random

import pytest

from kprobe_exporter.diagnose.saved_kernel import load
from kprobe_exporter.symbols.functions import INIT, Functions
from kprobe_exporter.symbols.lists import Lists, lines_of, traceable
from kprobe_exporter.symbols.successors import SUCCESSORS, successors
from tests.reference.kernels import KERNELS, series

ALIVE = {"do_sys_open"}
"""Functions that are still there, and that the system call no longer enters."""

ALL = pytest.mark.parametrize("kernel", KERNELS, ids=series)


@cache
def lists(kernel: Path) -> Lists:
    return Lists.of(load(kernel).kernel)


@cache
def names(kernel: Path) -> frozenset[str]:
    return frozenset(traceable(lists(kernel).traceable()))


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


@ALL
def test_each_function_went_and_its_successor_came(kernel: Path) -> None:
    here = names(kernel)
    for old, new in SUCCESSORS.items():
        if version(new.since) <= version(series(kernel)):
            assert old not in here - ALIVE, old
            assert here.intersection(successors(old)), old
        assert re.fullmatch(r"[0-9a-f]{12}|", new.commit)


@ALL
def test_a_function_that_went_is_told_its_successor(kernel: Path) -> None:
    old = ["kmem_cache_alloc", "SyS_openat", "_do_fork", "do_unlinkat", "kfree_skb", "printk"]
    known = Functions(lists(kernel), old)
    told = {}
    for name in old:
        answer = known.answer("", name, 0)
        if answer.can is False:
            told[name] = re.sub(r".* inlined it: (\w+) does its work today", r"\1", answer.why)
    wrapper = "__arm64_" if "arm64" in series(kernel) else "__x64_"
    expected = {
        "SyS_openat": f"{wrapper}sys_openat",
        "_do_fork": "kernel_clone",
        "printk": "_printk",
        "kfree_skb": "sk_skb_reason_drop",
        "kmem_cache_alloc": "kmem_cache_alloc_noprof",
        "do_unlinkat": "filename_unlinkat",
    }
    if version(series(kernel)) < (7, 0):
        del expected["do_unlinkat"]
    if version(series(kernel)) < (6, 10):
        del expected["kmem_cache_alloc"]
        expected["kfree_skb"] = "kfree_skb_reason"
    if version(series(kernel)) < (6, 1):
        del expected["kfree_skb"], expected["printk"]
    assert told == expected


def test_functions_that_went_are_told_no_other() -> None:
    """Of 200 functions that 5.10 has and 7.2 has not, a few are one letter away from another name."""
    kernels = {series(kernel): kernel for kernel in KERNELS}
    gone = sorted(name for name in names(kernels["5.10"]) - names(kernels["7.2"]) if "." not in name)
    some = Random(7).sample([name for name in gone if not [*successors(name)]], 200)
    known = Functions(lists(kernels["7.2"]), some)
    told = [name for name in some if "did you mean" in known.answer("", name, 0).why]
    assert len(told) <= 12


@ALL
def test_functions_of_boot_are_not_called_notrace(kernel: Path) -> None:
    kinds = [line.split()[1:] for line in lines_of(lists(kernel).symbols())]
    marks = [next(at for at, (_, name, *_) in enumerate(kinds) if name.decode() == one) for one in INIT]
    count = {name: sum(name == other for _, other, *_ in kinds) for name in (b"start_kernel",)}
    boot = {name.decode() for kind, name, *_ in kinds[marks[0] + 1 : marks[1]] if kind in b"tT"}
    assert (count[b"start_kernel"], "start_kernel" in boot) == (1, True)
    known = Functions(lists(kernel), ["start_kernel", "trace_clock_local"])
    said = "it ran at boot alone, and its memory has been freed"
    assert known.answer("", "start_kernel", 0) == (False, said)
    assert "marked notrace" in known.answer("", "trace_clock_local", 0).why
