"""``cleanup``: removes the instances and probes of killed agents and traces, and nothing else."""

from pathlib import Path

import click

from kprobe_exporter.cli.options import config_option, tracefs_option
from kprobe_exporter.config.load import load
from kprobe_exporter.config.values import Settings
from kprobe_exporter.errors import InstanceBusy
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service import logs
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.files import MountedTracefs, Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.leftovers import PREFIX, traces
from kprobe_exporter.tracefs.mount import mounted


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter cleanup
  kprobe-exporter cleanup --instance my_instance
""",
)
@config_option("Take the instance's name from this configuration.")
@click.option("--instance", metavar="NAME", help="The instance's name, kprobe_exporter by default.")
@tracefs_option()
def cleanup(paths: tuple[Path, ...], instance: str | None, tracefs: Path | None) -> None:
    """Remove what a killed agent left in the kernel, and what killed traces did: instances and probes.

    Live ones hold a lock on their instance and keep everything, as do other tools.
    """
    logs.set_up("warning", "text")
    settings = load(paths, DECODERS).settings if paths else Settings()
    name = instance or settings.tracefs_instance
    with mounted(tracefs) as root:
        files = MountedTracefs(root)
        there = {each: found for each in (name, *traces(files)) if (found := left_behind(files, each))}
        if not there:
            click.echo(f"nothing of '{name}' is there")
        for each, found in there.items():
            _remove(files, each, found)


def _remove(files: Tracefs, name: str, found: list[str]) -> None:
    try:
        Instance.acquire(files, name).close()
    except InstanceBusy:
        what = "trace" if name.startswith(PREFIX) else "agent"
        click.echo(f"a live {what} holds '{name}': nothing was removed")
        return
    left = set(left_behind(files, name))
    for thing in found:
        click.echo(f"{'could not remove' if thing in left else 'removed'} {thing}")


def left_behind(files: Tracefs, name: str) -> list[str]:
    """Return what exists under an agent's name: its instance, and the events of its group."""
    instance = [f"instances/{name}"] if files.exists(f"instances/{name}") else []
    return instance + [f"{d.group}/{d.event}" for d in list_definitions(files) if d.group == name]
