"""Resolving targets: patterns, compiler suffixes, modules and names of several functions, from any lists."""

import errno
import fnmatch
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import product, starmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.symbols.functions import HIDDEN, MOST_TOLD, Functions, named_alone, singles
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.symbols.resolve import (
    LONGEST_NAME,
    Resolved,
    Resolver,
    event_names,
    matcher,
    probe_name,
    with_suffix,
)
from kprobe_exporter.tracefs.features import FPROBE_SYNTAX, no_fprobes
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.tracefs.refusal import NON_UNIQUE, NotBuilt, NotUnique, refused
from tests.support.function_lists import SYMBOLS, TRACEABLE, lists_of
from tests.unit.tracefs.conftest import Table

ADDRESSES = b"""ffffffff81000014 vfs_read
ffffffff81000024 vfs_write
ffffffff81000054 twice
ffffffff81000064 twice
ffffffff81000104 both_places
ffffffffc0000024 both_places [ext4]
"""
HIDE = re.compile(rb"^[0-9a-f]{16}", re.MULTILINE)
BLACKLIST = b"""0xffffffff81000070-0xffffffff81000078\tkeeps_off
0xffffffffc0000070-0xffffffffc0000078\tkeeps_off_there [ext4]
"""
MODULES = b"ext4 1130496 1 - Live 0xffffffffc0000000\nxfs 1 0 - Live 0x0\n"
EVENTS = {"sched": ["sched_switch", "sched_wakeup", "sched_wakeup_new"], "tcp": ["tcp_probe"]}


def lists(
    traceable: bytes | None = TRACEABLE,
    symbols: bytes | None = SYMBOLS,
    blacklist: bytes | None = BLACKLIST,
    modules: bytes | None = MODULES,
    addresses: bytes | None = None,
) -> Lists:
    return lists_of(traceable, symbols, blacklist, modules, addresses)


def resolver(**contents: Any) -> Resolver:
    return Resolver(lists(**contents), lambda system: EVENTS.get(system, []))


def matching(written: str, most: int = 100, **contents: Any) -> list[str]:
    return [str(one) for one in resolver(**contents).matching(parse_target(written), most)]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("kprobe:vfs_*", ["vfs_read", "vfs_write", "vfs_writev"]),
        ("kretprobe:vfs_write?", ["vfs_writev"]),
        ("fentry:*fs_[rw]*e", ["vfs_write"]),
        ("call:vfs_[!r]*", ["vfs_write", "vfs_writev"]),
        ("kprobe:[vV]fs_[or]*", ["Vfs_odd", "vfs_read"]),
        ("kprobe:tcp_p*", ["tcp_push.constprop.0", "tcp_push.isra.0"]),
        ("kprobe:tcp_rcv*", ["tcp_rcv", "tcp_rcv.part.0"]),
        ("kprobe:*ice", ["twice"]),
        ("kprobe:*_open", ["ext4:ext4_open"]),
        ("kprobe:xfs:*", ["xfs:everywhere"]),
        ("kprobe:both_*", ["both_places", "ext4:both_places"]),
        ("kprobe:every*", ["ext4:everywhere", "xfs:everywhere"]),
        ("tracepoint:sched:*wake*", ["sched:sched_wakeup", "sched:sched_wakeup_new"]),
        ("tracepoint:tcp:*", ["tcp:tcp_probe"]),
    ],
)
def test_a_pattern(written: str, found: list[str]) -> None:
    kind = written.partition(":")[0]
    assert matching(written) == [f"{kind}:{name}" for name in found]


@pytest.mark.parametrize(
    ("written", "most", "said"),
    [
        (
            "kprobe:vfs_*",
            2,
            "'kprobe:vfs_*' names 3 functions, more than max_matches 2: narrow it, or raise "
            "global.max_matches.",
        ),
        ("tracepoint:sched:*", 2, "'tracepoint:sched:*' names 3 tracepoints, more than max_matches 2: "),
        ("kprobe:vfs_raed*", 9, "matches no function; one begins with 'vfs_r': vfs_read."),
        ("kprobe:ext4:ext4__*", 9, "2 begin with 'ext4_': ext4_make.isra.0, …."),
        ("kprobe:0*", 9, "'kprobe:0*' matches no function."),
        ("kprobe:*_nothing", 9, "'kprobe:*_nothing' matches no function."),
        ("kprobe:keeps_*", 9, "matches no function"),
        ("kprobe:*invalid*", 9, "matches no function"),
        ("kprobe:*.cold", 9, "matches no function"),
        ("kprobe:nfs:*", 9, "matches no function: the module 'nfs' is not loaded"),
        (
            "tracepoint:shced:*",
            9,
            "matches no tracepoint: this kernel has no tracepoints of a system 'shced'",
        ),
        ("tracepoint:sched:sched_w_*", 9, "2 begin with 'sched_w': sched_wakeup, …."),
    ],
)
def test_a_pattern_that_is_refused(written: str, most: int, said: str) -> None:
    with pytest.raises(ProbeRefused) as refusal:
        matching(written, most)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("kprobe", ["do_exit", "do_open"]),
        ("call", ["do_open"]),
        ("kretprobe", ["do_open"]),
        ("fexit", ["do_open"]),
    ],
)
def test_a_pattern_of_returns_leaves_out_what_never_returns(kind: str, found: list[str]) -> None:
    assert matching(f"{kind}:do_*", traceable=b"do_exit\ndo_open\n") == [f"{kind}:{one}" for one in found]


def test_without_the_list_there_are_no_patterns() -> None:
    with pytest.raises(ProbeRefused, match="does not list its functions"):
        matching("kprobe:vfs_*", traceable=None)
    assert matching("tracepoint:tcp:*", traceable=None) == ["tracepoint:tcp:tcp_probe"]
    assert "kprobe:keeps_off" in matching("kprobe:*", blacklist=None)


def test_a_name_that_no_kernel_could_have_is_none() -> None:
    odd = "évil [ext4]\n; rm\n\x00 x\n#\nfine\n".encode() + b"\xff\xfe\n\n[x]\n"
    assert matching("kprobe:*", traceable=odd) == ["kprobe:fine"]


@pytest.mark.parametrize(
    ("written", "target", "note"),
    [
        ("kprobe:vfs_read", "kprobe:vfs_read", ""),
        ("kprobe:vfs_read+16", "kprobe:vfs_read+16", ""),
        ("kprobe:_text+80", "kprobe:_text+80", ""),
        ("kprobe:nothing", "kprobe:nothing", ""),
        ("kprobe:twice", "kprobe:twice", ""),
        ("kprobe:both_places", "kprobe:both_places", ""),
        ("kprobe:everywhere", "kprobe:everywhere", ""),
        ("kprobe:tcp_rcv", "kprobe:tcp_rcv", ""),
        ("kprobe:notraced", "kprobe:notraced", ""),  # it exists; the kernel reports that it is notrace
        ("kprobe:vfs_write.cold", "kprobe:vfs_write.cold", ""),
        ("kprobe:tcp_ack", "kprobe:tcp_ack.isra.0", "compiled as 'tcp_ack.isra.0' here: its arguments"),
        ("kprobe:tcp_ack+8", "kprobe:tcp_ack+8", ""),
        ("call:tcp_slow", "call:tcp_slow.part.0.isra.0", "not every call enters it"),
        ("kprobe:ext4_open", "kprobe:ext4:ext4_open", "is a function of the module 'ext4'"),
        ("kretprobe:ext4_open", "kretprobe:ext4:ext4_open", "of the module 'ext4'"),
        ("kprobe:ext4_make", "kprobe:ext4:ext4_make.isra.0", "compiled as 'ext4_make.isra.0' here"),
        ("kprobe:ext4:ext4_make", "kprobe:ext4:ext4_make.isra.0", "compiled as"),
        ("kprobe:xfs:ext4_make", "kprobe:xfs:ext4_make", ""),
        ("kprobe:nfs:nfs_open", "kprobe:nfs:nfs_open", ""),
        ("fentry:vfs_read", "fentry:vfs_read", ""),
        ("fexit:tcp_ack", "fexit:tcp_ack.isra.0", "compiled as"),
        ("fentry:ext4_open", "fentry:ext4:ext4_open", "'ext4'; an fprobe is lost when 'ext4' is unloaded"),
        ("fentry:ext4:ext4_open", "fentry:ext4:ext4_open", "an fprobe is lost when 'ext4' is unloaded"),
        ("tracepoint:sched:nothing", "tracepoint:sched:nothing", ""),
        ("uprobe:/bin/sh:tcp_ack", "uprobe:/bin/sh:tcp_ack", ""),
        ("syscall:tcp_ack", "syscall:tcp_ack", ""),
    ],
)
def test_where_a_target_attaches(written: str, target: str, note: str) -> None:
    found = resolver().place(parse_target(written))
    assert str(found.target) == target
    assert note in found.note
    assert bool(note) == bool(found.note)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("kprobe:tcp_push", "'tcp_push' is compiled as tcp_push.constprop.0, tcp_push.isra.0 here: name one"),
        (
            "fentry:nfs:nfs_open",
            "the module 'nfs' is not loaded, and an fprobe cannot wait for it: kprobe:nfs:",
        ),
        ("fentry:vfs_raed", "'vfs_raed' is not among them, did you mean 'vfs_read'?"),
        (
            "fexit:notraced",
            "an fprobe takes only the functions of available_filter_functions, and 'notraced'",
        ),
        ("fentry:ext4:vfs_read", "'vfs_read' is not among them"),
        (
            "fentry:twice",
            "an fprobe would take them all; name one of them: kprobe:_text+80, kprobe:_text+96.",
        ),
        ("fentry:ext4:both_places", "several functions are called 'both_places'"),
    ],
)
def test_what_is_refused_beforehand(written: str, said: str) -> None:
    with pytest.raises(ProbeRefused) as refusal:
        resolver().place(parse_target(written))
    assert said in str(refusal.value)
    assert str(refusal.value).endswith((".", "?."))


@pytest.mark.parametrize("written", ["kprobe:ext4_open", "kprobe:tcp_push", "fentry:nothing", "fexit:twice"])
def test_without_the_list_all_stays_as_it_is_written(written: str) -> None:
    target = parse_target(written)
    assert resolver(traceable=None).place(target) == Resolved(target)


def test_without_kallsyms_a_clone_is_taken() -> None:
    found = resolver(symbols=None).place(parse_target("kprobe:notraced"))
    assert found.target.symbol == "notraced.constprop.0"


def test_a_list_is_read_when_it_is_needed_and_once() -> None:
    reads: list[str] = []

    def counted(name: str, content: bytes) -> Callable[[], Iterable[bytes]]:
        def lines() -> Iterable[bytes]:
            reads.append(name)
            return content.splitlines()

        return lines

    texts = {"traceable": TRACEABLE, "symbols": SYMBOLS, "blacklist": BLACKLIST, "modules": MODULES}
    made = Resolver(Lists(*starmap(counted, texts.items())), lambda system: EVENTS[system])
    made.matching(parse_target("tracepoint:sched:*"), 9)
    made.place(parse_target("tracepoint:sched:sched_switch"))
    assert reads == []
    for name in ("vfs_read", "vfs_write", "nothing"):
        made.place(parse_target(f"kprobe:{name}"))
    assert reads == ["traceable"]


def test_as_the_kernel_lays_its_files_out(table: Table, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_bytes(MODULES)
    table.files["available_filter_functions"] = TRACEABLE
    made = Resolver.of(running_kernel(table, tmp_path))
    assert str(made.place(parse_target("kprobe:ext4_open")).target) == "kprobe:ext4:ext4_open"
    assert len(made.matching(parse_target("kprobe:vfs_*"), 9)) == 3


def test_tracepoints_are_directories(tmp_path: Path) -> None:
    for path in ("sched_switch/enable", "sched_switch/format", "odd/format", "enable", "filter"):
        place = tmp_path / "events/sched" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    assert event_names(ReadOnlyTracefs(tmp_path), "sched") == ["sched_switch"]
    assert event_names(ReadOnlyTracefs(tmp_path), "nothing") == []


@pytest.mark.parametrize(
    ("written", "contents", "forms"),
    [
        # Data of that name and functions of the boot code are left out.
        ("kprobe:twice", {}, ["kprobe:_text+80", "kprobe:_text+96"]),
        ("kretprobe:both_places", {}, ["kretprobe:ext4:both_places", "kprobe:_text+256"]),
        ("kprobe:both_places", {"addresses": ADDRESSES}, ["kprobe:ext4:both_places", "kprobe:_text+256"]),
        # 6.1 of arm64 does not list _text.
        (
            "kprobe:twice",
            {"symbols": SYMBOLS.replace(b" _text\n", b" _stext\n")},
            ["kprobe:_stext+80", "kprobe:_stext+96"],
        ),
        # Functions off which the kernel keeps kprobes are left out.
        (
            "kprobe:twice",
            {"blacklist": b"0xffffffff81000040-0xffffffff81000054\ttwice\n"},
            ["kprobe:_text+96"],
        ),
        ("kprobe:twice", {"blacklist": b"0x0-0x0\ttwice\n\n-\n"}, ["kprobe:_text+80", "kprobe:_text+96"]),
        ("kprobe:twice", {"blacklist": None}, ["kprobe:_text+80", "kprobe:_text+96"]),
        # Only functions that can be traced are named, if tracefs lists them.
        (
            "kprobe:twice",
            {"addresses": ADDRESSES.replace(b"ffffffff81000064 twice\n", b"")},
            ["kprobe:_text+80"],
        ),
        # Without CAP_SYSLOG, offsets are from the first function whose name is unique.
        (
            "kprobe:twice",
            {"symbols": HIDE.sub(b"0" * 16, SYMBOLS), "addresses": ADDRESSES},
            ["kprobe:vfs_read+64", "kprobe:vfs_read+80"],
        ),
        (
            "kprobe:twice",
            {"symbols": HIDE.sub(b"0" * 16, SYMBOLS + SYMBOLS[32:64]), "addresses": ADDRESSES},
            ["kprobe:vfs_write+48", "kprobe:vfs_write+64"],
        ),
        (
            "kprobe:everywhere",
            {"symbols": HIDE.sub(b"0" * 16, SYMBOLS)},
            ["kprobe:ext4:everywhere", "kprobe:xfs:everywhere"],
        ),
        ("kprobe:twice", {"symbols": HIDE.sub(b"0" * 16, SYMBOLS)}, []),
        ("kprobe:twice", {"symbols": None, "addresses": ADDRESSES}, []),
        ("kprobe:twice", {"symbols": None}, []),
        ("kprobe:twice", {"symbols": b"", "addresses": b"\n\xff\n x y z\n"}, []),
    ],
)
def test_how_each_of_several_is_named(written: str, contents: dict[str, Any], forms: list[str]) -> None:
    target, known = parse_target(written), lists(**contents)
    assert [str(one) for one in named_alone(target, known)] == forms
    assert singles(target, known) == (f"name one of them: {', '.join(forms)}" if forms else HIDDEN)


def test_only_the_first_of_very_many_are_told() -> None:
    many = b"".join(b"ffffffff81%06x t twice\n" % place for place in range(0x100, 0x1400, 0x100))
    said = singles(parse_target("kprobe:twice"), lists(symbols=SYMBOLS[:32] + many))
    assert said.count("_text+") == MOST_TOLD
    assert said.endswith("(11 more)")


@pytest.mark.parametrize(
    ("code", "reason", "several"),
    [
        (errno.EADDRNOTAVAIL, "the name stands for more than one function (EADDRNOTAVAIL)", True),
        (errno.EINVAL, f"… (EINVAL); the kernel says: {NON_UNIQUE}, at ^ in 'p:g/e ^twice'", True),
    ],
)
def test_a_refusal_for_a_name_of_several_is_explained(code: int, reason: str, several: bool) -> None:
    error = refused(OSError(code, "?"), reason)
    assert isinstance(error, NotUnique) == several
    told = resolver().explain(parse_target("kprobe:twice"), error)
    assert told == f"{reason}; name one of them: kprobe:_text+80, kprobe:_text+96."


def test_a_kernel_without_kprobes_is_the_reason_for_every_function() -> None:
    said = "this kernel was built without CONFIG_KPROBE_EVENTS (no kprobe_events)."
    assert resolver().explain(parse_target("kprobe:vfs_raed"), NotBuilt(said)) == said


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            "kprobe:vfs_raed",
            "this kernel has no such function, or the compiler inlined it, or its module is not loaded,"
            " did you mean 'vfs_read'?",
        ),
        ("kprobe:keeps_off", "the kernel keeps kprobes off it (/sys/kernel/debug/kprobes/blacklist)."),
        ("kprobe:vfs_read", "it is full (EINVAL)."),
    ],
)
def test_a_refusal_is_explained_as_check_does(written: str, sentence: str) -> None:
    """The kernel's own reason stands where its lists know none."""
    made, target = resolver(), parse_target(written)
    error = refused(OSError(errno.EINVAL, "?"), "it is full (EINVAL)")
    made.place(target)
    assert made.explain(target, error) == sentence
    answer = Functions(lists(), [target.symbol]).answer(target.module, target.symbol, target.offset)
    assert (answer.can is False) == sentence.startswith(answer.why or "-")


def test_check_and_run_tell_the_same_names() -> None:
    answer = Functions(lists(), ["twice", "_text"]).answer("", "twice", 0)
    assert answer.can is False
    assert "name one of them: kprobe:_text+80, kprobe:_text+96" in answer.why
    assert Functions(lists(), ["_text"]).answer("", "_text", 80).can is None


@pytest.mark.parametrize(
    ("symbol", "form"),
    [
        ("a", "a.isra.0"),
        ("b", "b.constprop.12.isra.3"),
        ("c", None),
        ("d", None),
        ("e", None),
        ("f", "f.llvm.1234567890"),
    ],
)
def test_a_suffix(symbol: str, form: str | None) -> None:
    names = "a.isra.0 a.isra.0.cold ab.isra.0 b.constprop.12.isra.3 c.cold d.isra e.x.isra.0"
    found = with_suffix(symbol, [*names.split(), "f.llvm.1234567890"])
    assert (found and found[0]) == form


NAMES = st.text("abAB_.$09\u00e9", min_size=1, max_size=60)


@given(st.lists(st.tuples(NAMES, NAMES), max_size=60), st.sets(st.text("ab_0", min_size=1, max_size=8)))
def test_probe_names(pairs: list[tuple[str, str]], taken: set[str]) -> None:
    before, made = set(taken), set(taken)
    names = [probe_name(f"p{base.lower()}", function, made) for base, function in pairs]
    assert len(set(names)) == len(names)
    assert before.isdisjoint(names)
    assert made == before | set(names)
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", name) and len(name) <= LONGEST_NAME for name in names)
    again = set(before)
    assert [probe_name(f"p{base.lower()}", function, again) for base, function in pairs] == names


@pytest.mark.parametrize(
    ("base", "function", "name"),
    [
        ("tcp", "tcp_rcv", "tcp_tcp_rcv"),
        ("tcp", "tcp_rcv.isra.0", "tcp_tcp_rcv_isra_0"),
        ("x", "NF_HOOK", "x_nf_hook"),
        ("a" * 10, "b" * 29, "a" * 10 + "_" + "b" * 29),
    ],
)
def test_a_probe_name(base: str, function: str, name: str) -> None:
    assert probe_name(base, function, set()) == name


def test_probe_names_that_are_cut_or_taken() -> None:
    taken: set[str] = set()
    long = [probe_name("base", "f" * 50 + end, taken) for end in "ab"]
    assert len(set(long)) == 2
    assert all(name.startswith("base_" + "f" * 27 + "_") and len(name) == LONGEST_NAME for name in long)
    first, second = (probe_name("p", name, taken) for name in ("Foo", "foo"))
    assert (first, second.rpartition("_")[0]) == ("p_foo", "p_foo")


@given(st.text("ab[]!*?-x", max_size=12), st.lists(st.text("abx-!]", max_size=6), max_size=20))
def test_patterns_match_as_the_shell_does(pattern: str, names: list[str]) -> None:
    matches = matcher(pattern)
    assert [matches(name) for name in names] == [fnmatch.fnmatchcase(name, pattern) for name in names]


@given(
    st.lists(
        st.tuples(st.from_regex(r"\A[a-c_]{1,6}(\.isra\.0|\.cold)?\Z"), st.sampled_from(["", "m", "n"])),
        max_size=40,
    ),
    st.text("abc*?_[]!", min_size=1, max_size=8),
    st.sampled_from(["", "m", "z"]),
)
def test_all_that_match_and_nothing_else(rows: list[tuple[str, str]], pattern: str, module: str) -> None:
    listed = "".join(f"{name} [{there}]\n" if there else f"{name}\n" for name, there in rows).encode()
    made = resolver(traceable=listed, modules=b"m 1\nn 1\n")
    wanted = {
        (name, there)
        for name, there in rows
        if fnmatch.fnmatchcase(name, pattern) and not name.endswith(".cold") and module in ("", there)
    }
    target = Target(Kind.KPROBE, module, pattern)
    for most in (len(wanted), max(0, len(wanted) - 1), 10**6):
        try:
            found = made.matching(target, most)
        except ProbeRefused:
            assert not wanted or len(wanted) > most
        else:
            assert wanted
            assert [(one.symbol, one.module) for one in found] == sorted(wanted)


@given(*[st.binary(max_size=200)] * 4, st.sampled_from(Kind))
def test_any_bytes_in_the_lists(
    traceable: bytes, symbols: bytes, modules: bytes, addresses: bytes, kind: Kind
) -> None:
    contents = {"symbols": symbols + b"\nx T x\n", "modules": modules, "addresses": addresses}
    made = resolver(traceable=traceable + b"\nx\nx [m]\n", **contents)
    for module, event in product(("", "m"), ("", "*")):
        target = Target(kind, module, "x", system="sched", event=event)
        assert "\n" not in made.explain(target, NotUnique("why."))
        with suppress(ProbeRefused):
            assert made.place(target).target.symbol == "x"
        with suppress(ProbeRefused):
            assert len(made.matching(target, 5)) <= 5


@pytest.mark.parametrize(
    ("readme", "switch", "why"),
    [
        (FPROBE_SYNTAX, "1", None),
        (FPROBE_SYNTAX, None, None),
        (FPROBE_SYNTAX, "0", "an fprobe stays silent while ftrace is off"),
        (b"p[:[<group>/][<event>]]", "1", "this kernel has no fprobe events (CONFIG_FPROBE_EVENTS)"),
        (None, "1", "this kernel has no fprobe events"),
    ],
)
def test_whether_there_are_fprobes(
    table: Table, tmp_path: Path, readme: bytes | None, switch: str | None, why: str | None
) -> None:
    if readme is not None:
        table.files["README"] = b"text\n\t" + readme + b" <func-name>\n"
    if switch is not None:
        place = tmp_path / "proc/sys/kernel/ftrace_enabled"
        place.parent.mkdir(parents=True)
        place.write_text(f"{switch}\n")
    found = no_fprobes(running_kernel(table, tmp_path))
    assert (found is None) == (why is None)
    assert why is None or why in str(found)
