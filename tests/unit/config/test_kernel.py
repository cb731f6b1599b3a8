"""config.kernel: what hist triggers cannot do is refused in one sentence, at its place."""

from collections.abc import Callable

import pytest

from kprobe_exporter.config.values import Config
from tests.unit.config.conftest import marked

HEAD = "probes: [{name: p, aggregate: kernel, returns: int, fetch: {n: '$arg1:u32', s: '+0($arg2):string'}, "


@pytest.mark.parametrize(
    "metric",
    [
        "{counter: a_total}",
        "{counter: a_total, value: n, scale: 512, labels: [comm, cpu]}",
        "{counter: a_total, value: return, labels: {errno: {field: return, decode: errno}, tid: tid}}",
        "{counter: a_total, where: 'n > 3 && comm == \"x\" && return < 0', labels: [n]}",
        "{histogram: a, value: n}",
        "{histogram: a, value: n, buckets: [-5, 0, 1, 2, 1024], labels: [comm, n]}",
        "{histogram: a, value: n, scale: 1.0e-3, buckets: [0.001, 0.512, 1.024]}",
        "{histogram: a, value: n, scale: 1024, buckets: {exp2: {min: 1024, count: 20}}}",
    ],
)
def test_what_the_kernel_can_do(config: Callable[[str], Config], metric: str) -> None:
    [probe] = config(f"{HEAD}attach: 'kretprobe:f', metrics: [{metric}]}}]").probes
    assert probe.aggregate == "kernel"
    assert len(probe.metrics) == 1


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("{gauge: ¦a, value: n}", ".gauge: the kernel keeps no last value where it aggregates"),
        ("{counter: a_total, value: ¦cpu}", ".value: the kernel adds up what an event carries"),
        ("{counter: a_total, labels: [comm, ¦s]}", ".labels[1]: the kernel aggregates by numbers and `comm`"),
        ("{counter: a_total, labels: {a: ¦pid}}", ".labels.a: the kernel does not aggregate by 'pid'"),
        (
            "{counter: a_total, labels: {a: {field: ¦caller}}}",
            ".labels.a.field: the kernel does not aggregate",
        ),
        ("{counter: a_total, labels: [¦symbol]}", ".labels[0]: the kernel does not aggregate by 'symbol'"),
        ("{counter: a_total, ¦labels: [comm, cpu, n]}", ".labels: the kernel aggregates by 2 labels at most"),
        ("{histogram: a, value: n, ¦buckets: [1, 3, 4, 10]}", "powers of 2 of the value: 3 and 10 are no"),
        ("{histogram: a, value: n, scale: 512, ¦buckets: [1, 512]}", "powers of 2 of the value: 1 is no"),
        ("{histogram: a, value: n, scale: 1.0e-300, ¦buckets: [1.0e+10]}", "the value: 1e+10 is no"),
        ("{histogram: a, value: n, scale: 1.0e+300, ¦buckets: [1.0e-100]}", "the value: 1e-100 is no"),
        ("{counter: a_total, where: 'n > 1 && ¦pid == 3'}", ".where: the kernel does not know 'pid'"),
    ],
)
def test_what_it_cannot(problems: Callable[[str], list[str]], metric: str, expected: str) -> None:
    text, place = marked(f"{HEAD}attach: 'kretprobe:f', metrics: [{metric}]}}]")
    [problem] = problems(text)
    assert problem.startswith(f"{place}: probes[0].metrics[0]")
    assert expected in problem


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("stack: ¦true", "stack: the kernel keeps no stacks where it aggregates"),
        (
            "¦return_buckets: [1, 10]",
            "return_buckets: the kernel's buckets are powers of 2 of the value: 10 is no",
        ),
        ("aggregate: ¦hist", "aggregate: "),
    ],
)
def test_a_probe(problems: Callable[[str], list[str]], rest: str, expected: str) -> None:
    head = "probes: [{name: p, attach: 'kretprobe:f', "
    text, place = marked(head + (rest if "aggregate" in rest else f"aggregate: kernel, {rest}") + "}]")
    [problem] = problems(text)
    assert problem.startswith(f"{place}: probes[0].{expected}")


def test_words_of_hist_triggers(problems: Callable[[str], list[str]]) -> None:
    text, place = marked(
        "probes: [{name: p, attach: 'kprobe:f', aggregate: kernel, fetch: {hitcount: '$arg1:u8'},"
        " metrics: [{counter: a_total, value: ¦hitcount}]}]"
    )
    [problem] = problems(text)
    assert problem.startswith(f"{place}: ")
    assert "'hitcount' is a word of the kernel's hist triggers" in problem


@pytest.mark.parametrize("returns", ["long", "ptr"])
def test_a_guessed_width_is_not_compared(problems: Callable[[str], list[str]], returns: str) -> None:
    [problem] = problems(
        f"probes: [{{name: p, attach: 'kretprobe:f', aggregate: kernel, returns: {returns},"
        " metrics: [{counter: a_total, where: 'return < 0'}]}]"
    )
    assert "the kernel compares the whole register" in problem


def test_fractions_are_not_compared(problems: Callable[[str], list[str]]) -> None:
    [problem] = problems(
        "probes: [{name: p, attach: 'tracepoint:a:b', aggregate: kernel, fetch: {n: n},"
        " metrics: [{counter: a_total, where: 'n > 1.5'}]}]"
    )
    assert "the kernel compares no fractions" in problem


def test_the_rest_of_the_configuration_is_free(config: Callable[[str], Config]) -> None:
    [probe] = config(
        "probes: [{name: p, attach: 'kretprobe:f', aggregate: events, stack: true, return_buckets: [3]}]"
    ).probes
    assert probe.aggregate == "events"
    assert config("probes: [{name: p, attach: 'kprobe:f'}]").probes[0].aggregate == "auto"
