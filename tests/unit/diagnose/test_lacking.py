"""diagnose.lacking: what the kernel lacks for every alternative of a probe."""

import pytest

from kprobe_exporter.diagnose.lacking import lacked
from kprobe_exporter.symbols.functions import Answer
from kprobe_exporter.trace.emit import read_back

NO_EPROBES = Answer(False, "this kernel was built without eprobes")
NO_KPROBES = "this kernel was built without CONFIG_KPROBE_EVENTS (no kprobe_events)."


def said(attach: str, *, files: tuple[str, ...] = (), eprobes: Answer = NO_EPROBES) -> str | None:
    [probe] = read_back(f"probes: [{{name: p, attach: {attach}}}]").probes
    return lacked(probe.attach, files.__contains__, eprobes)


@pytest.mark.parametrize(
    ("attach", "why"),
    [
        ("kprobe:f", NO_KPROBES),
        ("call:f", NO_KPROBES),
        ("{pair: {from: tracepoint:a:b, to: kretprobe:f, key: tid}}", NO_KPROBES),
        ("uprobe:/bin/sh:f", "this kernel was built without CONFIG_UPROBE_EVENTS (no uprobe_events)."),
        ('{to: tracepoint:a:b, fetch: {x: "+8($c)"}}', NO_EPROBES.why),
        ("{to: tracepoint:a:b, fetch: {x: sk->sk_family}}", NO_EPROBES.why),
        ("{to: tracepoint:a:b, fetch: {x: c}}", None),
        ("[kprobe:f, tracepoint:a:b]", None),
        ("[kprobe:f, uprobe:/bin/sh:f]", NO_KPROBES),
    ],
)
def test_kernel_without_probes(attach: str, why: str | None) -> None:
    assert said(attach) == why


def test_kernel_with_probes() -> None:
    assert said("kprobe:f", files=("kprobe_events",)) is None
    assert said('{to: tracepoint:a:b, fetch: {x: "+8($c)"}}', eprobes=Answer(None, "unsure")) is None
