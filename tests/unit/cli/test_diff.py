"""``diff`` at the command line: its text, its JSON and its exit status."""

import json
from pathlib import Path

from click.testing import CliRunner

from kprobe_exporter.cli import main

OLD, NEW = "tests/fixtures/kernels/6.1.tar.xz", "tests/fixtures/kernels/6.12.tar.xz"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["diff", *arguments])
    return result.exit_code, result.output


def test_counts_of_differences_and_status() -> None:
    status, text = run(OLD, NEW)
    assert status == 1
    lines = text.splitlines()
    assert lines[0].startswith("6.1.")
    assert " -> 6.12." in lines[0]
    assert [line.split()[0] for line in lines[3:]] == ["functions", "tracepoints", "fields", "members"]


def test_listed_names_that_match() -> None:
    status, text = run("--list", "members", "--match", "sock.sk_ts*", OLD, NEW)
    assert status == 1
    assert text.splitlines()[-1] == "~ sock.sk_tsflags u16 -> u32"


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    status, text = run("--match", "nosuchname", OLD, NEW)
    assert status == 2
    assert text.splitlines() == [
        "kprobe-exporter: no name that differs matches 'nosuchname': try '*nosuchname*'."
    ]


def test_status_with_a_configuration_is_about_its_probes(tmp_path: Path) -> None:
    file = tmp_path / "probes.yaml"
    file.write_text("probes: [{name: read, attach: 'kprobe:vfs_read'}]\n")
    status, text = run(OLD, NEW, str(file))
    assert status == 0
    assert text.splitlines()[-1] == "1 probe: 0 differ, 1 alike"
    file.write_text("probes: [{name: read, attach: 'fentry:vfs_read'}]\n")
    status, text = run("--json", OLD, NEW, str(file))
    assert status == 1
    found = json.loads(text)
    assert found["old"]["machine"] == "x86_64"
    [probe] = found["probes"]
    assert probe["differs"]
    assert (probe["old"]["state"], probe["new"]["state"]) == ("down", "up")
    assert {"name": "sock.sk_tsflags", "old": "u16", "new": "u32"} in found["members"]
