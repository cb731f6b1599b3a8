"""``check``: validates configurations; ``--live`` also shows each probe's target and plan on this kernel."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from kprobe_exporter.cli.options import counted, kernel_errors, tracefs_option
from kprobe_exporter.config.load import load
from kprobe_exporter.diagnose.changeable_paths import changeable
from kprobe_exporter.diagnose.dry_run import DryRunRow, look, verdict
from kprobe_exporter.errors import UsageError, one_line
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service import logs
from kprobe_exporter.tracefs.mount import mounted

COLORS = {"up": "green", "down": "red", "unsure": "yellow", "disabled": "cyan", "absent": "cyan"}
HEADER = ("Probe", "State", "Kind", "Target", "Plan", "Why")


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter check probes.yaml
  kprobe-exporter check /etc/kprobe_exporter/ && systemctl restart kprobe_exporter
  kprobe-exporter check --live probes.yaml
  kprobe-exporter check --live --json probes.yaml | jq '.[] | select(.state == "down")'
""",
)
@click.argument("paths", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE|DIR...")
@click.option("--live", is_flag=True, help="Also show what 'run' would settle on with this kernel.")
@click.option("--json", "as_json", is_flag=True, help="With --live: the rows as a JSON array of objects.")
@tracefs_option
def check(paths: tuple[Path, ...], live: bool, as_json: bool, tracefs: Path | None) -> None:
    """Validate configurations; several combine, as they do for 'run'.

    Every problem is one line on stderr, FILE:LINE:COLUMN: PATH: MESSAGE, and the exit status is 2;
    a warning is such a line too, and changes nothing. One says where others than root may change which
    program a path names. Whether this kernel has the functions that are named is not looked at.

    With --live it is: each probe is shown with the target and the plan that 'run' would settle on
    with this kernel, and why. That is found by reading alone, so it takes root, and changes nothing;
    what only trying tells, as whether an instruction begins at an offset, is said to be tried.
    Fetch arguments and filters of functions are the kernel's to judge. The exit status is 1 if a
    probe would be down, unless it is optional.
    """
    if not live and (as_json or tracefs):
        raise UsageError(f"{'--json' if as_json else '--tracefs'} belongs to --live: give that as well.")
    config = load(paths, DECODERS)
    for warning in (*config.warnings, *changeable(config.probes)):
        click.echo(warning, err=True)
    if not as_json:
        for file in config.files:
            click.echo(f"{click.format_filename(file)}: ok")
        metrics = {metric.name for probe in config.probes for metric in probe.metrics}
        click.echo(f"{counted(len(config.probes), 'probe')}, {counted(len(metrics), 'metric')}")
    if not live:
        return
    logs.set_up("warning", "text")
    with mounted(tracefs) as root, kernel_errors():
        rows = look(config, root)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        click.echo(f"\n{table(rows)}", color=False if os.environ.get("NO_COLOR") else None)
    if any(row.state == "down" for row in rows):
        sys.exit(1)


def table(rows: list[DryRunRow]) -> str:
    """Return the probes in columns, further reasons below the first, and a summary line."""
    cells = [[*map(one_line, (row.probe, row.state, row.kind, row.target, row.plan))] for row in rows]
    widths = [max(map(len, column)) for column in zip(HEADER[:-1], *cells, strict=True)]
    lines = [_line(HEADER[:-1], widths, HEADER[-1])]
    for row, found in zip(rows, cells, strict=True):
        first, *others = map(one_line, row.why or ("",))
        lines.append(_line(found, widths, first, COLORS[row.state]))
        lines += [_line([""] * len(widths), widths, other) for other in others]
    return "\n".join([*lines, "", verdict(rows)])


def _line(cells: Sequence[str], widths: list[int], last: str, color: str | None = None) -> str:
    padded = [f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)]
    if color:
        padded[1] = click.style(padded[1], fg=color)
    return "  ".join([*padded, last]).rstrip()
