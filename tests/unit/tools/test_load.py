"""tools.load: the values of options in a tool's probes, and the configuration that a tool is."""

import os
from collections.abc import Sequence
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


def tool(directory: Path, text: str, added: Sequence[str] = (), **values: object) -> Tool:
    file = directory / "mytool.yaml"
    file.write_text(text)
    return load_tool(file, values, added)


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


def test_zero_is_a_value(tmp_path: Path) -> None:
    assert [probe["export"]["where"] for probe in probes(tool(tmp_path, ROWS, min=0))] == ["pid > 0"] * 2


def test_a_column_of_an_option(tmp_path: Path) -> None:
    assert [one.title for one in tool(tmp_path, ROWS).columns][-1] == "LAT(ms)"
    assert [one.title for one in tool(tmp_path, ROWS, who=True).columns][-1] == "CALLER"


def test_a_value_in_a_target(tmp_path: Path) -> None:
    def first(**values: Any) -> object:
        return probes(tool(tmp_path, COUNTS, **values))[0]["attach"][0]["to"]

    assert first() == "tracepoint:block:block_rq_issue"
    assert first(queued=True) == "tracepoint:block:block_rq_insert"


def test_a_number_in_a_key(tmp_path: Path) -> None:
    text = ROWS.replace("    fetch: {count", "    outstanding: {older_than: '{old}'}\n    fetch: {count")
    text += "  old: {help: So old., type: time, default: 0.5}\n"
    for old, number in ((None, 0.5), (2.25, 2.25), (3, 3)):
        assert probes(tool(tmp_path, text, old=old))[0]["outstanding"] == {"older_than": number}


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


def test_an_added_place(tmp_path: Path) -> None:
    """It is the first column; an exported event has its container without it, and metrics get a label."""
    rows = tool(tmp_path, ROWS, ["pod"])
    assert [(one.title, one.of_thread) for one in rows.columns][:2] == [("POD", "pod"), ("PID", None)]
    assert all("pod" not in probe["export"]["attributes"] for probe in probes(rows))
    counts = tool(tmp_path, COUNTS, ["pod"], comm=True)
    labels = {"dev": "dev", "pod": {"field": "common_pid", "decode": "pod"}, "comm": "comm"}
    assert probes(counts)[0]["metrics"][0]["labels"] == labels
    with pytest.raises(UsageError, match="--add pod: this tool counts its probes alone, by no label"):
        tool(tmp_path, HEAD + "view: counts\nprobes: [{name: p, attach: 'kprobe:f'}]\n", ["pod"])


def test_a_probe_of_an_option(tmp_path: Path) -> None:
    assert [probe.get("enabled", True) for probe in probes(tool(tmp_path, COUNTS))] == [True, False]
    assert [probe.get("enabled", True) for probe in probes(tool(tmp_path, COUNTS, more=True))] == [True] * 2


def test_a_probe_in_place_of_another(tmp_path: Path) -> None:
    text = COUNTS.replace("enables: [extra]", "enables: [extra], disables: [io]")
    assert [probe["enabled"] for probe in probes(tool(tmp_path, text, more=True))] == [False, True]


def test_another_view_and_unit(tmp_path: Path) -> None:
    text = COUNTS + "  dist: {help: Histograms., view: hist, unit: ms}\n"
    assert (tool(tmp_path, text).model.view, tool(tmp_path, text).model.unit) == ("counts", None)
    found = tool(tmp_path, text, dist=True).model
    assert (found.view, found.unit) == ("hist", "ms")


def test_buckets_of_an_option(tmp_path: Path) -> None:
    """They replace those of histograms, and a counter gets none."""
    text = COUNTS.replace(
        "{counter: large_total, where: bytes > 4096", "{histogram: size_bytes, value: bytes"
    )
    text += "  large: {help: In megabytes., buckets: {exp2: {min: 1048576, count: 8}}}\n"
    first, second = probes(tool(tmp_path, text, large=True))[0]["metrics"]
    assert "buckets" not in first
    assert second["buckets"] == {"exp2": {"min": 1048576, "count": 8}}


def test_a_time_in_between_is_a_column(tmp_path: Path) -> None:
    """An exported event has it anyway, and a probe without it lacks the column."""
    pair = "{pair: {from: 'kprobe:f', through: {half: 'kprobe:g'}, to: 'kprobe:h', key: tid}}"
    text = (
        HEAD
        + f"""\
view: rows
probes:
  - {{name: whole, attach: {pair}}}
  - {{name: other, attach: 'kprobe:f'}}
columns:
  PID: pid
  HALF: {{value: half, unit: ms}}
  REST: {{value: duration - half, unit: ms}}
"""
    )
    whole, other = probes(tool(tmp_path, text))
    assert (whole["export"]["attributes"], whole["let"]) == (
        {"pid": "pid", "rest": "rest"},
        {"rest": "duration - half"},
    )
    assert other["export"]["attributes"] == {"pid": "pid"}


def test_an_argument_has_an_example_until_it_is_given(tmp_path: Path) -> None:
    text = COUNTS.replace('attach: "kprobe:f"', 'attach: "{what}"').replace("enabled: false, ", "")
    text += "  what: {argument: true, type: function, help: A function.}\n"
    assert probes(tool(tmp_path, text))[1]["attach"] == "kprobe:vfs_read"
    assert probes(tool(tmp_path, text, what="vfs_write"))[1]["attach"] == "kprobe:vfs_write"


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
        ("function", "vfs_read", "kprobe:vfs_read"),
        ("function", "tcp_*", "kprobe:tcp_*"),
        ("function", "ext4:ext4_sync_file", "kprobe:ext4:ext4_sync_file"),
        ("function", "t:sched:sched_switch", "tracepoint:sched:sched_switch"),
        ("function", "u:/bin/p:provider:name", "usdt:/bin/p:provider:name"),
        ("function", "c:malloc", "uprobe:libc.so.6:malloc"),
        ("function", "kretprobe:vfs_read", "kretprobe:vfs_read"),
        ("call", "vfs_read", "call:vfs_read"),
        ("call", "c:malloc", "ucall:libc.so.6:malloc"),
        ("call", "/bin/bash:readline", "ucall:/bin/bash:readline"),
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
