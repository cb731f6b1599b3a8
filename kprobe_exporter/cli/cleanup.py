"""``cleanup``: removes the instances and probes of killed agents and traces, and nothing else."""

import re
from pathlib import Path

import click

from kprobe_exporter.cli.options import config_option, tracefs_option
from kprobe_exporter.config.fields import PATTERNS, SPACE_NAME
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Settings
from kprobe_exporter.errors import InstanceBusy, TracefsError, one_line
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service import logs
from kprobe_exporter.trace.output import Interrupt
from kprobe_exporter.tracefs.files import MountedTracefs, Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.leftovers import PREFIX, traces
from kprobe_exporter.tracefs.mount import mounted
from kprobe_exporter.tracefs.ownership import INSTANCES, contents
from kprobe_exporter.tracefs.removal import Removal
from kprobe_exporter.util.progress import progress

REDRAW = 0.5
"""Seconds from one message of a removal to the next."""


def _name(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse what cannot be the name of an agent's or a trace's instance, such as a path."""
    if value is not None and not re.fullmatch(SPACE_NAME, value):
        raise click.BadParameter(f"{value!r} is not a name: write {PATTERNS[SPACE_NAME]}.")
    return value


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter cleanup
  kprobe-exporter cleanup --instance my_instance
""",
)
@config_option("Take the instance's name from this configuration.")
@click.option(
    "--instance", metavar="NAME", callback=_name, help="The instance's name, kprobe_exporter by default."
)
@tracefs_option
@click.pass_context
def cleanup(
    context: click.Context, paths: tuple[Path, ...], instance: str | None, tracefs: Path | None
) -> None:
    """Remove what a killed agent left in the kernel, and what killed traces did: instances and probes.

    Live ones hold a lock on their instance and keep everything. Instances and
    probes without kprobe_exporter's mark stay too.
    """
    logs.set_up("warning", "text")
    settings = load(paths, DECODERS).settings if paths else Settings()
    name = settings.tracefs_instance if instance is None else instance
    with mounted(tracefs) as root:
        files = MountedTracefs(root)
        there = {each: found for each in (name, *traces(files)) if (found := contents(files, each))}
        if not there:
            click.echo(f"no instance and no probe of '{name}' exists")
        with Interrupt().heeded() as stop, progress() as tell:
            removal = Removal(tell, stop.is_set, pause=REDRAW, least=0)
            refused = sum(not _remove(files, each, found, removal) for each, found in there.items())
        context.exit(1 if refused else 0)


def _remove(files: Tracefs, name: str, found: list[str], removal: Removal) -> bool:
    """Remove what a killed agent or trace left under a name. Return False if it stays, or a part of it."""
    try:
        Instance.acquire(files, name, removal).close()
    except InstanceBusy:
        what = "trace" if name.startswith(PREFIX) else "agent"
        click.echo(f"a live {what} holds '{name}': nothing was removed")
        return True
    except TracefsError as error:
        click.echo(f"kprobe-exporter: {one_line(str(error))}", err=True)
        return False
    left = set(contents(files, name))
    for outcome, things in (("removed", set(found) - left), ("could not remove", set(found) & left)):
        if things:
            click.echo(f"{outcome} {_summary(name, things)}")
    return True


def _summary(name: str, things: set[str]) -> str:
    """Return what these are, as "instances/NAME and 3 definitions of the group 'NAME'"."""
    instances = sorted(thing for thing in things if thing.startswith(f"{INSTANCES}/"))
    number = len(things) - len(instances)
    definitions = f"{number} definition{'s' * (number > 1)} of the group '{name}'"
    return " and ".join(instances + [definitions] * (number > 0))
