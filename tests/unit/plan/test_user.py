"""How a place in a program is probed: definitions that a kernel accepts, and arguments in registers."""

from typing import Any

import pytest

from kprobe_exporter.config.model import Attach, Metric, Probe, return_type
from kprobe_exporter.elf import Code
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.definition import parse_definition
from kprobe_exporter.grammar.target import Target, parse_target
from kprobe_exporter.model.record_layout import Field
from kprobe_exporter.model.records import CALLER
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.function import user_spec
from kprobe_exporter.plan.metric import NO_HIST
from kprobe_exporter.plan.shape import shape
from kprobe_exporter.source.lines import LineParser
from tests.support.planned import formats

PROGRAM = "/usr/bin/app"


def plan(
    to: str,
    returns: str | None = None,
    filter_text: str | None = None,
    wanted: frozenset[str] = frozenset(),
    machine: str = "EM_X86_64",
    hist: bool = True,
    fetch: dict[str, str] | None = None,
    **more: Any,
) -> ProbeSpec | Unsupported:
    kind, _, place = to.partition(":")
    target = parse_target(f"{kind}:{PROGRAM}:{place}")
    attach = Attach(target, fetch or {}, filter_text, return_type(returns) if returns else None)
    kernel = Kernel(
        formats,
        hist,
        locate=lambda asked: Code({"": asked.offset}.get(asked.symbol, 0x1000 + asked.offset), machine),
    )
    return user_spec(Probe("p", "help", (attach,), **more), attach, {*wanted}, kernel, 7, 1000)


def spec(to: str, **more: Any) -> ProbeSpec:
    found = plan(to, **more)
    assert isinstance(found, ProbeSpec), found
    return found


def reason(to: str, **more: Any) -> str:
    found = plan(to, **more)
    assert isinstance(found, Unsupported), found
    assert found.target == f"{to.partition(':')[0]}:{PROGRAM}:{to.partition(':')[2]}"
    return found.reason


@pytest.mark.parametrize(
    ("made", "line", "args"),
    [
        (spec("uprobe:main"), f"p:g/e {PROGRAM}:0x1000", ()),
        (spec("uprobe:main+4"), f"p:g/e {PROGRAM}:0x1004", ()),
        (spec("uprobe:0x1149"), f"p:g/e {PROGRAM}:0x1149", ()),
        (spec("uretprobe:main", returns="void"), f"r:g/e {PROGRAM}:0x1000", ()),
        (
            spec("uretprobe:main", returns="int", wanted=frozenset({"comm"}), maxactive=7),
            f"r:g/e {PROGRAM}:0x1000 return=$retval:s32 comm=$comm:string",
            (Arg("return", "int"), Arg("comm", "str")),
        ),
        (
            spec("uprobe:main", filter_text='comm == "app" && n > 1', fetch={"n": "$arg2:s32"}),
            f"p:g/e {PROGRAM}:0x1000 n=%si:s32 comm=$comm:string",
            (Arg("n", "int"), Arg("comm", "str")),
        ),
        (
            spec(
                "uprobe:main",
                fetch={
                    "path": "+0($arg1):string",
                    "deep": "+8(+0($arg3)):u16[2]",
                    "six": "$arg6",
                    "frame": "$stack:u64",
                    "seventh": "$stack1:s32",
                    "text": '\\"$arg1"',
                    "letter": "+0(%si):char",
                },
            ),
            f"p:g/e {PROGRAM}:0x1000 deep=+8(+0(%dx)):u16[2] six=%r9 frame=$stack:u64 seventh=$stack1:s32 "
            'letter=+0(%si):char path=+0(%di):string text=\\"$arg1"',
            (
                Arg("deep", "bare", type="u16[2]"),
                Arg("six", "int", pointer=True, unsigned=64),
                Arg("frame", "int", unsigned=64),
                Arg("seventh", "int"),
                Arg("letter", "char", type="char"),
                Arg("path", "str"),
                Arg("text", "str"),
            ),
        ),
        (
            spec("uprobe:main", machine="EM_AARCH64", fetch={"path": "+0($arg1):string", "n": "$arg8:s32"}),
            f"p:g/e {PROGRAM}:0x1000 n=%x7:s32 path=+0(%x0):string",
            (Arg("n", "int"), Arg("path", "str")),
        ),
    ],
)
def test_definitions(made: ProbeSpec, line: str, args: tuple[Arg, ...]) -> None:
    assert made.line("g", "e") == line
    assert made.layout.args == args
    assert made.file == "uprobe_events"
    assert made.layout.form == ("return" if line.startswith("r") else "entry")
    assert (made.layout.layout_id, made.layout.user, made.layout.stack) == (7, True, False)
    parse_definition(line)  # our own grammar accepts it, as the kernel would


@pytest.mark.parametrize(
    ("to", "symbol"), [("uprobe:main", "main"), ("uprobe:f@V_1", "f@V_1"), ("uprobe:4425", "0x1149")]
)
def test_names(to: str, symbol: str) -> None:
    made = spec(to)
    assert (made.symbol, made.layout.symbol) == (symbol, symbol)
    assert (made.kind, made.probe) == ("uprobe", "p")
    assert made.target == f"uprobe:{PROGRAM}:{symbol}"


@pytest.mark.parametrize(
    ("to", "more", "why"),
    [
        (
            "uretprobe:main",
            {"fetch": {"n": "+0($arg1):u8"}},
            "'+0($arg1)' are gone when the function returns",
        ),
        ("uprobe:main+4", {"fetch": {"n": "$arg1"}}, "are there only at a function's first instruction"),
        ("uprobe:main", {"fetch": {"n": "$arg7"}}, "$arg7 is not in a register, as the first 6 are"),
        ("uprobe:main", {"fetch": {"n": "$arg9"}, "machine": "EM_AARCH64"}, "as the first 8 are"),
        ("uprobe:main", {"fetch": {"n": "$arg1"}, "machine": "EM_386"}, "is on EM_386 is not known"),
        ("uprobe:main", {"fetch": {"n": "$retval"}}, "$retval is there only when a named function returns"),
        ("uprobe:main", {"fetch": {"n": "%di:symbol"}}, "symbol is a type of kernel probes only"),
        ("uprobe:main", {"fetch": {"n": "@environ"}}, "the kernel does not know a program's symbols"),
        ("uprobe:main", {"stack": True}, "the kernel has no stack behind"),
    ],
)
def test_what_cannot_be(to: str, more: dict[str, Any], why: str) -> None:
    assert why in reason(to, **more)


def test_a_library_by_its_name() -> None:
    """The kernel gets the path that was found; metrics have the name, and the plan says both."""
    kernel = Kernel(
        formats, counts_tracepoints=True, locate=lambda _: Code(16, "EM_X86_64", None, "/lib/libq.so.1")
    )
    attach = Attach(parse_target("uprobe:libq.so.1:f"), {}, None, None)
    found = user_spec(Probe("p", "help", (attach,)), attach, set(), kernel, 7, 1000)
    assert isinstance(found, ProbeSpec)
    assert (found.target, found.body) == ("uprobe:libq.so.1:f", "/lib/libq.so.1:0x10")
    assert found.note == "libq.so.1 is /lib/libq.so.1"
    assert found.because.endswith(f"; {found.note}")


def test_without_hist_triggers_the_agent_adds_up() -> None:
    """The hits of a uretprobe are its entries, by uprobe_profile, with either plan."""
    made = spec("uretprobe:main", returns="int", aggregate="kernel", hist=False)
    assert (made.plan, made.because, made.tables) == ("events", NO_HIST, ())
    assert made.body == f"{PROGRAM}:0x1000 return=$retval:s32"
    assert not made.tables_count_hits


def test_a_place_at_an_offset_may_be_where_a_function_begins() -> None:
    """Only the user knows whether a function begins at an offset: a stripped program has no symbols."""
    assert spec("uprobe:0x1149", fetch={"n": "$arg1"}).body == f"{PROGRAM}:0x1149 n=%di"


def test_what_the_file_does_not_have_is_known_before_it_is_tried() -> None:
    def absent(target: Target) -> Code:
        raise GrammarError(f"{target.path} has no function 'mian', did you mean 'main'?")

    attach = Attach(parse_target(f"uprobe:{PROGRAM}:mian"), {}, None, None)
    kernel = Kernel(formats, counts_tracepoints=True, locate=absent)
    found = user_spec(Probe("p", "help", (attach,)), attach, set(), kernel, 0, 1000)
    assert found == Unsupported(str(attach.target), f"{PROGRAM} has no function 'mian', did you mean 'main'?")


def test_plans() -> None:
    calls = Metric("counter", "calls_total", "help")
    counted, recorded = spec("uprobe:main"), spec("uprobe:main", metrics=(calls,))
    assert (counted.plan, recorded.plan) == ("count", "events")
    assert spec("uretprobe:main", returns="int").because == "its return value is read"
    added = spec(
        "uretprobe:main", returns="int", filter_text="return > 1", metrics=(calls,), aggregate="kernel"
    )
    assert (added.plan, added.filter) == ("kernel", None)
    assert all("return" in (table.condition or "") for table in added.tables)


def test_pages_have_no_caller_of_a_program() -> None:
    layout = spec("uretprobe:main", returns="long").layout
    made = shape(layout, str(formats("capture", "cap_open_ret")).replace("s64 ret;", "s64 return;"))
    assert made.caller is None
    assert made.fields == (Field("signed", 24, 8),)


@pytest.mark.parametrize(
    ("to", "body"),
    [("uprobe:main", b"(0x40113b) "), ("uretprobe:main", b"(0x558bfdf7c190 <- 0x558bfdf7c149) ")],
)
def test_text_has_no_caller_of_a_program(to: str, body: bytes) -> None:
    made = spec(to, fetch={"n": "%di:s64", "s": "+0(%si):string"})
    line = b"             app-310     [001] DNZff    19.448742: p: " + body + b'n=-2 s="a) <- (b"\n'
    batch = LineParser([made.layout]).feed(line)
    assert batch.unparsed == 0
    (record,) = batch.records
    assert record == (7, 19_448_742_000, 1, 310, None, None, -2, b"a) <- (b")
    assert record[CALLER] is None


def test_a_program_may_return_any_size() -> None:
    """The kernel's functions return at most MAX_RW_COUNT as ssize_t; their sums need no upper halves."""
    made = spec("uretprobe:f", returns="ssize_t", aggregate="kernel", return_buckets=(1.0,))
    assert "return_high=$retval:b32@32/64" in made.body
    assert any("vals=return,return_high" in table.trigger for table in made.tables)


@pytest.mark.parametrize(("to", "by_tables"), [("uprobe:f", True), ("uretprobe:f", False)])
def test_hits_of_a_return_are_entries_whatever_its_tables_count(to: str, by_tables: bool) -> None:
    calls = Metric("counter", "calls_total", "help")
    assert spec(to, metrics=(calls,), aggregate="kernel").tables_count_hits is by_tables
