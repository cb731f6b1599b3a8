"""The options of several commands: times with units, and levels of the log by either name."""

import click
import pytest
from click.testing import CliRunner

from kprobe_exporter.cli.options import Level, Seconds


@click.command()
@click.option("-d", "seconds", type=Seconds())
@click.option("--log.level", "level", type=Level(), default="info")
def shown(seconds: float | None, level: str) -> None:
    click.echo(f"{seconds} {level}")


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["-d", "10"], "10.0 info"),
        (["-d", "0.5"], "0.5 info"),
        (["-d", "1s"], "1.0 info"),
        (["-d", "250ms"], "0.25 info"),
        (["-d", "1.5m"], "90.0 info"),
        (["-d", "2h", "--log.level", "warn"], "7200.0 warning"),
        (["--log.level", "warning"], "None warning"),
    ],
)
def test_values(words: list[str], output: str) -> None:
    result = CliRunner().invoke(shown, words)
    assert (result.exit_code, result.output) == (0, f"{output}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (["-d", text], f"'{text}' is not a time above 0: write it as 10, 10s, 500ms, 2m or 1h")
            for text in ("0", "0s", "-1", "1x", "", "nan", "inf", "1e3", "1 s", "9" * 400)
        ),
        (["--log.level", "warm"], "'warm' is not one of 'debug', 'info', 'warning', 'error'"),
    ],
)
def test_what_is_refused(words: list[str], message: str) -> None:
    result = CliRunner().invoke(shown, words)
    assert result.exit_code == 2
    assert message in result.output
