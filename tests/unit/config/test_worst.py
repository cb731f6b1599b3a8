"""`worst` of a probe in the configuration: what it becomes, and what is refused."""

import pytest

from kprobe_exporter.config.model import Decode, Label, Worst
from kprobe_exporter.model.specs import WorstSpec
from kprobe_exporter.plan.metric import events_for, fields_used, worst_spec
from tests.unit.config.conftest import Load, Problems, marked


def test_defaults(config: Load) -> None:
    [probe] = config("probes: [{name: p, attach: 'call:f', worst: {by: duration}}]").probes
    assert probe.worst == Worst("duration", (), 120.0)
    assert worst_spec(probe, {}) == WorstSpec("duration", (), 1e-9, 120.0, is_time=True)


def test_fields_and_labels(config: Load) -> None:
    [probe] = config("""
probes:
  - name: p
    attach: kretprobe:f
    let: {double: return * 2}
    worst: {by: double, keep: {who: comm, errno: {field: return, decode: errno}}, window: 5m}
""").probes
    labels = (Label("who", "comm"), Label("errno", "return", (Decode("errno"),)))
    assert probe.worst == Worst("double", labels, 300.0)
    assert fields_used(probe) >= {"return", "comm"}
    assert events_for(probe, probe.attach[0], set()) == "its largest value is kept"


def test_facts_of_the_thread(config: Load) -> None:
    [probe] = config("probes: [{name: p, attach: 'call:f', worst: {by: duration, keep: [exe, age]}}]").probes
    assert probe.worst is not None
    assert probe.worst.labels == (
        Label("exe", "tid", (Decode("exe"),)),
        Label("age", "tid", (Decode("age"),)),
    )


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("attach: 'kprobe:f', worst: {by: ¦duration}", "there is no 'duration' at kprobe:f"),
        ("attach: 'call:f', worst: {by: ¦size}", "there is no field 'size' at call:f"),
        ("attach: 'call:f', worst: {by: ¦comm}", "'comm' is text at call:f: this needs a number"),
        (
            "attach: 'call:f', worst: {by: ¦return * 2}",
            "this is not the name of a field: name an expression by let: {NAME: EXPRESSION}",
        ),
        ("attach: 'call:f', worst: {by: duration, keep: [¦size]}", "there is no field 'size' at call:f"),
        ("attach: 'call:f', worst: {by: return, keep: [¦duration]}", "let `by` name it"),
        ("attach: 'call:f', worst: {by: duration, keep: [¦argv]}", "arguments may hold secrets"),
        ("attach: 'call:f', worst: {by: duration, window: ¦2h}", "a window has 1s to 1h"),
        ("attach: 'call:f', worst: {by: duration, window: ¦500ms}", "a window has 1s to 1h"),
        (
            "attach: 'kretprobe:f', aggregate: kernel, return_buckets: none, ¦worst: {by: return}",
            "the kernel keeps no single value where it aggregates: leave `aggregate` out to have it",
        ),
        ("attach: 'call:f', returns: 'struct file *', worst: {by: ¦return}", "returns a pointer"),
        ("attach: 'call:f', ¦worst: {keep: [comm]}", "the key 'by' is missing"),
    ],
)
def test_refused(problems: Problems, rest: str, expected: str) -> None:
    text, place = marked(f"probes: [{{name: p, {rest}}}]")
    [problem] = problems(text)
    assert problem.startswith(f"{place}: ")
    assert expected in problem
