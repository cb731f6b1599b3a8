"""Strings of a program in `fetch` and in filters: what they mean, and the sentence of each refusal."""

import pytest

from tests.unit.config.conftest import Load, Refused


@pytest.mark.parametrize("target", ["syscall:execve", "tracepoint:syscalls:sys_enter_execve"])
def test_spelled_as_kernel_does(config: Load, target: str) -> None:
    fetch = "{file: {string: filename}, all: {strings: argv, max: 63}, some: {strings: envp}}"
    [probe] = config(f"probes: [{{name: p, attach: '{target}', fetch: {fetch}}}]").probes
    [attach] = [one.begins[0] if one.begins else one for one in probe.attach]
    assert attach.fetch == {
        "file": "+0($filename):ustring",
        "all": "+0($argv):ustring[63]",
        "some": "+0($envp):ustring[8]",
    }
    assert attach.vectors == {"all", "some"}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            "attach: 'kprobe:f', fetch: {¦a: {string: x}}",
            "fetch.a: only a system call's arguments are known to point into the program's memory: write"
            " +0(x):ustring, or +0(x):string for the kernel's memory",
        ),
        (
            "attach: 'tracepoint:sched:sched_switch', fetch: {¦a: {strings: x}}",
            "fetch.a: only a system call's arguments are known",
        ),
        (
            "attach: 'tracepoint:syscalls:sys_exit_execve', fetch: {¦a: {string: x}}",
            "fetch.a: only a system call's arguments are known",
        ),
        (
            "attach: 'syscall:execve', fetch: {¦a: {string: '$x'}}",
            "fetch.a: '$x' cannot name an argument: write its name, such as filename",
        ),
        (
            "attach: 'syscall:execve', fetch: {¦a: {string: x, strings: y}}",
            "fetch.a: write {string: ARGUMENT}, or {strings: ARGUMENT, max: 8}",
        ),
        ("attach: 'syscall:execve', fetch: {a: {strings: x, max: ¦64}}", "fetch.a.max: "),
        (
            "attach: 'syscall:execve', fetch: {a: ¦(task)x->pid}",
            "fetch.a: a system call's pointers lead into the program's memory, whose types are not known:"
            " read it as +0($FIELD):ustring or +8($FIELD):u32",
        ),
        (
            "attach: 'syscall:execve', fetch: {a: ¦filename->x}",
            "fetch.a: a system call's pointers lead into the program's memory",
        ),
        (
            "attach: 'tracepoint:a:b', fetch: {a: '+0(¦x):u8'}",
            "fetch.a: a field of an event has a $ before it, write $x",
        ),
        (
            "attach: 'kprobe:f', filter: ¦'a.ustring == \"x\"'",
            "filter: 'a.ustring' is for a tracepoint's fields: fetch +0(a):ustring, and compare that",
        ),
        (
            "attach: 'call:f', filter: ¦'a.ustring == \"x\"'",
            "filter: 'a.ustring' is for a tracepoint's fields: fetch +0(a):ustring, and compare that",
        ),
        (
            "attach: 'syscall:f', filter: 'a.ustring ~ \"x\" && ¦q == 1'",
            "filter: there is no field 'q' to filter on: fetch it",
        ),
        (
            "attach: 'syscall:f', fetch: {b: '+8($a):u32'}, filter: ¦'b ~ \"x\"'",
            "filter: 'b' is a number, take the quotes away",
        ),
    ],
)
def test_refusals(refused_probe: Refused, keys: str, sentence: str) -> None:
    refused_probe(keys, sentence)


def test_definition_with_memory(config: Load) -> None:
    line = "e:x syscalls/sys_enter_openat file=+0($filename):ustring flags=$flags"
    [probe] = config(f"probes: [{{definition: '{line}'}}]").probes
    assert probe.attach[0].fetch == {"file": "+0($filename):ustring", "flags": "flags"}
