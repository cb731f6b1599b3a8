"""config.load: several files together, and arbitrary input."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import MAX_PROBLEMS, load
from kprobe_exporter.config.model import RETURN_BUCKETS, Probe, Settings
from kprobe_exporter.errors import ConfigError
from tests.unit.config.conftest import DECODERS, PROBE, Load, Problems, Refused, load_files, refusals


def test_defaults(config: Load) -> None:
    found = config(PROBE)
    assert found.settings == Settings()
    [probe] = found.probes
    assert probe == Probe("p", "", probe.attach)
    assert (probe.maxactive, probe.return_buckets) == (1024, RETURN_BUCKETS)
    assert (probe.enabled, probe.optional) == (True, False)


def test_what_is_given(config: Load) -> None:
    found = config("""\
global:
  namespace: mine
  tracefs_instance: other
  source: text
  buffer_size: 512KiB
  buffer_total: 8MiB
  max_series: 7
  max_series_total: 70
  series_ttl: 90s
probes:
  - name: open
    help: Opening a file
    attach: kretprobe:do_sys_openat2
    maxactive: 12
    return_buckets: [1, 2]
    enabled: false
    optional: true
    stack: true
""")
    assert found.settings == Settings("mine", "other", "text", 512 << 10, 8 << 20, 7, 70, 90.0)
    [probe] = found.probes
    assert probe == Probe(
        "open", "Opening a file", probe.attach, (), 12, (1.0, 2.0), enabled=False, optional=True, stack=True
    )


def test_files_combine(tmp_path: Path) -> None:
    found = load_files(
        tmp_path,
        b="global: {max_series: 3}\nprobes: [{name: b, attach: 'kprobe:f'}]",
        a="global: {max_series: 3, namespace: x}\nprobes: [{name: a, attach: 'kprobe:f'}]",
    )
    assert [probe.name for probe in found.probes] == ["b", "a"]
    assert (found.settings.namespace, found.settings.max_series) == ("x", 3)
    assert found.files == (f"{tmp_path}/b.yaml", f"{tmp_path}/a.yaml")
    assert [probe.name for probe in load([tmp_path], DECODERS).probes] == ["a", "b"]


def test_files_that_contradict_each_other(tmp_path: Path) -> None:
    metric = "[{{counter: c_total, help: {}}}]"
    found = refusals(
        tmp_path,
        a="global: {max_series: 3}\n"
        f"probes: [{{name: a, attach: 'kprobe:f', metrics: {metric.format('x')}}}]",
        b="global: {max_series: 4}\n"
        f"probes:\n- {{name: b, attach: 'kprobe:f', metrics: {metric.format('y')}}}\n"
        "- {name: a, attach: 'kprobe:f'}",
    )
    assert len(found) == 3
    assert found[0] == "b.yaml:1:22: global.max_series: differs from 3 in a.yaml:1: keep one"
    assert found[1].startswith("b.yaml:3:53: probes[0].metrics[0].counter: it shares its name with")
    assert found[1].endswith("probe a at a.yaml:2, but differs in help")
    assert found[2] == "b.yaml:4:10: probes[1].name: there is a probe 'a' already, at a.yaml:2"


def test_probes_may_share_a_metric(config: Load) -> None:
    probe = "{{name: {}, attach: 'kprobe:f', metrics: [{{counter: c_total, labels: {}}}]}}"
    text = f"probes: [{probe.format('a', '[comm, cpu]')}, {probe.format('b', '[cpu, comm]')}]"
    first, second = config(text).probes
    assert first.metrics == second.metrics


def test_a_metric_is_once_in_a_probe(problems: Problems) -> None:
    [problem] = problems(
        "probes: [{name: a, attach: 'kprobe:f', metrics: [{counter: a_total}, {counter: a_total}]}]"
    )
    assert problem.endswith("probes[0].metrics[1].counter: this probe has this metric already: keep one")


def test_names_are_checked_under_the_namespace(problems: Problems) -> None:
    probe = "{name: a, attach: 'kprobe:f', metrics: [{counter: exporter_x_total}]}"
    [problem] = problems(f"probes: [{probe}]")
    assert "names that begin with kprobe_exporter_ are the exporter's own" in problem
    assert problems(f"global: {{namespace: x}}\nprobes: [{probe}]") == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("buffer_size: ¦128MiB", "buffer_total, 67108864 bytes, is less than buffer_size for a CPU"),
        ("buffer_total: ¦4KiB", "buffer_total, 4096 bytes, is less than buffer_size for a CPU"),
        ("max_series: ¦20001", "max_series_total, 20000, is less than max_series for one metric"),
        ("max_series_total: ¦999", "max_series_total, 999, is less than max_series for one metric"),
    ],
)
def test_a_part_is_no_larger_than_the_whole(refused: Refused, settings: str, sentence: str) -> None:
    key = settings.partition(":")[0]
    refused(f"{PROBE}global: {{{settings}}}", f"global.{key}: {sentence}")


def test_no_probe_at_all(tmp_path: Path) -> None:
    [problem] = refusals(tmp_path, a="global: {}", b="probes: []")
    assert problem.startswith("a.yaml:1:1: probes: there is no probe: write at least one")
    with pytest.raises(ConfigError, match="there is no probe"):
        load([], DECODERS)


def test_every_file_is_read_before_any_is_refused(tmp_path: Path) -> None:
    found = refusals(tmp_path, a="probes: [", b="probes: 3", c="probes: [{name: C}]", d=None)
    assert [problem.partition(".yaml:")[0] for problem in found] == ["a", "b", "c", "c", "d"]


def test_who_reads_a_thousand_problems(problems: Problems) -> None:
    found = problems("probes:\n" + "- 3\n" * 1000)
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1].endswith("(file): and 900 more problems, here and below")


def test_file_names_that_are_no_utf_8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml"))
    path.write_text(PROBE)
    assert len(load([path], DECODERS).probes) == 1


# Any content of a file gives a Config or problems, and never another exception.


def loads_or_refuses(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    try:
        load([file], DECODERS)
    except ConfigError as error:
        for problem in error.problems:
            assert problem.line >= 1
            assert problem.column >= 1
            assert f"{problem.path}: {problem.message}".isprintable()


@given(st.binary(max_size=300))
def test_any_bytes(scratch: Path, content: bytes) -> None:
    loads_or_refuses(scratch, content)


DEFAULT_TEXT = DEFAULT.read_bytes()


@given(
    st.integers(0, len(DEFAULT_TEXT)),
    st.integers(0, 40),
    st.binary(max_size=5) | st.sampled_from([b"\n", b":", b"- ", b"[", b"{", b'"', b"#", b"&a "]),
)
def test_a_damaged_file(scratch: Path, start: int, length: int, put: bytes) -> None:
    loads_or_refuses(scratch, DEFAULT_TEXT[:start] + put + DEFAULT_TEXT[start + length :])


@given(st.integers(0, len(DEFAULT_TEXT)))
def test_a_truncated_file(scratch: Path, end: int) -> None:
    loads_or_refuses(scratch, DEFAULT_TEXT[:end])


WORDS = st.sampled_from(
    """global namespace max_series buffer_size probes name help attach to fetch filter returns
    metrics counter histogram gauge value labels field decode buckets linear exp2 min count start
    width errno map return comm stack where scale definition pair kprobe:f kretprobe:f+1 tracepoint:a:b
    return<0 comm~"a*" series_ttl 15m
    $retval $arg1 +0($arg1):string a_total void int 1MiB""".split()
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4)


METRICS = st.fixed_dictionaries(
    {},
    optional={
        "counter": WORDS,
        "gauge": WORDS,
        "histogram": WORDS,
        "value": WORDS,
        "labels": nested(SCALARS | nested(SCALARS)),
        "buckets": nested(st.floats() | st.integers() | nested(SCALARS)),
        "help": SCALARS,
        "where": WORDS | st.text(max_size=8),
        "scale": st.floats() | st.integers(),
    },
)
DEFINITIONS = st.lists(
    st.sampled_from(
        """p r p:a r5:g/B e:x %return do_sys_open ext4:f+4 0xff a.b a/b /bin/x:0 $retval:s32 x=$arg1 y=a0 ra
        comm=$comm z=$comm:string $arg* q=+0($f):string:x if pid==1 return<0""".split()
    ),
    max_size=6,
).map(" ".join)
PROBES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from("abc"),
        "attach": WORDS | nested(WORDS),
        "definition": DEFINITIONS | WORDS | st.text(max_size=8),
        "fetch": st.dictionaries(WORDS, WORDS, max_size=3),
        "filter": WORDS | st.text(max_size=8),
        "returns": WORDS,
        "metrics": st.lists(METRICS, max_size=3),
        "return_buckets": nested(st.floats()),
        "maxactive": st.integers(),
        "enabled": SCALARS,
    },
)
DOCUMENTS = st.recursive(SCALARS, nested, max_leaves=12) | st.fixed_dictionaries(
    {"probes": st.lists(PROBES, max_size=3)},
    optional={"global": st.dictionaries(WORDS, SCALARS, max_size=3)},
)


@given(DOCUMENTS)
def test_any_values(scratch: Path, document: Any) -> None:
    loads_or_refuses(scratch, json.dumps(document).encode())


BROKEN = """probes:
- {name: whole, attach: 'kprobe:f', metrics: [{counter: whole_total, labels: [nope]}], export: log}
- name: broken
  attach: 'kprobe:f' metrics: []
- {name: behind, attach: 'kprobe:f'}
"""


def test_a_syntax_error_hides_no_mistake_before_its_probe(problems: Problems) -> None:
    label, syntax = problems(BROKEN)
    assert label.startswith("2:79: probes[0].metrics[0].labels[0]: there is no field 'nope'")
    assert syntax.startswith("4:22: (file): not valid YAML, expected <block end>")


@pytest.mark.parametrize(
    ("rest", "first"),
    [
        ("attach: {pair: {from: 'kprobe:f', to: 'kprobe:g'}}", "attach.pair.key: the key 'key' is missing"),
        ("attach: 'kprobe:f', filter: 'x >'", "filter: a number or a string in quotes must be here"),
        ("attach: 'kprobe:f', limit: 3", "limit: a limit is {cpu: SHARE}"),
    ],
)
def test_a_mistake_in_a_probe_hides_none_in_its_metrics(problems: Problems, rest: str, first: str) -> None:
    found = problems(f"probes: [{{name: p, {rest}, metrics: [{{counter: a_total, labels: [nope]}}]}}]")
    assert len(found) == 2
    assert first in found[0]
    assert "there is no field 'nope'" in found[1]


@pytest.mark.parametrize(
    ("rest", "refused"),
    [
        ("attach: 'uprobe:/bin/bash:main', stacks: {}", True),
        ("attach: 'ucall:/bin/bash:main', stacks: {}", True),
        ("attach: 'uprobe:/bin/bash:main', stacks: {user: true}", False),
        ("attach: ['uprobe:/bin/bash:main', 'kprobe:f'], stacks: {}", False),
    ],
)
def test_stacks_of_a_program_are_the_programs(problems: Problems, rest: str, refused: bool) -> None:
    found = problems(f"probes: [{{name: p, {rest}}}]")
    assert ["stacks: the kernel has no stack behind a program's code" in one for one in found] == [
        True
    ] * refused
