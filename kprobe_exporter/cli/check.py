"""``check``: validates configurations offline, without reading or changing anything of the kernel's."""

from pathlib import Path

import click

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter check probes.yaml
  kprobe-exporter check /etc/kprobe_exporter/ && systemctl restart kprobe_exporter
""",
)
@click.argument("paths", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE|DIR...")
def check(paths: tuple[Path, ...]) -> None:
    """Validate configurations; several combine, as they do for 'run'.

    Every problem is one line on stderr, FILE:LINE:COLUMN: PATH: MESSAGE, and the exit status is 2;
    a warning is such a line too, and changes nothing. Whether this kernel has the functions that are
    named is not looked at.
    """
    config = load(paths, DECODERS)
    for warning in config.warnings:
        click.echo(warning, err=True)
    for file in config.files:
        click.echo(f"{click.format_filename(file)}: ok")
    metrics = {metric.name for probe in config.probes for metric in probe.metrics}
    click.echo(f"{_count(len(config.probes), 'probe')}, {_count(len(metrics), 'metric')}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
