"""How a USDT probe is attached: a definition for each place, with the arguments in the notes' types."""

from typing import Any

import pytest

from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.elf import UsdtProbe, UsdtSite
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.definition import parse_definition
from kprobe_exporter.grammar.target import Target, parse_target
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.usdt import readable_arguments, usdt_spec
from tests.support.planned import formats

TARGET = parse_target("usdt:/usr/bin/app:app:step")


def probe_at(*arguments: str, machine: str = "EM_X86_64") -> UsdtProbe:
    """Return a probe with a place for each of these notes' arguments; all but the first have a counter."""
    sites = [
        UsdtSite(0x1000 * number, 0x20 if number > 1 else None, text)
        for number, text in enumerate(arguments, 1)
    ]
    return UsdtProbe("app", "step", tuple(sites), machine, (1, 2))


def plan(found: UsdtProbe, fetch: dict[str, str], **more: Any) -> ProbeSpec | Unsupported:
    kernel = Kernel(formats, counts_tracepoints=True, locate_usdt=lambda target: found)
    attach = Attach(TARGET, fetch, None, None)
    return usdt_spec(Probe("p", "help", (attach,), **more), attach, {"comm"}, kernel, 7, 1000)


def bodies(found: UsdtProbe, fetch: dict[str, str]) -> list[str]:
    spec = plan(found, fetch)
    assert isinstance(spec, ProbeSpec), spec
    for body in (spec.body, *spec.more):
        parse_definition(f"p:g/e {body}")
    return [spec.body, *spec.more]


def reason(found: UsdtProbe, fetch: dict[str, str], **more: Any) -> str:
    spec = plan(found, fetch, **more)
    assert isinstance(spec, Unsupported), spec
    assert spec.target == str(TARGET)
    return spec.reason


def test_each_place_has_its_own_definition() -> None:
    fetch = {"n": "$arg1", "text": "+0($arg2):string", "deep": "+8(+0($arg2)):u16"}
    found = probe_at("-4@%eax 8@%rbx", "-4@-20(%rbp) 8@(%rdi)", "-4@$-1 8@%rsi")
    path = "/usr/bin/app"
    tail = "comm=$comm:string"
    assert bodies(found, fetch) == [
        f"{path}:0x1000 n=%ax:s32 deep=+8(+0(%bx)):u16 text=+0(%bx):string {tail}",
        f"{path}:0x2000(0x20) n=-20(%bp):s32 deep=+8(+0(+0(%di))):u16 text=+0(+0(%di)):string {tail}",
        rf"{path}:0x3000(0x20) n=\-1:s32 deep=+8(+0(%si)):u16 text=+0(%si):string {tail}",
    ]
    spec = plan(found, fetch)
    assert isinstance(spec, ProbeSpec)
    assert (spec.file, spec.verb, spec.inode, spec.symbol) == ("uprobe_events", "p", (1, 2), "step")
    assert spec.layout.user
    assert spec.layout.args[:2] == (Arg("n", "int"), Arg("deep", "int", unsigned=16))


def test_a_constant_takes_the_type_of_the_other_places_if_it_fits() -> None:
    assert ":s32" in bodies(probe_at("8@$5", "-4@%eax"), {"n": "$arg1"})[0]
    assert "has the types u64 and s8" in reason(probe_at("8@$500", "-1@%al"), {"n": "$arg1"})
    assert "has the types s32 and u64" in reason(probe_at("-4@$-1", "8@%rax"), {"n": "$arg1"})


@pytest.mark.parametrize(
    ("notes", "fetch", "sentence"),
    [
        (
            ("-4@%eax", "8@%rbx"),
            "$arg1",
            "$arg1 has the types s32 and u64 at different places of the probe: choose one, such as $arg1:s32",
        ),
        (("-4@%eax",), "$arg1:u64", "$arg1 has 4 bytes ('-4@%eax'), and u64 would read more"),
        (("-4@%eax",), "+0($arg1):string", "$arg1 has 4 bytes ('-4@%eax'), so it is not an address"),
        (("-4@%eax",), "$arg2", "the USDT probe has arguments up to $arg1, and no $arg2"),
        (("",), "$arg1", "the USDT probe has no arguments, and no $arg1"),
        (("8@(%rax,%rbx,8)",), "$arg1", "'8@(%rax,%rbx,8)' is computed of several registers or a symbol"),
        (("8@(%rax,%rbx,8)",), "+0($arg1):u32", "is computed of several registers or a symbol"),
        (("8f@%xmm0",), "$arg1", "'8f@%xmm0' is a floating-point number"),
    ],
)
def test_what_cannot_be_fetched_is_refused_in_one_sentence(
    notes: tuple[str, ...], fetch: str, sentence: str
) -> None:
    assert sentence in reason(probe_at(*notes), {"n": fetch})


def test_a_written_type_may_be_narrower_than_the_notes() -> None:
    assert [body.split()[1] for body in bodies(probe_at("-4@%eax", "8@%rbx"), {"n": "$arg1:s32"})] == [
        "n=%ax:s32",
        "n=%bx:s32",
    ]


def test_what_is_no_argument_is_fetched_as_written() -> None:
    fetch = {"sp": "$stack:u64", "di": "%di:s32", "text": '\\"$arg1"'}
    [body] = bodies(probe_at(""), fetch)
    assert body == '/usr/bin/app:0x1000 sp=$stack:u64 di=%di:s32 text=\\"$arg1" comm=$comm:string'


def test_arm64_has_its_own_spelling() -> None:
    [body] = bodies(probe_at("8@[sp, 16] -4@w3", machine="EM_AARCH64"), {"a": "$arg1", "b": "$arg2"})
    assert body == "/usr/bin/app:0x1000 a=+16(%sp):u64 b=%x3:s32 comm=$comm:string"


def test_a_program_has_no_kernel_stack() -> None:
    assert "the kernel has no stack behind a program's code" in reason(probe_at(""), {}, stack=True)


def test_an_unknown_probe_is_unsupported_with_the_reason() -> None:
    def refuse(target: Target) -> UsdtProbe:
        raise GrammarError("there is none")

    kernel = Kernel(formats, counts_tracepoints=True, locate_usdt=refuse)
    attach = Attach(TARGET, {}, None, None)
    found = usdt_spec(Probe("p", "help", (attach,)), attach, set(), kernel, 7, 1000)
    assert found == Unsupported(str(TARGET), "there is none")


def test_the_arguments_that_can_be_read_at_all_places() -> None:
    found = probe_at("-4@%eax 8@(%rax,%rbx,8) 8@%rcx 8@%rdx", "-4@$5 8@%rbx 4@%ecx")
    assert readable_arguments(found) == {"arg1": "$arg1"}
