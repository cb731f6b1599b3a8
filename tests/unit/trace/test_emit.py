"""trace.emit: the YAML of a trace is a configuration that the agent accepts, with the same meaning."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import UsageError
from kprobe_exporter.trace.emit import configuration, probe_name, read_back
from kprobe_exporter.trace.request import parse_request


@pytest.mark.parametrize(
    ("text", "filter_text", "stacks", "yaml"),
    [
        (
            "r:mine do_sys_openat2 rval=$retval:s32",
            "rval < 0",
            True,
            'probes:\n  - name: mine\n    definition: "r:mine do_sys_openat2 rval=$retval:s32"\n'
            '    filter: "rval < 0"\n    stack: true\n',
        ),
        ("call:vfs_read", None, False, "probes:\n  - name: vfs_read\n    attach: call:vfs_read\n"),
        (
            "call:vfs_read count size=$arg3:u64 $arg1",
            "duration > 0.01",
            False,
            "probes:\n  - name: vfs_read\n    attach: call:vfs_read\n"
            '    filter: "duration > 0.01"\n'
            '    fetch:\n      count: count\n      size: "$arg3:u64"\n      arg3: "$arg1"\n',
        ),
        (
            "syscall:openat filename:string flags=$flags +0($filename):ustring dfd",
            None,
            False,
            "probes:\n  - name: openat\n    attach: syscall:openat\n    fetch:\n"
            "      filename: {string: filename}\n      flags: flags\n"
            '      arg3: "+0($filename):ustring"\n      dfd: dfd\n',
        ),
        (
            "syscall:execve argv:strings envp=envp:strings[3]",
            None,
            False,
            "probes:\n  - name: execve\n    attach: syscall:execve\n    fetch:\n"
            "      argv: {strings: argv}\n      envp: {strings: envp, max: 3}\n",
        ),
        (
            "sched:sched_switch",
            None,
            False,
            "probes:\n  - name: sched_switch\n    attach: tracepoint:sched:sched_switch\n",
        ),
        (
            "r:/bin/bash:readline line=+0($retval):string",
            None,
            False,
            "probes:\n  - name: readline\n    attach: uretprobe:/bin/bash:readline\n"
            '    fetch:\n      line: "+0($retval):string"\n',
        ),
    ],
)
def test_the_yaml(text: str, filter_text: str | None, stacks: bool, yaml: str) -> None:
    made = configuration(parse_request(text), filter_text, stacks=stacks)
    assert made == yaml
    (probe,) = read_back(made).probes
    assert (probe.attach[0].filter, probe.stack) == (filter_text, stacks)


@pytest.mark.parametrize(
    ("text", "by", "fetch", "labels"),
    [
        ("p:vfs_read n=%dx", ["comm", "n:hex"], {"n": "%dx"}, [("comm", "comm", ""), ("n", "n", "hex")]),
        ("sched:sched_switch", ["next_comm"], {"next_comm": "next_comm"}, [("next_comm", "next_comm", "")]),
        (
            "syscalls:sys_exit_openat",
            ["return:errno"],
            {"return": "ret"},
            [("return", "return", "errno")],
        ),
        ("syscalls:sys_exit_openat", [], {"return": "ret"}, []),
    ],
)
def test_what_is_counted_by(
    text: str, by: list[str], fetch: dict[str, str], labels: list[tuple[str, str, str]]
) -> None:
    [probe] = read_back(configuration(parse_request(text), None, stacks=False, by=by)).probes
    [attach] = probe.attach
    assert attach.fetch == fetch
    found = [label for metric in probe.metrics for label in metric.labels]
    assert [(one.name, one.field, "".join(step.name for step in one.decode)) for one in found] == labels


@given(st.text())
def test_the_command_stays_a_comment(word: str) -> None:
    command = ["kprobe-exporter", "trace", word]
    made = configuration(parse_request("p:vfs_read"), None, stacks=False, command=command)
    comment, rest = made.split("\n", 1)
    assert comment.startswith("# kprobe-exporter trace ")
    assert rest == configuration(parse_request("p:vfs_read"), None, stacks=False)
    if word.isprintable():
        assert shlex.split(comment.removeprefix("# ")) == command


@given(
    st.from_regex(r'name (==|~) "[ -~]*"', fullmatch=True).filter(
        lambda text: text.count('"') == 2 and "#" not in text
    )
)
def test_a_filter_is_read_back_as_it_was(filter_text: str) -> None:
    made = configuration(parse_request("p:mine vfs_open name=+0(%si):string"), filter_text, stacks=False)
    (probe,) = read_back(made).probes
    assert probe.attach[0].filter == filter_text


def test_what_the_agent_refuses() -> None:
    with pytest.raises(UsageError, match="nosuch"):
        read_back(configuration(parse_request("p:mine vfs_read"), "nosuch == 1", stacks=False))


@given(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,62}", fullmatch=True))
def test_any_events_name_gives_a_probes(event: str) -> None:
    made = configuration(parse_request(f"p:{event} vfs_read"), None, stacks=False)
    (probe,) = read_back(made).probes
    assert probe.name == probe_name(event)
