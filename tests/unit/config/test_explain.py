"""config.explain: each kind of mistake in one value is reported in words, at its place."""

import pytest

from tests.unit.config.conftest import PROBE, Problems, Refused, marked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("¦[a]", "(file): must be a mapping of KEY: VALUE, and not a list"),
        ("--- ¦~", "(file): must be a mapping of KEY: VALUE, and not nothing"),
        ("probes:¦", "probes: must be a list, and not nothing"),
        ("¦probes: {a: 1}", "probes: must be a list, and not a mapping"),
        ("probes: [¦3]", "probes[0]: must be a mapping of KEY: VALUE, and not 3"),
        ("¦prob: []", "prob: unknown key 'prob', did you mean 'probes'?"),
        ("1: ¦x", "[1]: a key here is text"),
        ("probes: [¦{name: p}]", "probes[0].attach: the key 'attach' is missing"),
        ("probes: [¦{definition: ~, name: n}]", "probes[0].attach: the key 'attach' is missing"),
        ("probes: [¦{attach: 'kprobe:f'}]", "probes[0].name: the key 'name' is missing"),
        (f"{PROBE}global: ¦on", "global: must be a mapping of KEY: VALUE, and not the text 'on'"),
        # Keys of another mapping.
        (f"{PROBE}¦max_series: 3", "max_series: unknown key 'max_series': write it under `global`"),
        (f"{PROBE}¦attach: 'kprobe:g'", "attach: unknown key 'attach': write it under `probes`, as in"),
    ],
)
def test_one_value(refused: Refused, text: str, expected: str) -> None:
    refused(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("enabled: ¦on", "enabled: must be true or false, and not the text"),
        ("optional: ¦1", "optional: must be true or false, and not 1"),
        ("help: ¦3", "help: must be text, and not 3"),
        (f"help: ¦{'x' * 1001}", "help: must have at most 1000 characters"),
        ("¦filtr: a", "filtr: unknown key 'filtr', did you mean 'filter'?"),
        ("filter: 'a >¦'", "filter: a number or a string in quotes must"),
        ("returns: ¦foo", "returns: the return type 'foo' is not known"),
        ("¦fetch: [a]", "fetch: must be a mapping of KEY: VALUE"),
        ("fetch: {a: ¦3}", "fetch.a: what is fetched is a text as sk->sk_protocol or $arg1:u32, a list"),
        ("fetch: {¦a-b: $arg1}", "fetch.a-b: 'a-b' is not a name to use here"),
        ("¦metrics: {}", "metrics: must be a list, and not a mapping"),
        # Keys of another mapping.
        ("¦where: return < 0", "where: unknown key 'where': write it under `metrics`, as in"),
        ("¦labels: [comm]", "labels: unknown key 'labels': write it under `metrics`, as in"),
        ("¦pair: {}", "pair: unknown key 'pair': write it under `attach`, as in attach: {pair:"),
        ("¦from: 'kprobe:g'", "from: unknown key 'from': write it under `attach`, as in"),
        ("¦namespace: x", "namespace: unknown key 'namespace': write it under `global`"),
    ],
)
def test_one_value_of_a_probe(refused_probe: Refused, text: str, expected: str) -> None:
    refused_probe(f"attach: 'kprobe:f', {text}", expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("¦lables: 3", "lables: unknown key 'lables', did you mean 'labels'?"),
        ("labels: ¦3", "labels: labels are a list of fields"),
        ("labels: [¦3]", "labels[0]: must be text, and not 3"),
        ("labels: {a: ¦3}", "labels.a: a label is the name of a field, or {field: NAME"),
        ("labels: {¦a: {}}", "labels.a.field: the key 'field' is missing"),
        ("labels: {¦a-b: comm}", "labels.a-b: 'a-b' is not a name to use here"),
        ("labels: {¦1: comm}", "labels[1]: must be text, and not 1"),
        ("labels: {labels: {field: comm, ¦x: 1}}", "labels.labels.x: unknown key 'x', there is"),
        ("value: ¦3", "value: must be text, and not 3"),
        # Keys of another mapping.
        ("¦decode: errno", "decode: unknown key 'decode': write it under `labels`, as in"),
        ("¦filter: a", "filter: unknown key 'filter': write it beside `attach`, it is the"),
        ("labels: {a: {field: comm, ¦where: a}}", "labels.a.where: unknown key 'where': write it"),
    ],
)
def test_one_value_of_a_metric(refused_probe: Refused, text: str, expected: str) -> None:
    metric = f"{{counter: a_total, {text}}}"
    refused_probe(f"attach: 'kprobe:f', metrics: [{metric}]", f"metrics[0].{expected}")


@pytest.mark.parametrize(
    ("kinds", "given"),
    [
        ("gauge: b", "are counter and gauge"),
        ("gauge: b, histogram: c", "are counter and histogram and gauge"),
    ],
)
def test_a_metric_is_of_one_kind(problems: Problems, kinds: str, given: str) -> None:
    metric = f"¦{{counter: a_total, {kinds}}}"
    text, place = marked(f"probes: [{{name: p, attach: 'kprobe:f', metrics: [{metric}]}}]")
    [problem] = problems(text)
    assert problem.startswith(f"{place}: probes[0].metrics[0]: a metric has exactly one of ")
    assert problem.endswith(f"here {given}")


@pytest.mark.parametrize(
    ("attach", "expected"),
    [
        ("¦kprobe", "attach: 'kprobe' names no kind, write it as KIND:NAME"),
        ("¦'krpobe:f'", "attach: unknown kind 'krpobe', did you mean 'kprobe'?"),
        ("'kprobe:f¦!'", "attach: a function's name cannot have '!' here"),
        ("'kretprobe:f¦+8'", "attach: a return has no offset"),
        ("'tracepoint:a¦'", "attach: a tracepoint is named by its system and its event"),
        ("['kprobe:f', ¦3]", "attach[1]: an alternative is a text as kprobe:vfs_read"),
        ("['kprobe:f', {to: 'kprobe:¦'}]", "attach[1].to: the name of the function is missing"),
        ("[{to: 'kprobe:f'}, ¦{}]", "attach[1]: attach has `to` or `pair`, one of them"),
        ("[{to: 'kprobe:f', ¦name: x}]", "attach[0].name: unknown key 'name': write it beside"),
        ("¦3", "attach: attach is a text as kprobe:vfs_read, {to: …}, {pair: …}, or a list of these"),
        (r'¦"kprobe:f\nkprobe:g"', "attach: a newline cannot be written to the kernel"),
        (r'¦"kprobe:f\tg"', r"attach: a function's name cannot have '\t' here"),
        ("'kprobe:f¦#g'", "attach: a '#' cannot be written to the kernel"),
        ("'kprobe:f¦ g'", "attach: a function's name cannot have ' ' here"),
        ("'tracepoint:a:¦../b'", "attach: a tracepoint event's name cannot have '.' here"),
    ],
)
def test_attach(refused_probe: Refused, attach: str, expected: str) -> None:
    refused_probe(f"attach: {attach}", expected)


def test_an_empty_list_of_alternatives(problems: Problems) -> None:
    [problem] = problems("probes: [{name: p, attach: []}]")
    assert problem == "1:20: probes[0].attach: is empty: write at least one"


def test_many_problems_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    text = """\
global:
  namespace: python
  max_series: on
probes:
  - name: Bad
    attach: kprobe:f
    export: true
    metrics:
      - gauge: x
      - {counter: y, labels: [nope]}
  - name: twice
    attach: kprobe:f
    filter: x = 1
  - name: twice
    attach: kprobe:f
    name: thrice
"""
    assert [problem.split(": ")[:2] for problem in problems(text)] == [
        ["2:14", "global.namespace"],
        ["3:15", "global.max_series"],
        ["5:11", "probes[0].name"],
        ["7:13", "probes[0].export"],
        ["13:15", "probes[1].filter"],
        ["14:11", "probes[2].name"],
        ["16:5", "probes[2].name"],
    ]
