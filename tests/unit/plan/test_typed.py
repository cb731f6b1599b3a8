"""A function's fetch arguments get the kernel's own types, and on old kernels registers."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.btf.prototypes import Param, Prototype, Type
from kprobe_exporter.config.model import Attach, Metric, Probe, return_type
from kprobe_exporter.diagnose.saved_kernel import load
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.plan.typed import look_up, typed
from tests.unit.captured import FIXTURES

INT, SIZE = Type("int", "s32", signed=True), Type("size_t", "u64")
FILE = Type("struct file *", "x64", False, True)
WIDE = Type("struct wide", None)
READ = Prototype(
    "read",
    (Param("file", FILE, 1), Param("count", SIZE, 2), Param("by_value", WIDE, None)),
    INT,
)
KNOWN = {("", "read"): READ, ("", "gone"): READ._replace(name="gone", returns=Type("void", None))}


def at(target: str, guessed: bool = True, **fetch: str) -> Attach:
    attach = Attach(parse_target(target), fetch, None, None)
    if not attach.target.kind.is_return:
        return attach
    return replace(attach, returns=return_type("long"), guessed=guessed)


def probe(*metrics: Metric) -> Probe:
    return Probe("p", "", (), metrics)


@pytest.mark.parametrize(
    ("written", "body"),
    [
        ("count", "$arg2:u64"),
        ("count:u8", "$arg2:u8"),
        ("file", "$arg1:x64"),
        ("+8(file):u32", "+8($arg1):u32"),
        ("+0(+8(file)):string", "+0(+8($arg1)):string"),
        ("$arg2", "$arg2:u64"),
        ("$arg2:x32", "$arg2:x32"),
        ("$arg9", "$arg9"),
        ("%di", "%di"),
        ("$stack", "$stack"),
    ],
)
def test_arguments(written: str, body: str) -> None:
    assert typed(probe(), at("kprobe:read", a=written), KNOWN).fetch == {"a": body}


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("cuont", "read has no parameter 'cuont' that can be read, did you mean 'count'"),
        ("x", "it has file, count, by_value"),
        ("by_value", "read has no parameter 'by_value' that can be read"),
    ],
)
def test_parameters_that_cannot_be_read(written: str, sentence: str) -> None:
    with pytest.raises(GrammarError, match=sentence):
        typed(probe(), at("kprobe:read", a=written), KNOWN)


def test_a_guessed_return_type_is_known_now() -> None:
    found = typed(probe(), at("kretprobe:read"), KNOWN).returns
    assert found == return_type("int")
    assert typed(probe(), at("kretprobe:read", guessed=False), KNOWN).returns == return_type("long")
    assert typed(probe(), at("kretprobe:other"), KNOWN).returns == return_type("long")


def test_what_returns_nothing() -> None:
    """A void function is accepted, unless its return value is used."""
    returns = typed(probe(), at("kretprobe:gone"), KNOWN).returns
    assert returns is not None
    assert returns.fetch is None
    wanted = probe(Metric("gauge", "g", "help", value="return"))
    with pytest.raises(GrammarError, match=r"gone returns nothing \(void\): take 'return' out"):
        typed(wanted, at("kretprobe:gone"), KNOWN)


@pytest.mark.parametrize(("machine", "body"), [("EM_X86_64", "+8(%di):u32"), ("EM_AARCH64", "+8(%x0):u32")])
def test_kernels_that_know_no_arguments(machine: str, body: str) -> None:
    assert typed(probe(), at("kprobe:read", a="+8($arg1):u32"), {}, machine).fetch == {"a": body}
    assert typed(probe(), at("kprobe:read", a="+8(file):u32"), KNOWN, machine).fetch == {"a": body}


def test_unknown_machines() -> None:
    with pytest.raises(GrammarError, match="write the register"):
        typed(probe(), at("kprobe:read", a="$arg1"), {}, "s390x")


def test_only_what_makes_a_difference_is_looked_up() -> None:
    asked: list[tuple[list[str], str]] = []

    def prototypes(names: Collection[str], module: str) -> dict[str, Prototype]:
        asked.append((sorted(names), module))
        return dict.fromkeys(names, READ)

    places = [
        at("kretprobe:a"),
        at("kretprobe:told", guessed=False),
        at("kprobe:plain"),
        at("kprobe:b", x="count"),
        at("kprobe:mod:c", x="$arg1"),
        at("kprobe:d", x="$arg1:u8"),
        at("uprobe:/bin/sh:e", x="$arg1"),
    ]
    assert set(look_up(places, prototypes)) == {("", "a"), ("", "b"), ("mod", "c")}
    assert sorted(asked) == [(["a", "b"], ""), (["c"], "mod")]


@pytest.mark.parametrize("function", ["__x64_sys_fsync", "__x64_sys_read"])
def test_return_type_of_a_system_call_is_known_without_btf(function: str) -> None:
    """It is the one that the BTF of a kernel tells."""
    kernel = load(FIXTURES / "kernels/6.12.tar.xz").kernel
    told = KernelTypes(kernel.btf, kernel.types).prototypes([function])[function].returns

    def unread(names: Collection[str], module: str) -> dict[str, Prototype]:
        raise AssertionError(names)

    assert look_up([at(f"kretprobe:{function}")], unread)["", function].returns == told
    with pytest.raises(AssertionError):
        look_up([at(f"kretprobe:{function}", regs="+112(regs):u64")], unread)
