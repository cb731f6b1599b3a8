"""config.kernel: what hist triggers cannot do is refused in one sentence, at its place."""

import pytest

from kprobe_exporter.config.model import Stacks
from tests.unit.config.conftest import Load, Refused

HEAD = (
    "probes: [{name: p, aggregate: kernel, returns: int,"
    " fetch: {n: '$arg1:u32', s: '+0($arg2):string', hitcount: '$arg3:u8'}, "
)
POWERS = "the kernel's buckets are powers of 2 of the value:"


@pytest.mark.parametrize(
    "metric",
    [
        "{counter: a_total}",
        "{counter: a_total, value: n, scale: 512, labels: [comm, cpu]}",
        "{counter: a_total, value: return, labels: {errno: {field: return, decode: errno}, tid: tid}}",
        "{counter: a_total, where: 'n > 3 && comm == \"x\" && return < 0', labels: [n]}",
        "{histogram: a, value: n}",
        "{histogram: a, value: n, buckets: [-5, 0, 1, 2, 1024], labels: [comm, n]}",
        "{histogram: a, value: n, buckets: {linear: {start: 4095, width: 4096, count: 200}}}",
        "{histogram: a, value: n, buckets: [1, 3, 4, 10]}",
        "{histogram: a, value: n, scale: 1.0e-3, buckets: [0.001, 0.512, 1.024]}",
        "{histogram: a, value: n, scale: 1024, buckets: {exp2: {min: 1024, count: 20}}}",
        "{histogram: a, value: n, scale: 0.125, buckets: [0.125, 8], native: true}",
        "{histogram: a, value: n, scale: 1.0e-9, buckets: [1.0e-9, 2251799.813685248, 9223372036.854775808]}",
    ],
)
def test_what_the_kernel_can_do(config: Load, metric: str) -> None:
    [probe] = config(f"{HEAD}attach: 'kretprobe:f', metrics: [{metric}]}}]").probes
    assert probe.aggregate == "kernel"
    assert len(probe.metrics) == 1


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("gauge: ¦a, value: n", "gauge: the kernel keeps no last value where it aggregates"),
        ("counter: a_total, value: ¦cpu", "value: the kernel adds up what an event carries"),
        ("counter: a_total, labels: [comm, ¦s]", "labels[1]: the kernel aggregates by numbers and `comm`"),
        ("counter: a_total, labels: {a: ¦pid}", "labels.a: the kernel does not aggregate by 'pid'"),
        ("counter: a_total, labels: {a: {field: ¦caller}}", "labels.a.field: the kernel does not aggregate"),
        ("counter: a_total, labels: [¦symbol]", "labels[0]: the kernel does not aggregate by 'symbol'"),
        ("counter: a_total, ¦labels: [comm, cpu, n]", "labels: the kernel aggregates by 2 labels at most"),
        ("histogram: a, value: n, ¦buckets: [1, 3, 4, 1024]", f"buckets: {POWERS} 3 is no"),
        ("histogram: a, value: n, ¦buckets: [3000, 5000]", f"buckets: {POWERS} 3000 and 5000 are no"),
        (
            "histogram: a, value: n, ¦buckets: {linear: {start: 4096, width: 4096, count: 20}}",
            f"buckets: {POWERS} 12288, 20480 and 24576 and others are not powers of 2,"
            " and equal steps end one below a multiple, 1024 at most",
        ),
        ("histogram: a, value: n, scale: 1.0e-300, ¦buckets: [1.0e+10]", f"buckets: {POWERS} 1e+10 is no"),
        (
            "histogram: a, value: n, buckets: [9, 19, 29], native: ¦true",
            "native: a native histogram needs powers of 2",
        ),
        (
            "histogram: a, value: n, scale: 0.001, buckets: [0.512], native: ¦true",
            "native: the kernel's buckets are powers of 2 of the value, a native histogram's of the product",
        ),
        ("counter: a_total, where: 'n > 1 && ¦pid == 3'", "where: the kernel does not know 'pid'"),
        ("counter: a_total, value: ¦hitcount", "value: 'hitcount' is a word of the kernel's hist triggers"),
    ],
)
def test_what_it_cannot(refused: Refused, metric: str, expected: str) -> None:
    refused(f"{HEAD}attach: 'kretprobe:f', metrics: [{{{metric}}}]}}]", f"probes[0].metrics[0].{expected}")


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("aggregate: kernel, stack: ¦true", "stack: the kernel keeps no stacks where it aggregates"),
        ("aggregate: kernel, ¦return_buckets: [1, 5000]", f"return_buckets: {POWERS} 5000 is no"),
        ("aggregate: ¦hist", "aggregate: "),
    ],
)
def test_a_probe(refused_probe: Refused, rest: str, expected: str) -> None:
    refused_probe(f"attach: 'kretprobe:f', {rest}", expected)


NANOSECONDS = "the kernel's buckets are powers of 2 of nanoseconds:"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("¦outstanding: {older_than: 1s}", "outstanding: the kernel does not tell what is open"),
        ("¦duration_buckets: [0.001, 7]", f"duration_buckets: {NANOSECONDS} 0.001 and 7 s are not"),
        (
            "metrics: [{histogram: a_seconds, value: duration, ¦buckets: [1.0e-7, 1]}]",
            f"metrics[0].buckets: {NANOSECONDS} 1e-07 and 1 s are not powers of 2,"
            " and equal steps begin at 0, 1024 at most",
        ),
        (
            "metrics: [{histogram: a_seconds, value: duration, native: ¦true}]",
            "metrics[0].native: the kernel's buckets are powers of 2 of nanoseconds, not of seconds",
        ),
    ],
)
def test_a_call(refused_probe: Refused, rest: str, expected: str) -> None:
    refused_probe(f"attach: 'call:f', aggregate: kernel, {rest}", expected)


def test_a_call_that_the_kernel_joins(config: Load) -> None:
    keys = "attach: 'call:f', returns: int, aggregate: kernel"
    metrics = "{histogram: a_seconds, value: duration}, {counter: took_seconds_total, value: duration}"
    [probe] = config(
        f"global: {{native_histograms: true}}\nprobes: [{{name: p, {keys}, metrics: [{metrics}]}}]"
    ).probes
    assert (probe.aggregate, probe.native, probe.duration_buckets) == ("kernel", False, ())
    bounds = probe.metrics[0].buckets or ()
    assert (probe.metrics[0].native, bounds[0], bounds[-1]) == (False, 1.024e-06, 17.179869184)
    assert config(f"probes: [{{name: p, {keys}}}]").probes[0].duration_buckets == bounds


@pytest.mark.parametrize(
    ("rest", "where", "compared"),
    [
        ("attach: 'kretprobe:f'", "return < 0", "the whole register"),
        ("attach: 'kretprobe:f', returns: ptr", "return < 0", "the whole register"),
        ("attach: 'tracepoint:a:b', fetch: {n: n}", "n > 1.5", "no fractions"),
    ],
)
def test_what_the_kernel_compares(refused_probe: Refused, rest: str, where: str, compared: str) -> None:
    metrics = f"[{{counter: a_total, where: ¦'{where}'}}]"
    expected = f"metrics[0].where: the kernel compares {compared}"
    refused_probe(f"{rest}, aggregate: kernel, metrics: {metrics}", expected)


def test_the_rest_of_the_configuration_is_free(config: Load) -> None:
    [probe] = config(
        "probes: [{name: p, attach: 'kretprobe:f', aggregate: events, stack: true, return_buckets: [3]}]"
    ).probes
    assert probe.aggregate == "events"
    assert config("probes: [{name: p, attach: 'kprobe:f'}]").probes[0].aggregate == "auto"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            "attach: 'kprobe:f', stacks: {weigh: ¦duration}",
            "stacks.weigh: there is no 'duration' at kprobe:f",
        ),
        ("attach: 'kprobe:f', stacks: {weigh: ¦size}", "stacks.weigh: there is no field 'size' at kprobe:f"),
        ("attach: 'kprobe:f', stacks: {weigh: ¦tid}", "stacks.weigh: the sum of 'tid' says nothing"),
        (
            "attach: 'kprobe:f', fetch: {n: '$arg1:u8'}, let: {m: n + 1}, stacks: {weigh: ¦m}",
            "stacks.weigh: 'm' is computed by the agent, and the kernel adds up",
        ),
        (
            "attach: 'kprobe:f', fetch: {n: '+0($arg1):string'}, stacks: {weigh: ¦n}",
            "stacks.weigh: 'n' is not a number to add up",
        ),
        ("attach: 'kprobe:f', stacks: {max: ¦0}", "stacks.max:"),
        ("attach: 'kprobe:f', stacks: {¦users: true}", "stacks.users:"),
        (
            "attach: 'kprobe:f', aggregate: kernel, stacks: {user: ¦true}",
            "stacks.user: the kernel counts no stacks of programs where it aggregates",
        ),
        (
            "attach: 'kprobe:f', aggregate: kernel, fetch: {n: '$arg1:u8'}, filter: n > 1, ¦stacks: {}",
            "stacks: the kernel does not filter stacks where it aggregates",
        ),
    ],
)
def test_stacks_that_cannot_be_counted(refused: Refused, keys: str, expected: str) -> None:
    refused(f"probes: [{{name: p, {keys}}}]", f"probes[0].{expected}")


def test_stacks(config: Load) -> None:
    first, second = config(
        "probes: [{name: p, attach: 'kprobe:f', stacks: {}},"
        " {name: q, attach: 'call:f', stacks: {weigh: duration, max: 7, user: true}}]"
    ).probes
    assert (first.stacks, second.stacks) == (Stacks(), Stacks("duration", 7, user=True))
