"""Single fetch arguments, as the configuration has them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.expression import KPROBE, KRETPROBE, FetchSite, Need
from kprobe_exporter.grammar.fetch import FetchArg, ValueKind, parse_fetch
from kprobe_exporter.grammar.members import split_type
from tests.unit.grammar.corpus import assert_points_into

EVENT = FetchSite("event")


@pytest.mark.parametrize(
    ("text", "kind", "size", "signed"),
    [
        ("$arg3", "int", 8, False),
        ("$arg3:u64", "int", 8, False),
        ("$retval:s32", "int", 4, True),
        ("%di:x8", "int", 1, False),
        ("%di:b4@0/16", "int", 2, False),
        ("%di:char", "char", 1, False),
        ("%di:symbol", "bare", 8, False),
        ("%di:symstr", "str", 4, False),
        ("$comm", "str", 4, False),
        ("$COMM:string", "str", 4, False),
        ('\\"text"', "str", 4, False),
        ("+0(%si):string", "str", 4, False),
        ("+u0(%si):ustring", "str", 4, False),
        ("$arg1:%pd", "str", 4, False),
        ("+0(%si):u16[4]", "array", 2, False),
        ("+0(%si):string[4]", "array", 4, False),
    ],
)
def test_how_values_print(text: str, kind: ValueKind, size: int, signed: bool) -> None:
    arg = parse_fetch(text)
    assert (arg.value_kind, arg.size, arg.signed) == (kind, size, signed)
    assert arg.body == text
    assert replace(arg, name="x").render() == f"x={text}"


def test_parts() -> None:
    arg = parse_fetch("+8(%di):u16[0x4]", name="field")
    assert arg == FetchArg("field", "+8(%di)", "u16", 4)
    assert arg.element_kind == "int"
    assert arg.render() == "field=+8(%di):u16[4]"
    assert parse_fetch("a0:u8") == FetchArg("", "$arg1", "u8")
    assert "a0" in (parse_fetch("a0").warning or "")


@pytest.mark.parametrize("name", ["9", "a-b", "a b", "a" * 33, "common_pid", "__probe_ip", "é"])
def test_bad_names(name: str) -> None:
    with pytest.raises(GrammarError):
        parse_fetch("%di", name=name)
    with pytest.raises(GrammarError):
        replace(parse_fetch("%di"), name=name)


@pytest.mark.parametrize(
    ("text", "site", "message"),
    [
        ("$retval", KPROBE, "when a named function returns"),
        ("$arg1", FetchSite("kernel", entry=False), "first instruction"),
        ("count", FetchSite("kernel", entry=False), "first instruction"),
        ("$arg1", FetchSite("user"), "read a register"),
        ("%di", EVENT, "registers are not kept"),
        ("field", EVENT, r"write \$field"),
        ("$fi-eld", EVENT, "cannot be the name of a field"),
        ("$comm", EVENT, r"write \$comm:string"),
        ("@+8", KPROBE, "for uprobes only"),
        ("@jiffies", FetchSite("user"), "does not know a program's symbols"),
        ("%di:symbol", FetchSite("user"), "of kernel probes only"),
        ("$retval->f", FetchSite("user", returns=True), "of a kernel function"),
    ],
)
def test_sites(text: str, site: FetchSite, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        parse_fetch(text, site)


@pytest.mark.parametrize(
    ("text", "expression", "type_"),
    [
        ("(ext4:slot)$arg1->number:u32", "(ext4:slot)$arg1->number", "u32"),
        ("(ext4:slot)($arg1->x)->number", "(ext4:slot)($arg1->x)->number", None),
        ("+8((ext4:slot)x->(b:c)y->z):x8", "+8((ext4:slot)x->(b:c)y->z)", "x8"),
        ("$arg1:s16", "$arg1", "s16"),
    ],
)
def test_type_behind_a_cast_to_a_type_of_a_module(text: str, expression: str, type_: str | None) -> None:
    assert split_type(text) == (expression, ":" if type_ else "", type_ or "")
    if "y->" not in text:
        parsed = parse_fetch(text, KPROBE)
        assert (parsed.expression, parsed.type, parsed.body) == (expression, type_, text)


def test_arguments_on_return_are_newer() -> None:
    assert parse_fetch("$arg1", KRETPROBE).needs == {Need.ENTRY_ARGUMENTS}
    assert parse_fetch("count", KRETPROBE).needs == {Need.ENTRY_ARGUMENTS, Need.BTF}
    assert parse_fetch("$retval->f", KRETPROBE).needs == {Need.BTF}
    with pytest.raises(GrammarError, match="symstr"):
        parse_fetch("$arg1:symstr", KRETPROBE)


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("", 0, "is empty"),
        ("$arg1 x", 5, "cannot have blanks"),
        ("x=$arg1", 0, "names no member"),
        ("%di\n", 3, "a newline"),
        ("+8(%di", 6, r"end with '\)'"),
        ("+u(%di)", 2, "not an offset"),
        ("+8", 2, "address is missing"),
        ("+8($arg*)", 3, "not an address"),
        ("@", 1, "a symbol or an address"),
        ("@+x", 2, "not an offset in a file"),
        (f"{'+0(' * 12}@a{')' * 12}:symstr", 0, "through too many addresses"),
        ("\\x", 1, "neither a number of 64 bits"),
        ("%di:b3@0/12", 4, "a bit field is"),
        ("+0(%di):u8[99]", 11, "1 to 64 elements"),
        ("+0(%di):u8[3", 12, "TYPE.COUNT."),
        ("+0(%di):u8[3]x", 13, "TYPE.COUNT."),
        ("$arg1:%pd[2]", 10, "cannot be an array"),
        ("$arg*:u8", 6, "takes no type"),
        (f"%{'d' * 50}:%pd", 43, "43 characters"),
        (f"%{'d' * 50}:%pD", 36, "36 characters"),
    ],
)
def test_errors_point(text: str, at: int, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        parse_fetch(text)
    assert (caught.value.text, caught.value.column) == (text, at)


@given(st.text(alphabet="+-u08(%dix)$argretvl*stack@:[]4\\\"#>._bs/'", max_size=70))
def test_noise(text: str) -> None:
    for site in (FetchSite("any"), KPROBE, KRETPROBE, EVENT, FetchSite("user")):
        try:
            arg = parse_fetch(text, site)
        except GrammarError as error:
            assert_points_into(text, error)
        else:
            assert parse_fetch(arg.body, site) == arg


@pytest.mark.parametrize(
    "name",
    [
        *("common_type", "common_flags", "common_preempt_count", "common_pid", "common_tgid"),
        *("__probe_ip", "__probe_ret_ip", "__probe_func"),
    ],
)
def test_names_that_every_event_has(name: str) -> None:
    """The reserved_field_names of kernel/trace/trace_probe.c are refused."""
    with pytest.raises(GrammarError, match=name):
        parse_fetch("%di", name=name)


def test_how_often_memory_may_be_followed() -> None:
    """Each step is a fetch instruction, and the kernel limits their number (FETCH_INSN_MAX)."""
    deepest = "+0(" * 14 + "%di" + ")" * 14
    assert parse_fetch(deepest).expression == deepest
    with pytest.raises(GrammarError, match="too many addresses"):
        parse_fetch(f"+0({deepest})")
