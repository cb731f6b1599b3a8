"""cli.tool: the list of tools, the help of each, and what is refused."""

import json
from contextlib import nullcontext
from pathlib import Path

import jsonschema
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from kprobe_exporter.cli import main
from kprobe_exporter.cli import tool as module
from kprobe_exporter.cli.completion import PROGRAM, VARIABLE
from kprobe_exporter.cli.tool import Tools
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.diagnose.dry_run import DryRunRow
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.tools.load import FOLDER, tool_names
from kprobe_exporter.tools.tool_model import tool_schema

SMALL = """\
help: A tool.
subject: kernel
view: rows
probes: [{name: exec, attach: "tracepoint:sched:sched_process_exec", fetch: {file: filename}}]
columns: {FILE: file}
options: {disk-name: {short: d, type: text, help: Of this disk., where: 'file == "{disk-name}"'}}
examples: {tool small -d x: An example.}
output: |
  FILE
  /bin/x
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tool in a folder of its own."""
    (tmp_path / "small.yaml").write_text(SMALL)
    for name in ("cli.tool", "tools.load"):
        monkeypatch.setattr(f"kprobe_exporter.{name}.FOLDER", tmp_path)
    return "small"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["tool", *words])


def test_all_tools_are_listed() -> None:
    result = run()
    assert result.exit_code == 0
    assert [name for name in tool_names() if f"  {name} " not in result.output] == []


def test_a_name_that_resembles_one() -> None:
    result = run("killsnop")
    assert result.exit_code == 2
    assert "Did you mean 'killsnoop'?" in result.output


def test_help_teaches(small: str) -> None:
    """Its own option takes the letter of one that all tools have."""
    said = run(small, "--help").output
    assert "A tool." in said
    assert "-d, --disk-name TEXT" in said
    assert "  --duration SECS" in said
    assert "kprobe-exporter tool small -d x  # An example." in said
    assert "    FILE\n    /bin/x\n" in said


def test_another_name_of_a_tool() -> None:
    """It may give values of options, which the command line may replace."""
    emitted = {
        words: CliRunner().invoke(main, ["tool", *words.split(), "--emit-config"]).stdout
        for words in ("fsdist", "ext4dist", "xfsdist", "fsdist -t xfs", "xfsdist -t ext4")
    }
    assert emitted["fsdist"] == emitted["ext4dist"] == emitted["xfsdist -t ext4"]
    assert emitted["xfsdist"] == emitted["fsdist -t xfs"] != emitted["fsdist"]


def test_an_argument() -> None:
    found = CliRunner().invoke(main, ["tool", "funccount", "c:malloc", "--emit-config"])
    assert "attach: uprobe:libc.so.6:malloc" in found.stdout
    found = CliRunner().invoke(main, ["tool", "funccount"])
    assert (found.exit_code, "Missing argument 'FUNCTION'" in found.stderr) == (2, True)
    found = CliRunner().invoke(main, ["tool", "funccount", "--help"])
    assert "FUNCTION  A function, a pattern" in found.stdout


def test_the_configuration(small: str) -> None:
    result = run(small, "--emit-config", "-d", "/bin/sh")
    assert result.exit_code == 0
    assert 'where: file == "/bin/sh"' in result.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--json", "--csv"], "--json and --csv do not go together"),
        (["-p", "1", "-L", "1"], "-p and -L do not go together"),
        (["-p", "1", "--emit-config"], "--emit-config does nothing with a scope"),
        (["-d", 'a"b'], "--disk-name: the text has a quotation mark"),
        (["--interval", "1"], "No such option"),
        (["-n", "0"], "-n"),
    ],
)
def test_refused(small: str, words: list[str], why: str) -> None:
    result = run(small, *words)
    assert result.exit_code == 2
    assert why in result.output


def test_a_wrong_file_is_one_line(small: str, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL.replace("view: rows", "view: row"))
    result = run(small)
    assert result.exit_code == 2
    assert "small.yaml:3:7: view: must be 'rows', " in result.output


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    """It is refused where another user may change it."""
    file = tmp_path / "own.yaml"
    file.write_text(SMALL)
    file.chmod(0o600)
    assert "A tool." in run(str(file), "--help").output
    file.chmod(0o666)
    result = run(str(file), "--help")
    assert result.exit_code == 2
    assert "own.yaml: " in result.output


def test_names_are_completed() -> None:
    found = ShellComplete(main, {}, PROGRAM, VARIABLE).get_completions(["tool"], "kill")
    assert [item.value for item in found] == ["killsnoop"]
    assert isinstance(main.get_command(None, "tool"), Tools)  # type: ignore[arg-type]


def test_its_schema() -> None:
    result = CliRunner().invoke(main, ["schema", "--tool"])
    assert json.loads(result.output) == tool_schema()


@pytest.mark.parametrize("name", tool_names())
def test_a_file_follows_the_schema(name: str) -> None:
    file = FOLDER / f"{name}.yaml"
    jsonschema.validate(YamlSource(file.name, file.read_bytes()).data, tool_schema())


def test_what_this_kernel_lacks(small: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = DryRunRow("exec", "down", "tracepoint", "t", "", ("there is no such tracepoint\x1b.",))
    monkeypatch.setattr(module, "look_each", lambda configs, kernel, visible: [[row]])
    monkeypatch.setattr(module, "mounted", lambda path: nullcontext(tmp_path))
    said = " ".join(run("--live").output.split())
    assert "small A tool. NOT HERE: there is no such tracepoint\\x1b." in said


def test_refusal_at_the_start(small: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is what the list says, with the tool's own hint; a refusal for another reason stays as it is."""
    (tmp_path / "small.yaml").write_text(f"{SMALL}instead: Use another one.\n")
    row = DryRunRow("exec", "down", "tracepoint", "t", "", ("for writers",), "this kernel has no probes.")
    monkeypatch.setattr(module, "look_each", lambda configs, kernel, visible: [[row]])
    monkeypatch.setattr(module, "mounted", lambda path: nullcontext(tmp_path))

    def refuse(*given: object) -> None:
        raise ProbeRefused("/proc/self/fd/3:6:11: for writers.")

    monkeypatch.setattr(module, "_show", refuse)
    said = "this kernel has no probes. Use another one."
    assert run(small).stderr.strip() == f"kprobe-exporter: small cannot run here: {said}"
    assert f"NOT HERE: {said}" in " ".join(run("--live").output.split())
    monkeypatch.setattr(module, "look_each", lambda configs, kernel, visible: [[]])
    assert "for writers" in run(small).stderr


def test_what_is_there(small: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [DryRunRow("a", state, "tracepoint", "t", "") for state in ("up", "unsure", "absent", "disabled")]
    monkeypatch.setattr(module, "look_each", lambda configs, kernel, visible: [rows])
    monkeypatch.setattr(module, "mounted", lambda path: nullcontext(tmp_path))
    assert "NOT HERE" not in run("--live").output
