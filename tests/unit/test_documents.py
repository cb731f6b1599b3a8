"""The documents say what is: examples are the files, commands exist, outputs are what comes out."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(document.read_text())


def test_the_readmes_configuration_is_the_example() -> None:
    (shown,) = [text for language, text in blocks(ROOT / "README.md") if language == "yaml"]
    assert shown == (ROOT / "examples/getting_started.yaml").read_text()


def test_the_readmes_replay_prints_what_it_says() -> None:
    (block,) = [text for _, text in blocks(ROOT / "README.md") if text.startswith("$ kprobe-exporter replay")]
    command, _, shown = block.partition("\n")
    file = command.split()[3]
    result = CliRunner().invoke(main, ["replay", str(ROOT / file)])
    assert result.exit_code == 0
    assert result.stderr == shown


RUN_BY = {
    "make run": "tests/kernel/test_default.py",  # it starts `run` with the packaged configuration
    "make test": ".ci/run",
    "docker build": "tests/deploy/test_image.py",
    "docker run": "tests/deploy/test_image.py",
    "kubectl apply -k deploy/kubernetes/base": "tests/deploy/test_kubernetes.py",
    "kubectl -n kprobe-exporter rollout": "tests/deploy/test_kubernetes.py",
    "$ kprobe-exporter replay": "tests/unit/test_documents.py",
    "kprobe-exporter trace": "tests/kernel/test_runbook.py",
}
"""What runs the commands in the README's blocks, by how they begin; kubectl and docker as far as can be."""


def test_every_command_of_the_readme_is_run() -> None:
    commands = re.compile(
        r"^(?:\$ )?(?:make|docker|kubectl|kprobe-exporter|curl|pip|python3?) .*$", re.MULTILINE
    )
    found = [line for _, text in blocks(ROOT / "README.md") for line in commands.findall(text)]
    assert {line for line in found if not line.startswith(tuple(RUN_BY))} == set()
    assert {start for start in RUN_BY if not any(line.startswith(start) for line in found)} == set()
    assert all((ROOT / test).exists() for test in RUN_BY.values())


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
        for command, rest in re.findall(r"(?<!-n )kprobe-exporter ([a-z]+)([^`\n]*)", document.read_text()):
            assert command in COMMANDS
            shown = CliRunner().invoke(main, [command, "--help"]).output
            for option in re.findall(r"(?<=\s)--[a-z.-]+", rest.partition("#")[0]):
                assert option in shown, f"{command} {option}"

    def test_paths_exist(self, document: Path) -> None:
        for path in re.findall(
            r"`((?:tests|examples|scripts|docs|kprobe_exporter)/[\w./-]+)`", document.read_text()
        ):
            assert (ROOT / path).exists(), path
