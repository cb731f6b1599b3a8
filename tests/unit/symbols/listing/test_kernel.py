"""Kernel lists show what can be probed and why the rest cannot; each printed place can be attached."""

import platform

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.symbols.listing.query import parse_query
from tests.unit.symbols.listing.conftest import Make

LIST = "tracing/available_filter_functions"
OWN = "do_sys_open do_sys_openat2 kernel_clone __do_sys_getppid shrink.isra.0 vfs_open vfs_read vfs_write"
MODULES = "ext4:ext4_open ext4:ext4_read ext4:alike xfs:xfs_open"
EVENTS = (
    "ext4:ext4_read sched:sched_switch sched:sched_wakeup syscalls:sys_enter_openat syscalls:sys_enter_read "
    "syscalls:sys_exit_openat syscalls:sys_exit_read"
)


def attached(kind: str, names: str) -> list[str]:
    return [f"{kind}:{name}" for name in names.split()]


def found(kernel: Make, glob: str) -> list[str]:
    return [str(place) for place in kernel().find(parse_query(glob)).places]


def why(kernel: Make, glob: str) -> str:
    with pytest.raises(ProbeRefused) as error:
        kernel().find(parse_query(glob))
    return str(error.value)


@pytest.mark.parametrize(
    ("glob", "attach"),
    [
        ("*", attached("kprobe", f"{OWN} {MODULES}") + attached("tracepoint", EVENTS)),
        ("kprobe:*", attached("kprobe", f"{OWN} {MODULES}")),
        ("fexit:*", attached("fexit", f"{OWN} {MODULES}")),
        ("tracepoint:", attached("tracepoint", EVENTS)),
        ("vfs_*", attached("kprobe", "vfs_open vfs_read vfs_write")),
        ("call:*_open", attached("call", "vfs_open do_sys_open ext4:ext4_open xfs:xfs_open")),
        (
            "ext4:*",
            [*attached("kprobe", "ext4:alike ext4:ext4_open ext4:ext4_read"), "tracepoint:ext4:ext4_read"],
        ),
        ("[ex]*:*_open", attached("kprobe", "ext4:ext4_open xfs:xfs_open")),
        ("sched*", attached("tracepoint", "sched:sched_switch sched:sched_wakeup")),
        ("syscall:*", attached("syscall", "openat read")),
        ("syscall:read", ["syscall:read"]),
        ("vfs_read", ["kprobe:vfs_read"]),
        ("fentry:vfs_read", ["fentry:vfs_read"]),
        ("ext4_open", ["kprobe:ext4:ext4_open"]),
        ("ext4_read", ["kprobe:ext4:ext4_read", "tracepoint:ext4:ext4_read"]),
        ("shrink", ["kprobe:shrink.isra.0"]),
        ("kprobe:ext4:alike", ["kprobe:ext4:alike"]),
        ("kprobe:vfs_read+16", ["kprobe:vfs_read+16"]),
        ("kprobe:nfs:nfs_open", ["kprobe:nfs:nfs_open"]),
    ],
)
def test_what_can_be_probed(kernel: Make, glob: str, attach: list[str]) -> None:
    assert found(kernel, glob) == sorted(attach)


@pytest.mark.parametrize(
    ("glob", "said"),
    [
        (
            "vfs_raed",
            "this kernel has no such function, or the compiler inlined it, or its module is not loaded,"
            " did you mean 'vfs_read'?",
        ),
        ("do_fork", "or the compiler inlined it: kernel_clone does its work today."),
        ("keeps_off", "the kernel keeps kprobes off it (/sys/kernel/debug/kprobes/blacklist)."),
        ("notraced", "it is marked notrace, and kprobes refuse such functions."),
        ("jiffies", "it is data of the kernel, and no function."),
        ("twice", "the kernel may refuse to choose: name one of them: kprobe:_text+80, kprobe:_text+96."),
        ("alike", "2 functions have this name"),
        ("kprobe:xfs:same", "2 functions have this name"),
        ("xfs:ext4_open", "the module 'xfs' has no such function: it is one of the module 'ext4'."),
        ("sched_swich", "; or do you mean 'tracepoint:sched:sched_switch'?"),
        ("sched:sched_swich", "matches no tracepoint of this kernel, did you mean 'sched:sched_switch'?"),
        ("tracepoint:sched_swich", "matches no tracepoint of this kernel, did you mean 'sched_switch'?"),
        ("tracepoint:syscalls:sched_switch", "did you mean 'sched:sched_switch'?"),
        ("tracepoint:sched", "is a system of tracepoints: write 'tracepoint:sched:*'."),
        ("tracepoint:tool:watch", "matches no tracepoint of this kernel"),
        ("tracepoint:sched:zz*", "; 2 begin with 'sched:': sched:sched_switch, …"),
        ("tracepoint:zz*", "matches no tracepoint of this kernel."),
        ("syscall:raed", "matches no system call that can be probed, did you mean 'read'?"),
        ("syscall:o*zz", "; one begins with 'o': openat."),
        ("zz*", "matches no function and no tracepoint that can be probed."),
        ("vfs_x*", "; 3 begin with 'vfs_': vfs_open, …"),
        ("kprobe:zz*", "'kprobe:zz*' matches no function"),
        ("kprobe:twic?", "matches no function that can be probed: several functions share the name 'twice'."),
        (
            "nfs:nfs_open",
            "which is neither a kind of probe nor a system of tracepoints nor a loaded module",
        ),
        ("nfs:*", "begins with 'nfs', which is neither a kind of probe"),
        ("kprobes:vfs_read", ", did you mean 'kprobe'?"),
        ("fentry:nfs:nfs_open", "is not loaded, and an fprobe cannot wait for it"),
        ("fexit:twice", "several functions are called 'twice', and an fprobe would take them all"),
    ],
)
def test_why_not(kernel: Make, glob: str, said: str) -> None:
    sentence = why(kernel, glob)
    assert said in sentence
    assert sentence.endswith((".", "?", "…"))
    assert "?." not in sentence


@pytest.mark.parametrize(
    ("glob", "note"),
    [
        ("vfs_read", None),
        ("*", None),
        ("ext4_open", "kprobe:ext4:ext4_open: 'ext4_open' is a function of the module 'ext4'"),
        (
            "shrink",
            "kprobe:shrink.isra.0: 'shrink' is compiled as 'shrink.isra.0' here: its arguments may be others",
        ),
        (
            "do_sys_open",
            "kprobe:do_sys_open: it will never fire: open(2) does not go through it, name do_sys_openat2",
        ),
        ("kprobe:nfs:nfs_open", "kprobe:nfs:nfs_open: armed when the module 'nfs' is loaded"),
        (
            "kprobe:vfs_read+4",
            "kprobe:vfs_read+4: only trying tells whether an instruction begins at this offset",
        ),
    ],
)
def test_what_a_person_should_know(kernel: Make, glob: str, note: str | None) -> None:
    assert kernel().find(parse_query(glob)).notes == ([note] if note else [])


def test_a_function_of_a_module_that_is_installed_and_not_loaded(kernel: Make) -> None:
    path = f"root/lib/modules/{platform.release()}/modules.symbols"
    kernel(**{path: "# Aliases\nalias symbol:nfs_open nfs-v4\nalias symbol:nfs_openx other\n"})
    said = "; the module 'nfs_v4' has one and is not loaded, 'kprobe:nfs_v4:nfs_open' is armed when it is."
    assert why(kernel, "nfs_open").endswith(said)


def test_without_the_blacklist_it_says_so(kernel: Make) -> None:
    listed = kernel(without=("root/sys/kernel/debug/kprobes/blacklist",)).find(parse_query("keeps_of*"))
    assert [str(place) for place in listed.places] == ["kprobe:keeps_off"]
    assert "blacklist cannot be read" in listed.notes[0]


def test_without_kallsyms_the_list_of_functions_tells_namesakes(kernel: Make) -> None:
    places = kernel(without=("root/proc/kallsyms",)).find(parse_query("kprobe:*")).places
    assert [str(place) for place in places] == sorted(attached("kprobe", f"{OWN} {MODULES}"))


def test_without_kprobes_there_are_tracepoints(kernel: Make) -> None:
    places = kernel(without=("tracing/kprobe_events",))
    assert {place.kind.value for place in places.find(parse_query("*")).places} == {"tracepoint"}
    assert (
        "functions are omitted: this kernel was built without CONFIG_KPROBE_EVENTS"
        in places.find(parse_query("*")).notes[0]
    )
    for glob in ("kprobe:vfs_*", "vfs_read"):
        with pytest.raises(ProbeRefused, match="built without CONFIG_KPROBE_EVENTS"):
            places.find(parse_query(glob))


def test_a_kernel_that_does_not_list_its_functions(kernel: Make) -> None:
    places = kernel(without=(LIST,))
    assert "this kernel does not list its functions" in places.find(parse_query("*")).notes[0]
    listed = places.find(parse_query("vfs_read"))
    assert [str(place) for place in listed.places] == ["kprobe:vfs_read"]
    assert "only trying tells" in listed.notes[0]


def test_without_fprobes(kernel: Make) -> None:
    with pytest.raises(ProbeRefused, match=r"'fentry:vfs_read' cannot be probed: this kernel has no fprobe"):
        kernel(**{"tracing/README": ""}).find(parse_query("fentry:vfs_read"))


@pytest.mark.parametrize("glob", ["vfs read", "x#y", "é", "kprobe:a:b:c", "a\nb", "kretprobe:vfs_read+4"])
def test_what_no_name_can_be(kernel: Make, glob: str) -> None:
    with pytest.raises((GrammarError, ProbeRefused)):
        kernel().find(parse_query(glob))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("vfs_r", ["vfs_read"]),
        ("kprobe:vfs_w", ["kprobe:vfs_write"]),
        ("ext4:", ["ext4:alike", "ext4:ext4_open", "ext4:ext4_read", "ext4:ext4_read"]),
        ("tracepoint:sched:sched_s", ["tracepoint:sched:sched_switch"]),
        ("kp", ["kprobe:"]),
        ("f", ["fentry:", "fexit:"]),
        ("call:vfs_w", ["call:vfs_write"]),
        ("fexit:ext4:ext4_o", ["fexit:ext4:ext4_open"]),
        ("trac", ["tracepoint:"]),
        ("zz", []),
    ],
)
def test_what_a_shell_completes(kernel: Make, text: str, names: list[str]) -> None:
    assert sorted(kernel().starting(text)) == names


ALPHABET = st.sampled_from([*"vfs_readxt4:*?[]!+.", "kprobe:", "tracepoint:", "sched", "\n", "é"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ALPHABET, max_size=8).map("".join))
def test_whatever_is_asked_is_answered_by_attach_strings_or_a_sentence(kernel: Make, text: str) -> None:
    try:
        places = kernel().find(parse_query(text)).places
    except (ProbeRefused, GrammarError):
        return
    assert places
    assert [str(parse_target(str(place))) for place in places] == [str(place) for place in places]
