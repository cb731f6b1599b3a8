"""Tracepoints' format files, and the patterns that match the text they describe."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.btf import types as btf
from kprobe_exporter.btf.structures import Structures
from kprobe_exporter.btf.types import Types
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import EventFormat, FormatField, parse_format, text_pattern
from kprobe_exporter.model.values import Arg
from tests.support.kernel_formats import RELEASES, forms, saved
from tests.unit.captured import Captured, captured

HEAD = """\
name: {name}
ID: 372
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

"""


def event(name: str, *fields: str, text: str = "", args: str = "") -> EventFormat:
    """Return a format with these fields, each as ``TYPE NAME SIZE SIGNED``."""
    lines = []
    for field in fields:
        declared, size, signed = field.rsplit(" ", 2)
        lines.append(f"\tfield:{declared};\toffset:8;\tsize:{size};\tsigned:{signed};\n")
    printed = f'\nprint fmt: "{text}", {args}\n'
    return parse_format(HEAD.format(name=name) + "".join(lines) + printed)


def read(form: EventFormat, wanted: list[str], text: str) -> dict[str, str] | None:
    """Return what the pattern finds in a line's text; None if the text is not of this event."""
    pattern, args = text_pattern(form, wanted)
    found = re.compile(pattern + rb"\n").fullmatch(text.encode() + b"\n")
    if found is None:
        return None
    values = zip(args, found.groups(), strict=True)
    return {arg.name: value.decode() for arg, value in values if value is not None}


EXEC = event(
    "sched_process_exec",
    "__data_loc char[] filename 4 0",
    "pid_t pid 4 1",
    "pid_t old_pid 4 1",
    text="filename=%s pid=%d old_pid=%d",
    args="__get_str(filename), REC->pid, REC->old_pid",
)
SWITCH = event(
    "sched_switch",
    "char prev_comm[16] 16 0",
    "pid_t prev_pid 4 1",
    "long prev_state 8 1",
    "char next_comm[16] 16 0",
    "pid_t next_pid 4 1",
    text="prev_comm=%s prev_pid=%d prev_state=%s%s ==> next_comm=%s next_pid=%d",
    args="REC->prev_comm, REC->prev_pid, (REC->prev_state & 3) ? "
    '__print_flags(REC->prev_state & 3, "|", { 0x01, "S," }, { 0x02, "D\\"" }) : "R", '
    'REC->prev_state & 4 ? "+" : "", REC->next_comm, REC->next_pid',
)
ISSUE = event(
    "block_rq_issue",
    "dev_t dev 4 0",
    "sector_t sector 8 0",
    "unsigned int nr_sector 4 0",
    "unsigned int bytes 4 0",
    "char rwbs[8] 8 0",
    "char comm[16] 16 0",
    "__data_loc char[] cmd 4 0",
    text="%d,%d %s %u (%s) %llu + %u [%s]",
    args="((unsigned int) ((REC->dev) >> 20)), ((unsigned int) ((REC->dev) & ((1U << 20) - 1))), REC->rwbs,"
    " REC->bytes, __get_str(cmd), (unsigned long long)REC->sector, REC->nr_sector, REC->comm",
)


@pytest.mark.parametrize("file", captured("format/"), ids=str)
def test_the_formats_of_real_kernels(file: Captured) -> None:
    form = parse_format(file.text)
    assert form.name == file.name.rsplit("/", 1)[1]
    assert len(form.fields) == file.text.count("\tfield:") - 4
    assert not any(name.startswith("common_") for name in form.fields)
    assert form.print_text
    # There are as many arguments as conversions, so none was cut at a wrong comma.
    assert len(form.print_args) == len(re.findall(r"%[^%]", form.print_text))


ENTRY = "syscalls/sys_enter_openat"


@pytest.mark.parametrize(
    ("file", "field", "fetch_type"),
    [
        ("sched/sched_switch", FormatField("prev_comm", "char", 8, 16, False, True, True, 16), "string"),
        ("sched/sched_switch", FormatField("next_pid", "pid_t", 56, 4, True, False, False), "s32"),
        (
            "sched/sched_process_exec",
            FormatField("filename", "__data_loc char[]", 8, 4, False, True, True),
            "string",
        ),
        ("syscalls/sys_exit_openat", FormatField("ret", "long", 16, 8, True, False, False), "s64"),
        (ENTRY, FormatField("filename", "const char *", 24, 8, False, False, False), "u64"),
        (ENTRY, FormatField("dfd", "int", 16, 4, True, False, False, retyped=True), "s32"),
        (ENTRY, FormatField("mode", "umode_t", 40, 2, False, False, False, retyped=True), "u16"),
    ],
    ids=lambda value: value.name if isinstance(value, FormatField) else value,
)
def test_fields_of_real_kernels(file: str, field: FormatField, fetch_type: str) -> None:
    for found in captured(f"format/{file}"):
        read_field = parse_format(found.text).fields[field.name]
        assert read_field.type == field.type
        assert read_field.fetch_type == fetch_type
        # The kernels do not agree on whether an array of characters is signed.
        assert read_field == field or read_field.text


@pytest.mark.parametrize(
    ("declared", "fetch_type"),
    [
        ("u8 x 1 0", "u8"),
        ("short x 2 1", "s16"),
        ("unsigned long x 8 0", "u64"),
        ("char x 1 1", "s8"),
        ("char x[16] 16 1", "string"),
        ("__rel_loc char[] x 4 0", "string"),
        ("unsigned char x[6] 6 0", None),
        ("u32 x[4] 16 0", None),
        ("__data_loc u8[] x 4 0", None),
        ("struct y x 24 0", None),
        ("void * x 8 0", "u64"),
    ],
)
def test_how_a_field_is_fetched(declared: str, fetch_type: str | None) -> None:
    assert event("e", declared).fields["x"].fetch_type == fetch_type


BTF_NAMES = {"long": "long int", "unsigned long": "long unsigned int", "unsigned": "unsigned int"}


@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[-1]])
def test_arguments_of_all_system_calls_have_their_declared_types(release: str) -> None:
    """The kernel's own types are the oracle: typedefs end in an integer, an enum or a pointer."""
    kernel_types = Types(saved(release)["sys/kernel/btf/vmlinux"])
    structures = Structures(kernel_types)
    found = {
        field.type: field.fetch_type
        for name, form in forms(release)
        if name.startswith("syscalls/sys_enter_")
        for field in form.fields.values()
        if "*" not in field.type and not field.array
    }
    assert len(found) > 25
    for declared, fetch_type in found.items():
        plain = declared.removeprefix("const ").removeprefix("enum ")
        numbers = kernel_types.find(BTF_NAMES.get(plain, plain), (btf.INT, btf.TYPEDEF, btf.ENUM))
        expected = {(structures.number(number) or "").replace("x", "u") for number in numbers}
        assert expected == {fetch_type}, declared


@pytest.mark.parametrize("text", ["", "x", " name: e", "\nname: e"])
def test_what_is_no_format(text: str) -> None:
    with pytest.raises(GrammarError, match="not an event's format"):
        parse_format(text)


@given(st.text())
def test_any_text_is_a_format_or_a_grammar_error(text: str) -> None:
    for candidate in (text, f"name: e\n{text}", f'name: e\nprint fmt: "{text}", {text}'):
        try:
            form = parse_format(candidate)
            text_pattern(form, form.fields)
        except GrammarError:
            continue


@pytest.mark.parametrize(
    ("form", "wanted", "text", "found"),
    [
        (EXEC, [], "anything at all", {}),
        (EXEC, ["pid"], "filename=/bin/true pid=7 old_pid=8", {"pid": "7"}),
        (EXEC, ["old_pid", "pid"], "filename=a b pid=7 old_pid=-8", {"pid": "7", "old_pid": "-8"}),
        (EXEC, ["filename"], "filename=/bin/true pid=7 old_pid=8", {"filename": "/bin/true"}),
        (EXEC, ["pid"], "filename=x pid=7 old_pid=y", None),
        (EXEC, ["pid"], "pid=7 old_pid=8", None),
        (
            SWITCH,
            ["prev_comm", "next_comm", "next_pid"],
            "prev_comm=a b prev_pid=7 prev_state=R+ ==> next_comm=swapper/0 next_pid=0",
            {"prev_comm": "a b", "next_comm": "swapper/0", "next_pid": "0"},
        ),
        (
            ISSUE,
            ["sector", "bytes", "rwbs"],
            "8,0 WS 4096 () 123456 + 8 [kworker/0:1]",
            {"rwbs": "WS", "bytes": "4096", "sector": "123456"},
        ),
    ],
)
def test_what_a_text_shows(
    form: EventFormat, wanted: list[str], text: str, found: dict[str, str] | None
) -> None:
    assert read(form, wanted, text) == found


@pytest.mark.parametrize(
    ("form", "wanted", "text"),
    [
        (SWITCH, ["prev_pid", "next_pid"], "prev_comm=a prev_pid=5 prev_state=a prev_pid=6 prev_state=R ==>"),
        (
            SWITCH,
            ["prev_pid"],
            "prev_comm=a prev_pid=5 prev_state=b prev_pid=6 prev_state=R ==> next_comm=c next_pid=1",
        ),
        (
            SWITCH,
            ["next_pid"],
            "prev_comm=a prev_pid=5 prev_state=R ==> next_comm=b ==> next_comm=c next_pid=1",
        ),
        (ISSUE, ["sector"], "8,0 W 1 () 5 + 6 [a) 7 + 8 [b]"),
    ],
)
def test_what_could_be_read_in_two_ways_is_not_read(form: EventFormat, wanted: list[str], text: str) -> None:
    """A field that could be read in two ways is left out; the event still counts."""
    assert read(form, wanted, text) == {}


@given(
    st.text(st.characters(exclude_characters="\n", codec="utf-8")),
    st.integers(1, 2**22),
    st.integers(1, 2**22),
)
def test_one_string_forges_no_number(filename: str, pid: int, old_pid: int) -> None:
    for name in (filename, f"{filename} pid=1 old_pid=2", f"{filename} pid=1 old_pid=2 pid=3"):
        text = f"filename={name} pid={pid} old_pid={old_pid}"
        assert read(EXEC, ["pid"], text) == {"pid": str(pid)}
        assert read(EXEC, ["filename", "old_pid"], text) == {"filename": name, "old_pid": str(old_pid)}


TRAPS = st.lists(
    st.sampled_from([" prev_pid=", "1", " prev_state=", "R", " ==> ", "next_comm=", " next_pid=", "a", " "]),
    max_size=10,
).map("".join)


@given(TRAPS, TRAPS)
def test_several_strings_forge_nothing(before: str, after: str) -> None:
    text = f"prev_comm={before} prev_pid=71 prev_state=S ==> next_comm={after} next_pid=72"
    found = read(SWITCH, ["prev_comm", "prev_pid", "next_comm", "next_pid"], text)
    true = {"prev_comm": before, "prev_pid": "71", "next_comm": after, "next_pid": "72"}
    assert found in (true, {})


@pytest.mark.parametrize(
    ("conversion", "printed", "value"),
    [
        ("%d", "-5", "-5"),
        ("%5d", "    7", "7"),
        ("%-5d", "7    ", "7"),
        ("%03d", "007", "007"),
        ("%lu", "18446744073709551615", "18446744073709551615"),
        ("%lld", "-9223372036854775808", "-9223372036854775808"),
        ("%x", "ff", "ff"),
        ("%#lx", "0xff", "0xff"),
        ("%016llx", "00000000000000ff", "00000000000000ff"),
        ("%X", "FF", "FF"),
        ("%*d", "  7", None),
        ("%zd", "7", "7"),
        ("100%% of %d", "100% of 7", "7"),
        ("(%d)", "(7)", "7"),
        ("[%d].*+?", "[7].*+?", "7"),
        ("a\\tb %d", "a\tb 7", "7"),
    ],
)
def test_conversions(conversion: str, printed: str, value: str | None) -> None:
    form = event("e", "long x 8 1", text=f"x={conversion};", args="REC->x")
    if value is None:
        with pytest.raises(GrammarError, match="does not show the field 'x'"):
            text_pattern(form, ["x"])
    else:
        assert read(form, ["x"], f"x={printed};") == {"x": value}


@pytest.mark.parametrize(
    ("conversion", "expression"),
    [
        ("%s", '__print_symbolic(REC->x, { 0, "a" }, { 1, "b" })'),
        ("%d", "REC->x + 1"),
        ("%d", "REC->x >> 20"),
        ("%p", "REC->x"),
        ("%pS", "(void *)REC->x"),
        ("%c", "REC->x"),
        ("%s", "REC->x"),
        ("%d", "((REC->x) ? 1 : 0)"),
    ],
)
def test_what_is_not_shown_as_it_is(conversion: str, expression: str) -> None:
    form = event("e", "long x 8 1", text=f"x={conversion}", args=expression)
    with pytest.raises(GrammarError, match="the text of the tracepoint e does not show the field 'x'"):
        text_pattern(form, ["x"])


@pytest.mark.parametrize(
    "expression",
    ["REC->x", "(unsigned long)REC->x", "((unsigned int) (REC->x))", "(u64)(REC->x)", "((REC->x))"],
)
def test_casts_change_nothing(expression: str) -> None:
    assert read(event("e", "long x 8 1", text="x=%ld", args=expression), ["x"], "x=7") == {"x": "7"}


@pytest.mark.parametrize(
    ("declared", "conversion", "arg"),
    [
        ("int x 4 1", "%d", Arg("x", "int")),
        ("int x 4 1", "%x", Arg("x", "hex", 32)),
        ("long x 8 1", "%lx", Arg("x", "hex", 64)),
        ("unsigned long x 8 0", "%lx", Arg("x", "hex")),
        ("char x[16] 16 0", "%s", Arg("x", "bare")),
    ],
)
def test_how_what_is_shown_becomes_a_value(declared: str, conversion: str, arg: Arg) -> None:
    form = event("e", declared, text=f"x={conversion}", args="REC->x")
    assert text_pattern(form, ["x"])[1] == (arg,)


def test_a_field_that_is_shown_twice_is_taken_once() -> None:
    form = event("e", "int x 4 1", text="x=%d again=%d", args="REC->x, REC->x")
    assert read(form, ["x"], "x=1 again=1") == {"x": "1"}


def test_a_field_that_there_is_not() -> None:
    for form in (EXEC, event("sys_enter_x"), event("sys_exit_x", "long ret 8 1")):
        with pytest.raises(GrammarError, match=f"the tracepoint {form.name} has no field 'absent'"):
            text_pattern(form, ["absent"])


# The kernel prints system calls in a format of their own, regardless of their print fmt.

OPENAT = event(
    "sys_enter_openat",
    "int __syscall_nr 4 1",
    "int dfd 8 0",
    "const char * filename 8 0",
    "int flags 8 0",
    "umode_t mode 8 0",
    "__data_loc char[] __filename_val 4 0",
    text="never mind",
)
SYMLINKAT = event(
    "sys_enter_symlinkat",
    "int __syscall_nr 4 1",
    "const char * oldname 8 0",
    "int newdfd 8 0",
    "const char * newname 8 0",
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dfd: ffffff9c, filename: 7ffe00, flags: 8000, mode: 1b6)", {"dfd": "ffffff9c", "flags": "8000"}),
        ('dfd: 0x5, filename: 0x7ffe00 "/a", flags: 0x0, mode: 0x0)', {"dfd": "0x5", "flags": "0x0"}),
        ('dfd: 0x5, filename: 0x7ffe00 "a", b: "", flags: 0x1, mode: 0x0)', {"dfd": "0x5", "flags": "0x1"}),
        ('dfd: 0x5, filename: 0x7 "", flags: 0x9, mode: 0x0)", flags: 0x1, mode: 0x0)', {}),
        ("dfd: 0x5", {}),
    ],
)
def test_a_system_calls_entry(text: str, found: dict[str, str]) -> None:
    assert read(OPENAT, ["dfd", "flags"], text) == found


def test_a_file_name_forges_no_argument() -> None:
    forged = 'oldname: 0x7 "a", newdfd: 0x5, newname: 0x7 "q", newdfd: 0xffffff9c, newname: 0x7 "b")'
    assert read(SYMLINKAT, ["newdfd"], forged) == {}
    assert read(SYMLINKAT, ["newdfd"], 'oldname: 0x7 "a", newdfd: 0x6, newname: 0x7 "b)")') == {
        "newdfd": "0x6"
    }


@given(TRAPS, st.sampled_from(['"', '", newdfd: 0x5, newname: 0x7 "', ")", '")', "x"]), TRAPS)
def test_no_file_name_forges_an_argument(old: str, trap: str, new: str) -> None:
    text = f'oldname: 0x7 "{old}{trap}", newdfd: 0xffffff9c, newname: 0x7 "{new}{trap}")'
    assert read(SYMLINKAT, ["newdfd"], text) in ({"newdfd": "0xffffff9c"}, {})


def test_a_system_calls_return() -> None:
    form = event("sys_exit_openat", "int __syscall_nr 4 1", "long ret 8 1", text="0x%lx", args="REC->ret")
    assert text_pattern(form, ["ret"])[1] == (Arg("ret", "hex", 64),)
    assert read(form, ["ret"], "0xfffffffffffffffe") == {"ret": "0xfffffffffffffffe"}
    assert read(form, [], "0x3") == {}


HOSTILE: list[tuple[EventFormat, list[str], str, str]] = [
    (SWITCH, ["next_pid"], "prev_comm=", " prev_pid=1 prev_state= ==> next_comm= next_pid="),
    (SWITCH, ["next_pid"], "prev_comm=", " prev_pid=1 prev_state="),
    (SWITCH, ["next_pid"], "prev_comm=a prev_pid=1 prev_state=", " ==> next_comm="),
    (ISSUE, ["sector"], "8,0 ", "W 1 (x) 5 + 6 ["),
    (EXEC, ["pid"], "filename=", " pid=1 old_pid="),
    (SYMLINKAT, ["newdfd"], 'oldname: 0x7 "', '", newdfd: 0x5, newname: 0x7 "'),
    (event("e", "int x 4 1", text="%5d %5d %s", args="REC->x, 1, 2"), ["x"], "", " "),
    (event("e", "int x 4 1", text="%s%s%s x=%d", args="1, 2, 3, REC->x"), ["x"], "", " x="),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_text_takes_long(number: int) -> None:
    """A hostile text of 64 KiB is matched quickly: quadratic time would be minutes here."""
    form, wanted, start, unit = HOSTILE[number]
    text = start + unit * (65536 // len(unit)) + "\x00"
    found: Any = read(form, wanted, text)
    assert not found


def test_commas_within_brackets_and_strings_part_no_arguments() -> None:
    """The print fmt is C code, with flags and their names in braces and quotes."""
    flags = '__print_flags(REC->f, ",", { 1, "x),\\"y" }, { (2), "{[" })'
    form = event(
        "e",
        *("int a 4 1", "int f 4 1", "int b 4 1"),
        text='a=%d f=%s \\"b\\"=%d\\n',
        args=f"REC->a, {flags}, REC->b",
    )
    assert form.print_args == (" REC->a", f" {flags}", " REC->b")
    assert [arg.name for arg in text_pattern(form, {"a", "b"})[1]] == ["a", "b"]
    assert read(form, ["a", "b"], 'a=-3 f=x),"y "b"=7\n') == {"a": "-3", "b": "7"}


def test_a_call_that_the_kernel_prints_its_own_way() -> None:
    """Linux 7.2 prints ``sys_openat(dfd: 4294967196, filename: 94… "name", flags: O_RDONLY|O_CLOEXEC)``."""
    flags = 'REC->flags ? "" : "O_RDONLY|", __print_flags(REC->flags, "|", { 0x1, "O_WRONLY" })'
    form = event(
        "sys_enter_openat",
        "int dfd 8 0",
        "int flags 8 0",
        text="dfd: 0x%08lx, flags: %s%s",
        args=f"((unsigned long)(REC->dfd)), {flags}",
    )
    for name in ("dfd", "flags"):
        with pytest.raises(GrammarError, match=f"sys_enter_openat does not show the field '{name}'"):
            text_pattern(form, [name])
    pattern, args = text_pattern(form, [])
    assert args == ()
    assert re.fullmatch(pattern, b"dfd: 4294967196, flags: O_RDONLY|O_CLOEXEC)")
