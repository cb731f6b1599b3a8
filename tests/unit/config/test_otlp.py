"""config.otlp: where signals are sent and what is exported; secrets of the environment are never shown."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.config.checks import DISABLED, IDLE, LONE, NOWHERE
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Decode, Export, Label, Otlp
from kprobe_exporter.errors import ConfigError
from kprobe_exporter.plan import fields_used, wants_tgid
from kprobe_exporter.plan.metric import events_for
from tests.unit.config.conftest import DECODERS, PROBE, Load, Problems, Refused, load_files, marked, refusals

SECRET = "s3cr3t-of-the-environment"
SENT = "probes: [{name: p, attach: 'kprobe:f', export: log}]\n"


def otlp(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> Otlp:
    found = load_files(directory, environ, c=f"{SENT}otlp: {text}").otlp
    assert found is not None
    return found


# The destination.


def test_without_it_nothing_goes_anywhere(config: Load) -> None:
    assert config(PROBE).otlp is None
    assert config(PROBE).probes[0].export is None


def test_the_environment_alone(tmp_path: Path) -> None:
    assert otlp(tmp_path, "{}") == Otlp()


@pytest.mark.parametrize(
    ("value", "disabled"), [("true", True), (" TRUE", True), ("false", False), ("1", False), ("", False)]
)
def test_the_environment_disables_it(tmp_path: Path, value: str, disabled: bool) -> None:
    config = load_files(tmp_path, {"OTEL_SDK_DISABLED": value}, c=f"{SENT}otlp: {{}}")
    assert (config.otlp is None, config.probes[0].export is None) == (disabled, disabled)
    assert [DISABLED in warning for warning in config.warnings] == [True] * disabled
    assert load_files(tmp_path, {"OTEL_SDK_DISABLED": value}, c=PROBE).warnings == ()


def test_what_is_given(tmp_path: Path) -> None:
    text = """
  endpoint: https://collector.example:4318/otlp
  protocol: http/protobuf
  headers: {Authorization: "Bearer a b", x-scope-orgid: "1"}
  timeout: 1500ms
  compression: gzip
  certificate: /etc/ca.pem
  client_certificate: tls/agent.pem
  client_key: ../agent.key
  retry: 1m
  queue: 7
  max_per_second: 0.5
  metrics: {interval: 2m}
"""
    assert otlp(tmp_path, text) == Otlp(
        endpoint="https://collector.example:4318/otlp",
        protocol="http/protobuf",
        headers={"authorization": "Bearer a b", "x-scope-orgid": "1"},
        timeout=1.5,
        compression="gzip",
        certificate="/etc/ca.pem",
        client_certificate=f"{tmp_path}/tls/agent.pem",
        client_key=f"{tmp_path}/../agent.key",
        retry=60.0,
        queue=7,
        max_per_second=0.5,
        metrics=120.0,
    )


def test_an_interval_is_there_by_itself(tmp_path: Path) -> None:
    assert otlp(tmp_path, "{metrics: {}}").metrics == 60.0


@pytest.mark.parametrize(
    ("endpoint", "protocol"),
    [
        ("http://localhost", "http/protobuf"),
        ("http://localhost:4318/", "http/protobuf"),
        ("https://a-b.c_d.example./v1/x%20", "http/protobuf"),
        ("http://[::1]:4318", "http/protobuf"),
        ("http://10.0.0.1:65535", "grpc"),
        ("https://collector:4317/", "grpc"),
        ("collector:4317", "grpc"),
        ("[fe80::1]:4317", "grpc"),
    ],
)
def test_endpoints(tmp_path: Path, endpoint: str, protocol: str) -> None:
    assert otlp(tmp_path, f"{{endpoint: '{endpoint}', protocol: {protocol}}}").endpoint == endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("¦~", "otlp: must be a mapping of KEY: VALUE, and not nothing"),
        ("¦http://localhost:4318", "otlp: must be a mapping of KEY: VALUE, and not text"),
        ("{¦endpont: a}", "otlp.endpont: unknown key 'endpont', did you mean 'endpoint'?"),
        ("{endpoint: ¦4318}", "otlp.endpoint: must be text, and not 4318"),
        (
            "{endpoint: ¦''}",
            "otlp.endpoint: this is not an endpoint: write it as http://HOST:4318, or for gRPC",
        ),
        ("{endpoint: ¦localhost}", "otlp.endpoint: this is not an endpoint"),
        ("{endpoint: ¦ftp://localhost}", "otlp.endpoint: this is not an endpoint"),
        ("{endpoint: ¦'http://'}", "otlp.endpoint: this is not an endpoint"),
        ("{endpoint: ¦'http://a?b'}", "otlp.endpoint: this is not an endpoint"),
        ("{endpoint: ¦'http://a:b'}", "otlp.endpoint: this is not an endpoint"),
        ("{endpoint: ¦'http://a b'}", "otlp.endpoint: this is not an endpoint"),
        ("{endpoint: ¦'a:4317/b', protocol: grpc}", "otlp.endpoint: this is not an endpoint"),
        ("{endpoint: ¦'http://a:0'}", "otlp.endpoint: a port is a number from 1 to 65535"),
        ("{endpoint: ¦'http://a:65536'}", "otlp.endpoint: a port is a number from 1 to 65535"),
        ("{endpoint: ¦'http://u:p@a:1'}", "otlp.endpoint: a user and a password have no place here"),
        ("{endpoint: ¦'a:4317'}", "otlp.endpoint: over HTTP it is a URL, as http://HOST:4318; for gRPC add"),
        ("{endpoint: ¦'http://a/b', protocol: grpc}", "otlp.endpoint: gRPC takes no path"),
        ("{protocol: ¦http}", "otlp.protocol: must be 'http/protobuf' or 'grpc'"),
        ("{compression: ¦zstd}", "otlp.compression: must be 'gzip' or 'none'"),
        ("{timeout: ¦soon}", "otlp.timeout: this is not a duration: write it as 500ms, 10s or 1m"),
        ("{timeout: ¦0s}", "otlp.timeout: must be more than 0"),
        ("{timeout: ¦2h}", "otlp.timeout: must be at most 3600"),
        ("{timeout: ¦.nan}", "otlp.timeout: must be "),
        ("{queue: ¦0}", "otlp.queue: must be at least 1"),
        ("{queue: ¦1000001}", "otlp.queue: must be at most 1000000"),
        ("{queue: ¦1.5}", "otlp.queue: must be a whole number, and not 1.5"),
        ("{queue: ¦many}", "otlp.queue: must be a whole number, and not text"),
        ("{max_per_second: ¦0}", "otlp.max_per_second: must be more than 0"),
        ("{max_per_second: ¦.inf}", "otlp.max_per_second: must be at most 1000000"),
        ("{metrics: ¦true}", "otlp.metrics: must be a mapping of KEY: VALUE, and not true"),
        ("{metrics: {¦every: 60s}}", "otlp.metrics.every: unknown key 'every', there is interval"),
        ("{metrics: {interval: ¦500ms}}", "otlp.metrics.interval: must be at least 1"),
        ("{metrics: {interval: ¦2d}}", "otlp.metrics.interval: must be at most 86400"),
        ("{metrics: {interval: ¦often}}", "otlp.metrics.interval: this is not a duration"),
        ("{certificate: ¦''}", "otlp.certificate: is empty"),
        ("{certificate: ¦a.pem, endpoint: 'http://a'}", "otlp.certificate: the endpoint is without TLS"),
        ("{client_certificate: ¦a.pem}", "otlp.client_certificate: client_certificate and client_key go"),
        ("{client_key: ¦a.pem}", "otlp.client_key: client_certificate and client_key go together"),
        ("{¦headers: [a]}", "otlp.headers: must be a mapping of KEY: VALUE, and not a list"),
        ("{headers: {a: ¦3}}", "otlp.headers.a: must be text, and not a number"),
        ("{headers: {a: ¦''}}", "otlp.headers.a: a header's value is one line of printable ASCII"),
        ("{headers: {a: ¦' b'}}", "otlp.headers.a: a header's value is one line of printable ASCII"),
        ('{headers: {a: ¦"b\\nc: d"}}', "otlp.headers.a: a header's value is one line of printable ASCII"),
        ("{headers: {a: ¦ü}}", "otlp.headers.a: a header's value is one line of printable ASCII"),
        ("{headers: {¦1: b}}", "otlp.headers[1]: must be text, and not a number"),
        (
            "{headers: {¦'a b': c}}",
            "otlp.headers.(a key that is not shown): this is not a name to use here: up to 128 of A-Z,",
        ),
        ("{headers: {¦'a:': c}}", "otlp.headers.(a key that is not shown): this is not a name to use here"),
        ("{headers: {¦Content-Type: c}}", "otlp.headers.Content-Type: this header is the protocol's own"),
        ("{headers: {¦grpc-timeout: c}}", "otlp.headers.grpc-timeout: this header is the protocol's own"),
        ("{headers: {¦a-bin: c}}", "otlp.headers.a-bin: this header is the protocol's own"),
        ("{¦headers: {A: b, a: c}}", "otlp.headers: the header a is there twice, case makes no difference"),
    ],
)
def test_refused(refused: Refused, text: str, expected: str) -> None:
    refused(f"otlp: {text}\n{SENT}", expected)


def test_much_is_refused(problems: Problems) -> None:
    headers = ", ".join(f"h{number}: a" for number in range(65))
    [many] = problems(f"otlp: {{headers: {{{headers}}}}}\n{SENT}")
    assert many.endswith("otlp.headers: is too long: 64 are the most")
    [long] = problems(f"otlp: {{headers: {{a: {'b' * 8193}}}}}\n{SENT}")
    assert long.endswith("otlp.headers.a: must have at most 8192 characters")


# The environment.


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("${A}", "one"),
        ("Bearer ${A}", "Bearer one"),
        ("${A}${B_2}", "onetwo"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$$${A}", "$${A}"),
        ("$$${A}", "$one"),
        ("${DOLLARS}", "$$ ${A}"),
    ],
)
def test_variables(tmp_path: Path, written: str, expected: str) -> None:
    environ = {"A": "one", "B_2": "two", "DOLLARS": "$$ ${A}"}
    found = otlp(tmp_path, f'{{headers: {{h: "{written}"}}}}', environ)
    assert found.headers == {"h": expected}


def test_variables_in_every_text(tmp_path: Path) -> None:
    environ = {"HOST": "[::1]", "P": "grpc", "T": "10", "C": "none", "CA": "ca.pem", "I": "5m"}
    text = (
        "{endpoint: 'https://${HOST}:4317', protocol: '${P}', timeout: '${T}', compression: '${C}',"
        " certificate: 'tls/${CA}', metrics: {interval: '${I}'}}"
    )
    assert otlp(tmp_path, text, environ) == Otlp(
        "https://[::1]:4317", "grpc", None, 10.0, "none", f"{tmp_path}/tls/ca.pem", metrics=300.0
    )


def test_the_environment_of_the_process(config: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPROBE_EXPORTER_TEST", "x")
    found = config(f"{SENT}otlp: {{headers: {{a: '${{KPROBE_EXPORTER_TEST}}'}}}}").otlp
    assert found is not None
    assert found.headers == {"a": "x"}


def test_nowhere_else(tmp_path: Path) -> None:
    found = load_files(tmp_path, {"A": "b"}, c="probes: [{name: p, help: '${A} $', attach: 'kprobe:f'}]")
    assert found.probes[0].help == "${A} $"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "headers: {a: 'Bearer ¦${OTLP_TOKEN}'}",
            "otlp.headers.a: the environment has no OTLP_TOKEN; set it, for `check` as well as for `run`",
        ),
        ("endpoint: ¦${HOST}", "otlp.endpoint: the environment has no HOST; set it"),
        ("metrics: {interval: ¦'${I}'}", "otlp.metrics.interval: the environment has no I; set it"),
        ("headers: {a: 'x¦$TOKEN'}", f"otlp.headers.a: {LONE}"),
        ("headers: {a: 'b¦$'}", f"otlp.headers.a: {LONE}"),
        ("headers: {a: 'b¦${}'}", f"otlp.headers.a: {LONE}"),
        ("headers: {a: 'b¦${A'}", f"otlp.headers.a: {LONE}"),
        ("headers: {a: 'b¦${A-B}'}", f"otlp.headers.a: {LONE}"),
        ("headers: {a: 'b¦${1}'}", f"otlp.headers.a: {LONE}"),
        ("headers: {a: '${A}¦${A:-b}'}", f"otlp.headers.a: {LONE}"),
    ],
)
def test_variables_that_are_none(tmp_path: Path, text: str, expected: str) -> None:
    text, place = marked(f"{SENT}otlp:\n  {text}")
    [problem] = refusals(tmp_path, {"A": "b"}, c=text)
    assert problem.startswith(f"c.yaml:{place}: {expected}")


def test_two_variables_that_are_missing(tmp_path: Path) -> None:
    found = refusals(tmp_path, c=f"{SENT}otlp: {{headers: {{a: '${{B}} $$ ${{C}}'}}}}")
    assert [problem.split(": ")[0] for problem in found] == ["c.yaml:2:21", "c.yaml:2:30"]


TEXTS = ["endpoint", "protocol", "timeout", "compression", "queue", "max_per_second", "metrics"]


@pytest.mark.parametrize("secret", [SECRET, f"{SECRET}\n", f"{SECRET}\udcff", f"http://a:b@{SECRET}"])
@pytest.mark.parametrize(
    "text", [*(f"{{{key}: '${{S}}'}}" for key in TEXTS), "{headers: '${S}'}", "{metrics: {interval: '${S}'}}"]
)
def test_a_secret_in_the_wrong_place_is_not_shown(tmp_path: Path, text: str, secret: str) -> None:
    for problem in refusals(tmp_path, {"S": secret}, c=f"{SENT}otlp: {text}"):
        assert problem.startswith("c.yaml:2:")
        assert "s3cr3t" not in problem


@pytest.mark.parametrize(
    "text",
    [
        "{headers: {'authorization: Bearer s3cr3t'}}",
        "{headers: {'Bearer s3cr3t': authorization}}",
        "{headers: {'x s3cr3t': a, 'x s3cr3t': b}}",
        "{headers: [Bearer s3cr3t]}",
        "{headers: Bearer s3cr3t}",
        "{headers: {authorization: *s3cr3t}}",
        "{headers: {authorization: !s3cr3t }}",
        "{headers: {authorization: !s3cr3t!x y}}",
        "{headers: {authorization: &s3cr3t y}}",
        "{headers: {authorization: [s3cr3t]}}",
        "{headers: {authorization: {s3cr3t : }}}",
        "{headers: {authorization: 's3cr3t\n\n x'}}",
        "{'headers: Bearer s3cr3t'}",
        "{'authorization: Bearer s3cr3t'}",
        "{endpoint: 'http://user:s3cr3t@collector:4318'}",
        "{endpoint: 'user:s3cr3t@collector:4317'}",
    ],
)
def test_a_secret_that_is_written_wrongly_is_not_shown(tmp_path: Path, text: str) -> None:
    for problem in refusals(tmp_path, c=f"{SENT}otlp: {text}"):
        assert "s3cr3t" not in problem


def test_a_token_of_digits_is_not_shown(tmp_path: Path) -> None:
    [problem] = refusals(tmp_path, c=f"{SENT}otlp: {{headers: {{x-token: 1234567890}}}}")
    assert "must be text, and not a number" in problem


@pytest.mark.parametrize("key", ["endpoint", "certificate", "client_certificate", "client_key"])
def test_a_secret_is_not_in_the_values_as_text(tmp_path: Path, key: str) -> None:
    more = {"client_certificate": ", client_key: b", "client_key": ", client_certificate: b"}.get(key, "")
    value = "https://${S}" if key == "endpoint" else "${S}"
    config = load_files(
        tmp_path, {"S": SECRET}, c=f"{SENT}otlp: {{{key}: '{value}', headers: {{a: '${{S}}'}}{more}}}"
    )
    assert config.otlp is not None
    assert SECRET in getattr(config.otlp, key)
    assert SECRET not in repr(config)


def test_a_secret_that_differs_in_two_files(tmp_path: Path) -> None:
    [problem] = refusals(
        tmp_path, {"S": SECRET}, a=f"{SENT}otlp: {{headers: {{a: '${{S}}'}}}}", b="otlp: {headers: {a: b}}"
    )
    assert problem == "b.yaml:1:8: otlp.headers: differs from what is in a.yaml:2: keep one"


KEYS = st.sampled_from([*TEXTS, "headers", "certificate", "client_key", "interval", "a", "Content-Type"])
PARTS = st.sampled_from(
    ["${S}", "$", "$$", "{S}", "${", "${N}", "http://", "a", ":4317", "/", "@", " ", "\n"]
)
VALUES = st.lists(PARTS, max_size=5).map("".join) | st.none() | st.integers() | st.floats()
OTLP = st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=4) | st.lists(inner))


@given(st.dictionaries(KEYS, OTLP, max_size=6) | OTLP, st.text(max_size=4))
def test_any_values(scratch: Path, written: Any, more: str) -> None:
    """Any values give a configuration or problems of one line each, and neither shows the secret."""
    scratch.write_text(json.dumps({"otlp": written, "probes": [{"name": "p", "attach": "kprobe:f"}]}))
    try:
        config = load([scratch], DECODERS, {"S": SECRET + more})
    except ConfigError as error:
        told = [str(problem).replace(str(scratch), "") for problem in error.problems]
        assert all(problem.isprintable() for problem in told)
        assert not any("s3cr3t" in problem for problem in told)
    else:
        assert "s3cr3t" not in repr(config)


# Several files.


def test_files_combine(tmp_path: Path) -> None:
    config = load_files(
        tmp_path,
        a="otlp: {endpoint: 'collector:4317', queue: 5}",
        b="otlp: {protocol: grpc, queue: 5}",
        c=SENT,
    )
    assert config.otlp == Otlp("collector:4317", "grpc", queue=5)
    assert config.probes[0].export == Export("log")


def test_files_that_contradict_each_other(tmp_path: Path) -> None:
    found = refusals(
        tmp_path,
        a="otlp: {endpoint: 'http://a', queue: 5}",
        b="otlp: {endpoint: 'http://b', queue: 6, metrics: {}}",
        c=SENT,
    )
    assert found == [
        "b.yaml:1:18: otlp.endpoint: differs from what is in a.yaml:1: keep one",
        "b.yaml:1:37: otlp.queue: differs from what is in a.yaml:1: keep one",
    ]


def test_one_name_of_a_file_in_two_directories(tmp_path: Path) -> None:
    """A relative path is relative to its configuration file, so the two files here are different."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "c.yaml").write_text(
            f"otlp: {{certificate: ca.pem}}\nprobes: [{{name: {name}, attach: 'kprobe:f', export: log}}]"
        )
    with pytest.raises(ConfigError, match=r"otlp\.certificate: differs from what is in "):
        load([tmp_path / "a/c.yaml", tmp_path / "b/c.yaml"], DECODERS, {})


# The exported signals.


def export(config: Load, text: str, attach: str = "'kprobe:f'", rest: str = "") -> Export:
    probe = f"{{name: p, attach: {attach}, export: {text}, {rest}}}"
    found = config(f"otlp: {{}}\nprobes: [{probe}]").probes[0].export
    assert found is not None
    return found


PAIR = "{pair: {from: 'kprobe:f', to: 'kprobe:g', key: tid}}"


@pytest.mark.parametrize(
    ("signal", "attach"),
    [
        ("log", "'kprobe:f'"),
        ("log", "'call:f'"),
        ("log", PAIR),
        ("log", "['kprobe:f', 'call:f']"),
        ("log", "['kretprobe:f', 'tracepoint:a:b', 'fentry:f']"),
        ("span", "'call:f'"),
        ("span", "['syscall:openat', 'ucall:/bin/x:f']"),
        ("span", PAIR),
    ],
)
def test_signals(config: Load, signal: str, attach: str) -> None:
    assert export(config, signal, attach) == Export(signal)  # type: ignore[arg-type]
    assert export(config, f"{{as: {signal}}}", attach) == Export(signal)  # type: ignore[arg-type]


@pytest.mark.parametrize("attributes", ["[x, argv, uid]", "{argv: argv, uid: {field: tid, decode: uid}}"])
def test_facts_of_processes_as_attributes(config: Load, attributes: str) -> None:
    text = f"probes: [{{definition: 'p:a f x=$arg1', export: {{as: log, attributes: {attributes}}}}}]"
    export = config(f"otlp: {{}}\n{text}").probes[0].export
    assert export is not None
    assert export.attributes == (("x",) if "x" in attributes else ())
    assert {(label.name, label.field, label.decode[0].name) for label in export.labels} == {
        ("argv", "tid", "argv"),
        ("uid", "tid", "uid"),
    }


def test_attributes_may_be_decoded_as_labels_are(config: Load) -> None:
    export = "{as: log, attributes: {e: {field: x, decode: errno}}}"
    text = f"otlp: {{}}\nprobes: [{{definition: 'p:a f x=$arg1', export: {export}}}]"
    [probe] = config(text).probes
    assert probe.export == Export("log", labels=(Label("e", "x", (Decode("errno"),)),))
    assert probe.labels == probe.export.labels


def test_of_a_definition(config: Load) -> None:
    text = "otlp: {}\nprobes: [{definition: 'p:a f x=$arg1', export: {as: log, attributes: [x]}}]"
    assert config(text).probes[0].export == Export("log", attributes=("x",))


def test_all_of_it(config: Load) -> None:
    text = (
        "{as: span, sample: 0.1, max_per_second: 100, where: 'duration > 0.5 && n == 3', attributes: [p, n]}"
    )
    found = export(config, text, "'call:f'", "fetch: {n: '$arg1:u8', p: '$arg2:x64'}")
    assert found == Export("span", 0.1, 100.0, "duration > 0.5 && n == 3", ("p", "n"))


@pytest.mark.parametrize("sample", [1, 0.000001])
def test_samples(config: Load, sample: float) -> None:
    assert export(config, f"{{as: log, sample: {sample:f}}}").sample == sample


@pytest.mark.parametrize("form", ["{}", "{{as: {}}}"])
@pytest.mark.parametrize(
    ("attach", "expected"),
    [
        ("'kprobe:f'", "kprobe:f is one moment: write log, or attach a call or a pair, which take time"),
        ("['kprobe:f', 'tracepoint:a:b']", "kprobe:f or tracepoint:a:b is one moment: write log"),
        ("['kprobe:f', 'call:f']", "kprobe:f is one moment: write log, or attach a call or a pair"),
    ],
)
def test_what_a_span_is_for(refused: Refused, form: str, attach: str, expected: str) -> None:
    key = "export" if form == "{}" else "export.as"
    probe = f"{{name: p, attach: {attach}, export: {form.format('¦span')}}}"
    refused(f"otlp: {{}}\nprobes: [{probe}]", f"probes[0].{key}: {expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("¦true", "export: export is log, span, line, or a mapping: {as: log, sample: 0.1, …}"),
        ("¦trace", "export: must be 'log', 'span' or 'line'"),
        ("{as: ¦trace}", "export.as: must be 'log', 'span' or 'line'"),
        ("{as: log, ¦rate: 3}", "export.rate: unknown key 'rate', there is as, attributes, max_per_second"),
        ("{as: log, ¦smaple: 3}", "export.smaple: unknown key 'smaple', did you mean 'sample'?"),
        ("{as: log, sample: ¦0}", "export.sample: must be more than 0"),
        ("{as: log, sample: ¦10}", "export.sample: must be at most 1"),
        ("{as: log, sample: ¦.nan}", "export.sample: must be "),
        ("{as: log, sample: ¦10%}", "export.sample: must be a number, and not the text '10%'"),
        ("{as: log, max_per_second: ¦0}", "export.max_per_second: must be more than 0"),
        ("{as: log, max_per_second: ¦-3}", "export.max_per_second: must be more than 0"),
        ("{as: log, where: ¦3}", "export.where: must be text, and not 3"),
        ("{as: log, where: 'cpu ¦= 1'}", "export.where: after 'cpu' must come an operator"),
        ("{as: log, where: 'cpu == 1 && ¦nope > 3'}", "export.where: there is no field 'nope' at"),
        ("{as: log, where: ¦duration > 1}", "export.where: there is no 'duration' at tracepoint:a:b"),
        ("{as: log, where: 'cpu == 1 || ¦comm == 3'}", "export.where: 'comm' is a string, put 3 in"),
        ("{as: log, attributes: ¦n}", "export.attributes: attributes are a list of names of `fetch`, or a"),
        ("{as: log, attributes: [¦3]}", "export.attributes[0]: must be text, and not 3"),
        ("{as: log, attributes: {d: {field: ¦nn, decode: errno}}}", "export.attributes.d.field: there is no"),
        (
            "{as: log, attributes: {d: {field: n, decode: ¦nope}}}",
            "export.attributes.d.decode: there",
        ),
        ("{as: log, attributes: [n, ¦n]}", "export.attributes[1]: 'n' is there already: keep one"),
        ("{as: log, attributes: [n, ¦nn]}", "export.attributes[1]: 'nn' is not fetched at tracepoint:a:b"),
        ("{as: log, attributes: [¦comm]}", "export.attributes[0]: 'comm' is a built-in field, and"),
        ("{as: log, attributes: [¦return]}", "export.attributes[0]: 'return' is a built-in field"),
    ],
)
def test_an_export_that_is_refused(refused: Refused, text: str, expected: str) -> None:
    probe = f"{{name: p, attach: 'tracepoint:a:b', fetch: {{n: m, return: ret}}, export: {text}}}"
    refused(f"otlp: {{}}\nprobes: [{probe}]", f"probes[0].{expected}")


def test_it_says_as_what(problems: Problems) -> None:
    text, place = marked("otlp: {}\nprobes: [{name: p, attach: 'kprobe:f', ¦export: {sample: 1}}]")
    assert problems(text) == [f"{place}: probes[0].export.as: the key 'as' is missing"]


def test_every_alternative_fetches_the_attributes(problems: Problems) -> None:
    attach = "[{to: 'kprobe:f', fetch: {a: $arg1}}, {to: 'kprobe:g', fetch: {b: $arg1}}]"
    [problem] = problems(
        f"otlp: {{}}\nprobes: [{{name: p, attach: {attach}, export: {{as: log, attributes: [a]}}}}]"
    )
    assert problem.endswith("'a' is not fetched at kprobe:g: every alternative must fetch it")


def test_no_events_of_hist_triggers(problems: Problems) -> None:
    text, place = marked(
        "otlp: {}\nprobes: [{name: p, attach: 'kretprobe:f', aggregate: kernel, export: ¦log}]"
    )
    [problem] = problems(text)
    assert problem == (
        f"{place}: probes[0].export: the kernel keeps no events where it aggregates:"
        " leave `aggregate` out to have it"
    )


def test_what_is_wrong_with_an_export_hides_nothing_else(problems: Problems) -> None:
    found = problems(
        "otlp: {queue: 0}\n"
        "probes: [{name: p, attach: 'kprobe:f', export: {as: x, sample: 2}, metrics: [{gauge: a_total}]}]"
    )
    assert [problem.split(": ")[1] for problem in found] == [
        "otlp.queue",
        "probes[0].export.as",
        "probes[0].export.sample",
        "probes[0].metrics[0].value",
        "probes[0].metrics[0].gauge",
    ]


def test_an_export_goes_somewhere(problems: Problems) -> None:
    text, place = marked("probes: [{name: p, attach: 'kprobe:f', ¦export: log}]")
    assert problems(text) == [f"{place}: probes[0].export: {NOWHERE}"]
    assert problems(text.replace("export: log", "export: log, enabled: false")) == []
    assert problems(f"{text}\notlp: {{}}") == []


def test_a_file_that_cannot_be_read_may_say_where_it_goes(tmp_path: Path) -> None:
    [problem] = refusals(tmp_path, a=SENT, b="otlp: {endpoint: [}")
    assert problem.startswith("b.yaml:1:")


@pytest.mark.parametrize("more", [", enabled: false, export: log", ""])
def test_where_nothing_goes(config: Load, more: str) -> None:
    text, place = marked(f"probes: [{{name: p, attach: 'kprobe:f'{more}}}]\n¦otlp: {{}}")
    [warning] = config(text).warnings
    assert warning.endswith(f"c.yaml:{place}: otlp: warning: {IDLE}")
    assert config(text.replace("otlp: {}", "otlp: {metrics: {}}")).warnings == ()
    assert config(f"{SENT}otlp: {{}}").warnings == ()


# What an export requires of the plan.


def test_its_events_are_taken(config: Load) -> None:
    text = "{name: p, attach: 'kprobe:f', fetch: {n: $arg1}, export: {as: log, where: cpu == 3}}"
    [probe] = config(f"otlp: {{}}\nprobes: [{text}]").probes
    assert events_for(probe, probe.attach[0], set()) == "its events are exported"
    assert fields_used(probe) == {"common_comm", "common_tgid", "n", "cpu"}
    assert wants_tgid([probe])
    [silent] = config("probes: [{name: p, attach: 'kprobe:f', fetch: {n: $arg1}}]").probes
    assert events_for(silent, silent.attach[0], set()) is None
    assert fields_used(silent) == set()
    assert not wants_tgid([silent])


def test_both_halves_are_told(config: Load) -> None:
    attach = "{pair: {from: {to: 'tracepoint:a:b', fetch: {x: y}}, to: 'tracepoint:a:c', key: k}}"
    text = f"{{name: p, attach: {attach}, export: {{as: span, where: duration > 1}}}}"
    [probe] = config(f"otlp: {{}}\nprobes: [{text}]").probes
    assert fields_used(probe) == {"common_comm", "common_tgid", "k", "x", "duration"}
    [call] = config("otlp: {}\nprobes: [{name: p, attach: 'syscall:fsync', export: span}]").probes
    # `return` is missing: only the kernel knows whether the call returns a value, and no key names it.
    assert fields_used(call) == {"common_comm", "common_tgid"}
