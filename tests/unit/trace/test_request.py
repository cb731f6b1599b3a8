"""trace.request: the argument DEFINITION, including perf-tools' short forms and attach strings."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.trace.request import event_name, parse_request


@pytest.mark.parametrize(
    ("text", "title", "definition"),
    [
        ("p:do_sys_open", "kprobe do_sys_open", "p:do_sys_open do_sys_open"),
        ("r:do_sys_open $retval", "kprobe do_sys_open", "r:do_sys_open do_sys_open arg1=$retval"),
        ("r:mine do_sys_open rval=$retval", "kprobe mine", "r:mine do_sys_open rval=$retval"),
        ("p:mine do_sys_open mode=%cx:u16", "kprobe mine", "p:mine do_sys_open mode=%cx:u16"),
        ("p:vfs_open f=+0(%si):string", "kprobe vfs_open", "p:vfs_open vfs_open f=+0(%si):string"),
        ("r10:vfs_read", "kprobe vfs_read", "r10:vfs_read vfs_read"),
        ("p vfs_read", "kprobe p_vfs_read_0", "p:p_vfs_read_0 vfs_read"),
        ("p:other/mine vfs_read", "kprobe mine", "p:mine vfs_read"),
        ("p:ext4:ext4_open", "kprobe ext4_open", "p:ext4_open ext4:ext4_open"),
        ("p:f.isra.0", "kprobe f_isra_0", "p:f_isra_0 f.isra.0"),
        ("kprobe:vfs_read+8", "kprobe vfs_read", "p:vfs_read vfs_read+8"),
        ("kretprobe:vfs_read $retval", "kprobe vfs_read", "r:vfs_read vfs_read arg1=$retval"),
        ("fentry:vfs_read", "fprobe vfs_read", "f:vfs_read vfs_read"),
        ("fexit:vfs_read", "fprobe vfs_read", "f:vfs_read vfs_read%return"),
        ("p:/bin/bash:0x12", "uprobe bash_0x12 (p:bash_0x12 /bin/bash:0x12)", "p:bash_0x12 /bin/bash:0x12"),
        ("p:/bin/bash:readline", "uprobe readline (p:readline /bin/bash:0x0)", "p:readline /bin/bash:0x0"),
        ("tracepoint:sched:sched_switch a=$prev_pid", "tracepoint sched_switch", None),
        ("e:mine sched/sched_switch", "tracepoint mine", "e:mine sched.sched_switch"),
        *((text, text, None) for text in ("sched:sched_switch", "call:vfs_read", "syscall:openat")),
        ("kprobe:vfs_*", "kprobe:vfs_*", None),
    ],
)
def test_what_is_traced(text: str, title: str, definition: str | None) -> None:
    request = parse_request(text)
    assert request.title == title
    if definition is not None:
        assert request.definition is not None
        assert request.definition.render() == definition


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("p:mine vfs_read", "kprobe:vfs_read"),
        ("r:mine vfs_read", "kretprobe:vfs_read"),
        ("p:mine ext4:ext4_open+4", "kprobe:ext4:ext4_open+4"),
        ("fexit:vfs_read", "fexit:vfs_read"),
        ("call:vfs_read", "call:vfs_read"),
        *((text, None) for text in ("p:mine 0xffffffff81000000", "p:/bin/bash:readline")),
        *((text, None) for text in ("kprobe:vfs_*", "sched:sched_switch", "syscall:openat")),
    ],
)
def test_the_function_of_the_kernel(text: str, function: str | None) -> None:
    found = parse_request(text).function
    assert (None if found is None else str(found)) == function


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is nothing to trace"),
        ("p:", "the event's name is missing"),
        ("p:9x vfs_read", "'9x' is no event name"),
        ("kprobe:vfs_* a=%di", "a pattern takes no arguments here"),
    ],
)
def test_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(said)):
        parse_request(text)


BEGINS = "a definition begins with p for an entry or r for a return, write "
NUMBER = "only a return probe has a number here, 4096 at most (MAXACTIVE), and a tracepoint is written "
ONE = "a definition names one function, for a pattern write "


@pytest.mark.parametrize(
    ("text", "said", "meant"),
    [
        *((name, BEGINS, f"p:{name}") for name in ("mine", "elevator_init", "read", "f.isra.0")),
        ("vfs_read+8", BEGINS, "p:vfs_read+8"),
        ("tcp_sendmsg %ax", BEGINS, "p:tcp_sendmsg"),
        ("mine do_sys_openat2", BEGINS, "p:mine"),
        ("elevator_*", BEGINS, "kprobe:elevator_*"),
        *((name, BEGINS, f"tracepoint:{name}") for name in ("ext4:*", "f2fs:f2fs_[rw]*")),
        *((name, NUMBER, f"tracepoint:{name}") for name in ("r8169:foo", "r8169:*", "p54:foo")),
        ("p:vfs_*", ONE, "kprobe:vfs_*"),
        ("r:ext4:ext4_?pen", ONE, "kretprobe:ext4:ext4_?pen"),
        ("/bin/bash:readline", BEGINS, "p:/bin/bash:readline"),
        ("/bin/bash", BEGINS, "p:/bin/bash:FUNCTION"),
    ],
)
def test_a_name_where_a_definition_begins(text: str, said: str, meant: str) -> None:
    """The form that the error proposes is accepted, and what stood after the name still fits it."""
    with pytest.raises(GrammarError, match=re.escape(said)) as refusal:
        parse_request(text)
    rest = refusal.value.message.removeprefix(said)
    assert rest.partition(",")[0] == meant
    assert parse_request(text.replace(text.split(maxsplit=1)[0], meant)).name


def test_a_letter_with_the_number_of_a_return() -> None:
    definition = parse_request("r4096:foo").definition
    assert definition is not None
    assert definition.maxactive == 4096


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        request = parse_request(text)
    except GrammarError:
        return
    assert request.title
    assert "\n" not in request.title
    if request.definition is not None:
        again = parse_request(request.definition.render())
        assert again.definition == request.definition


@given(st.from_regex(r"[\w.]{1,99}", fullmatch=True))
def test_a_place_gives_a_name_that_the_kernel_takes(place: str) -> None:
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", event_name(place))


@pytest.mark.parametrize(
    ("text", "name", "symbol", "arguments"),
    [
        ("uprobe:/bin/x:app::Foo::bar", "app__Foo__bar", "app::Foo::bar", 0),
        ("uprobe:/bin/x:f(int, char const*) n=%di", "f", "f(int, char const*)", 1),
        ("uretprobe:/bin/x:A::g() const $retval", "A__g", "A::g() const", 1),
        ("uprobe:/bin/go:net/http.(*Server).Serve", "net_http_Server_Serve", "net/http.(*Server).Serve", 0),
    ],
)
def test_name_as_people_write_it(text: str, name: str, symbol: str, arguments: int) -> None:
    request = parse_request(text)
    assert request.target is not None
    assert request.definition is not None
    assert (request.name, request.target.symbol) == (name, symbol)
    assert len(request.definition.args) == arguments
