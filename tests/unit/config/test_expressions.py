"""`let`, and expressions as a metric's value: what is refused and where; what is planned of them."""

from collections.abc import Callable

import pytest

from kprobe_exporter.config.model import Config

Refused = Callable[[str, str], None]
FETCH = "fetch: {a: '$arg1:u64', b: '$arg2:s32', text: '+0($arg3):string'}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("let: {x: 'a + ¦nope'}", "let.x: there is no field 'nope' at kprobe:f"),
        (
            "let: {x: ¦'exit_code >> 8'}",
            "let.x: there is no 'exit_code' at kprobe:f: it is a fact for labels, and an expression needs "
            "kprobe:do_exit with "
            """fetch: {exit_code: "$arg1:s32"}""",
        ),
        ("let: {x: 'a + ¦text'}", "let.x: 'text' is a string"),
        ("let: {x: 'a / ¦0'}", "let.x: this divides by zero"),
        ("let: {x: 'a ¦b'}", "let.x: there must be an operator before 'b'"),
        ("let: {¦a: 'b + 1'}", "let.a: 'a' is fetched already"),
        ("let: {¦comm: 'b + 1'}", "let.comm: 'comm' is a built-in field"),
        ("let: {x: ¦b}", "let.x: this is another name of 'b' only: use that"),
        ("let: {x: ¦x + 1}", "let.x: this is computed of itself"),
        ("let: {x: ¦y + 1, y: x * 2}", "let.x: this is computed of itself"),
        ("let: {x: 3}", "let.x: must be text, and not 3"),
        ("metrics: [{counter: a_total, value: 'a ¦b'}]", "metrics[0].value: there must be an operator"),
        ("metrics: [{counter: a_total, value: 'a + ¦nope'}]", "metrics[0].value: there is no field 'nope'"),
        ("metrics: [{counter: a_total, value: ¦'text + 1'}]", "metrics[0].value: 'text' is a string"),
        ("let: {x: a + 1}, filter: ¦'x > 3'", "filter: there is no field 'x' to filter on"),
        ("let: {x: a + 1}, metrics: [{counter: a_total, where: ¦'x > 0.5'}]", "metrics[0].where: 'x' is a"),
        (
            "aggregate: kernel, let: {x: a + 1}, metrics: [{counter: a_total, labels: [¦x]}]",
            "metrics[0].labels[0]: the kernel computes nothing where it aggregates",
        ),
        (
            "aggregate: kernel, metrics: [{counter: a_total, value: ¦b + 1}]",
            "metrics[0].value: the kernel computes nothing where it aggregates",
        ),
        (
            "aggregate: kernel, metrics: [{counter: a_total, where: ¦b + 1 > 3}]",
            "metrics[0].where: the kernel compares fields with numbers and strings",
        ),
    ],
)
def test_refused(refused_probe: Refused, text: str, expected: str) -> None:
    if "let: {x: 3}" in text:
        text = text.replace("3", "¦3")
    refused_probe(f"attach: 'kprobe:f', {FETCH}, {text}", expected)


def test_a_let_may_stand_wherever_a_field_may(config: Callable[[str], Config]) -> None:
    metric = "{counter: a_total, value: x, labels: [y], where: x > y && comm == 'z'}"
    let = "let: {x: y * 2, y: a + b}"
    [probe] = config(f"probes: [{{name: p, attach: 'kprobe:f', {FETCH}, {let}, metrics: [{metric}]}}]").probes
    assert probe.let == {"x": "y * 2", "y": "a + b"}
    assert probe.metrics[0].value == "x"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("¦'pod > 3'", "'pod' is a string"),
        ("'a > 3 && ¦pod == 3'", "'pod' is a string"),
        ("¦'pood == \"x\"'", "there is no field 'pood' at kprobe:f, did you mean 'pod'?"),
        ("'pod == \"x\" && ¦text > 3'", "'text' is a string"),
    ],
)  # fmt: skip
def test_labels_in_where_are_texts(refused_probe: Refused, where: str, expected: str) -> None:
    labels = "{pod: {field: b, decode: errno}}"
    metric = f"{{counter: a_total, labels: {labels}, where: {where}}}"
    refused_probe(f"attach: 'kprobe:f', {FETCH}, metrics: [{metric}]", f"metrics[0].where: {expected}")


@pytest.mark.parametrize(
    ("where", "labels", "meant"),
    [
        ('pod == "x" && a > 3', "{pod: {field: b, decode: errno}}", {"pod"}),
        ('b == "x"', "{b: {field: b, decode: errno}}", {"b"}),
        ('b == "x" && b > 3', "{b: {field: b, decode: errno}}", set()),
        ("b > 3", "{b: {field: b, decode: errno}}", set()),
        ('text == "x"', "{text: {field: text, decode: {map: {a: b}}}}", set()),
        ('comm == "x"', "{comm: cpu}", set()),
        ('app == "x"', "{app: comm}", {"app"}),
    ],
)
def test_names_in_where_are_fields_or_labels(
    problems: Callable[[str], list[str]],
    config: Callable[[str], Config],
    where: str,
    labels: str,
    meant: set[str],
) -> None:
    metric = f"{{counter: a_total, labels: {labels}, where: '{where}'}}"
    text = f"probes: [{{name: p, attach: 'kprobe:f', {FETCH}, metrics: [{metric}]}}]"
    if where == 'b == "x" && b > 3':
        assert "'b' is a number" in problems(text)[0]
        return
    assert config(text).probes[0].metrics[0].selecting == meant


def test_the_kernel_compares_no_labels(refused_probe: Refused) -> None:
    labels = "{pod: {field: b, decode: errno}}"
    metric = f"{{counter: a_total, labels: {labels}, where: ¦'a > 3 || pod == \"x\"'}}"
    expected = "metrics[0].where: the kernel compares 'a', and the agent the labels: write && between them"
    refused_probe(f"aggregate: kernel, attach: 'kprobe:f', {FETCH}, metrics: [{metric}]", expected)
