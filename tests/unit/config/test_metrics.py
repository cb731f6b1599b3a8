"""config.metrics: metrics as written, and checked against the fields of every alternative."""

from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import RETURN_BUCKETS, Decode, Label, Metric
from kprobe_exporter.labels import DECODERS
from tests.unit.config.conftest import Load, Problems, Refused


def metric(config: Load, text: str, rest: str = "") -> Metric:
    probe = f"{{name: p, attach: 'kretprobe:f', metrics: [{text}], {rest}}}"
    [found] = config(f"probes: [{probe}]").probes[0].metrics
    return found


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("{}", ()),
        ("[]", ()),
        ("[cpu, comm]", (Label("comm", "comm"), Label("cpu", "cpu"))),
        ("{where: cpu}", (Label("where", "cpu"),)),
        ("{where: {field: cpu}}", (Label("where", "cpu"),)),
        ("{e: {field: return, decode: errno}}", (Label("e", "return", (Decode("errno"),)),)),
        (
            "{e: {field: return, decode: {map: {0: ok}}}}",
            (Label("e", "return", (Decode("map", {0: "ok"}),)),),
        ),
        (
            "{e: {field: return, decode: [{map: {0: ok}}, errno]}}",
            (Label("e", "return", (Decode("map", {0: "ok"}), Decode("errno"))),),
        ),
        ("[exe, uid]", (Label("exe", "tid", (Decode("exe"),)), Label("uid", "tid", (Decode("uid"),)))),
        (
            "{user: {field: uid, decode: [{map: {0: root}}]}}",
            (Label("user", "tid", (Decode("uid"), Decode("map", {0: "root"}))),),
        ),
        ("{other: {field: cpu, decode: exe}}", (Label("other", "cpu", (Decode("exe"),)),)),
    ],
)
def test_labels(config: Load, labels: str, expected: tuple[Label, ...]) -> None:
    assert metric(config, f"{{counter: a_total, labels: {labels}}}").labels == expected


@pytest.mark.parametrize(
    "target",
    [
        "kprobe:do_exit",
        "uprobe:/bin/sh:main",
        "syscall:read",
        "tracepoint:syscalls:sys_enter_read",
        "tracepoint:raw_syscalls:sys_exit",
        "call:do_exit",
    ],
)
def test_exit_code_refused_before_an_exit(refused_probe: Refused, target: str) -> None:
    probe = f"attach: '{target}', metrics: [{{counter: ends_total, labels: [¦exit_code]}}]"
    refused_probe(probe, "metrics[0].labels[0]: exit_code is known once a thread ends, which none has done")


def test_exit_code_hidden_by_a_field(config: Load) -> None:
    fetched = "fetch: {exit_code: $arg1}, metrics: [{counter: a_total, labels: [exit_code]}]"
    [probe] = config(f"probes: [{{name: p, attach: 'kprobe:do_exit', {fetched}}}]").probes
    assert probe.metrics[0].labels == (Label("exit_code", "exit_code"),)


def test_fact_of_a_process_hidden_by_a_field(config: Load) -> None:
    fetched = "fetch: {uid: $arg1}, metrics: [{counter: a_total, labels: [uid]}]"
    [probe] = config(f"probes: [{{name: p, attach: 'kprobe:f', {fetched}}}]").probes
    assert probe.metrics[0].labels == (Label("uid", "uid"),)


@pytest.mark.parametrize(
    ("labels", "at"),
    [
        ("[¦argv]", "labels[0]: argv"),
        ("{a: ¦age}", "labels.a: age"),
        ("{¦a: {field: tid, decode: argv}}", "labels.a: argv"),
    ],
)
def test_fact_of_a_process_refused_as_label(refused_probe: Refused, labels: str, at: str) -> None:
    probe = f"attach: 'kprobe:f', metrics: [{{counter: calls_total, labels: {labels}}}]"
    refused_probe(probe, f"metrics[0].{at} differs for nearly every process")


@pytest.mark.parametrize(
    ("text", "rest", "expected"),
    [
        ("{counter: a_total}", "", None),
        ("{gauge: a, value: return}", "", None),
        ("{histogram: a, value: return}", "", RETURN_BUCKETS),
        ("{histogram: a, value: return}", "return_buckets: [1, 2]", (1.0, 2.0)),
        ("{histogram: a, value: cpu}", "return_buckets: [1, 2]", RETURN_BUCKETS),
        ("{histogram: a, value: cpu, buckets: [1, 5]}", "return_buckets: [1, 2]", (1.0, 5.0)),
        ("{histogram: a, value: cpu, buckets: {exp2: {min: 1, count: 2}}}", "", (1.0, 2.0)),
    ],
)
def test_buckets(config: Load, text: str, rest: str, expected: tuple[float, ...] | None) -> None:
    assert metric(config, text, rest).buckets == expected


NATIVES = (
    ("counter: a_total", False),
    ("histogram: a, value: return", None),
    ("histogram: a, value: return, native: false", False),
    ("histogram: a, value: return, native: true", True),
)


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize(("text", "native"), NATIVES)
def test_which_histograms_are_native(config: Load, text: str, native: bool | None, everywhere: bool) -> None:
    settings = f"global: {{native_histograms: {str(everywhere).lower()}}}\n"
    probes = f"probes: [{{name: p, attach: 'kretprobe:f', metrics: [{{{text}}}]}}]"
    [probe] = config(settings + probes).probes
    assert probe.native == everywhere
    assert probe.metrics[0].native == (everywhere if native is None else native)


def test_where_the_kernel_counts_only_what_fits_is_native(config: Load) -> None:
    metrics = (
        "[{histogram: a, value: return, scale: 0.001, buckets: [0.512]}, {histogram: sizes, value: return}]"
    )
    probe = f"{{name: p, aggregate: kernel, attach: 'kretprobe:f', returns: int, metrics: {metrics}}}"
    [made] = config(f"global: {{native_histograms: true}}\nprobes: [{probe}]").probes
    assert [metric.native for metric in made.metrics] == [False, True]


def test_help_is_one_line_and_never_missing(config: Load) -> None:
    assert metric(config, "{counter: open_errors_total}").help == "Open errors, from kernel events."
    assert metric(config, "{counter: a_total, help: 'a\n\n  b '}").help == "a b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{counter: ¦a}", ".counter: a counter's name must end in _total"),
        ("¦{gauge: a}", ".value: a gauge needs `value`"),
        ("¦{histogram: a}", ".value: a histogram needs `value`"),
        ("{counter: a_total, ¦buckets: [1]}", ".buckets: only a histogram has buckets"),
        ("{counter: a_total, native: ¦true}", ".native: only a histogram can be a native one, not a counter"),
        ("{counter: a_total, value: ¦comm}", ".value: 'comm' is text at kretprobe:f: this needs"),
        ("{counter: a_total, value: ¦caller}", ".value: 'caller' is text at kretprobe:f"),
        ("{counter: a_total, value: ¦text}", ".value: 'text' is text at kretprobe:f"),
        ("{counter: a_total, value: ¦nubmer}", ".value: there is no field 'nubmer' at kretprobe:f"),
        ("{counter: a_total, scale: ¦2}", ".scale: there is no `value` to multiply"),
        ("{histogram: a, value: cpu, scale: ¦2}", ".scale: the usual buckets do not suit a scaled value"),
        ("{gauge: a, value: cpu, scale: ¦0}", ".scale: must be more than 0"),
        ("{gauge: a, value: cpu, scale: ¦-1}", ".scale: must be more than 0"),
        ("{gauge: a, value: cpu, scale: ¦.nan}", ".scale: must be at most 1e+300"),
        ("{gauge: a, value: cpu, scale: ¦.inf}", ".scale: must be at most 1e+300"),
        ("{gauge: a, value: cpu, scale: ¦'2'}", ".scale: must be a number, and not the text '2'"),
        ("{counter: a_total, where: ¦3}", ".where: must be text, and not 3"),
        ("{counter: a_total, where: ¦''}", ".where: the expression is empty"),
        ("{counter: a_total, where: 'cpu ¦= 1'}", ".where: after 'cpu' must come an operator"),
        ("{counter: a_total, where: 'cpu == 1 && ¦nope > 3'}", ".where: there is no field 'nope' at"),
        ("{counter: a_total, where: ¦'duration > 0.5'}", ".where: there is no 'duration' at"),
        ("{counter: a_total, where: ¦comm == 3}", ".where: 'comm' is a string, put 3 in quotes"),
        ("{counter: a_total, where: ¦'tid == \"x\"'}", ".where: 'tid' is a number, take the quotes"),
        ("{counter: a_total, where: ¦number == 0.5}", ".where: 'number' is a whole number"),
        ("{counter: a_total, where: ¦number == -1}", ".where: 'number' is unsigned"),
        ("{counter: a_total, where: ¦'text < 3'}", ".where: 'text' is a string"),
        ("{counter: a_total, where: ¦common_type == 3}", ".where: there is no field 'common_type' at"),
        ("{counter: a_total, labels: [comm, ¦comm]}", ".labels[1]: the label 'comm' is there"),
        ("{counter: a_total, labels: [¦nope]}", ".labels[0]: there is no field 'nope' at"),
        ("{counter: a_total, labels: {a: ¦nope}}", ".labels.a: there is no field 'nope' at"),
        ("{counter: a_total, labels: {a: {field: ¦nope}}}", ".labels.a.field: there is no field"),
        ("{counter: a_total, labels: {¦le: comm}}", ".labels.le: the label name le is reserved"),
        ("{counter: a_total, labels: {¦__a: comm}}", ".labels.__a: the label name __a is reserved"),
        ("{counter: a_total, labels: {¦aB: comm}}", ".labels.aB: write the label in snake_case, a_b"),
    ],
)
def test_refused(refused_probe: Refused, text: str, expected: str) -> None:
    fetch = "{number: '$arg1:u8', text: '+0($arg2):string'}"
    refused_probe(f"attach: 'kretprobe:f', fetch: {fetch}, metrics: [{text}]", f"metrics[0]{expected}")


def test_a_name_that_a_field_cannot_have_is_not_offered(problems: Problems) -> None:
    text = 'probes: [{name: p, attach: "kprobe:f", metrics: [{counter: a_total, labels: {a: "\\n"}}]}]'
    [problem] = problems(text)
    assert problem.endswith(r"labels.a: there is no field '\n' at kprobe:f")


@pytest.mark.parametrize(
    ("attach", "field", "without"),
    [
        ("['kretprobe:f', 'kprobe:f']", "return", "kprobe:f"),
        ("['kretprobe:f', 'kprobe:f', 'tracepoint:a:b']", "caller", "kprobe:f or tracepoint:a:b"),
        ("['kprobe:f', 'tracepoint:a:b']", "symbol", "tracepoint:a:b"),
        ("[{to: 'kretprobe:f', returns: void}]", "return", "kretprobe:f"),
        ("[{to: 'kprobe:f', fetch: {a: $arg1}}, 'kprobe:g']", "a", "kprobe:g"),
    ],
)
def test_every_alternative_must_yield_the_fields(
    refused_probe: Refused, attach: str, field: str, without: str
) -> None:
    metrics = f"[{{counter: a_total, labels: [¦{field}]}}]"
    expected = f"metrics[0].labels[0]: there is no field {field!r} at {without}"
    refused_probe(f"attach: {attach}, metrics: {metrics}", expected)


@pytest.mark.parametrize(
    "rest",
    [
        "attach: 'kretprobe:f', metrics: [{counter: a_total, labels: [comm, tid, pid, cpu, return,"
        " caller, symbol]}]",
        "attach: 'kprobe:f', metrics: [{counter: a_total, labels: [symbol]}]",
        "attach: 'tracepoint:a:b', fetch: {return: ret},"
        " metrics: [{gauge: a, value: return, labels: [return]}]",
        "attach: 'tracepoint:a:b', fetch: {x: bytes}, metrics: [{counter: a_total, value: x}]",
        "attach: 'kretprobe:f', returns: ptr,"
        " metrics: [{counter: a_total, labels: {e: {field: return, decode: errno}}}]",
    ],
)
def test_accepted(problems: Problems, rest: str) -> None:
    assert problems(f"probes: [{{name: p, {rest}}}]") == []


@pytest.mark.parametrize(
    ("where", "rest"),
    [
        ('return < 0 && comm ~ "a*" && !(tid == 1 || pid & 2)', ""),
        ('caller == "f" && symbol != "g" && cpu >= 1', ""),
        # An error is negative in the agent, even where the register is read as a pointer.
        ("return == -2", "returns: ptr"),
        ('s == "f+0x0/0x8"', "fetch: {s: '$arg1:symbol'}"),
    ],
)
def test_where(config: Load, where: str, rest: str) -> None:
    assert metric(config, f"{{counter: a_total, where: '{where}'}}", rest).where == where


def test_scale(config: Load) -> None:
    assert metric(config, "{counter: a_total, value: return}").scale == 1.0
    assert metric(config, "{counter: a_total, value: return, scale: 512}").scale == 512.0
    assert metric(config, "{histogram: a, value: return, scale: 1e-9, buckets: [1]}").scale == 1e-9


def test_where_must_suit_every_alternative(problems: Problems) -> None:
    attach = (
        "['kretprobe:f', {to: 'kretprobe:g', fetch: {a: '+0($arg1):string'}},"
        " {to: 'tracepoint:a:b', fetch: {a: b}}]"
    )
    probe = (
        f"{{name: p, attach: {attach}, fetch: {{a: $arg1}}, metrics: [{{counter: a_total, where: {{}}}}]}}"
    )
    [problem] = problems(f"probes: [{probe.replace('{}', 'a == 3')}]")
    assert problem.endswith("where: 'a' is a string, put 3 in quotes (at kretprobe:g)")
    [caller, text] = problems(f"probes: [{probe.replace('{}', 'caller == x')}]")
    assert "where: there is no field 'caller' at tracepoint:a:b" in caller
    assert "where: there is no field 'x'" in text
    assert text.endswith("; a string is put in quotes")
    [problem] = problems(f"probes: [{probe.replace('{}', 'return == 3')}]")
    assert "where: there is no field 'return' at tracepoint:a:b" in problem


@pytest.mark.parametrize(("form", "label"), [("[{}]", "l{}"), ("{{{}}}", "l{}: cpu")])
def test_labels_are_bounded(problems: Problems, form: str, label: str) -> None:
    labels = form.format(", ".join(label.format(i) for i in range(33)))
    [problem] = problems(
        f"probes: [{{name: p, attach: 'kprobe:f', metrics: [{{counter: a_total, labels: {labels}}}]}}]"
    )
    assert problem.endswith("labels: is too long: 32 are the most")


def test_a_pointer_measures_nothing(problems: Problems) -> None:
    [problem] = problems(
        "probes: [{name: p, attach: 'kretprobe:f', returns: ptr, metrics: [{histogram: a, value: return}]}]"
    )
    assert problem.endswith("kretprobe:f returns a pointer, which measures nothing")


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("", RETURN_BUCKETS),
        ("return_buckets: none", ()),
        ("filter: return < 0", ()),
        ("filter: return <= 0 && tid != 3", ()),
        ("filter: return == 0 || return == -2 || return < -9", ()),
        ("filter: '!(return >= 0)'", RETURN_BUCKETS),
        ("filter: return < 0 || tid == 3", RETURN_BUCKETS),
        ("filter: return != 0", RETURN_BUCKETS),
        ("filter: return & 4", RETURN_BUCKETS),
        ("filter: return < 0, return_buckets: [1, 2]", (1.0, 2.0)),
    ],
)
def test_there_is_no_histogram_of_return_values_that_cannot_fill(
    config: Load, rest: str, expected: tuple[float, ...]
) -> None:
    [probe] = config(f"probes: [{{name: p, attach: 'call:f', {rest}}}]").probes
    assert probe.return_buckets == expected


def test_it_is_there_if_one_alternative_can_fill_it(config: Load) -> None:
    ways = "[{to: 'kretprobe:f', filter: return < 0}, 'kretprobe:g']"
    [probe] = config(f"probes: [{{name: p, attach: {ways}}}]").probes
    assert probe.return_buckets == RETURN_BUCKETS


# Warnings about what is valid and probably not meant. Without a reason there is none.


def warnings(directory: Path, probe: str) -> list[str]:
    file = directory / "c.yaml"
    otlp = "otlp: {}\n" if "export" in probe else ""
    file.write_text(f"{otlp}probes: [{{name: p, {probe}}}]")
    return [text.partition("warning: ")[2] for text in load([file], DECODERS).warnings]


def connect(fetch: str, port: str) -> str:
    """Return a probe that has the address and the port of a connection as labels."""
    labels = f"{{to: {{field: to, decode: ip}}, port: {port}}}"
    return (
        f"attach: 'call:tcp_v4_connect', fetch: {{to: '+4(uaddr):u32', port: '{fetch}'}},"
        f" metrics: [{{counter: a_total, labels: {labels}}}]"
    )


def test_a_port_beside_an_address(tmp_path: Path) -> None:
    assert warnings(tmp_path, connect("+2(uaddr):u16", "port")) == [
        "'port' has 16 bits and lies beside an address: if it is a port, it is in network order:"
        " {field: port, decode: port}"
    ]


@pytest.mark.parametrize(
    ("fetch", "port"),
    [
        ("+2(uaddr):u16", "{field: port, decode: port}"),
        ("+2(uaddr):u16", "{field: port, decode: hex}"),
        ("+8(uaddr):u32", "port"),
        ("+2(sk):u16", "port"),
        ("$arg3:u16", "port"),
    ],
)
def test_what_is_no_port_or_decoded(tmp_path: Path, fetch: str, port: str) -> None:
    assert warnings(tmp_path, connect(fetch, port)) == []


SECONDS = "'duration' is in seconds: if they are meant, write {0}s, else {0}ms or {0}us"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("duration > 1000", [SECONDS.format(1000)]),
        ("n == 1 && duration >= 300.5", [SECONDS.format(300.5)]),
        ("duration < 0", ["'duration' is above 0, so this is never true"]),
        ("duration == 0", ["'duration' is above 0, so this is never true"]),
        ("duration > -1", ["'duration' is above 0, so this is always true"]),
        ("duration > 1000s", []),
        ("duration > 0", []),
        ("duration > 10ms && n > 1000", []),
    ],
)
def test_a_duration_in_another_unit(tmp_path: Path, written: str, expected: list[str]) -> None:
    call = "attach: 'call:f', fetch: {n: '$arg1:u32'}"
    pair = "attach: {pair: {from: {to: 'kprobe:f', fetch: {n: '$arg1:u32'}}, to: 'kprobe:g', key: tid}}"
    for probe in (
        f"{call}, filter: '{written}'",
        f"{pair}, filter: '{written}'",
        f"{call}, metrics: [{{counter: a_total, where: '{written}'}}]",
        f"{call}, export: {{as: span, where: '{written}'}}",
    ):
        assert warnings(tmp_path, probe) == expected


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("{field: cpu, decode: ¦name}", "'cpu' is built in, so the kernel has no words for it: name an enum"),
        ("{field: x, decode: ¦name}", "'x' is computed, so the kernel has no words for it: name an enum"),
        (
            "{field: return, decode: [errno, ¦name]}",
            "without an enum, name takes the field itself: let it be",
        ),
    ],
)
def test_name_takes_a_field_of_the_kernels(refused_probe: Refused, label: str, expected: str) -> None:
    metrics = f"metrics: [{{counter: a_total, labels: {{l: {label}}}}}]"
    path = "metrics[0].labels.l.decode" + ("[1]" if "[" in label else "")
    refused_probe(f"attach: 'kretprobe:f', let: {{x: return + 1}}, {metrics}", f"{path}: {expected}")


@pytest.mark.parametrize("field", ["cpu", "x", "return"])
def test_a_named_enum_takes_any_number(config: Load, field: str) -> None:
    label = f"{{field: {field}, decode: [errno, {{name: {{enum: state}}}}]}}"
    text = f"{{counter: a_total, labels: {{l: {label}}}}}"
    assert metric(config, text, "let: {x: return + 1}").labels[0].field == field


def test_the_caller_in_a_program_is_named_by_its_process(config: Load) -> None:
    text = "probes: [{name: p, attach: 'ATTACH', metrics: [{counter: x_total, labels: [caller]}]}]"
    for attach in ("uprobe:/bin/x:f", "uretprobe:/bin/x:f", "ucall:/bin/x:f"):
        [label] = config(text.replace("ATTACH", attach)).probes[0].metrics[0].labels
        assert label == Label("caller", "caller", (Decode("usym"),))
    [label] = config(text.replace("ATTACH", "kretprobe:f")).probes[0].metrics[0].labels
    assert label == Label("caller", "caller")


@pytest.mark.parametrize(
    ("attach", "label", "sentence"),
    [
        (
            "'uprobe:/bin/x:f'",
            "{field: caller, decode: [errno, usym]}",
            "usym takes an address itself: let it be",
        ),
        ("'kretprobe:f'", "{field: caller, decode: usym}", "'caller' is text at kretprobe:f: usym takes an"),
        ("['uprobe:/bin/x:f', 'kretprobe:f']", "caller", "'caller' is text at kretprobe:f: usym takes an"),
        ("'uprobe:/bin/x:0x10'", "caller", "there is no field 'caller'"),
        ("'usdt:/bin/x:a:b'", "caller", "there is no field 'caller'"),
    ],
)
def test_an_address_that_usym_does_not_take(
    problems: Problems, attach: str, label: str, sentence: str
) -> None:
    found = problems(
        f"probes: [{{name: p, attach: {attach}, metrics: [{{counter: x_total, labels: {{by: {label}}}}}]}}]"
    )
    assert [sentence in one for one in found] == [True]
