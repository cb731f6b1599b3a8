"""tools.load: the values of options in a tool's probes, and the configuration that a tool is."""

import os
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.errors import ConfigError, UsageError
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.tools.load import Tool, kernel_value, load_tool

HEAD = "help: A tool.\nsubject: kernel\n"

ROWS = (
    HEAD
    + """\
view: rows
probes:
  - name: read
    attach: call:vfs_read
    fetch: {count: "$arg3:u64"}
  - name: exec
    attach: tracepoint:sched:sched_process_exec
    fetch: {file: filename}
columns:
  PID: pid
  FILE: file
  ERR: {field: return, decode: errno}
  KB/s: {value: "count * 1000 / (duration + 1)", width: 10}
  LAT(ms): {value: duration, unit: ms}
  CALLER: {field: caller, option: who}
options:
  min: {short: m, help: At least so long., type: number, where: "pid > {min}"}
  own: {help: Only this one., type: text, filter: 'comm == "{own}"'}
  who: {help: The caller.}
"""
)

COUNTS = (
    HEAD
    + """\
view: counts
global: {max_series: 5}
probes:
  - name: io
    attach:
      - {to: "tracepoint:block:{queued}", filter: sector > 0}
      - tracepoint:block:block_rq_complete
    fetch: {bytes: bytes, dev: dev}
    filter: bytes > 0
    metrics:
      - {counter: bytes_total, value: bytes, labels: {dev: dev}}
      - {counter: large_total, where: bytes > 4096, labels: [dev]}
  - {name: extra, enabled: false, attach: "kprobe:f"}
options:
  queued: {short: Q, help: From the queue on., default: block_rq_issue, then: block_rq_insert}
  disk: {short: d, type: number, help: Of this disk., filter: "dev == {disk}"}
  size: {type: number, help: Of this size., where: "bytes == {size}"}
  comm: {help: By program., labels: [comm]}
  more: {help: More., enables: [extra]}
"""
)


def tool(directory: Path, text: str, **values: object) -> Tool:
    file = directory / "mytool.yaml"
    file.write_text(text)
    return load_tool(file, values)


def probes(found: Tool) -> list[dict[str, Any]]:
    """Return the probes of its configuration, which is read back as the agent does."""
    file = Path(os.environ["PYTEST_TMP"]) / "c.yaml"
    file.write_text(found.text)
    file.chmod(0o600)
    assert load([file], DECODERS).warnings == ()
    written: list[dict[str, Any]] = found.configuration["probes"]
    return written


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))


def test_rows_are_exported_events(tmp_path: Path) -> None:
    """Each probe exports the columns whose fields it has; an expression is a field that is computed."""
    read, execed = probes(tool(tmp_path, ROWS))
    errno = {"field": "return", "decode": "errno"}
    assert read["export"] == {"as": "log", "attributes": {"pid": "pid", "err": errno, "kb_s": "kb_s"}}
    assert read["let"] == {"kb_s": "count * 1000 / (duration + 1)"}
    assert execed["export"] == {"as": "log", "attributes": {"pid": "pid", "file": "file"}}
    assert "let" not in execed


def test_a_condition_and_a_filter(tmp_path: Path) -> None:
    found = tool(tmp_path, ROWS, min=25, own="sh")
    assert [probe["export"]["where"] for probe in probes(found)] == ["pid > 25"] * 2
    assert [probe["filter"] for probe in probes(found)] == ['comm == "sh"'] * 2


def test_a_column_of_an_option(tmp_path: Path) -> None:
    assert [one.title for one in tool(tmp_path, ROWS).columns][-1] == "LAT(ms)"
    assert [one.title for one in tool(tmp_path, ROWS, who=True).columns][-1] == "CALLER"


def test_a_value_in_a_target(tmp_path: Path) -> None:
    def first(**values: object) -> object:
        return probes(tool(tmp_path, COUNTS, **values))[0]["attach"][0]["to"]

    assert first() == "tracepoint:block:block_rq_issue"
    assert first(queued=True) == "tracepoint:block:block_rq_insert"


def test_a_filter_is_added_to_each(tmp_path: Path) -> None:
    """An alternative's own filter stands in place of the probe's."""
    found = probes(tool(tmp_path, COUNTS, disk=8))[0]
    assert found["filter"] == "(bytes > 0) && (dev == 8)"
    assert found["attach"][0]["filter"] == "(sector > 0) && (dev == 8)"
    assert found["attach"][1] == "tracepoint:block:block_rq_complete"


def test_metrics_get_conditions_and_labels(tmp_path: Path) -> None:
    first, second = probes(tool(tmp_path, COUNTS, size=512, comm=True))[0]["metrics"]
    assert first["where"] == "bytes == 512"
    assert second["where"] == "(bytes > 4096) && (bytes == 512)"
    assert [first["labels"], second["labels"]] == [{"dev": "dev", "comm": "comm"}] * 2


def test_a_probe_of_an_option(tmp_path: Path) -> None:
    assert [probe.get("enabled", True) for probe in probes(tool(tmp_path, COUNTS))] == [True, False]
    assert [probe.get("enabled", True) for probe in probes(tool(tmp_path, COUNTS, more=True))] == [True] * 2


def test_settings_stay(tmp_path: Path) -> None:
    assert tool(tmp_path, COUNTS).configuration["global"] == {"max_series": 5}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("signal", "term", "15"),
        ("signal", "SIGKILL", "9"),
        ("signal", "34", "34"),
        ("user", "root", "0"),
        ("user", "77", "77"),
        ("address", "::1", "::1"),
        ("time", "1e-05", "0.00001"),
        ("size", "4KiB", "4096"),
        ("text", "a b", "a b"),
    ],
)
def test_a_value_for_the_kernel(kind: Any, text: str, value: str) -> None:
    assert kernel_value("x", kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("signal", "nosuch"),
        ("user", "no such user"),
        ("address", "1.2.3"),
        ("disk", "nosuch"),
        ("size", "4 parsecs"),
        ("text", 'a"b'),
        ("text", "a\nb"),
    ],
)
def test_a_wrong_value(kind: Any, text: str) -> None:
    with pytest.raises(UsageError, match="--x: "):
        kernel_value("x", kind, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + "view: rows\nprobes: [{name: a, attach: 'kprobe:f'}]", "the view rows shows `columns`"),
        (
            HEAD + "view: counts\nprobes: [{name: a, atach: 'kprobe:f'}]",
            ":4:20: probes[0].atach: unknown key 'atach', did you mean 'attach'",
        ),
        (HEAD + "view: tops\nprobes: [{name: a, attach: 'kprobe:f'}]", ":3:7: view: must be 'rows'"),
        (
            HEAD + "view: rows\nprobes: [{name: a, attach: 'kprobe:f'}]\ncolumns: {A: {width: 3}}",
            ":5:11: columns.A: a column has `field` or `value`",
        ),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        tool(tmp_path, text)
    assert problem in str(error.value)
