"""``doctor``: shows what this kernel can and cannot do, each check with its evidence and its fix."""

import json
import os
import platform
import sys
from contextlib import ExitStack
from pathlib import Path

import click

from kprobe_exporter.cli.options import kernel_errors, tracefs_option
from kprobe_exporter.config.model import Settings
from kprobe_exporter.diagnose.sandbox import confinement_checks
from kprobe_exporter.diagnose.saved_kernel import describe, take
from kprobe_exporter.diagnose.saved_kernel import save as write
from kprobe_exporter.errors import InstanceBusy, TracefsError, UsageError, one_line
from kprobe_exporter.probing.event_source import choose
from kprobe_exporter.probing.thread_tracepoints import CGROUP_EVENTS
from kprobe_exporter.service import logs
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.symbols.lists import ADDRESSES
from kprobe_exporter.tracefs.features import TRIAL, Check, instance_checks, kernel_checks, uretprobe_check
from kprobe_exporter.tracefs.files import MountedTracefs, ReadOnlyTracefs, Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.tracefs.leftovers import remove_dead_traces
from kprobe_exporter.tracefs.mount import USUAL, find, mounted, mountinfo
from kprobe_exporter.tracefs.ownership import contents, is_live, refusal

SHOWN = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "no": ("no", "red"), "unknown": ("?", "cyan")}


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter doctor
  kprobe-exporter doctor --json | jq '.[] | select(.state != "ok")'
  kprobe-exporter doctor --save "$(uname -r).tar.xz"
""",
)
@click.option("--json", "as_json", is_flag=True, help="The same as a JSON array of objects.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Only write what this kernel offers to a file, for 'check --against FILE'.",
)
@tracefs_option
def doctor(as_json: bool, save: Path | None, tracefs: Path | None) -> None:
    """Show what this kernel can and cannot do, with the evidence, and what would mend it.

    Features are tried out in a tracefs instance of its own, which is removed again. The exit status
    is 1 if 'run' could not work at all.

    --save tries nothing. It writes the kernel's functions, tracepoints, types and release to FILE, a tar
    compressed by xz. From it, 'check --against FILE' predicts on any machine what 'run' would do here. The
    file contains no addresses and no data of processes.
    """
    logs.set_up("warning", "text")
    if save is not None:
        if as_json:
            raise UsageError("--save writes a file and shows no checks: omit --json.")
        _save(save, tracefs)
        return
    with kernel_errors():
        checks = examine(tracefs, Path("/"))
    missing = [check.name for check in checks if check.required and check.state == "no"]
    if as_json:
        click.echo(json.dumps([check._asdict() for check in checks], indent=2))
    else:
        click.echo(table(checks, missing), color=False if os.environ.get("NO_COLOR") else None)
    if missing:
        sys.exit(1)


def _save(path: Path, tracefs: Path | None) -> None:
    """Save the running kernel, and say how much of it."""
    with mounted(tracefs) as root, kernel_errors():
        tracing = ReadOnlyTracefs(root)
        saved = take(running_kernel(tracing))
        if not Symbols(tracing).visible():
            click.echo(
                "this process may not see the kernel's addresses, so functions that share a name or an "
                "address are not told apart: save it as root with CAP_SYSLOG",
                err=True,
            )
    size = write(saved, path)
    click.echo(f"{click.format_filename(path)}: {describe(saved)}; {-(-size // 1024):,} KiB")


def examine(tracefs: Path | None, root: Path) -> list[Check]:
    """Return all checks in display order, with those of a tracefs if one is or can be mounted."""
    before = find(mountinfo())
    place = tracefs or (before.path if before else USUAL)
    kernel = Check("kernel", "ok", f"{platform.release()} {platform.machine()}")
    checks = [kernel, _user(os.geteuid()), *kernel_checks(root)]
    checks.append(uretprobe_check(platform.release(), platform.machine()))
    checks += confinement_checks(root, place, os.environ)
    with ExitStack() as stack:
        try:
            path = stack.enter_context(mounted(tracefs))
        except TracefsError as error:
            return [*checks, _refused("tracefs", str(error))]
        how = "is mounted" if tracefs or before else "was not mounted, could be mounted"
        checks.append(Check("tracefs", "ok", f"{path} {how} and can be read", required=True))
        return checks + tracefs_checks(MountedTracefs(path))


def tracefs_checks(files: Tracefs) -> list[Check]:
    """Return the checks of a tracefs. Raises TracefsError while another ``doctor`` runs."""
    remove_dead_traces(files)
    checks = [_agent(files, Settings().tracefs_instance)]
    try:
        instance = Instance.acquire(files, TRIAL)
    except InstanceBusy:
        raise TracefsError("another 'doctor' is at work on this kernel: run it again after that.") from None
    except TracefsError as error:
        return [*checks, _refused("instance", str(error))]
    with instance:
        made = Check("instance", "ok", f"{instance.path} was created and locked", required=True)
        return [*checks, made, *instance_checks(instance), _following(instance), *_reading(instance)]


def table(checks: list[Check], missing: list[str]) -> str:
    """Return the checks in columns, each fix below its check, and the verdict."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        word, color = SHOWN[check.state]
        evidence = one_line(check.evidence)
        lines.append(f"{click.style(f'{word:<4}', fg=color)}  {check.name:<{width}}  {evidence}")
        if check.fix:
            lines.append(f"{'':<{width + 8}}fix: {one_line(check.fix)}")
    verdict = f"cannot work here, because of: {', '.join(missing)}" if missing else "can work here"
    return "\n".join([*lines, "", f"'run' {verdict}"])


def _user(uid: int) -> Check:
    if uid == 0:
        return Check("user", "ok", "uid 0")
    return Check("user", "warn", f"uid {uid}", "Run as root: uid 0 is enough, without any capability.")


def _reading(instance: Instance) -> list[Check]:
    """Check how events would be read here, and whether the addresses of kernel functions are visible."""
    symbols = Symbols(instance.files)
    found = choose(instance, Settings(), symbols.visible, stacks_wanted=False)
    pages = Check("pages", "ok", "events are read as binary pages")
    if found.geometry is None:
        fix = "Until this version knows them, events are read as text, in which a file's name can forge one."
        pages = Check("pages", "warn", found.because, fix)
    if symbols.visible():
        return [pages, Check("symbols", "ok", "the addresses of the kernel's functions can be seen")]
    fix = (
        "Give CAP_SYSLOG, or boot Linux 6.5 or later; until then 'caller' is 'unknown', and with "
        "'stack: true' events are read as text."
    )
    hidden = f"/proc/kallsyms shows no address, and there is no {ADDRESSES}"
    return [pages, Check("symbols", "warn", hidden, fix)]


def _following(instance: Instance) -> Check:
    """Check whether the agent can follow threads through their cgroups."""
    events = [f"events/{one.system}/{one.event}/enable" for one in CGROUP_EVENTS]
    missing = [event for event in events if not instance.files.exists(f"{instance.path}/{event}")]
    if not missing:
        return Check("cgroup_events", "ok", f"there is {' and '.join(events)}")
    fix = "Boot a kernel with CONFIG_CGROUPS; until then 'cgroup', 'container', 'pod' and 'namespace' fail."
    return Check("cgroup_events", "no", f"there is no {' and no '.join(missing)}", fix)


def _agent(files: Tracefs, name: str) -> Check:
    """Check for a live agent of this name, and for what a killed one left."""
    if is_live(files, name):
        return Check("agent", "ok", f"a live agent holds instances/{name}")
    if (sentence := refusal(files, name)) is not None:
        return _refused("agent", sentence)._replace(state="warn", required=False)
    if found := contents(files, name):
        fix = "Run 'kprobe-exporter cleanup'; the next start of the agent does the same."
        return Check("agent", "warn", f"a killed agent left {', '.join(found)}", fix)
    return Check("agent", "ok", f"no instance and no probe of '{name}' exists")


def _refused(name: str, sentence: str) -> Check:
    """Return a failed required check. The sentence has the form 'what is wrong: how to fix it'."""
    evidence, colon, fix = sentence.rpartition(": ")
    if not colon:
        evidence, fix = fix, "try again."
    return Check(name, "no", evidence, fix[0].upper() + fix[1:], required=True)
