"""`kprobe:sys_NAME` is the function behind the system call NAME, whatever this architecture calls it."""

import re
from dataclasses import replace

import pytest

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.symbols.functions import Functions
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.symbols.resolve import Resolver
from tests.support.function_lists import lists_of

X86 = (
    b"__x64_sys_fsync\n__ia32_sys_fsync\n__x64_sys_openat\n__do_sys_getppid\nsys_info\n",
    b"""ffffffff81000010 t __x64_sys_fsync
ffffffff81000010 t __pfx___x64_sys_fsync
ffffffff81000020 t __ia32_sys_fsync
ffffffff81000030 T __x64_sys_openat
ffffffff81000040 t __do_sys_getppid
ffffffff81000040 T __ia32_sys_getppid
ffffffff81000040 T __x64_sys_getppid
ffffffff81000050 t sys_info
ffffffff81000060 t sys_hidden
ffffffff81000070 t __x64_sys_hidden
ffffffff81000080 d __x64_sys_data
ffffffffc0000010 t __x64_sys_module\t[ext4]
""",
)
ARM64 = (
    b"__arm64_sys_fsync\n__arm64_sys_getppid\n__arm64_compat_sys_open\n",
    b"ffff800080000010 t __arm64_sys_fsync\nffff800080000020 T __arm64_sys_getppid\n",
)
PLAIN = b"sys_fsync\n__se_sys_openat\n", b"10 T sys_fsync\n20 t __se_sys_openat\n20 T sys_openat\n"
HIDDEN = X86[0], re.sub(rb"(?m)^[0-9a-f]{16}", b"0" * 16, X86[1])


def lists(kernel: tuple[bytes | None, bytes | None]) -> Lists:
    return lists_of(*kernel, b"", b"", None)


def place(kernel: tuple[bytes | None, bytes | None], text: str) -> str:
    found = Resolver(lists(kernel), lambda _: ()).place(parse_target(text))
    symbol, written = found.target.symbol, parse_target(text).symbol
    assert found.note == ("" if symbol == written else f"'{written}' is '{symbol}' here")
    return str(found.target)


@pytest.mark.parametrize(
    ("kernel", "written", "expected"),
    [
        (X86, "kprobe:sys_fsync", "kprobe:__x64_sys_fsync"),
        (X86, "kretprobe:sys_fsync", "kretprobe:__x64_sys_fsync"),
        (X86, "call:sys_fsync", "call:__x64_sys_fsync"),
        (X86, "fexit:sys_fsync", "fexit:__x64_sys_fsync"),
        (X86, "kprobe:sys_fsync+4", "kprobe:__x64_sys_fsync+4"),
        (X86, "kprobe:__x64_sys_fsync", "kprobe:__x64_sys_fsync"),
        # It is listed as traceable under another name only, which is the one that an fprobe takes.
        (X86, "kprobe:sys_getppid", "kprobe:__x64_sys_getppid"),
        (X86, "fentry:sys_getppid", "fentry:__do_sys_getppid"),
        (ARM64, "kprobe:sys_fsync", "kprobe:__arm64_sys_fsync"),
        (ARM64, "fentry:sys_getppid", "fentry:__arm64_sys_getppid"),
        (ARM64, "kprobe:sys_open", "kprobe:sys_open"),  # this architecture has no such call
        # A function of this name wins, whether or not it can be probed.
        (X86, "kprobe:sys_info", "kprobe:sys_info"),
        (X86, "kprobe:sys_hidden", "kprobe:sys_hidden"),
        (PLAIN, "kprobe:sys_fsync", "kprobe:sys_fsync"),
        (PLAIN, "kprobe:sys_openat", "kprobe:sys_openat"),
        # Names of which none is a system call's
        (X86, "kprobe:sys_data", "kprobe:sys_data"),
        (X86, "kprobe:sys_module", "kprobe:sys_module"),
        (X86, "kprobe:sys_nothing", "kprobe:sys_nothing"),
        # One of the two lists tells enough.
        ((None, X86[1]), "kprobe:sys_getppid", "kprobe:__x64_sys_getppid"),
        ((X86[0], None), "kprobe:sys_fsync", "kprobe:__x64_sys_fsync"),
        ((None, None), "kprobe:sys_fsync", "kprobe:sys_fsync"),
    ],
)
def test_the_function_behind_a_system_call(
    kernel: tuple[bytes | None, bytes | None], written: str, expected: str
) -> None:
    assert place(kernel, written) == expected


def test_an_fprobe_takes_no_guess() -> None:
    """Where addresses are hidden, whether the traceable name is the same function is not known."""
    with pytest.raises(ProbeRefused, match="'__x64_sys_getppid' is not among them"):
        place(HIDDEN, "fentry:sys_getppid")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("kprobe:sys_fsyc", "did you mean 'sys_fsync'?"),
        ("kprobe:SyS_fsync", ": __x64_sys_fsync does its work today"),
        ("kprobe:sys_getpid", "did you mean 'sys_getppid'?"),
        ("kprobe:sys_zzzzzzzzzz", "has no such function"),
    ],
)
def test_an_unknown_one_is_told_the_nearest(written: str, said: str) -> None:
    target = parse_target(written)
    assert said in Functions(lists(X86), [target.symbol]).answer("", target.symbol, 0).why
    assert said in Resolver(lists(X86), lambda _: ()).explain(target, ProbeRefused("refused"))


def test_an_fprobe_on_an_unknown_one_is_told_the_nearest() -> None:
    with pytest.raises(ProbeRefused, match="'sys_fsyc' is not among them, did you mean 'sys_fsync'"):
        place(X86, "fentry:sys_fsyc")
    with pytest.raises(ProbeRefused, match="'SyS_fsync' is not among them: __x64_sys_fsync does its work"):
        place(X86, "fentry:SyS_fsync")


def test_what_the_kernel_refuses_is_explained_by_the_name_here() -> None:
    listed = replace(lists(X86), blacklist=lambda: [b"0x10-0x20\t__x64_sys_fsync\n"])
    resolver = Resolver(listed, lambda _: ())
    told = resolver.explain(parse_target("kprobe:sys_fsync"), ProbeRefused("refused"))
    assert told.startswith("the kernel keeps kprobes off it")
