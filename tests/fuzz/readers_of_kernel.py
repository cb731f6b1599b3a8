"""The kernel's lists and the files of tracefs: each kind of text with our functions that read it."""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.event_format import parse_format, text_pattern
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.identity.saved_tgids import parse_tgids
from kprobe_exporter.identity.threads import parse_comms
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.shape import geometry, shape, stacks
from kprobe_exporter.symbols.functions import Functions
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.symbols.resolve import Resolver
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.hist_tables import parse_hist
from kprobe_exporter.tracefs.profile import buffer_stats, profile_counts
from kprobe_exporter.tracefs.refusal import logged_error
from tests.fuzz.reader import Reader
from tests.support.function_lists import BLACKLIST, MODULES, NAMES, SYMBOLS, TRACEABLE, lists_of
from tests.support.hist_texts import EMPTY, POWERS
from tests.support.hist_texts import NAMES as HIST_NAMES
from tests.support.kallsyms import HIDDEN, KALLSYMS
from tests.support.kallsyms import LISTED as LISTED_FUNCTIONS
from tests.support.kallsyms import Machine as KallsymsMachine
from tests.unit.captured import FIXTURES, captured
from tests.unit.tracefs.conftest import Table

TARGETS = [
    parse_target(text)
    for text in (
        *("kprobe:vfs_*", "kprobe:vfs_read", "kprobe:tcp_ack", "kprobe:ext4:ext4_open", "kprobe:twice"),
        *("fentry:vfs_write", "kretprobe:*[a-z]?", "kprobe:nothing_like_it"),
    )
]
MOST = 100_000
LISTED = (0, 0xFFFFFFFF81000010, 0xFFFFFFFF81000184, 0xFFFFFFFFC0000014, (1 << 64) - 1)
COMMANDS = ("p:capture/bad do_sys_openat2 x=$arg99", "r:capture/bad do_sys_openat2 ret=$retval:s99", "")
DEFINITIONS = (
    b"p:kprobe_exporter/open do_sys_openat2 path=+0($arg2):ustring\n"
    b"r16:kprobe_exporter/back vfs_read ret=$retval\np:other/open vfs_read\ne:a/b sched.sched_switch\n"
)


def _fixtures(start: str) -> list[bytes]:
    return [one.data for one in captured(start)]


def _lists(data: bytes, which: str) -> Lists:
    """The kernel's lists, with ``data`` as one of them."""
    known = {"traceable": TRACEABLE, "symbols": SYMBOLS, "blacklist": BLACKLIST, "modules": MODULES}
    texts = {**known, "addresses": LISTED_FUNCTIONS, which: data}
    return lists_of(*texts.values())


def _told(data: bytes, which: str) -> list[object]:
    """All answers about functions by these lists."""
    lists = _lists(data, which)
    known = Functions(lists, NAMES)
    said: list[object] = [known.answer(module, name, 0) for name in NAMES for module in ("", "ext4")]
    resolver = Resolver(lists, lambda _: ())
    for target in TARGETS:
        with suppress(ProbeRefused):
            said.append(resolver.place(target))
        with suppress(ProbeRefused):
            said.append(resolver.matching(target, MOST))
    return said


@cache
def _told_without(which: str) -> list[object]:
    return _told(b"", which)


def _functions(data: bytes, which: str) -> bool:
    """Whether this list changes any of the answers."""
    return _told(data, which) != _told_without(which)


def _symbols(directory: Path, kallsyms: bytes | None, functions: bytes | None, modules: bytes = b"") -> bool:
    """Resolve addresses to names by kallsyms or by tracefs' list."""
    machine = KallsymsMachine(directory, kallsyms, functions)
    machine.modules.write_bytes(modules)
    if kallsyms is None:
        machine.file.write_bytes(HIDDEN)
    found = [machine.symbols.text(address) for address in LISTED]
    return any(not text.startswith(b"0x") for text in found)


def _modules(data: bytes, directory: Path) -> bool:
    _symbols(directory, KALLSYMS, None, data)
    return _functions(data, "modules")


def _profile(data: bytes, kind: str) -> bool:
    table = Table()
    table.files |= {f"{kind}_profile": data, f"{kind}_events": DEFINITIONS}
    return bool(profile_counts(table, "kprobe_exporter", f"{kind}_events"))


def _definitions(data: bytes, _: Path) -> bool:
    table = Table()
    table.files |= {"kprobe_events": data, "dynamic_events": data}
    table.files["kprobe_profile"] = b"  open 1 2\n  open 3 4\n"
    profile_counts(table, "kprobe_exporter", "kprobe_events")
    return bool(list_definitions(table))


def _stats(data: bytes, _: Path) -> bool:
    table = Table()
    table.files |= {"i/per_cpu/cpu0/stats": data, "i/per_cpu/cpu1/stats": data}
    return any(buffer_stats(table, "i"))


def _format(data: bytes, _: Path) -> bool:
    text = data.decode(errors="replace")
    form = parse_format(text)
    for name in (*form.fields, "nobody"):
        with suppress(GrammarError):
            pattern, _args = text_pattern(form, [name])
            re.compile(pattern)
    with suppress(GrammarError):
        stacks(text, text)
    made = 0
    kinds = {"int": "", "str": "", "bare": "x8[4]", "texts": "string[2]", "char": "char"}
    for kind, type_ in kinds.items():
        for name in islice(form.fields, 8):
            layout = Layout(0, "x", form.name, "return", "f", (Arg(name, kind, type=type_),), caller=True)  # type: ignore[arg-type]
            with suppress(GrammarError):
                made += shape(layout, text).size > 0
    return bool(form.fields)


def _header(data: bytes, _: Path) -> bool:
    text = data.decode(errors="replace")
    event, page = ((FIXTURES / "6.12" / name).read_text() for name in ("header_event", "header_page"))
    with suppress(GrammarError):
        geometry(page, text)
    return geometry(text, event).page > 0


def _error_log(data: bytes, _: Path) -> bool:
    text = data.decode(errors="replace")
    commands = (*COMMANDS, *(line.removeprefix("  Command: ") for line in text.split("\n")[:9]))
    said = [logged_error(text, command) for command in commands]
    return any(said)


READERS: Mapping[str, Reader] = {
    "kallsyms": Reader(
        lambda: [KALLSYMS, SYMBOLS, HIDDEN],
        lambda data, directory: _functions(data, "symbols") | _symbols(directory, data, None),
        words=(b"[bpf]", b"[__builtin__kprobes]", b"\t[ext4]", b"ffffffffffffffff t x\n", b" T ", b"__pfx_"),
    ),
    "functions": Reader(lambda: [TRACEABLE], lambda data, _: _functions(data, "traceable")),
    "addresses": Reader(
        lambda: [LISTED_FUNCTIONS],
        lambda data, directory: _symbols(directory, None, data) | _functions(data, "addresses"),
        words=(b" [ext4]", b"ffffffffffffffff x\n"),
    ),
    "blacklist": Reader(lambda: [BLACKLIST * 3], lambda data, _: _functions(data, "blacklist")),
    "modules": Reader(lambda: [MODULES], _modules),
    "kprobe_profile": Reader(
        lambda: _fixtures("kprobe_profile/"),
        lambda data, _: _profile(data, "kprobe"),
        words=(b"  open  1  2\n",),
    ),
    "uprobe_profile": Reader(
        lambda: _fixtures("uprobe_profile/"),
        lambda data, _: _profile(data, "uprobe"),
        words=(b"  /a b  open  1\n",),
    ),
    "definitions": Reader(lambda: [DEFINITIONS, (FIXTURES / "definitions.txt").read_bytes()], _definitions),
    "stats": Reader(lambda: _fixtures("stats/"), _stats),
    "hist": Reader(
        lambda: [HIST_NAMES, POWERS, HIST_NAMES + b"\n\n" + POWERS + b"\n\n" + EMPTY],
        lambda data, _: parse_hist(data),
        words=(
            *(b"~ 2^99", b"keys=,:vals=,", b".log2", b"comm", b"hitcount", b"Totals:\n"),
            *(b" if x [active]", b"(?"),
        ),
    ),
    "format": Reader(
        lambda: _fixtures("format/"),
        _format,
        (GrammarError,),
        words=(
            *(b"__data_loc char[] ", b"\tfield:char a[16];\toffset:8;\tsize:16;\tsigned:0;\n"),
            b'print fmt: "',
            *(b"%s", b"%*.*s", b"%-16lx", b"REC->", b"__get_str(", b"signed:1", b"[1000000000]", b"size:0;"),
            *(b"name: sys_enter_x\n", b"name: sys_exit_x\n"),
        ),
    ),
    "header_page": Reader(
        lambda: [*_fixtures("header_page"), *_fixtures("header_event")], _header, (GrammarError,)
    ),
    "error_log": Reader(lambda: _fixtures("error_log/"), _error_log),
    "saved_cmdlines": Reader(
        lambda: [b"7 bash\n8 kworker/0:1\n9 <...>\n10 a\n11 b c\n", b"1 x\n" * 9],
        lambda data, _: parse_comms(data),
    ),
    "saved_tgids": Reader(lambda: [b"7 5\n8 8\n123456 1\n"], lambda data, _: parse_tgids(data)),
}
