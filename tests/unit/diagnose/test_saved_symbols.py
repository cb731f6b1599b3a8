"""Saved symbols have no addresses, and answer all questions about functions as those of the kernel do."""

import re
from random import Random

import pytest

from kprobe_exporter.diagnose.saved_symbols import sites_without_addresses, with_addresses, without_addresses
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.symbols.functions import Functions, named_alone
from kprobe_exporter.symbols.lists import Lists
from tests.support.saved_lists import KALLSYMS, SITES, START, TRACEABLE

NAMES = [
    *("_text", "vfs_read", "shared", "__do_sys_getppid", "quiet", "alias_of_one", "one", "jiffies"),
    *("fixed_percpu_data", "ext4_open", "kprobe_insn_page", "no_such"),
]


def lists(kallsyms: bytes, sites: bytes) -> Lists:
    return Lists(
        TRACEABLE.splitlines,
        kallsyms.splitlines,
        lambda: [b"0x0-0x1\tone"],
        lambda: [b"ext4 1 2 - Live 0x0"],
        sites.splitlines,
    )


def through_a_file(kallsyms: bytes, sites: bytes) -> Lists:
    """Return what remains of the lists after they were saved."""
    saved = without_addresses(kallsyms.splitlines())
    some = sites_without_addresses(sites.splitlines(), kallsyms.splitlines())
    return lists(b"\n".join(with_addresses(saved)), b"\n".join(with_addresses(some)))


def answers(known: Lists) -> list[object]:
    functions = Functions(known, NAMES)
    found: list[object] = [
        functions.answer(module, name, 0) for name in NAMES for module in ("", "ext4", "absent")
    ]
    return [*found, *(str(one) for one in named_alone(parse_target("kprobe:shared"), known))]


@pytest.mark.parametrize("sites", [SITES, b""])
def test_answers_are_those_of_the_kernel(sites: bytes) -> None:
    found = answers(through_a_file(KALLSYMS, sites))
    kernel = answers(lists(KALLSYMS.replace(b"kprobe_insn_page", b"k"), sites))
    assert found == kernel
    assert "kprobe:_text+8272" in found
    assert "kprobe:ext4:shared" in found


def test_answers_are_those_of_a_kernel_that_hides_addresses() -> None:
    hidden = re.sub(rb"(?m)^[0-9a-f]{16}", b"0" * 16, KALLSYMS).replace(b"kprobe_insn_page", b"k")
    assert answers(through_a_file(hidden, b"")) == answers(lists(hidden, b""))


def test_no_address_is_saved() -> None:
    """Two boots of one build, which differ in where the kernel and its modules are, give the same bytes."""
    saved = without_addresses(KALLSYMS.splitlines())

    def moved(found: re.Match[bytes]) -> bytes:
        address = int(found[0], 16)
        by = 0x1600000 if START <= address < 0xFFFFFFFFC0000000 else 0x4FF000 if address > START else 0
        return b"%016x" % (address + by)

    again = re.sub(rb"(?m)^[0-9a-f]{16}", moved, KALLSYMS)
    assert again != KALLSYMS
    assert without_addresses(again.splitlines()) == saved
    sites = re.sub(rb"(?m)^[0-9a-f]{16}", moved, SITES)
    assert sites_without_addresses(sites.splitlines(), again.splitlines()) == sites_without_addresses(
        SITES.splitlines(), KALLSYMS.splitlines()
    )
    assert not re.search(rb"[0-9a-f]{8}", re.sub(rb"[\w.]+$", b"", saved, flags=re.MULTILINE))


def test_programs_of_processes_and_padding_are_not_saved() -> None:
    saved = without_addresses(KALLSYMS.splitlines())
    for name in (b"bpf_prog", b"kprobe_insn_page", b"__pfx_"):
        assert name not in saved


def test_lines_that_are_none_are_left_out() -> None:
    assert without_addresses([b"", b"ffff", b"0 t"]) == b""


@pytest.mark.parametrize("line", [b"", b"x t f", b"+ t f", b"+zz t f", b"= t f", b"12 t f"])
def test_a_damaged_line_is_refused(line: bytes) -> None:
    with pytest.raises(GrammarError, match="damaged line in its list of symbols, line 2"):
        list(with_addresses(b"- t f\n" + line + b"\n"))


def test_any_bytes_give_lines_or_an_error() -> None:
    random = Random(7)
    for _ in range(500):
        text = bytes(random.choices(b"-+=0f \tTt\n\xff[]", k=60))
        try:
            lines = list(with_addresses(text))
        except GrammarError:
            continue
        assert all(re.match(rb"[0-9a-f]{16} ", line) for line in lines)
