"""cli.check: one line a problem on stderr and exit 2, or what was read and exit 0."""

from pathlib import Path

from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.config.files import DEFAULT


def test_a_right_file() -> None:
    result = CliRunner().invoke(main, ["check", str(DEFAULT)])
    assert result.exit_code == 0
    assert result.stdout == f"{DEFAULT}: ok\n8 probes, 4 metrics\n"
    assert result.stderr == ""


def test_a_wrong_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("probes:\n- name: p\n  attach: kprobe:f\n  stak: 3\n  enabled: on\n")
    result = CliRunner().invoke(main, ["check", str(file)])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{file}:4:3: probes[0].stak: unknown key 'stak', did you mean 'stack'?",
        f"{file}:5:12: probes[0].enabled: must be true or false, and not the text 'on'",
    ]


def test_a_warning_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("probes:\n- definition: p:other/opens do_sys_open mode=a2\n")
    result = CliRunner().invoke(main, ["check", str(file)])
    assert result.exit_code == 0
    assert result.stdout == f"{file}: ok\n1 probe, 0 metrics\n"
    path = "probes[0].definition"
    assert result.stderr.splitlines() == [
        f"{file}:2:17: {path}: warning: the group 'other' is left out: the agent has its own",
        f"{file}:2:46: {path}: warning: a2 is the spelling of before Linux 2.6.33, read as $arg3",
    ]


def test_one_probe(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("probes: [{name: p, attach: 'kprobe:f'}]")
    assert CliRunner().invoke(main, ["check", str(file)]).stdout.endswith("1 probe, 0 metrics\n")


def test_no_file() -> None:
    assert CliRunner().invoke(main, ["check"]).exit_code == 2
