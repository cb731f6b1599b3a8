"""``check``: validates configurations, and shows what this kernel or saved ones would make of them."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from kprobe_exporter.cli.options import config_option, kernel_errors, tracefs_option
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.diagnose.changeable_paths import changeable
from kprobe_exporter.diagnose.dry_run import DryRunRow, look, verdict
from kprobe_exporter.diagnose.saved_kernel import load as load_kernel
from kprobe_exporter.diagnose.trial import attempt
from kprobe_exporter.errors import UsageError, counted, one_line
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service import logs
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.files import MountedTracefs, ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.tracefs.mount import mounted

COLORS = {"up": "green", "down": "red", "unsure": "yellow", "disabled": "cyan", "absent": "cyan"}
SAVED = ".tar.xz"  # How the names of saved kernels end
HEADER = ("Probe", "State", "Kind", "Target", "Plan", "Why")


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter check probes.yaml
  kprobe-exporter check /etc/kprobe_exporter/ && systemctl restart kprobe_exporter
  kprobe-exporter check --live probes.yaml
  kprobe-exporter check --live --try probes.yaml
  kprobe-exporter check --live --json probes.yaml | jq '.[] | select(.state == "down")'
  kprobe-exporter check --against kernels/*.tar.xz probes.yaml
""",
)
@click.argument("arguments", type=click.Path(path_type=Path), nargs=-1, metavar="FILE|DIR...")
@config_option("The same as an argument, as 'run' takes it.")
@click.option("--live", is_flag=True, help="Also show what 'run' would do with this kernel.")
@click.option(
    "--try",
    "tried",
    is_flag=True,
    help="With --live: attach each probe for a moment, in an instance of its own, instead of only reading.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE...",
    help="Also show what 'run' would do with a kernel that 'doctor --save FILE' saved.",
)
@click.option("--json", "as_json", is_flag=True, help="The rows of --live or --against as a JSON array.")
@tracefs_option
def check(
    arguments: tuple[Path, ...],
    paths: tuple[Path, ...],
    live: bool,
    tried: bool,
    against: tuple[Path, ...],
    as_json: bool,
    tracefs: Path | None,
) -> None:
    """Validate configurations; several combine, as they do for 'run'.

    Every problem is one line on stderr, FILE:LINE:COLUMN: PATH: MESSAGE, and the exit status is 2;
    Warnings have the same form and do not affect the exit status; one is about a probed program
    that users other than root can replace. Without further options the kernel is not read.

    --live shows, for each probe, the target and plan that 'run' would choose on this kernel, and
    why. It needs root, only reads, and changes nothing. A probe is 'unsure' if only a trial can
    tell, for example whether an instruction begins at an offset. The exit status is 1 if a
    probe would be down, unless it is optional.

    --live --try attaches and enables each probe for a moment, as 'run' does, so that none is
    'unsure'. The probes are in an instance of their own, record nothing and are removed at once.

    --against shows the same for kernels of other machines, as 'doctor --save FILE' saved them
    there. It reads nothing of this machine and needs no rights. Further arguments whose names
    end in .tar.xz are such kernels, too. A saved kernel contains no programs, so probes in
    programs are 'unsure'. The exit status is 1 if a probe would be down on one of the kernels,
    unless it is optional.
    """
    saved = (*against, *(path for path in arguments if against and path.name.endswith(SAVED)))
    paths = (*paths, *(path for path in arguments if path not in saved))
    _check_usage(paths, live, tried, saved, as_json, tracefs)
    config = load(paths, DECODERS)
    for warning in (*config.warnings, *changeable(config.probes)):
        click.echo(warning, err=True)
    if not as_json:
        for file in config.files:
            click.echo(f"{click.format_filename(file)}: ok")
        metrics = {metric.name for probe in config.probes for metric in probe.metrics}
        click.echo(f"{counted(len(config.probes), 'probe')}, {counted(len(metrics), 'metric')}")
    if not live and not saved:
        return
    logs.set_up("warning", "text")
    if saved:
        _against(config, saved, as_json=as_json)
        return
    with mounted(tracefs) as root, kernel_errors():
        files = MountedTracefs(root) if tried else ReadOnlyTracefs(root)
        rows = (attempt if tried else look)(config, running_kernel(files), Symbols(files).visible)
    if as_json:
        click.echo(json.dumps([row.as_object() for row in rows], indent=2))
    else:
        click.echo(f"\n{table(rows)}", color=_color())
    _exit(rows)


def _check_usage(
    paths: tuple[Path, ...],
    live: bool,
    tried: bool,
    saved: tuple[Path, ...],
    as_json: bool,
    tracefs: Path | None,
) -> None:
    """Refuse options that do not belong together."""
    if live and saved:
        raise UsageError("--live is about this kernel and --against about others: give one of them.")
    if tried and not live:
        raise UsageError("--try belongs to --live: give that as well.")
    if tracefs and not live:
        raise UsageError("--tracefs belongs to --live: give that as well.")
    if as_json and not (live or saved):
        raise UsageError("--json belongs to --live or --against: give one of them as well.")
    if not paths:
        where = " after the saved kernels" if saved else ""
        raise UsageError(f"no configuration is given: name one{where}.")


def _against(config: Config, saved: tuple[Path, ...], *, as_json: bool) -> None:
    """Show what each of these kernels would make of the configuration."""
    rows: list[DryRunRow] = []
    shown: list[dict[str, object]] = []
    for file in saved:
        kernel = load_kernel(file).kernel
        found = look(config, kernel, lambda: True, programs=False)
        rows += found
        if as_json:
            about = {"kernel": kernel.release, "machine": kernel.machine, "file": str(file)}
            shown += ({**about, **row.as_object()} for row in found)
            continue
        name = f"{kernel.release} {kernel.machine} ({click.format_filename(file)})"
        click.echo(f"\n{one_line(name)}\n\n{table(found)}", color=_color())
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    _exit(rows)


def _exit(rows: list[DryRunRow]) -> None:
    if any(row.state == "down" for row in rows):
        sys.exit(1)


def _color() -> bool | None:
    return False if os.environ.get("NO_COLOR") else None


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
