"""trace.function_tracer: which functions a tracer gets, and what is said where the kernel has none."""

import errno
from collections.abc import Mapping
from typing import cast

import pytest

from kprobe_exporter.errors import TracefsError, UsageError
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.probing.scope import OF_TRACERS
from kprobe_exporter.trace.function_tracer import (
    _escape_switches,
    _filter_of,
    _narrow,
    _refuse_missing,
    tracer_lacked,
)
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance


class Kernel:
    """The tracers of the whole kernel, and those of an instance, whose files are written to."""

    def __init__(self, everywhere: str, of_instance: str, refusal: int | None = None) -> None:
        self.tracers: Mapping[str, str] = {".": everywhere, "instances/i": of_instance}
        self.refusal = refusal
        self.written: list[tuple[str, str]] = []

    def read(self, path: str) -> bytes:
        return self.tracers[path.removesuffix("/available_tracers")].encode()

    def exists(self, path: str) -> bool:
        return path == f"instances/i/{OF_TRACERS.left}"

    def write(self, path: str, text: str) -> None:
        if self.refusal is not None:
            raise OSError(self.refusal, "refused")
        self.written.append((path.removeprefix("instances/i/"), text))

    @property
    def instance(self) -> Instance:
        made = Instance(cast("Tracefs", self), "i", None)
        made.own_tid = lambda: 77  # type: ignore[method-assign]
        return made


@pytest.mark.parametrize(
    ("target", "words"),
    [("kprobe:vfs_read", "vfs_read"), ("kprobe:vfs_*", "vfs_*"), ("kprobe:ext4:ext4_*", "ext4_*:mod:ext4")],
)
def test_functions_of_the_kernel(target: str, words: str) -> None:
    assert _filter_of(parse_target(target)) == words


@pytest.mark.parametrize(
    "target", ["uprobe:/bin/sh:main", "kprobe:vfs_read+8", "kretprobe:vfs_read", "tracepoint:a:b"]
)
def test_other_targets_are_refused(target: str) -> None:
    with pytest.raises(UsageError, match="is not a function of the kernel"):
        _filter_of(parse_target(target))


def test_own_thread_is_left_out() -> None:
    kernel = Kernel("function nop", "function nop")
    _narrow(kernel.instance, "vfs_*")
    assert kernel.written == [("set_ftrace_filter", "vfs_*\n"), ("set_ftrace_notrace_pid", "77\n")]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (errno.EINVAL, "no function that can be traced fits 'vfs_*'"),
        (errno.EPERM, "functions cannot be traced: the kernel is locked down"),
        (errno.EIO, "functions cannot be traced: refused"),
    ],
)
def test_refused_filter(code: int, why: str) -> None:
    with pytest.raises(TracefsError) as refused:
        _narrow(Kernel("function", "function", code).instance, "vfs_*")
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize(
    ("everywhere", "of_instance", "why"),
    [
        ("function_graph function nop", "function nop", "only for all users of tracefs together"),
        ("function nop", "function nop", "built without CONFIG_FUNCTION_GRAPH_TRACER"),
    ],
)
def test_missing_tracer(everywhere: str, of_instance: str, why: str) -> None:
    with pytest.raises(TracefsError, match=why):
        _refuse_missing(Kernel(everywhere, of_instance).instance, "function_graph")


def test_names_in_a_tree_of_calls() -> None:
    """The newline of a thread's name begins no line; those of the kernel stay."""
    dashes = b" " + b"-" * 42 + b"\n"
    entry = dashes + b" 0)    a\nb-7    =>   sh-8   \n" + dashes + b"\n 0)   1.5 us    |  vfs_read();\n"
    assert _escape_switches(entry) == entry.replace(b"a\nb", b"a\\nb")
    assert _escape_switches(b" 0)   |  f() {\n") == b" 0)   |  f() {\n"


def test_what_the_list_of_tools_says() -> None:
    kernel = cast("Tracefs", Kernel("function nop", ""))
    assert tracer_lacked(kernel, "functions") is None
    assert tracer_lacked(kernel, "graph") == (
        "this kernel was built without CONFIG_FUNCTION_GRAPH_TRACER (no tracer 'function_graph')."
    )
