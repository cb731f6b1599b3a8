"""cli.check: one line per problem on stderr and status 2, or what was read; --live also asks the kernel."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kprobe_exporter.cli import check as module
from kprobe_exporter.cli import main
from kprobe_exporter.cli.check import table
from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.diagnose.archive import pack
from kprobe_exporter.diagnose.dry_run import DryRunRow


def test_a_right_file() -> None:
    result = CliRunner().invoke(main, ["check", str(DEFAULT)])
    assert result.exit_code == 0
    assert result.stdout == f"{DEFAULT}: ok\n11 probes, 8 metrics\n"
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
        f"{file}:2:17: {path}: warning: the group 'other' is ignored: the agent has its own",
        f"{file}:2:46: {path}: warning: a2 is the spelling of before Linux 2.6.33, read as $arg3",
    ]


def test_no_file() -> None:
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 2
    assert result.stderr == "kprobe-exporter: no configuration is given: name one.\n"


def test_config_option_as_for_run(tmp_path: Path) -> None:
    """Files of ``--config`` come first, and combine with the arguments."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"probes: [{{name: {name}, attach: 'kprobe:{name}'}}]")
    first, second = str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")
    for arguments in (["--config", first, "--config", second], [second, "--config", first]):
        result = CliRunner().invoke(main, ["check", *arguments])
        assert result.exit_code == 0, result.stderr
        assert result.stdout == f"{first}: ok\n{second}: ok\n2 probes, 0 metrics\n"


ROWS = [
    DryRunRow("open", "up", "kretprobe", "kretprobe:do_sys_openat2", "events", ("its events are read",)),
    DryRunRow("x", "down", "kprobe", "kprobe:f", "", ("kprobe:f: \x1b[31mno", "tracepoint:a:b: no")),
    DryRunRow("gone", "absent", "kprobe", "kprobe:g", "", ("kprobe:g: no",)),
    DryRunRow("off", "disabled", "kprobe", "kprobe:h", ""),
    DryRunRow("at", "unsure", "kprobe", "kprobe:i+4", "count", ("only trying tells",)),
]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Return a function that runs `check --live` on a kernel that answers with given rows."""

    def run(rows: list[DryRunRow], *arguments: str) -> Result:
        monkeypatch.setattr(module, "mounted", lambda asked: nullcontext(tmp_path))
        monkeypatch.setattr(module, "look", lambda config, files, visible: rows)
        return CliRunner().invoke(main, ["check", "--live", str(DEFAULT), *arguments])

    return run


def test_the_table(live: Callable[..., Result]) -> None:
    result = live(ROWS)
    assert result.exit_code == 1
    assert [line.rstrip() for line in result.stdout.splitlines()[2:]] == [
        "",
        "Probe  State     Kind       Target                    Plan    Why",
        "open   up        kretprobe  kretprobe:do_sys_openat2  events  its events are read",
        "x      down      kprobe     kprobe:f                          kprobe:f: \\x1b[31mno",
        "                                                              tracepoint:a:b: no",
        "gone   absent    kprobe     kprobe:g                          kprobe:g: no",
        "off    disabled  kprobe     kprobe:h",
        "at     unsure    kprobe     kprobe:i+4                count   only trying tells",
        "",
        "1 of 3 probes would be up; down: x; unsure: at; absent: gone; disabled: off",
    ]


def test_try_attaches_instead_of_reading(
    live: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "attempt", lambda config, files, visible: ROWS[:1])
    assert live(ROWS, "--try").stdout.endswith("\n\n1 of 1 probes would be up\n")


def test_what_is_absent_disabled_or_unsure_is_no_failure(live: Callable[..., Result]) -> None:
    result = live([row for row in ROWS if row.state != "down"])
    assert result.exit_code == 0
    assert result.stdout.endswith("\n\n1 of 2 probes would be up; unsure: at; absent: gone; disabled: off\n")


def test_the_rows_as_json(live: Callable[..., Result]) -> None:
    result = live(ROWS, "--json")
    assert result.exit_code == 1
    first, *_ = rows = json.loads(result.stdout)
    assert len(rows) == len(ROWS)
    assert first == {
        "probe": "open",
        "state": "up",
        "kind": "kretprobe",
        "target": "kretprobe:do_sys_openat2",
        "plan": "events",
        "why": ["its events are read"],
    }


def test_colours_are_for_a_terminal(live: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in live(ROWS).stdout
    assert "\x1b[31mdown" in table(ROWS)


def test_a_wrong_file_is_not_looked_up(live: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("probes: [{name: p}]")
    assert live([], str(file)).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([DEFAULT, "--json"], "--json belongs to --live or --against: give one of them as well."),
        ([DEFAULT, "--try"], "--try belongs to --live: give that as well."),
        ([DEFAULT, "--tracefs", "/t"], "--tracefs belongs to --live: give that as well."),
        (
            [DEFAULT, "--tracefs", "/t", "--against", "k.tar.xz"],
            "--tracefs belongs to --live: give that as well.",
        ),
        (
            [DEFAULT, "--live", "--against", "k.tar.xz"],
            "--live is about this kernel and --against about others: give one of them.",
        ),
        (
            ["--against", "a.tar.xz", "b.tar.xz"],
            "no configuration is given: name one after the saved kernels.",
        ),
        ([DEFAULT, "--against", "/no.tar.xz"], "/no.tar.xz cannot be read: No such file or directory."),
    ],
)
def test_options_that_do_not_belong_together(arguments: list[str | Path], sentence: str) -> None:
    result = CliRunner().invoke(main, ["check", *map(str, arguments)])
    assert result.exit_code == 2
    assert result.stderr == f"kprobe-exporter: {sentence}\n"


@pytest.fixture
def kernels(tmp_path: Path) -> list[str]:
    """Return the files of two saved kernels, the second of which has no kprobes."""
    paths = []
    for release, names in (("6.1-a", b"kprobe_events\nuprobe_events\n"), ("5.10-b", b"uprobe_events\n")):
        about = {"format": 1, "release": release, "machine": "x86_64"}
        path = tmp_path / f"{release}.tar.xz"
        functions = {"tracefs/available_filter_functions": b"vfs_read\n", "tracefs.paths": names}
        path.write_bytes(pack({"kernel.json": json.dumps(about).encode(), **functions}))
        paths.append(str(path))
    return paths


READS = """\
probes:
  - {name: read, attach: "kprobe:vfs_read"}
  - {name: main, attach: "uprobe:/no/such/program:main"}
"""


def test_against_kernels_that_were_saved(tmp_path: Path, kernels: list[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(READS)
    first, second = kernels
    with_kprobes = CliRunner().invoke(main, ["check", "--against", first, str(config)])
    assert (with_kprobes.exit_code, with_kprobes.stderr) == (0, "")
    head, table_of_first = with_kprobes.stdout.split("\n\n", 1)
    assert head.endswith("2 probes, 0 metrics")
    assert table_of_first.startswith(f"6.1-a x86_64 ({first})\n\nProbe  State")
    assert table_of_first.endswith("1 of 2 probes would be up; unsure: main\n")
    both = CliRunner().invoke(main, ["check", str(config), "--against", *kernels])
    assert both.exit_code == 1
    assert both.stdout.startswith(with_kprobes.stdout)
    assert f"\n5.10-b x86_64 ({second})\n" in both.stdout
    assert "down     kprobe" not in with_kprobes.stdout
    assert "down: read; unsure: main\n" in both.stdout


def test_against_kernels_as_json(tmp_path: Path, kernels: list[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(READS)
    result = CliRunner().invoke(main, ["check", "--json", "--against", *kernels, str(config)])
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert [(row["kernel"], row["machine"], row["file"], row["probe"], row["state"]) for row in rows] == [
        ("6.1-a", "x86_64", kernels[0], "read", "up"),
        ("6.1-a", "x86_64", kernels[0], "main", "unsure"),
        ("5.10-b", "x86_64", kernels[1], "read", "down"),
        ("5.10-b", "x86_64", kernels[1], "main", "unsure"),
    ]


def test_an_optional_probe_may_be_absent_on_a_saved_kernel(tmp_path: Path, kernels: list[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("probes: [{name: read, attach: kprobe:vfs_read, optional: true}]")
    assert CliRunner().invoke(main, ["check", "--against", *kernels, str(config)]).exit_code == 0


def test_no_tracefs(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["check", "--live", str(DEFAULT), "--tracefs", str(tmp_path)])
    assert result.exit_code == 1
    assert "mount one with 'mount -t tracefs nodev /sys/kernel/tracing'" in result.stderr


def test_a_hostile_name_of_a_file_stays_on_its_line(tmp_path: Path) -> None:
    file = tmp_path / "c\x1b[31m\nok\u202e.yaml"
    file.write_text("probes: 1\n")
    file.chmod(0o600)
    result = CliRunner().invoke(main, ["check", str(file)])
    assert result.exit_code != 0
    assert "c\\x1b[31m\\nok\\u202e.yaml:1:" in result.output
    assert all(line.isprintable() for line in result.output.splitlines())
