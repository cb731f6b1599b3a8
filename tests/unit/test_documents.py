"""The documents are right: examples are files, commands are run by tests, and outputs match."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import bcrypt
import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from kprobe_exporter.cli import COMMANDS, main
from kprobe_exporter.config.load import load
from kprobe_exporter.errors import ConfigError
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.web.config.read import read_web_config
from tests.support.certificates import Authority
from tests.support.readme import STARTS, block, commands, reads
from tests.support.readme import command as the_command
from tests.support.runbook import FOUND as TRACED

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
EXAMPLE = ROOT / "examples/getting_started.yaml"

NOT_RUN = {
    "make test": "it is what runs the tests",
    "make demo": "it serves from a VM until it is interrupted",
    "make bench": "it takes a quarter of an hour",
    "make vmtest": "it is what runs the tests of kernels",
}
"""Commands that no test runs, and why. For these, a test checks what `make --dry-run` shows."""

NAMED = {
    "kprobe-exporter trace": "asks for a definition; docs/command-line.md has some, which are run",
    "kprobe-exporter diff OLD NEW [FILE]": "asks for two kernels; docs/operating.md compares some",
    "kprobe-exporter session": "asks for a tool; tests/kernel/test_sessions.py has some",
    "POST /-/session": "asks for a session; tests/unit/sessions/test_web.py has some",
    "kprobe-exporter tool": "lists the tools; tests/unit/cli/test_tool.py reads its list",
    "kprobe-exporter tool biosnoop -n 3": "needs a disk; tests/kernel/tools run it under a load",
    "kprobe-exporter tool NAME": "asks for a tool; each is run under a load",
}
"""Entries of the table of commands that are not complete commands."""


def helps() -> dict[str, str]:
    """The HELP text of each metric, with which its row in docs/metrics.md begins."""
    row = re.compile(r"^\| `(kprobe_\w+)` \| \w+ \| .*? \| (.*?\.)", re.MULTILINE)
    return dict(row.findall((ROOT / "docs/metrics.md").read_text()))


def test_a_metrics_help_is_one_plain_sentence() -> None:
    assert len(helps()) > 25
    for name, text in helps().items():
        assert re.match(r"[A-Z1]", text), name
        assert len(text) <= 110, name
        assert not re.search(r"\b(nobody|somebody|whoever|whatever|others did|had to|ran into)\b", text), name


def test_every_command_shown_is_run() -> None:
    """The modules of tests that run commands take them from the documents when they are imported."""
    releases = [f"release.test_{kind}" for kind in ("deb", "images", "rpm", "wheels")]
    for module in ("deploy.test_readme", "kernel.test_readme", *releases):
        import_module(f"tests.{module}")
    run = set(map(the_command, STARTS)) | {f"kprobe-exporter trace {arguments}" for arguments in TRACED}
    assert len(commands()) > 20
    assert [line for line in commands() if line not in run | NOT_RUN.keys() | NAMED.keys()] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```\nmake all   # first; then: curl localhost/x\n```\n", ["make all", "curl localhost/x"]),
        ("```\nhelm install \\\n    --wait x\ndnf list\n```\n", ["helm install --wait x", "dnf list"]),
        ("```\n$ make it\nmade it\n```\n", ["make it"]),
        ("```yaml\n# By: kprobe-exporter run\na: 1  # kill 1\n```\n", ["kprobe-exporter run", "kill 1"]),
        ("Then `kprobe-exporter\nrun --x`, or `make`, or `make y`.", ["kprobe-exporter run --x", "make y"]),
        ("| `list 'x'` | lists |\n| `kprobe` | a kind |\n", ["kprobe-exporter list 'x'"]),
        ("```\nkprobe_up 1.0\n```\n`kprobe_up` and `kprobe:x` and `source: text`", []),
    ],
)
def test_a_new_command_would_be_seen(text: str, found: list[str]) -> None:
    assert commands(text) == found


@pytest.mark.parametrize("command", NOT_RUN)
def test_what_is_not_run_is_there(command: str) -> None:
    make = subprocess.run(
        ["make", "--dry-run", *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (module,) = re.findall(r"^.venv/bin/python -m ([\w.]+)", make.stdout, re.MULTILINE)
    assert find_spec(f"{module}.__main__")


def test_pip_installs_the_built_wheel_by_its_file() -> None:
    """By a name, pip would look for a newer version in an index, where anyone may have taken the name."""
    [install] = [line for line in commands() if line.startswith("pip install")]
    assert re.fullmatch(r"pip install dist/\S+_\$\(uname -m\)\.whl", install)


def test_a_pod_is_added_to_a_packs_metric_as_documented(tmp_path: Path) -> None:
    """And one metric of the packs has such a label already, as the document says."""
    packs = {path: path.read_text() for path in (ROOT / "examples/packs").iterdir()}
    labelled = [line for text in packs.values() for line in text.splitlines() if "decode: pod" in line]
    assert labelled == [line for line in labelled if "field: victim" in line] != []
    [label] = re.findall(r"`(pod: {.+?})` to the `labels`", (ROOT / "docs/operating.md").read_text())
    copied = tmp_path / "disk.yaml"
    before = "labels: {errno: {field: return, decode: errno}, comm: comm}"
    copied.write_text(packs[ROOT / "examples/packs/disk.yaml"].replace(before, f"{before[:-1]}, {label}}}"))
    [probe] = [probe for probe in load([copied], DECODERS).probes if probe.name == "open"]
    assert [label.name for label in probe.metrics[0].labels] == ["comm", "errno", "pod"]


def invoke(command: str, **placeholders: Path) -> Result:
    """Run a command of a document in this process, with files in place of its placeholder words."""
    program, *words = shlex.split(command)
    assert program == "kprobe-exporter"
    return CliRunner().invoke(main, [str(placeholders.get(word, word)) for word in words])


def test_the_readmes_configuration_is_the_example() -> None:
    assert block("# Three probes to begin with") == EXAMPLE.read_text()


@reads(command="kprobe-exporter replay tests/", general="kprobe-exporter replay FILE")
def test_the_documented_replay_prints_what_it_says(command: str, general: str, tmp_path: Path) -> None:
    code, _, output = command.partition(" > ")
    file = ROOT / shlex.split(code)[-1]
    result = invoke(general, FILE=file)
    assert result.exit_code == 0
    assert f"$ {command}\n{result.stderr}" == block("$ kprobe-exporter replay")
    done = bash(command.replace(output, str(tmp_path / output)))
    assert (done.returncode, done.stderr) == (0, result.stderr)
    assert (tmp_path / output).read_text() == result.stdout


def bash(script: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script at the top of the checkout, with the environment of this Python active."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        input=typed,
        capture_output=True,
        text=True,
        check=False,
    )


@reads(command="source <(")
def test_bash_completes_after_the_documented_line(command: str) -> None:
    done = bash(f"{command}\ncomplete -p kprobe-exporter")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"complete .*-F \w+ kprobe-exporter\n", done.stdout)


@reads(command="kprobe-exporter check FILE")
def test_check_says_where_the_mistakes_are(command: str, tmp_path: Path) -> None:
    assert invoke(command, FILE=EXAMPLE).exit_code == 0
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("probes:\n  - {name: 1}\nglobals: {}\n")
    result = invoke(command, FILE=wrong)
    assert result.exit_code == 2
    assert "`FILE:LINE:COLUMN: PATH: MESSAGE`" in (ROOT / "docs/command-line.md").read_text()
    places = re.findall(rf"^{re.escape(str(wrong))}:(\d+):\d+: \S+: .+$", result.stderr, re.MULTILINE)
    assert {"2", "3"} <= set(places)


@reads(command="kprobe-exporter schema")
def test_schema_is_one_that_the_example_meets(command: str) -> None:
    result = invoke(command)
    assert result.exit_code == 0
    jsonschema.validate(yaml.safe_load(EXAMPLE.read_text()), json.loads(result.stdout))


@reads(command="python3 -c 'import bcrypt")
def test_a_password_is_hashed_for_the_web_configuration(command: str, tmp_path: Path) -> None:
    python, *arguments = shlex.split(command)
    assert Path(python).name.startswith("python")
    done = bash(shlex.join([sys.executable, *arguments]), "secret\n")
    hashed = done.stdout.strip()
    assert bcrypt.checkpw(b"secret", hashed.encode()), done.stderr
    server = Authority(tmp_path).issue("server")
    shown = block("basic_auth_users")
    assert {server.certificate.name, server.key.name} <= set(re.findall(r"[\w.]+", shown))
    file = tmp_path / "web.yml"
    file.write_text(shown.replace("$2b$10$…", hashed))
    outcome = read_web_config(file)
    assert (outcome.problems, outcome.notes) == ((), ())
    assert outcome.settings
    assert outcome.settings.tls
    assert outcome.settings.users == {b"scraper": hashed.encode()}


def test_the_documented_otlp_takes_its_token_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "otlp.yaml"
    file.write_text(block("${OTLP_TOKEN}"))
    config = load([file], DECODERS, {"OTLP_TOKEN": "secret"})
    assert config.otlp
    assert config.otlp.headers == {"authorization": "Bearer secret"}
    assert all(probe.export for probe in config.probes)
    with pytest.raises(ConfigError, match="OTLP_TOKEN"):
        load([file], DECODERS, {})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
class TestDocument:
    def test_links_lead_somewhere(self, document: Path) -> None:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), target

    def test_targets_of_make_exist(self, document: Path) -> None:
        makefile = (ROOT / "Makefile").read_text()
        for text in re.findall(r"`(make [a-z]+)|^(make [a-z]+)", document.read_text(), re.MULTILINE):
            target = (text[0] or text[1]).removeprefix("make ")
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target

    def test_commands_and_their_options_exist(self, document: Path) -> None:
        for command, rest in re.findall(
            r"(?<!-n )(?<!-it )kprobe-exporter ([a-z]+)([^`\n]*)", document.read_text()
        ):
            assert command in COMMANDS
            tool = rest.split()[:1] if command == "tool" and rest.split()[:1] != ["NAME"] else []
            words = [word for word in tool if not word.startswith("-")]
            shown = CliRunner().invoke(main, [command, *words, "--help"]).output
            for option in re.findall(r"(?<=\s)--[a-z.-]+", rest.partition("#")[0]):
                assert option in shown, f"{command} {option}"

    def test_paths_exist(self, document: Path) -> None:
        for path in re.findall(
            r"`((?:tests|examples|scripts|docs|kprobe_exporter)/[\w./-]+)`", document.read_text()
        ):
            assert (ROOT / path).exists(), path
