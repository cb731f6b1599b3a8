"""``time`` of a configuration: the probe that it stands for, and what is wrong with it."""

import itertools
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config, CpuShare, Probe
from kprobe_exporter.errors import ConfigError
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import Kernel, plan_probe
from kprobe_exporter.plan.joined import JoinedSpec
from tests.support.kernel_formats import saved


def saved_format(system: str, event: str) -> str | None:
    text = saved("6.12").get(f"tracefs/events/{system}/{event}/format")
    return None if text is None else text.decode()


def read(directory: Path, text: str) -> Config:
    path = directory / "config.yaml"
    path.write_text(text)
    return load([path], DECODERS)


def time_of(directory: Path, text: str) -> Probe:
    [probe] = read(directory, text).probes
    return probe


def test_the_whole_machine(tmp_path: Path) -> None:
    probe = time_of(tmp_path, "time: {}")
    assert (probe.name, probe.limit) == ("time", CpuShare(0.01))
    total, unaccounted = probe.metrics
    assert [label.name for label in total.labels] == ["class"]
    assert (total.name, unaccounted.name) == ("time_seconds_total", "time_unaccounted_seconds_total")


def test_labels_and_a_limit(tmp_path: Path) -> None:
    probe = time_of(tmp_path, "time: {by: [pod, container], limit: none}")
    assert [label.name for label in probe.metrics[0].labels] == ["pod", "container", "class"]
    assert probe.limit is None


def test_several_files_share_it(tmp_path: Path) -> None:
    for name, text in (("a", "time: {by: [pod]}"), ("b", "time: {limit: {cpu: 3%}}")):
        (tmp_path / f"{name}.yaml").write_text(text)
    [probe] = load([tmp_path], DECODERS).probes
    assert ([label.name for label in probe.metrics[0].labels], probe.limit) == (
        ["pod", "class"],
        CpuShare(0.03),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time: {by: [comm]}", "time.by[0]"),
        ("time: {by: [pod, pod]}", "the same name is there twice: keep one"),
        ("time: {classes: [throttled, throttled]}", "the same name is there twice: keep one"),
        ("time: {classes: [sleep]}", "time.classes[0]"),
        ("time: {per: pod}", "time.per"),
        ("time: yes", "time"),
        (
            "time: {}\nprobes: [{name: time, attach: 'kprobe:f'}]",
            "there is a probe 'time', whose name this needs",
        ),
        (
            "time: {}\nprobes: [{name: x, attach: 'kprobe:f', metrics: [{counter: time_seconds_total}]}]",
            "time_seconds_total",
        ),
    ],
)
def test_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_text_is_not_enough(tmp_path: Path) -> None:
    kernel = Kernel(saved_format, counts_tracepoints=True, binary=False)
    plan = plan_probe(time_of(tmp_path, "time: {}"), "kprobe", DECODERS, kernel, itertools.count())
    assert "not enough for the sums of the time of threads" in plan.refusals


def test_the_events_and_their_stack(tmp_path: Path) -> None:
    """Only a switch has a stack: each one costs its bytes in the buffer."""
    kernel = Kernel(saved_format, counts_tracepoints=True, binary=True)
    plan = plan_probe(time_of(tmp_path, "time: {}"), "kprobe", DECODERS, kernel, itertools.count())
    [way] = plan.alternatives
    assert isinstance(way, JoinedSpec)
    first = [next(one for one in ways if isinstance(one, ProbeSpec)) for ways in way.ways]
    assert [(one.target, one.stack, [arg.name for arg in one.layout.args]) for one in first] == [
        ("tracepoint:sched:sched_switch", True, ["prev", "next", "state"]),
        ("tracepoint:sched:sched_waking", False, ["task", "to"]),
        ("tracepoint:sched:sched_wakeup", False, ["task", "to"]),
        ("tracepoint:sched:sched_wakeup_new", False, ["task", "to"]),
    ]
