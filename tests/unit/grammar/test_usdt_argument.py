"""What each spelling of a USDT argument becomes for the kernel, and which ones are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.expression import FetchSite
from kprobe_exporter.grammar.fetch import parse_fetch
from kprobe_exporter.grammar.usdt_argument import MOST_ARGUMENTS, parse_usdt_arguments

X86, ARM = "EM_X86_64", "EM_AARCH64"


@pytest.mark.parametrize(
    ("text", "machine", "expected"),
    [
        ("8@%rbp", X86, "%bp:u64"),
        ("-4@%eax", X86, "%ax:s32"),
        ("-4@%r12d", X86, "%r12:s32"),
        ("2@%r9w", X86, "%r9:u16"),
        ("1@%sil", X86, "%si:u8"),
        ("-1@%r15b", X86, "%r15:s8"),
        ("4@-20(%rbp)", X86, "-20(%bp):u32"),
        ("-4@112(%rsp)", X86, "+112(%sp):s32"),
        ("8@(%rax)", X86, "+0(%ax):u64"),
        ("8@0x10(%rdi)", X86, "+16(%di):u64"),
        ("8@$5", X86, r"\5:u64"),
        ("-4@$-1", X86, r"\-1:s32"),
        ("8@$0x1f", X86, r"\31:u64"),
        ("%rdi", X86, "%di:u64"),
        ("8@x0", ARM, "%x0:u64"),
        ("-4@w29", ARM, "%x29:s32"),
        ("8@x30", ARM, "%x30:u64"),
        ("8@sp", ARM, "%sp:u64"),
        ("8@[sp]", ARM, "+0(%sp):u64"),
        ("8@[sp, 16]", ARM, "+16(%sp):u64"),
        ("-4@[x29, -20]", ARM, "-20(%x29):s32"),
        ("4@[x1,#8]", ARM, "+8(%x1):u32"),
        ("-4@5", ARM, r"\5:s32"),
        ("8@#-7", ARM, r"\-7:u64"),
        ("8@xzr", ARM, r"\0:u64"),
    ],
)
def test_an_operand_becomes_what_the_kernel_fetches(text: str, machine: str, expected: str) -> None:
    [argument] = parse_usdt_arguments(text, machine)
    fetched = f"{argument.fetched().expression}:{argument.type}"
    assert fetched == expected
    parse_fetch(fetched, FetchSite("user"))


@pytest.mark.parametrize(
    ("text", "machine", "reason"),
    [
        ("8@(%rax,%rbx,8)", X86, "several registers or a symbol"),
        ("8@-8(%rax,%rbx)", X86, "several registers or a symbol"),
        ("8@counter(%rip)", X86, "several registers or a symbol"),
        ("8@16(%rip)", X86, "several registers or a symbol"),
        ("8@%fs:16", X86, "several registers or a symbol"),
        ("1@%ah", X86, "several registers or a symbol"),
        ("8@$symbol", X86, "several registers or a symbol"),
        ("8@99999999999(%rax)", X86, "several registers or a symbol"),
        ("8f@%xmm0", X86, "floating-point"),
        ("8@%xmm1", X86, "floating-point"),
        ("8f@d0", ARM, "floating-point"),
        ("16@%rax", X86, "16 bytes"),
        ("8@[x0, x1]", ARM, "several registers or a symbol"),
        ("8@[x0, x1, lsl 3]", ARM, "several registers or a symbol"),
        ("8@[x0, 8]!", ARM, "several registers or a symbol"),
        ("4@%eax", "EM_386", "of EM_386 is not known"),
    ],
)
def test_a_form_that_the_kernel_does_not_fetch_is_refused_with_its_reason(
    text: str, machine: str, reason: str
) -> None:
    [argument] = parse_usdt_arguments(text, machine)
    with pytest.raises(GrammarError, match=reason) as caught:
        argument.fetched()
    assert argument.text in caught.value.message


def test_arguments_are_split_at_blanks_outside_of_brackets() -> None:
    found = parse_usdt_arguments("8@[sp, 16] -4@w0 8@[x1] 4@7", ARM)
    assert [one.operand for one in found] == ["[sp, 16]", "w0", "[x1]", "7"]
    assert [one.type for one in found] == ["u64", "s32", "u64", "u32"]
    found = parse_usdt_arguments("8@%rbp  -4@$-1 1@-3(%rsp)", X86)
    assert [one.text for one in found] == ["8@%rbp", "-4@$-1", "1@-3(%rsp)"]
    assert parse_usdt_arguments("", X86) == ()


@given(st.text("0123456789-@%$()[]abcdefrwxspi,# ", max_size=60), st.sampled_from([X86, ARM]))
def test_any_text_is_fetched_as_the_kernel_takes_it_or_refused(text: str, machine: str) -> None:
    found = parse_usdt_arguments(text, machine)
    assert len(found) <= MOST_ARGUMENTS
    for argument in found:
        try:
            operand = argument.fetched()
        except GrammarError:
            continue
        parse_fetch(f"{operand.expression}:{argument.type}", FetchSite("user"))
