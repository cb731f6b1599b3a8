"""Paths into structures become memory reads, with the pointers on the way; filters compare what is read."""

import itertools
import sys
from collections.abc import Mapping

import pytest

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.config.model import Attach, Probe, WrittenPath, return_type
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.values import HIGHEST_ADDRESS, LOWEST_ADDRESS
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.read_members import unlike, where_all_are_there
from kprobe_exporter.plan.tracepoint import tracepoint_specs
from kprobe_exporter.plan.typed import look_up, typed
from tests.support.btf_samples import structures
from tests.support.conditions import compile_filter
from tests.support.planned import counter, probe

DATA = structures().data()
READ = {"vmlinux": DATA}.__getitem__
ADDRESS = 0xFFFF_8880_0000_1000


def planned(
    paths: Mapping[str, str | list[str]],
    *,
    only: str | None = None,
    machine: str | None = None,
    to: str = "kprobe:f",
    **fetch: str,
) -> Attach:
    written = {name: [text] if isinstance(text, str) else text for name, text in paths.items()}
    attach = Attach(
        parse_target(to),
        fetch | {name: texts[0] for name, texts in written.items()},
        only,
        return_type("ptr") if parse_target(to).kind.is_return else None,
        paths={
            name: tuple(WrittenPath(text, ("a.yaml", 3 + line, 10)) for line, text in enumerate(texts))
            for name, texts in written.items()
        },
    )
    known = look_up([attach], KernelTypes(READ).prototypes)
    return typed(Probe("p", "", (attach,)), attach, known, machine, KernelTypes(READ))


def test_a_path_becomes_a_memory_read_and_its_pointers_are_fetched() -> None:
    found = planned({"port": "sk->__sk_common.skc_dport", "type": "sk->sk_socket->type"})
    assert found.fetch == {
        "port": "+12($arg1):u16",
        "type": "+4(+168($arg1)):u16",
        "pointer_1": "$arg1:x64",
        "pointer_2": "+168($arg1):x64",
    }
    assert {name: tuple(reading) for name, reading in found.read.items()} == {
        "port": (2, ("pointer_1",), "__be16"),
        "type": (0, ("pointer_1", "pointer_2"), "unsigned short"),
    }


@pytest.mark.parametrize(
    ("path", "body", "pointers"),
    [
        ("$retval->disk_name", "+12($retval):string", ["$retval:x64"]),
        ("$retval->label", "+0(+64($retval)):string", ["$retval:x64", "+64($retval):x64"]),
        ("$arg1->sk_words", "+152($arg1):u32[4]", ["$arg1:x64"]),
        ("(sock)addr->sk_cookie", "+512($arg5):u64", ["$arg5:x64"]),
        ("sk->sk_words:x8[3]", "+152($arg1):x8[3]", ["$arg1:x64"]),
        ("+8(sk->sk_socket):u32", "+8(+168($arg1)):u32", ["$arg1:x64", "+168($arg1):x64"]),
    ],
)
def test_what_a_path_becomes(path: str, body: str, pointers: list[str]) -> None:
    found = planned({"a": path}, to="kretprobe:f")
    assert [*found.fetch.values()] == [body, *pointers]


def test_registers_take_the_place_of_arguments() -> None:
    found = planned({"a": "sk->sk_cookie"}, machine="EM_X86_64")
    assert found.fetch == {"a": "+512(%di):u64", "pointer_1": "%di:x64"}


def test_a_pointers_name_is_not_one_that_is_taken() -> None:
    found = planned({"a": "sk->sk_cookie"}, pointer_1="count")
    assert found.fetch == {"pointer_1": "$arg4:s32", "a": "+512($arg1):u64", "pointer_2": "$arg1:x64"}
    assert found.read["a"].guards == ("pointer_2",)


def test_the_first_path_that_the_types_have_is_read() -> None:
    assert planned({"a": ["sk->gone", "sk->sk_cookie"]}).fetch["a"] == "+512($arg1):u64"
    with pytest.raises(GrammarError) as refused:
        planned({"a": ["sk->gone", "sk->away->x"]})
    first, second = refused.value.message.split("; a.yaml")
    assert first.startswith("a.yaml:3:12: struct sock has no member 'gone'")
    assert second.startswith(":4:12: struct sock has no member 'away'")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("skk->sk_cookie", "a.yaml:3:10: f has no parameter 'skk' that can be read, did you mean 'sk'?"),
        ("+8(sk->gone)", "a.yaml:3:15: struct sock has no member 'gone'"),
        (
            "->".join(["sk", *["sk_socket->sk"] * 5, "sk_cookie"]),
            "a.yaml:3:10: the kernel takes 63 characters, and this becomes +512(+8(",
        ),
    ],
)
def test_refusals_say_where(path: str, message: str) -> None:
    with pytest.raises(GrammarError) as refused:
        planned({"a": path})
    assert refused.value.message.startswith(message)


def test_a_kernel_without_types_has_no_members() -> None:
    attach = Attach(parse_target("kprobe:f"), {}, None, None, paths={"a": (WrittenPath("sk->x"),)})
    with pytest.raises(GrammarError, match="the type of 'sk' is not known: this kernel's BTF has no f"):
        typed(Probe("p", "", (attach,)), attach, {}, None, KernelTypes(READ))


PORT = {"port": "sk->__sk_common.skc_dport"}


@pytest.mark.parametrize("text", ["port == 443", "port != 443", "port == 443 || cpu == 1", "!(port == 443)"])
@pytest.mark.parametrize("port", [443, 7])
@pytest.mark.parametrize("pointer", [0, 100, LOWEST_ADDRESS, ADDRESS, HIGHEST_ADDRESS, HIGHEST_ADDRESS + 1])
def test_the_kernel_compares_as_the_agent_would(text: str, port: int, pointer: int) -> None:
    """What is recorded behind a null pointer is stale: here, a port that passes."""
    found = planned(PORT, only=text)
    assert found.filter
    recorded = {
        "port": int.from_bytes(port.to_bytes(2, "big"), sys.byteorder),
        "cpu": 1,
        "pointer_1": pointer,
    }
    missing = not LOWEST_ADDRESS <= pointer <= HIGHEST_ADDRESS
    known = {"port": None if missing else port, "cpu": 1}
    expected = compile_filter(parse_filter(text))(known)
    assert compile_filter(parse_filter(found.filter))(recorded) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "port > 443",
            "'port' is in network byte order, in which the kernel compares only by == and !=: write",
        ),
        ("port == 70000", "'port' has 2 bytes, so it is never 70000"),
        ("port == 'x'", "'port' has 2 bytes, so it is never"),
    ],
)
def test_what_the_kernel_cannot_compare_is_refused(text: str, message: str) -> None:
    with pytest.raises(GrammarError) as refused:
        planned(PORT, only=text)
    assert refused.value.message.startswith(message)


def test_other_fields_are_compared_as_written() -> None:
    assert planned(PORT, only="count > 3", count="count").filter == "count > 3"


def test_hist_triggers_leave_out_null_pointers_and_have_no_keys_in_network_order() -> None:
    found = planned(PORT, only="cpu == 1")
    limits = f"pointer_1 >= {LOWEST_ADDRESS} && pointer_1 <= {HIGHEST_ADDRESS}"
    assert where_all_are_there(found) == f"{limits} && cpu == 1"
    assert where_all_are_there(planned(PORT)) == limits
    assert unlike(found) == {"port", "pointer_1"}
    assert where_all_are_there(planned({}, only="cpu == 1", count="count")) == "cpu == 1"


STATE = """name: state
ID: 9
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:const void * skaddr;\toffset:8;\tsize:8;\tsigned:0;
\tfield:int newstate;\toffset:16;\tsize:4;\tsigned:1;

print fmt: "%d", REC->newstate
"""


def tracepoint(
    path: str, *, aggregate: str = "auto", only: str | None = None
) -> list[ProbeSpec | Unsupported]:
    paths = {"port": (WrittenPath(path, ("a.yaml", 3, 10)),)}
    attach = Attach(
        parse_target("tracepoint:sock:state"), {"port": path, "new": "newstate"}, only, None, paths=paths
    )
    made = probe(attach, metrics=(counter("port"),), aggregate=aggregate)
    kernel = Kernel(lambda *_: STATE, counts_tracepoints=True, binary=True, types=KernelTypes(READ))
    return tracepoint_specs(made, attach, {"port"}, kernel, itertools.count(), 10)


def test_a_tracepoints_field_is_followed_by_an_eprobe() -> None:
    first, *others = tracepoint("(sock)skaddr->__sk_common.skc_dport", only="newstate == 2 && port == 443")
    assert isinstance(first, ProbeSpec)
    assert (first.verb, first.file) == ("e", "dynamic_events")
    assert first.body == (
        "sock.state new=$newstate:s32 newstate=$newstate:s32 port=+12($skaddr):u16 pointer_1=$skaddr:x64"
    )
    assert first.filter == (
        f"newstate == 2 && pointer_1 >= {LOWEST_ADDRESS} && pointer_1 <= {HIGHEST_ADDRESS} && "
        f"port == {int.from_bytes((443).to_bytes(2, 'big'), sys.byteorder)}"
    )
    (port,) = [arg for arg in first.layout.args if arg.name == "port"]
    assert (port.network, port.guards) == (2, ("pointer_1",))
    assert "members: port=+12($skaddr):u16" in first.because
    assert {one.reason for one in others if isinstance(one, Unsupported)} == {
        "'port' is behind a field, which only an eprobe can follow: attach to a function that has the value,"
        " as kprobe:FUNCTION, and fetch its $arg1 and so on"
    }
    assert all(isinstance(one, Unsupported) for one in others)


def test_hist_triggers_on_what_is_behind_a_field_take_an_eprobe() -> None:
    (only,) = tracepoint("(sock)skaddr->sk_socket->type", aggregate="kernel")
    assert isinstance(only, ProbeSpec)
    assert only.verb == "e"
    assert all(f"pointer_2 >= {LOWEST_ADDRESS}" in table.trigger for table in only.tables)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (
            "(sock)skadr->sk_fn",
            "a.yaml:3:10: the tracepoint state has no field 'skadr', did you mean 'skaddr'?",
        ),
        ("(sock)newstate->sk_fn", "a.yaml:3:10: the field 'newstate' is int, no address"),
        (
            "skaddr->sk_fn",
            "a.yaml:3:10: the type of skaddr is not known: cast it, as (STRUCT)skaddr->MEMBER",
        ),
    ],
)
def test_what_is_behind_no_field_is_refused(path: str, reason: str) -> None:
    assert [one.reason for one in tracepoint(path) if isinstance(one, Unsupported)] == [reason]
