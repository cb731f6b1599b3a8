"""Probes of ``sys_NAME``: the same in metrics on every architecture, and arguments read from registers."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Attach, Metric
from kprobe_exporter.grammar.target import NEVER_RETURN, Target
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan import JoinedSpec, Kernel, plan_probe
from tests.support.kernel_formats import RELEASES, saved
from tests.support.planned import attach, counter, formats, probe


def kernel(wrapper: str, **more: Any) -> Kernel:
    """Return a kernel in which ``wrapper`` stands before the names of system calls' functions."""

    def place(target: Target) -> tuple[Target, str]:
        if not target.symbol.startswith("sys_") or not wrapper:
            return target, ""
        function = f"{wrapper}{target.symbol}"
        return replace(target, symbol=function), f"'{target.symbol}' is '{function}' here"

    return Kernel(formats, counts_tracepoints=True, place=place, **more)


X86 = kernel("__x64_")
PTRACE = attach("kprobe:sys_ptrace", request="$arg1:s64", name="+0($arg2):ustring", text='\\"$arg1"')


def planned(way: Attach, on: Kernel) -> ProbeSpec | Unsupported:
    [found] = plan_probe(
        probe(way, metrics=(counter("symbol"),)), "ns", DECODERS, on, itertools.count()
    ).alternatives
    assert not isinstance(found, JoinedSpec)
    return found


@pytest.mark.parametrize(
    ("wrapper", "body"),
    [
        ("__x64_", "request=+112($arg1):s64 name=+0(+104($arg1)):ustring"),
        ("__arm64_", "request=+0($arg1):s64 name=+0(+8($arg1)):ustring"),
        ("", "request=$arg1:s64 name=+0($arg2):ustring"),
    ],
)
def test_an_argument_is_that_of_the_system_call(wrapper: str, body: str) -> None:
    spec = planned(PTRACE, kernel(wrapper))
    assert isinstance(spec, ProbeSpec)
    assert spec.body == f'{wrapper}sys_ptrace {body} text=\\"$arg1"'
    assert (spec.target, spec.symbol, spec.layout.symbol) == ("kprobe:sys_ptrace", "sys_ptrace", "sys_ptrace")
    assert spec.because.endswith(f"; 'sys_ptrace' is '{wrapper}sys_ptrace' here") == bool(wrapper)


def test_on_a_kernel_that_knows_registers_alone() -> None:
    spec = planned(attach("kprobe:sys_ptrace", pid="$arg2:u32"), kernel("__x64_", machine="EM_X86_64"))
    assert isinstance(spec, ProbeSpec)
    assert spec.body == "__x64_sys_ptrace pid=+104(%di):u32"


def no_exit(system: str, event: str) -> str | None:
    """Return the format of a system call's entry for exit(2) as well, with another name of its argument."""
    text = formats(system, event.replace("sys_enter_exit", "sys_enter_openat"))
    return text.replace("dfd", "error_code") if text else None


@pytest.mark.parametrize(
    ("metrics", "plan", "because"),
    [
        ((), "count", "nothing but hits is asked for"),
        ((counter("error_code"),), "events", "the metric x_total takes its events"),
    ],
)
def test_system_call_without_return_is_planned_as_its_entry(
    metrics: tuple[Metric, ...], plan: str, because: str
) -> None:
    made = probe(attach("syscall:exit", error_code="error_code"), metrics=metrics)
    kernel = Kernel(no_exit, counts_tracepoints=True)
    spec = plan_probe(made, "ns", DECODERS, kernel, itertools.count()).alternatives[0]
    assert isinstance(spec, ProbeSpec)
    assert (spec.plan, spec.because) == (plan, f"{because}; only its entry is traced: it never returns")
    assert (spec.kind, spec.target, spec.symbol, spec.layout.symbol) == (
        *("syscall", "syscall:exit"),
        *("exit", "exit"),
    )
    entry = (spec.system, spec.event) if plan == "count" else tuple(spec.body.split()[0].split("."))
    assert entry == ("syscalls", "sys_enter_exit")


@pytest.mark.parametrize("name", ["do_exit", "sys_exit_group"])
def test_call_of_a_function_that_never_returns_is_its_entry(tmp_path: Path, name: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"probes: [{{name: p, attach: 'call:{name}'}}]")
    [made] = load([file], DECODERS).probes
    [spec] = plan_probe(made, "ns", DECODERS, X86, itertools.count()).alternatives
    assert isinstance(spec, ProbeSpec)
    function = f"__x64_{name}" if name.startswith("sys_") else name
    assert (spec.file, spec.verb, spec.body) == ("kprobe_events", "p", function)
    assert (spec.kind, spec.target, spec.symbol, spec.plan) == ("call", f"call:{name}", name, "count")
    assert spec.because.startswith("nothing but hits is asked for")
    assert spec.because.endswith("only its entry is traced: it never returns")


@pytest.mark.parametrize(("kind", "entry"), [("kretprobe", "kprobe"), ("fexit", "fentry")])
def test_return_of_a_function_that_never_returns_is_unsupported(kind: str, entry: str) -> None:
    found = planned(attach(f"{kind}:do_exit", "long"), X86)
    assert found == Unsupported(f"{kind}:do_exit", f"it never returns: probe its entry, {entry}:do_exit")
    assert isinstance(planned(attach(f"{kind}:ext4:do_exit", "long"), X86), ProbeSpec)


def test_functions_that_never_return_are_those_of_kernels() -> None:
    """Each is traceable on one of the saved kernels, under the name of its architecture."""
    known = {
        line.split()[0].removeprefix(b"__x64_").decode()
        for release in RELEASES
        for line in saved(release)["tracefs/available_filter_functions"].splitlines()
    }
    assert known >= NEVER_RETURN


def test_unknown_system_call_without_return_is_unsupported() -> None:
    found = planned(attach("syscall:uretprobe"), Kernel(formats, counts_tracepoints=True))
    assert isinstance(found, Unsupported)
    assert found.target == "syscall:uretprobe"
    assert found.reason.startswith("this kernel has no tracepoint syscalls:sys_enter_uretprobe")


@pytest.mark.parametrize(
    ("wrapper", "argument", "said"),
    [
        ("__x64_", "$arg7", "a system call has no $arg7, only $arg1 to $arg6"),
        (
            "__s390x_",
            "$arg1",
            "where $arg1 of 'sys_ptrace' is on this machine is not known: attach to syscall:ptrace, and "
            "fetch its fields",
        ),
    ],
)
def test_an_argument_that_cannot_be_read(wrapper: str, argument: str, said: str) -> None:
    found = planned(attach("kprobe:sys_ptrace", x=argument), kernel(wrapper))
    assert found == Unsupported("kprobe:sys_ptrace", said)


def test_without_fprobes_it_is_called_as_written() -> None:
    found = planned(attach("fentry:sys_ptrace"), kernel("__x64_", no_fprobes="none here"))
    assert found == Unsupported(
        "fentry:sys_ptrace", "none here: use kprobe:sys_ptrace, or list it as an alternative"
    )


def test_a_call_says_what_its_name_stands_for(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("probes: [{name: p, attach: 'call:sys_fsync', fetch: {fd: '$arg1:u32'}}]")
    [made] = load([file], DECODERS).probes
    [spec] = plan_probe(made, "ns", DECODERS, X86, itertools.count()).alternatives
    assert isinstance(spec, JoinedSpec)
    assert (spec.target, spec.symbol) == ("call:sys_fsync", "sys_fsync")
    halves = [way for half in spec.ways for way in half if isinstance(way, ProbeSpec)]
    assert spec.settled(halves).because == (
        "the time between its two events is measured; 'sys_fsync' is '__x64_sys_fsync' here"
    )
    assert [half.body for half in halves] == [
        "__x64_sys_fsync fd=+112($arg1):u32 stack_pointer=$stack:u64",
        "__x64_sys_fsync stack_pointer=$stack:u64 return=$retval:s64",
    ]
