"""fentry and fexit: definitions that a kernel with fprobes accepts, and the reason on one without."""

from typing import Any

import pytest

from kprobe_exporter.config.model import Attach
from kprobe_exporter.grammar.definition import ProbeKind, parse_definition
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.function import UNCOUNTED, function_spec
from tests.support.planned import attach, counter, formats, probe


def plan(
    way: Attach, hist: bool = True, no_fprobes: str | None = None, **more: Any
) -> ProbeSpec | Unsupported:
    kernel = Kernel(formats, hist, no_fprobes=no_fprobes)
    return function_spec(probe(way, **more), way, set(), kernel, 0, 1000)


def spec(way: Attach, **more: Any) -> ProbeSpec:
    made = plan(way, **more)
    assert isinstance(made, ProbeSpec)
    return made


@pytest.mark.parametrize(
    ("way", "line", "args"),
    [
        (attach("fentry:vfs_read"), "f:g/e vfs_read", ()),
        (
            attach("fentry:vfs_read", path="+0($arg1):string", count="$arg3:u64"),
            "f:g/e vfs_read count=$arg3:u64 path=+0($arg1):string",
            (Arg("count", "int", unsigned=64), Arg("path", "str")),
        ),
        (attach("fexit:f.isra.0", "void"), "f1024:g/e f.isra.0%return", ()),
        (
            attach("fexit:vfs_read", "int"),
            "f1024:g/e vfs_read%return return=$retval:s32",
            (Arg("return", "int"),),
        ),
        # An fprobe's definition names a module's function without the module.
        (attach("fentry:ext4:ext4_open"), "f:g/e ext4_open", ()),
        (attach("fexit:ext4:ext4_open", "void"), "f1024:g/e ext4_open%return", ()),
    ],
)
def test_a_definition(way: Attach, line: str, args: tuple[Arg, ...]) -> None:
    made = spec(way)
    assert made.line("g", "e") == line
    assert (made.file, made.kind, made.target) == ("dynamic_events", str(way.target.kind), str(way.target))
    assert made.layout.args == args
    assert made.layout.form == ("return" if "%return" in line else "entry")
    parsed = parse_definition(line)
    assert (parsed.kind, parsed.returns) == (ProbeKind.FPROBE, way.target.kind.is_return)


@pytest.mark.parametrize("to", ["kprobe:f", "fentry:f"])
def test_arguments_that_the_agent_adds_count(to: str) -> None:
    many = {f"a{number}": "$arg1:u8" for number in range(128)}
    assert len(spec(attach(to, **many)).layout.args) == 128
    made = plan(attach(to, None, 'comm == "x"', **many))
    assert isinstance(made, Unsupported)
    assert made.reason == "with those that the agent adds it has 129 arguments, of 128 at most: fetch less"


def test_maxactive() -> None:
    assert spec(attach("fexit:f", "int"), maxactive=7).verb == "f7"
    assert spec(attach("fentry:f"), maxactive=7).verb == "f"


@pytest.mark.parametrize(
    ("way", "more", "how", "because"),
    [
        (attach("fentry:f"), {}, "count", "nothing but hits"),
        (attach("fexit:f", "void"), {}, "count", "nothing but hits"),
        (attach("fexit:f", "int"), {}, "events", "its return value is read"),
        (attach("fentry:f"), {"metrics": (counter(),)}, "events", "the metric x_total"),
        (attach("fentry:f"), {"hist": False}, "events", UNCOUNTED),
        (attach("fentry:f", filter_text="common_pid == 7"), {"hist": False}, "events", "its filter"),
        (attach("fentry:f"), {"aggregate": "kernel", "metrics": (counter(),)}, "kernel", "aggregate: kernel"),
        (attach("kprobe:f"), {"hist": False}, "count", "nothing but hits"),
    ],
)
def test_how_it_is_collected(way: Attach, more: dict[str, Any], how: str, because: str) -> None:
    made = spec(way, **more)
    assert made.plan == how
    assert because in made.because


@pytest.mark.parametrize(
    ("to", "instead"),
    [
        ("fentry:vfs_read", "kprobe:vfs_read"),
        ("fexit:vfs_read", "kretprobe:vfs_read"),
        ("fexit:ext4:ext4_open", "kretprobe:ext4:ext4_open"),
    ],
)
def test_a_kernel_without_fprobes(to: str, instead: str) -> None:
    why = "this kernel has no fprobe events (CONFIG_FPROBE_EVENTS)"
    reason = f"{why}: use {instead}, or list it as an alternative"
    assert plan(attach(to), no_fprobes=why) == Unsupported(to, reason)
    assert isinstance(plan(attach(instead), no_fprobes=why), ProbeSpec)
